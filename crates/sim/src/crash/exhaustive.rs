//! All sequences of a few actions, crashed at every operation with every policy.
//!
//! Invariants:
//! 1. A sequence is crashed only during its last action: earlier crashes are judged with the
//!    shorter sequence.
//! 2. The same image with the same promise is judged once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::{Base, Crash, Judged, Then, base};
use crate::action::{Action, Change, Operator, Options, Range, Value, Write};
use crate::disk::Policy;
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};
use crate::random::mix;
use crate::sizes::Sizes;
use crate::workload::Generation;

/// Images and promises that have been judged.
#[derive(Debug, Default)]
pub struct Seen(Mutex<BTreeSet<u64>>);

impl Seen {
    /// Whether it is new.
    fn insert(&self, image: u64, promise: u64) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(mix(image ^ mix(promise)))
    }
}

/// Draws of each policy that leaves something to chance.
const DRAWS_OF_OTHERS: u64 = 2;

fn put(keyspace: u8, key: u32, number: u32, len: u32) -> Write {
    Write { keyspace, key, change: Change::Put(Value { number, len }) }
}

fn options(operator: Operator, blob_bytes_min: u32) -> Options {
    Options { operator, blob_bytes_min, ..Options::default() }
}

/// What is there before each sequence: two keyspaces, one of them with merges and blobs, with
/// tables in their trees and something in memtables.
fn prelude() -> Vec<Action> {
    let mut actions = vec![
        Action::CreateKeyspace(0, options(Operator::None, 4096)),
        Action::CreateKeyspace(1, options(Operator::Append, 100)),
    ];
    for round in 0..3 {
        let writes = (0..6).map(|key| put(0, key * 3 + round, round, 120));
        let more = [put(1, round, 2, 150), put(1, round + 3, 3, 20)];
        actions.push(Action::Batch { writes: writes.chain(more).collect(), sync: false });
        actions.push(Action::Flush(0));
    }
    actions.push(Action::Flush(1));
    actions.push(Action::WaitIdle);
    // Much that is dead in what the store keeps of its keyspaces: tidying that up is the next step.
    for _ in 0..40 {
        actions.push(Action::CreateKeyspace(9, options(Operator::None, 4096)));
        actions.push(Action::DropKeyspace(9));
    }
    actions.push(Action::Write(put(0, 4, 4, 60)));
    actions.push(Action::Write(put(1, 1, 5, 60)));
    actions
}

/// What sequences are made of.
pub fn alphabet() -> Vec<Action> {
    let batch = |writes: Vec<Write>, sync| Action::Batch { writes, sync };
    let both = || {
        let merged =
            Write { keyspace: 1, key: 2, change: Change::Merge(Value { number: 7, len: 9 }) };
        vec![put(0, 40, 6, 30), merged, Write { keyspace: 0, key: 3, change: Change::Delete }]
    };
    vec![
        Action::Write(put(0, 50, 8, 40)),
        batch(vec![put(1, 8, 12, 17_000)], true),
        Action::Write(put(0, 6, 9, 40)),
        Action::Write(Write { keyspace: 0, key: 4, change: Change::Delete }),
        batch(vec![put(0, 51, 10, 40)], true),
        batch(both(), false),
        batch(both(), true),
        Action::Write(Write {
            keyspace: 1,
            key: 1,
            change: Change::Merge(Value { number: 11, len: 110 }),
        }),
        batch((0..8).map(|key| put(0, 60 + key, key, 150)).collect(), false),
        Action::Sync,
        Action::Flush(0),
        Action::Flush(1),
        Action::Step(1),
        Action::Step(6),
        Action::WaitIdle,
        Action::Compact(0, Range::ALL),
        Action::Checkpoint { compare: false },
        Action::CreateKeyspace(2, options(Operator::None, 4096)),
        Action::Alter(1, Options { fanout_max: 3, ..options(Operator::Append, 64) }),
        Action::DropKeyspace(1),
        Action::Reopen { close: true },
        Action::TakeSnapshot(0),
    ]
}

/// What every sequence begins on.
///
/// # Errors
/// Whatever the store fails with.
pub fn begin(kinds: Kinds) -> Result<Base, String> {
    let sizes = Sizes {
        seed: 1,
        kinds,
        memtable_bytes: 1024,
        cache_bytes: None,
        shards: 2,
        iterator_calls: None,
        gap_entries: Some(1),
        rests: false,
        is_split: false,
    };
    let empty = Base { settles: false, ..Base::empty(sizes, None) };
    let made = empty.work(prelude())?;
    let at = made.log.len();
    let crash = Crash { at, policy: Policy::Kill, draw: 0, then: Then::Recovery(0) };
    let judged = empty.judge(&made, &made.replay(at), &crash)?;
    Ok(empty.next(&made, &crash, Judged { left: made.replay(at), ..judged }))
}

