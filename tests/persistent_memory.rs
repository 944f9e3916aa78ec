//! Stores whose journal and indexes are in a directory of their own, as on persistent memory.

#[macro_use]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{assert_sound, contents, copy, files, flip, pairs};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{
    Builder, Database, Durability, EmulatedMemory, Error, Keyspace, KeyspaceOptions, MIB,
    PersistentMemory, Repair, RepairBasis, TreeKind,
};

of_every_kind! {
    commits_survive_in_the_other_directory a_store_gets_its_memory_later
    repair_finds_the_journal_on_the_memory
}

const STORE: &str = "/store";
const MEMORY: &str = "/memory";

fn builder(vfs: &MemoryVfs, path: &str) -> Builder {
    Database::builder(path)
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(2 * MIB)
        .memtable_bytes(12 << 10)
        .deterministic(5)
}

fn with_memory(vfs: &MemoryVfs) -> Builder {
    builder(vfs, STORE).persistent_memory(PersistentMemory::at(MEMORY))
}

fn names(vfs: &MemoryVfs, dir: &str) -> Vec<String> {
    vfs.read_names(Path::new(dir)).unwrap()
}

fn has_journal(vfs: &MemoryVfs, dir: &str) -> bool {
    names(vfs, dir).iter().any(|name| name.starts_with("journal-"))
}

/// Puts pairs, of which the last are in the journal alone.
fn fill(db: &Database, kind: TreeKind, values: std::ops::Range<u32>) -> Keyspace {
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for value in values {
        items.put(format!("{:04}", value % 400), format!("{value:0100}")).unwrap();
    }
    items
}

fn expected(values: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    let newest = |key: u32| (0..values).rev().find(|value| value % 400 == key).unwrap();
    let pair =
        |key| (format!("{key:04}").into_bytes(), format!("{:0100}", newest(key)).into_bytes());
    (0..400.min(values)).map(pair).collect()
}

/// What the death of the process leaves now.
fn left_of(vfs: &MemoryVfs) -> MemoryVfs {
    let left = copy(vfs, Path::new(STORE));
    let others = [MEMORY, "/moved", "/other"].into_iter();
    others.filter(|dir| vfs.exists(Path::new(dir)).unwrap()).for_each(|dir| {
        copy_dir(vfs, dir, &left, dir);
    });
    left
}

fn assert_holds(db: &Database, values: u32) {
    assert_eq!(pairs(db.existing_keyspace("items").unwrap().iter()), expected(values));
    assert_sound(db);
}

fn commits_survive_in_the_other_directory(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, kind, 0..1_000);
    assert!(has_journal(&vfs, MEMORY) && !has_journal(&vfs, STORE));
    let left = left_of(&vfs);
    db.close().unwrap();
    for vfs in [vfs, left] {
        // Without a word of the memory, with it, and for reading.
        assert_holds(&builder(&vfs, STORE).open_read_only().unwrap(), 1_000);
        let db = builder(&vfs, STORE).open().unwrap();
        assert_holds(&db, 1_000);
        fill(&db, kind, 1_000..1_100);
        drop(db);
        let db = with_memory(&vfs).open().unwrap();
        assert_holds(&db, 1_100);
        assert!(has_journal(&vfs, MEMORY) && !has_journal(&vfs, STORE));
        // A checkpoint is a store by itself.
        db.checkpoint("/copy").unwrap();
        drop(db);
        let taken = builder(&vfs, "/copy").persistent_memory(PersistentMemory::at(MEMORY));
        assert_conflict(taken.open());
        assert_holds(&builder(&vfs, "/copy").open().unwrap(), 1_100);
    }
}

fn a_store_gets_its_memory_later(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs, STORE).open().unwrap();
    fill(&db, kind, 0..1_000);
    let vfs = left_of(&vfs);
    drop(db);
    assert!(has_journal(&vfs, STORE));
    let db = with_memory(&vfs).open().unwrap();
    assert_holds(&db, 1_000);
    let items = fill(&db, kind, 1_000..2_000);
    let left = left_of(&vfs);
    items.flush().unwrap();
    drop((db, items));
    for vfs in [vfs, left] {
        let db = builder(&vfs, STORE).open().unwrap();
        assert_holds(&db, 2_000);
        fill(&db, kind, 2_000..3_000).flush().unwrap();
        db.wait_idle().unwrap();
        // What the store's own directory had is not needed any more.
        assert!(!has_journal(&vfs, STORE), "{:?}", names(&vfs, STORE));
    }
}

