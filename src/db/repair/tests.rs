//! Repair of what only this crate can damage.

use std::path::Path;
use std::sync::Arc;

use super::super::database::Database;
use super::Repair;
use crate::base::key_hash::HashSecret;
use crate::manifest::{Edit, KeyspaceChange, KeyspaceEdit, Manifest, NewStore, OpenOptions};
use crate::tree::kinds::TreeKind;
use crate::tree::options::KeyspaceOptions;
use crate::vfs::{MemoryVfs, Vfs};

/// Options that could not be decoded failed the repair of all keyspaces.
#[test]
fn a_keyspace_whose_options_are_lost_is_copied_with_those_of_a_new_one() {
    for (kind, version) in TreeKind::ALL.iter().flat_map(|&kind| [(kind, 0), (kind, 99)]) {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let (path, target) = (Path::new("/store"), Path::new("/target"));
        let db = Database::builder(path).vfs(Arc::clone(&vfs)).deterministic(1).open().unwrap();
        let options = KeyspaceOptions::new(kind).seek_compaction(false).merge_operator("append");
        for name in ["odd", "whole"] {
            let keyspace = db.keyspace(name, options.clone()).unwrap();
            keyspace.put("a", "1").unwrap();
            keyspace.flush().unwrap();
            keyspace.merge("a", "2").unwrap();
        }
        db.close().unwrap();
        let new_store = NewStore { store_id: 1, hash_secret: HashSecret::default() };
        let open = OpenOptions { create: false, new_store };
        let (manifest, found) = Manifest::open(&vfs, path, open).unwrap();
        let id = found.keyspaces.iter().find(|keyspace| keyspace.meta.name == "odd").unwrap().id;
        let change = KeyspaceChange::Options(vec![version, 200]);
        let edit = Edit { keyspaces: vec![KeyspaceEdit { id, change }], ..Edit::default() };
        manifest.commit(&edit).unwrap();
        drop(manifest);
        let repair = Repair::new(path).vfs(Arc::clone(&vfs)).deterministic(1);
        let report = repair.into_new(target).unwrap();
        let [odd, whole] = &report.keyspaces[..] else { panic!("{report:#?}") };
        assert!(odd.options_lost.is_some() && whole.options_lost.is_none(), "{report:#?}");
        assert!(!report.is_exact() && report.damage.is_empty(), "{report:#?}");
        let db = Database::builder(target).vfs(Arc::clone(&vfs)).deterministic(1).open().unwrap();
        let new = KeyspaceOptions::new(kind).merge_operator("append");
        for (name, expected) in [("odd", &new), ("whole", &options)] {
            let keyspace = db.existing_keyspace(name).unwrap();
            assert_eq!(&keyspace.options(), expected);
            assert_eq!(keyspace.get("a").unwrap().as_deref(), Some(&b"12"[..]));
        }
    }
}

/// A kind without tables cannot be repaired. Its error was dropped: its keyspace came out without what had been flushed,
/// nothing said so, and the other keyspaces were no longer read as the manifest says them.
#[cfg(feature = "example")]
#[test]
fn a_keyspace_without_tables_is_reported_as_left_out() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let (path, target) = (Path::new("/store"), Path::new("/target"));
    let db = Database::builder(path).vfs(Arc::clone(&vfs)).deterministic(1).open().unwrap();
    for (name, kind) in [("tables", TreeKind::default()), ("none", TreeKind::FOR_TESTS[0])] {
        let keyspace = db.keyspace(name, KeyspaceOptions::new(kind)).unwrap();
        keyspace.put("a", "1").unwrap();
        keyspace.flush().unwrap();
    }
    db.close().unwrap();
    let report = Repair::new(path).vfs(Arc::clone(&vfs)).deterministic(1).into_new(target).unwrap();
    let said = |left_out: &String| left_out.contains("\"none\"") && left_out.contains("no tables");
    assert!(matches!(&report.left_out[..], [one] if said(one)), "{report:#?}");
    assert!(!report.is_exact(), "{report:#?}");
    let db = Database::builder(target).vfs(vfs).deterministic(1).open().unwrap();
    let tables = db.existing_keyspace("tables").unwrap();
    assert_eq!(tables.get("a").unwrap().as_deref(), Some(&b"1"[..]));
}
