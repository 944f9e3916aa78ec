//! Damage is told, never guessed past: a byte turned over or a file gone, in a store closed cleanly
//! and in one whose process died, gives the right data or an error that names the file.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use common::{Random, contents, copy, file_name, files, flip, kind_of, store_path};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{Builder, CheckLevel, Database, Durability, Error, KeyspaceOptions, TreeKind};

const WRITES: u64 = 400;
/// The last write that was `Sync`.
const SYNCED: u64 = 350;

of_every_kind! {
    a_byte_turned_over_in_a_closed_store_is_found
    a_byte_turned_over_in_the_store_of_a_dead_process_is_found a_missing_file_is_told_by_name
    a_file_cut_short_is_told_by_name a_manifest_cut_at_any_record_is_never_a_smaller_store
    damage_under_an_open_store_is_an_error_of_those_reads_alone
    a_check_looks_at_blob_files_that_only_memtables_point_to
    a_check_looks_at_large_values_that_are_in_no_tree_yet
    writes_to_a_keyspace_that_the_manifest_has_lost_are_not_passed_over
    a_flush_that_the_manifest_has_lost_is_not_passed_over
    a_damaged_journal_can_be_salvaged_up_to_the_damage
    damage_of_a_part_of_the_journal_that_is_not_needed_is_told
}

fn builder(vfs: &MemoryVfs) -> Builder {
    Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(6 << 10)
        .deterministic(7)
}

fn key(number: u64) -> Vec<u8> {
    format!("key {:04}", number * 7 % 1000).into_bytes()
}

fn value(number: u64) -> &'static [u8] {
    static VALUES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let len = |number| match number % 80 {
            0 => 5000,
            20 => 20_000,
            _ => 30 + number as usize % 50,
        };
        (0..WRITES).map(|number| Random(number).bytes(len(number))).collect()
    });
    &VALUES[number as usize]
}

/// A store of `WRITES` writes, the `n`th of the `n`th key; some in tables, some in the journal alone.
/// Closed cleanly, or left behind by a process that died.
fn make_store(kind: TreeKind, died: bool) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..WRITES {
        let mut batch = db.batch();
        if number % 50 == 0 {
            batch = batch.durability(Durability::Sync);
        }
        batch.put(&keyspace, key(number), value(number));
        batch.commit().unwrap();
        // What comes after stays in the journal.
        if number < 300 {
            while db.step().unwrap() {}
        }
        if number == 299 {
            keyspace.flush().unwrap();
        }
    }
    if died {
        return copy(&vfs, &store_path());
    }
    drop(keyspace);
    db.close().unwrap();
    vfs
}

/// What a damaged store came to.
#[derive(Debug)]
enum Outcome {
    /// The error of opening it, or its one keyspace.
    Refused(Error),
    /// It opened, with so many of the writes, and these errors from reads and a full check.
    Opened { writes: u64, errors: Vec<Error> },
}