fn repair_finds_the_journal_on_the_memory(kind: TreeKind) {
    for superblock in [true, false] {
        let vfs = MemoryVfs::new();
        let db = with_memory(&vfs).open().unwrap();
        fill(&db, kind, 0..1_000);
        let vfs = left_of(&vfs);
        drop(db);
        flip(&vfs, Path::new("/store/manifest-00000001"), 20);
        let mut repair = Repair::new(STORE).vfs(Arc::new(vfs.clone())).deterministic(5);
        if !superblock {
            vfs.remove(Path::new("/store/SPINNEY")).unwrap();
            vfs.remove(Path::new("/store/MEMORY")).unwrap();
            repair = repair.persistent_memory(PersistentMemory::at(MEMORY));
        }
        repair.into_new("/repaired").unwrap();
        assert!(!names(&vfs, "/repaired").contains(&"MEMORY".to_string()));
        assert_holds(&builder(&vfs, "/repaired").open().unwrap(), 1_000);
    }
}

/// A repair did not ask whose memory it was: it took the files of another store's along, if that was named or was in
/// the place of the store's own file. And it read memory that a copy of the store had open.
#[test]
fn repair_takes_the_stores_own_memory_alone() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000);
    let left = left_of(&vfs);
    drop(db);
    let vfs = left;
    let other = builder(&vfs, "/other").deterministic(6);
    drop(other.persistent_memory(PersistentMemory::at("/others")).open().unwrap());
    let file = Path::new("/store/MEMORY");
    vfs.remove(file).unwrap();
    let repair = |memory: Option<&str>| {
        let repair = Repair::new(STORE).vfs(Arc::new(vfs.clone())).deterministic(5);
        match memory {
            Some(memory) => repair.persistent_memory(PersistentMemory::at(memory)),
            None => repair,
        }
    };
    let result = repair(Some("/others")).into_new("/repaired");
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    let lock = vfs.lock(&Path::new(MEMORY).join("LOCK")).unwrap();
    let result = repair(Some(MEMORY)).into_new("/repaired");
    assert!(matches!(result, Err(Error::Locked { .. })), "{result:?}");
    drop(lock);
    vfs.hard_link(Path::new("/other/MEMORY"), file).unwrap();
    let report = repair(None).into_new("/without").unwrap();
    let is_named =
        |problem: &Error| matches!(problem, Error::Corruption { file: it, .. } if it == file);
    assert!(report.problems.iter().any(is_named) && !report.is_exact(), "{report:?}");
    let report = repair(Some(MEMORY)).into_new("/repaired").unwrap();
    assert!(report.problems.iter().any(is_named), "{report:?}");
    assert_holds(&builder(&vfs, "/repaired").open().unwrap(), 1_000);
}

/// A repair of a copy failed while the original was running, since that has the memory open. After that, it took what
/// the original had committed since for lost records of the copy's manifest.
#[test]
fn repair_of_a_copy_does_without_the_memory_of_the_original() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000).flush().unwrap();
    db.wait_idle().unwrap();
    copy_dir(&vfs, STORE, &vfs, "/twin");
    let repair = |to: &str, memory: Option<&str>| {
        let repair = Repair::new("/twin").vfs(Arc::new(vfs.clone())).deterministic(5);
        match memory {
            Some(memory) => repair.persistent_memory(PersistentMemory::at(memory)).into_new(to),
            None => repair.into_new(to),
        }
    };
    let assert_goes_without = |to: &str, why: &str| {
        let report = repair(to, None).unwrap();
        assert!(!report.is_exact() && report.basis == RepairBasis::Manifest, "{report:?}");
        assert!(report.problems.iter().any(|error| error.to_string().contains(why)), "{report:?}");
        assert_holds(&builder(&vfs, to).open().unwrap(), 1_000);
    };
    assert_goes_without("/first", "already open");
    let result = repair("/none", Some(MEMORY));
    assert!(matches!(result, Err(Error::Locked { .. })), "{result:?}");
    drop(db);
    let db = builder(&vfs, STORE).open().unwrap();
    fill(&db, TreeKind::default(), 1_000..1_050);
    let vfs_of_later = left_of(&vfs);
    drop(db);
    assert_goes_without("/second", "another moment");
    copy_dir(&vfs, "/twin", &vfs_of_later, "/twin");
    let named = Repair::new("/twin").vfs(Arc::new(vfs_of_later.clone())).deterministic(5);
    let named = named.persistent_memory(PersistentMemory::at(MEMORY));
    assert!(!named.into_new("/third").unwrap().is_exact());
    assert_holds(&builder(&vfs_of_later, "/third").open().unwrap(), 1_050);
}

