//! Spinney: an embedded, persistent, ordered key-value store for NVMe drives.
//!
//! The modules stand in the order in which a byte passes through them on its way to the disk, and
//! each may call only those below it (`tests/tidy.rs` checks that).
#![cfg_attr(rustfmt, rustfmt_skip)] // the modules' order is data flow, not the alphabet

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub(crate) mod db;
pub(crate) mod commit;
pub(crate) mod journal;
pub(crate) mod memtable;
pub(crate) mod tree;
pub(crate) mod merge;
pub(crate) mod table;
pub(crate) mod filter;
pub(crate) mod manifest;
pub(crate) mod cache;
pub(crate) mod jobs;
pub mod vfs;
pub(crate) mod base;

pub use db::batch::Batch;
pub use db::check::CheckReport;
pub use db::database::{Database, RecoveryReport};
pub use db::events::{Event, EventListener};
pub use db::iterator::Iter;
pub use db::keyspace::Keyspace;
pub use db::options::{
    Builder, CheckLevel, Compression, GIB, KeyspaceOptions, MIB, TreeKind,
};
pub use db::snapshot::Snapshot;
pub use db::statistics::{KeyspaceStatistics, LatencySummary, Statistics, Traffic};
pub use merge::{Append, MergeOperator, U64Add};
pub use tree::description::{
    BranchDescription, BundleDescription, NodeDescription, PivotDescription, TreeDescription,
};
pub use base::durability::Durability;
pub use base::error::{Error, Result};
pub use base::slice::Slice;

/// Bugs to be planted, for `spinney-sim planted`.
#[cfg(planted)]
#[doc(hidden)]
pub mod planted {
    pub use crate::base::planted::{Bug, activate};
}