/// Opens a store and reads everything, each way there is. A wrong answer fails the test.
fn examine(vfs: &MemoryVfs, context: &str) -> Outcome {
    let db = match builder(vfs).create_if_missing(true).open() {
        Ok(db) => db,
        Err(error) => return Outcome::Refused(error),
    };
    let keyspace = match db.existing_keyspace("items") {
        Ok(keyspace) => keyspace,
        Err(error @ Error::NotFound { .. }) => panic!("{context}: the keyspace has gone: {error}"),
        Err(error) => {
            assert_eq!(db.recovery().keyspaces_not_opened, ["items"], "{context}: {error}");
            let problems = db.check(CheckLevel::Structure).unwrap().problems;
            assert!(problems.iter().any(|it| it.to_string() == error.to_string()), "{context}");
            return Outcome::Refused(error);
        }
    };
    let mut errors = Vec::new();
    let mut writes = WRITES;
    for number in 0..WRITES {
        match keyspace.get(key(number)) {
            Ok(Some(found)) => {
                assert!(number < writes, "{context}: {writes} is missing, {number} is there");
                assert!(*found == *value(number), "{context}: get of {number} is wrong");
            }
            Ok(None) => writes = writes.min(number),
            Err(error) => errors.push(error),
        }
    }
    let expected: BTreeMap<Vec<u8>, &[u8]> =
        (0..writes).map(|number| (key(number), value(number))).collect();
    let mut ends = [expected.iter().collect::<Vec<_>>(), expected.iter().rev().collect()];
    let [forward, backward] = &mut ends;
    let mut read = |iter: &mut dyn Iterator<Item = spinney::Result<(_, _)>>, all: &mut Vec<_>| {
        let mut all = all.drain(..);
        for pair in iter {
            match pair {
                Ok((found_key, found_value)) => {
                    let found: (spinney::Slice, spinney::Slice) = (found_key, found_value);
                    let wanted: (&Vec<u8>, &&[u8]) = all.next().expect("a key too many");
                    assert_eq!(*found.0, **wanted.0, "{context}: a scan met the wrong key");
                    assert!(*found.1 == **wanted.1, "{context}: a scan met a wrong value");
                }
                Err(error) => {
                    errors.push(error);
                    return;
                }
            }
        }
        assert_eq!(all.next(), None, "{context}: a scan ended early");
    };
    read(&mut keyspace.iter(), forward);
    read(&mut keyspace.iter().rev(), backward);
    errors.extend(db.check(CheckLevel::Full).unwrap().problems);
    Outcome::Opened { writes, errors }
}

/// The error is of damage, names the file, and says what to do.
fn assert_names(error: &Error, file: &str, context: &str) {
    let text = error.to_string();
    assert!(text.contains(file), "{context}: {text} does not name {file}");
    match error {
        Error::Corruption { expected, found, .. } => {
            assert!(!expected.is_empty() && !found.is_empty(), "{context}: {text}");
            assert!(text.contains("`spinney repair`"), "{context}: {text}");
        }
        Error::UnsupportedVersion { .. } => {
            assert!(text.contains("upgrade Spinney"), "{context}: {text}");
        }
        _ => panic!("{context}: {error:?}"),
    }
}

/// Where to turn bytes over in a file: its ends, and a few places drawn between them.
fn places(len: u64, random: &mut Random) -> Vec<u64> {
    let mut places = vec![0, 8, 17, len / 2, len - 9, len - 1];
    places.extend((0..4).map(|_| random.below(len)));
    // Most of a segment may be empty; its beginning is not.
    places.extend((0..4).map(|_| random.below(len.min(2000))));
    places.retain(|place| *place < len);
    places.sort_unstable();
    places.dedup();
    places
}

fn flip_everywhere(kind: TreeKind, died: bool) {
    let store = make_store(kind, died);
    let whole = examine(&copy(&store, &store_path()), "whole");
    assert!(
        matches!(&whole, Outcome::Opened { writes: WRITES, errors } if errors.is_empty()),
        "{whole:?}"
    );
    let mut random = Random(u64::from(died) + 1);
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    let mut per_kind: BTreeMap<String, u64> = BTreeMap::new();
    for (name, len) in files(&store, &store_path()) {
        let kind = kind_of(&name);
        // Two files of each kind.
        let seen = per_kind.entry(kind.clone()).or_default();
        *seen += 1;
        if len == 0 || *seen > 2 {
            continue;
        }
        for place in places(len, &mut random) {
            let context = format!("{name} ({len} bytes) with byte {place} turned over");
            let damaged = copy(&store, &store_path());
            flip(&damaged, &store_path().join(&name), place);
            match examine(&damaged, &context) {
                Outcome::Refused(error) => {
                    *refused.entry(kind.clone()).or_default() += 1;
                    assert_names(&error, &name, &context);
                }
                Outcome::Opened { writes, errors } => {
                    let least = if died { SYNCED + 1 } else { WRITES };
                    assert!(writes >= least, "{context}: {writes} writes left, not {least}");
                    if !errors.is_empty() {
                        *refused.entry(kind.clone()).or_default() += 1;
                    }
                    for error in &errors {
                        assert_names(error, &name, &context);
                    }
                }
            }
        }
    }
    println!("found, by kind of file: {refused:?} of {per_kind:?}");
    for kind in per_kind.keys().filter(|kind| !["LOCK", "DURABLE"].contains(&&***kind)) {
        assert!(refused.contains_key(kind), "no damage in a {kind} was found");
    }
}