/// A repair failed if the memory could not be looked up, although nobody had named it, and said that the store is none
/// if a file was in the memory's place.
#[test]
fn repair_goes_on_if_the_memory_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let [store, above] = ["store", "above"].map(|name| dir.path().join(name));
    let memory = above.join("memory");
    let builder = Database::builder(&store).memory_budget(2 * MIB).deterministic(5);
    let db = builder.persistent_memory(PersistentMemory::at(&memory)).open().unwrap();
    fill(&db, TreeKind::default(), 0..400).flush().unwrap();
    drop(db);
    for place in [&memory, &above] {
        std::fs::remove_dir_all(place).unwrap();
        std::fs::write(place, "a file").unwrap();
        let repaired = dir.path().join("repaired");
        let repair = || Repair::new(&store).deterministic(5);
        let report = repair().into_new(&repaired).unwrap();
        assert!(!report.is_exact() && report.problems.len() == 1, "{report:?}");
        let db = Database::builder(&repaired).deterministic(5).open().unwrap();
        assert_holds(&db, 400);
        drop(db);
        std::fs::remove_dir_all(&repaired).unwrap();
        let named = repair().persistent_memory(PersistentMemory::at(&memory)).into_new(&repaired);
        let error = named.unwrap_err();
        let is_of_memory = matches!(&error, Error::Io { path, .. } if path.starts_with(place));
        assert!(is_of_memory, "{error}");
    }
}

/// A repair took the store's own directory for its persistent memory, or another store's, if that was named or the file
/// there fitted.
#[test]
fn repair_takes_no_stores_own_directory_for_memory() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..400);
    drop(db);
    copy_dir(&vfs, STORE, &vfs, "/twin");
    let repair = |source: &str| Repair::new(source).vfs(Arc::new(vfs.clone())).deterministic(5);
    for place in [STORE, "/twin", "/store/../store"] {
        let repair = repair(STORE).persistent_memory(PersistentMemory::at(place));
        let error = repair.into_new("/none").unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("a store's own directory"), "{error}");
    }
    // A copy without a superblock, which is where it says that its memory is.
    vfs.remove(Path::new("/twin/SPINNEY")).unwrap();
    vfs.rename(Path::new(MEMORY), Path::new("/moved")).unwrap();
    vfs.rename(Path::new("/twin"), Path::new(MEMORY)).unwrap();
    let report = repair(MEMORY).into_new("/repaired").unwrap();
    let is_refused = |error: &Error| error.to_string().contains("a store's own directory");
    assert!(report.problems.iter().any(is_refused), "{report:?}");
}

fn assert_invalid(result: spinney::Result<Database>) {
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
}

fn assert_conflict(result: spinney::Result<Database>) {
    assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
}

/// The directory of a store without persistent memory was taken for one. The other store removed its files.
#[test]
fn a_directory_of_another_store_is_no_memory() {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs, MEMORY).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000);
    drop(db);
    assert_conflict(with_memory(&vfs).deterministic(7).open());
    vfs.create_dir_all(Path::new("/rest")).unwrap();
    vfs.create(Path::new("/rest/00000001.index"), Access::Buffered).unwrap();
    let memory = PersistentMemory::at("/rest");
    assert_conflict(builder(&vfs, "/third").persistent_memory(memory).open());
    assert_holds(&builder(&vfs, MEMORY).open().unwrap(), 1_000);
}

#[test]
fn a_store_is_not_opened_without_its_memory() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000);
    let vfs = left_of(&vfs);
    drop(db);
    let at = |path: &str| builder(&vfs, STORE).persistent_memory(PersistentMemory::at(path));
    // Another directory that is empty, and one that is another store's.
    assert_conflict(at("/elsewhere").open());
    assert!(!vfs.exists(Path::new("/elsewhere")).unwrap());
    let other = builder(&vfs, "/other").deterministic(6);
    drop(other.persistent_memory(PersistentMemory::at("/others")).open().unwrap());
    assert_conflict(at("/others").open());
    assert_invalid(at("/store/inside").open());
    // It has been moved.
    vfs.rename(Path::new(MEMORY), Path::new("/moved")).unwrap();
    assert_invalid(at("/elsewhere").open());
    assert_invalid(builder(&vfs, STORE).open());
    assert_invalid(builder(&vfs, STORE).open_read_only());
    assert_holds(&at("/moved").open_read_only().unwrap(), 1_000);
    drop(at("/moved").open().unwrap());
    let db = builder(&vfs, STORE).open().unwrap();
    assert_holds(&db, 1_000);
    fill(&db, TreeKind::default(), 1_000..1_010);
    let vfs = left_of(&vfs);
    drop(db);
    // It is lost, with the commits that were there alone.
    vfs.rename(Path::new("/moved"), Path::new("/lost")).unwrap();
    assert_invalid(builder(&vfs, STORE).open());
    let memory = PersistentMemory::at("/new");
    let salvaged = builder(&vfs, STORE).persistent_memory(memory).salvage_journal(true);
    let db = salvaged.open().unwrap();
    assert!(!db.recovery().journal_damage.is_empty(), "{:?}", db.recovery());
    fill(&db, TreeKind::default(), 0..10);
    drop(db);
    // It is found again: it has not what has been committed since.
    assert_conflict(at("/lost").open());
    assert_conflict(at("/lost").salvage_journal(true).open());
    vfs.rename(Path::new("/new"), Path::new("/gone")).unwrap();
    assert_conflict(at("/lost").open());
    vfs.rename(Path::new("/lost"), Path::new("/new")).unwrap();
    assert_conflict(builder(&vfs, STORE).open());
    vfs.rename(Path::new("/new"), Path::new("/lost")).unwrap();
    vfs.rename(Path::new("/gone"), Path::new("/new")).unwrap();
    // What was refused has changed nothing. The assertion could not fail: it was content with the file `MEMORY`.
    assert!(has_journal(&vfs, "/new"));
    assert_sound(&builder(&vfs, STORE).open().unwrap());
}

