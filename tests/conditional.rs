//! Conditional writes: each is one commit, and nobody writes to its keys between what it has seen and that commit.

#[macro_use]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::Random;
use spinney::vfs::MemoryVfs;
use spinney::{
    Batch, Database, Durability, Error, Keyspace, KeyspaceOptions, MIB, MergeOperator, Swap,
    TreeKind, Update,
};

of_every_kind! {
    each_tells_what_it_found_and_writes_only_then
    values_in_tables_and_blob_files_are_compared
    folded_operands_are_compared
    of_several_threads_one_inserts_a_key
    no_increment_is_lost
    no_increment_is_lost_beside_puts_and_flushes
    of_several_threads_one_takes_a_key
    a_batch_is_written_only_if_all_holds
    transfers_keep_the_sum
    what_is_not_written_costs_no_commit
}

fn open(budget: u64) -> Database {
    let builder = Database::builder("/data/store").vfs(Arc::new(MemoryVfs::new()));
    builder.memory_budget(budget).open().unwrap()
}

fn new(kind: TreeKind) -> (Database, Keyspace) {
    let db = open(4 * MIB);
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    (db, items)
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
}

fn increment(value: Option<&[u8]>) -> Update {
    Update::Put((number(value) + 1).to_le_bytes().to_vec())
}

fn each_tells_what_it_found_and_writes_only_then(kind: TreeKind) {
    let (db, items) = new(kind);
    let held = || items.get("key").unwrap().map(|value| value.to_vec());
    assert!(!items.update_if_present("key", "0").unwrap());
    assert_eq!(items.replace("key", "0").unwrap(), None);
    assert_eq!(items.take("key").unwrap(), None);
    assert_eq!(items.compare_and_swap("key", Some(b"0"), Some(b"1")).unwrap(), Swap::Differs(None));
    assert_eq!(items.fetch_update("key", |_| Update::Delete).unwrap(), None);
    assert_eq!(items.fetch_update("key", |_| Update::Keep).unwrap(), None);
    assert_eq!((held(), db.stats().writes), (None, 0));

    assert!(items.insert_if_absent("key", "1").unwrap());
    assert!(!items.insert_if_absent("key", "2").unwrap());
    assert_eq!(items.get_or_insert("key", "2").unwrap().unwrap(), b"1");
    assert_eq!((held(), db.stats().writes), (Some(b"1".to_vec()), 1));

    assert!(items.update_if_present("key", "3").unwrap());
    assert_eq!(items.replace("key", "4").unwrap().unwrap(), b"3");
    let Swap::Differs(found) = items.compare_and_swap("key", None, Some(b"5")).unwrap() else {
        panic!("the key has a value");
    };
    assert_eq!(found.unwrap(), b"4");
    assert_eq!(items.compare_and_swap("key", Some(b"4"), Some(b"5")).unwrap(), Swap::Done);
    assert_eq!(held().unwrap(), b"5");
    assert_eq!(items.take("key").unwrap().unwrap(), b"5");
    assert_eq!(held(), None);

    assert_eq!(items.compare_and_swap("key", None, None).unwrap(), Swap::Done);
    assert_eq!(db.stats().writes, 5, "nothing to delete");
    assert_eq!(items.compare_and_swap("key", None, Some(b"")).unwrap(), Swap::Done);
    assert_eq!(held().unwrap(), b"");
    assert!(!items.insert_if_absent("key", "6").unwrap(), "an empty value is a value");
    assert_eq!(items.compare_and_swap("key", Some(b""), None).unwrap(), Swap::Done);
    assert_eq!(items.get_or_insert("key", "7").unwrap(), None);
    assert_eq!(items.fetch_update("key", |_| Update::Delete).unwrap().unwrap(), b"7");
    assert_eq!(held(), None);
    let inserted = items.insert_if_absent_with("key", "8", Durability::Sync).unwrap();
    assert!(inserted && db.stats().commits_sync == 1);
}