fn a_byte_turned_over_in_a_closed_store_is_found(kind: TreeKind) {
    flip_everywhere(kind, false);
}

fn a_byte_turned_over_in_the_store_of_a_dead_process_is_found(kind: TreeKind) {
    flip_everywhere(kind, true);
}

fn remove_each(kind: TreeKind, died: bool) {
    let store = make_store(kind, died);
    for (name, len) in files(&store, &store_path()) {
        let context = format!("{name} ({len} bytes) removed");
        let damaged = copy(&store, &store_path());
        damaged.remove(&store_path().join(&name)).unwrap();
        match examine(&damaged, &context) {
            Outcome::Refused(error) => {
                let text = error.to_string();
                match &error {
                    // The last of a shard's segments is told from the next thing that misses it.
                    Error::Corruption { file, .. } => {
                        assert_eq!(kind_of(&file_name(file)), kind_of(&name), "{context}: {text}");
                    }
                    Error::NotAStore { .. } | Error::Io { .. } => {
                        assert!(text.contains(&name), "{context}: {text}");
                    }
                    _ => panic!("{context}: {error:?}"),
                }
            }
            Outcome::Opened { writes, errors } => {
                // Where the process died, nothing tells a journal without files from one that nobody
                // has written to; what the trees hold is there.
                let least = if died && name.starts_with("journal") { 300 } else { WRITES };
                assert!(writes >= least, "{context}: {writes} writes left, not {least}");
                assert!(errors.iter().all(|error| error.to_string().contains(&name)), "{context}");
                let needed = ["SPINNEY", "manifest"].iter().any(|start| name.starts_with(start));
                assert!(!needed, "{context}: it opened");
            }
        }
    }
}

fn a_missing_file_is_told_by_name(kind: TreeKind) {
    remove_each(kind, false);
    remove_each(kind, true);
}

fn a_file_cut_short_is_told_by_name(kind: TreeKind) {
    let store = make_store(kind, false);
    let mut per_kind: BTreeMap<String, u64> = BTreeMap::new();
    for (name, len) in files(&store, &store_path()) {
        let seen = per_kind.entry(kind_of(&name)).or_default();
        *seen += 1;
        if *seen > 2 {
            continue;
        }
        for left in [0, 1, len / 2, len.saturating_sub(1)] {
            if left >= len {
                continue;
            }
            let context = format!("{name} ({len} bytes) cut to {left}");
            let damaged = copy(&store, &store_path());
            let file = damaged.open(&store_path().join(&name), Access::Buffered, true).unwrap();
            file.truncate(left).unwrap();
            match examine(&damaged, &context) {
                // A manifest that ends early between records names files that have gone since.
                Outcome::Refused(error) if name.starts_with("manifest") => {
                    assert!(error.is_corruption(), "{context}: {error}");
                }
                Outcome::Refused(error) => assert_names(&error, &name, &context),
                Outcome::Opened { writes, errors } => {
                    assert_eq!(writes, WRITES, "{context}");
                    errors.iter().for_each(|error| assert_names(error, &name, &context));
                }
            }
        }
    }
}

/// Where the records of a manifest begin, and where the last one ends.
fn record_boundaries(manifest: &[u8]) -> Vec<u64> {
    let mut boundaries = vec![40];
    while let Some(&at) = boundaries.last()
        && let Some(length) = manifest.get(at as usize + 8..at as usize + 12)
    {
        let payload = u32::from_le_bytes(length.try_into().unwrap());
        boundaries.push(at + 16 + u64::from(payload).next_multiple_of(8));
    }
    boundaries
}