/// A salvage that failed, since it cannot skip commits of a keyspace that cannot be opened, had given up the lost
/// memory before: it was refused when it was there again.
#[test]
fn a_salvage_that_fails_does_not_give_up_the_lost_memory() {
    let vfs = MemoryVfs::new();
    let options = KeyspaceOptions::new(TreeKind::default());
    let db = builder(&vfs, STORE).open().unwrap();
    let bad = db.keyspace("bad", options).unwrap();
    bad.put("early", "value").unwrap();
    bad.flush().unwrap();
    let tables = |(name, _): &(String, u64)| name.ends_with(".table");
    let (table, len) = files(&vfs, Path::new(STORE)).into_iter().find(tables).unwrap();
    // Needs the journal in the store's own directory.
    bad.put("late", "value").unwrap();
    drop((db, bad));
    let db = with_memory(&vfs).open().unwrap();
    // Is ahead of the journal without the memory.
    fill(&db, TreeKind::default(), 0..100).flush().unwrap();
    fill(&db, TreeKind::default(), 100..110);
    let left = left_of(&vfs);
    drop(db);
    let vfs = left;
    flip(&vfs, &Path::new(STORE).join(table), len - 4096 + 30);
    vfs.rename(Path::new(MEMORY), Path::new("/moved")).unwrap();
    let at = |path: &str| builder(&vfs, STORE).persistent_memory(PersistentMemory::at(path));
    let error = at("/new").salvage_journal(true).open().unwrap_err();
    assert!(error.is_corruption(), "{error}");
    let db = at("/moved").open().unwrap();
    assert_eq!(db.recovery().keyspaces_not_opened, ["bad"]);
    assert_eq!(pairs(db.existing_keyspace("items").unwrap().iter()), expected(110));
}

/// A journal that is whole was out of reach of every way to it.
#[test]
fn a_damaged_file_of_the_memory_does_not_take_the_journal_along() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000);
    let vfs = left_of(&vfs);
    drop(db);
    flip(&vfs, Path::new("/memory/MEMORY"), 30);
    let report = Repair::new(STORE).vfs(Arc::new(vfs.clone())).deterministic(5);
    let report = report.into_new("/repaired").unwrap();
    assert!(!report.is_exact(), "{report:?}");
    assert_holds(&builder(&vfs, "/repaired").open().unwrap(), 1_000);
    let memory = PersistentMemory::at("/new");
    assert_conflict(builder(&vfs, STORE).persistent_memory(memory).salvage_journal(true).open());
    let db = with_memory(&vfs).salvage_journal(true).open().unwrap();
    assert_holds(&db, 1_000);
}

/// The error did not say how to open the store all the same. Later it said to remove the store's file, after which a
/// name of the memory that was wrong opened the store without its journal.
#[test]
fn damage_of_either_file_is_an_error_that_names_it() {
    for (file, advice) in
        [("/store/MEMORY", "name the directory of the store's"), ("/memory/MEMORY", "salvage")]
    {
        let vfs = MemoryVfs::new();
        drop(with_memory(&vfs).open().unwrap());
        flip(&vfs, Path::new(file), 30);
        let assert_error = |builder: Builder, advice: &str| {
            let error = builder.open().unwrap_err();
            assert!(
                matches!(&error, Error::Corruption { file: named, .. } if *named == *file),
                "{error}"
            );
            assert!(error.to_string().contains(advice), "{error}");
        };
        assert_error(builder(&vfs, STORE), advice);
        match file {
            "/store/MEMORY" => {
                vfs.rename(Path::new(MEMORY), Path::new("/moved")).unwrap();
                assert_error(with_memory(&vfs), "make it available");
                assert!(!vfs.exists(Path::new(MEMORY)).unwrap());
                vfs.rename(Path::new("/moved"), Path::new(MEMORY)).unwrap();
                drop(with_memory(&vfs).open().unwrap());
                assert_sound(&builder(&vfs, STORE).open().unwrap());
            }
            _ => assert_error(with_memory(&vfs), advice),
        }
    }
}

