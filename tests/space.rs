//! What is written and kept for what users store.

#[macro_use]
mod common;

use std::sync::Arc;

use common::Random;
use spinney::vfs::MemoryVfs;
use spinney::{Database, KeyspaceOptions, MIB, TreeKind};

of_every_kind! {
    values_that_fill_pages_badly_are_not_merged_over_and_over
}

/// Three entries of 1,050 bytes fill a page of 4 KiB and leave 900 bytes, which counted as space to be had
/// back: leaves were merged over and over, and this load wrote 6.4 bytes a user byte. (Now 3.7.)
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