/// A closed store of 200,000 pairs whose manifest was cut at a record's boundary opened as an empty one, and the
/// first write removed its table for an orphan: a cut manifest looked like one whose last append was torn. The
/// file `DURABLE` tells them apart.
fn a_manifest_cut_at_any_record_is_never_a_smaller_store(kind: TreeKind) {
    let with_journal = make_store(kind, false);
    // Opened, flushed and closed again: all is in tables, and the journal is empty.
    let without = copy(&with_journal, &store_path());
    for _ in 0..2 {
        let db = builder(&without).open().unwrap();
        db.existing_keyspace("items").unwrap().flush().unwrap();
        db.wait_idle().unwrap();
        db.close().unwrap();
    }
    for store in [with_journal, without] {
        let found = files(&store, &store_path());
        let (name, len) = found.iter().find(|(name, _)| name.starts_with("manifest")).unwrap();
        let path = store_path().join(name);
        let boundaries = record_boundaries(&contents(&store, &path));
        assert!(boundaries.len() > 4 && boundaries.last() == Some(len), "{boundaries:?}");
        let cuts = boundaries.iter().flat_map(|at| [at - 1, *at, at + 1]).filter(|cut| cut < len);
        for cut in cuts {
            let context = format!("{name} ({len} bytes) cut to {cut}");
            let damaged = copy(&store, &store_path());
            damaged.open(&path, Access::Buffered, true).unwrap().truncate(cut).unwrap();
            let before = files(&damaged, &store_path());
            let refusals = [builder(&damaged).open_read_only(), builder(&damaged).open()];
            for error in refusals.map(Result::unwrap_err) {
                assert_names(&error, name, &context);
                // What ends before its first record is whole has no end.
                if cut >= boundaries[1] {
                    let ends = boundaries.iter().rfind(|at| **at <= cut).unwrap();
                    let Error::Corruption { offset, .. } = error else { unreachable!() };
                    assert_eq!(offset, *ends, "{context}: {error}");
                }
            }
            assert_eq!(files(&damaged, &store_path()), before, "{context}");
        }
    }
}

/// A store that stays open reads what was damaged under it as damaged, and goes on elsewhere.
fn damage_under_an_open_store_is_an_error_of_those_reads_alone(kind: TreeKind) {
    let vfs = make_store(kind, false);
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    let tables: Vec<String> = files(&vfs, &store_path())
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !["SPINNEY", "LOCK", "DURABLE"].contains(&&**name))
        .filter(|name| !name.starts_with("manifest") && !name.starts_with("journal"))
        .collect();
    assert!(!tables.is_empty());
    for name in &tables {
        let path = store_path().join(name);
        // One whole unit of each file but its first and last.
        let len = contents(&vfs, &path).len() as u64;
        flip(&vfs, &path, len / 2 / 4096 * 4096 + 100);
    }
    let mut failed = 0;
    for number in 0..WRITES {
        match keyspace.get(key(number)) {
            Ok(found) => assert!(found.as_deref() == Some(value(number)), "{number}"),
            Err(error) => {
                failed += 1;
                assert!(error.is_corruption(), "{error}");
                assert!(tables.iter().any(|name| error.to_string().contains(name)), "{error}");
            }
        }
    }
    assert!(failed > 0, "no read met the damage");
    assert!(!db.check(CheckLevel::Full).unwrap().problems.is_empty());
    keyspace.put("new", "value").unwrap();
    assert_eq!(keyspace.get("new").unwrap().unwrap(), b"value");
}

