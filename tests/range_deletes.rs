//! Range deletes: they delete what was there and nothing else, whoever looks and whatever the store does meanwhile; what lies
//! in the range as a whole goes without being read; and they are forgotten once nothing is left of it.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{assert_sound, pairs, store_path, with_fanout};
use spinney::vfs::MemoryVfs;
use spinney::{
    Builder, Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, MIB, Repair,
    TreeKind,
};

of_every_kind! {
    a_range_delete_deletes_what_was_there_and_nothing_else
    what_lies_in_the_range_goes_without_being_read
    a_range_delete_is_kept_as_long_as_a_snapshot_needs_what_it_deletes
    a_repaired_store_and_a_copy_have_nothing_of_what_was_deleted
    a_queue_that_is_trimmed_stays_small
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn builder(path: &Path) -> Builder {
    Database::builder(path).memory_budget(4 * MIB).memtable_bytes(64 << 10)
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn range_deletes(db: &Database) -> u64 {
    db.stats().keyspaces.iter().map(|keyspace| keyspace.range_deletes).sum()
}

fn compare(keyspace: &Keyspace, model: &Model) {
    let wanted: Vec<(Vec<u8>, Vec<u8>)> = model.clone().into_iter().collect();
    assert!(pairs(keyspace.iter()) == wanted);
    let mut back: Vec<_> = keyspace.iter().rev().map(Result::unwrap).collect();
    back.reverse();
    assert!(back.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Vec<_>>() == wanted);
    for number in (0..3000).step_by(7) {
        let (key, wanted) = (key(number), model.get(&key(number)));
        assert_eq!(keyspace.get(&key).unwrap().as_deref(), wanted.map(|value| &**value));
        assert_eq!(keyspace.contains_key(&key).unwrap(), wanted.is_some());
    }
    let keys: Vec<Vec<u8>> = (0..3000).step_by(31).map(key).collect();
    let found = keyspace.multi_get(&keys).unwrap();
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found.as_deref(), model.get(key).map(|value| &**value));
    }
}

fn a_range_delete_deletes_what_was_there_and_nothing_else(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let options = with_fanout(KeyspaceOptions::new(kind), 3).merge_operator("append");
    let open = || {
        let db = builder(dir.path()).open().unwrap();
        let items = db.keyspace("items", options.clone()).unwrap();
        (db, items)
    };
    let (mut db, mut items) = open();
    let mut model = Model::new();
    for round in 0..8u32 {
        for number in 0..3000 {
            if number % 8 == round {
                continue;
            }
            let value = format!("{round} of {number}").into_bytes();
            items.put(key(number), &value).unwrap();
            model.insert(key(number), value);
        }
        let before = db.snapshot();
        let held = items.iter();
        let was = model.clone();
        let (from, to) = (key(round * 300), key(round * 300 + 900));
        match round % 4 {
            0 => items.delete_range(&from..&to).unwrap(),
            1 => items.delete_range_with(&from..&to, Durability::Sync).unwrap(),
            2 => {
                // In the order of the batch.
                let mut batch = db.batch();
                batch.put(&items, &from, "gone");
                batch.delete_range(&items, &from..&to);
                batch.put(&items, &from, "stays");
                batch.merge(&items, key(round * 300 + 1), "operand");
                batch.commit().unwrap();
            }
            _ => items.delete_prefix("key 000").unwrap(),
        }
        match round % 4 {
            3 => model.retain(|key, _| !key.starts_with(b"key 000")),
            _ => model.retain(|key, _| *key < from || *key >= to),
        }
        if round % 4 == 2 {
            model.insert(from, b"stays".to_vec());
            model.insert(key(round * 300 + 1), b"operand".to_vec());
        }
        compare(&items, &model);
        let wanted: Vec<(Vec<u8>, Vec<u8>)> = was.into_iter().collect();
        assert!(pairs(before.iter(&items)) == wanted);
        match round % 5 {
            0 => {}
            1 => items.flush().unwrap(),
            2 => items.compact(..).unwrap(),
            3 => db.wait_idle().unwrap(),
            _ => {
                drop((before, held));
                drop((db, items));
                (db, items) = open();
                compare(&items, &model);
                continue;
            }
        }
        compare(&items, &model);
        assert!(pairs(before.iter(&items)) == wanted);
        assert!(pairs(held) == wanted);
        assert_sound(&db);
    }
    items.clear().unwrap();
    assert!(items.first().unwrap().is_none());
    items.put("key", "value").unwrap();
    items.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(pairs(items.iter()), [(b"key".to_vec(), b"value".to_vec())]);
    assert_sound(&db);
}

