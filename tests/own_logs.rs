//! Trees that keep numbered operations themselves, beside keyspaces that have theirs in the journal: damage, salvage,
//! quarantine, and random histories.
#![cfg(feature = "example")]

mod common;

use std::sync::Arc;

use common::{copy, files, flip, store_path};
use spinney::vfs::{MemoryVfs, Vfs};
use spinney::{Builder, CheckLevel, Database, Durability, Error, KeyspaceOptions, MIB, TreeKind};

const EXAMPLE: TreeKind = TreeKind::FOR_TESTS[0];

fn builder(vfs: &Arc<dyn Vfs>) -> Builder {
    Database::builder(store_path())
        .vfs(Arc::clone(vfs))
        .memory_budget(MIB)
        .memtable_bytes(4096)
        .deterministic(1)
}

fn named(vfs: &Arc<dyn Vfs>, ending: &str) -> Vec<(std::path::PathBuf, u64)> {
    let all = files(&**vfs, &store_path()).into_iter();
    all.filter(|(name, _)| name.ends_with(ending))
        .map(|(name, len)| (store_path().join(name), len))
        .collect()
}

/// A closed store: `own` has a log with some batches that its tree has not, `other` is `stb`.
fn store() -> Arc<dyn Vfs> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let db = builder(&vfs).open().unwrap();
    let own = db.keyspace("own", KeyspaceOptions::new(EXAMPLE)).unwrap();
    let other = db.keyspace("other", KeyspaceOptions::new(TreeKind::Stb)).unwrap();
    own.put("a", "1").unwrap();
    own.flush().unwrap();
    other.put("a", "1").unwrap();
    own.put("b", "2").unwrap();
    other.put("b", "2").unwrap();
    own.put("c", "3").unwrap();
    drop((own, other));
    db.close().unwrap();
    vfs
}

/// What `salvage_journal` has opened once can be opened without it afterwards.
#[test]
fn after_a_salvage_of_a_damaged_log_header_the_store_opens() {
    let vfs = store();
    let (log, _) = named(&vfs, ".operations").pop().unwrap();
    flip(&*vfs, &log, 20);
    let error = builder(&vfs).open().unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == log), "{error}");
    let db = builder(&vfs).salvage_journal(true).open().unwrap();
    db.existing_keyspace("own").unwrap().flush().unwrap();
    db.existing_keyspace("other").unwrap().flush().unwrap();
    db.wait_idle().unwrap();
    db.close().unwrap();
    let opened = builder(&vfs).open();
    assert!(opened.is_ok(), "after the salvage: {}", opened.unwrap_err());
}

/// A log that is missing is damage by name, and can be salvaged, as a segment of the journal can.
#[test]
fn a_missing_log_is_damage() {
    let vfs = store();
    let (log, _) = named(&vfs, ".operations").pop().unwrap();
    vfs.remove(&log).unwrap();
    let error = builder(&vfs).open().unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == log), "{error:?}");
}

#[test]
fn a_missing_log_can_be_salvaged() {
    let vfs = store();
    let (log, _) = named(&vfs, ".operations").pop().unwrap();
    vfs.remove(&log).unwrap();
    let opened = builder(&vfs).salvage_journal(true).open();
    assert!(opened.is_ok(), "{:?}", opened.unwrap_err());
}

/// Everything is in the trees and below the floor: a log that nobody needs any more keeps the store from being opened.
#[test]
fn damage_in_a_log_that_is_not_needed_does_not_matter() {
    let vfs = store();
    let db = builder(&vfs).open().unwrap();
    db.existing_keyspace("own").unwrap().flush().unwrap();
    db.existing_keyspace("other").unwrap().flush().unwrap();
    db.wait_idle().unwrap();
    db.checkpoint("/copy").unwrap();
    db.close().unwrap();
    let logs: Vec<String> = files(&*vfs, std::path::Path::new("/copy"))
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.ends_with(".operations"))
        .collect();
    assert!(!logs.is_empty());
    let log = std::path::Path::new("/copy").join(&logs[0]);
    flip(&*vfs, &log, 20);
    let open = Database::builder("/copy").vfs(Arc::clone(&vfs)).deterministic(1).open();
    assert!(open.is_ok(), "{}", open.unwrap_err());
}

