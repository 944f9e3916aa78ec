//! Threads that meet where a look and a step belong together, each story told in one order of steps;
//! `spinney-sim threads` and `db::schedules` try the same in any order.

use std::cell::Cell;
use std::panic;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::commit;
use crate::jobs::WorkSource;
use crate::journal::{Payload, encode_operation};
use crate::store::idle::Activity;
use crate::store::read::multi_get_while;
use crate::vfs::{Access, File, MemoryVfs, Vfs};
use crate::{Batch, Database, Durability, Error, Event, Keyspace, KeyspaceOptions, TreeKind};

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
/// took it into the tree at once; whoever had to tell the row cache which keys the tree had news of looked
/// at a read state in which the memtable was still the active one, and told it nothing.
/// (Found by `spinney-sim threads`, once in 6,000 histories.)
#[test]
fn a_memtable_on_its_way_into_the_tree_is_frozen_for_all_who_look() {
    let db = Database::builder_in_memory().deterministic(1).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("key", "value").unwrap();
    // As far as a freeze has come when it is about to replace the read state.
    let read = items.state().read.load_full();
    read.active.freeze(items.store().committer.visible(), 0);
    assert!(items.state().claim_waiting().is_none(), "it is on its way and not frozen for all");
    assert!(!items.state().is_flushing());
}

/// Makes the tree's value of a key a record of the cache.
fn make_record(items: &Keyspace, key: &[u8], value: &[u8]) {
    let store = items.store();
    let entry = EntryRef { key, seqno: Seqno(1), kind: EntryKind::Put, value };
    // As often as the cache wants to be asked.
    for _ in 0..2 {
        store.cache.row_cache().admit(
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
        assert!(db.stats().cache_hits_row > 0, "no key has a record");
    }
}

/// Takes all the room there is but for about so many bytes.
fn fill(vfs: &MemoryVfs, path: &str, but: usize) -> Arc<dyn File> {
    let file = vfs.create(Path::new(path), Access::Buffered).unwrap();
    for shift in (0..16).rev() {
        // What is too much is left to the smaller pieces.
        while file.write_at(file.len().unwrap(), &vec![0; 1 << shift]).is_ok() {}
    }
    file.truncate(file.len().unwrap().saturating_sub(but as u64)).unwrap();
    file
}

/// A keyspace's memtable could not get into its tree. Those of the keyspaces behind it in the alphabet were packed,
/// and stayed so until their next flush; and a flush of theirs failed with the error of the first.
#[test]
fn a_failure_of_one_keyspace_keeps_no_other_waiting() {
    let vfs = MemoryVfs::with_capacity(16 << 20);
    let builder = Database::builder("/store").vfs(Arc::new(vfs.clone()));
    let db = builder.memtable_bytes(4096).deterministic(1).open().unwrap();
    let options = || KeyspaceOptions::stb().fanout_max(1000);
    let [fails, other] = ["a", "b"].map(|name| db.keyspace(name, options()).unwrap());
    let store = Arc::clone(other.store());
    // A root with many children: what the manifest has to be told of the first takes more than will be left, of the
    // second less.
    for number in 0u32.. {
        let before = store.manifest.bytes_total();
        fails.put(number.to_be_bytes(), [0; 3500]).unwrap();
        fails.flush().unwrap();
        if store.manifest.bytes_total() > before + 600 {
            break;
        }
        db.wait_idle().unwrap();
        assert!(number < 1000, "the root stays small");
    }
    fails.put("last", "value").unwrap();
    other.put("key", "value").unwrap();
    store.freeze(&[Arc::clone(fails.state()), Arc::clone(other.state())], |_| true);
    for keyspace in [&fails, &other] {
        let claimed = keyspace.state().claim_waiting().unwrap();
        keyspace.state().build(&claimed).unwrap();
    }
    let filler = fill(&vfs, "/filler", 400);
    let incorporated = store.incorporate_built();
    assert!(matches!(incorporated, Err(Error::Full { .. })), "{incorporated:?}");
    assert!(!other.state().is_flushing(), "it waits for nothing");
    other.flush().unwrap();
    assert!(fails.state().is_flushing(), "it is still to be done");
    vfs.remove(Path::new("/filler")).unwrap();
    drop(filler);
    fails.flush().unwrap();
    assert_eq!(fails.get("last").unwrap().as_deref(), Some(&b"value"[..]));
}

/// In deterministic mode a checkpoint held the lock under which keyspaces are created and dropped, and carried out
/// the steps of background work that it waited for. One of them was to write the manifest anew, which wanted the
/// same lock: the thread waited for itself.
#[test]
fn a_rewrite_of_the_manifest_waits_for_nobody_who_may_wait_for_it() {
    let db = Database::builder_in_memory().memtable_bytes(1024).deterministic(1).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let store = Arc::clone(items.store());
    while store.manifest.bytes_total() < 5 * store.manifest.bytes_live().max(4096) {
        items.put("key", vec![7; 300]).unwrap();
        store.freeze(std::slice::from_ref(items.state()), |_| true);
        items.state().flush_alone().unwrap();
    }
    let before = store.manifest.bytes_total();
    let (tell, told) = mpsc::channel();
    {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            let registry = store.registry.lock();
            let carried_out = store.upkeep().and_then(|()| store.rewrite_manifest());
            drop(registry);
            tell.send(carried_out).unwrap();
        });
    }
    told.recv_timeout(PATIENCE).expect("it waits for its own thread").unwrap();
    assert!(store.manifest.bytes_total() >= before, "some other time");
    store.upkeep().unwrap();
    assert!(store.manifest.bytes_total() < before / 2, "when nobody is at it");
}

