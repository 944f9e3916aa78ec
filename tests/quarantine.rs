//! One keyspace's trouble does not keep the others from being opened, and nothing of it is lost meanwhile.

#[macro_use]
mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{files, flip, store_path};
use spinney::vfs::{MemoryVfs, Vfs};
use spinney::{CheckLevel, Database, Error, KeyspaceOptions, MIB, TreeKind};

of_every_kind! {
    a_damaged_keyspace_keeps_no_other_from_being_opened
    a_damaged_keyspace_can_be_dropped
    a_damaged_value_in_the_journal_keeps_no_other_keyspace_from_being_opened
}

fn open(vfs: &Arc<dyn Vfs>) -> Database {
    let builder = Database::builder(store_path()).vfs(Arc::clone(vfs)).memory_budget(MIB);
    builder.memtable_bytes(4096).deterministic(1).open().unwrap()
}

/// A store with the keyspaces `bad` and `good`, closed; the last byte of `bad`'s table has been changed.
fn damaged_store(kind: TreeKind) -> (Arc<dyn Vfs>, PathBuf, u64) {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let db = open(&vfs);
    let options = KeyspaceOptions::new(kind);
    let bad = db.keyspace("bad", options.clone()).unwrap();
    bad.put("early", "value").unwrap();
    // In a blob file that its table alone names.
    bad.put("large", vec![7; 9000]).unwrap();
    bad.flush().unwrap();
    db.wait_idle().unwrap();
    let table = files(&*vfs, &store_path()).into_iter().find(|(name, _)| name.ends_with(".table"));
    // In the journal, and in a blob file that the journal alone names.
    bad.put("late", "value").unwrap();
    bad.put("late and large", vec![7; 20_000]).unwrap();
    db.keyspace("good", options).unwrap().put("key", "value").unwrap();
    drop(bad);
    db.close().unwrap();
    let (name, len) = table.unwrap();
    let path = store_path().join(name);
    // In the footer.
    flip(&*vfs, &path, len - 4096 + 30);
    (vfs, path, len - 4096 + 30)
}

fn names_the_file(error: &Error, path: &Path) -> bool {
    matches!(error, Error::Corruption { file, .. } if file == path)
}

/// A table of one keyspace whose footer could not be read kept the whole store from being opened.
fn a_damaged_keyspace_keeps_no_other_from_being_opened(kind: TreeKind) {
    let (vfs, path, byte) = damaged_store(kind);
    for round in 0..2 {
        let db = open(&vfs);
        assert_eq!(db.keyspaces(), ["bad", "good"]);
        assert_eq!(db.recovery().keyspaces_not_opened, ["bad"]);
        let error = db.existing_keyspace("bad").unwrap_err();
        assert!(names_the_file(&error, &path), "{error}");
        let error = db.keyspace("bad", KeyspaceOptions::new(kind)).unwrap_err();
        assert!(names_the_file(&error, &path), "never as an empty one: {error}");
        let report = db.check(CheckLevel::Structure).unwrap();
        assert!(report.problems.iter().any(|problem| names_the_file(problem, &path)));
        let error = db.checkpoint("/data/copy").unwrap_err();
        assert!(names_the_file(&error, &path), "{error}");
        // Enough that the journal would be given up as far as `good` is concerned, and the manifest written anew.
        let good = db.existing_keyspace("good").unwrap();
        assert!(good.get("key").unwrap().is_some());
        for i in 0..600u32 {
            good.put((round * 1000 + i).to_be_bytes(), [7; 100]).unwrap();
            if i % 10 == 0 {
                good.flush().unwrap();
            }
        }
        good.compact(..).unwrap();
        db.wait_idle().unwrap();
        drop(good);
        db.close().unwrap();
    }
    // The byte is as it was.
    flip(&*vfs, &path, byte);
    let db = open(&vfs);
    assert!(db.recovery().keyspaces_not_opened.is_empty());
    let bad = db.existing_keyspace("bad").unwrap();
    let lengths: Vec<usize> = bad.iter().map(|pair| pair.unwrap().1.len()).collect();
    assert_eq!(lengths, [5, 9000, 5, 20_000], "early, large, late, late and large");
    assert_eq!(db.existing_keyspace("good").unwrap().iter().count(), 1201);
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    db.checkpoint("/data/copy").unwrap();
}

fn a_damaged_keyspace_can_be_dropped(kind: TreeKind) {
    let (vfs, path, _) = damaged_store(kind);
    let db = open(&vfs);
    db.drop_keyspace("bad").unwrap();
    assert_eq!(db.keyspaces(), ["good"]);
    let error = db.existing_keyspace("bad").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(db.check(CheckLevel::Full).unwrap().problems.is_empty());
    let bad = db.keyspace("bad", KeyspaceOptions::new(kind)).unwrap();
    bad.put("new", "value").unwrap();
    drop(bad);
    db.close().unwrap();
    let db = open(&vfs);
    assert!(!vfs.exists(&path).unwrap(), "an orphan");
    let bad = db.existing_keyspace("bad").unwrap();
    assert_eq!(bad.iter().count(), 1);
}

/// A large value that the journal pointed to could not be read, and the whole store could not be opened. Its file is
/// another keyspace's too, which goes on and would delete it.
fn a_damaged_value_in_the_journal_keeps_no_other_keyspace_from_being_opened(kind: TreeKind) {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let db = open(&vfs);
    let options = KeyspaceOptions::new(kind);
    let good = db.keyspace("good", options.clone()).unwrap();
    let bad = db.keyspace("bad", options).unwrap();
    let mut batch = db.batch();
    batch.put(&bad, "large", vec![7; 20_000]);
    batch.put(&good, "large", vec![7; 20_000]);
    batch.commit().unwrap();
    bad.put("alone", vec![7; 20_000]).unwrap();
    drop((good, bad));
    db.close().unwrap();
    let blobs = files(&*vfs, &store_path()).into_iter().filter(|(name, _)| name.ends_with(".blob"));
    let (name, len) = blobs.max().unwrap();
    let path = store_path().join(name);
    flip(&*vfs, &path, len - 4096 + 30);
    let db = open(&vfs);
    assert_eq!(db.recovery().keyspaces_not_opened, ["bad"]);
    let error = db.existing_keyspace("bad").unwrap_err();
    assert!(names_the_file(&error, &path), "{error}");
    let good = db.existing_keyspace("good").unwrap();
    assert!(good.get("large").unwrap().is_some());
    good.delete("large").unwrap();
    good.put("other", "value").unwrap();
    for _ in 0..2 {
        good.compact(..).unwrap();
        db.wait_idle().unwrap();
    }
    drop(good);
    db.close().unwrap();
    flip(&*vfs, &path, len - 4096 + 30);
    let db = open(&vfs);
    let bad = db.existing_keyspace("bad").unwrap();
    let lengths: Vec<usize> = bad.iter().map(|pair| pair.unwrap().1.len()).collect();
    assert_eq!(lengths, [20_000; 2]);
    assert_eq!(db.existing_keyspace("good").unwrap().iter().count(), 1);
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
