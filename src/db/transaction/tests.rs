//! Anomalies by hand, own writes against a map, locks, bounds, and threads whose sums must stay.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::base::random::SplitMix;
use crate::tree::options::KeyspaceOptions;
use crate::{Batch, Database, Swap};

const KINDS: [fn() -> KeyspaceOptions; 4] =
    [KeyspaceOptions::stb, KeyspaceOptions::flsm, KeyspaceOptions::tph, KeyspaceOptions::slm];

fn store() -> (Database, Vec<Keyspace>) {
    let db = Database::builder_in_memory().memory_budget(8 << 20).open().unwrap();
    let of = |(number, options): (usize, &fn() -> KeyspaceOptions)| {
        db.keyspace(&format!("k{number}"), options().merge_operator("append")).unwrap()
    };
    let keyspaces = KINDS.iter().enumerate().map(of).collect();
    (db, keyspaces)
}

fn value(found: Option<Slice>) -> String {
    found.map_or("-".to_string(), |found| found.escape_ascii().to_string())
}

fn is_conflict(result: Result<()>) -> bool {
    match result {
        Ok(()) => false,
        Err(Error::Conflict { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

const BOTH: [Isolation; 2] = [Isolation::Serializable, Isolation::Snapshot];

/// G0, G1a, G1b, G1c: nothing of a transaction is seen before it commits, nothing of one that does not, and all of it at
/// once.
#[test]
fn what_has_not_been_committed_is_not_seen() {
    for isolation in BOTH {
        let (db, keyspaces) = store();
        for items in &keyspaces {
            items.put("x", "0").unwrap();
            let mut one = db.begin(isolation);
            one.put(items, "x", "1").unwrap();
            one.put(items, "y", "1").unwrap();
            let mut other = db.begin(isolation);
            assert_eq!(value(other.get(items, "x").unwrap()), "0");
            assert_eq!(value(items.get("x").unwrap()), "0");
            other.put(items, "z", "2").unwrap();
            one.commit().unwrap();
            assert_eq!(value(other.get(items, "y").unwrap()), "-", "it reads its snapshot");
            other.rollback();
            assert_eq!(value(items.get("z").unwrap()), "-");
            assert_eq!(value(items.get("y").unwrap()), "1");
        }
    }
}

#[test]
fn no_update_is_lost() {
    for isolation in BOTH {
        for flushed in [false, true] {
            let (db, keyspaces) = store();
            for items in &keyspaces {
                items.put("x", "0").unwrap();
                let (mut one, mut other) = (db.begin(isolation), db.begin(isolation));
                assert_eq!(one.get(items, "x").unwrap(), other.get(items, "x").unwrap());
                one.put(items, "x", "1").unwrap();
                other.put(items, "x", "2").unwrap();
                one.commit().unwrap();
                if flushed {
                    items.flush().unwrap();
                }
                let error = other.commit().unwrap_err();
                assert!(error.to_string().contains("key \"x\" of keyspace"), "{error}");
                assert_eq!(value(items.get("x").unwrap()), "1");
            }
        }
    }
}

/// A plain write counts as a transaction of one write; so does a conditional one.
#[test]
fn writes_without_a_transaction_are_seen_by_validation() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    items.put("x", "0").unwrap();
    let write: [&dyn Fn(); 5] = [
        &|| items.put("x", "1").unwrap(),
        &|| items.delete("x").unwrap(),
        &|| items.merge("x", "1").unwrap(),
        &|| assert!(items.insert_if_absent("x2", "1").unwrap()),
        &|| {
            let mut batch = Batch::new();
            batch.put(items, "w", "1");
            batch.put(items, "x", "1");
            batch.commit().unwrap();
        },
    ];
    for (number, write) in write.into_iter().enumerate() {
        let mut transaction = db.begin(Isolation::Serializable);
        transaction.get(items, "x").unwrap();
        transaction.get(items, "x2").unwrap();
        write();
        transaction.put(items, "y", "1").unwrap();
        assert!(is_conflict(transaction.commit()), "{number}");
    }
}

/// Write skew: each reads what the other writes. Serializable transactions do not both commit.
#[test]
fn write_skew_is_a_conflict_where_it_must_be() {
    for flushed in [false, true] {
        for isolation in BOTH {
            let (db, keyspaces) = store();
            for (items, others) in keyspaces.iter().zip(keyspaces.iter().rev()) {
                items.put("x", "1").unwrap();
                others.put("y", "1").unwrap();
                let (mut one, mut other) = (db.begin(isolation), db.begin(isolation));
                for transaction in [&one, &other] {
                    transaction.get(items, "x").unwrap();
                    transaction.get(others, "y").unwrap();
                }
                one.delete(items, "x").unwrap();
                other.delete(others, "y").unwrap();
                one.commit().unwrap();
                if flushed {
                    keyspaces.iter().for_each(|keyspace| keyspace.flush().unwrap());
                }
                assert_eq!(
                    is_conflict(other.commit()),
                    isolation == Isolation::Serializable,
                    "{} {}",
                    items.options().kind(),
                    others.options().kind()
                );
            }
        }
    }
}

/// What was read in a range, and that there was nothing else in it, still holds at the commit.
#[test]
fn no_phantom_comes_into_what_was_read() {
    let inserted = ["a", "b1", "b2", "c1", "d", "e"];
    for flushed in [false, true] {
        let (db, keyspaces) = store();
        for items in &keyspaces {
            for key in ["b", "c", "d0"] {
                items.put(key, "1").unwrap();
            }
            // What is read of the range, and which of the inserted keys conflict with it.
            type Reading<'a> = &'a dyn Fn(&Transaction);
            let cases: [(Reading<'_>, &[&str]); 6] = [
                (&|it| assert_eq!(it.range(items, "b".."d").count(), 2), &["b1", "b2", "c1"]),
                (&|it| drop(it.range(items, "b"..).next()), &[]),
                (&|it| drop(it.range(items, "b".."d").nth(1)), &["b1", "b2"]),
                (&|it| drop(it.range(items, "b".."d").next_back()), &["c1"]),
                (&|it| drop(it.iter(items).next_back()), &["e"]),
                (&|it| assert_eq!(it.prefix(items, "d").count(), 1), &["d"]),
            ];
            for (number, (read, conflicts)) in cases.into_iter().enumerate() {
                for key in inserted {
                    let mut transaction = db.begin(Isolation::Serializable);
                    read(&transaction);
                    items.put(key, "1").unwrap();
                    if flushed {
                        items.flush().unwrap();
                    }
                    transaction.put(items, "z", "1").unwrap();
                    let expected = conflicts.contains(&key);
                    assert_eq!(is_conflict(transaction.commit()), expected, "{number} {key}");
                    items.delete(key).unwrap();
                    items.delete("z").unwrap();
                }
            }
        }
    }
}

/// A deleted key is as much a change of a range as an inserted one, also once nothing is left of it.
#[test]
fn a_deleted_key_of_a_range_is_a_conflict() {
    for flushed in [false, true] {
        let (db, keyspaces) = store();
        for items in &keyspaces {
            items.put("b", "1").unwrap();
            items.put("c", "1").unwrap();
            items.flush().unwrap();
            let mut transaction = db.begin(Isolation::Serializable);
            assert_eq!(transaction.iter(items).count(), 2);
            items.delete("c").unwrap();
            if flushed {
                items.flush().unwrap();
                items.compact(..).unwrap();
            }
            transaction.put(items, "z", "1").unwrap();
            assert!(is_conflict(transaction.commit()));
        }
    }
}

/// A transaction that is older than the memtables commits if nothing that it has read has changed.
#[test]
fn age_alone_is_no_conflict() {
    let (db, keyspaces) = store();
    for items in &keyspaces {
        for key in ["b", "c", "d"] {
            items.put(key, "1").unwrap();
        }
        let mut transaction = db.begin(Isolation::Serializable);
        assert_eq!(transaction.range(items, "b"..="c").count(), 2);
        assert_eq!(value(transaction.get(items, "x").unwrap()), "-");
        for round in 0..3 {
            items.put(format!("y{round}"), "1").unwrap();
            items.flush().unwrap();
        }
        items.compact(..).unwrap();
        transaction.put(items, "z", "1").unwrap();
        transaction.commit().unwrap();
    }
}

/// Read skew and long forks: all reads of a transaction are of one moment.
#[test]
fn all_reads_are_of_one_moment() {
    let (db, keyspaces) = store();
    let reader = db.begin(Isolation::Snapshot);
    assert_eq!(value(reader.get(&keyspaces[0], "x").unwrap()), "-");
    for items in &keyspaces {
        items.put("x", "1").unwrap();
        items.flush().unwrap();
        assert_eq!(value(reader.get(items, "x").unwrap()), "-");
        assert!(!reader.contains_key(items, "x").unwrap());
        assert_eq!(reader.iter(items).count(), 0);
        assert_eq!(reader.multi_get(items, ["x", "y"]).unwrap(), [None, None]);
    }
}

/// Its own writes over the snapshot, in every order and from both ends, against a map.
#[test]
fn a_transaction_sees_its_own_writes() {
    for seed in 0..40 {
        let mut random = SplitMix::new(seed);
        let (db, keyspaces) = store();
        let items = &keyspaces[seed as usize % KINDS.len()];
        let key = |random: &mut SplitMix| format!("k{:02}", random.below(20));
        let mut model: BTreeMap<String, String> = BTreeMap::new();
        for _ in 0..12 {
            let key = key(&mut random);
            items.put(&key, "old").unwrap();
            model.insert(key, "old".to_string());
        }
        if seed % 2 == 0 {
            items.flush().unwrap();
        }
        let isolation = BOTH[seed as usize / 4 % 2];
        let mut transaction = db.begin(isolation);
        let mut points = Vec::new();
        for step in 0..200 {
            let key = key(&mut random);
            let has = model.get(&key).cloned();
            match random.below(12) {
                0 | 1 => {
                    transaction.put(items, &key, format!("v{step}")).unwrap();
                    model.insert(key, format!("v{step}"));
                }
                2 => {
                    transaction.delete(items, &key).unwrap();
                    model.remove(&key);
                }
                3 => {
                    transaction.merge(items, &key, "+").unwrap();
                    model.entry(key).or_default().push('+');
                }
                4 => {
                    let found = transaction.take(items, &key).unwrap();
                    assert_eq!(found.is_some(), model.remove(&key).is_some());
                }
                5 => {
                    let swap =
                        transaction.compare_and_swap(items, &key, Some(b"old"), Some(b"new"));
                    match has.as_deref() == Some("old") {
                        true => {
                            assert_eq!(swap.unwrap(), Swap::Done);
                            model.insert(key, "new".to_string());
                        }
                        false => assert!(matches!(swap.unwrap(), Swap::Differs(_))),
                    }
                }
                6 => {
                    let absent = transaction.insert_if_absent(items, &key, "in").unwrap();
                    assert_eq!(absent, has.is_none());
                    model.entry(key).or_insert_with(|| "in".to_string());
                }
                7 => points.push((transaction.savepoint(), model.clone())),
                8 => {
                    if let Some((savepoint, before)) = points.pop() {
                        transaction.rollback_to(savepoint).unwrap();
                        model = before;
                    }
                }
                9 => {
                    let keys = ["k03", &key, "k12"];
                    let found = transaction.multi_get(items, keys).unwrap();
                    for (key, found) in keys.into_iter().zip(found) {
                        assert_eq!(found.as_deref(), model.get(key).map(String::as_bytes));
                    }
                    assert_eq!(transaction.contains_key(items, &key).unwrap(), has.is_some());
                }
                _ => {
                    let upper = format!("k{:02}", random.below(24));
                    let range = key.clone()..upper;
                    let mut expected: std::collections::VecDeque<_> = match range.is_empty() {
                        true => Default::default(),
                        false => model.range(range.clone()).collect(),
                    };
                    let mut iter = transaction.range(items, range);
                    loop {
                        let (found, expected) = match random.below(2) {
                            0 => (iter.next(), expected.pop_front()),
                            _ => (iter.next_back(), expected.pop_back()),
                        };
                        let Some((key, value)) = expected else {
                            assert!(found.is_none(), "seed {seed}");
                            break;
                        };
                        let (k, v) = found.expect("a pair").unwrap();
                        assert_eq!((&*k, &*v), (key.as_bytes(), value.as_bytes()), "seed {seed}");
                    }
                }
            }
        }
        transaction.commit().unwrap();
        let found = items.iter().map(|pair| {
            let (key, value) = pair.unwrap();
            (key.escape_ascii().to_string(), value.escape_ascii().to_string())
        });
        assert!(found.eq(model), "seed {seed}");
    }
}

#[test]
fn an_iterator_sees_what_is_written_where_it_has_yet_to_come() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    for key in ["a", "c", "e"] {
        items.put(key, "old").unwrap();
    }
    let mut transaction = db.begin(Isolation::Serializable);
    let mut iter = transaction.iter(items);
    let mut next = |back: bool| {
        let pair = if back { iter.next_back() } else { iter.next() };
        pair.map(|pair| value(pair.ok().map(|(key, _)| key)))
    };
    assert_eq!(next(false).as_deref(), Some("a"));
    transaction.put(items, "b", "new").unwrap();
    transaction.put(items, "Z", "passed").unwrap();
    assert_eq!(next(false).as_deref(), Some("b"));
    assert_eq!(next(true).as_deref(), Some("e"));
    transaction.delete(items, "c").unwrap();
    transaction.put(items, "d", "new").unwrap();
    assert_eq!(next(true).as_deref(), Some("d"));
    assert_eq!(next(false), None);
    drop(iter);
    let mut iter = transaction.iter(items);
    iter.next();
    transaction.commit().unwrap();
    assert!(matches!(iter.next(), Some(Err(Error::Closed { .. }))));
    assert!(iter.next().is_none());
}

#[test]
fn merges_alone_never_conflict() {
    for isolation in BOTH {
        let (db, keyspaces) = store();
        let items = &keyspaces[0];
        let (mut one, mut other) = (db.begin(isolation), db.begin(isolation));
        one.merge(items, "x", "1").unwrap();
        other.merge(items, "x", "2").unwrap();
        one.commit().unwrap();
        other.commit().unwrap();
        assert_eq!(value(items.get("x").unwrap()), "12");
    }
}

#[test]
fn a_locked_key_is_nobody_elses() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    items.put("x", "0").unwrap();
    let mut holder = db.begin(Isolation::Serializable);
    assert_eq!(value(holder.get_for_update(items, "x").unwrap()), "0");
    let mut other = db.begin(Isolation::Serializable);
    other.lock_timeout(Duration::from_millis(20));
    let error = other.lock(items, "x").unwrap_err();
    assert!(error.to_string().contains(&format!("transaction {} has locked", holder.id())));
    drop(other);
    thread::scope(|scope| {
        let writer = scope.spawn(|| items.put("x", "2").unwrap());
        let batch = scope.spawn(|| {
            let mut batch = Batch::new();
            batch.put(items, "w", "3");
            batch.put(items, "x", vec![b'3'; 200 << 10]);
            batch.commit().unwrap();
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished() && !batch.is_finished());
        assert_eq!(value(items.get("x").unwrap()), "0", "reads wait for nobody");
        items.put("y", "1").unwrap();
        holder.put(items, "x", "1").unwrap();
        holder.commit().unwrap();
    });
    let end = items.get("x").unwrap().unwrap();
    assert!(end == b"2" || end.len() == 200 << 10);
    assert!(!db.store().transaction_locks.is_used_at_all());
}

/// A transaction that locks first sees the newest value, and one that has read before must find that unchanged.
#[test]
fn a_lock_takes_the_snapshot_anew_if_that_changes_nothing() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    items.put("x", "0").unwrap();
    for isolation in BOTH {
        let mut transaction = db.begin(isolation);
        items.put("x", "1").unwrap();
        assert_eq!(value(transaction.get_for_update(items, "x").unwrap()), "1");
        transaction.put(items, "x", "2").unwrap();
        transaction.commit().unwrap();

        let mut transaction = db.begin(isolation);
        transaction.get(items, "y").unwrap();
        let mut open = transaction.iter(items);
        open.next();
        items.put("x", "3").unwrap();
        // The iterator has passed it, or has yet to come to it.
        assert!(is_conflict(transaction.lock(items, "x")));
        drop(open);
    }
    let mut transaction = db.begin(Isolation::Serializable);
    transaction.get(items, "y").unwrap();
    items.put("x", "4").unwrap();
    assert_eq!(value(transaction.get_for_update(items, "x").unwrap()), "4");
    items.put("y", "1").unwrap();
    transaction.put(items, "z", "1").unwrap();
    assert!(is_conflict(transaction.commit()), "what it read before the lock still counts");
}

#[test]
fn a_deadlock_is_told_at_once_and_the_other_goes_on() {
    let (db, keyspaces) = store();
    let (items, others) = (&keyspaces[0], &keyspaces[1]);
    let mut one = db.begin(Isolation::Serializable);
    one.lock(items, "x").unwrap();
    let (begun, barrier) = (Instant::now(), &Barrier::new(2));
    thread::scope(|scope| {
        let db = &db;
        let other = scope.spawn(move || {
            let mut other = db.begin(Isolation::Serializable);
            other.lock(others, "y").unwrap();
            barrier.wait();
            other.lock(items, "x").map(|()| other)
        });
        barrier.wait();
        let locked = one.lock(others, "y");
        drop(one);
        let other = other.join().unwrap();
        let failed = [locked.err(), other.as_ref().err().cloned()];
        let told: Vec<_> = failed.into_iter().flatten().map(|error| error.to_string()).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("deadlock") && told[0].contains("\"x\""), "{told:?}");
    });
    assert!(begun.elapsed() < Duration::from_secs(8), "nobody has waited for the time to be up");
    assert!(!db.store().transaction_locks.is_used_at_all());
}

/// A batch that writes to keys which several transactions have locked lets them finish.
#[test]
fn a_batch_closes_no_circle() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    thread::scope(|scope| {
        for thread in 0..3 {
            let db = &db;
            scope.spawn(move || {
                for round in 0..200 {
                    if thread == 0 {
                        let mut batch = Batch::new();
                        batch.put(items, "a", "batch");
                        batch.put(items, "b", "batch");
                        batch.commit().unwrap();
                        continue;
                    }
                    let keys = if (round + thread) % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
                    db.transact(|transaction| {
                        for key in keys {
                            transaction.lock(items, key)?;
                            transaction.put(items, key, "transaction")?;
                        }
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            });
        }
    });
    let both = items.multi_get(["a", "b"]).unwrap();
    assert_eq!(both[0], both[1], "each is of one commit");
}

/// Threads move amounts between accounts of all kinds, and sum up all of them in between. Short memtables make that
/// validation finds versions in trees too.
#[test]
fn money_is_neither_made_nor_lost() {
    for isolation in BOTH {
        let db = Database::builder_in_memory()
            .memory_budget(2 << 20)
            .memtable_bytes(32 << 10)
            .open()
            .unwrap();
        let of = |options: &fn() -> KeyspaceOptions| {
            let options = options();
            db.keyspace(&options.kind().to_string(), options).unwrap()
        };
        let keyspaces: Vec<Keyspace> = KINDS.iter().map(of).collect();
        const ACCOUNTS: u64 = 10;
        for number in 0..ACCOUNTS {
            let items = &keyspaces[number as usize % 4];
            items.put(number.to_be_bytes(), 100u64.to_le_bytes()).unwrap();
        }
        let amount = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let sum = |transaction: &Transaction| -> Result<u64> {
            let mut sum = 0;
            for items in &keyspaces {
                for pair in transaction.iter(items) {
                    sum += amount(&pair?.1);
                }
            }
            Ok(sum)
        };
        let moved = thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|thread| {
                    let (db, keyspaces, sum) = (&db, &keyspaces, &sum);
                    scope.spawn(move || {
                        let mut random = SplitMix::new(thread);
                        let mut moved = 0;
                        for round in 0..150 {
                            let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                            let all = round % 10 == thread;
                            let result =
                                db.transact_with(isolation, Durability::Buffered, |transaction| {
                                    if all {
                                        assert_eq!(sum(transaction)?, 100 * ACCOUNTS);
                                    }
                                    let items = &keyspaces[from as usize % 4];
                                    let others = &keyspaces[to as usize % 4];
                                    let has = transaction.get(items, from.to_be_bytes())?;
                                    let has = amount(&has.unwrap());
                                    if has == 0 || from == to {
                                        return Ok(false);
                                    }
                                    let gets = transaction.get(others, to.to_be_bytes())?;
                                    let gets = amount(&gets.unwrap());
                                    // Some of these make memtables full.
                                    let wide = |amount: u64| {
                                        let mut value = vec![0; 1000];
                                        value[..8].copy_from_slice(&amount.to_le_bytes());
                                        value
                                    };
                                    transaction.put(items, from.to_be_bytes(), wide(has - 1))?;
                                    transaction.put(others, to.to_be_bytes(), wide(gets + 1))?;
                                    Ok::<_, Error>(true)
                                });
                            moved += u64::from(match result {
                                Ok(moved) => moved,
                                // All in one range: under a load of others it may have no chance.
                                Err(Error::Conflict { .. }) if all => false,
                                Err(error) => panic!("{error}"),
                            });
                        }
                        moved
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        assert!(moved > 300, "{moved}");
        assert_eq!(sum(&db.begin(isolation)).unwrap(), 100 * ACCOUNTS);
        assert_eq!(db.store().transaction_memory.bytes(), 0);
    }
}

/// Of threads that change one key, each gets its turn: a try that has conflicted locks the key first.
#[test]
fn threads_that_want_one_key_take_turns() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    let tries = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let db = &db;
                scope.spawn(move || {
                    let mut tries = 0;
                    for _ in 0..200 {
                        db.transact(|transaction| {
                            tries += 1;
                            let has = transaction.get(items, "x")?.map_or(0, |has| has.len());
                            transaction.put(items, "x", vec![b'x'; has + 1])
                        })
                        .unwrap();
                    }
                    tries
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u32>>()
    });
    assert_eq!(items.get("x").unwrap().unwrap().len(), 1600);
    assert!(tries.iter().all(|tries| *tries <= 3 * 200), "{tries:?}");
}

#[test]
fn what_transactions_keep_is_bounded_and_given_back() {
    let db = Database::builder_in_memory().memory_budget(8 << 20).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let mut transaction = db.begin(Isolation::Serializable);
    let mut written = 0;
    let error = loop {
        match transaction.put(&items, format!("{written}"), vec![0; 1000]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!((600..1100).contains(&written), "{written}");
    assert!(error.to_string().contains("1048576 bytes"), "{error}");
    assert_eq!(db.stats().memory_transactions, db.store().transaction_memory.bytes());
    drop(transaction);
    let mut transaction = db.begin(Isolation::Serializable);
    transaction.put(&items, "more", vec![0; 1 << 30]).unwrap_err();
    transaction.put(&items, "more", "1").unwrap();
    transaction.commit().unwrap();
    assert_eq!(items.iter().count(), 1);
    assert_eq!(db.stats().memory_transactions, 0);
    let mut reader = db.begin(Isolation::Serializable);
    let read = (0..100_000).find(|key: &u32| reader.get(&items, key.to_be_bytes()).is_err());
    assert!(read.is_some());
    let of_snapshot = db.begin(Isolation::Snapshot);
    (0..1000u32).for_each(|key| assert!(of_snapshot.get(&items, key.to_be_bytes()).is_ok()));
    reader.put(&items, "x", "1").unwrap_err();
    drop((reader, of_snapshot));
    assert_eq!(db.stats().memory_transactions, 0);
    assert_eq!(db.stats().snapshots, 0);
}

/// A savepoint that had been taken back was good again once as much had been written.
#[test]
fn a_savepoint_that_was_taken_back_is_gone() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    let mut transaction = db.begin(Isolation::Serializable);
    let write = |transaction: &mut Transaction, keys: &str| {
        keys.chars().for_each(|key| transaction.put(items, key.to_string(), "1").unwrap());
        transaction.savepoint()
    };
    let first = write(&mut transaction, "a");
    let second = write(&mut transaction, "bc");
    transaction.rollback_to(first).unwrap();
    write(&mut transaction, "def");
    let refused = transaction.rollback_to(second);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    assert_eq!(transaction.iter(items).count(), 4);
    transaction.rollback_to(first).unwrap();
    transaction.rollback_to(first).unwrap();
    assert_eq!(transaction.iter(items).count(), 1);
}

/// A conditional write queued for a locked key, got it with what it had read before, and gave it up to read again. Where
/// transactions kept locking the key it never came to an end.
#[test]
fn a_conditional_write_keeps_the_key_that_it_has_waited_for() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    items.put("x", []).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let longer =
        |has: Option<&[u8]>| crate::Update::Put(vec![b'x'; has.map_or(0, <[u8]>::len) + 1]);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    db.transact(|transaction| {
                        transaction.lock(items, "x")?;
                        transaction.put(items, "x", transaction.get(items, "x")?.unwrap())
                    })
                    .unwrap();
                }
            });
        }
        let mut tries = 0;
        for _ in 0..50 {
            let change = |has: Option<&[u8]>| {
                tries += 1;
                longer(has)
            };
            items.fetch_update("x", change).unwrap();
        }
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        // One before it waits, one once it has the key, and now and then one more.
        assert!(tries <= 150, "{tries}");
    });
    assert_eq!(items.get("x").unwrap().unwrap().len(), 50);
    assert!(!db.store().transaction_locks.is_used_at_all());
}

