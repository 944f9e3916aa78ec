//! Scenarios of the record cache: a ring of a few records, of two keyspaces.

use std::sync::Arc;

use shuttle::thread;

use super::Records;
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

fn admit(records: &Records, space: u32, key: u8) {
    for _ in 0..2 {
        let value = [1; VALUE_BYTES];
        records.offer(KeyspaceId(space), hash(key), entry(&[key], 1, &value), || true);
    }
}

fn get(records: &Records, space: u32, key: u8) -> Option<u64> {
    records.get(KeyspaceId(space), hash(key), &[key], |found| {
        assert!(found.value.iter().all(|byte| u64::from(*byte) == found.seqno.0), "torn");
        found.seqno.0
    })
}

/// Records that are read are written once more while those of another keyspace come, and are superseded: from then on
/// nobody sees the old one.
pub(crate) fn superseded_while_written_once_more() {
    let records = Arc::new(Records::new(8 << 10));
    for key in 0..4 {
        admit(&records, 1, key);
        get(&records, 1, key);
    }
    let crowd = {
        let records = Arc::clone(&records);
        thread::spawn(move || {
            for stranger in 10..13 {
                admit(&records, 2, stranger);
                get(&records, 1, stranger % 4);
            }
        })
    };
    for key in 0..4 {
        let value = [2; VALUE_BYTES];
        records.supersede(KeyspaceId(1), hash(key), entry(&[key], 2, &value));
        records.settle();
        assert!(get(&records, 1, key).is_none_or(|seqno| seqno == 2), "an outdated record");
    }
    crowd.join().unwrap();
    for key in 0..4 {
        assert!(get(&records, 1, key).is_none_or(|seqno| seqno == 2), "an outdated record");
    }
    records.check_bytes();
}