/// What one keeps of the numbers another needs from the journal. Neither can go before the other's files are back, and
/// the answer says so.
#[test]
fn of_two_quarantined_keyspaces_with_logs_none_can_be_dropped() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let db = builder(&vfs).open().unwrap();
    let other = db.keyspace("other", KeyspaceOptions::new(TreeKind::Stb)).unwrap();
    for name in ["one", "two"] {
        let own = db.keyspace(name, KeyspaceOptions::new(EXAMPLE)).unwrap();
        own.put("a", "1").unwrap();
        own.flush().unwrap();
        own.put("b", "1").unwrap();
        other.put(name, "1").unwrap();
    }
    drop(other);
    db.close().unwrap();
    for (pool, _) in named(&vfs, ".pool") {
        flip(&*vfs, &pool, 4096 + 20);
        flip(&*vfs, &pool, 20);
    }
    let db = builder(&vfs).open().unwrap();
    assert_eq!(db.recovery().keyspaces_not_opened, ["one", "two"]);
    assert!(db.existing_keyspace("other").unwrap().get("two").unwrap().is_some());
    for (name, other) in [("one", "two"), ("two", "one")] {
        let error = db.drop_keyspace(name).unwrap_err();
        assert!(
            matches!(error, Error::Conflict { .. }) && error.to_string().contains(other),
            "{error}"
        );
    }
}

