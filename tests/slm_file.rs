//! SLM-DB's index in its file: when a store is opened with it, and when it is built from the tables instead.

#![cfg(target_os = "linux")]

mod common;
#[path = "common/mount.rs"]
mod mount;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use common::Random;
use mount::Mount;
use spinney::{CheckLevel, Database, Error, Keyspace, KeyspaceOptions, MIB};
use tempfile::TempDir;

/// Where the notes of the region's header are in the file, in bytes: trust, the system's start, what is in the index.
const TRUST: usize = 64;
const BOOT: usize = 72;
const SETTLED: usize = 80;

fn open(dir: &Path) -> (Database, Keyspace) {
    open_with(dir, options())
}

fn open_with(dir: &Path, options: KeyspaceOptions) -> (Database, Keyspace) {
    let builder = Database::builder(dir);
    let builder = builder.memory_budget(8 * MIB).memtable_bytes(MIB / 4).deterministic(1);
    let db = builder.open().unwrap();
    let keyspace = db.keyspace("items", options).unwrap();
    (db, keyspace)
}

fn open_read_only(dir: &Path) -> (Database, Keyspace) {
    let db = Database::builder(dir).open_read_only().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    (db, keyspace)
}

fn options() -> KeyspaceOptions {
    KeyspaceOptions::slm().merge_operator("u64_add")
}

type Model = BTreeMap<Vec<u8>, u64>;

/// Changes 20,000 of 50,000 keys in all ways.
fn change(keyspace: &Keyspace, model: &mut Model, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..20_000 {
        let key = format!("user{:08}", random.below(50_000) * 7919 % 100_000).into_bytes();
        match random.below(8) {
            0 => {
                keyspace.delete(&key).unwrap();
                model.remove(&key);
            }
            1 => {
                keyspace.merge(&key, 1u64.to_le_bytes()).unwrap();
                *model.entry(key).or_default() += 1;
            }
            _ => {
                let value = random.next() >> 1;
                keyspace.put(&key, value.to_le_bytes()).unwrap();
                model.insert(key, value);
            }
        }
    }
}

fn assert_holds(keyspace: &Keyspace, model: &Model) {
    let pairs: Vec<_> = keyspace.iter().map(Result::unwrap).collect();
    assert_eq!(pairs.len(), model.len());
    for ((key, value), (key_of_model, value_of_model)) in pairs.iter().zip(model) {
        assert_eq!((&**key, &**value), (&key_of_model[..], &value_of_model.to_le_bytes()[..]));
    }
    for (key, value) in model.iter().step_by(7) {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value.to_le_bytes()[..]));
    }
    for number in 0..200 {
        let absent = format!("user{number:08}x");
        assert!(!keyspace.contains_key(&absent).unwrap());
    }
}

fn index_files(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "index")).collect()
}

fn index_file(dir: &Path) -> PathBuf {
    let [file] = <[PathBuf; 1]>::try_from(index_files(dir)).unwrap();
    file
}

/// A copy of a store as the death of its process would leave it: nothing is going on.
fn copy(dir: &Path) -> TempDir {
    let copied = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copied.path().join(entry.file_name())).unwrap();
    }
    copied
}

/// Opens a store, and returns true if it has been opened with the index that it had.
fn resumes(dir: &Path, model: &Model) -> bool {
    resumes_with(dir, options(), model)
}

fn resumes_with(dir: &Path, options: KeyspaceOptions, model: &Model) -> bool {
    let (_db, keyspace) = open_with(dir, options);
    let resumed = is_resumed(&keyspace);
    assert_holds(&keyspace, model);
    resumed
}

fn is_resumed(keyspace: &Keyspace) -> bool {
    let nodes = keyspace.describe().unwrap().nodes;
    let index = nodes[0].groups.iter().find(|group| group.label == "location index").unwrap();
    index.counts.contains(&("resumed".to_string(), 1))
}

/// A store with some tables, and what it holds.
fn filled(dir: &Path) -> Model {
    let mut model = Model::new();
    let (db, keyspace) = open(dir);
    for round in 0..4 {
        change(&keyspace, &mut model, round);
        db.wait_idle().unwrap();
    }
    keyspace.flush().unwrap();
    db.close().unwrap();
    model
}

