//! Keeps a read-only replay within the memory budget.
//!
//! Invariants:
//! 1. Once memtables have taken their share, no operation is kept any more; the rest of the journal is read
//!    to its end and measured, so that the error can name a budget that suffices. That follows from what the
//!    journal has of each keyspace, not from the order in which it is read.

use std::collections::BTreeMap;
use std::path::Path;

use super::sizes::Sizes;
use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::journal::Operation;
use crate::memtable::{BYTES_MAX, ChunkPool, OWN_CHUNK_BYTES_MIN};

/// What an operation takes in a memtable beside its key and value, at most.
const ENTRY_BYTES: u64 = 64;
/// What a memtable with anything in it takes at least.
const MEMTABLE_BYTES_MIN: u64 = 4 << 10;
/// Large memtables keep this part of theirs unused at most (ends of chunks, where entries are a fifth of a chunk), and a
/// little more.
const UNUSED_PART: u64 = 3;
const UNUSED_BYTES: u64 = 1 << 20;
/// Operations of more have memory of their own, of which nothing is unused. (A little less than an arena says, with the
/// bytes that are counted beside key and value.)
const OWN_BYTES_MIN: u64 = (64 << 10) + 128;

/// What the journal has of a keyspace.
#[derive(Default)]
struct Needs {
    small_bytes: u64,
    own_bytes: u64,
    /// Operations that `own_bytes` counts.
    own_count: u64,
}

impl Needs {
    /// What a memtable takes that holds all of it, at most: half of each chunk may be lost to rounding, and as much again
    /// may be unused of a small one.
    fn bytes(&self) -> u64 {
        let unused = (self.small_bytes * 2).min(self.small_bytes / UNUSED_PART + UNUSED_BYTES);
        let small = self.small_bytes + unused;
        small.max(MEMTABLE_BYTES_MIN) + self.own_bytes
    }

    /// Returns true if one memtable may not hold all of it. Of an operation with memory of its own no more counts than
    /// the least that such memory holds; others fill at least half of memory four times as large.
    fn exceed_memtable(&self) -> bool {
        self.own_count * OWN_CHUNK_BYTES_MIN + self.small_bytes / 2 > BYTES_MAX
    }
}

/// The room that memtables have.
pub(super) struct Room {
    memory_budget: u64,
    bytes_max: u64,
    needs: BTreeMap<KeyspaceId, Needs>,
    /// The largest operation: there must be room for one more when it comes.
    largest_bytes: u64,
    /// Something was not kept.
    is_full: bool,
    /// A keyspace of which the journal has more than a memtable can hold.
    unheld: Option<KeyspaceId>,
}

impl Room {
    pub(super) fn new(sizes: &Sizes) -> Room {
        Room {
            memory_budget: sizes.memory_budget,
            bytes_max: sizes.memtables_bytes_max,
            needs: BTreeMap::new(),
            largest_bytes: 0,
            is_full: false,
            unheld: None,
        }
    }

    /// Whether there is room for the operation.
    pub(super) fn takes(&mut self, operation: &Operation<'_>, pool: &ChunkPool) -> bool {
        let bytes = (operation.key.len() + operation.value.len()) as u64 + ENTRY_BYTES;
        self.largest_bytes = self.largest_bytes.max(bytes);
        let needs = self.needs.entry(operation.keyspace).or_default();
        match bytes < OWN_BYTES_MIN {
            true => needs.small_bytes += bytes,
            false => {
                needs.own_bytes += bytes;
                needs.own_count += 1;
            }
        }
        if needs.exceed_memtable() {
            self.unheld = Some(operation.keyspace);
            return false;
        }
        self.is_full |= pool.bytes_in_use() as u64 + bytes > self.bytes_max;
        !self.is_full
    }

    /// Fails if something was not kept.
    pub(super) fn check(self, path: &Path) -> Result<()> {
        if let Some(keyspace) = self.unheld {
            return Err(Error::invalid(format!(
                "the journal of {} has more large values of keyspace number {keyspace} than one memtable can hold; open \
                 the store for writing once (Builder::open), which moves them into the tree",
                path.display()
            )));
        }
        if !self.is_full {
            return Ok(());
        }
        let needed = self.needs.values().map(Needs::bytes).sum::<u64>() + self.largest_bytes;
        // Half of the budget is for memtables.
        let sufficient = (2 * needed).next_multiple_of(1 << 20);
        Err(Error::JournalOverBudget {
            path: path.to_path_buf(),
            budget: self.memory_budget,
            sufficient: sufficient.max(self.memory_budget + (1 << 20)),
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;
    use crate::Database;
    use crate::base::entry::EntryKind;
    use crate::store::sizes::Parallelism;

    /// A read-only open of a journal with 1.9 GiB in values of a little more than 64 KiB panicked: the memtable has no
    /// more chunks then. No budget was too small for it.
    #[test]
    fn more_than_a_memtable_can_address_is_an_error() {
        let builder = Database::builder_in_memory().memory_budget(1 << 40);
        let mut sizes = Sizes::new(&builder, Parallelism::new(&builder, 1));
        sizes.memtables_bytes_max = sizes.read_only_memtables_bytes_max();
        let pool = ChunkPool::new(0);
        let (mut room, value) = (Room::new(&sizes), vec![0; OWN_BYTES_MIN as usize]);
        let of = |keyspace| Operation {
            keyspace: KeyspaceId(keyspace),
            kind: EntryKind::Put,
            key: b"key",
            value: &value,
        };
        let most = BYTES_MAX / OWN_CHUNK_BYTES_MIN;
        for number in 0..most {
            assert!(room.takes(&of(1), &pool), "{number} of {most}");
        }
        assert!(room.takes(&of(2), &pool), "each keyspace has a memtable of its own");
        assert!(!room.takes(&of(1), &pool));
        let error = room.check(Path::new("/store")).unwrap_err();
        assert!(error.to_string().contains("keyspace number 1"), "{error}");
    }
}