/// A thread closed the store, and another one did too. The second was told at once that all was well, before the
/// journal had been synced, and also if that failed then.
#[test]
fn whoever_closes_a_store_is_told_how_that_went() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("key", "value").unwrap();
    let store = Arc::clone(items.store());
    // Closing has to wait for this.
    let shard = store.journal.lock_shard(0);
    let shards = [shard]
        .into_iter()
        .chain((1..store.journal.shard_count()).map(|n| store.journal.lock_shard(n)));
    let shards: Vec<_> = shards.collect();
    let (tell, told) = mpsc::channel();
    for _ in 0..2 {
        let (db, tell) = (db.clone(), tell.clone());
        thread::spawn(move || tell.send(db.close()).unwrap());
    }
    let early = told.recv_timeout(Duration::from_millis(300));
    assert!(early.is_err(), "closed, while the journal is not: {early:?}");
    store.poison.set(&Error::invalid("the disk is gone"));
    drop(shards);
    for _ in 0..2 {
        let closed = told.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(closed, Err(Error::Poisoned { .. })), "{closed:?}");
    }
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })), "and whoever asks later");
}

/// Nobody was at work, a worker claimed the only compaction there was, and then nothing was found that nobody had
/// claimed: `wait_idle` returned while the compaction ran.
#[test]
fn a_job_that_begins_while_work_is_looked_for_is_waited_for() {
    for kind in TreeKind::ALL {
        let db = open(1 << 20);
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let store = items.store();
        let rest =
            |until| items.state().compaction_backoff_until_nanos.store(until, Ordering::Relaxed);
        rest(u64::MAX);
        for round in 0..20u64 {
            items.put("key", round.to_be_bytes()).unwrap();
            items.flush().unwrap();
        }
        let began = Instant::now();
        let patiently = |done: &dyn Fn() -> bool| {
            while !done() {
                assert!(began.elapsed() < PATIENCE);
                thread::yield_now();
            }
        };
        assert!(store.has_work(), "{kind:?}: nothing to compact");
        let has_met = Cell::new(false);
        // A worker may be looking for work before.
        while !has_met.get() {
            let activity = store.activity_while(|| {
                has_met.set(true);
                rest(0);
                patiently(&|| {
                    store.executor.notify();
                    !store.has_work()
                });
            });
            assert_ne!(activity, Activity::Idle, "{kind:?}: a job is under way, or has just ended");
        }
        db.wait_idle().unwrap();
    }
}