/// Random histories of a mixed store, each ended by a kill or a close.
#[test]
fn mixed() {
    for seed in 0..40 {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}

type Model =
    std::collections::BTreeMap<String, (TreeKind, std::collections::BTreeMap<Vec<u8>, Vec<u8>>)>;

fn verify(db: &Database, model: &Model, at: &str) {
    assert!(db.recovery().keyspaces_not_opened.is_empty(), "{at}: {:?}", db.recovery());
    let names: Vec<&String> = model.keys().collect();
    assert!(
        db.keyspaces().iter().collect::<Vec<_>>() == names,
        "{at}: {:?} {names:?}",
        db.keyspaces()
    );
    for (name, (_, wanted)) in model {
        let keyspace = db.existing_keyspace(name).unwrap();
        let found: Vec<(Vec<u8>, Vec<u8>)> = keyspace
            .iter()
            .map(|pair| {
                let (key, value) = pair.unwrap();
                (key.to_vec(), value.to_vec())
            })
            .collect();
        let wanted: Vec<_> = wanted.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(found == wanted, "{at}: {name} has {} of {}", found.len(), wanted.len());
    }
}

fn run(seed: u64) {
    let mut random = common::Random(seed + 1);
    let mut vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let mut model = Model::new();
    let kinds = [EXAMPLE, TreeKind::Stb, TreeKind::Flsm, EXAMPLE];
    let shards = 1 + random.below(4) as usize;
    for life in 0..8 {
        let open = |vfs: &Arc<dyn Vfs>| {
            builder(vfs).deterministic(seed * 100 + life).journal_shards(shards).open()
        };
        let db = open(&vfs).unwrap_or_else(|error| panic!("seed {seed} life {life}: {error}"));
        verify(&db, &model, &format!("seed {seed} life {life}"));
        let mut snapshots = Vec::new();
        for _ in 0..random.below(250) {
            let at = |n: u64| format!("k{n}");
            match random.below(100) {
                0..3 => {
                    let n = random.below(5);
                    let kind = kinds[n as usize % 4];
                    db.keyspace(&at(n), KeyspaceOptions::new(kind).merge_operator("append"))
                        .unwrap();
                    model.entry(at(n)).or_insert((kind, Default::default()));
                }
                3..5 => {
                    let name = at(random.below(5));
                    let there = model.remove(&name).is_some();
                    let dropped = db.drop_keyspace(&name);
                    assert!(dropped.is_ok() == there, "{dropped:?}");
                }
                5..12 => {
                    let name = at(random.below(5));
                    if model.contains_key(&name) {
                        db.existing_keyspace(&name).unwrap().flush().unwrap();
                    }
                }
                12..16 => db.wait_idle().unwrap(),
                16..30 => drop(db.step().unwrap()),
                30..32 => db.sync().unwrap(),
                32..34 => snapshots.push(db.snapshot()),
                34 => snapshots.clear(),
                35 => {
                    let dir = format!("/copy-{life}-{}", random.below(1 << 40));
                    db.checkpoint(&dir).unwrap();
                    let copied = Database::builder(&dir)
                        .vfs(Arc::clone(&vfs))
                        .deterministic(1)
                        .open()
                        .unwrap();
                    verify(&copied, &model, &format!("seed {seed} life {life}: checkpoint"));
                    for name in model.keys() {
                        let keyspace = copied.existing_keyspace(name).unwrap();
                        keyspace.put("x", "y").unwrap();
                        keyspace.flush().unwrap();
                        keyspace.put("x", "z").unwrap();
                    }
                    copied.checkpoint(format!("{dir}-2")).unwrap();
                    drop(copied);
                    let again = Database::builder(&dir)
                        .vfs(Arc::clone(&vfs))
                        .deterministic(1)
                        .open()
                        .unwrap();
                    for name in model.keys() {
                        assert_eq!(
                            &*again.existing_keyspace(name).unwrap().get("x").unwrap().unwrap(),
                            b"z"
                        );
                    }
                    drop(again);
                    let again = Database::builder(format!("{dir}-2"))
                        .vfs(Arc::clone(&vfs))
                        .deterministic(1)
                        .open()
                        .unwrap();
                    for name in model.keys() {
                        assert_eq!(
                            &*again.existing_keyspace(name).unwrap().get("x").unwrap().unwrap(),
                            b"z"
                        );
                    }
                }
                n => {
                    if model.is_empty() {
                        continue;
                    }
                    let mut batch = db.batch();
                    if random.below(8) == 0 {
                        batch = batch.durability(Durability::Sync);
                    }
                    let one = at(random.below(5));
                    for _ in 0..=random.below(if n < 50 { 6 } else { 1 }) {
                        let name = if n < 42 { at(random.below(5)) } else { one.clone() };
                        let Some((_, map)) = model.get_mut(&name) else { continue };
                        let keyspace = db.existing_keyspace(&name).unwrap();
                        let key = format!("{:03}", random.below(120)).into_bytes();
                        let len = match random.below(40) {
                            0 => 20_000,
                            1 => 70_000,
                            2 => 3000,
                            _ => random.below(200),
                        };
                        let value = random.bytes(len as usize);
                        match random.below(10) {
                            0..2 => {
                                batch.delete(&keyspace, key.clone());
                                map.remove(&key);
                            }
                            2 => {
                                batch.merge(&keyspace, key.clone(), value.clone());
                                map.entry(key).or_default().extend(value);
                            }
                            _ => {
                                batch.put(&keyspace, key.clone(), value.clone());
                                map.insert(key, value);
                            }
                        }
                    }
                    batch.commit().unwrap();
                }
            }
        }
        verify(&db, &model, &format!("seed {seed} life {life} end"));
        let report = db.check(CheckLevel::Full).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        snapshots.clear();
        let killed: Arc<dyn Vfs> = Arc::new(copy(&*vfs, &store_path()));
        if random.below(3) == 0 {
            db.close().unwrap();
            if random.below(2) == 0 {
                let read = builder(&vfs).open_read_only().unwrap();
                verify(&read, &model, &format!("seed {seed} life {life} read only"));
            }
        } else {
            drop(db);
            vfs = killed;
        }
    }
}

/// A mixed store whose `own` keyspace is quarantined while its log is whole, over several lives.
#[test]
fn a_quarantined_keyspace_with_a_log_over_several_lives() {
    for seed in 0..40 {
        let mut random = common::Random(seed + 77);
        let mut vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let db = builder(&vfs).open().unwrap();
        let own = db.keyspace("own", KeyspaceOptions::new(EXAMPLE)).unwrap();
        let other = db.keyspace("other", KeyspaceOptions::new(EXAMPLE)).unwrap();
        let stb = db.keyspace("stb", KeyspaceOptions::new(TreeKind::Stb)).unwrap();
        own.put("a", "1").unwrap();
        own.flush().unwrap();
        other.put("a", "1").unwrap();
        other.flush().unwrap();
        let mut n = 0u32;
        for _ in 0..random.below(60) {
            n += 1;
            [&own, &other, &stb][random.below(3) as usize]
                .put(n.to_be_bytes(), random.bytes(100))
                .unwrap();
        }
        let own_before: Vec<_> = own.iter().map(|pair| pair.unwrap()).collect();
        let mut others = (other.iter().count(), stb.iter().count());
        let pool = {
            let pools = named(&vfs, ".pool");
            pools[0].0.clone()
        };
        drop((own, other, stb));
        let clean = random.below(2) == 0;
        let killed: Arc<dyn Vfs> = Arc::new(copy(&*vfs, &store_path()));
        db.close().unwrap();
        if !clean {
            vfs = killed;
        }
        flip(&*vfs, &pool, 4096 + 20);
        let drops = random.below(2) == 0;
        for life in 0..4 {
            let db = builder(&vfs).deterministic(life).open().unwrap();
            if drops && life > 1 {
                if life == 2 {
                    db.drop_keyspace("own").unwrap();
                    assert_eq!(db.keyspaces(), ["other", "stb"]);
                }
            } else {
                assert_eq!(db.recovery().keyspaces_not_opened, ["own"], "seed {seed}");
            }
            let other = db.existing_keyspace("other").unwrap();
            let stb = db.existing_keyspace("stb").unwrap();
            assert_eq!(
                (other.iter().count(), stb.iter().count()),
                others,
                "seed {seed} life {life}"
            );
            for _ in 0..random.below(200) {
                n += 1;
                match random.below(20) {
                    0 => other.flush().unwrap(),
                    1 => stb.flush().unwrap(),
                    2 => db.wait_idle().unwrap(),
                    3..10 => {
                        others.0 += 1;
                        other.put(n.to_be_bytes(), random.bytes(500)).unwrap()
                    }
                    _ => {
                        others.1 += 1;
                        stb.put(n.to_be_bytes(), random.bytes(500)).unwrap()
                    }
                }
            }
            drop((other, stb));
            let killed: Arc<dyn Vfs> = Arc::new(copy(&*vfs, &store_path()));
            db.close().unwrap();
            if random.below(2) == 0 {
                vfs = killed;
            }
        }
        if !drops {
            flip(&*vfs, &pool, 4096 + 20);
            let db = builder(&vfs).open().unwrap();
            let own = db.existing_keyspace("own").unwrap();
            let found: Vec<_> = own.iter().map(|pair| pair.unwrap()).collect();
            assert_eq!(found.len(), own_before.len(), "seed {seed}");
            assert!(db.check(CheckLevel::Full).unwrap().problems.is_empty());
        }
    }
}

/// A repair of a mixed store has what the other keyspaces have in the journal between the log's numbers.
#[test]
fn a_repair_has_the_others() {
    let vfs = store();
    let db = builder(&vfs).open().unwrap();
    db.existing_keyspace("own").unwrap().put("d", "4").unwrap();
    db.existing_keyspace("other").unwrap().put("c", "3").unwrap();
    db.existing_keyspace("own").unwrap().put("e", "4").unwrap();
    let left: Arc<dyn Vfs> = Arc::new(copy(&*vfs, &store_path()));
    drop(db);
    let report = spinney::Repair::new(store_path())
        .vfs(Arc::clone(&left))
        .memory_budget(2 * MIB)
        .deterministic(6)
        .into_new("/repaired");
    report.unwrap();
    let db = Database::builder("/repaired").vfs(left).deterministic(1).open().unwrap();
    assert_eq!(db.existing_keyspace("other").unwrap().iter().count(), 3);
}

/// Threads write, flush, drop, make, copy, and iterate over keyspaces of all kinds: nothing hangs.
#[test]
fn threads_mixed() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let open = || {
        Database::builder(store_path())
            .vfs(Arc::clone(&vfs))
            .memory_budget(MIB)
            .memtable_bytes(16 << 10)
            .background_threads(2)
            .open()
            .unwrap()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
    let mut round = 0;
    while std::time::Instant::now() < until {
        round += 1;
        let db = open();
        assert!(db.recovery().stopped.is_none(), "{:?}", db.recovery());
        let kinds = [EXAMPLE, TreeKind::Stb, TreeKind::Flsm, EXAMPLE];
        let keep = db.keyspace("keep", KeyspaceOptions::new(EXAMPLE)).unwrap();
        let before = keep.iter().count();
        let added = std::sync::atomic::AtomicUsize::new(0);
        let (db, keep, vfs) = (&db, &keep, &vfs);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let added = &added;
                scope.spawn(move || {
                    let mut random = common::Random(round * 100 + thread);
                    for i in 0..150u64 {
                        let n = random.below(4);
                        let name = format!("k{n}");
                        let Ok(keyspace) =
                            db.keyspace(&name, KeyspaceOptions::new(kinds[n as usize]))
                        else {
                            continue;
                        };
                        let closed = |result: spinney::Result<()>| match result {
                            Ok(()) | Err(Error::Closed { .. } | Error::NotFound { .. }) => {}
                            Err(error) => panic!("{error}"),
                        };
                        match random.below(40) {
                            0 => closed(db.drop_keyspace(&name)),
                            1 => closed(keyspace.flush()),
                            2 => closed(keep.flush()),
                            3 => {
                                let dir = format!("/copy-{round}-{thread}-{i}");
                                db.checkpoint(&dir).unwrap();
                                let copied =
                                    Database::builder(&dir).vfs(Arc::clone(vfs)).open().unwrap();
                                assert!(copied.recovery().stopped.is_none());
                                drop(copied);
                            }
                            4 => drop(keyspace.iter().take(20).count()),
                            5 => closed(db.sync()),
                            6..20 => {
                                keep.put(
                                    [round.to_be_bytes(), thread.to_be_bytes(), i.to_be_bytes()]
                                        .concat(),
                                    random.bytes(300),
                                )
                                .unwrap();
                                added.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            }
                            n => {
                                let mut batch = db.batch();
                                if n == 30 {
                                    batch = batch.durability(Durability::Sync);
                                }
                                batch.put(&keyspace, i.to_be_bytes(), random.bytes(300));
                                if n % 3 == 0 {
                                    batch.put(
                                        keep,
                                        [
                                            round.to_be_bytes(),
                                            thread.to_be_bytes(),
                                            i.to_be_bytes(),
                                        ]
                                        .concat(),
                                        "x",
                                    );
                                }
                                match batch.commit() {
                                    Ok(()) if n % 3 == 0 => {
                                        added.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                                    }
                                    result => closed(result),
                                }
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(keep.iter().count(), before + added.load(std::sync::atomic::Ordering::SeqCst));
    }
}

/// Damage in a batch of a log: the salvage drops what is behind it, for good, and the store opens afterwards.
#[test]
fn after_a_salvage_of_a_damaged_batch_the_store_opens() {
    for at in [40, 50, 65, 72, 80, 100, 105, 120] {
        let vfs = store();
        let (log, _) = named(&vfs, ".operations").pop().unwrap();
        flip(&*vfs, &log, at);
        let opened = builder(&vfs).open();
        if opened.is_ok() {
            continue;
        }
        let db = builder(&vfs).salvage_journal(true).open().unwrap();
        let counts = |db: &Database| {
            ["own", "other"].map(|name| db.existing_keyspace(name).unwrap().iter().count())
        };
        let mut before = counts(&db);
        for name in ["own", "other"] {
            let keyspace = db.existing_keyspace(name).unwrap();
            keyspace.put("x", "1").unwrap();
        }
        before = before.map(|count| count + 1);
        for life in 0..4 {
            let killed: Arc<dyn Vfs> = Arc::new(copy(&*vfs, &store_path()));
            let again = builder(&killed).open().unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(counts(&again), before);
            if life == 2 {
                again.existing_keyspace("own").unwrap().flush().unwrap();
                again.wait_idle().unwrap();
            }
            again.close().unwrap();
            let again = builder(&killed).open().unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(counts(&again), before);
        }
    }
}

/// The log's files of earlier epochs do not gather.
#[test]
fn logs_are_used_after_many_lives() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    for life in 0..12u32 {
        let db = builder(&vfs).open().unwrap();
        let own = db.keyspace("own", KeyspaceOptions::new(EXAMPLE)).unwrap();
        for i in 0..40u32 {
            own.put((life * 1000 + i).to_be_bytes(), [7; 900]).unwrap();
            if i % 10 == 0 {
                own.flush().unwrap();
            }
        }
        own.flush().unwrap();
        db.wait_idle().unwrap();
        let logs = named(&vfs, ".operations").len();
        assert!((1..=4).contains(&logs), "{logs} in life {life}");
        drop(own);
        db.close().unwrap();
    }
}