fn change_file(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_closed_store_opens_with_its_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    for round in 10..13 {
        let (db, keyspace) = open(dir.path());
        assert!(is_resumed(&keyspace), "{round}");
        assert_holds(&keyspace, &model);
        change(&keyspace, &mut model, round);
        db.wait_idle().unwrap();
        keyspace.compact(..).unwrap();
        assert_holds(&keyspace, &model);
        common::assert_sound(&db);
    }
    assert!(resumes(dir.path(), &model));
}

/// A process that ends without closing its store leaves an index that is to be trusted, while the system is not
/// started anew. Otherwise pages of it may be of any age: it is built, whatever it has.
#[test]
fn after_the_death_of_the_process_the_index_is_used_and_after_a_power_loss_it_is_built() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let (db, keyspace) = open(dir.path());
    change(&keyspace, &mut model, 20);
    db.wait_idle().unwrap();
    let killed = copy(dir.path());
    let lost = copy(dir.path());
    assert!(resumes(killed.path(), &model));
    change_file(&index_file(lost.path()), |bytes| {
        // Another valid word, and pages that nobody can make sense of.
        bytes.copy_within(SETTLED..SETTLED + 8, BOOT);
        bytes[4096..].fill(0x5a);
    });
    assert!(!resumes(lost.path(), &model));
    assert!(resumes(lost.path(), &model), "once it is built, it is trusted");
}

/// The keys of the last memtable's table are not in the index, or a part of them: the process has ended.
#[test]
fn a_memtable_that_was_not_wholly_in_the_index_is_put_into_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let (db, keyspace) = open(dir.path());
    let without = fs::read(index_file(dir.path())).unwrap();
    let mut random = Random(5);
    for number in 0..3_000u64 {
        let key = format!("user{:08}", random.below(100_000)).into_bytes();
        match number % 3 {
            0 => {
                keyspace.delete(&key).unwrap();
                model.remove(&key);
            }
            1 => {
                keyspace.merge(&key, 5u64.to_le_bytes()).unwrap();
                *model.entry(key).or_default() += 5;
            }
            _ => {
                keyspace.put(&key, number.to_le_bytes()).unwrap();
                model.insert(key, number);
            }
        }
    }
    keyspace.flush().unwrap();
    // Nothing is compacted: the tables are those of the index before, and one.
    let none = copy(dir.path());
    let all = copy(dir.path());
    drop((db, keyspace));
    fs::write(index_file(none.path()), &without).unwrap();
    assert!(resumes(none.path(), &model));
    change_file(&index_file(all.path()), |bytes| {
        bytes[SETTLED..SETTLED + 8].copy_from_slice(&without[SETTLED..SETTLED + 8]);
    });
    assert!(resumes(all.path(), &model));
}

/// The file of an earlier time, with its own mark that it was closed, says nothing of other tables.
#[test]
fn an_index_of_other_tables_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let old = fs::read(index_file(dir.path())).unwrap();
    let (db, keyspace) = open(dir.path());
    change(&keyspace, &mut model, 30);
    keyspace.flush().unwrap();
    drop((db, keyspace));
    fs::write(index_file(dir.path()), old).unwrap();
    assert!(!resumes(dir.path(), &model));
    // A lost file, an empty one, and one that was cut.
    fs::remove_file(index_file(dir.path())).unwrap();
    assert!(!resumes(dir.path(), &model));
    for bytes in [0, 10, 4096, 70_000] {
        change_file(&index_file(dir.path()), |file| file.truncate(bytes));
        assert!(!resumes(dir.path(), &model), "{bytes}");
    }
}

/// Each bit of the header, and bits anywhere: the index is used if it is whole, else built. The answers are right.
#[test]
fn a_flipped_bit_in_the_file_costs_time_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let model = filled(dir.path());
    let whole = fs::read(index_file(dir.path())).unwrap();
    let mut random = Random(9);
    for round in 0..60 {
        let damaged = copy(dir.path());
        let bit = match round % 3 {
            0 => TRUST * 8 + random.below(4 * 64) as usize,
            1 => random.below(40 * 64) as usize,
            _ => random.below(whole.len() as u64 * 8) as usize,
        };
        change_file(&index_file(damaged.path()), |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        resumes(damaged.path(), &model);
    }
}

