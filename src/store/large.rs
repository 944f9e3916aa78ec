//! Values and operands too large for journal and memtable: before the commit they are written to a blob file, and
//! their operations become ones that hold a pointer to it.
//!
//! Invariants:
//! 1. The blob file is whole on the disk (its bytes and its name durable) before the record that
//!    points to it is appended: recovery never meets a pointer without its value.
//! 2. The memtable that holds a pointer keeps the blob file alive until a table does.

use std::sync::Arc;

use super::memtable_state::MemtableState;
use super::operation::Operation;
use super::store::Store;
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::table::{BlobFile, BlobWriter};

/// Each of the operations, and whether its number is one of these, which ascend.
fn marked<'a>(
    operations: impl Iterator<Item = Operation<'a>>,
    large: &[u32],
) -> impl Iterator<Item = (Operation<'a>, bool)> {
    let mut left = large.iter().copied().peekable();
    (0..)
        .zip(operations)
        .map(move |(number, operation)| (operation, left.next_if_eq(&number).is_some()))
}

/// The large values of a batch, in a blob file.
pub(super) struct LargeValues {
    blob: Arc<BlobFile>,
    /// In the order of their operations.
    pointers: Vec<Vec<u8>>,
}

impl LargeValues {
    /// Writes those of the operations with these numbers, which ascend, durably.
    pub(super) fn write<'a>(
        store: &Store,
        operations: impl Iterator<Item = Operation<'a>>,
        large: &[u32],
    ) -> Result<LargeValues> {
        store.check_writable()?;
        let mut writer = BlobWriter::new(&store.blobs)?;
        let mut pointers = Vec::new();
        for (operation, _) in marked(operations, large).filter(|(_, is_large)| *is_large) {
            let mut pointer = Vec::new();
            writer.append(operation.value)?.encode(&mut pointer);
            pointers.push(pointer);
        }
        let bytes = writer.bytes();
        let blob = writer.finish()?;
        if !planted(Bug::LargeValueNameNotSynced) {
            store.files.vfs.sync_dir(store.files.dir())?;
        }
        store.counters.blob_direct_bytes.add(bytes);
        Ok(LargeValues { blob, pointers })
    }

    /// The batch's operations as journal and memtable hold them.
    pub(super) fn replace<'s, 'a: 's>(
        &'s self,
        operations: impl Iterator<Item = Operation<'a>>,
        large: &[u32],
    ) -> Vec<Operation<'s>> {
        let mut pointers = self.pointers.iter();
        let stored = |(operation, is_large): (Operation<'a>, bool)| -> Operation<'s> {
            let pointer = is_large.then(|| pointers.next()).flatten();
            match (pointer, operation.kind.in_blob()) {
                (Some(value), Some(kind)) => Operation { kind, value, ..operation },
                _ => operation,
            }
        };
        marked(operations, large).map(stored).collect()
    }

    /// Keeps the file for a memtable that gets an entry of this kind.
    pub(super) fn hold(&self, memtable: &MemtableState, kind: EntryKind) {
        if kind == EntryKind::PutBlob
            || (kind == EntryKind::MergeBlob && !planted(Bug::MergeBlobNotHeld))
        {
            let mut blobs = memtable.blobs.lock();
            if !blobs.iter().any(|known| known.id() == self.blob.id()) {
                blobs.push(Arc::clone(&self.blob));
            }
        }
    }
}
