//! A thread that runs transactions.

use std::time::Duration;

use spinney::{Durability, Error, Isolation};

use super::history::{End, Key, Transaction, ids, item};
use super::{Shared, TRANSACTIONS, name_of};
use crate::random::Random;

/// Nobody holds a key for so long, but in a deadlock that was not seen.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// What a transaction has done so far.
#[derive(Default)]
struct Done {
    reads: Vec<(Key, Vec<u32>)>,
    appends: Vec<(Key, u32)>,
    /// Appends of tries that were given up, or that were taken back.
    undone: Vec<(Key, u32)>,
}

/// What keeps a transaction from going on.
enum Stop {
    Failed(Error),
    /// What it sees is wrong.
    Wrong(String),
    /// The worker does not want it.
    GivenUp,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

type Step<T> = Result<T, Stop>;

/// Runs transactions. Returns all of them, also those that were given up.
pub(super) fn run(shared: &Shared, mut random: Random) -> Result<Vec<Transaction>, String> {
    let mut transactions = Vec::new();
    for _ in 0..TRANSACTIONS {
        let begun = shared.tick();
        let mut done = Done::default();
        let end = match random.below(8) {
            0 => alone(shared, &mut random, &mut done),
            1 => batch(shared, &mut random, &mut done),
            2 | 3 => by_hand(shared, &mut random, &mut done),
            _ => again_and_again(shared, &mut random, &mut done),
        };
        let ended = shared.tick();
        let end = match end {
            Ok(()) => End::Committed,
            Err(Stop::Failed(Error::Conflict { what })) if what.contains("for longer than") => {
                return Err(what);
            }
            Err(Stop::GivenUp | Stop::Failed(Error::Conflict { .. })) => End::Aborted,
            Err(Stop::Failed(error)) => return Err(format!("a transaction failed: {error}")),
            Err(Stop::Wrong(what)) => return Err(what),
        };
        let Done { reads, appends, undone } = done;
        transactions.push(Transaction { begun, ended, end, reads, appends });
        let (reads, end) = (Vec::new(), End::Aborted);
        transactions.push(Transaction { begun, ended, end, reads, appends: undone });
    }
    Ok(transactions)
}

/// A list among those that are appended to now. New ones come up all the time.
fn some_key(shared: &Shared, random: &mut Random) -> Key {
    Key {
        space: random.below(shared.spaces.len()) as u32,
        key: shared.first_key() + random.below(shared.keys as usize) as u32,
    }
}

/// A write without a transaction.
fn alone(shared: &Shared, random: &mut Random, done: &mut Done) -> Step<()> {
    let (key, id) = (some_key(shared, random), shared.id());
    done.appends.push((key, id));
    let space = &shared.spaces[key.space as usize];
    Ok(space.merge(name_of(key.key), item(id, shared.padding))?)
}

/// A batch of them.
fn batch(shared: &Shared, random: &mut Random, done: &mut Done) -> Step<()> {
    let mut batch = shared.db.batch();
    for _ in 0..1 + random.below(3) {
        let (key, id) = (some_key(shared, random), shared.id());
        done.appends.push((key, id));
        let space = &shared.spaces[key.space as usize];
        batch.merge(space, name_of(key.key), item(id, shared.padding));
    }
    Ok(batch.commit()?)
}

/// A transaction that is begun and committed here, or not.
fn by_hand(shared: &Shared, random: &mut Random, done: &mut Done) -> Step<()> {
    let mut transaction = shared.db.begin(shared.isolation);
    body(shared, random, done, &mut transaction)?;
    if random.one_in(4) {
        return Err(Stop::GivenUp);
    }
    let durability = if random.one_in(8) { Durability::Sync } else { Durability::Buffered };
    Ok(transaction.commit_with(durability)?)
}

/// One that is tried until it commits.
fn again_and_again(shared: &Shared, random: &mut Random, done: &mut Done) -> Step<()> {
    shared.db.transact_with(shared.isolation, Durability::Buffered, |transaction| {
        let before = std::mem::take(done);
        done.undone = before.undone;
        done.undone.extend(before.appends);
        body(shared, random, done, transaction)
    })
}

/// What is done in a transaction.
fn body(
    shared: &Shared,
    random: &mut Random,
    done: &mut Done,
    transaction: &mut spinney::Transaction,
) -> Step<()> {
    // What was merged may have been appended to something else than what was read. Serializable transactions find that,
    // those with snapshot isolation do not want to.
    transaction.lock_timeout(LOCK_TIMEOUT);
    let merges_alone = random.one_in(4);
    let merges = merges_alone || shared.isolation == Isolation::Serializable;
    if random.one_in(3) && !merges_alone {
        let key = some_key(shared, random);
        let space = &shared.spaces[key.space as usize];
        let value = transaction.get_for_update(space, name_of(key.key))?;
        note_read(done, key, value.as_deref())?;
    }
    for _ in 0..1 + random.below(5) {
        let key = some_key(shared, random);
        let space = &shared.spaces[key.space as usize];
        match random.below(9) {
            0 | 1 if !merges_alone => {
                let value = transaction.get(space, name_of(key.key))?;
                note_read(done, key, value.as_deref())?;
            }
            2 if !merges_alone => read_all(shared, random, done, transaction, key.space)?,
            3 | 4 if merges => {
                let id = shared.id();
                transaction.merge(space, name_of(key.key), item(id, shared.padding))?;
                done.appends.push((key, id));
            }
            5 => {
                let before = (transaction.savepoint(), done.appends.len());
                let id = shared.id();
                if merges {
                    transaction.merge(space, name_of(key.key), item(id, shared.padding))?;
                } else {
                    transaction.put(space, name_of(key.key), item(id, shared.padding))?;
                }
                done.appends.push((key, id));
                transaction.rollback_to(before.0)?;
                done.undone.extend(done.appends.drain(before.1..));
            }
            6 if !merges_alone => delete_for_a_while(shared, transaction, key)?,
            7 if !merges_alone => {
                let value = transaction.get_for_update(space, name_of(key.key))?;
                note_read(done, key, value.as_deref())?;
            }
            _ if !merges_alone => {
                let value = transaction.get(space, name_of(key.key))?;
                note_read(done, key, value.as_deref())?;
                let id = shared.id();
                let mut list = value.as_deref().unwrap_or_default().to_vec();
                list.extend(item(id, shared.padding));
                transaction.put(space, name_of(key.key), list)?;
                done.appends.push((key, id));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Deletes a list, looks whether it is still there, and takes that back.
fn delete_for_a_while(
    shared: &Shared,
    transaction: &mut spinney::Transaction,
    key: Key,
) -> Step<()> {
    let (space, name) = (&shared.spaces[key.space as usize], name_of(key.key));
    let before = transaction.savepoint();
    transaction.delete(space, &name)?;
    let mut found = transaction.get(space, &name)?.is_some();
    for pair in transaction.range(space, &*name..).take(2) {
        found |= *pair?.0 == *name.as_bytes();
    }
    transaction.rollback_to(before)?;
    match found {
        true => Err(Stop::Wrong(format!("{key:?} is seen by the transaction that deleted it"))),
        false => Ok(()),
    }
}

/// Reads the lists of a keyspace that are appended to now, from the front, from the back or from both ends; or one end of it.
fn read_all(
    shared: &Shared,
    random: &mut Random,
    done: &mut Done,
    transaction: &spinney::Transaction,
    space: u32,
) -> Step<()> {
    let first = shared.first_key();
    let mut iter = transaction.range(&shared.spaces[space as usize], name_of(first)..);
    // With some that come up meanwhile: they are absent in the snapshot.
    let keys: Vec<u32> = (first..first + 2 * shared.keys + 8).collect();
    let names: Vec<String> = keys.iter().copied().map(name_of).collect();
    let mut seen = vec![None; keys.len()];
    let most = if random.one_in(3) { 1 + random.below(3) } else { usize::MAX };
    // The names that each end has come to, which were absent if they were not yielded.
    let (mut from, mut to) = (0, names.len());
    let mut is_through = false;
    for _ in 0..most {
        let is_front = random.one_in(2);
        let pair = if is_front { iter.next() } else { iter.next_back() };
        let Some(pair) = pair else {
            is_through = true;
            break;
        };
        let (name, value) = pair?;
        let at = names.iter().position(|known| known.as_bytes() == &*name);
        let Some(at) = at.filter(|at| (from..to).contains(at)) else {
            return Err(Stop::Wrong(format!("an iterator yields {name:?} out of turn")));
        };
        seen[at] = Some(value);
        match is_front {
            true => from = at + 1,
            false => to = at,
        }
    }
    let passed = |at: usize| is_through || at < from || at >= to;
    for (at, key) in keys.into_iter().enumerate().filter(|(at, _)| passed(*at)) {
        note_read(done, Key { space, key }, seen[at].as_deref())?;
    }
    Ok(())
}

/// Notes what was read of a list: what was there before, and then the transaction's own appends.
fn note_read(done: &mut Done, key: Key, value: Option<&[u8]>) -> Step<()> {
    let mut list = ids(value).map_err(Stop::Wrong)?;
    let own = done.appends.iter().filter(|(to, _)| *to == key).map(|(_, id)| *id);
    let own: Vec<u32> = own.collect();
    if !list.ends_with(&own) {
        return Err(Stop::Wrong(format!(
            "{key:?} is {list:?} for a transaction that appended {own:?}"
        )));
    }
    list.truncate(list.len() - own.len());
    let before = done.reads.iter().find(|(of, _)| *of == key);
    if let Some((_, before)) = before.filter(|(_, before)| *before != list) {
        return Err(Stop::Wrong(format!(
            "{key:?} was {before:?} and is {list:?} in a transaction"
        )));
    }
    done.reads.push((key, list));
    Ok(())
}
