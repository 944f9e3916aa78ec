//! Code of the user's that panics, blocks or calls back, and panics of the store's own: each is told by name to
//! those whom it concerns, and nobody waits forever.
//!
//! A panic in a merge operator or a listener once ended the background thread that it happened on: writers of
//! all keyspaces hung without an error, `wait_idle` never returned, and `sync` said that all was well.

#[macro_use]
mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use common::{Calls, WatchedVfs, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{
    Builder, Database, Durability, Error, Event, Keyspace, KeyspaceOptions, MergeOperator, Result,
    TreeKind,
};

of_every_kind! {
    a_panic_of_an_operator_is_an_error_of_its_key_alone
    an_operator_that_panics_while_a_store_is_opened_loses_nothing
    an_operator_may_call_the_store_and_is_refused_what_would_wait
    a_listener_that_panics_harms_nothing a_listener_that_blocks_holds_up_nobody
    a_listener_may_call_the_store
    a_panic_in_the_background_poisons_the_store_and_nobody_waits
    a_panic_in_a_sync_is_told_to_all_who_wait_for_it
}

/// Long enough for anything on a busy machine; what hangs is found by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Calls `f` on a thread of its own and fails if it does not return.
fn soon<R: Send + 'static>(what: &str, f: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(f());
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what} panicked"),
    }
}

/// Appends operands, unless one says otherwise.
#[derive(Default)]
struct Moody {
    calls: AtomicU64,
    call_back: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl MergeOperator for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, String> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if let Some(call_back) = self.call_back.get() {
            call_back();
        }
        assert!(!operands.contains(&&b"panic"[..]), "this operand again");
        Ok([existing.unwrap_or_default(), &operands.concat()].concat())
    }
}

fn builder(vfs: &MemoryVfs, operator: &Arc<Moody>) -> Builder {
    let operator: Arc<dyn MergeOperator> = Arc::<Moody>::clone(operator);
    Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(16 << 10)
        .background_threads(2)
        .merge_operator(operator)
}

fn moody(kind: TreeKind) -> KeyspaceOptions {
    KeyspaceOptions::new(kind).merge_operator("moody")
}

/// Enough for several memtables.
fn fill(keyspace: &Keyspace) -> Result<()> {
    (0..1000u64).try_for_each(|number| keyspace.put(number.to_be_bytes(), [7; 100]))
}

#[track_caller]
fn assert_told(result: &Result<impl std::fmt::Debug>, keyspace: &str) {
    assert!(
        matches!(result, Err(Error::Merge { keyspace: of, operator, what, .. })
            if operator == "moody" && what.contains("panicked") && of == keyspace
                && what.contains("this operand again")),
        "{result:?}"
    );
}