/// Deleting the older part of a log key by key reads it and writes a tombstone for each key.
fn what_lies_in_the_range_goes_without_being_read(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let db = builder(dir.path()).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..60_000 {
        items.put(key(number * 7919 % 60_000), [number as u8; 100]).unwrap();
    }
    items.flush().unwrap();
    db.wait_idle().unwrap();
    let before = db.stats();
    items.delete_range(..key(54_000)).unwrap();
    // It is flushed by itself after a second.
    let is_over = |db: &Database| {
        let stats = db.stats();
        stats.keyspaces[0].disk_bytes * 4 < before.keyspaces[0].disk_bytes
    };
    let start = Instant::now();
    while !is_over(&db) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", db.stats().keyspaces);
        std::thread::sleep(Duration::from_millis(50));
        if start.elapsed() > Duration::from_secs(15) {
            db.wait_idle().unwrap();
        }
    }
    let after = db.stats();
    let had = before.keyspaces[0].disk_bytes;
    let read = after.compaction.read_bytes - before.compaction.read_bytes;
    let written = after.compaction.written_bytes - before.compaction.written_bytes;
    println!("{read} of {had} bytes were read, {written} written, in {:?}", start.elapsed());
    assert!(read < had / 3 && written < had / 3);
    assert_eq!(items.count(..).unwrap(), 6000);
    assert_sound(&db);
}

fn a_range_delete_is_kept_as_long_as_a_snapshot_needs_what_it_deletes(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let db = builder(dir.path()).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..3000 {
        items.put(key(number), [number as u8; 50]).unwrap();
    }
    items.flush().unwrap();
    let snapshot = db.snapshot();
    items.delete_range(key(100)..key(2900)).unwrap();
    items.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(range_deletes(&db), 1);
    assert_eq!(snapshot.iter(&items).count(), 3000);
    assert_eq!(items.count(..).unwrap(), 200);
    // One that deletes all of it takes its place, since no snapshot is between them; and one that does not, does not.
    items.delete_range(key(0)..key(2950)).unwrap();
    items.delete_range(key(2960)..key(2970)).unwrap();
    items.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(range_deletes(&db), 2);
    drop(snapshot);
    items.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(range_deletes(&db), 0);
    assert_eq!(items.count(..).unwrap(), 40);
    assert_sound(&db);
}

fn a_repaired_store_and_a_copy_have_nothing_of_what_was_deleted(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let open = |path: &Path| {
        let builder = builder(path).vfs(Arc::new(vfs.clone())).deterministic(3);
        let db = builder.open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        (db, items)
    };
    let (db, items) = open(&store_path());
    let mut model = Model::new();
    for number in 0..3000 {
        items.put(key(number), [number as u8; 50]).unwrap();
        model.insert(key(number), vec![number as u8; 50]);
    }
    let snapshot = db.snapshot();
    items.delete_range(key(100)..key(500)).unwrap();
    items.put(key(200), "again").unwrap();
    items.flush().unwrap();
    // In the journal alone.
    items.delete_range(key(1000)..key(2000)).unwrap();
    items.put(key(1500), "again").unwrap();
    model
        .retain(|it, _| !(key(100)..key(500)).contains(it) && !(key(1000)..key(2000)).contains(it));
    model.insert(key(200), b"again".to_vec());
    model.insert(key(1500), b"again".to_vec());
    let (copied, repaired) = (Path::new("/copy"), Path::new("/repaired"));
    db.checkpoint(copied).unwrap();
    drop((snapshot, items, db));
    Repair::new(store_path()).vfs(Arc::new(vfs.clone())).into_new(repaired).unwrap();
    for path in [&store_path(), copied, repaired] {
        let (db, items) = open(path);
        compare(&items, &model);
        assert_sound(&db);
    }
}