#[test]
fn what_cannot_be_is_refused() {
    let (db, keyspaces) = store();
    let items = &keyspaces[0];
    let (_other, of_other) = store();
    let mut transaction = db.begin(Isolation::Serializable);
    let invalid =
        |result: Result<()>| assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    invalid(transaction.put(&of_other[0], "x", "1"));
    invalid(transaction.get(&of_other[0], "x").map(|_| ()));
    assert!(transaction.iter(&of_other[0]).next().unwrap().is_err());
    invalid(transaction.put(items, vec![0; 70_000], "1"));
    let plain = db.keyspace("plain", KeyspaceOptions::stb()).unwrap();
    invalid(transaction.merge(&plain, "x", "1"));
    invalid(transaction.rollback_to(db.begin(Isolation::Snapshot).savepoint()));
    transaction.put(&plain, "x", "1").unwrap();
    db.drop_keyspace("plain").unwrap();
    assert!(matches!(transaction.commit(), Err(Error::Closed { .. })));
    // A keyspace that was read is gone too.
    let gone = db.keyspace("gone", KeyspaceOptions::stb()).unwrap();
    for ranges in [false, true] {
        let mut transaction = db.begin(Isolation::Serializable);
        match ranges {
            true => assert!(transaction.iter(&gone).next().is_none()),
            false => assert!(transaction.get(&gone, "x").unwrap().is_none()),
        }
        transaction.put(items, "x", "1").unwrap();
        if ranges {
            db.drop_keyspace("gone").unwrap();
            assert!(matches!(transaction.commit(), Err(Error::Closed { .. })));
        }
    }
    let empty = db.begin(Isolation::Serializable);
    empty.commit_with(Durability::Sync).unwrap();
    db.clone().close().unwrap();
    assert!(matches!(db.begin(Isolation::Snapshot).get(items, "x"), Err(Error::Closed { .. })));
}
