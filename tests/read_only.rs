//! Opening for reading: everything is there, and nothing is written, whatever the store looks like.

#[macro_use]
mod common;

use std::sync::Arc;

use common::{Calls, WatchedVfs, contents, copy, files, pairs, store_path};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{
    Builder, CheckLevel, Database, Durability, Error, Keyspace, KeyspaceOptions, MIB, Result,
    TreeKind,
};

of_every_kind! {
    a_read_only_store_holds_everything_and_changes_no_byte every_writing_call_is_refused_by_name
    readers_share_a_store_and_exclude_writers a_checkpoint_can_be_read
    a_torn_journal_is_read_as_it_would_be_recovered
    a_journal_larger_than_the_budget_names_one_that_suffices damage_is_reported_as_ever
}

fn builder(vfs: &impl VfsClone) -> Builder {
    Database::builder(store_path())
        .vfs(vfs.boxed())
        .memory_budget(4 * MIB)
        .memtable_bytes(16 << 10)
        .deterministic(11)
}

/// A file system that can be handed to a builder.
trait VfsClone {
    fn boxed(&self) -> Arc<dyn Vfs>;
}

impl<V: Vfs + Clone + 'static> VfsClone for V {
    fn boxed(&self) -> Arc<dyn Vfs> {
        Arc::new(self.clone())
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A store with tables, memtables and blobs in two keyspaces, as it lies there when its process dies, and
/// what is in it.
fn left_behind(kind: TreeKind) -> (MemoryVfs, [Pairs; 2]) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let a = db.keyspace("a", KeyspaceOptions::new(kind)).unwrap();
    let b = db.keyspace("b", KeyspaceOptions::new(kind).blob_bytes_min(64)).unwrap();
    for i in 0..3000u32 {
        a.put(format!("{:05}", i * 7919 % 3000), format!("{i}")).unwrap();
        b.put(format!("{:05}", i % 50), vec![i as u8; 40 + i as usize % 90]).unwrap();
        if i % 5 == 0 {
            a.delete(format!("{:05}", i)).unwrap();
        }
    }
    // Past journal and memtable.
    b.put("large", vec![7; 100 << 10]).unwrap();
    let expected = [pairs(a.iter()), pairs(b.iter())];
    let dead = copy(&vfs, &store_path());
    (dead, expected)
}

/// Every name and byte of the store.
fn snapshot(vfs: &dyn Vfs) -> Vec<(String, Vec<u8>)> {
    let names = files(vfs, &store_path()).into_iter();
    names.map(|(name, _)| (name.clone(), contents(vfs, &store_path().join(name)))).collect()
}

fn found(db: &Database) -> [Pairs; 2] {
    ["a", "b"].map(|name| pairs(db.existing_keyspace(name).unwrap().iter()))
}

fn a_read_only_store_holds_everything_and_changes_no_byte(kind: TreeKind) {
    let (vfs, expected) = left_behind(kind);
    let before = snapshot(&vfs);
    assert!(before.iter().any(|(name, _)| name == "LOCK"));
    vfs.remove(&store_path().join("LOCK")).unwrap();
    let before = {
        assert_eq!(snapshot(&vfs).len(), before.len() - 1);
        snapshot(&vfs)
    };
    let watched = WatchedVfs::new(vfs.clone());
    for _ in 0..2 {
        let db = builder(&watched).open_read_only().unwrap();
        assert!(db.recovery().records_replayed > 0);
        assert!(found(&db) == expected);
        let a = db.existing_keyspace("a").unwrap();
        for (key, value) in expected[0].iter().step_by(97) {
            assert_eq!(a.get(key).unwrap().as_deref(), Some(&**value));
        }
        let backwards: Vec<_> = a.iter().rev().map(|pair| pair.unwrap().0.to_vec()).collect();
        assert!(backwards.iter().eq(expected[0].iter().rev().map(|(key, _)| key)));
        assert_eq!(db.check(CheckLevel::Full).unwrap().problems.len(), 0);
        assert_eq!(db.stats().keyspaces.len(), 2);
        a.describe().unwrap();
        db.wait_idle().unwrap();
        assert!(!db.step().unwrap());
        drop(a);
        db.close().unwrap();
    }
    assert_eq!(watched.count(Calls::Changes), 0);
    assert!(snapshot(&vfs) == before);
    // What a writer finds afterwards is what it would have found before.
    let db = builder(&vfs).open().unwrap();
    assert!(found(&db) == expected);
}