/// One keyspace's compaction met damage. Another's memtable got into its tree, and with that the failure was
/// forgotten: `wait_idle` said that all was well. It said so too if the failed compaction was the last of the work.
#[test]
fn a_keyspace_s_success_hides_no_failure_of_another() {
    for kind in TreeKind::ALL {
        let open = |vfs: &MemoryVfs| {
            let builder = Database::builder("/store").vfs(Arc::new(vfs.clone()));
            builder.memtable_bytes(1 << 20).deterministic(1).open().unwrap()
        };
        let damaged = || {
            let vfs = MemoryVfs::new();
            let items = open(&vfs).keyspace("damaged", KeyspaceOptions::new(kind)).unwrap();
            for round in 0..20u64 {
                items.put("key", round.to_be_bytes()).unwrap();
                items.flush().unwrap();
            }
            drop(items);
            for name in vfs.read_names(Path::new("/store")).unwrap() {
                if name.ends_with(".table") {
                    let path = Path::new("/store").join(name);
                    let table = vfs.open(&path, Access::Buffered, true).unwrap();
                    table.write_at(100, &[0xaa; 100]).unwrap();
                }
            }
            vfs
        };
        let db = open(&damaged());
        let idle = db.wait_idle();
        assert!(idle.as_ref().is_err_and(Error::is_corruption), "{kind:?}, the last: {idle:?}");

        let db = open(&damaged());
        let other = db.keyspace("other", KeyspaceOptions::new(kind)).unwrap();
        let mark = other.store().failure_mark();
        while db.step().is_ok() {}
        other.put("key", "value").unwrap();
        other.flush().unwrap();
        let idle = other.store().wait_idle_since(mark);
        assert!(idle.as_ref().is_err_and(Error::is_corruption), "{kind:?}, hidden: {idle:?}");
        assert!(other.store().wait_idle_since(other.store().failure_mark()).is_ok());
        // Who waits from now on hears of it too: what was left alone for damage is tried again.
        let idle = db.wait_idle();
        assert!(idle.as_ref().is_err_and(Error::is_corruption), "{kind:?}, left alone: {idle:?}");
    }
}

/// Two threads worked out what the page cache may have. The first said what it was to be, the second too, and gave
/// it; then the first gave what it had found. The cache kept memory that memtables had meanwhile.
#[test]
fn the_cache_has_what_was_worked_out_last() {
    let db = open(1 << 20);
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let store = items.store();
    let given = |store: &crate::store::store::Store| *store.cache_share.lock();
    store.share_memory();
    let before = given(store);
    *store.cache_share.lock() = 0;
    let (tell, told) = mpsc::channel();
    let mut second = None;
    store.share_memory_while(|| {
        let store = Arc::clone(store);
        second = Some(thread::spawn(move || {
            store.memtables_share.fetch_max(3 << 20, Ordering::Relaxed);
            store.share_memory();
            tell.send(()).unwrap();
        }));
        // It may have to wait for the end of this call.
        let _ = told.recv_timeout(Duration::from_millis(300));
    });
    second.unwrap().join().unwrap();
    assert!(given(store) < before, "memtables have more");
    assert_eq!(store.cache.capacity_bytes(), given(store));
}

/// The statistics asked the tree, a memtable got into it, and then they asked the memtables: its keys were nowhere.
#[test]
fn a_memtable_is_counted_once_wherever_it_goes() {
    for kind in TreeKind::ALL {
        let db = open(1 << 20);
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        (0..100u64).for_each(|key| items.put(key.to_be_bytes(), "value").unwrap());
        let (read, tree) = items.state().with_tree_state_while(|| items.flush().unwrap());
        let slots = read.frozen.iter().chain([&read.active]);
        let in_memtables: usize = slots.map(|slot| slot.memtable.len()).sum();
        assert_eq!(
            in_memtables as u64 + tree.entries,
            100,
            "{kind:?}: {in_memtables} in memtables"
        );
        assert_eq!(db.stats().keyspaces[0].keys_estimate, 100);
    }
}

