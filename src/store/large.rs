//! Commits with values or operands too large for journal and memtable: such a one is written to a blob file
//! first, and journal and memtable hold a pointer to it.
//!
//! Invariants:
//! 1. The blob file is whole on the disk (its bytes and its name durable) before the record that
//!    points to it is appended: recovery never meets a pointer without its value.
//! 2. The memtable that holds a pointer keeps the blob file alive until a table does.

use std::sync::Arc;

use super::operation::{Operation, still_there};
use super::store::Store;
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::panics::watched;
use crate::base::planted::{Bug, planted};
use crate::journal::{Payload, encode_operation};
use crate::table::{BlobFile, BlobWriter};

/// Commits a batch with large values. Returns its last number.
pub(crate) fn commit<'a, I>(
    store: &Store,
    operations: &impl Fn() -> I,
    count: u32,
    durability: Durability,
) -> Result<Seqno>
where
    I: Iterator<Item = Operation<'a>>,
{
    store.check_writable()?;
    let mut writer = BlobWriter::new(&store.blobs)?;
    let mut pointers: Vec<Vec<u8>> = Vec::new();
    for operation in operations().filter(|operation| operation.is_large(&store.sizes)) {
        let mut pointer = Vec::new();
        writer.append(operation.value)?.encode(&mut pointer);
        pointers.push(pointer);
    }
    let bytes = writer.bytes();
    let blob: Arc<BlobFile> = writer.finish()?;
    if !planted(Bug::LargeValueNameNotSynced) {
        store.files.vfs.sync_dir(store.files.dir())?;
    }
    store.counters.blob_direct_bytes.add(bytes);
    let mut payload = Vec::new();
    let mut next = pointers.iter();
    for operation in operations() {
        let (kind, value) = stored(store, &operation, &mut next)?;
        encode_operation(&mut payload, operation.keyspace.id, kind, operation.key, value);
    }
    let half_done = || store.panicked("a commit panicked half-way");
    let committed = || {
        store.committer.commit(
            Payload::Whole(&payload),
            count,
            durability,
            || false,
            || still_there(operations),
            |first| {
                let mut next = pointers.iter();
                for (seqno, operation) in (first.0..).zip(operations()) {
                    let read = operation.keyspace.read.load();
                    let (kind, value) = match stored(store, &operation, &mut next) {
                        Ok(stored) => stored,
                        Err(_) => unreachable!("the same operations again"),
                    };
                    if kind == EntryKind::PutBlob
                        || (kind == EntryKind::MergeBlob && !planted(Bug::MergeBlobNotHeld))
                    {
                        let mut blobs = read.active.blobs.lock();
                        if !blobs.iter().any(|known| known.id() == blob.id()) {
                            blobs.push(Arc::clone(&blob));
                        }
                    }
                    read.active.memtable.insert(operation.key, Seqno(seqno), kind, value);
                }
            },
        )
    };
    watched(committed, half_done).or_else(|error| store.not_committed(error))
}

/// Kind and value of an operation as journal and memtable hold it.
fn stored<'a>(
    store: &Store,
    operation: &Operation<'a>,
    pointers: &mut std::slice::Iter<'a, Vec<u8>>,
) -> Result<(EntryKind, &'a [u8])> {
    if !operation.is_large(&store.sizes) {
        return Ok((operation.kind, operation.value));
    }
    match pointers.next() {
        Some(pointer) => Ok((operation.kind.in_blob().unwrap_or(operation.kind), pointer)),
        None => Err(Error::invalid("a batch changed while it was committed")),
    }
}
