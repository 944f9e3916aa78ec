//! Threads that meet where a look and a step belong together, each story told in one order of steps;
//! `spinney-sim threads` and `db::schedules` try the same in any order.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::read::multi_get_while;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::{Database, Keyspace, KeyspaceOptions, TreeKind};

/// How long a thread may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(memtable_bytes: u64) -> Database {
    let builder = Database::builder_in_memory().memory_budget(4 << 20).background_threads(1);
    builder.memtable_bytes(memtable_bytes).open().unwrap()
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

/// A snapshot's scan saw a key's newer value, and a later `multi_get` of the same snapshot an older one. A
/// memtable had been put into the pipeline a moment before the read state showed it as frozen. Another thread
/// took it into the tree at once; whoever had to tell the record cache which keys the tree had news of looked
/// at a read state in which the memtable was still the active one, and told it nothing.
/// (Found by `spinney-sim threads`, once in 6,000 histories.)
#[test]
fn a_memtable_on_its_way_into_the_tree_is_frozen_for_all_who_look() {
    let db = Database::builder_in_memory().deterministic(1).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("key", "value").unwrap();
    let before = items.state().read.load_full();
    // Nobody can take a memtable from the pipeline, and nobody can put one there.
    let pipeline = items.state().pipeline.lock();
    assert!(pipeline.slots.is_empty());
    let freezing = {
        let items = items.clone();
        thread::spawn(move || items.store().freeze(&[Arc::clone(items.state())], |_| true))
    };
    let began = Instant::now();
    while Arc::ptr_eq(&items.state().read.load().active, &before.active) {
        assert!(began.elapsed() < PATIENCE, "frozen for nobody until it is in the pipeline");
        thread::yield_now();
    }
    drop(pipeline);
    freezing.join().unwrap();
    assert_eq!(items.state().pipeline.lock().slots.len(), 1);
    items.flush().unwrap();
}

/// Makes the tree's value of a key a record of the cache.
fn make_record(items: &Keyspace, key: &[u8], value: &[u8]) {
    let store = items.store();
    let entry = EntryRef { key, seqno: Seqno(1), kind: EntryKind::Put, value };
    // As often as the cache wants to be asked.
    for _ in 0..2 {
        store.cache.records().offer(
            items.state().id,
            items.state().hasher.hash(key),
            entry,
            || true,
        );
    }
}

/// A keyspace with two keys, one of which has a record in the cache, and what writes both in one batch.
fn two_keys(kind: TreeKind) -> (Database, Keyspace, impl Fn(u64)) {
    let db = open(1 << 20);
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let write = {
        let (db, items) = (db.clone(), items.clone());
        move |round: u64| {
            let mut batch = db.batch();
            for key in KEYS {
                batch.put(&items, key, round.to_be_bytes());
            }
            batch.commit().unwrap();
        }
    };
    write(0);
    items.flush().unwrap();
    make_record(&items, KEYS[0].as_bytes(), &0u64.to_be_bytes());
    (db, items, write)
}

const KEYS: [&str; 2] = ["recorded", "other"];

/// The active memtable is frozen, the batch goes into its successor, and that into the tree.
fn write_beyond_a_cut(items: &Keyspace, write: impl Fn(u64), round: u64) {
    items.put("neither", "").unwrap();
    items.store().freeze(std::slice::from_ref(items.state()), |_| true);
    write(round);
    items.flush().unwrap();
}

/// A batch of two keys was seen in halves by `multi_get` without a snapshot. It loaded the read state, and then
/// the number that is visible. In between the active memtable was frozen, the batch was committed into its
/// successor, and that became part of the tree: the key that had a record in the cache answered from the
/// successor, the other from the state, which knew nothing of the batch.
#[test]
fn a_batched_read_sees_a_batch_whole_whatever_is_frozen_meanwhile() {
    for kind in TreeKind::ALL {
        let (db, items, write) = two_keys(kind);
        for round in 1..20 {
            let read = |meanwhile: &dyn Fn()| {
                let (store, state) = (items.store(), items.state());
                let values = multi_get_while(store, state, &KEYS, None, meanwhile).unwrap();
                [0, 1].map(|at| number(values[at].as_ref().unwrap()))
            };
            let seen = read(&|| write_beyond_a_cut(&items, &write, round));
            assert_eq!(seen, [round - 1; 2], "what was there when the state was loaded");
            assert_eq!(read(&|| {}), [round; 2]);
        }
        assert!(db.stats().cache_hits_record > 0, "no key has a record");
    }
}
