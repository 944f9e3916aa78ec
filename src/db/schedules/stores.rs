//! Scenarios of whole stores, small ones, in memory, with a background thread.

use std::path::Path;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::store::memtable_state::MemtableState;
use crate::vfs::{Access, File, MemoryVfs, Vfs};
use crate::{Database, Durability, Error, Keyspace, KeyspaceOptions, TreeKind};

pub(super) fn open(vfs: &MemoryVfs) -> Database {
    open_with(vfs, 1024)
}

fn open_with(vfs: &MemoryVfs, memtable_bytes: u64) -> Database {
    let builder = Database::builder("/store").vfs(Arc::new(vfs.clone()));
    builder
        .memory_budget(0)
        .memtable_bytes(memtable_bytes)
        .background_threads(1)
        .journal_shards(2)
        .open()
        .unwrap()
}

/// The keyspace of that name; one that is new has a kind of tree that the schedule draws.
pub(super) fn keyspace(db: &Database, name: &str) -> Keyspace {
    db.existing_keyspace(name).unwrap_or_else(|_| {
        let kind = thread_rng().gen_range(0..TreeKind::ALL.len());
        db.keyspace(name, KeyspaceOptions::new(TreeKind::ALL[kind])).unwrap()
    })
}

pub(super) fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

/// A value that says `number` and fills a good part of a memtable.
fn large(number: u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(400, 0x55);
    value
}