/// What a message queue or a replicated log does: it is written at the end, and trimmed at the front now and then.
fn a_queue_that_is_trimmed_stays_small(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let db = builder(dir.path()).open().unwrap();
    let queue = db.keyspace("queue", KeyspaceOptions::new(kind)).unwrap();
    let (mut most, mut next) = (0, 0u32);
    for round in 0..60 {
        for _ in 0..500 {
            queue.put(next.to_be_bytes(), [round; 100]).unwrap();
            next += 1;
        }
        queue.delete_range(..next.saturating_sub(1000).to_be_bytes()).unwrap();
        assert_eq!(queue.first().unwrap().unwrap().0, &next.saturating_sub(1000).to_be_bytes());
        if round % 10 == 9 {
            queue.flush().unwrap();
            db.wait_idle().unwrap();
            most = most.max(db.stats().keyspaces[0].disk_bytes);
        }
    }
    assert_eq!(queue.count(..).unwrap(), 1000);
    // Of the last one little may be left, beside what is not deleted.
    assert!(range_deletes(&db) <= 1);
    println!("at most {most} bytes for 1000 entries of 100");
    assert!(most < 1_500_000, "{most}");
    assert_sound(&db);
}

#[test]
fn bounds_may_be_any_keys_and_an_empty_range_is_nothing() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let long = vec![0xff; 65_536];
    let keys: [&[u8]; 5] = [b"", b"\0", b"a", b"\xff", &long];
    let fill = || keys.iter().for_each(|key| items.put(key, "value").unwrap());
    fill();
    items.delete_range("b".."a").unwrap();
    items.delete_range("a".."a").unwrap();
    items.delete_range(b""..b"").unwrap();
    assert_eq!(items.count(..).unwrap(), 5);
    items.delete_range(&long..).unwrap();
    assert_eq!(items.count(..).unwrap(), 4);
    fill();
    items.delete_range(..=&long).unwrap();
    assert_eq!(items.count(..).unwrap(), 0);
    fill();
    items.delete_range(b""..=b"").unwrap();
    assert_eq!(items.count(..).unwrap(), 4);
    items.delete_prefix("").unwrap();
    assert_eq!(items.count(..).unwrap(), 0);
    let mut batch = db.batch();
    batch.delete_range(&items, "b".."a");
    assert!(batch.is_empty());
}