/// A list of keyspaces was taken, one of them was dropped, and its memtable was frozen after that: it got into a
/// pipeline that nobody works at, and stayed there for as long as there was a handle.
#[test]
fn nothing_is_frozen_in_a_keyspace_that_is_gone() {
    let db = Database::builder_in_memory().deterministic(1).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("key", "value").unwrap();
    items.store().freeze(std::slice::from_ref(items.state()), |_| true);
    items.put("key", "another").unwrap();
    items.state().leave_for_good();
    items.store().freeze(std::slice::from_ref(items.state()), |_| true);
    assert!(!items.state().is_flushing());
    assert_eq!(items.state().read.load().frozen.len(), 1, "frozen after it had gone");
}

/// Expects that the store refuses writes because its own code panicked so, and can be read.
#[track_caller]
fn assert_poisoned(items: &Keyspace, said: &str) {
    let refused = items.put("key", "another");
    assert!(
        matches!(&refused, Err(Error::Poisoned { reason }) if reason.contains(said)),
        "{refused:?}"
    );
    assert_eq!(items.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Our own code panicked on the thread of a writer that froze a memtable, or of a caller that created a keyspace.
/// Nobody was told: writes went on into what was half done.
#[test]
fn a_panic_on_a_caller_s_thread_poisons_the_store() {
    let written = || {
        let db = open(1 << 20);
        let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        items.put("key", "value").unwrap();
        (db, items)
    };
    let panics = |f: &dyn Fn()| panic::catch_unwind(panic::AssertUnwindSafe(f)).is_err();
    let (_db, items) = written();
    let keyspaces = [Arc::clone(items.state())];
    let frozen = || {
        items.store().freeze(&keyspaces, |_| panic!("in the barrier"));
    };
    assert!(panics(&frozen));
    assert_poisoned(&items, "freezing a memtable panicked: in the barrier");

    let (db, items) = written();
    let half_way = || panic!("half-way");
    assert!(panics(&|| drop(db.keyspace_while("other", KeyspaceOptions::stb(), half_way))));
    assert_poisoned(&items, "creating a keyspace panicked: half-way");
}

/// Journal, manifest and store each had a state of their own for this, and one failure that passed through several of
/// them was told several times.
#[test]
fn what_poisons_the_store_is_told_once() {
    let told = Arc::new(AtomicU64::new(0));
    let listener = {
        let told = Arc::clone(&told);
        move |event: &Event| {
            told.fetch_add(u64::from(matches!(event, Event::Error { .. })), Ordering::SeqCst);
        }
    };
    let builder = Database::builder_in_memory().deterministic(1).events(Arc::new(listener));
    let db = builder.open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("key", "value").unwrap();
    let store = items.store();
    let failed = Error::io("sync", Path::new("/journal"), None, std::io::ErrorKind::Other.into());
    store.poison.set(&failed);
    store.job_failed(&failed);
    store.job_failed(&store.poison.check().unwrap_err());
    assert_poisoned(&items, "/journal");
    assert!(matches!(db.wait_idle(), Err(Error::Io { .. })), "what it failed with");
    store.deliver_events();
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// Calls of readers that took long kept memtables, and writers went on without end: 248 MiB in a store of 32. When each
/// write waited for them instead, six long calls in a store of 256 MiB slowed all writers to a hundred writes a second,
/// though what they kept could not grow.
#[test]
fn writers_are_slowed_only_while_readers_keep_a_large_part_of_all_memory() {
    let db = open(64 << 10);
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let store = items.store();
    let in_use = || store.pool.bytes_in_use() as u64;
    let cache = store.cache.capacity_bytes();
    let write = |number: u64| items.put(number.to_be_bytes(), [7; 1000]).unwrap();
    // As calls that are under way hold them.
    let mut held = Vec::new();
    let mut number = 0;
    let mut keep_until = |bytes: u64| {
        while in_use() < bytes {
            write(number);
            number += 1;
            if number % 32 == 0 {
                held.push(items.state().read.load_full());
            }
            assert!(number < 20_000, "{} bytes in use", in_use());
        }
    };
    let (share, kept_max) = (store.sizes.memtables_bytes_max, store.kept.bytes_max());
    let look = || {
        // Not more often than each millisecond.
        thread::sleep(Duration::from_millis(5));
        store.look_at_kept();
    };
    keep_until(share + kept_max / 2);
    look();
    let throttled = db.stats().throttled;
    (0..200).for_each(|number| items.put(format!("{number}"), [7; 100]).unwrap());
    assert!(db.stats().throttled < throttled + Duration::from_millis(200), "nothing to wait for");
    keep_until(share + kept_max + store.sizes.memory_budget / 8);
    look();
    let now = store.cache.capacity_bytes();
    assert!(
        now < cache,
        "{now} bytes, and {cache} before; {} kept",
        store.memtables_limit() - share
    );
    let from = Instant::now();
    (0..40).for_each(|number| items.put(format!("{number}"), [7; 10_000]).unwrap());
    assert!(from.elapsed() >= Duration::from_millis(300), "{:?}", from.elapsed());
    assert!(from.elapsed() < PATIENCE, "nobody waits for a reader without end");
    held.clear();
    look();
    assert_eq!(store.memtables_limit(), share);
    write(0);
    assert!(in_use() <= share, "{} bytes in use", in_use());
}

/// What still reads a dropped keyspace may keep its memtables for good: nobody waits for these.
#[test]
fn nobody_waits_for_memtables_of_dropped_keyspaces() {
    let db = open(1 << 20);
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let pairs = |keyspace: &Keyspace, range: std::ops::Range<u64>| {
        range.for_each(|number| keyspace.put(number.to_be_bytes(), [7; 1000]).unwrap());
    };
    let mut held = Vec::new();
    for round in 0..8 {
        let name = format!("gone {round}");
        let gone = db.keyspace(&name, KeyspaceOptions::stb()).unwrap();
        pairs(&gone, 0..700);
        held.push(gone.state().read.load_full());
        gone.flush().unwrap();
        db.drop_keyspace(&name).unwrap();
    }
    let store = items.store();
    let exceed_share = || store.pool.bytes_in_use() as u64 > store.sizes.memtables_bytes_max;
    assert!(exceed_share());
    let before = db.stats().throttled;
    pairs(&items, 0..100);
    assert_eq!(db.stats().throttled, before);
    assert!(exceed_share());
}

/// Calls that were under way kept memtables of one keyspace. From then on the iterators of all keyspaces sought again after
/// each compaction and each freeze, though they pinned nothing.
#[test]
fn an_iterator_that_keeps_no_memtable_alone_stays_open_while_others_keep_many() {
    let builder = Database::builder_in_memory().memory_budget(4 << 20).memtable_bytes(64 << 10);
    let db = builder.deterministic(1).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let other = db.keyspace("other", KeyspaceOptions::stb()).unwrap();
    for number in 0..300u64 {
        items.put(number.to_be_bytes(), [7; 100]).unwrap();
    }
    let store = items.store();
    let mut held = Vec::new();
    for round in 0..60u64 {
        (0..32).for_each(|number: u64| {
            other.put((round * 32 + number).to_be_bytes(), [7; 1000]).unwrap();
        });
        held.push(other.state().read.load_full());
        other.flush().unwrap();
    }
    thread::sleep(Duration::from_millis(5));
    store.look_at_kept();
    assert!(store.is_kept_scarce());
    let mut iter = items.iter();
    iter.next().unwrap().unwrap();
    store.freeze(&[Arc::clone(items.state())], |_| true);
    let open_bytes = || store.open_iterators.bytes();
    for _ in 0..200 {
        iter.next().unwrap().unwrap();
        assert!(open_bytes() > 0);
    }
    // Its memtable gets into the tree: nobody else needs it.
    items.flush().unwrap();
    assert!((0..99).any(|_| iter.next().is_some() && open_bytes() == 0));
}

/// Two writers of large batches had the whole rate at which writers are let in: each small write waited a second.
#[test]
fn small_writes_do_not_wait_for_large_ones() {
    let db = open(64 << 10);
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let store = items.store();
    let mut held = Vec::new();
    let most = store.sizes.memtables_bytes_max + store.kept.bytes_max();
    let mut number = 0u64;
    while (store.pool.bytes_in_use() as u64) < most + store.sizes.memory_budget {
        items.put(number.to_be_bytes(), [7; 1000]).unwrap();
        number += 1;
        if number.is_multiple_of(32) {
            held.push(items.state().read.load_full());
        }
        if number.is_multiple_of(1024) {
            db.wait_idle().unwrap();
        }
        assert!(number < 20_000);
    }
    db.wait_idle().unwrap();
    store.look_at_kept();
    let done = AtomicU64::new(0);
    let took = thread::scope(|scope| {
        for writer in 0..2u64 {
            let (db, items, done) = (&db, &items, &done);
            scope.spawn(move || {
                let mut batch = Batch::new();
                for part in 0..200u64 {
                    batch.put(items, (writer << 32 | part).to_be_bytes(), [7; 1000]);
                }
                while done.load(Ordering::SeqCst) == 0 {
                    db.write(&batch).unwrap();
                }
            });
        }
        let from = Instant::now();
        for number in 0..100u64 {
            items.put(number.to_be_bytes(), [7; 20]).unwrap();
        }
        done.store(1, Ordering::SeqCst);
        from.elapsed()
    });
    assert!(took < Duration::from_secs(3), "{took:?} for a hundred small writes");
}

/// A commit that panicked left the version of another one that never became visible: no condition on that key held, and
/// conditional writes of it were retried indefinitely.
#[test]
fn a_conditional_write_of_a_poisoned_store_ends() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("key", "old").unwrap();
    assert!(items.insert_if_absent("other", "1").unwrap());
    let store = items.store();
    let mut payload = Vec::new();
    encode_operation(&mut payload, items.state().id, EntryKind::Put, b"a", b"b");
    let ((begun, has_begun), (go, goes)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let panics = scope.spawn(move || {
            let apply = |_| {
                begun.send(()).unwrap();
                goes.recv().unwrap();
                panic!("half-way");
            };
            let (payload, durability) = (Payload::Whole(&payload), Durability::Buffered);
            let batch = commit::Batch { payload, count: 1, durability, own: None };
            store.committer.commit(batch, || true, || Ok(()), apply)
        });
        has_begun.recv().unwrap();
        let put = scope.spawn(|| items.put("key", "new"));
        let newest = || {
            let read = items.state().read.load();
            read.active.memtable.get(b"key", Seqno::MAX).unwrap().value.to_vec()
        };
        while newest() != b"new" {
            thread::yield_now();
        }
        go.send(()).unwrap();
        assert!(panics.join().is_err());
        assert!(matches!(put.join().unwrap(), Err(Error::Poisoned { .. })));
    });
    store.panicked("a commit panicked half-way");
    assert_eq!(items.get("key").unwrap().unwrap(), b"old");
    assert!(matches!(items.update_if_present("key", "1"), Err(Error::Poisoned { .. })));
    assert!(matches!(items.take("key"), Err(Error::Poisoned { .. })));
    let mut batch = db.batch();
    batch.require_present(&items, "key");
    assert!(matches!(batch.commit(), Err(Error::Poisoned { .. })));
}