/// A batch over two keyspaces is seen whole or not at all, and what was seen once stays.
pub(super) fn batches_are_whole() {
    let db = Arc::new(open(&MemoryVfs::new()));
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    let writers: Vec<_> = (0..2)
        .map(|writer: u64| {
            let (db, spaces) = (Arc::clone(&db), spaces.clone());
            thread::spawn(move || {
                for round in 1..=2u64 {
                    let mut batch = db.batch();
                    for space in &spaces {
                        batch.put(space, [writer as u8], round.to_be_bytes());
                    }
                    batch.commit().unwrap();
                }
            })
        })
        .collect();
    let mut before = [0; 2];
    for _ in 0..2 {
        let snapshot = db.snapshot();
        for writer in 0..2u8 {
            let [a, b] = [0, 1].map(|space: usize| {
                let value = snapshot.get(&spaces[space], [writer]).unwrap();
                value.map_or(0, |value| number(&value))
            });
            assert_eq!(a, b, "half a batch");
            assert!(a >= before[writer as usize], "a later snapshot sees less");
            before[writer as usize] = a;
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

/// Makes the tree's value of a key a record of the cache.
fn make_record(space: &Keyspace, key: &[u8], value: &[u8]) {
    let (records, id) = (space.store().cache.row_cache(), space.state().id);
    let hash = space.state().hasher.hash(key);
    let entry = EntryRef { key, seqno: Seqno(1), kind: EntryKind::Put, value };
    // As often as the cache wants to be asked.
    for _ in 0..2 {
        records.admit(id, hash, entry, || true);
    }
}

/// Keys that have records are overwritten, and their memtables get into the trees: whoever looks then sees the
/// new values, in two keyspaces.
pub(super) fn records_are_never_outdated() {
    let db = open_with(&MemoryVfs::new(), 4096);
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    for space in &spaces {
        space.put("key", 0u64.to_be_bytes()).unwrap();
        space.flush().unwrap();
        make_record(space, b"key", &0u64.to_be_bytes());
    }
    let done = Arc::new(AtomicU64::new(0));
    let writer = {
        let (spaces, done) = (spaces.clone(), Arc::clone(&done));
        thread::spawn(move || {
            for round in 1..=2u64 {
                for space in &spaces {
                    space.put("key", round.to_be_bytes()).unwrap();
                    // The background takes it from here.
                    space.store().freeze(&[Arc::clone(space.state())], |_| true);
                }
                done.store(round, Ordering::SeqCst);
            }
        })
    };
    for _ in 0..3 {
        let must = done.load(Ordering::SeqCst);
        for space in &spaces {
            let found = number(&space.get("key").unwrap().unwrap());
            assert!(found >= must, "{found}, {must} was done: an outdated record");
        }
    }
    writer.join().unwrap();
    db.wait_idle().unwrap();
    for space in &spaces {
        let found = number(&space.get("key").unwrap().unwrap());
        assert_eq!(found, 2, "an outdated record");
    }
}

/// A batched read without a snapshot sees a batch of two keys, one of which has a record, whole or not at all,
/// although memtables are frozen and incorporated meanwhile.
pub(super) fn batched_reads_see_batches_whole() {
    let db = open_with(&MemoryVfs::new(), 4096);
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    let write = |db: &Database, spaces: &[Keyspace; 2], round: u64| {
        let mut batch = db.batch();
        for space in spaces {
            batch.put(space, "recorded", round.to_be_bytes());
            batch.put(space, "other", round.to_be_bytes());
        }
        batch.commit().unwrap();
    };
    write(&db, &spaces, 0);
    for space in &spaces {
        space.flush().unwrap();
        make_record(space, b"recorded", &0u64.to_be_bytes());
    }
    let writer = {
        let (db, spaces) = (db.clone(), spaces.clone());
        thread::spawn(move || {
            for space in &spaces {
                space.put("neither", "").unwrap();
                space.store().freeze(&[Arc::clone(space.state())], |_| true);
            }
            write(&db, &spaces, 1);
            spaces.iter().for_each(|space| space.flush().unwrap());
        })
    };
    for round in 0..4 {
        let values = spaces[round % 2].multi_get(["recorded", "other"]).unwrap();
        let [recorded, other] = [0, 1].map(|at: usize| number(values[at].as_ref().unwrap()));
        assert_eq!(recorded, other, "half a batch");
    }
    writer.join().unwrap();
}

/// Memtables are frozen, packed and incorporated under a writer; readers miss nothing of what it was
/// told is done, by search or in order, and an iterator sees one moment.
pub(super) fn rotation_under_readers() {
    // Two memtables are full before the last.
    const ROUNDS: u64 = 8;
    let db = open(&MemoryVfs::new());
    let items = keyspace(&db, "items");
    let done = Arc::new(AtomicU64::new(0));
    let writer = {
        let (items, done) = (items.clone(), Arc::clone(&done));
        thread::spawn(move || {
            for round in 1..=ROUNDS {
                items.put(round.to_be_bytes(), large(round)).unwrap();
                done.store(round, Ordering::SeqCst);
            }
        })
    };
    for _ in 0..2 {
        let must = done.load(Ordering::SeqCst);
        for round in 1..=must {
            let value = items.get(round.to_be_bytes()).unwrap();
            let value = value.unwrap_or_else(|| panic!("{round} of {must} is lost"));
            assert_eq!(number(&value), round);
        }
        let seen: Vec<u64> = items.iter().map(|pair| number(&pair.unwrap().0)).collect();
        assert!(seen.len() as u64 >= must, "{seen:?}, {must} were done");
        assert!(seen.iter().copied().eq(1..=seen.len() as u64), "not a prefix: {seen:?}");
    }
    writer.join().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(items.iter().count() as u64, ROUNDS);
}

/// Snapshots and iterators that were there before go on seeing what they saw, while everything they
/// stand on is overwritten, flushed, compacted and deleted.
pub(super) fn iterators_outlive_compactions() {
    let db = open(&MemoryVfs::new());
    let items = keyspace(&db, "items");
    for key in [0u64, 1] {
        items.put(key.to_be_bytes(), large(key + 2)).unwrap();
        items.flush().unwrap();
    }
    let snapshot = db.snapshot();
    let mut iter = items.iter();
    assert_eq!(number(&iter.next().unwrap().unwrap().1), 2);
    let writer = {
        let items = items.clone();
        thread::spawn(move || {
            items.put(1u64.to_be_bytes(), large(9)).unwrap();
            items.delete(0u64.to_be_bytes()).unwrap();
            items.compact(..).unwrap();
        })
    };
    assert_eq!(number(&iter.next().unwrap().unwrap().1), 3);
    assert!(iter.next().is_none());
    for (key, value) in [(0u64, 2), (1, 3)] {
        let found = snapshot.get(&items, key.to_be_bytes()).unwrap();
        assert_eq!(found.map(|value| number(&value)), Some(value), "a snapshot changed");
    }
    writer.join().unwrap();
    let found = snapshot.get(&items, 0u64.to_be_bytes()).unwrap();
    assert_eq!(found.map(|value| number(&value)), Some(2), "a snapshot changed");
    drop((snapshot, iter));
    assert!(items.get(0u64.to_be_bytes()).unwrap().is_none());
}

/// A store is closed while writers and background work are under way, and opened again: every write
/// that returned is there, and nothing after one that is not.
pub(super) fn closing_under_writers() {
    let vfs = MemoryVfs::new();
    let db = open(&vfs);
    let items = keyspace(&db, "items");
    let writers: Vec<_> = (0..2u8)
        .map(|writer| {
            let items = items.clone();
            thread::spawn(move || {
                let mut done = 0;
                for round in 1..=3u64 {
                    match items.put([writer], large(round)) {
                        Ok(()) => done = round,
                        Err(Error::Closed { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                done
            })
        })
        .collect();
    db.close().unwrap();
    let done: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    drop(items);
    let db = open(&vfs);
    let items = keyspace(&db, "items");
    for (writer, done) in (0..).zip(done) {
        let found = items.get([writer]).unwrap().map_or(0, |value| number(&value));
        assert_eq!(found, done, "what writer {writer} was told");
    }
}

/// The last handles go while background work is under way.
pub(super) fn dropping_under_work() {
    let vfs = MemoryVfs::new();
    let db = open(&vfs);
    let items = keyspace(&db, "items");
    let writer = thread::spawn(move || {
        for round in 1..=4u64 {
            items.put([0], large(round)).unwrap();
        }
    });
    drop(db);
    writer.join().unwrap();
    let db = open(&vfs);
    let found = keyspace(&db, "items").get([0]).unwrap();
    assert_eq!(found.map(|value| number(&value)), Some(4));
}

/// Syncing writers, a buffered one, and two keyspaces whose memtables go into trees at their own pace.
pub(super) fn syncing_writers() {
    let vfs = MemoryVfs::new();
    let db = Arc::new(open(&vfs));
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    let writers: Vec<_> = (0..2usize)
        .map(|writer| {
            let (db, spaces) = (Arc::clone(&db), spaces.clone());
            thread::spawn(move || {
                let mut batch = db.batch().durability(Durability::Sync);
                batch.put(&spaces[writer], "synced", large(1));
                batch.commit().unwrap();
                spaces[1 - writer].put("buffered", large(2)).unwrap();
            })
        })
        .collect();
    spaces[0].flush().unwrap();
    for writer in writers {
        writer.join().unwrap();
    }
    for space in &spaces {
        for (key, value) in [("synced", 1), ("buffered", 2)] {
            assert_eq!(space.get(key).unwrap().map(|value| number(&value)), Some(value));
        }
    }
}

/// A keyspace is dropped and made anew while somebody writes to it and flushes it.
pub(super) fn dropping_a_keyspace() {
    let db = open(&MemoryVfs::new());
    let items = keyspace(&db, "items");
    let writer = {
        let items = items.clone();
        thread::spawn(move || {
            for round in 1..=3u64 {
                match items.put([0], large(round)).and_then(|()| items.flush()) {
                    Ok(()) => {}
                    Err(Error::Closed { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    };
    db.drop_keyspace("items").unwrap();
    let anew = keyspace(&db, "items");
    assert!(anew.get([0]).unwrap().is_none(), "a new keyspace holds something");
    anew.put([0], large(7)).unwrap();
    writer.join().unwrap();
    assert_eq!(anew.get([0]).unwrap().map(|value| number(&value)), Some(7));
}

/// A checkpoint taken while others write holds all that was done before, and no half batch.
pub(super) fn a_checkpoint_under_writers() {
    let vfs = MemoryVfs::new();
    let db = Arc::new(open(&vfs));
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    spaces[0].put("before", large(1)).unwrap();
    let writer = {
        let (db, spaces) = (Arc::clone(&db), spaces.clone());
        thread::spawn(move || {
            for round in 1..=2u64 {
                let mut batch = db.batch();
                for space in &spaces {
                    batch.put(space, "key", large(round));
                }
                batch.commit().unwrap();
                // Into one tree earlier than into the other.
                spaces[1].flush().unwrap();
            }
        })
    };
    db.checkpoint("/copy").unwrap();
    writer.join().unwrap();
    let builder = Database::builder("/copy").vfs(Arc::new(vfs.clone()));
    let copy = builder.memory_budget(0).memtable_bytes(1024).background_threads(1).open().unwrap();
    let spaces = [keyspace(&copy, "a"), keyspace(&copy, "b")];
    assert!(spaces[0].get("before").unwrap().is_some());
    for _ in 0..4 {
        // What lies beyond the cut would come to light.
        spaces[0].put("after", "").unwrap();
    }
    let [a, b] = spaces.map(|space| space.get("key").unwrap().map(|value| number(&value)));
    assert_eq!(a, b, "half a batch");
}

/// A keyspace is dropped while batches go to it and to another: none takes effect once it is gone, those
/// before are durable, and the journal that still holds them does no harm to a keyspace of that name.
pub(super) fn batches_meet_a_drop() {
    meet_a_drop(1024, 8);
}

/// The same, with segments that are full after two or three batches: some of them wait for the next.
pub(super) fn batches_that_wait_for_segments_meet_a_drop() {
    meet_a_drop(16 << 10, 2500);
}

fn meet_a_drop(memtable_bytes: u64, value_bytes: usize) {
    let vfs = MemoryVfs::new();
    let db = Arc::new(open_with(&vfs, memtable_bytes));
    let value = move |round: u64| {
        let mut value = round.to_be_bytes().to_vec();
        value.resize(value_bytes, 0x55);
        value
    };
    let (doomed, stays) = (keyspace(&db, "doomed"), keyspace(&db, "stays"));
    let writers: Vec<_> = (0..2u8)
        .map(|writer| {
            let (db, doomed, stays) = (Arc::clone(&db), doomed.clone(), stays.clone());
            thread::spawn(move || {
                for round in 1..=2u64 {
                    let mut batch = db.batch();
                    batch.put(&doomed, [writer], value(round));
                    batch.put(&stays, [writer], value(round));
                    match batch.commit() {
                        Ok(()) => {}
                        Err(Error::Closed { .. }) => return round - 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                2
            })
        })
        .collect();
    let reader = {
        let (doomed, stays) = (doomed.clone(), stays.clone());
        thread::spawn(move || {
            // What a batch has put into both is in both.
            let must = stays.get([0]).unwrap().map_or(0, |value| number(&value));
            match doomed.get([0]) {
                Ok(value) => assert!(value.map_or(0, |value| number(&value)) >= must, "outdated"),
                Err(Error::Closed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        })
    };
    db.drop_keyspace("doomed").unwrap();
    let store = stays.store();
    assert!(store.journal.durable() >= store.committer.visible(), "lost behind the drop");
    let found = |stays: &Keyspace, writer: u8| {
        stays.get([writer]).unwrap().map_or(0, |value| number(&value))
    };
    let at_drop = [0, 1].map(|writer| found(&stays, writer));
    for (writer, handle) in writers.into_iter().enumerate() {
        let done = handle.join().unwrap();
        assert_eq!(done, at_drop[writer], "a batch after the drop");
    }
    reader.join().unwrap();
    let anew = keyspace(&db, "doomed");
    anew.put("anew", 7u64.to_be_bytes()).unwrap();
    drop((db, doomed, stays, anew));
    let db = open(&vfs);
    let (anew, stays) = (keyspace(&db, "doomed"), keyspace(&db, "stays"));
    assert_eq!([0, 1].map(|writer| found(&stays, writer)), at_drop);
    assert_eq!(anew.iter().count(), 1, "records of the keyspace that was dropped");
}

/// Takes all the room there is.
fn fill(vfs: &MemoryVfs, path: &Path) -> Arc<dyn File> {
    let file = vfs.create(path, Access::Buffered).unwrap();
    for shift in (0..16).rev() {
        let end = file.len().unwrap();
        // What is too much is left to the smaller pieces.
        let _ = file.write_at(end, &vec![0; 1 << shift]);
    }
    file
}

/// A keyspace cannot be dropped for want of room while its memtable is on its way into the tree: it
/// goes on as if nothing had happened.
pub(super) fn a_drop_without_room() {
    // Room for two tables of the kind with the largest: seven pages for one pair, and as much again beside each.
    let vfs = MemoryVfs::with_capacity(120_000);
    let db = open(&vfs);
    let items = keyspace(&db, "items");
    let store = Arc::clone(items.store());
    // Packed, and not yet in the tree: that needs room in the manifest alone.
    let filler = {
        let _nobody_else = store.incorporation.lock();
        items.put("first", large(1)).unwrap();
        store.freeze(&[Arc::clone(items.state())], |_| true);
        let is_built = || {
            let read = items.state().read.load_full();
            read.frozen.last().is_some_and(|oldest| oldest.is_built())
        };
        while !is_built() {
            thread::yield_now();
        }
        fill(&vfs, Path::new("/filler"))
    };
    let other = Arc::clone(&store);
    let incorporating = thread::spawn(move || match other.incorporate_built() {
        Ok(()) | Err(Error::Full { .. }) => {}
        Err(error) => panic!("{error}"),
    });
    let dropped = db.drop_keyspace("items");
    incorporating.join().unwrap();
    match dropped {
        // The memtable was refused first, and gave back the room of what had been packed.
        Ok(()) => return,
        Err(Error::Full { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    vfs.remove(Path::new("/filler")).unwrap();
    drop((filler, store));
    items.put("second", large(2)).unwrap();
    items.flush().unwrap();
    for (key, value) in [("first", 1), ("second", 2)] {
        let found = items.get(key).unwrap().map(|value| number(&value));
        assert_eq!(found, Some(value), "{key} is lost");
    }
}

/// Memtables, compactions, changed options and a rewrite of the manifest meet in one tree, on a disk that is full for a
/// while. Changes build on one another before they are durable; whatever is refused, no pair is lost, and what is on the disk
/// is a tree.
pub(super) fn changes_of_a_tree_meet() {
    fn refused_at_most<T>(result: crate::Result<T>) {
        match result.map(|_| ()) {
            Ok(()) | Err(Error::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Room for four tables of the kind with the largest, and for a compaction beside them.
    let vfs = MemoryVfs::with_capacity(400_000);
    let db = open(&vfs);
    let items = keyspace(&db, "items");
    for round in 1..=2 {
        items.put("before", large(round)).unwrap();
        items.flush().unwrap();
    }
    let compacting = {
        let items = items.clone();
        thread::spawn(move || refused_at_most(items.compact(..)))
    };
    let altering = {
        let items = items.clone();
        thread::spawn(move || {
            // Not every kind has a fan-out; another option is as good there.
            refused_at_most(items.alter(|options| {
                let another = options.clone().seek_compaction(false);
                options.kind_option("fanout_max", 5).unwrap_or(another)
            }));
            refused_at_most(items.store().rewrite_manifest());
        })
    };
    let filling = {
        let vfs = vfs.clone();
        thread::spawn(move || {
            let filler = fill(&vfs, Path::new("/filler"));
            thread::yield_now();
            vfs.remove(Path::new("/filler")).unwrap();
            drop(filler);
        })
    };
    let mut last = 2;
    for round in 3..=4 {
        match items.put("before", large(round)) {
            Ok(()) => last = round,
            error => refused_at_most(error),
        }
        refused_at_most(items.flush());
    }
    [compacting, altering, filling].into_iter().for_each(|thread| thread.join().unwrap());
    let found = |items: &Keyspace| items.get("before").unwrap().map(|value| number(&value));
    assert_eq!(found(&items), Some(last), "a pair is lost");
    items.compact(..).unwrap();
    assert_eq!(found(&items), Some(last), "a pair is lost");
    drop((db, items));
    let db = open(&vfs);
    assert_eq!(found(&keyspace(&db, "items")), Some(last), "a pair is lost by the open");
}

/// A memtable that has been frozen holds what was committed up to its freeze, and stays as it is.
pub(super) fn freezing_under_writers() {
    let db = open(&MemoryVfs::new());
    let items = keyspace(&db, "items");
    let writers: Vec<_> = (0..2u8)
        .map(|writer| {
            let items = items.clone();
            thread::spawn(move || {
                for round in 0..2u8 {
                    items.put([writer, round], [round]).unwrap();
                }
            })
        })
        .collect();
    let mut frozen: Vec<(Arc<MemtableState>, usize)> = Vec::new();
    for _ in 0..2 {
        items.store().freeze(&[Arc::clone(items.state())], |_| true);
        for memtable in &items.state().read.load().frozen {
            frozen.push((Arc::clone(memtable), memtable.memtable.len()));
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
    for (memtable, len) in frozen {
        assert_eq!(memtable.memtable.len(), len, "a frozen memtable has grown");
        let newest = memtable.memtable.seqno_bounds().map(|(_, newest)| newest);
        let frozen = &memtable.freeze_seqno;
        assert!(newest <= frozen.get().copied(), "{newest:?} lies beyond {frozen:?}");
    }
}

/// Iterators remember where everything was deleted, and others put keys there: what has been put is seen by an iterator
/// that begins later.
pub(super) fn gaps_end_at_puts() {
    let builder = Database::builder("/store").vfs(Arc::new(MemoryVfs::new()));
    let db = builder.memory_budget(0).memtable_bytes(4096).background_threads(1).journal_shards(2);
    let db = db.gap_entries_min(1).open().unwrap();
    let items = keyspace(&db, "items");
    for key in 0..4u8 {
        items.put([key], [0]).unwrap();
        items.delete([key]).unwrap();
    }
    if thread_rng().gen_range(0..2) == 0 {
        // There is a gap from the beginning.
        assert!(items.iter().next().is_none());
    }
    let done: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
    let writers: Vec<_> = [[1u8, 2], [3, 0]]
        .into_iter()
        .map(|keys| {
            let (items, done) = (items.clone(), Arc::clone(&done));
            thread::spawn(move || {
                for key in keys {
                    items.put([key], [1]).unwrap();
                    done[usize::from(key)].store(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let reader = {
        let items = items.clone();
        thread::spawn(move || {
            for pair in items.iter().rev() {
                pair.unwrap();
            }
        })
    };
    for _ in 0..2 {
        let must: Vec<u8> =
            (0..4).filter(|key| done[usize::from(*key)].load(Ordering::SeqCst) == 1).collect();
        let found: Vec<u8> = items.iter().map(|pair| pair.unwrap().0[0]).collect();
        assert!(must.iter().all(|key| found.contains(key)), "{found:?}, {must:?} were put");
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    reader.join().unwrap();
    let found: Vec<u8> = items.iter().map(|pair| pair.unwrap().0[0]).collect();
    assert_eq!(found, [0, 1, 2, 3]);
}