/// A value of 20 KB went to a blob file at once and the entry that points to it was still in the
/// memtable when a bit of the file flipped. Reading the key failed, as it should, but a full check found
/// nothing wrong: it looked only at blob files that tables name. Found by the bit flips of
/// `spinney-sim planted`, in the run without a bug.
fn a_check_looks_at_blob_files_that_only_memtables_point_to(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    items.put("large", [7; 20_000]).unwrap();
    let sound = db.check(CheckLevel::Full).unwrap();
    assert!(sound.problems.is_empty() && sound.files == 1 && sound.pages >= 5, "{sound:?}");
    let names = files(&vfs, &store_path()).into_iter().map(|(name, _)| name);
    let blobs: Vec<String> = names.filter(|name| name.ends_with(".blob")).collect();
    let [blob] = &blobs[..] else { panic!("one blob file, not {blobs:?}") };
    flip(&vfs, &store_path().join(blob), 5000);
    assert!(items.get("large").unwrap_err().is_corruption());
    let problems = db.check(CheckLevel::Full).unwrap().problems;
    assert!(matches!(&problems[..], [error] if error.is_corruption()), "{problems:?}");
}

/// The lock was taken before anything else was looked at, and its file stayed in directories of others.
#[test]
fn a_directory_with_other_things_is_not_a_store() {
    let vfs = MemoryVfs::new();
    vfs.create_dir_all(&store_path()).unwrap();
    vfs.create(&store_path().join("letter.txt"), Access::Buffered).unwrap();
    let error = builder(&vfs).open().unwrap_err();
    assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("/store") && text.contains("letter.txt"), "{text}");
    let left: Vec<String> = files(&vfs, &store_path()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["letter.txt"]);

    let empty = MemoryVfs::new();
    for made in [false, true] {
        if made {
            empty.create_dir_all(&store_path()).unwrap();
        }
        let error = builder(&empty).create_if_missing(false).open().unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error}");
        assert!(!made || files(&empty, &store_path()).is_empty());
        assert!(error.to_string().contains("/store"), "{error}");
    }
    let file = MemoryVfs::new();
    file.create(&store_path(), Access::Buffered).unwrap();
    let error = builder(&file).open().unwrap_err();
    assert!(error.to_string().contains("/store"), "{error}");
}

/// A version that this build does not know, with a checksum that is right.
#[test]
fn a_store_of_a_newer_format_asks_for_an_upgrade() {
    let vfs = make_store(TreeKind::Stb, false);
    let path = store_path().join("SPINNEY");
    let mut bytes = contents(&vfs, &path);
    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes[..72], 0);
    bytes[72..80].copy_from_slice(&sum.to_le_bytes());
    vfs.open(&path, Access::Buffered, true).unwrap().write_at(0, &bytes).unwrap();
    let error = builder(&vfs).open().unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 2, supported: 1, .. }), "{error:?}");
    assert_names(&error, "SPINNEY", "newer");
}

#[test]
fn an_empty_file_in_place_of_the_superblock_is_damage_and_not_a_new_store() {
    let vfs = make_store(TreeKind::Stb, false);
    let path = store_path().join("SPINNEY");
    vfs.open(&path, Access::Buffered, true).unwrap().truncate(0).unwrap();
    let error = builder(&vfs).open().unwrap_err();
    assert_names(&error, "SPINNEY", "empty superblock");
    assert!(vfs.exists(Path::new("/store/manifest-00000001")).unwrap());
}

/// A large value whose pointer was still in a memtable lay in a blob file that no check looked at: the
/// store was said to be sound, and reading the value failed.
fn a_check_looks_at_large_values_that_are_in_no_tree_yet(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    keyspace.put("large", value(20)).unwrap();
    let vfs = copy(&vfs, &store_path());
    let names = files(&vfs, &store_path());
    let (name, _) = names.iter().find(|(name, _)| name.ends_with(".blob")).unwrap();
    flip(&vfs, &store_path().join(name), 6000);
    let db = builder(&vfs).open().unwrap();
    assert!(db.existing_keyspace("items").unwrap().get("large").is_err());
    let problems = db.check(CheckLevel::Full).unwrap().problems;
    assert_names(&problems[0], name, "blob of a memtable");
    assert_eq!(problems.len(), 1);
}

