//! Scenarios of transactions on whole stores.

use std::sync::Arc;

use shuttle::thread;

use super::stores::{keyspace, number, open};
use crate::vfs::MemoryVfs;
use crate::{Database, Durability, Error, Isolation, Keyspace};

fn freeze(space: &Keyspace) {
    space.store().freeze(&[Arc::clone(space.state())], |_| true);
}

/// Each of two transactions puts a key into a range that it has found empty, and a put without a transaction comes into it
/// too: at most one of the two commits.
pub(super) fn a_range_found_empty_stays_so() {
    let db = open(&MemoryVfs::new());
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    let transactions: Vec<_> = (0..2u8)
        .map(|task| {
            let (db, spaces) = (db.clone(), spaces.clone());
            thread::spawn(move || {
                let mut transaction = db.begin(Isolation::Serializable);
                let found = spaces.iter().map(|space| transaction.prefix(space, "k").count());
                if found.sum::<usize>() > 0 {
                    return false;
                }
                transaction.put(&spaces[usize::from(task)], [b'k', task], "1").unwrap();
                if task == 0 {
                    freeze(&spaces[0]);
                }
                match transaction.commit() {
                    Ok(()) => true,
                    Err(Error::Conflict { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            })
        })
        .collect();
    let seen = spaces.iter().map(|space| space.prefix("k").count()).sum::<usize>();
    spaces[1].put("k2", "1").unwrap();
    let committed = transactions.into_iter().map(|task| task.join().unwrap());
    let committed = committed.filter(|committed| *committed).count();
    assert!(committed <= 1, "two transactions have found the same range empty");
    assert!(seen <= 1);
    let keys = spaces.iter().map(|space| space.prefix("k").count()).sum::<usize>();
    assert_eq!(keys, committed + 1);
}

fn add(db: &Database, spaces: &[Keyspace; 2], keys: [usize; 2], locks: bool) {
    db.transact_with(Isolation::Serializable, Durability::Buffered, |transaction| {
        for space in keys {
            let space = &spaces[space];
            let has = match locks {
                true => transaction.get_for_update(space, "x")?,
                false => transaction.get(space, "x")?,
            };
            let has = has.map_or(0, |has| number(&has));
            transaction.put(space, "x", (has + 1).to_be_bytes())?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// Transactions that lock two keys in different orders, one that does not lock, and a batch: none waits indefinitely,
/// and none is lost.
pub(super) fn locks_in_different_orders() {
    let db = open(&MemoryVfs::new());
    let spaces = [keyspace(&db, "a"), keyspace(&db, "b")];
    let tasks: Vec<_> = [([0, 1], true), ([1, 0], true), ([0, 1], false)]
        .into_iter()
        .map(|(keys, locks)| {
            let (db, spaces) = (db.clone(), spaces.clone());
            thread::spawn(move || add(&db, &spaces, keys, locks))
        })
        .collect();
    let mut batch = db.batch();
    spaces.iter().for_each(|space| batch.put(space, "y", "1"));
    batch.commit().unwrap();
    spaces[0]
        .fetch_update("x", |has| {
            crate::Update::Put((has.map_or(0, number) + 1).to_be_bytes().to_vec())
        })
        .unwrap();
    freeze(&spaces[0]);
    tasks.into_iter().for_each(|task| task.join().unwrap());
    let found = [0, 1].map(|space: usize| number(&spaces[space].get("x").unwrap().unwrap()));
    assert_eq!(found, [4, 3]);
    assert!(!db.store().transaction_locks.is_used_at_all());
}

/// A key that a transaction has locked first is nobody else's: it commits, whatever others write.
pub(super) fn a_locked_key_never_conflicts() {
    let db = open(&MemoryVfs::new());
    let space = keyspace(&db, "a");
    let others: Vec<_> = (0..2u64)
        .map(|task| {
            let space = space.clone();
            thread::spawn(move || {
                space.put("x", task.to_be_bytes()).unwrap();
                if task == 0 {
                    freeze(&space);
                }
            })
        })
        .collect();
    let deletes = {
        let space = space.clone();
        thread::spawn(move || space.delete_range("w".."y").unwrap())
    };
    let mut transaction = db.begin(Isolation::Serializable);
    let has = transaction.get_for_update(&space, "x").unwrap().map_or(7, |has| number(&has));
    transaction.put(&space, "y", has.to_be_bytes()).unwrap();
    transaction.commit().unwrap();
    others.into_iter().for_each(|task| task.join().unwrap());
    deletes.join().unwrap();
    assert!(!db.store().transaction_locks.is_used_at_all());
}

/// A transaction writes a key because it has found a range full, and a range delete empties it because that key is absent:
/// one of them sees the other.
pub(super) fn a_range_found_full_is_deleted_before_or_behind() {
    let db = open(&MemoryVfs::new());
    let space = keyspace(&db, "a");
    space.put("k", "1").unwrap();
    let writes = {
        let (db, space) = (db.clone(), space.clone());
        thread::spawn(move || {
            let mut transaction = db.begin(Isolation::Serializable);
            if transaction.prefix(&space, "k").count() == 0 {
                return false;
            }
            transaction.put(&space, "w", "1").unwrap();
            match transaction.commit() {
                Ok(()) => true,
                Err(Error::Conflict { .. }) => false,
                Err(error) => panic!("{error}"),
            }
        })
    };
    let freezes = {
        let space = space.clone();
        thread::spawn(move || freeze(&space))
    };
    let mut batch = db.batch();
    batch.require_absent(&space, "w");
    batch.delete_range(&space, "k".."l");
    let is_deleted = match batch.commit() {
        Ok(()) => true,
        Err(Error::Conflict { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    freezes.join().unwrap();
    assert_eq!(space.get("k").unwrap().is_none(), is_deleted);
    assert!(!(writes.join().unwrap() && is_deleted), "neither saw the other");
    assert_eq!(space.prefix("k").count(), usize::from(!is_deleted));
}
