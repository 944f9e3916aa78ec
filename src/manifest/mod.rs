//! The manifest: an append-only log of what is live (`docs/format/manifest.md`).
//!
//! One record commits one edit, or several that waited together, atomically. The manifest knows the
//! keyspaces and the numbers of the store; what an edit says about a tree is opaque to it.
//!
//! Invariants:
//! 1. An edit counts once `commit` has returned: it has been synced, and so have all before it.
//! 2. What has been appended never contradicts what stands before it: edits are checked first.
//! 3. Wherever there are two manifests, the older one has seen no commit since the newer one was
//!    begun, and the newer one has none of its own before the older one is durably gone.
//! 4. A failed append poisons the manifest: what the disk then holds is known only to the next
//!    open. If only room was missing, and nothing is left of it, the edits it held are refused
//!    instead.
//! 5. A store whose manifest is missing or damaged is never opened, least of all as an empty one.
//!    Nor is one whose manifest has lost durable records from its end, where anything on the disk
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
mod test_support;
#[cfg(test)]
mod tests;

pub(crate) use edit::{Edit, Epochs, KeyspaceChange, KeyspaceEdit, KeyspaceMeta};
pub(crate) use log::Manifest;
pub(crate) use open::{LOCK_FILE_NAME, NewStore, OpenOptions, create_copy};
pub(crate) use salvage::SalvagedManifest;
pub(crate) use state::{RecoveredKeyspace, RecoveredState, TreeEdit};
pub(crate) use superblock::FILE_NAME as SUPERBLOCK_FILE_NAME;

/// The newest version of the store's format that this build reads, and the one that it writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