/// The last record of a manifest may have been torn by a crash, so its damage cuts it off. When it
/// made a keyspace, the journal's writes to that keyspace were taken for those to a dropped one.
fn writes_to_a_keyspace_that_the_manifest_has_lost_are_not_passed_over(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    keyspace.put("key", "value").unwrap();
    let vfs = copy(&vfs, &store_path());
    let manifest = store_path().join("manifest-00000001");
    let len = contents(&vfs, &manifest).len() as u64;
    flip(&vfs, &manifest, len - 1);
    let error = builder(&vfs).open().unwrap_err();
    assert_names(&error, "manifest-00000001", "lost keyspace");
}

/// The same damage to the record of a flush whose memtable is no longer in the journal.
fn a_flush_that_the_manifest_has_lost_is_not_passed_over(kind: TreeKind) {
    let vfs = make_store(kind, false);
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    keyspace.flush().unwrap();
    while db.step().unwrap() {}
    let vfs = copy(&vfs, &store_path());
    let manifest = store_path().join("manifest-00000001");
    let len = contents(&vfs, &manifest).len() as u64;
    flip(&vfs, &manifest, len - 1);
    match examine(&vfs, "lost flush") {
        Outcome::Refused(error) => assert!(error.is_corruption(), "{error}"),
        Outcome::Opened { writes, errors } => {
            assert_eq!(writes, WRITES);
            assert!(errors.is_empty(), "{errors:?}");
        }
    }
}

fn a_damaged_journal_can_be_salvaged_up_to_the_damage(kind: TreeKind) {
    let store = make_store(kind, true);
    let journals = files(&store, &store_path());
    let journals = journals.into_iter().filter(|(name, _)| name.starts_with("journal"));
    let mut salvaged = 0;
    for (name, len) in journals {
        let path = store_path().join(&name);
        for place in (100..len).step_by(1500) {
            let damaged = copy(&store, &store_path());
            flip(&damaged, &path, place);
            let Err(error) = builder(&damaged).open() else { continue };
            assert_names(&error, &name, "refused");
            let db = builder(&damaged).salvage_journal(true).open().unwrap();
            let keyspace = db.existing_keyspace("items").unwrap();
            let writes = (0..WRITES)
                .take_while(|number| keyspace.get(key(*number)).unwrap().is_some())
                .count() as u64;
            assert!((300..WRITES).contains(&writes), "{name} {place}: {writes}");
            assert_eq!(keyspace.iter().count() as u64, writes, "{name} {place}");
            let report = db.recovery();
            let told = report.stopped.clone().unwrap_or_default();
            assert!(told.contains(&name), "{name} {place}: {told:?} {report:?}");
            keyspace.put("after", "1").unwrap();
            drop((keyspace, db));
            // What was given up does not come back, and is not asked for again.
            let db = builder(&damaged).open().unwrap();
            let keyspace = db.existing_keyspace("items").unwrap();
            assert_eq!(keyspace.iter().count() as u64, writes + 1, "{name} {place}");
            salvaged += 1;
        }
    }
    assert!(salvaged > 2, "{salvaged}");
}

/// Trees held what stood in a damaged part of the journal, so opening went past it. It said nothing
/// of it, and the next damage of that disk was the first that anyone heard of.
fn damage_of_a_part_of_the_journal_that_is_not_needed_is_told(kind: TreeKind) {
    let store = make_store(kind, true);
    let mut told = 0;
    for (name, len) in files(&store, &store_path()) {
        if !name.starts_with("journal") {
            continue;
        }
        for place in (64..len).step_by(400) {
            let damaged = copy(&store, &store_path());
            flip(&damaged, &store_path().join(&name), place);
            let Ok(db) = builder(&damaged).open() else { continue };
            let report = db.recovery();
            let keyspace = db.existing_keyspace("items").unwrap();
            let whole = keyspace.iter().count() as u64 == WRITES;
            if let [skipped] = &*report.journal_damage_skipped {
                assert!(whole && skipped.contains(&name), "{name} {place}: {report:?}");
                told += 1;
            }
        }
    }
    assert!(told > 0);
}
