//! Options at the edges of what is admitted.

use std::time::Instant;

use spinney::{Database, Error, KeyspaceOptions};

/// A budget of a terabyte once took 69 s to open: the page cache wrote an index of seven gigabytes and a
/// list of a gigabyte before the first page came.
#[test]
fn a_budget_beyond_the_machine_costs_nothing_to_open() {
    let dir = tempfile::tempdir().unwrap();
    for shift in [40, 50, 63] {
        let start = Instant::now();
        let db = Database::builder(dir.path()).memory_budget(1 << shift).open().unwrap();
        let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        keyspace.put("key", "value").unwrap();
        keyspace.flush().unwrap();
        assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        drop(keyspace);
        db.close().unwrap();
        eprintln!("2^{shift}: {:?}", start.elapsed());
        let seconds = start.elapsed().as_secs();
        assert!(seconds < 10, "2^{shift} bytes: {seconds} s");
    }
}

/// 65 threads were refused for having too many journal shards, of which nobody had asked for any.
#[test]
fn many_threads_share_the_journal_s_shards_and_too_many_are_refused_by_name() {
    for threads in [64, 65, 200] {
        let db = Database::builder_in_memory().background_threads(threads).open().unwrap();
        let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        keyspace.put("key", "value").unwrap();
        db.wait_idle().unwrap();
    }
    let refused = Database::builder_in_memory().background_threads(1025).open();
    assert!(matches!(&refused, Err(Error::InvalidArgument { what })
        if what.contains("background_threads") && what.contains("1025")));
    let refused = Database::builder_in_memory().journal_shards(1025).open();
    assert!(
        matches!(&refused, Err(Error::InvalidArgument { what }) if what.contains("1024 shards"))
    );
}
