//! What the table of kinds says of `slm`.

#[cfg(feature = "fuzz")]
use super::fuzz::TARGETS;
use super::parameters::{KEY_LIST_PERCENT_MAX, LIVE_PERCENT_MIN, WITHOUT_LEAF_SCANS};
use super::{Slm, SlmTree};
use crate::tree::kinds::{Kind, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::own_options::WITHOUT_SEEK_COMPACTION;
use crate::tree::versioned::repair_ranges;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "slm",
    own_options: &[
        &LIVE_PERCENT_MIN,
        &WITHOUT_LEAF_SCANS,
        &WITHOUT_SEEK_COMPACTION,
        &KEY_LIST_PERCENT_MAX,
    ],
    space_amplification_max_percent: 133,
    // A scan of values of 4 KiB reads each from its own place otherwise (docs/decisions/0025-slm.md).
    blob_bytes_min: 8192,
    open: |context, edits, flushed| Ok(SlmTree::open(context, edits, flushed)?),
    has_heads: false,
    operation_sources: None,
    repair_ranges: repair_ranges::<Slm>,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &TARGETS,
};

impl KeyspaceOptions {
    /// A keyspace held by a single level of tables under a B+-tree of all keys: whether a key exists is known without a
    /// read.
    pub fn slm() -> KeyspaceOptions {
        KeyspaceOptions::new(TreeKind::Slm)
    }

    /// Tables of which less than this percentage is live are merged with others (SLM-DB, section 3.3; 0, the default: 70).
    /// A higher number means less space and faster scans, for more writing. An option of the kind `slm`.
    pub fn live_percent_min(self, percent: u32) -> KeyspaceOptions {
        self.own(&LIVE_PERCENT_MIN, percent)
    }

    /// A table has a list of its keys in its file if that makes it larger by at most this percentage (0, the default: 3). If the
    /// index is lost, as by a loss of power, it is built from these lists when the store is opened, and otherwise from all
    /// that tables have. A higher number helps where values have a few hundred bytes. An option of the kind `slm`.
    pub fn key_list_percent_max(self, percent: u32) -> KeyspaceOptions {
        self.own(&KEY_LIST_PERCENT_MAX, percent)
    }

    /// Whether tables are merged if neighbouring keys are in many of them (the default; SLM-DB, section 3.3). An option
    /// of the kind `slm`.
    pub fn leaf_scans(self, leaf_scans: bool) -> KeyspaceOptions {
        self.own(&WITHOUT_LEAF_SCANS, u32::from(!leaf_scans))
    }
}