/// How many sequences there are of a length.
pub fn sequences(length: usize) -> u64 {
    (alphabet().len() as u64).pow(length as u32)
}

/// The sequence of that number: the actions' numbers.
fn sequence(mut number: u64, length: usize) -> Vec<usize> {
    let size = alphabet().len() as u64;
    let mut actions = Vec::new();
    for _ in 0..length {
        actions.push((number % size) as usize);
        number /= size;
    }
    actions.reverse();
    actions
}

/// Judges all that crashes in the last action of a sequence may leave; of the empty one, all that
/// crashes of opening and closing may.
pub fn run(base: &Base, length: usize, number: u64, seen: &Seen) -> Outcome {
    let mut outcome = Outcome::default();
    let (letters, numbers) = (alphabet(), sequence(number, length));
    let actions: Vec<Action> = numbers.iter().map(|&letter| letters[letter].clone()).collect();
    outcome.operations = actions.iter().map(Action::operations).sum();
    *outcome.counts.entry("sequences".to_string()).or_default() += 1;
    let command = |crash: &str| {
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        let kinds = base.sizes.kinds;
        format!("spinney-sim crash --kind {kinds} --sequence {}{crash}", numbers.join(","))
    };
    match base::caught(|| base.work(actions.clone())) {
        Err(what) => outcome.violations.push(Violation { what, command: command("") }),
        Ok(made) => {
            if let Err((crash, what)) = judge(base, &made, length, seen, &mut outcome) {
                let Crash { at, policy, draw, .. } = crash;
                let crash = format!(" --at {at} --policy {policy} --draw {draw}");
                outcome.violations.push(Violation { what, command: command(&crash) });
            }
        }
    }
    outcome
}

fn judge(
    base: &Base,
    made: &Generation,
    length: usize,
    seen: &Seen,
    outcome: &mut Outcome,
) -> Result<(), (Crash, String)> {
    let (first, end) = match length {
        0 => (0, made.log.len()),
        _ => (made.history.trace.last().map_or(0, |(at, _)| at + 1), made.worked),
    };
    if first > end {
        return Ok(());
    }
    let mut disk = made.replay(first);
    let mut same = 0;
    for at in first..=end {
        let judge = base.judge_at(made, at);
        for policy in Policy::ALL {
            let draws = match policy {
                Policy::PowerSubset => 0..disk.subsets().unwrap_or(DRAWS_OF_OTHERS),
                _ if policy.is_drawn() => 0..DRAWS_OF_OTHERS,
                _ => 0..1,
            };
            for draw in draws {
                let left = disk.crash(policy, draw, made.log.get(at));
                let promise = judge.promise_fingerprint(policy.keeps_unsynced());
                if !seen.insert(left.fingerprint(), promise) {
                    same += 1;
                    continue;
                }
                let crash = Crash { at, policy, draw, then: Then::Recovery(0) };
                outcome.count(policy.to_string());
                let judged = base.judge(made, &disk, &crash);
                judged.map_err(|what| {
                    let trace = made.history.trace_before(&made.actions, at);
                    (crash, format!("{}: {what}\n{trace}", crash.told(made)))
                })?;
            }
        }
        made.log[at..].iter().take(1).for_each(|op| disk.apply(op));
    }
    *outcome.counts.entry("states_same".to_string()).or_default() += same;
    Ok(())
}

/// The actions of a sequence given by their numbers.
///
/// # Errors
/// A number that no action has.
pub fn actions(numbers: &[usize]) -> Result<Vec<Action>, String> {
    let letters = alphabet();
    let action = |number: &usize| {
        letters.get(*number).cloned().ok_or_else(|| format!("there is no action {number}"))
    };
    numbers.iter().map(action).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_has_a_number() {
        let size = alphabet().len();
        let mut all: Vec<Vec<usize>> = (0..sequences(2)).map(|n| sequence(n, 2)).collect();
        assert_eq!(sequence(0, 0), Vec::<usize>::new());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), size * size);
    }

    #[test]
    fn what_sequences_begin_on_has_tables_and_memtables() {
        for kinds in Kinds::All.runs() {
            let base = begin(kinds).unwrap();
            let keyspaces = base.inherited.unwrap();
            assert!(keyspaces.len() == 2 && keyspaces.iter().all(|k| k.pairs.len() >= 6));
        }
    }
}
