//! Where checkpoints may go, and what they do where no hard link can be made.

mod common;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::{Calls, WatchedVfs, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{CheckLevel, Database, Error, KeyspaceOptions};

/// A checkpoint to another file system ended with "Invalid cross-device link".
#[test]
fn where_files_cannot_be_linked_they_are_copied() {
    for refusal in [ErrorKind::CrossesDevices, ErrorKind::Unsupported, ErrorKind::PermissionDenied]
    {
        let vfs = WatchedVfs::new(MemoryVfs::new());
        let db = Database::builder(store_path())
            .vfs(Arc::new(vfs.clone()))
            .deterministic(1)
            .open()
            .unwrap();
        let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        for key in 0..500u32 {
            items.put(key.to_be_bytes(), vec![key as u8; 100]).unwrap();
        }
        items.put("large", vec![7; 3 << 20]).unwrap();
        let copy = Path::new("/elsewhere/copy");
        vfs.fail(Calls::Links, 1, u64::MAX / 2, refusal);
        let mut last = None;
        db.checkpoint_with(copy, |progress| last = Some(progress)).unwrap();
        assert!(vfs.failed() > 1, "a table and a blob file at least");
        let last = last.unwrap();
        assert_eq!(last.files, last.files_total);
        assert!(last.bytes_copied > 3 << 20, "{last:?}");
        items.put("large", "small").unwrap();
        vfs.mend();
        let copied =
            Database::builder(copy).vfs(Arc::new(vfs.clone())).deterministic(1).open().unwrap();
        assert_eq!(copied.check(CheckLevel::Full).unwrap().problems.len(), 0);
        let items = copied.existing_keyspace("items").unwrap();
        assert_eq!(items.count(..).unwrap(), 501);
        assert_eq!(*items.get("large").unwrap().unwrap(), vec![7; 3 << 20]);
    }
}

/// A store took a checkpoint into itself: a directory that it does not know, beside its own files.
#[test]
fn a_checkpoint_into_the_store_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let db = Database::builder(&path).open().unwrap();
    db.keyspace("items", KeyspaceOptions::stb()).unwrap().put("a", "1").unwrap();
    std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
    for inside in
        ["store/copy", "store/a/b", "store", "store/../store/copy", "link/copy", "x/../store/copy"]
    {
        let refused = db.checkpoint(directory.path().join(inside));
        let is_right = match inside {
            // That is a directory which is not empty.
            "store" => matches!(refused, Err(Error::Conflict { .. })),
            _ => matches!(refused, Err(Error::InvalidArgument { .. })),
        };
        assert!(is_right, "{inside}: {refused:?}");
    }
    assert!(!path.join("copy").exists());
    for outside in ["store2", "storecopy/a", "store/../copy"] {
        db.checkpoint(directory.path().join(outside)).unwrap();
        Database::builder(directory.path().join(outside)).open().unwrap();
    }
}

/// The error was "lock failed … Not a directory".
#[test]
fn a_file_is_named_as_no_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "text").unwrap();
    let refused = Database::builder(&path).open();
    assert!(matches!(refused, Err(Error::NotAStore { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("a store is a directory"));
}
