//! `Keyspace::compact`: the calling thread and the background threads share the work.

#[macro_use]
mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use spinney::vfs::MemoryVfs;
use spinney::{Database, Keyspace, KeyspaceOptions, MIB, MergeOperator, Result, TreeKind};

of_every_kind! {
    the_background_threads_take_part_in_a_requested_compaction
    a_store_that_is_closed_ends_a_requested_compaction
}

/// Long enough for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Appends operands. While it gathers, each call waits until two threads are in one.
#[derive(Default)]
struct Gathering {
    gathers: AtomicBool,
    threads: Mutex<BTreeSet<String>>,
    came: Condvar,
}

fn name(thread: ThreadId) -> String {
    format!("{thread:?}")
}

impl Gathering {
    fn gather(&self) {
        let mut threads = self.threads.lock().unwrap();
        threads.insert(name(thread::current().id()));
        self.came.notify_all();
        let alone = |threads: &mut BTreeSet<String>| {
            threads.len() < 2 && self.gathers.load(Ordering::SeqCst)
        };
        let (_threads, waited) = self.came.wait_timeout_while(threads, PATIENCE, alone).unwrap();
        if waited.timed_out() {
            self.gathers.store(false, Ordering::SeqCst);
        }
    }
}

impl MergeOperator for Gathering {
    fn name(&self) -> &str {
        "gathering"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, String> {
        if self.gathers.load(Ordering::SeqCst) {
            self.gather();
        }
        let mut value = base.unwrap_or_default().to_vec();
        operands.iter().for_each(|operand| value.extend_from_slice(operand));
        Ok(value)
    }
}

const KEYS: u64 = 6000;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A compacted keyspace of several nodes, then an operand for every tenth key.
fn filled(operator: &Arc<Gathering>, threads: usize, kind: TreeKind) -> (Database, Keyspace) {
    let db = Database::builder("/data/store")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(4 * MIB)
        .memtable_bytes(64 << 10)
        .background_threads(threads)
        .merge_operator(Arc::clone(operator) as Arc<dyn MergeOperator>)
        .open()
        .unwrap();
    let options = KeyspaceOptions::new(kind).merge_operator("gathering");
    let items = db.keyspace("items", options).unwrap();
    for number in 0..KEYS {
        items.put(key(number * 7919 % KEYS), [b'a'; 200]).unwrap();
    }
    items.compact(..).unwrap();
    for number in (0..KEYS).step_by(10) {
        items.merge(key(number), "+").unwrap();
    }
    items.flush().unwrap();
    db.wait_idle().unwrap();
    (db, items)
}

fn assert_holds(items: &Keyspace) {
    let mut number = 0;
    for pair in items.iter() {
        let (found, value) = pair.unwrap();
        assert_eq!(*found, key(number));
        assert_eq!(value.len(), if number % 10 == 0 { 201 } else { 200 }, "of key {number}");
        number += 1;
    }
    assert_eq!(number, KEYS);
}

/// It was done on the calling thread, one node after the other, and all other cores were idle.
fn the_background_threads_take_part_in_a_requested_compaction(kind: TreeKind) {
    let operator = Arc::new(Gathering::default());
    let (db, items) = filled(&operator, 1, kind);
    operator.gathers.store(true, Ordering::SeqCst);
    items.compact(..).unwrap();
    let threads = operator.threads.lock().unwrap().clone();
    assert_eq!(threads.len(), 2, "a second thread took part");
    assert!(threads.contains(&name(thread::current().id())), "the caller took part");
    assert_holds(&items);
    // A second time there is nothing to do.
    let written = |db: &Database| db.stats().compaction.written_bytes;
    let before = written(&db);
    items.compact(..).unwrap();
    assert_eq!(written(&db), before);
}

/// The background threads end in the middle of their parts, and the caller is told that the store is closed, or has done
/// it all.
fn a_store_that_is_closed_ends_a_requested_compaction(kind: TreeKind) {
    let operator = Arc::new(Gathering::default());
    let (db, items) = filled(&operator, 2, kind);
    operator.gathers.store(true, Ordering::SeqCst);
    let compacting = thread::spawn(move || {
        let result: Result<()> = items.compact(..);
        result
    });
    let threads = operator.threads.lock().unwrap();
    let none = |threads: &mut BTreeSet<String>| threads.is_empty();
    drop(operator.came.wait_timeout_while(threads, PATIENCE, none).unwrap());
    operator.gathers.store(false, Ordering::SeqCst);
    operator.came.notify_all();
    db.close().unwrap();
    let compacted = compacting.join().unwrap();
    let closed = matches!(compacted, Ok(()) | Err(spinney::Error::Closed { .. }));
    assert!(closed, "{compacted:?}");
}