fn values_in_tables_and_blob_files_are_compared(kind: TreeKind) {
    let (db, items) = new(kind);
    let value = |n: u8| vec![n; if n.is_multiple_of(2) { 100 } else { 40_000 }];
    for n in 0..20 {
        assert!(items.insert_if_absent([n], value(n)).unwrap());
    }
    for round in 0..3 {
        items.flush().unwrap();
        if round == 2 {
            items.compact(..).unwrap();
        }
        let pages = db.stats().pages_read;
        for n in 0..20 {
            assert!(!items.insert_if_absent([n], "other").unwrap());
            let (is, next) = (value(n + round), value(n + round + 1));
            let differs = items.compare_and_swap([n], Some(&next), Some(b"other")).unwrap();
            assert_eq!(differs, Swap::Differs(Some(is.clone().into())));
            assert_eq!(items.compare_and_swap([n], Some(&is), Some(&next)).unwrap(), Swap::Done);
        }
        assert!(db.stats().pages_read >= pages);
    }
}

fn folded_operands_are_compared(kind: TreeKind) {
    let db = open(4 * MIB);
    let options = KeyspaceOptions::new(kind).merge_operator("u64_add");
    let items = db.keyspace("items", options).unwrap();
    let of = |n: u64| n.to_le_bytes();
    items.merge("key", of(3)).unwrap();
    items.flush().unwrap();
    items.merge("key", of(4)).unwrap();
    assert!(!items.insert_if_absent("key", of(9)).unwrap());
    assert_eq!(items.compare_and_swap("key", Some(&of(7)), Some(&of(10))).unwrap(), Swap::Done);
    items.merge("key", of(1)).unwrap();
    assert_eq!(items.take("key").unwrap().unwrap(), &of(11));
    items.merge("key", of(5)).unwrap();
    assert_eq!(items.get_or_insert("key", of(6)).unwrap().unwrap(), &of(5));
}

fn of_several_threads_one_inserts_a_key(kind: TreeKind) {
    const KEYS: u64 = 2000;
    let (_db, items) = new(kind);
    let won = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (items, won) = (&items, &won);
            scope.spawn(move || {
                for key in 0..KEYS {
                    let (name, own) = (key.to_be_bytes(), thread.to_le_bytes());
                    if items.insert_if_absent(name, own).unwrap() {
                        won.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(items.get(name).unwrap().unwrap(), &own);
                    } else {
                        assert_ne!(items.get(name).unwrap().unwrap(), &own);
                    }
                }
            });
        }
    });
    assert_eq!(won.into_inner(), KEYS);
}

fn no_increment_is_lost(kind: TreeKind) {
    let (_db, items) = new(kind);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let items = &items;
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..2000 {
                    items.fetch_update([random.below(3) as u8], increment).unwrap();
                }
            });
        }
    });
    let sum: u64 = (0..3u8).map(|key| number(items.get([key]).unwrap().as_deref())).sum();
    assert_eq!(sum, 8000);
}

/// Half of the increments are by comparing, half of the keys are put by others too, which the comparison finds; and
/// memtables are frozen and leave meanwhile.
fn no_increment_is_lost_beside_puts_and_flushes(kind: TreeKind) {
    const RESET: u64 = 1 << 40;
    let (_db, items) = new(kind);
    let done = AtomicBool::new(false);
    let (resets, increments) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let (items, done, resets, increments) = (&items, &done, &resets, &increments);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                items.flush().unwrap();
            }
        });
        // Each take moves what it finds into a sum: a put that a take overlooks is lost.
        let putter = scope.spawn(move || {
            for n in 0..3000u64 {
                let key = [(n % 3) as u8];
                let taken = items.take(key).unwrap();
                increments.fetch_add(number(taken.as_deref()) % RESET, Ordering::Relaxed);
                resets.fetch_add(number(taken.as_deref()) / RESET, Ordering::Relaxed);
            }
        });
        let adders: Vec<_> = (0..2u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let mut added = 0;
                    while added < 2000 {
                        let key = [random.below(3) as u8];
                        let step = if random.below(2) == 0 { 1 } else { RESET };
                        let found = items.get(key).unwrap();
                        let new = (number(found.as_deref()) + step).to_le_bytes();
                        let swap = items.compare_and_swap(key, found.as_deref(), Some(&new));
                        added += u64::from(swap.unwrap() == Swap::Done);
                    }
                })
            })
            .collect();
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        putter.join().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    let rest = (0..3u8).map(|key| number(items.get([key]).unwrap().as_deref()));
    let rest: u64 = rest.map(|sum| sum % RESET + sum / RESET).sum();
    assert_eq!(resets.into_inner() + increments.into_inner() + rest, 4000);
}

