//! A full disk: what is written is refused, what is there can be read, and what makes room goes on.

#[macro_use]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Random, store_path};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{Database, Error, Keyspace, KeyspaceOptions, MIB, TreeKind};

of_every_kind! {
    a_full_store_can_be_emptied_by_deletes
    a_full_store_can_be_emptied_by_dropping_a_keyspace
    a_store_without_its_reserve_can_be_emptied_by_deletes
    a_store_that_was_full_and_is_opened_again_can_be_emptied
    a_full_store_of_large_values_has_room_again_once_most_are_deleted
    a_merge_that_needs_more_room_than_expected_copies_fewer_values
    what_the_manifest_has_no_room_for_is_not_tried_without_end
    a_table_is_not_copied_without_end_for_values_that_there_is_no_room_for
}

/// A disk, the budget of the store on it, and values of so many bytes.
#[derive(Clone, Copy)]
struct Shape {
    capacity: u64,
    memory_budget: u64,
    value_bytes: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { capacity: 200 * MIB, memory_budget: 128 * MIB, value_bytes: 4000 },
    Shape { capacity: 60 * MIB, memory_budget: 16 * MIB, value_bytes: 400 },
];

fn open(vfs: &MemoryVfs, shape: Shape) -> Database {
    Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(shape.memory_budget)
        .open()
        .unwrap()
}

