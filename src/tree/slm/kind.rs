//! What the table of kinds says of `slm`.

#[cfg(feature = "fuzz")]
use super::fuzz::TARGETS;
use super::parameters::{
    EMULATED_FENCE_NANOS, EMULATED_MIB_PER_SECOND, LIVE_PERCENT_MIN, WITHOUT_LEAF_SCANS,
};
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
        &EMULATED_FENCE_NANOS,
        &EMULATED_MIB_PER_SECOND,
    ],
    space_amplification_max_percent: 133,
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

    /// Whether tables are merged if neighbouring keys are in many of them (the default; SLM-DB, section 3.3). An option
    /// of the kind `slm`.
    pub fn leaf_scans(self, leaf_scans: bool) -> KeyspaceOptions {
        self.own(&WITHOUT_LEAF_SCANS, u32::from(!leaf_scans))
    }

    /// For measurements: the index is as slow as persistent memory, as SLM-DB's evaluation emulates it (section 6.1). Whoever
    /// has written something to it waits `fence_nanos` for it (1 ms at most), and everybody together writes no more than
    /// `mib_per_second` (0: no limit). What is durable when is not changed by that. It applies from the next opening of the
    /// store on. An option of the kind `slm`.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// // 500 ns for each fence, and 8 GB/s.
    /// let slow = spinney::KeyspaceOptions::slm().emulated_memory(500, 7629);
    /// let items = db.keyspace("items", slow)?;
    /// items.put("key", "value")?;
    /// # Ok(()) }
    /// ```
    pub fn emulated_memory(self, fence_nanos: u32, mib_per_second: u32) -> KeyspaceOptions {
        self.own(&EMULATED_FENCE_NANOS, fence_nanos).own(&EMULATED_MIB_PER_SECOND, mib_per_second)
    }
}