fn of_several_threads_one_takes_a_key(kind: TreeKind) {
    const KEYS: u64 = 1000;
    let (_db, items) = new(kind);
    (0..KEYS).for_each(|key| items.put(key.to_be_bytes(), "job").unwrap());
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            let (items, taken) = (&items, &taken);
            scope.spawn(move || {
                for key in 0..KEYS {
                    if items.take(key.to_be_bytes()).unwrap().is_some() {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), KEYS);
    assert_eq!(items.count(..).unwrap(), 0);
}

type Requires<'a> = &'a dyn Fn(&mut Batch);

fn a_batch_is_written_only_if_all_holds(kind: TreeKind) {
    let (db, items) = new(kind);
    let others = db.keyspace("others", KeyspaceOptions::stb()).unwrap();
    items.put("present", "1").unwrap();
    let commit = |require: Requires<'_>| {
        let mut batch = db.batch();
        batch.require_present(&items, "present");
        require(&mut batch);
        batch.put(&others, "written", "2");
        batch.commit()
    };
    let refused: [(&str, Requires<'_>); 4] = [
        ("has a value", &|batch| batch.require_absent(&items, "present")),
        ("has no value", &|batch| batch.require_present(&others, "absent")),
        ("has another value", &|batch| batch.require_value(&items, "present", "2")),
        ("has no value", &|batch| batch.require_value(&others, "absent", "2")),
    ];
    for (what, require) in refused {
        let error = commit(require).unwrap_err();
        assert!(matches!(&error, Error::Conflict { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(others.count(..).unwrap(), 0);
    commit(&|batch| {
        batch.require_value(&items, "present", "1");
        batch.require_absent(&others, "absent");
        // What the batch writes itself does not count.
        batch.require_absent(&others, "written");
    })
    .unwrap();
    assert_eq!(others.get("written").unwrap().unwrap(), b"2");
    // Conditions alone.
    let mut batch = db.batch();
    batch.require_present(&items, "present");
    assert!(batch.is_empty());
    db.write(&batch).unwrap();
    batch.require_absent(&items, "present");
    assert!(matches!(db.write(&batch), Err(Error::Conflict { .. })));
    batch.clear();
    db.write(&batch).unwrap();
}

/// Accounts between which threads move money: the sum is the same at each moment, and no account is overdrawn.
fn transfers_keep_the_sum(kind: TreeKind) {
    const ACCOUNTS: u64 = 8;
    let (db, items) = new(kind);
    let of = |n: u64| n.to_le_bytes();
    (0..ACCOUNTS).for_each(|account| items.put([account as u8], of(100)).unwrap());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (db, items, done) = (&db, &items, &done);
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..1000 {
                        let from = [random.below(ACCOUNTS) as u8];
                        let to = [random.below(ACCOUNTS) as u8];
                        let (a, b) = (items.get(from).unwrap(), items.get(to).unwrap());
                        let (has, gets) = (number(a.as_deref()), number(b.as_deref()));
                        if from == to || has == 0 {
                            continue;
                        }
                        let mut batch = db.batch();
                        batch.require_value(items, from, of(has));
                        batch.require_value(items, to, of(gets));
                        batch.put(items, from, of(has - 1));
                        batch.put(items, to, of(gets + 1));
                        match batch.commit() {
                            Ok(()) | Err(Error::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let pairs = items.iter().map(|pair| number(Some(&pair.unwrap().1)));
                assert_eq!(pairs.sum::<u64>(), ACCOUNTS * 100);
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
}

fn what_is_not_written_costs_no_commit(kind: TreeKind) {
    let (db, items) = new(kind);
    items.put("key", "value").unwrap();
    let (commits, journal) = (db.stats().commits, db.stats().journal.written_bytes);
    for _ in 0..1000 {
        assert!(!items.insert_if_absent("key", "other").unwrap());
        assert_eq!(items.take("absent").unwrap(), None);
    }
    assert_eq!((db.stats().commits, db.stats().journal.written_bytes), (commits, journal));
}

/// A million keys are absent, and the filters say so.
#[test]
fn inserting_absent_keys_reads_few_pages() {
    let (db, items) = new(TreeKind::Stb);
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..100_000).for_each(|n| items.put(key(n), [7; 20]).unwrap());
    db.wait_idle().unwrap();
    let before = db.stats().pages_read;
    for n in 100_000..110_000 {
        assert!(items.insert_if_absent(key(n), [7; 20]).unwrap());
    }
    let read = db.stats().pages_read - before;
    assert!(read < 1_500, "{read} pages for 10,000 keys that are not there");
}

/// It would wait for itself.
#[test]
fn a_merge_operator_makes_no_conditional_write() {
    struct Writes(std::sync::Mutex<Option<Keyspace>>);
    impl MergeOperator for Writes {
        fn name(&self) -> &str {
            "writes"
        }

        fn full_merge(
            &self,
            _key: &[u8],
            _existing: Option<&[u8]>,
            _operands: &[&[u8]],
        ) -> Result<Vec<u8>, String> {
            let items = self.0.lock().unwrap().clone().unwrap();
            items.put("other", "1").map_err(|error| error.to_string())?;
            let refused = items.insert_if_absent("key", "2").unwrap_err();
            Ok(refused.to_string().into_bytes())
        }
    }
    let operator = Arc::new(Writes(std::sync::Mutex::new(None)));
    let registered: Arc<dyn MergeOperator> = operator.clone();
    let db = Database::builder_in_memory().merge_operator(registered).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb().merge_operator("writes")).unwrap();
    *operator.0.lock().unwrap() = Some(items.clone());
    items.merge("key", "operand").unwrap();
    // The operator runs before the key is locked: its own put does not wait for that.
    let found = items.fetch_update("key", |_| Update::Put(b"3".to_vec())).unwrap().unwrap();
    assert!(String::from_utf8_lossy(&found).contains("inside a merge operator"), "{found:?}");
    assert_eq!(items.get("other").unwrap().unwrap(), b"1");
    *operator.0.lock().unwrap() = None;
}

#[test]
fn errors_are_those_of_a_put() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let long = vec![7; spinney::KEY_BYTES_MAX + 1];
    assert!(matches!(items.insert_if_absent(&long, ""), Err(Error::InvalidArgument { .. })));
    let other = Database::builder_in_memory().open().unwrap();
    let foreign = other.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let mut batch = db.batch();
    batch.require_absent(&foreign, "key");
    assert!(matches!(batch.commit(), Err(Error::InvalidArgument { .. })));
    db.drop_keyspace("items").unwrap();
    assert!(matches!(items.insert_if_absent("key", ""), Err(Error::Closed { .. })));
    assert!(matches!(items.take("key"), Err(Error::Closed { .. })));
    let mut batch = db.batch();
    batch.require_absent(&items, "key");
    assert!(matches!(batch.commit(), Err(Error::Closed { .. })));
    db.close().unwrap();
    assert!(matches!(items.insert_if_absent("key", ""), Err(Error::Closed { .. })));
}

/// A batch of conditions alone was looked at in the other store: a key that is there was said to be absent, and a condition
/// that held there was checked indefinitely.
#[test]
fn conditions_belong_to_the_store_of_their_keyspaces() {
    let (db, other) = (open(4 * MIB), open(4 * MIB));
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    (0..100u8).for_each(|n| items.put([n], "value").unwrap());
    for require in [Batch::require_present, Batch::require_absent] {
        let mut batch = db.batch();
        require(&mut batch, &items, [7]);
        assert!(matches!(other.write(&batch), Err(Error::InvalidArgument { .. })));
    }
}

/// A batch was written although the keyspace of its condition had been dropped, if it wrote only to others.
#[test]
fn a_condition_does_not_outlive_its_keyspace() {
    let db = open(4 * MIB);
    let others = db.keyspace("others", KeyspaceOptions::stb()).unwrap();
    for round in 0..200u64 {
        let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        items.put("key", "value").unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for number in 1u64.. {
                    let mut batch = db.batch();
                    batch.require_present(&items, "key");
                    batch.put(&others, "written", number.to_le_bytes());
                    match batch.commit() {
                        Ok(()) => {}
                        Err(Error::Closed { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            thread::sleep(std::time::Duration::from_micros(round * 5));
            db.drop_keyspace("items").unwrap();
            let before = others.get("written").unwrap();
            writer.join().unwrap();
            assert_eq!(others.get("written").unwrap(), before, "written after the drop");
        });
    }
}

/// A function may use the store, also to write to the same key; it is called again then.
#[test]
fn a_function_that_writes_to_its_key_is_called_again() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let mut calls = 0;
    let found = items.fetch_update("key", |found| {
        calls += 1;
        if calls < 3 {
            items.put("key", [calls]).unwrap();
        }
        increment_byte(found)
    });
    assert_eq!((found.unwrap().unwrap().to_vec(), calls), (vec![2], 3));
    assert_eq!(items.get("key").unwrap().unwrap(), &[3]);
}

/// A memtable that reached the tree meanwhile counted as a write to the key, whatever it had: a function that made one each
/// time was called indefinitely.
#[test]
fn a_flush_of_other_keys_is_no_write_to_the_key() {
    for kind in TreeKind::ALL {
        let (_db, items) = new(kind);
        for before in [None, Some([1])] {
            let mut calls = 0;
            let found = items.fetch_update("key", |found| {
                calls += 1;
                assert!(calls < 10, "called again");
                items.put("other", [calls]).unwrap();
                items.flush().unwrap();
                increment_byte(found)
            });
            assert_eq!(found.unwrap().as_deref(), before.as_ref().map(|before| &before[..]));
            assert_eq!(calls, 1);
        }
        assert_eq!(items.get("key").unwrap().unwrap(), &[2]);
    }
}

/// A conditional write whose key somebody else had written to meanwhile wrote its blob file again. Beside somebody who writes
/// to that key again and again, it hardly ever got ahead: to write a file takes longer than that one pauses.
#[test]
fn a_large_value_is_written_once_however_often_its_write_is_tried() {
    const VALUE: usize = 256 << 10;
    const WRITES: u64 = 20;
    let (db, items) = new(TreeKind::Stb);
    items.put("key", "value").unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                items.put("key", count.to_le_bytes()).unwrap();
                thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        for write in 0..WRITES {
            match write % 3 {
                0 => assert!(items.update_if_present("key", [7; VALUE]).unwrap()),
                1 => assert!(items.replace("key", [7; VALUE]).unwrap().is_some()),
                _ => {
                    let mut batch = db.batch();
                    batch.require_present(&items, "key");
                    batch.put(&items, "other", [8; VALUE]);
                    batch.commit().unwrap();
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let written = db.stats().flush.written_bytes;
    let values = WRITES * VALUE as u64;
    assert!(written < values + values / 5, "{written} bytes of {values}");
    assert!(*items.get("other").unwrap().unwrap() == [8; VALUE]);
}

fn increment_byte(found: Option<&[u8]>) -> Update {
    Update::Put(vec![found.map_or(0, |found| found[0]) + 1])
}