/// If both files are lost, the error said of the store's own segments that they are of another.
#[test]
fn without_both_files_the_memory_is_told_by_its_segments() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000);
    let left = left_of(&vfs);
    drop(db);
    let vfs = left;
    vfs.remove(Path::new("/store/MEMORY")).unwrap();
    flip(&vfs, Path::new("/memory/MEMORY"), 30);
    let error = with_memory(&vfs).salvage_journal(true).open().unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("which is of this store") && text.contains("repair"), "{error}");
    let repair = Repair::new(STORE).vfs(Arc::new(vfs.clone())).deterministic(5);
    repair.persistent_memory(PersistentMemory::at(MEMORY)).into_new("/repaired").unwrap();
    assert_holds(&builder(&vfs, "/repaired").open().unwrap(), 1_000);
    let other =
        builder(&vfs, "/other").deterministic(6).persistent_memory(PersistentMemory::at(MEMORY));
    let error = other.salvage_journal(true).open().unwrap_err().to_string();
    assert!(error.contains("which is of another store"), "{error}");
}

/// A salvage took another store's journal for its own, and removed it, if the memory was lost, another store's was in
/// its place, and the file of that was damaged or not there.
#[test]
fn a_salvage_takes_no_journal_of_another_store() {
    let vfs = MemoryVfs::new();
    let other = |vfs: &MemoryVfs| {
        builder(vfs, "/other").deterministic(6).persistent_memory(PersistentMemory::at(MEMORY))
    };
    drop(other(&vfs).open().unwrap());
    vfs.rename(Path::new(MEMORY), Path::new("/lost")).unwrap();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..1_000);
    for is_damaged in [true, false] {
        let vfs = left_of(&vfs);
        let file = Path::new("/memory/MEMORY");
        match is_damaged {
            true => flip(&vfs, file, 30),
            false => vfs.remove(file).unwrap(),
        }
        let error = other(&vfs).salvage_journal(true).open().unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        assert!(error.to_string().contains("which is of another store"), "{error}");
        assert_holds(&with_memory(&vfs).salvage_journal(true).open().unwrap(), 1_000);
    }
}

/// Two copies of a store would write to the same journal. If both directories had been copied, and the first store was
/// not there, the error said to leave the name of the copied memory out: then the copy took the memory of the first.
/// Without the repair, the message does not name the first store, and says so.
#[test]
fn two_copies_of_a_directory_do_not_share_a_memory() {
    let vfs = MemoryVfs::new();
    drop(with_memory(&vfs).open().unwrap());
    let copied = copy(&vfs, Path::new(STORE));
    vfs.create_dir_all(Path::new("/twin")).unwrap();
    for name in names(&copied, STORE) {
        let from = Path::new(STORE).join(&name);
        vfs.hard_link(&from, &Path::new("/twin").join(&name)).unwrap();
    }
    let first = builder(&vfs, STORE).open().unwrap();
    assert_conflict(builder(&vfs, "/twin").open());
    drop(first);
    assert_conflict(builder(&vfs, "/twin").open());
    copy_dir(&vfs, STORE, &vfs, "/copy");
    copy_dir(&vfs, MEMORY, &vfs, "/copied");
    let [of_memory, of_copy] = [MEMORY, "/copied"].map(|dir| everything(&vfs, dir));
    for is_there in [true, false] {
        if !is_there {
            vfs.rename(Path::new(STORE), Path::new("/unmounted")).unwrap();
        }
        let copy = builder(&vfs, "/copy").persistent_memory(PersistentMemory::at("/copied"));
        let error = copy.open().unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("a copy of the store /store,") && text.contains("repair"), "{text}");
        assert!(!text.contains("leave the name out"), "{text}");
    }
    assert_eq!(everything(&vfs, MEMORY), of_memory);
    assert_eq!(everything(&vfs, "/copied"), of_copy);
    vfs.rename(Path::new("/unmounted"), Path::new(STORE)).unwrap();
    // Nor when the first is not there: the memory has what the first has committed since.
    vfs.rename(Path::new(STORE), Path::new("/moved")).unwrap();
    assert_conflict(builder(&vfs, "/twin").open());
    drop(builder(&vfs, "/moved").open().unwrap());
    drop(builder(&vfs, "/moved").open().unwrap());
}

