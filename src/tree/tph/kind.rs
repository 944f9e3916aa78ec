//! What the table of kinds says of `tph`, and the options that it has alone.

use crate::tree::kinds::{Kind, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::own_options::{
    DISPLACEMENT, FANOUT_MAX, ONE_LEVEL, PIECES_MAX, WITHOUT_SEEK_COMPACTION,
};
use crate::tree::trunk::{Trunk, TrunkTree};
use crate::tree::versioned::repair_ranges;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "tph",
    own_options: &[&FANOUT_MAX, &PIECES_MAX, &DISPLACEMENT, &ONE_LEVEL, &WITHOUT_SEEK_COMPACTION],
    space_amplification_max_percent: 133,
    blob_bytes_min: 4096,
    open: |context, edits, flushed| Ok(TrunkTree::open(context, edits, flushed)?),
    has_heads: true,
    operation_sources: None,
    repair_ranges: repair_ranges::<Trunk>,
    // Edits are those of `stb`.
    #[cfg(feature = "fuzz")]
    fuzz_targets: &[],
};

impl KeyspaceOptions {
    /// A keyspace held by two-tier perfect hash tables, after CompassDB: for gets of single keys, each of which reads the
    /// disk once, with an index of a few bytes per key. A key with merge operands, or one that an older snapshot sees, may be
    /// read from several pieces.
    pub fn tph() -> KeyspaceOptions {
        KeyspaceOptions::new(TreeKind::Tph)
    }

    /// The most large pieces of a TPH of the last level (1 to 127; 0, the default, is 16): more make writes cheaper, fewer save
    /// memory and space. An option of the kind `tph`.
    pub fn pieces_max(self, pieces: u32) -> KeyspaceOptions {
        self.own(&PIECES_MAX, pieces)
    }

    /// Whether the tree has one level (CompassDB's one-level mode): up to 32 memtables are collected and merged straight
    /// into the leaves, of which there may be any number, and leaves have more and smaller pieces. A load writes each
    /// pair about twice, and overwrites write least with a space target of 2 or more
    /// ([`space_amplification_max`](KeyspaceOptions::space_amplification_max)). A get is one read as before; iterators
    /// merge more pieces. An option of the kind `tph`.
    pub fn one_level(self, one_level: bool) -> KeyspaceOptions {
        self.own(&ONE_LEVEL, u32::from(one_level))
    }

    /// Whether new indexes of a `tph` keyspace have the perfect hash functions of the CompassDB paper (CPHash), which are
    /// larger and slower to build than the default's: this is for measuring them. An option of the kind `tph`.
    pub fn displacement(self, displacement: bool) -> KeyspaceOptions {
        self.own(&DISPLACEMENT, u32::from(displacement))
    }
}