#[test]
fn the_file_goes_with_its_keyspace_and_is_empty_in_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let model = filled(dir.path());
    let (db, keyspace) = open(dir.path());
    let checkpoint = tempfile::tempdir().unwrap();
    let path = checkpoint.path().join("copy");
    // A checkpoint said how many files it would have, and had one fewer.
    let mut counts = (0, 0);
    db.checkpoint_with(&path, |progress| counts = (progress.files, progress.files_total)).unwrap();
    assert_eq!(counts.0, counts.1);
    assert_eq!(fs::metadata(index_file(&path)).unwrap().len(), 0);
    assert!(!resumes(&path, &model));
    assert!(resumes(&path, &model));
    drop(keyspace);
    db.drop_keyspace("items").unwrap();
    assert_eq!(index_files(dir.path()), Vec::<PathBuf>::new());
}

/// A store that is opened to be read is opened with the index, which stays as it is.
#[test]
fn a_read_only_store_uses_the_index_and_leaves_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let model = filled(dir.path());
    let before = fs::read(index_file(dir.path())).unwrap();
    let (db, keyspace) = open_read_only(dir.path());
    assert!(is_resumed(&keyspace));
    assert_holds(&keyspace, &model);
    drop((db, keyspace));
    assert_eq!(fs::read(index_file(dir.path())).unwrap(), before);
    // One that cannot be used is not touched either.
    change_file(&index_file(dir.path()), |bytes| bytes[TRUST] ^= 1);
    let (_db, keyspace) = open_read_only(dir.path());
    assert!(!is_resumed(&keyspace));
    assert_holds(&keyspace, &model);
}

/// `check --full` compares the index with the tables: what it lacks, what it has too much of, and what is older than
/// the newest. The file of an earlier time is put in the place of the newest, with the notes of that.
#[test]
fn a_full_check_finds_an_index_that_is_not_of_its_tables() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let old = fs::read(index_file(dir.path())).unwrap();
    let (db, keyspace) = open(dir.path());
    // One key is new, one is gone, and one is newer.
    let keys: Vec<Vec<u8>> = model.keys().take(2).cloned().collect();
    keyspace.put("absent", b"12345678").unwrap();
    keyspace.delete(&keys[0]).unwrap();
    keyspace.put(&keys[1], b"12345678").unwrap();
    model.clear();
    keyspace.flush().unwrap();
    // All of it is in the index.
    db.wait_idle().unwrap();
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let stale = copy(dir.path());
    drop((db, keyspace));
    change_file(&index_file(stale.path()), |file| {
        let notes = file[TRUST..TRUST + 64].to_vec();
        *file = old;
        file[TRUST..TRUST + 64].copy_from_slice(&notes);
    });
    let (db, keyspace) = open(stale.path());
    assert!(is_resumed(&keyspace));
    let report = db.check(CheckLevel::Full).unwrap();
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:?}");
    let names = |problem: &String| problem.contains(".index") && problem.contains("of key");
    assert!(problems.iter().all(names), "{problems:?}");
    let report = db.check(CheckLevel::Structure).unwrap();
    assert!(report.problems.is_empty(), "only a full check reads the tables");
}

/// Merges 1 into a key so many times, each in a table of its own.
fn count(keyspace: &Keyspace, model: &mut Model, key: &[u8], times: u64) {
    for _ in 0..times {
        keyspace.merge(key, 1u64.to_le_bytes()).unwrap();
        keyspace.flush().unwrap();
    }
    *model.entry(key.to_vec()).or_default() += times;
}

/// Of a key with more versions than a leaf holds, the index has the newest. The others were in memory alone, when the
/// index was built and trusted: the next time the store was opened they were lost, and their tables were dropped.
#[test]
fn versions_that_are_not_in_the_file_are_not_lost_with_the_process() {
    for (key, times) in [(b"k".to_vec(), 60), (vec![b'k'; 400], 10)] {
        for is_killed in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut model = Model::new();
            let (db, keyspace) = open(dir.path());
            count(&keyspace, &mut model, &key, times);
            drop((db, keyspace));
            for session in 0..3 {
                let (db, keyspace) = open(dir.path());
                let got = keyspace.get(&key).unwrap();
                assert_eq!(got.as_deref(), Some(&times.to_le_bytes()[..]), "{session}");
                keyspace.put(b"other", session_value(session)).unwrap();
                keyspace.flush().unwrap();
                db.wait_idle().unwrap();
                let got = keyspace.get(&key).unwrap();
                assert_eq!(got.as_deref(), Some(&times.to_le_bytes()[..]), "{session}, idle");
                let killed = is_killed.then(|| copy(dir.path()));
                drop((db, keyspace));
                if let Some(killed) = killed {
                    let (_db, keyspace) = open(killed.path());
                    let got = keyspace.get(&key).unwrap();
                    assert_eq!(got.as_deref(), Some(&times.to_le_bytes()[..]), "{session}, killed");
                }
            }
        }
    }
}