/// Whoever depends on keys of the range is told.
#[test]
fn conditions_and_transactions_see_a_range_delete() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let fill = || (0..100).for_each(|number| items.put(key(number), "value").unwrap());
    fill();
    assert!(!items.insert_if_absent(key(5), "new").unwrap());
    items.delete_range(key(0)..key(10)).unwrap();
    assert!(items.insert_if_absent(key(5), "new").unwrap());
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        fill();
        let mut writes = db.begin(isolation);
        writes.put(&items, key(20), "mine").unwrap();
        items.delete_range(key(15)..key(25)).unwrap();
        let result = writes.commit();
        assert_eq!(result.is_err(), isolation == Isolation::Snapshot, "{result:?}");
        fill();
        let mut reads = db.begin(isolation);
        assert_eq!(reads.range(&items, key(30)..key(40)).count(), 10);
        assert!(reads.get(&items, key(50)).unwrap().is_some());
        reads.put(&items, "other", "value").unwrap();
        items.delete_range(key(35)..key(55)).unwrap();
        let result = reads.commit();
        assert_eq!(result.is_err(), isolation == Isolation::Serializable, "{result:?}");
    }
    // A key that is locked is not deleted by the way.
    fill();
    let mut locks = db.begin(Isolation::Serializable);
    locks.lock(&items, key(60)).unwrap();
    std::thread::scope(|scope| {
        let deletes = scope.spawn(|| items.delete_range(key(55)..key(65)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(items.contains_key(key(60)).unwrap() && items.contains_key(key(56)).unwrap());
        locks.put(&items, key(60), "mine").unwrap();
        locks.commit().unwrap();
        deletes.join().unwrap().unwrap();
    });
    assert_eq!(items.count(key(55)..key(65)).unwrap(), 0);
    let mut batch = db.batch();
    batch.require_present(&items, key(60));
    batch.delete_range(&items, key(55)..key(99));
    assert!(matches!(batch.commit(), Err(Error::Conflict { .. })));
    assert!(items.contains_key(key(70)).unwrap());
}

/// A transaction sees its own range deletes, takes them back, and commits them before what it has written since.
#[test]
fn a_transaction_deletes_ranges() {
    let db = Database::builder_in_memory().open().unwrap();
    let options = KeyspaceOptions::slm().merge_operator("append");
    let items = db.keyspace("items", options).unwrap();
    let fill = || (0..10).for_each(|number| items.put(key(number), "old").unwrap());
    fill();
    let mut writes = db.begin(Isolation::Serializable);
    writes.put(&items, key(3), "gone").unwrap();
    writes.merge(&items, key(4), "gone").unwrap();
    let savepoint = writes.savepoint();
    writes.delete_range(&items, key(2)..key(6)).unwrap();
    writes.delete_range(&items, "z".."a").unwrap();
    writes.merge(&items, key(5), "new").unwrap();
    let count = |writes: &spinney::Transaction| {
        let forward = writes.iter(&items).map(Result::unwrap).count();
        assert_eq!(writes.iter(&items).rev().map(Result::unwrap).count(), forward);
        forward
    };
    assert_eq!(count(&writes), 7);
    assert_eq!(writes.get(&items, key(3)).unwrap(), None);
    assert!(!writes.contains_key(&items, key(2)).unwrap());
    assert_eq!(writes.get(&items, key(5)).unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(writes.multi_get(&items, [key(4), key(6)]).unwrap()[0], None);
    let later = writes.savepoint();
    writes.delete_prefix(&items, "").unwrap();
    assert_eq!(count(&writes), 0);
    writes.rollback_to(later).unwrap();
    assert_eq!(count(&writes), 7);
    writes.rollback_to(savepoint).unwrap();
    assert_eq!(count(&writes), 10);
    assert_eq!(writes.get(&items, key(4)).unwrap().as_deref(), Some(&b"oldgone"[..]));
    writes.delete_range(&items, key(2)..key(6)).unwrap();
    writes.put(&items, key(4), "new").unwrap();
    writes.commit().unwrap();
    let found: Vec<_> = items.iter().map(|pair| pair.unwrap().0.to_vec()).collect();
    assert_eq!(found, [0, 1, 4, 6, 7, 8, 9].map(key));
    // A put into the range that the transaction did not see is deleted, or is a conflict.
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for flushes in [false, true] {
            fill();
            let mut deletes = db.begin(isolation);
            deletes.delete_range(&items, key(2)..key(6)).unwrap();
            items.put(key(3), "younger").unwrap();
            if flushes {
                items.flush().unwrap();
            }
            match deletes.commit() {
                Ok(()) if isolation == Isolation::Serializable => {
                    assert_eq!(items.get(key(3)).unwrap(), None);
                }
                Err(Error::Conflict { .. }) if isolation == Isolation::Snapshot => {
                    assert!(items.contains_key(key(3)).unwrap());
                }
                other => panic!("{isolation:?}: {other:?}"),
            }
        }
    }
}
