//! What is written and kept for what users store.

#[macro_use]
mod common;

use std::path::Path;
use std::sync::Arc;

use common::Random;
use spinney::vfs::{MemoryVfs, Vfs};
use spinney::{Database, KeyspaceOptions, MIB, TreeKind};

of_every_kind! {
    files_go_in_the_background_and_not_with_their_last_reader
    values_that_fill_pages_badly_are_not_merged_over_and_over
}

/// Whoever dropped the last handle of a version removed the files that only it had: a put that had looked at a
/// state while that was replaced took 44 ms, nearly all of them in the file system.
fn files_go_in_the_background_and_not_with_their_last_reader(kind: TreeKind) {
    let vfs = Arc::new(MemoryVfs::new());
    // What a reader holds may be kept in tables of their own or beside what is newer.
    let files = || {
        let names = vfs.read_dir(Path::new("/data/store")).unwrap();
        let tables = names.iter().filter(|entry| entry.name.ends_with(".table"));
        tables.map(|entry| entry.len).sum::<u64>()
    };
    let builder = Database::builder("/data/store").vfs(Arc::<MemoryVfs>::clone(&vfs));
    let db =
        builder.memory_budget(4 * MIB).memtable_bytes(MIB / 4).deterministic(1).open().unwrap();
    let keyspace = db.keyspace("default", KeyspaceOptions::new(kind)).unwrap();
    let fill = |value: u8| {
        (0..20_000u32).for_each(|i| keyspace.put(i.to_be_bytes(), [value; 100]).unwrap());
        keyspace.compact(..).unwrap();
        db.wait_idle().unwrap();
    };
    fill(1);
    let mut reader = keyspace.iter();
    assert_eq!(reader.next().unwrap().unwrap().1[..], [1; 100]);
    let alone = files();
    fill(2);
    let held = files();
    assert!(held > alone, "{held} bytes, {alone} before they were overwritten");
    assert_eq!(reader.next().unwrap().unwrap().1[..], [1; 100]);
    drop(reader);
    assert_eq!(files(), held);
    while db.step().unwrap() {}
    assert!(files() < held, "{} of {held} bytes", files());
}

/// Three entries of 1,050 bytes fill a page of 4 KiB and leave 900 bytes, which counted as space to be had
/// back: leaves were merged over and over, and this load wrote 6.4 bytes per user byte. (Now 3.7.)
fn values_that_fill_pages_badly_are_not_merged_over_and_over(kind: TreeKind) {
    let builder = Database::builder("/data/store").vfs(Arc::new(MemoryVfs::new()));
    let db =
        builder.memory_budget(4 * MIB).memtable_bytes(MIB / 4).deterministic(1).open().unwrap();
    let keyspace = db.keyspace("default", KeyspaceOptions::new(kind)).unwrap();
    let (mut random, mut user_bytes) = (Random(1), 0);
    for _ in 0..24_000 {
        let key = random.next().to_be_bytes();
        keyspace.put([&key[..], &[0; 16]].concat(), [7; 1026]).unwrap();
        user_bytes += 24 + 1026;
        while db.step().unwrap() {}
    }
    db.wait_idle().unwrap();
    let statistics = db.stats();
    let written = statistics.flush.written_bytes + statistics.compaction.written_bytes;
    assert!(written * 2 < user_bytes * 9, "{written} bytes written for {user_bytes}");
    let disk = statistics.keyspaces[0].disk_bytes;
    assert!(disk * 10 < user_bytes * 16, "{disk} bytes kept for {user_bytes}");
}