/// Once a key had had more versions than a leaf holds, the index was not to be trusted any more, although it had all of
/// them again: all tables were read whenever the store was opened, until the index was built for another reason.
#[test]
fn an_index_is_trusted_again_once_no_key_has_too_many_versions() {
    for (key, snapshots) in [(b"k".to_vec(), 40), (vec![b'k'; 400], 10)] {
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::new();
        // Otherwise tables are merged before there are as many.
        let options = || common::for_space_alone(options());
        let (db, keyspace) = open_with(dir.path(), options());
        let resumes = |dir: &Path, model: &Model| resumes_with(dir, options(), model);
        let views: Vec<_> = (0..snapshots)
            .map(|number: u64| {
                keyspace.put(&key, number.to_le_bytes()).unwrap();
                keyspace.flush().unwrap();
                model.insert(key.clone(), number);
                db.snapshot()
            })
            .collect();
        db.wait_idle().unwrap();
        assert!(!resumes(copy(dir.path()).path(), &model), "there were not too many versions");
        drop(views);
        db.wait_idle().unwrap();
        let killed = copy(dir.path());
        assert!(resumes(killed.path(), &model), "killed");
        drop((db, keyspace));
        assert!(resumes(dir.path(), &model), "closed");
    }
}

fn session_value(session: u64) -> [u8; 8] {
    session.to_le_bytes()
}

/// A file that is shorter than its header was a panic of whoever opened the store to read it.
#[test]
fn a_read_only_store_does_without_a_file_that_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let model = filled(dir.path());
    for bytes in [4096, 10, 0] {
        change_file(&index_file(dir.path()), |file| file.truncate(bytes));
        let (_db, keyspace) = open_read_only(dir.path());
        assert!(!is_resumed(&keyspace));
        assert_holds(&keyspace, &model);
    }
}

/// A process ended before the keys of a memtable were in the index. Whoever opened the store to read it could not: there
/// was no room for them in a file that must not change.
#[test]
fn a_read_only_store_has_room_for_a_memtable_that_is_not_in_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (db, keyspace) = open(dir.path());
    keyspace.put(b"a", session_value(1)).unwrap();
    model.insert(b"a".to_vec(), 1);
    keyspace.flush().unwrap();
    drop((db, keyspace));
    let (db, keyspace) = open(dir.path());
    let without = fs::read(index_file(dir.path())).unwrap();
    for number in 0..6_000u64 {
        let key = format!("key{:08}", number * 7919 % 10_000).into_bytes();
        keyspace.put(&key, number.to_le_bytes()).unwrap();
        model.insert(key, number);
    }
    keyspace.flush().unwrap();
    let killed = copy(dir.path());
    drop((db, keyspace));
    fs::write(index_file(killed.path()), &without).unwrap();
    let (_db, keyspace) = open_read_only(killed.path());
    assert!(is_resumed(&keyspace));
    assert_holds(&keyspace, &model);
}

/// Whoever asked what the index looks like while it grew got more free blocks than there were, which panicked.
#[test]
fn a_store_is_described_while_its_index_grows() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Database::builder(dir.path()).memory_budget(8 * MIB).memtable_bytes(MIB / 16);
    let db = builder.open().unwrap();
    let keyspace = db.keyspace("items", options()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let nodes = keyspace.describe().unwrap().nodes;
                let groups = nodes.iter().flat_map(|node| &node.groups);
                for (name, count) in groups.flat_map(|group| &group.counts) {
                    assert!(name != "index_bytes" || *count < 1 << 30, "{count}");
                }
            }
        });
        for number in 0..60_000u64 {
            let key = format!("key{:08}", number * 7919 % 1_000_000);
            keyspace.put(key, number.to_le_bytes()).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// A copy of a store that work goes on in, as the death of its process would leave it: neither the index nor what names
/// the tables changes while they are copied.
fn copy_at_once(dir: &Path) -> TempDir {
    let without_data = || -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let is_data = |path: &PathBuf| path.extension().is_some_and(|it| it == "table");
        paths
            .filter(|path| !is_data(path))
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    };
    loop {
        let before = without_data();
        let copied = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            // Tables come and go meanwhile.
            let _ = fs::copy(entry.path(), copied.path().join(entry.file_name()));
        }
        if without_data() == before {
            return copied;
        }
    }
}