fn read_only(result: Result<impl Sized>) {
    match result {
        Err(Error::ReadOnly { path }) => assert_eq!(path, store_path()),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("accepted"),
    }
}

fn every_writing_call_is_refused_by_name(kind: TreeKind) {
    let (vfs, expected) = left_behind(kind);
    let db = builder(&vfs).open_read_only().unwrap();
    let a = db.existing_keyspace("a").unwrap();
    assert_eq!(db.keyspace("a", KeyspaceOptions::new(kind)).unwrap().name(), "a");
    read_only(a.put("k", "v"));
    read_only(a.put("k", vec![0; 1 << 20]));
    read_only(a.delete("k"));
    read_only(a.merge("k", "v"));
    read_only(a.flush());
    read_only(a.compact(..));
    read_only(db.keyspace("new", KeyspaceOptions::new(kind)));
    read_only(db.drop_keyspace("a"));
    read_only(db.sync());
    read_only(db.checkpoint("/copy"));
    for durability in [Durability::Buffered, Durability::Sync] {
        let mut batch = db.batch().durability(durability);
        batch.put(&a, "k", "v");
        read_only(batch.commit());
        read_only(db.batch().durability(durability).commit());
    }
    assert!(found(&db) == expected);
    let message = a.put("k", "v").unwrap_err().to_string();
    assert!(message.contains("reading only") && message.contains("Builder::open"), "{message}");
}

fn readers_share_a_store_and_exclude_writers(kind: TreeKind) {
    let (vfs, expected) = left_behind(kind);
    let holder = |result: Result<Database>| match result {
        Err(Error::Locked { holder, .. }) => holder.unwrap_or_default(),
        other => panic!("{other:?}"),
    };
    let readers: Vec<Database> = (0..3).map(|_| builder(&vfs).open_read_only().unwrap()).collect();
    assert!(readers.iter().all(|db| found(db) == expected));
    assert_eq!(holder(builder(&vfs).open()), " for reading");
    drop(readers);
    let writer = builder(&vfs).open().unwrap();
    assert!(holder(builder(&vfs).open_read_only()).contains("process"));
    drop(writer);
    assert!(found(&builder(&vfs).open_read_only().unwrap()) == expected);
}

fn a_checkpoint_can_be_read(kind: TreeKind) {
    let (vfs, expected) = left_behind(kind);
    let db = builder(&vfs).open().unwrap();
    db.checkpoint("/copy").unwrap();
    let before = files(&vfs, "/copy".as_ref());
    let copy = Database::builder("/copy").vfs(vfs.boxed()).open_read_only().unwrap();
    assert!(found(&copy) == expected);
    drop(copy);
    assert_eq!(files(&vfs, "/copy".as_ref()), before);
}

fn a_torn_journal_is_read_as_it_would_be_recovered(kind: TreeKind) {
    let (vfs, expected) = left_behind(kind);
    // The last record of the journal loses a word.
    let last = files(&vfs, &store_path())
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("journal-"))
        .rfind(|name| contents(&vfs, &store_path().join(name))[4096..].iter().any(|&b| b != 0))
        .unwrap();
    let path = store_path().join(last);
    let bytes = contents(&vfs, &path);
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() & !7;
    let file = vfs.open(&path, Access::Buffered, true).unwrap();
    file.write_at(end as u64, &[0; 8]).unwrap();
    let before = snapshot(&vfs);
    let db = builder(&vfs).open_read_only().unwrap();
    let read = found(&db);
    let torn = db.recovery().stopped;
    drop(db);
    assert!(torn.is_some() && read != expected);
    assert!(snapshot(&vfs) == before);
    assert!(found(&builder(&vfs).open().unwrap()) == read);
}