fn a_panic_of_an_operator_is_an_error_of_its_key_alone(kind: TreeKind) {
    let (vfs, operator) = (MemoryVfs::new(), Arc::new(Moody::default()));
    let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
    let events = Arc::clone(&heard);
    let db = builder(&vfs, &operator)
        .events(Arc::new(move |event: &Event| events.lock().unwrap().push(event.clone())))
        .open()
        .unwrap();
    let bad = db.keyspace("bad", moody(kind)).unwrap();
    let good = db.keyspace("good", moody(kind)).unwrap();
    // On a base, so that folding it is the background's work too.
    for key in ["a", "k", "z"] {
        bad.put(key, "base").unwrap();
        bad.merge(key, if key == "k" { "panic" } else { "+" }).unwrap();
    }
    let (all_bad, all_good, store) = (bad.clone(), good.clone(), db.clone());
    soon("writing and packing", move || {
        for keyspace in [&all_bad, &all_good] {
            fill(keyspace).unwrap();
            keyspace.flush().unwrap();
            keyspace.compact(..).unwrap();
        }
        store.sync().unwrap();
    });
    let store = db.clone();
    let idle = soon("wait_idle", move || store.wait_idle());
    assert_told(&idle, "bad");
    let store = db.clone();
    soon("wait_idle again", move || store.wait_idle()).unwrap();
    // Whoever reads that key is told; whoever reads another is not.
    let check = |bad: &Keyspace, good: &Keyspace| {
        assert_told(&bad.get("k"), "bad");
        assert_told(&bad.multi_get(["a", "k"]), "bad");
        assert_eq!(bad.get("a").unwrap().as_deref(), Some(&b"base+"[..]));
        assert_eq!(bad.get("z").unwrap().as_deref(), Some(&b"base+"[..]));
        let first = bad.iter().find(Result::is_err);
        assert_told(&first.unwrap(), "bad");
        assert_eq!(good.iter().filter(Result::is_ok).count(), 1000);
    };
    check(&bad, &good);
    let keyspaces = db.stats().keyspaces;
    let panics = |name| keyspaces.iter().find(|it| it.name == name).unwrap().operator_panics;
    assert!(panics("bad") > 3 && panics("good") == 0, "{keyspaces:?}");
    bad.put("k", "anew").unwrap();
    assert_eq!(bad.get("k").unwrap().as_deref(), Some(&b"anew"[..]));
    bad.merge("k", "panic").unwrap();
    drop((bad, good));
    db.close().unwrap();
    let events = heard.lock().unwrap();
    let told = |event: &&Event| matches!(event, Event::Error { error: Error::Merge { .. } });
    assert!(events.iter().any(|event| told(&event)), "{events:?}");
    drop(events);
    let db = builder(&vfs, &operator).open().unwrap();
    let [bad, good] = ["bad", "good"].map(|name| db.existing_keyspace(name).unwrap());
    check(&bad, &good);
}

/// Opening replays the journal, and packs what does not fit into memory.
fn an_operator_that_panics_while_a_store_is_opened_loses_nothing(kind: TreeKind) {
    let (vfs, operator) = (MemoryVfs::new(), Arc::new(Moody::default()));
    let open = || builder(&vfs, &operator).memtable_bytes(256 << 10).open();
    let db = open().unwrap();
    let items = db.keyspace("items", moody(kind)).unwrap();
    items.put("k", "base").unwrap();
    items.merge("k", "panic").unwrap();
    (0..3000u64).for_each(|number| items.put(number.to_be_bytes(), [7; 100]).unwrap());
    drop(items);
    db.close().unwrap();
    let db = soon("opening", {
        let (vfs, operator) = (vfs.clone(), Arc::clone(&operator));
        move || builder(&vfs, &operator).memtable_bytes(1 << 10).open().unwrap()
    });
    let items = db.existing_keyspace("items").unwrap();
    assert_told(&items.get("k"), "items");
    assert_eq!(items.get(7u64.to_be_bytes()).unwrap().as_deref(), Some(&[7; 100][..]));
}