/// `compact` goes on after its store was closed. What it changes in the index then is not taken for what was closed.
#[test]
fn work_that_goes_on_after_a_store_was_closed_leaves_an_index_that_is_right() {
    for round in 0..6u64 {
        let dir = tempfile::tempdir().unwrap();
        let builder = Database::builder(dir.path()).memory_budget(8 * MIB).memtable_bytes(MIB / 16);
        let db = builder.open().unwrap();
        let keyspace = db.keyspace("items", options()).unwrap();
        for number in 0..10_000u64 {
            let key = format!("key{:08}", number * 7919 % 15_000);
            keyspace.put(key, number.to_le_bytes()).unwrap();
        }
        keyspace.flush().unwrap();
        let other = keyspace.clone();
        let compacting = std::thread::spawn(move || while other.compact(..).is_ok() {});
        std::thread::sleep(std::time::Duration::from_millis(20 + round * 13));
        db.close().unwrap();
        let killed = copy_at_once(dir.path());
        compacting.join().unwrap();
        drop(keyspace);
        for dir in [killed.path(), dir.path()] {
            let (db, keyspace) = open(dir);
            common::assert_sound(&db);
            assert_eq!(keyspace.iter().count(), 10_000);
        }
    }
}

/// A full check took an error of the index for one of a table, which had been reported, and said nothing.
#[test]
fn a_full_check_reports_damage_of_an_index_that_is_open() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let (db, _keyspace) = open(dir.path());
    let file = fs::OpenOptions::new().write(true).open(index_file(dir.path())).unwrap();
    for block in (4096..file.metadata().unwrap().len()).step_by(4096) {
        file.write_all_at(&[0x5a; 8], block).unwrap();
    }
    let problems = db.check(CheckLevel::Full).unwrap().problems;
    assert!(problems.iter().any(|problem| problem.to_string().contains(".index")), "{problems:?}");
}

/// The memory of the process that the mapped file takes.
fn resident_bytes(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut of_file = false;
    let mut kib = 0;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Rss:") if of_file => kib += words.next().unwrap().parse::<u64>().unwrap(),
            Some(word) if !word.ends_with(':') => {
                of_file = line.trim_end_matches(" (deleted)").ends_with(path.to_str().unwrap());
            }
            _ => {}
        }
    }
    kib << 10
}

/// Pages of the index that had been read stayed in memory until the next memtable came: whoever only read had all of a
/// large index in memory in the end. Then each index had a quarter of the budget for itself, however many there were, and
/// no more of it where the rest was not used.
#[test]
fn indexes_share_the_memory_that_the_rest_leaves() {
    const KEYS: u64 = 200_000;
    const BUDGET: u64 = 16 * MIB;
    /// Half of the budget, if the rest used nothing. Each of two threads may be at a page that has just been unmapped.
    const MOST_BYTES: u64 = BUDGET / 2 + 2 * (64 << 10);
    let dir = TempDir::new().unwrap();
    let open = || {
        let builder = Database::builder(dir.path()).memory_budget(BUDGET);
        let db = builder.memtable_bytes(MIB / 4).deterministic(1).open().unwrap();
        let keyspace = db.keyspace("items", options()).unwrap();
        (db, keyspace)
    };
    let key = |number: u64| format!("user{number:08}");
    let indexes_bytes =
        || index_files(dir.path()).iter().map(|file| resident_bytes(file)).sum::<u64>();
    let fill = |keyspace: &Keyspace, step: u64| {
        let mut most = 0;
        for number in 0..KEYS {
            keyspace.put(key(number * step % KEYS), b"value").unwrap();
            if number % 1000 == 0 {
                most = most.max(indexes_bytes());
            }
        }
        keyspace.flush().unwrap();
        most
    };
    let read = |keyspaces: &[&Keyspace]| {
        let mut most = 0;
        for number in 0..KEYS {
            for keyspace in keyspaces {
                assert!(keyspace.contains_key(key(number * 104_729 % KEYS)).unwrap());
            }
            if number % 1000 == 0 {
                most = most.max(indexes_bytes());
            }
        }
        most
    };
    let (db, keyspace) = open();
    let most = fill(&keyspace, 7919);
    assert!(most <= MOST_BYTES, "{most} bytes while writing");
    drop((keyspace, db));

    let (db, keyspace) = open();
    let first = index_file(dir.path());
    assert!(fs::metadata(&first).unwrap().len() > BUDGET / 4 * 3);
    let alone = read(&[&keyspace]);
    assert!(BUDGET / 4 < alone && alone <= MOST_BYTES, "{alone} bytes while reading");
    assert_eq!(keyspace.iter().count() as u64, KEYS);
    assert!(indexes_bytes() <= MOST_BYTES);

    // Keys that ascend make new pages of the index all the time, and never come back to one that has been unmapped.
    let other = db.keyspace("other", options()).unwrap();
    let most = fill(&other, 1).max(read(&[&keyspace, &other]));
    assert!(most <= MOST_BYTES, "{most} bytes of two indexes");
    let of_other = || {
        let files = index_files(dir.path());
        files.into_iter().find(|file| *file != first)
    };
    let (of_first, path) = (resident_bytes(&first), of_other().unwrap());
    let bytes = resident_bytes(&path);
    assert!(of_first.min(bytes) > 3 * MIB / 2, "{of_first} and {bytes} bytes");
    // A handle of a dropped keyspace keeps its index, but not in memory.
    db.drop_keyspace("other").unwrap();
    let kept = resident_bytes(&path);
    assert!(kept <= MIB + 2 * (64 << 10), "{kept} bytes of a dropped keyspace");
    drop((keyspace, other, db));

    // An index that is built is written from one end to the other.
    fs::remove_file(&first).unwrap();
    let (_db, keyspace) = open();
    assert!(indexes_bytes() <= MOST_BYTES, "{} bytes of an index that was built", indexes_bytes());
    let most = read(&[&keyspace]);
    assert!(BUDGET / 4 < most && most <= MOST_BYTES, "{most} bytes of an index that was built");
}