/// Writes until the disk is full; returns how many keys were written.
fn fill(keyspace: &Keyspace, shape: Shape) -> u64 {
    let mut random = Random(1);
    for number in 0.. {
        match keyspace.put(key(number), random.bytes(shape.value_bytes)) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the disk is full by now");
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Takes all room but `left`.
fn leave(vfs: &MemoryVfs, left: u64) {
    let filler = vfs.open(Path::new("/filler"), Access::Buffered, true);
    let filler = filler.or_else(|_| vfs.create(Path::new("/filler"), Access::Buffered)).unwrap();
    let (mut at, mut step) = (0, 8 * MIB);
    while step >= 4096 {
        match filler.write_at(at, &vec![7; step as usize]) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    filler.truncate(at.saturating_sub(left)).unwrap();
}

fn delete(keyspace: &Keyspace, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        // What there is no room for yet has it soon.
        let mut refused = 0;
        while let Err(error) = keyspace.delete(key(number)) {
            assert!(matches!(error, Error::Full { .. }), "{error}");
            refused += 1;
            assert!(refused < 200, "{number}: {error}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn empty_and_use(db: &Database, keyspace: &Keyspace, keys: u64, shape: Shape) {
    delete(keyspace, 0..keys);
    assert_eq!(keyspace.iter().count(), 0);
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let disk = db.stats().keyspaces[0].disk_bytes;
    assert!(disk < shape.capacity / 10, "{disk} bytes of an empty store");
    let again = fill(keyspace, shape);
    assert!(again > keys / 2, "{again} of {keys}");
}

/// With 8 MiB free `delete` was refused: the next segment of the journal wanted more. And where writers had taken all
/// that there was, nothing could make room.
fn a_full_store_can_be_emptied_by_deletes(kind: TreeKind) {
    for shape in SHAPES {
        let vfs = MemoryVfs::with_capacity(shape.capacity);
        let db = open(&vfs, shape);
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let keys = fill(&keyspace, shape);
        for number in 0..keys {
            assert!(keyspace.get(key(number)).unwrap().is_some());
        }
        empty_and_use(&db, &keyspace, keys, shape);
    }
}

fn a_full_store_can_be_emptied_by_dropping_a_keyspace(kind: TreeKind) {
    for shape in SHAPES {
        let vfs = MemoryVfs::with_capacity(shape.capacity);
        let db = open(&vfs, shape);
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let keys = fill(&keyspace, shape);
        leave(&vfs, 64 << 10);
        db.drop_keyspace("items").unwrap();
        drop(keyspace);
        vfs.remove(Path::new("/filler")).unwrap();
        db.wait_idle().unwrap();
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        assert!(fill(&keyspace, shape) > keys / 2);
    }
}

/// Others have taken what the store had left free, but for 3 MiB. A flush and a compaction then each took the room that
/// the other needed, and failed, and tried again together a second later.
fn a_store_without_its_reserve_can_be_emptied_by_deletes(kind: TreeKind) {
    for shape in SHAPES {
        let vfs = MemoryVfs::with_capacity(shape.capacity);
        let db = open(&vfs, shape);
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let keys = fill(&keyspace, shape);
        let _ = db.wait_idle();
        leave(&vfs, 3 * MIB);
        // Of so little they leave something to those that make room, so they may be refused.
        for number in 0..keys / 2 {
            match keyspace.delete(key(number)) {
                Ok(()) => {}
                Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
            }
        }
        vfs.remove(Path::new("/filler")).unwrap();
        empty_and_use(&db, &keyspace, keys, shape);
    }
}

fn a_store_that_was_full_and_is_opened_again_can_be_emptied(kind: TreeKind) {
    for shape in SHAPES {
        let vfs = MemoryVfs::with_capacity(shape.capacity);
        let db = open(&vfs, shape);
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let keys = fill(&keyspace, shape);
        drop(keyspace);
        let _ = db.close();
        let db = open(&vfs, shape);
        let keyspace = db.existing_keyspace("items").unwrap();
        empty_and_use(&db, &keyspace, keys, shape);
    }
}

/// On a busy machine a merge under way may have taken the last of the room: that is a refusal, and the merge gives the
/// room back.
fn flush_once_there_is_room(keyspace: &Keyspace) {
    let until = Instant::now() + Duration::from_secs(3);
    loop {
        match keyspace.flush() {
            Err(Error::Full { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            flushed => return flushed.unwrap(),
        }
    }
}

/// Values in blob files: the deletes were merged, and each blob file still had a value or two that were live. The merges
/// that would have copied those had nothing to drop themselves, so they were not allowed to take of the reserve, and the
/// store stayed full.
fn a_full_store_of_large_values_has_room_again_once_most_are_deleted(kind: TreeKind) {
    let shape = Shape { capacity: 60 * MIB, memory_budget: 16 * MIB, value_bytes: 8000 };
    for kept_part in [32, 8, 4] {
        let vfs = MemoryVfs::with_capacity(shape.capacity);
        let db = open(&vfs, shape);
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let keys = fill(&keyspace, shape);
        let kept = |number: &u64| number.is_multiple_of(kept_part);
        delete(&keyspace, (0..keys).filter(|number| !kept(number)));
        flush_once_there_is_room(&keyspace);
        db.wait_idle().unwrap();
        let disk = db.stats().keyspaces[0].disk_bytes;
        let live = keys / kept_part * shape.value_bytes as u64;
        assert!(
            disk < 2 * live + 4 * MIB,
            "1 in {kept_part} left: {disk} bytes for {live} live ones"
        );
        for number in (0..keys).filter(kept) {
            assert!(keyspace.get(key(number)).unwrap().is_some());
        }
        let again = fill(&keyspace, shape);
        assert!(again > keys / 2, "1 in {kept_part} left: {again} of {keys}");
    }
}

/// The values to be copied were expected to fit the room that was left, and were a little more. The merge was refused,
/// tried again with the same values, and refused without end.
fn a_merge_that_needs_more_room_than_expected_copies_fewer_values(kind: TreeKind) {
    let (keys, value_bytes, kept_part) = (1600, 8000, 8);
    for step in 0..16 {
        let vfs = MemoryVfs::with_capacity(60 * MIB);
        let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
        let db = builder.memory_budget(16 * MIB).deterministic(0).open().unwrap();
        let options = KeyspaceOptions::new(kind).blob_bytes_min(4096);
        let items = db.keyspace("items", options).unwrap();
        let mut random = Random(1);
        for number in 0..keys {
            items.put(key(number), random.bytes(value_bytes)).unwrap();
            if number % 100 == 99 {
                items.flush().unwrap();
            }
        }
        db.wait_idle().unwrap();
        let kept = |number: &u64| number.is_multiple_of(kept_part);
        (0..keys).filter(|number| !kept(number)).for_each(|n| items.delete(key(n)).unwrap());
        items.flush().unwrap();
        leave(&vfs, (680 << 10) + (step << 13));
        db.wait_idle().unwrap_or_else(|error| panic!("step {step}: {error}"));
        let disk = db.stats().keyspaces[0].disk_bytes;
        let live = keys / kept_part * value_bytes as u64;
        assert!(disk < 2 * live + MIB, "step {step}: {disk} bytes for {live} live ones");
    }
}

/// A merge that the manifest had no room for was to begin anew, had ended, and so seemed to be done: it was chosen
/// again at once, and nobody was told of the error. `wait_idle` never returned.
fn what_the_manifest_has_no_room_for_is_not_tried_without_end(kind: TreeKind) {
    let vfs = MemoryVfs::with_capacity(60 * MIB);
    let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
    let db = builder.memory_budget(16 * MIB).deterministic(0).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for round in 0..52 {
        // Tables of nothing but deletes take no room when they are merged.
        (0..8000).for_each(|number| items.delete(key(round * 8000 + number)).unwrap());
        items.flush().unwrap();
        let filler = vfs.create(Path::new("/filler"), Access::Buffered).unwrap();
        let free = vfs.space(Path::new("/")).unwrap().unwrap().available_bytes;
        filler.write_at(0, &vec![7; free as usize]).unwrap();
        drop(filler);
        let results: Vec<_> = (0..500).map(|_| db.step()).collect();
        let (steps, ends): (Vec<_>, Vec<_>) = results.iter().partition(|r| matches!(r, Ok(true)));
        assert!(steps.len() < 400, "round {round}: without end, {:?}", ends.first());
        vfs.remove(Path::new("/filler")).unwrap();
        db.wait_idle().unwrap();
    }
}

/// Nothing could be dropped of a table, but blob files that it points to were mostly dead, and there was no room to copy
/// their values out. The table alone was copied then, and chosen again for the same blob files at once.
fn a_table_is_not_copied_without_end_for_values_that_there_is_no_room_for(kind: TreeKind) {
    for left in [100 << 10, 200 << 10, 400 << 10, 800 << 10, 1600 << 10] {
        let vfs = MemoryVfs::with_capacity(90 * MIB);
        let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
        let db = builder.memory_budget(16 * MIB).deterministic(0).open().unwrap();
        let options = KeyspaceOptions::new(kind).merge_operator("append");
        let items = db.keyspace("items", options).unwrap();
        let (keys, mut random) = (3000u64, Random(1));
        (0..keys).for_each(|number| items.put(key(number), random.bytes(6000)).unwrap());
        // They stay operands, so each merge leaves two versions of each key.
        (0..keys).for_each(|number| items.merge(key(number), b"and more").unwrap());
        items.compact(..).unwrap();
        let third = (u64::MAX / 3).to_be_bytes();
        for number in (0..keys).filter(|number| key(*number) >= third) {
            items.put(key(number), random.bytes(6000)).unwrap();
        }
        items.compact(third..).unwrap();
        leave(&vfs, left);
        let results: Vec<_> = (0..3000).map(|_| db.step()).collect();
        let (steps, ends): (Vec<_>, Vec<_>) = results.iter().partition(|r| matches!(r, Ok(true)));
        assert!(steps.len() < 2000, "{left} left: without end, {:?}", ends.first());
    }
}