fn a_journal_larger_than_the_budget_names_one_that_suffices(kind: TreeKind) {
    for value_bytes in [10, 300, 5000] {
        let vfs = MemoryVfs::new();
        let open = || Database::builder(store_path()).vfs(vfs.boxed()).deterministic(3);
        let db = open().memory_budget(256 * MIB).open().unwrap();
        let names = ["a", "b", "c"];
        let keyspaces: Vec<Keyspace> =
            names.map(|name| db.keyspace(name, KeyspaceOptions::new(kind)).unwrap()).into();
        let count = (3 << 20) / (value_bytes as u32 + 40);
        for i in 0..count {
            let value = vec![i as u8; value_bytes];
            keyspaces[i as usize % 3].put(format!("{i:09}"), value).unwrap();
        }
        drop((keyspaces, db));
        let refused = open().memory_budget(MIB).open_read_only();
        let Err(Error::JournalOverBudget { budget, sufficient, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(budget, MIB);
        assert!(sufficient > budget && sufficient <= 48 * MIB, "{sufficient}");
        let db = open().memory_budget(sufficient).open_read_only().unwrap();
        let pairs: usize =
            names.iter().map(|name| pairs(db.existing_keyspace(name).unwrap().iter()).len()).sum();
        assert_eq!(pairs, count as usize);
        let memory = db.stats();
        assert!(memory.memory_memtables <= sufficient);
    }
}

fn damage_is_reported_as_ever(kind: TreeKind) {
    let (vfs, _) = left_behind(kind);
    for (name, offset) in [("SPINNEY", 10), ("manifest-00000001", 40)] {
        let vfs = copy(&vfs, &store_path());
        let name = files(&vfs, &store_path())
            .into_iter()
            .map(|(name, _)| name)
            .find(|found| found == name || (name != "SPINNEY" && found.starts_with("manifest-")))
            .unwrap();
        common::flip(&vfs, &store_path().join(name), offset);
        let refused = builder(&vfs).open_read_only();
        assert!(matches!(refused, Err(Error::Corruption { .. })), "{refused:?}");
    }
    let empty = MemoryVfs::new();
    for dir in ["/", "/none"] {
        let refused = Database::builder(dir).vfs(empty.boxed()).open_read_only();
        assert!(matches!(refused, Err(Error::NotAStore { .. })), "{refused:?}");
    }
    assert_eq!(empty.read_names("/".as_ref()).unwrap(), Vec::<String>::new());
}

/// The budget that a refusal named was worked out from what the memtables had taken so far for each byte. Where small
/// memtables came after large values it was too little, three times one after the other, and seven times where all were
/// small: each takes a chunk, however little is in it.
#[test]
fn the_budget_that_is_named_suffices_whatever_comes_first() {
    // How many values, of how many bytes, in how many keyspaces.
    for (count, value_bytes, keyspaces) in
        [(0, 0, 900), (2, 700 << 10, 900), (300, 65_482, 3), (6, 4096, 300), (10, 32_768, 40)]
    {
        let vfs = MemoryVfs::new();
        let open = |budget| builder(&vfs).memory_budget(budget);
        let db = open(256 * MIB).memtable_bytes(16 * MIB).open().unwrap();
        let options = KeyspaceOptions::stb().blob_bytes_min(u32::MAX);
        let create = |n| db.keyspace(&format!("k{n}"), options.clone()).unwrap();
        let all: Vec<Keyspace> = (0..keyspaces).map(create).collect();
        all.iter().for_each(|keyspace| keyspace.put("a", "").unwrap());
        // Large ones in one keyspace only.
        let with_values = if value_bytes > 100_000 { 1 } else { keyspaces };
        for n in 0..count {
            for keyspace in &all[..with_values] {
                keyspace.put((n as u64).to_be_bytes(), vec![7; value_bytes]).unwrap();
            }
        }
        drop((all, db));
        let refused = open(MIB).open_read_only().unwrap_err();
        let Error::JournalOverBudget { sufficient, .. } = refused else { panic!("{refused}") };
        let db = open(sufficient).open_read_only();
        let db = db.unwrap_or_else(|error| panic!("{count} of {value_bytes}: {error}"));
        assert_eq!(db.keyspaces().len(), keyspaces);
    }
}