/// Where keys come evenly, all leaves of the index are full at the same time, and it becomes twice as large. What a full disk
/// left for that was what tables need. The index lacked keys then, nothing was merged, and what was deleted gave no room
/// back: deletes were refused in the end.
#[test]
fn a_full_disk_leaves_room_for_the_index_to_double() {
    let Some(mount) = Mount::new("size=32m") else { return };
    let db = Database::builder(mount.path()).memory_budget(8 * MIB).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let wait = || std::thread::sleep(std::time::Duration::from_millis(20));
    let is_partial = || {
        let nodes = keyspace.describe().unwrap().nodes;
        let index = nodes[0].groups.iter().find(|group| group.label == "location index").unwrap();
        index.counts.contains(&("partial".to_string(), 1))
    };
    for round in 0..2 {
        let (mut keys, mut refused) = (0, 0);
        while refused < 50 {
            match keyspace.put(key(keys), [7; 20]) {
                Ok(()) => (keys, refused) = (keys + 1, 0),
                Err(Error::Full { .. }) => {
                    refused += 1;
                    wait();
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(keys > 200_000, "{keys} keys in round {round}");
        assert!(!is_partial(), "round {round}");
        for number in keys / 2..keys {
            let mut refused = 0;
            while let Err(error) = keyspace.delete(key(number)) {
                assert!(matches!(error, Error::Full { .. }), "{error}");
                refused += 1;
                assert!(refused < 500, "delete {number} of {keys}, round {round}: {error}");
                wait();
            }
        }
        keyspace.flush().unwrap();
        db.wait_idle().unwrap();
        assert!(!is_partial(), "round {round}");
        assert_eq!(keyspace.iter().count() as u64, keys / 2);
    }
}

/// What each index might need for the next segment of the journal was left free, of each keyspace, though only one of them can
/// get it: with forty that were idle, a keyspace of another kind was refused nearly all of the disk.
#[test]
fn idle_keyspaces_leave_the_disk_to_others() {
    let Some(mount) = Mount::new("size=64m") else { return };
    let db = Database::builder(mount.path()).memory_budget(8 * MIB).open().unwrap();
    for number in 0..40 {
        let idle = db.keyspace(&format!("idle{number}"), KeyspaceOptions::slm()).unwrap();
        idle.put("key", "value").unwrap();
        idle.flush().unwrap();
    }
    let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let (mut written, mut random, mut refused) = (0, Random(1), 0);
    while refused < 50 {
        match keyspace.put(random.next().to_be_bytes(), random.bytes(1000)) {
            Ok(()) => (written, refused) = (written + 1000, 0),
            Err(Error::Full { .. }) => {
                refused += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(written > 32 * MIB, "{written} bytes of 64 MiB");
}
