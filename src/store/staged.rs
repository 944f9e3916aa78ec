//! Operations of the journal, gathered until many of them can go into their memtables keyspace by keyspace.
//!
//! The journal has the keyspaces' operations as they came. If each went into its memtable at once, a thousand keyspaces
//! in turn would fetch the lines of another memtable for each operation, and opening would take twice as long as with one.
//!
//! Invariants:
//! 1. Operations of a keyspace are taken in the order in which they were added.
//! 2. What is gathered takes at most about `bytes_max` bytes. Operations that would fill a good part of that are not
//!    gathered: they gain nothing.

use std::slice;

use crate::base::entry::EntryKind;
use crate::base::ids::{KeyspaceId, Seqno};
use crate::journal::Operation;

/// What is gathered at most: as much as the processor's caches hold.
const STAGED_BYTES_MAX: u64 = 2 << 20;
/// What is gathered takes at most this part of what memtables may take.
const STAGED_PART: u64 = 16;
/// Operations of more than this part of what may be gathered are not.
const LARGE_PART: usize = 64;

/// Operations that have been gathered.
#[derive(Default)]
pub(super) struct Staged {
    bytes_max: usize,
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    operations: Vec<StagedOperation>,
}

#[derive(Clone, Copy)]
struct StagedOperation {
    seqno: Seqno,
    keyspace: KeyspaceId,
    kind: EntryKind,
    /// Where its key begins; its value follows.
    start: u32,
    key_bytes: u32,
    value_bytes: u32,
}

impl Staged {
    /// For memtables that may take so many bytes.
    pub(super) fn new(memtables_bytes_max: u64) -> Staged {
        let bytes_max = (memtables_bytes_max / STAGED_PART).min(STAGED_BYTES_MAX) as usize;
        Staged { bytes_max, bytes: Vec::new(), operations: Vec::new() }
    }

    /// Adds an operation, unless it is large. Returns whether it did.
    pub(super) fn add(&mut self, seqno: Seqno, operation: &Operation<'_>) -> bool {
        let Operation { keyspace, kind, key, value } = *operation;
        if key.len() + value.len() > self.bytes_max / LARGE_PART {
            return false;
        }
        let (key_bytes, value_bytes) = (key.len() as u32, value.len() as u32);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let staged = StagedOperation { seqno, keyspace, kind, start, key_bytes, value_bytes };
        self.operations.push(staged);
        true
    }

    /// Whether it is time to take what was gathered.
    pub(super) fn is_full(&self) -> bool {
        let operations = self.operations.len() * size_of::<StagedOperation>();
        self.bytes.len() + operations >= self.bytes_max
    }

    /// Passes on what was gathered, keyspace by keyspace, and keeps nothing.
    pub(super) fn take<E>(
        &mut self,
        mut each: impl FnMut(KeyspaceId, StagedOperations<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.operations.sort_unstable_by_key(|operation| (operation.keyspace, operation.seqno));
        let mut result = Ok(());
        for of_one in self.operations.chunk_by(|one, other| one.keyspace == other.keyspace) {
            let Some(first) = of_one.first() else { continue };
            let operations = StagedOperations { operations: of_one.iter(), bytes: &self.bytes };
            result = each(first.keyspace, operations);
            if result.is_err() {
                break;
            }
        }
        self.operations.clear();
        self.bytes.clear();
        result
    }
}

/// What was gathered of one keyspace.
pub(super) struct StagedOperations<'a> {
    operations: slice::Iter<'a, StagedOperation>,
    bytes: &'a [u8],
}

impl<'a> Iterator for StagedOperations<'a> {
    type Item = (Seqno, Operation<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let &StagedOperation { seqno, keyspace, kind, start, key_bytes, value_bytes } =
            self.operations.next()?;
        let rest = self.bytes.get(start as usize..)?;
        let (key, rest) = rest.split_at_checked(key_bytes as usize)?;
        let value = rest.get(..value_bytes as usize)?;
        Some((seqno, Operation { keyspace, kind, key, value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_taken_keyspace_by_keyspace() {
        let mut staged = Staged::new(64 << 10);
        let key = |n: u64| n.to_be_bytes();
        let mut added = 0u64;
        while !staged.is_full() {
            let value = vec![7; added as usize % 10];
            let operation = Operation {
                keyspace: KeyspaceId((added % 3) as u32),
                kind: EntryKind::Put,
                key: &key(added),
                value: &value,
            };
            assert!(staged.add(Seqno(added + 1), &operation));
            added += 1;
        }
        assert!((30..100).contains(&added), "{added}");
        let large = Operation {
            keyspace: KeyspaceId(1),
            kind: EntryKind::Put,
            key: b"key",
            value: &[0; 4 << 10],
        };
        assert!(!staged.add(Seqno(added + 1), &large));
        let mut seen = Vec::new();
        let taken = staged.take(|keyspace, operations| {
            for (seqno, operation) in operations {
                let n = seqno.0 - 1;
                assert_eq!((operation.keyspace, operation.key), (keyspace, &key(n)[..]));
                assert_eq!(operation.value.len() as u64, n % 10);
                seen.push((keyspace.0, n));
            }
            Ok::<(), ()>(())
        });
        assert!(taken.is_ok() && seen.is_sorted() && seen.len() as u64 == added);
        assert!(staged.take(|_, _| Err(())).is_ok(), "nothing is kept");
    }
}
