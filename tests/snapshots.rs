//! A snapshot is a prefix of the order of commits and an iterator reads one, whatever writers, flushes,
//! compactions and splits do meanwhile; and what they pin is given back.

#[macro_use]
mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Random, pairs, with_fanout};
use spinney::{
    CheckLevel, Database, Durability, Keyspace, KeyspaceOptions, MIB, Snapshot, TreeKind,
};

of_every_kind! {
    snapshots_and_iterators_read_one_prefix_while_writers_go_on
    batches_over_two_keyspaces_are_whole_in_every_snapshot
    what_snapshots_and_iterators_pin_is_given_back
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const WRITERS: u64 = 4;
/// Keys of each writer: its `c`th commit writes number `c` to key `c` modulo this.
const KEYS: u64 = 700;
const RUN: Duration = Duration::from_millis(2500);

fn open(dir: &Path) -> Database {
    Database::builder(dir)
        .memory_budget(4 * MIB)
        .memtable_bytes(64 << 10)
        .background_threads(2)
        .open()
        .unwrap()
}

fn key(writer: u64, slot: u64) -> Vec<u8> {
    // Writers' keys lie between one another.
    format!("{:04}/{writer}", slot * 7919 % KEYS).into_bytes()
}

fn value(writer: u64, commit: u64) -> Vec<u8> {
    let mut value = commit.to_le_bytes().to_vec();
    let len = if commit.is_multiple_of(997) { 20_000 } else { 40 + commit as usize % 200 };
    value.resize(len, writer as u8);
    value
}

/// The number of commits of each writer that a scan shows; what it shows must be just these.
fn commits_seen(found: &[(Vec<u8>, Vec<u8>)]) -> [u64; WRITERS as usize] {
    let mut numbers: [Vec<u64>; WRITERS as usize] = Default::default();
    for (found_key, found_value) in found {
        let writer = u64::from(found_key[found_key.len() - 1] - b'0');
        let commit = u64::from_le_bytes(found_value[..8].try_into().unwrap());
        assert_eq!(*found_key, key(writer, commit % KEYS), "a value under another's key");
        assert!(*found_value == value(writer, commit), "{writer} {commit}");
        numbers[writer as usize].push(commit);
    }
    numbers.map(|mut numbers| {
        numbers.sort_unstable();
        let commits = numbers.last().map_or(0, |last| last + 1);
        let expected = commits.saturating_sub(KEYS)..commits;
        assert!(numbers.iter().copied().eq(expected), "holes before {commits}: {numbers:?}");
        commits
    })
}

fn forward_and_back(snapshot: &Snapshot, keyspace: &Keyspace) -> Pairs {
    let found = pairs(snapshot.iter(keyspace));
    let mut back: Vec<_> = snapshot
        .iter(keyspace)
        .rev()
        .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect();
    back.reverse();
    assert!(found == back, "{} forward, {} back", found.len(), back.len());
    found
}

fn snapshots_and_iterators_read_one_prefix_while_writers_go_on(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let keyspace = db.keyspace("items", with_fanout(KeyspaceOptions::new(kind), 3)).unwrap();
    let stop = AtomicBool::new(false);
    let committed: [AtomicU64; WRITERS as usize] = Default::default();
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, keyspace, stop, committed) = (&db, &keyspace, &stop, &committed);
            scope.spawn(move || {
                for commit in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let (key, value) = (key(writer, commit % KEYS), value(writer, commit));
                    if commit % 500 == 3 {
                        let mut batch = db.batch().durability(Durability::Sync);
                        batch.put(keyspace, &key, &value);
                        batch.commit().unwrap();
                    } else {
                        keyspace.put(&key, &value).unwrap();
                    }
                    committed[writer as usize].store(commit + 1, Ordering::SeqCst);
                    // What has been written is read, by each way of reading.
                    match commit % 64 {
                        0 => assert!(*keyspace.get(&key).unwrap().unwrap() == value),
                        16 => {
                            let found = keyspace.range(&*key..=&*key).next().unwrap().unwrap();
                            assert!(*found.1 == value);
                        }
                        32 => {
                            let found = db.snapshot().get(keyspace, &key).unwrap();
                            assert!(*found.unwrap() == value);
                        }
                        48 => assert!(
                            *keyspace.multi_get([&key]).unwrap()[0].clone().unwrap() == value
                        ),
                        _ => {}
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut random = Random(1);
            while !stop.load(Ordering::Relaxed) {
                match random.below(3) {
                    0 => keyspace.flush().unwrap(),
                    1 => keyspace.compact("02".."03").unwrap(),
                    _ => keyspace.compact(..).unwrap(),
                }
                std::thread::sleep(Duration::from_millis(random.below(30)));
            }
        });
        for reader in 0..2 {
            let (db, keyspace, stop, committed, read) = (&db, &keyspace, &stop, &committed, &read);
            scope.spawn(move || {
                let mut random = Random(reader + 10);
                let mut before = [0; WRITERS as usize];
                let mut held: Vec<(Snapshot, Pairs)> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let acknowledged = committed.each_ref().map(|c| c.load(Ordering::SeqCst));
                    let snapshot = db.snapshot();
                    let iter = keyspace.iter();
                    let found = forward_and_back(&snapshot, keyspace);
                    let commits = commits_seen(&found);
                    for writer in 0..WRITERS as usize {
                        assert!(commits[writer] >= before[writer], "time has gone back");
                        assert!(commits[writer] >= acknowledged[writer], "an acknowledged one");
                    }
                    before = commits;
                    // The iterator is younger than the snapshot, and as whole.
                    let younger = commits_seen(&pairs(iter));
                    for writer in 0..WRITERS as usize {
                        assert!(younger[writer] >= commits[writer], "time has gone back");
                    }
                    for (key, value) in found.iter().step_by(97) {
                        assert!(*snapshot.get(keyspace, key).unwrap().unwrap() == **value);
                    }
                    held.push((snapshot, found));
                    if held.len() > 3 {
                        let (snapshot, found) = held.remove(random.below(4) as usize);
                        assert!(forward_and_back(&snapshot, keyspace) == found, "it has changed");
                    }
                    // Those before the first commit do not count.
                    read.fetch_add(u64::from(before.iter().sum::<u64>() > 0), Ordering::Relaxed);
                }
                for (snapshot, found) in held {
                    assert!(forward_and_back(&snapshot, keyspace) == found, "it has changed");
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < RUN {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let commits = commits_seen(&pairs(keyspace.iter()));
    println!("{commits:?} commits, {} snapshots", read.load(Ordering::Relaxed));
    assert_eq!(commits, committed.each_ref().map(|c| c.load(Ordering::SeqCst)));
    assert!(read.load(Ordering::Relaxed) > 3);
    assert!(db.stats().compaction.count > 3);
    db.wait_idle().unwrap();
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    drop(keyspace);
    db.close().unwrap();
    let db = open(dir.path());
    let keyspace = db.existing_keyspace("items").unwrap();
    assert_eq!(commits_seen(&pairs(keyspace.iter())), commits);
}

/// Money moves between accounts in two keyspaces; each snapshot has all of it, and so has a reopened
/// store.
fn batches_over_two_keyspaces_are_whole_in_every_snapshot(kind: TreeKind) {
    const ACCOUNTS: u64 = 300;
    const START: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let options = with_fanout(KeyspaceOptions::new(kind), 3).merge_operator("u64_add");
    let banks: Vec<Keyspace> =
        ["a", "b"].iter().map(|name| db.keyspace(name, options.clone()).unwrap()).collect();
    let mut batch = db.batch();
    for bank in &banks {
        for account in 0..ACCOUNTS * WRITERS {
            batch.put(bank, account.to_be_bytes(), START.to_le_bytes());
        }
    }
    batch.commit().unwrap();
    let sum = |iter: spinney::Iter| {
        iter.map(|pair| pair.unwrap().1)
            .map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()))
            .fold(0u64, u64::wrapping_add)
    };
    let all = 2 * ACCOUNTS * WRITERS * START;
    let stop = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, banks, stop) = (&db, &banks, &stop);
            scope.spawn(move || {
                let mut random = Random(writer);
                while !stop.load(Ordering::Relaxed) {
                    let amount = random.below(50);
                    let account =
                        |random: &mut Random| random.below(ACCOUNTS * WRITERS).to_be_bytes();
                    let mut batch = db.batch();
                    // Merges commute, so writers need not know of each other.
                    batch.merge(
                        &banks[0],
                        account(&mut random),
                        amount.wrapping_neg().to_le_bytes(),
                    );
                    batch.merge(&banks[1], account(&mut random), amount.to_le_bytes());
                    if random.below(2) == 0 {
                        batch.merge(&banks[0], account(&mut random), 1u64.to_le_bytes());
                        let back = 1u64.wrapping_neg().to_le_bytes();
                        batch.merge(&banks[1], account(&mut random), back);
                    }
                    if random.below(500) == 0 {
                        batch = batch.durability(Durability::Sync);
                    }
                    batch.commit().unwrap();
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < RUN {
            let snapshot = db.snapshot();
            let sums = banks.iter().map(|bank| sum(snapshot.iter(bank)));
            assert_eq!(sums.fold(0, u64::wrapping_add), all);
            let look = looks.fetch_add(1, Ordering::Relaxed) as usize;
            banks[look % 2].flush().unwrap();
            // After a flush of one, the same.
            let sums = banks.iter().rev().map(|bank| sum(snapshot.iter(bank)));
            assert_eq!(sums.fold(0, u64::wrapping_add), all);
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} commits, {looks:?} snapshots", db.stats().commits);
    let sums: Vec<u64> = banks.iter().map(|bank| sum(bank.iter())).collect();
    assert_eq!(sums.iter().copied().fold(0, u64::wrapping_add), all);
    drop((banks, db));
    let db = open(dir.path());
    let again: Vec<u64> =
        ["a", "b"].iter().map(|name| sum(db.existing_keyspace(name).unwrap().iter())).collect();
    assert_eq!(again, sums);
}

fn data_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with("journal"))
        .map(|entry| common::file_bytes(&entry).unwrap())
        .sum()
}

fn settle(db: &Database, keyspace: &Keyspace) {
    keyspace.compact(..).unwrap();
    db.wait_idle().unwrap();
}

fn what_snapshots_and_iterators_pin_is_given_back(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let write = |round: u8| {
        for number in 0..4000u64 {
            // Every hundredth goes to a blob file.
            let len = if number % 100 == 0 { 6000 } else { 200 };
            keyspace.put(number.to_be_bytes(), vec![round; len]).unwrap();
        }
        settle(&db, &keyspace);
        data_bytes(dir.path())
    };
    let once = write(0);
    // The indexes of `tph` have a key once, however many versions it has.
    let again = if kind == TreeKind::Tph { 4000 * 8 + 3960 * 200 + 40 * 6000 } else { once };
    let mut snapshots = Vec::new();
    for round in 1..=3 {
        snapshots.push(db.snapshot());
        let pinned = write(round);
        let least = once * 7 / 10 + again * u64::from(round) * 9 / 10;
        assert!(pinned > least, "{once} {round} {pinned}");
    }
    for (round, snapshot) in snapshots.iter().enumerate() {
        let found = pairs(snapshot.iter(&keyspace));
        assert_eq!(found.len(), 4000);
        assert!(found.iter().all(|(_, value)| value.iter().all(|byte| *byte == round as u8)));
    }
    // Dropped one by one, from the middle on.
    for index in [1, 0, 0] {
        let before = data_bytes(dir.path());
        drop(snapshots.remove(index));
        settle(&db, &keyspace);
        let after = data_bytes(dir.path());
        assert!(after + once * 7 / 10 < before, "{before} to {after}, one is {once}");
    }
    assert!(data_bytes(dir.path()) < once * 13 / 10);

    // An iterator pins the files it reads, until it is dropped or has come to its end.
    for ended in [false, true] {
        let mut iter = keyspace.iter();
        iter.next().unwrap().unwrap();
        let pinned = write(if ended { 5 } else { 4 });
        assert!(pinned > once * 17 / 10, "{once} {pinned}");
        if ended {
            assert!(iter.by_ref().all(|pair| pair.unwrap().1.iter().all(|byte| *byte == 4)));
            settle(&db, &keyspace);
            assert!(data_bytes(dir.path()) < once * 13 / 10);
            assert!(iter.next().is_none());
        } else {
            drop(iter);
            settle(&db, &keyspace);
            assert!(data_bytes(dir.path()) < once * 13 / 10);
        }
    }
    // Deleted, it is next to nothing.
    for number in 0..4000u64 {
        keyspace.delete(number.to_be_bytes()).unwrap();
    }
    settle(&db, &keyspace);
    assert!(data_bytes(dir.path()) < once / 20 + 65_536, "{}", data_bytes(dir.path()));
    assert_eq!(keyspace.iter().count(), 0);
}