/// Copies a directory within a file system, or to another.
fn copy_dir(from: &MemoryVfs, dir: &str, to: &MemoryVfs, new_dir: &str) {
    to.create_dir_all(Path::new(new_dir)).unwrap();
    for (name, _) in files(from, Path::new(dir)) {
        let file = to.create(&Path::new(new_dir).join(&name), Access::Buffered).unwrap();
        file.write_at(0, &contents(from, &Path::new(dir).join(name))).unwrap();
    }
}

/// The names and contents of a directory's files.
fn everything(vfs: &MemoryVfs, dir: &str) -> Vec<(String, Vec<u8>)> {
    let names = files(vfs, Path::new(dir)).into_iter().map(|(name, _)| name);
    names.map(|name| (name.clone(), contents(vfs, &Path::new(dir).join(name)))).collect()
}

/// What there is after a backup from before the store had persistent memory has been restored: the store of that time,
/// and a memory with commits that have come since.
fn restored(openings: u32) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    drop(builder(&vfs, STORE).journal_shards(1).open().unwrap());
    let restored = copy(&vfs, Path::new(STORE));
    let mut db = with_memory(&vfs).journal_shards(1).open().unwrap();
    for _ in 1..openings {
        drop(db);
        db = with_memory(&vfs).journal_shards(1).open().unwrap();
    }
    let items = db.keyspace("items", KeyspaceOptions::new(TreeKind::default())).unwrap();
    for key in ["a0", "a1", "a2"] {
        let mut batch = db.batch().durability(Durability::Sync);
        batch.put(&items, key, "memory");
        batch.commit().unwrap();
    }
    copy_dir(&vfs, MEMORY, &restored, MEMORY);
    restored
}

/// A store that had been restored from a backup, and had gone on without the memory that it had got since, took that
/// memory if it was named. It removed the journal there, or read it in place of its own of the same epoch. Without the
/// repair, each opening with the memory succeeds.
#[test]
fn a_store_that_went_on_without_the_memory_does_not_take_it() {
    for is_reopened in [false, true] {
        let vfs = restored(1);
        let mut db = builder(&vfs, STORE).journal_shards(1).open().unwrap();
        fill(&db, TreeKind::default(), 0..5);
        if is_reopened {
            db.existing_keyspace("items").unwrap().flush().unwrap();
            drop(db);
            db = builder(&vfs, STORE).journal_shards(1).open().unwrap();
        }
        drop(db);
        let [of_store, of_memory] = [STORE, MEMORY].map(|dir| everything(&vfs, dir));
        for salvage in [false, true] {
            assert_conflict(with_memory(&vfs).salvage_journal(salvage).open());
        }
        assert_conflict(with_memory(&vfs).open_read_only());
        assert_eq!(everything(&vfs, STORE), of_store);
        assert_eq!(everything(&vfs, MEMORY), of_memory);
        // A repair of both reads one side of an epoch. It said that nothing was missing.
        let repair = Repair::new(STORE).vfs(Arc::new(vfs.clone())).deterministic(5);
        let report = repair.persistent_memory(PersistentMemory::at(MEMORY)).into_new("/repaired");
        let problems = report.as_ref().map(|report| format!("{:?}", report.problems));
        assert!(problems.is_ok_and(|problems| problems.contains("are left out")), "{report:?}");
        assert_holds(&builder(&vfs, STORE).open().unwrap(), 5);
    }
}

/// One that had been opened as often, and had written nothing, had the same epoch: the memory was taken.
#[test]
fn a_store_that_was_opened_as_often_does_not_take_the_memory() {
    let vfs = restored(1);
    drop(builder(&vfs, STORE).journal_shards(1).open().unwrap());
    assert_conflict(with_memory(&vfs).open());
}

