//! Values and operands too large for journal and memtable: before the commit they are written to blob files, and
//! their operations become ones that hold a pointer to one.
//!
//! Invariants:
//! 1. The blob files are whole on the disk (their bytes and their names durable) before the record that
//!    points to them is appended: recovery never finds a pointer without its value.
//! 2. The memtable that holds a pointer keeps its blob file alive until a table does.
//! 3. A batch's file has at most a memtable's bytes and one value: what is dead in a file can be dropped only by copying
//!    what is live, so one large file would be an exception to every bound on space.

use std::sync::Arc;

use super::memtable_state::MemtableState;
use super::operation::Operation;
use super::store::Store;
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::table::{BlobFile, BlobPointer, BlobWriter};

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

/// The large values of a batch, in blob files.
pub(crate) struct LargeValues {
    /// Ascending by id, since one thread has made them.
    blobs: Vec<Arc<BlobFile>>,
    /// The numbers of their operations in the batch, ascending.
    numbers: Vec<u32>,
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
        let mut writer: Option<BlobWriter> = None;
        let (mut blobs, mut pointers) = (Vec::new(), Vec::new());
        for (operation, _) in marked(operations, large).filter(|(_, is_large)| *is_large) {
            if let Some(full) = writer.take_if(|file| file.bytes() >= store.sizes.memtable_bytes) {
                blobs.push(full.finish()?);
            }
            let file = match &mut writer {
                Some(file) => file,
                none => none.insert(BlobWriter::new(&store.blobs)?),
            };
            let mut pointer = Vec::new();
            file.append(operation.value)?.encode(&mut pointer);
            pointers.push(pointer);
        }
        if let Some(last) = writer {
            blobs.push(last.finish()?);
        }
        let bytes = blobs.iter().map(|blob| blob.bytes()).sum();
        if !planted(Bug::LargeValueNameNotSynced) {
            store.files.vfs.sync_dir(store.files.dir())?;
        }
        store.counters.blob_direct_bytes.add(bytes);
        Ok(LargeValues { blobs, numbers: large.to_vec(), pointers })
    }

    /// Whether they are those of the operations with these numbers. When a batch is tried again, others may be large, since
    /// options may change: what it takes was counted with those.
    pub(super) fn are_those_of(&self, large: &[u32]) -> bool {
        self.numbers == large
    }

    /// The batch's operations as journal and memtable hold them.
    pub(super) fn replace<'s, 'a: 's>(
        &'s self,
        operations: impl Iterator<Item = Operation<'a>>,
    ) -> Vec<Operation<'s>> {
        let mut pointers = self.pointers.iter();
        let stored = |(operation, is_large): (Operation<'a>, bool)| -> Operation<'s> {
            let pointer = is_large.then(|| pointers.next()).flatten();
            match (pointer, operation.kind.in_blob()) {
                (Some(value), Some(kind)) => Operation { kind, value, ..operation },
                _ => operation,
            }
        };
        marked(operations, &self.numbers).map(stored).collect()
    }

    /// Keeps the file that an entry of this kind points to for the memtable that gets the entry.
    pub(super) fn hold(&self, memtable: &MemtableState, kind: EntryKind, value: &[u8]) {
        let is_held = match kind {
            EntryKind::PutBlob => true,
            EntryKind::MergeBlob => !planted(Bug::MergeBlobNotHeld),
            _ => false,
        };
        if !is_held {
            return;
        }
        let Some(pointer) = BlobPointer::decode(value) else { return };
        let found = self.blobs.binary_search_by_key(&pointer.file, |blob| blob.id());
        let Some(blob) = found.ok().and_then(|at| self.blobs.get(at)) else { return };
        let mut held = memtable.blobs.lock();
        // Mostly that of the entry before.
        if !held.iter().rev().any(|known| known.id() == pointer.file) {
            held.push(Arc::clone(blob));
        }
    }
}