fn an_operator_may_call_the_store_and_is_refused_what_would_wait(kind: TreeKind) {
    let (vfs, operator) = (MemoryVfs::new(), Arc::new(Moody::default()));
    let db = builder(&vfs, &operator).open().unwrap();
    let items = db.keyspace("items", moody(kind)).unwrap();
    let notes = db.keyspace("notes", KeyspaceOptions::new(kind)).unwrap();
    items.put("base", "1").unwrap();
    let refused = Arc::new(AtomicU64::new(0));
    let (store, other, own, count) =
        (db.clone(), notes.clone(), items.clone(), Arc::clone(&refused));
    let call_back = move || {
        assert_eq!(own.get("base").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(other.iter().filter(Result::is_err).count(), 0);
        // There may be no room at the moment.
        let _ = other.put("note", [1; 50]);
        for result in [store.wait_idle(), other.flush(), store.clone().close()] {
            assert!(
                matches!(&result, Err(Error::InvalidArgument { what }) if what.contains("inside"))
            );
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    assert!(operator.call_back.set(Box::new(call_back)).is_ok());
    for round in 0..20u64 {
        items.put("key", "+").unwrap();
        items.merge("key", "1").unwrap();
        items.merge("key", "2").unwrap();
        items.put(round.to_be_bytes(), vec![0; 3000]).unwrap();
    }
    assert_eq!(items.get("key").unwrap().as_deref(), Some(&b"+12"[..]));
    let all = items.clone();
    soon("compacting", move || all.compact(..).unwrap());
    let store = db.clone();
    soon("wait_idle", move || store.wait_idle().unwrap());
    assert_eq!(db.stats().keyspaces.iter().map(|k| k.operator_panics).sum::<u64>(), 0);
    assert!(refused.load(Ordering::SeqCst) >= 6);
}

fn a_listener_that_panics_harms_nothing(kind: TreeKind) {
    let (vfs, operator) = (MemoryVfs::new(), Arc::default());
    let db = builder(&vfs, &operator)
        .events(Arc::new(|event: &Event| panic!("not in the mood for {event:?}")))
        .open()
        .unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let (all, store) = (items.clone(), db.clone());
    soon("writing", move || {
        fill(&all).unwrap();
        all.compact(..).unwrap();
        store.wait_idle().unwrap();
        store.sync().unwrap();
    });
    assert_eq!(items.iter().filter(Result::is_ok).count(), 1000);
    let store = db.clone();
    let told = soon("the listener", move || {
        loop {
            let stats = store.stats();
            if stats.listener_panics >= 2 {
                return stats.listener_first_panic;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(told.is_some_and(|told| told.starts_with("not in the mood for")));
    drop(items);
    soon("closing", move || db.close().unwrap());
}

fn a_listener_that_blocks_holds_up_nobody(kind: TreeKind) {
    let (vfs, operator) = (MemoryVfs::new(), Arc::default());
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let heard = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&heard);
    let db = builder(&vfs, &operator)
        .events(Arc::new(move |_: &Event| {
            let _ = blocked.lock().unwrap().recv();
            count.fetch_add(1, Ordering::SeqCst);
        }))
        .open()
        .unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let (all, store) = (items.clone(), db.clone());
    soon("writing", move || {
        fill(&all).unwrap();
        all.compact(..).unwrap();
        store.wait_idle().unwrap();
    });
    assert_eq!(heard.load(Ordering::SeqCst), 0);
    drop((release, items));
    soon("closing", move || db.close().unwrap());
    assert!(heard.load(Ordering::SeqCst) > 1, "closing waits for what the listener has not heard");
}

fn a_listener_may_call_the_store(kind: TreeKind) {
    let (vfs, operator) = (MemoryVfs::new(), Arc::default());
    let store: Arc<Mutex<Option<(Database, Keyspace)>>> = Arc::default();
    let (mine, calls) = (Arc::clone(&store), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&calls);
    let db = builder(&vfs, &operator)
        .events(Arc::new(move |event: &Event| {
            let Event::Flush { .. } = event else { return };
            let Some((db, notes)) = mine.lock().unwrap().clone() else { return };
            let number = count.fetch_add(1, Ordering::SeqCst);
            notes.put(number.to_be_bytes(), [1; 2000]).unwrap();
            if number < 3 {
                notes.flush().unwrap();
                db.wait_idle().unwrap();
                db.sync().unwrap();
            }
        }))
        .open()
        .unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let notes = db.keyspace("notes", KeyspaceOptions::new(kind)).unwrap();
    *store.lock().unwrap() = Some((db.clone(), notes.clone()));
    let all = items.clone();
    soon("writing", move || {
        fill(&all).unwrap();
        all.flush().unwrap();
    });
    soon("the listener", move || {
        while notes.iter().filter(Result::is_ok).count() < 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(calls.load(Ordering::SeqCst) >= 4);
    *store.lock().unwrap() = None;
    drop(items);
    soon("closing", move || db.close().unwrap());
}

#[track_caller]
fn assert_poisoned(result: &Result<()>) {
    assert!(
        matches!(result, Err(Error::Poisoned { reason }) if reason.contains("panicked")),
        "{result:?}"
    );
}

/// The store's own code, here its file system, panics at every place in the background that there is.
fn a_panic_in_the_background_poisons_the_store_and_nobody_waits(kind: TreeKind) {
    for place in (1..200).step_by(11) {
        let memory = MemoryVfs::new();
        let vfs = WatchedVfs::new(memory.clone());
        let db = builder(&memory, &Arc::default()).vfs(Arc::new(vfs.clone())).open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let other = db.keyspace("other", KeyspaceOptions::new(kind)).unwrap();
        items.put("key", "value").unwrap();
        vfs.panic(Calls::Changes, place, 1);
        let writers = [items.clone(), other.clone()].map(|keyspace| {
            move || -> Result<()> {
                (0..1_000_000u64).try_for_each(|n| keyspace.put(n.to_be_bytes(), [7; 100]))
            }
        });
        // A writer may be the one that meets the bug: that is its own panic, and poisons as well.
        let writers = writers
            .map(|writer| move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(writer)));
        let [first, second] = writers.map(|writer| {
            let (sender, receiver) = mpsc::channel();
            std::thread::spawn(move || sender.send(writer()));
            receiver
        });
        for (name, writer) in [("the first writer", first), ("the second writer", second)] {
            let written = writer.recv_timeout(PATIENCE);
            let written = written.unwrap_or_else(|_| panic!("{name} hangs, place {place}"));
            if let Ok(written) = written {
                assert_poisoned(&written);
            }
        }
        let store = db.clone();
        assert_poisoned(&soon("wait_idle", move || store.wait_idle()));
        let (store, one) = (db.clone(), items.clone());
        assert_poisoned(&soon("sync", move || store.sync()));
        assert_poisoned(&soon("flush", move || one.flush()));
        assert_poisoned(&items.put("key", "another"));
        assert_eq!(items.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        vfs.mend();
        drop((items, other));
        assert_poisoned(&soon("closing", move || db.close()));
        // What was acknowledged is there again.
        let db = builder(&memory, &Arc::default()).open().unwrap();
        let items = db.existing_keyspace("items").unwrap();
        assert_eq!(items.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        drop(items);
        db.close().unwrap();
    }
}

fn a_panic_in_a_sync_is_told_to_all_who_wait_for_it(kind: TreeKind) {
    let memory = MemoryVfs::new();
    let vfs = WatchedVfs::new(memory.clone());
    let db = builder(&memory, &Arc::default()).vfs(Arc::new(vfs.clone())).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let results: Vec<_> = (0..6u64)
        .map(|number| {
            let (db, items, stop) = (db.clone(), items.clone(), Arc::clone(&stop));
            let (sender, receiver) = mpsc::channel();
            let commits = move || loop {
                let mut batch = db.batch().durability(Durability::Sync);
                batch.put(&items, number.to_be_bytes(), "value");
                if let Err(error) = batch.commit() {
                    break Err(error);
                }
                if stop.load(Ordering::SeqCst) {
                    break Ok(());
                }
            };
            // One may meet the bug itself, when it makes a segment of the journal.
            let commits = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(commits));
            std::thread::spawn(move || sender.send(commits()));
            receiver
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    vfs.panic(Calls::Syncs, 1, 1);
    let mut panicked = 0;
    for result in results {
        match result.recv_timeout(PATIENCE).expect("a commit hangs") {
            Ok(result) => assert_poisoned(&result),
            Err(_) => panicked += 1,
        }
    }
    assert!(panicked <= 1, "{panicked} panicked");
    stop.store(true, Ordering::SeqCst);
    vfs.mend();
    assert_poisoned(&soon("sync", move || db.sync()));
}
