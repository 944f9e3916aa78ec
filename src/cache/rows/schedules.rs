//! Scenarios of the row cache: a ring of a few rows, of two keyspaces.

use std::sync::Arc;

use shuttle::thread;

use super::RowCache;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::{KeyspaceId, Seqno};

/// Large enough for a ring to have room for a few.
const VALUE_BYTES: usize = 1200;

/// Hashes as if they were drawn.
fn hash(key: u8) -> u64 {
    (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn entry<'a>(key: &'a [u8; 1], seqno: u64, value: &'a [u8]) -> EntryRef<'a> {
    EntryRef { key, seqno: Seqno(seqno), kind: EntryKind::Put, value }
}

fn admit(rows: &RowCache, space: u32, key: u8) {
    for _ in 0..2 {
        let value = [1; VALUE_BYTES];
        rows.admit(KeyspaceId(space), hash(key), entry(&[key], 1, &value), || true);
    }
}

fn get(rows: &RowCache, space: u32, key: u8) -> Option<u64> {
    rows.get(KeyspaceId(space), hash(key), &[key], |found| {
        assert!(found.value.iter().all(|byte| u64::from(*byte) == found.seqno.0), "torn");
        found.seqno.0
    })
}

/// Rows that are read are written once more while those of another keyspace come, and are
/// superseded: from then on nobody sees the old one.
pub(crate) fn superseded_while_written_once_more() {
    let rows = Arc::new(RowCache::new(8 << 10));
    for key in 0..4 {
        admit(&rows, 1, key);
        get(&rows, 1, key);
    }
    let crowd = {
        let rows = Arc::clone(&rows);
        thread::spawn(move || {
            for stranger in 10..13 {
                admit(&rows, 2, stranger);
                get(&rows, 1, stranger % 4);
            }
        })
    };
    for key in 0..4 {
        let value = [2; VALUE_BYTES];
        rows.supersede(KeyspaceId(1), hash(key), entry(&[key], 2, &value));
        rows.wait_for_admissions();
        assert!(get(&rows, 1, key).is_none_or(|seqno| seqno == 2), "an outdated row");
    }
    crowd.join().unwrap();
    for key in 0..4 {
        assert!(get(&rows, 1, key).is_none_or(|seqno| seqno == 2), "an outdated row");
    }
    rows.check_bytes();
}
