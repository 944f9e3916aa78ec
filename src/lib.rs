//! Spinney: an embedded, persistent, ordered key-value store for NVMe drives.
//!
//! A store is a directory. It holds *keyspaces*: ordered maps of byte strings, each with a tree of its own.
//!
//! ```
//! use spinney::{Database, Durability, KeyspaceOptions};
//!
//! fn main() -> spinney::Result<()> {
//!     // On disk: Database::builder("my.store").memory_budget(spinney::GIB).open()?
//!     let db = Database::builder_in_memory().open()?;
//!     let users = db.keyspace("users", KeyspaceOptions::stb())?;
//!     let names = db.keyspace("names", KeyspaceOptions::stb())?;
//!
//!     users.put("1", "Ada")?; // survives the death of the process
//!     users.put_with("2", "Grace", Durability::Sync)?; // survives power loss
//!
//!     let mut batch = db.batch(); // several writes, all or nothing
//!     batch.put(&names, "Ada", "1");
//!     batch.put(&names, "Grace", "2");
//!     batch.commit()?;
//!
//!     assert_eq!(users.get("1")?.as_deref(), Some(&b"Ada"[..]));
//!     for pair in names.range("B"..) {
//!         let (name, id) = pair?;
//!         assert_eq!((&*name, &*id), (&b"Grace"[..], &b"2"[..]));
//!     }
//!     db.close()
//! }
//! ```
//!
//! # Where to begin
//!
//! | to | see |
//! |---|---|
//! | open a store, and choose the memory it may use | [`Database::builder`], [`Builder`] |
//! | choose a tree, compression, a merge operator | [`KeyspaceOptions`] |
//! | change options of a keyspace that is in use | [`Keyspace::alter`] |
//! | read and write keys, one or many | [`Keyspace`] |
//! | write over several keyspaces at once | [`Batch`] |
//! | write only if a key is absent, present or unchanged | [`Keyspace::insert_if_absent`], [`Keyspace::fetch_update`], [`Batch::require_absent`] |
//! | read and write as if alone, over any keyspaces | [`Database::transact`], [`Transaction`] |
//! | read one moment of all keyspaces | [`Snapshot`] |
//! | read in key order, from both ends, and skip | [`Iter`], [`KeyRange`] |
//! | update values without reading them | [`MergeOperator`], [`Keyspace::merge`] |
//! | choose what a write survives | [`Durability`] |
//! | read a store without changing a byte of it | [`Builder::open_read_only`] |
//! | copy a store while it is in use | [`Database::checkpoint`] |
//! | make a new store of what can be read of a damaged one | [`repair`], [`Repair`] |
//! | learn what went wrong and what to do | [`Error`] |
//! | watch a store | [`Database::stats`], [`EventListener`] |
//!
//! All handles are `Send` and `Sync`, and clones share what they refer to. One handle at a time has a store open for
//! writing, in one process; any number may have it open for reading while none has it open for writing.

// The modules are in data-flow order: a byte passes through them from the top to the bottom on its way to the
// disk, and each module calls only those below it (`tests/tidy` checks that).
#![cfg_attr(rustfmt, rustfmt_skip)] // the modules' order is data flow, not the alphabet
// Only vfs, jobs and base::sync use the operating system's files, threads and clocks (clippy.toml).
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "hashes")]
#[doc(hidden)]
pub mod hashes;
pub(crate) mod db;
pub(crate) mod store;
pub(crate) mod commit;
pub(crate) mod journal;
pub(crate) mod memtable;
pub(crate) mod tree;
pub(crate) mod merge;
pub(crate) mod table;
pub(crate) mod perfect_hash;
pub(crate) mod location_index;
pub(crate) mod filter;
pub(crate) mod manifest;
pub(crate) mod cache;
pub(crate) mod pmem;
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub(crate) mod jobs;
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod vfs;
pub(crate) mod base;

pub use db::batch::{Batch, BatchOperation};
pub use db::check::CheckReport;
pub use db::conditional::{Swap, Update};
pub use store::checkpoint::CheckpointProgress;
pub use db::damage::DamagedRange;
pub use db::database::Database;
pub use store::recovery::RecoveryReport;
pub use store::events::{Event, EventListener};
pub use db::iterator::{Iter, Keys};
pub use db::keyspace::Keyspace;
pub use store::options::{Builder, CheckLevel, GIB, MIB};
pub use store::persistent_memory::PersistentMemory;
pub use pmem::EmulatedMemory;
pub use db::range::KeyRange;
pub use db::repair::{
    Repair, RepairBasis, RepairDamage, RepairProgress, RepairReport, RepairedKeyspace, repair,
};
pub use db::snapshot::Snapshot;
pub use db::transaction::{Isolation, Savepoint, Transaction, TransactionIter};
pub use db::statistics::{KeyspaceStatistics, LatencySummary, Statistics, Traffic};
pub use merge::{Append, MergeOperator, U64Add};
pub use tree::kinds::TreeKind;
pub use tree::options::{Compression, KeyspaceOptions};
pub use tree::description::{
    ChildDescription, FileDescription, GroupDescription, NamedCount, NodeDescription,
    TreeDescription,
};
pub use base::durability::Durability;
pub use base::error::{Error, Result};
pub use base::limits::{BATCH_BYTES_MAX, BATCH_OPERATION_BYTES, KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use base::slice::Slice;

/// Bugs to be planted, for `spinney-sim planted`.
#[cfg(planted)]
#[doc(hidden)]
pub mod planted {
    pub use crate::base::planted::{Bug, activate, leave_windows_open, quirks};
}