/// A backup that was opened with a memory of a later moment could not be opened again, with the memory or without it:
/// the opening had failed only after it had written both files. Without the repair, the error is one of a damaged
/// journal, and the store has a file `MEMORY`.
#[test]
fn a_memory_of_a_later_moment_does_not_spoil_a_backup() {
    for openings in [1, 2] {
        let vfs = restored(openings);
        let of_memory = everything(&vfs, MEMORY);
        for salvage in [false, true] {
            let error = with_memory(&vfs).salvage_journal(salvage).open().unwrap_err();
            assert!(matches!(error, Error::Conflict { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("later moment") && text.contains("spinney repair"), "{text}");
        }
        assert!(!names(&vfs, STORE).contains(&"MEMORY".to_string()));
        assert_eq!(everything(&vfs, MEMORY), of_memory);
        assert_sound(&builder(&vfs, STORE).open().unwrap());
    }
}

/// Of two segments of one name, the memory's hid the store's, and a retirement removed both. Without the repair, the
/// opening for writing succeeds.
#[test]
fn an_epoch_has_its_segments_in_one_directory() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..100);
    let vfs = left_of(&vfs);
    drop(db);
    let is_segment = |name: &String| name.starts_with("journal-");
    let segment = names(&vfs, MEMORY).into_iter().find(is_segment).unwrap();
    let [here, there] = [MEMORY, STORE].map(|dir| Path::new(dir).join(&segment));
    vfs.hard_link(&here, &there).unwrap();
    let error = builder(&vfs, STORE).open().unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(error.to_string().contains("made in one of the two"), "{error}");
    assert!(names(&vfs, STORE).contains(&segment));
    assert_holds(&builder(&vfs, STORE).open_read_only().unwrap(), 100);
    vfs.remove(&there).unwrap();
    assert_holds(&builder(&vfs, STORE).open().unwrap(), 100);
}

/// The directory of the store that this one is a copy of was taken for persistent memory, and written to, if it was
/// named and the memory was not where both say.
#[test]
fn a_stores_own_directory_is_no_memory_although_its_file_fits() {
    let vfs = MemoryVfs::new();
    drop(with_memory(&vfs).open().unwrap());
    copy_dir(&vfs, STORE, &vfs, "/twin");
    vfs.rename(Path::new(MEMORY), Path::new("/moved")).unwrap();
    let twin = || builder(&vfs, "/twin").persistent_memory(PersistentMemory::at(STORE));
    for salvage in [false, true] {
        let error = twin().salvage_journal(salvage).open().unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        assert!(error.to_string().contains("a store's own directory"), "{error}");
    }
    assert_conflict(twin().open_read_only());
    vfs.rename(Path::new("/moved"), Path::new(MEMORY)).unwrap();
    drop(builder(&vfs, STORE).open().unwrap());
}

/// A store that had been moved to where its persistent memory was, or whose memory had been moved to where the store
/// was, was taken for a copy of itself.
#[test]
fn a_store_and_its_memory_may_change_places() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..100);
    drop(db);
    let mut places = (STORE, MEMORY);
    for moved in [("/third", STORE), (MEMORY, STORE), (STORE, MEMORY), (STORE, "/third")] {
        vfs.rename(Path::new(places.1), Path::new("/between")).unwrap();
        vfs.rename(Path::new(places.0), Path::new("/moved")).unwrap();
        vfs.rename(Path::new("/moved"), Path::new(moved.0)).unwrap();
        vfs.rename(Path::new("/between"), Path::new(moved.1)).unwrap();
        let memory = PersistentMemory::at(moved.1);
        assert_holds(&builder(&vfs, moved.0).persistent_memory(memory).open().unwrap(), 100);
        assert_holds(&builder(&vfs, moved.0).open().unwrap(), 100);
        places = moved;
    }
}

/// A store that had been moved, with a symbolic link left at its old place, was taken for a copy of itself. Persistent
/// memory that had been moved in this way could not be named.
#[test]
fn a_symbolic_link_at_the_old_place_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let [store, memory] = ["store", "memory"].map(|name| dir.path().join(name));
    let [moved, moved_memory] = ["moved", "moved_memory"].map(|name| dir.path().join(name));
    let open = |store: &Path, memory: Option<&Path>| {
        let builder = Database::builder(store).memory_budget(2 * MIB).deterministic(5);
        match memory {
            Some(memory) => builder.persistent_memory(PersistentMemory::at(memory)).open(),
            None => builder.open(),
        }
    };
    fill(&open(&store, Some(&memory)).unwrap(), TreeKind::default(), 0..100);
    std::fs::rename(&store, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &store).unwrap();
    assert_holds(&open(&moved, None).unwrap(), 100);
    std::fs::rename(&memory, &moved_memory).unwrap();
    std::os::unix::fs::symlink(&moved_memory, &memory).unwrap();
    assert_holds(&open(&moved, None).unwrap(), 100);
    std::fs::rename(&moved_memory, memory.with_extension("again")).unwrap();
    std::fs::remove_file(&memory).unwrap();
    std::os::unix::fs::symlink(memory.with_extension("again"), &moved_memory).unwrap();
    assert_holds(&open(&moved, Some(&memory.with_extension("again"))).unwrap(), 100);
    assert_holds(&open(&moved, Some(&moved_memory)).unwrap(), 100);
}

