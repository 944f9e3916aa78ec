//! Models of a shard of the row cache: every order in which a reader, the one who supersedes and
//! the one who makes room may meet, on a ring of two rows.

use loom::sync::Arc;
use loom::thread;

use super::RowHash;
use super::shard::Shard;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::sync::atomic::AtomicU64;

const SPACE: KeyspaceId = KeyspaceId(1);

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(f);
}

fn hash(key: u8) -> RowHash {
    RowHash::new(SPACE, (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn entry<'a>(key: &'a [u8; 1], seqno: u64, value: &'a [u8; 7]) -> EntryRef<'a> {
    EntryRef { key, seqno: Seqno(seqno), kind: EntryKind::Put, value }
}

fn admit(shard: &Shard, key: u8) {
    for _ in 0..2 {
        shard.admit(hash(key), SPACE, entry(&[key], 1, &[1; 7]), || true, &AtomicU64::new(0));
    }
}

fn supersede(shard: &Shard, key: u8, seqno: u64) {
    let value = [seqno as u8; 7];
    shard.supersede(hash(key), SPACE, entry(&[key], seqno, &value), &AtomicU64::new(0));
}

/// The row's number, if there is one. It is whole.
fn get(shard: &Shard, key: u8) -> Option<u64> {
    shard.get(hash(key), SPACE, &[key], |found| {
        assert!(found.value.iter().all(|byte| u64::from(*byte) == found.seqno.0), "torn");
        found.seqno.0
    })
}

/// What a reader finds is a whole row, and none that was superseded before it looked, while the
/// ring goes round.
#[test]
fn a_reader_finds_whole_records() {
    model(|| {
        let shard = Arc::new(Shard::reserve(0).unwrap());
        admit(&shard, 1);
        let writer = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || {
                supersede(&shard, 1, 2);
                supersede(&shard, 1, 3);
            })
        };
        let found = get(&shard, 1);
        assert!(found.is_none_or(|seqno| (1..=3).contains(&seqno)));
        writer.join().unwrap();
        assert_eq!(get(&shard, 1), Some(3));
    });
}

/// A row that has been used is written once more for the sake of another while it is superseded:
/// the old one is gone when both are through.
#[test]
fn a_record_that_is_written_once_more_is_superseded() {
    model(|| {
        let shard = Arc::new(Shard::reserve(0).unwrap());
        admit(&shard, 1);
        assert_eq!(get(&shard, 1), Some(1));
        admit(&shard, 2);
        let other = {
            let shard = Arc::clone(&shard);
            // The ring is full: the first row is the oldest, and has been used.
            thread::spawn(move || admit(&shard, 3))
        };
        supersede(&shard, 1, 2);
        other.join().unwrap();
        assert!(get(&shard, 1).is_none_or(|seqno| seqno == 2), "an outdated row");
    });
}
