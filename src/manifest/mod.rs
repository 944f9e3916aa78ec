//! The manifest: an append-only log of live files and trees (`docs/format/manifest.md`).
//!
//! One record commits one edit, or several concurrent ones, atomically. The manifest knows the
//! keyspaces and the numbers of the store. The content of a tree's edit is opaque to it.
//!
//! Invariants:
//! 1. An edit is durable once `commit` has returned, or its decision says so. So are all edits before it.
//! 2. An appended edit never contradicts earlier ones: edits are checked first.
//! 3. While two manifests exist, the older one has had no commit since the newer one was begun, and
//!    the newer one has none of its own before the older one is durably removed.
//! 4. A failed append poisons the manifest, because only the next open can tell what is on disk. If
//!    only space was missing, and nothing of the append is left, the edits are refused instead.
//! 5. A store whose manifest is missing or damaged is never opened, and never treated as an empty
//!    one. Nor is a store whose manifest has lost durable records from its end, if anything on disk
//!    proves that (`durable`).

mod durable;
mod edit;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod log;
mod open;
mod record;
mod salvage;
mod state;
mod superblock;

#[cfg(test)]
mod example_tests;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

pub(crate) use edit::{Edit, Epochs, KeyspaceChange, KeyspaceEdit, KeyspaceMeta};
pub(crate) use log::{Manifest, Ticket};
pub(crate) use open::{LOCK_FILE_NAME, NewStore, OpenOptions, create_copy};
pub(crate) use salvage::SalvagedManifest;
pub(crate) use state::{RecoveredKeyspace, RecoveredState, TreeEdit};
pub(crate) use superblock::FILE_NAME as SUPERBLOCK_FILE_NAME;

/// The newest version of the store format that this build reads, and the version that it writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