/// A store that had been moved could not be opened if its old place was below a file now, had another store's file that
/// was damaged, or could not be read. Nor could one be opened whose memory had been moved and was named, if the old
/// place of that could not be read or was a file now, and that error said nothing of what to do.
#[test]
fn an_old_place_that_cannot_be_looked_up_is_not_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let [above, memory] = ["above", "memory"].map(|name| dir.path().join(name));
    let [moved, moved_memory] = ["moved", "moved_memory"].map(|name| dir.path().join(name));
    let builder = |store: &Path, memory: &Path| {
        let builder = Database::builder(store).memory_budget(2 * MIB).deterministic(5);
        builder.persistent_memory(PersistentMemory::at(memory))
    };
    let open = |store: &Path, memory: &Path| builder(store, memory).open();
    let store = above.join("store");
    fill(&open(&store, &memory).unwrap(), TreeKind::default(), 0..100);
    std::fs::rename(&store, &moved).unwrap();
    std::fs::remove_dir(&above).unwrap();
    std::fs::write(&above, "a file").unwrap();
    assert_holds(&open(&moved, &memory).unwrap(), 100);
    std::fs::rename(&moved, dir.path().join("moved_again")).unwrap();
    std::fs::create_dir(&moved).unwrap();
    for name in ["SPINNEY", "MEMORY"] {
        std::fs::write(moved.join(name), "another's").unwrap();
    }
    let moved = dir.path().join("moved_again");
    assert_holds(&open(&moved, &memory).unwrap(), 100);
    std::fs::rename(&memory, &moved_memory).unwrap();
    std::fs::write(&memory, "a file").unwrap();
    assert_holds(&open(&moved, &moved_memory).unwrap(), 100);
    // A path that nobody can look up: a link to itself.
    let [store, memory] = ["again", "memory_again"].map(|name| dir.path().join(name));
    for (old, new) in [(&moved, &store), (&moved_memory, &memory)] {
        std::fs::rename(old, new).unwrap();
        std::os::unix::fs::symlink(old, old).unwrap();
    }
    let new = dir.path().join("new");
    let error = open(&store, &new).unwrap_err();
    assert!(matches!(&error, Error::Conflict { .. }), "{error}");
    assert!(error.to_string().contains("move it away"), "{error}");
    assert_holds(&open(&store, &memory).unwrap(), 100);
    // A file in its place has no journal.
    std::fs::remove_dir_all(&memory).unwrap();
    std::fs::write(&memory, "a file").unwrap();
    drop(builder(&store, &new).salvage_journal(true).open().unwrap());
    assert_sound(&open(&store, &new).unwrap());
}

/// A checkpoint, and the store that a repair makes, could be put into the persistent memory. Without the repair of this,
/// all of them succeed.
#[test]
fn no_store_is_made_inside_the_memory() {
    let vfs = MemoryVfs::new();
    let db = with_memory(&vfs).open().unwrap();
    fill(&db, TreeKind::default(), 0..10);
    let result = db.checkpoint("/memory/copy");
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    drop(db);
    let repair = || Repair::new(STORE).vfs(Arc::new(vfs.clone())).deterministic(5);
    for repair in [repair(), repair().persistent_memory(PersistentMemory::at(MEMORY))] {
        let result = repair.into_new("/memory/repaired");
        assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    }
    assert_holds(&builder(&vfs, STORE).open().unwrap(), 10);
}

/// A commit that is to survive waits for the memory, and not for the disk.
#[test]
fn emulated_memory_is_as_slow_as_it_is_told_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let memory = EmulatedMemory { fence_nanos: 200_000, ..EmulatedMemory::default() };
    let memory = PersistentMemory::at(dir.path().join("memory")).emulated(memory);
    let db = Database::builder(dir.path().join("store")).persistent_memory(memory).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    let began = Instant::now();
    for number in 0..1_000u32 {
        let mut batch = db.batch().durability(Durability::Sync);
        batch.put(&keyspace, number.to_be_bytes(), "value");
        batch.commit().unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    // So is an index: each key that comes into it is a fence at least.
    let began = Instant::now();
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    assert!((0..1_000u32).all(|number| keyspace.contains_key(number.to_be_bytes()).unwrap()));
    let on_memory = std::fs::read_dir(dir.path().join("memory")).unwrap();
    let mut on_memory: Vec<_> = on_memory.map(|entry| entry.unwrap().path()).collect();
    on_memory.retain(|path| path.extension().is_some_and(|extension| extension == "index"));
    assert_eq!(on_memory.len(), 1, "the index is on the memory");
    db.close().unwrap();
}
