//! Shortens a list of actions that shows a failure. First whole actions are removed by delta
//! debugging, then the remaining ones are made smaller.
//!
//! Invariants:
//! 1. The result failed when it was last tried, or is the original list.
//! 2. It is deterministic except for the time limit.

use std::time::{Duration, Instant};

use crate::action::{Action, Change, Direction, Options, Range, Value, View, Write};
use crate::keep::Keep;

/// A list that has been cut down.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// Which actions are left.
    pub keep: Keep,
    /// Those, made smaller. May fail otherwise than the ones that `keep` names.
    pub actions: Vec<Action>,
    /// How many lists have been tried.
    pub tried: u64,
}

/// Cuts `list`, which fails, down to a sublist of which no single member, nor any run of two, four,
/// … of them, can go; or as far as it comes within `limit`.
pub fn shrink(
    list: &[Action],
    limit: Duration,
    mut fails: impl FnMut(&[Action]) -> bool,
) -> Shrunk {
    let until = Instant::now() + limit;
    let mut tried = 0;
    let mut fails = |list: &[Action]| {
        tried += 1;
        fails(list)
    };
    let numbers = sublist(list.len(), until, |numbers| fails(&members(list, numbers)));
    let mut actions = members(list, &numbers);
    simplify(&mut actions, until, simpler, &mut fails);
    Shrunk { keep: Keep::new(numbers), actions, tried }
}

fn members<T: Clone>(list: &[T], numbers: &[usize]) -> Vec<T> {
    numbers.iter().map(|&number| list[number].clone()).collect()
}

/// The numbers, of `0..count`, of a small sublist that fails.
pub fn sublist(
    count: usize,
    until: Instant,
    mut fails: impl FnMut(&[usize]) -> bool,
) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..count).collect();
    let mut chunk = count.div_ceil(2).max(1);
    loop {
        let before = kept.len();
        let mut end = kept.len();
        // From the end: what comes late depends on what came early, not the other way round.
        while end > 0 {
            if Instant::now() >= until {
                return kept;
            }
            let start = end.saturating_sub(chunk);
            let without = [&kept[..start], &kept[end..]].concat();
            if fails(&without) {
                kept = without;
            }
            end = start;
        }
        match chunk {
            1 if kept.len() == before => return kept,
            1 => {}
            _ => chunk = chunk.div_ceil(2).min(kept.len().max(1)),
        }
    }
}

/// Replaces members of `list`, which fails, by `simpler` ones for as long as that still fails.
pub fn simplify<T: Clone>(
    list: &mut [T],
    until: Instant,
    simpler: impl Fn(&T) -> Vec<T>,
    mut fails: impl FnMut(&[T]) -> bool,
) {
    for number in 0..list.len() {
        'again: loop {
            for candidate in simpler(&list[number]) {
                if Instant::now() >= until {
                    return;
                }
                let before = std::mem::replace(&mut list[number], candidate);
                if fails(list) {
                    continue 'again;
                }
                list[number] = before;
            }
            break;
        }
    }
}

/// Actions that are like this one and smaller in some measure, the smallest first. Each is smaller
/// than this one in one and the same order, so that replacing comes to an end.
pub fn simpler(action: &Action) -> Vec<Action> {
    match action {
        Action::Write(write) => simpler_writes(*write).into_iter().map(Action::Write).collect(),
        Action::Batch { writes, sync } => simpler_batches(writes, *sync),
        Action::Step(count) => halves(u32::from(*count), 1)
            .into_iter()
            .map(|count| Action::Step(count as u8))
            .collect(),
        Action::Compact(keyspace, range) if *range != Range::ALL => {
            vec![Action::Compact(*keyspace, Range::ALL)]
        }
        Action::OpenIterator { slot, keyspace, view, range } => {
            let with = |view, range| Action::OpenIterator {
                slot: *slot,
                keyspace: *keyspace,
                view,
                range,
            };
            places(*view, *range).into_iter().map(|(view, range)| with(view, range)).collect()
        }
        Action::AdvanceIterator { slot, direction, count } => {
            let with = |direction, count| Action::AdvanceIterator { slot: *slot, direction, count };
            steps(*direction, *count).into_iter().map(|(to, count)| with(to, count)).collect()
        }
        Action::Get { keyspace, key, view: View::Snapshot(_) } => {
            vec![Action::Get { keyspace: *keyspace, key: *key, view: View::Now }]
        }
        Action::MultiGet { keyspace, keys, view } => match &**keys {
            [key] => vec![Action::Get { keyspace: *keyspace, key: *key, view: *view }],
            keys => without_each(keys)
                .into_iter()
                .map(|keys| Action::MultiGet { keyspace: *keyspace, keys, view: *view })
                .collect(),
        },
        Action::Scan { keyspace, range, view, direction, count } => {
            let with = |view, range, direction, count| Action::Scan {
                keyspace: *keyspace,
                range,
                view,
                direction,
                count,
            };
            let places = places(*view, *range).into_iter();
            let places = places.map(|(view, range)| with(view, range, *direction, *count));
            let steps = steps(*direction, *count).into_iter();
            places.chain(steps.map(|(to, count)| with(*view, *range, to, count))).collect()
        }
        Action::CreateKeyspace(number, options) => simpler_options(*options)
            .into_iter()
            .map(|options| Action::CreateKeyspace(*number, options))
            .collect(),
        Action::Alter(number, options) => simpler_options(*options)
            .into_iter()
            .map(|options| Action::Alter(*number, options))
            .collect(),
        Action::Checkpoint { compare: true } => vec![Action::Checkpoint { compare: false }],
        _ => Vec::new(),
    }
}

/// Smaller numbers, down to `least`.
fn halves(number: u32, least: u32) -> Vec<u32> {
    let mut smaller = vec![least, number / 2, number.saturating_sub(1)];
    smaller.retain(|&n| n >= least && n < number);
    smaller.dedup();
    smaller
}

/// The list without each of its members, but for the last one.
fn without_each<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    match list.len() {
        0 | 1 => Vec::new(),
        count => (0..count).map(|n| [&list[..n], &list[n + 1..]].concat()).collect(),
    }
}

fn simpler_writes(write: Write) -> Vec<Write> {
    let with = |change| Write { change, ..write };
    let values = |value: Value, wrap: fn(Value) -> Change| -> Vec<Write> {
        halves(value.len, 0).into_iter().map(|len| with(wrap(Value { len, ..value }))).collect()
    };
    match write.change {
        Change::Delete => Vec::new(),
        Change::DeleteRange(_) => vec![with(Change::Delete)],
        Change::Put(value) => values(value, Change::Put),
        Change::Merge(value) => {
            [vec![with(Change::Put(value))], values(value, Change::Merge)].concat()
        }
    }
}

fn simpler_batches(writes: &[Write], sync: bool) -> Vec<Action> {
    let batch = |writes, sync| Action::Batch { writes, sync };
    let mut simpler: Vec<Action> =
        without_each(writes).into_iter().map(|writes| batch(writes, sync)).collect();
    if sync {
        simpler.push(batch(writes.to_vec(), false));
    }
    if let ([write], false) = (writes, sync) {
        simpler.push(Action::Write(*write));
    }
    for (number, write) in writes.iter().enumerate() {
        for smaller in simpler_writes(*write) {
            let mut writes = writes.to_vec();
            writes[number] = smaller;
            simpler.push(batch(writes, sync));
        }
    }
    simpler
}

fn places(view: View, range: Range) -> Vec<(View, Range)> {
    let mut simpler = vec![(View::Now, Range::ALL), (View::Now, range), (view, Range::ALL)];
    simpler.dedup();
    simpler.retain(|simpler| *simpler != (view, range));
    simpler
}

fn steps(direction: Direction, count: u16) -> Vec<(Direction, u16)> {
    let fewer = halves(u32::from(count), 1).into_iter().map(|count| (direction, count as u16));
    let plain = (direction != Direction::Forwards).then_some((Direction::Forwards, count));
    plain.into_iter().chain(fewer).collect()
}

fn simpler_options(options: Options) -> Vec<Options> {
    let plain = Options::default();
    let mut simpler = vec![
        plain,
        Options { compression: plain.compression, ..options },
        Options { operator: plain.operator, ..options },
        Options { blob_bytes_min: plain.blob_bytes_min, ..options },
        Options { fanout_max: plain.fanout_max, ..options },
        Options { space_percent_max: plain.space_percent_max, ..options },
        Options { tables_per_guard_max: plain.tables_per_guard_max, ..options },
        Options { filters: plain.filters, ..options },
    ];
    simpler.retain(|simpler| *simpler != options);
    simpler
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Generator, Purpose};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn three_of_five_hundred_are_found() {
        for wanted in [[0, 1, 2], [17, 250, 499], [123, 124, 400]] {
            let mut tried = 0;
            let kept = sublist(500, Instant::now() + LONG, |numbers| {
                tried += 1;
                wanted.iter().all(|number| numbers.contains(number))
            });
            assert_eq!(kept, wanted);
            assert!(tried < 300, "{tried}");
        }
    }

    /// A predicate that only ever holds for the whole gives the whole; one that always holds,
    /// nothing.
    #[test]
    fn what_cannot_go_stays_and_what_can_goes() {
        let until = Instant::now() + LONG;
        assert_eq!(sublist(20, until, |numbers| numbers.len() == 20).len(), 20);
        assert!(sublist(20, until, |_| true).is_empty());
        assert_eq!(sublist(20, Instant::now(), |_| true).len(), 20, "no time");
        assert_eq!(sublist(100, until, |numbers| numbers.len() >= 7).len(), 7);
    }

    #[test]
    fn actions_become_as_small_as_the_failure_allows() {
        let put = |action: &Action| match action {
            Action::Write(write) => matches!(write.change, Change::Put(value) if value.len >= 40),
            Action::Batch { writes, .. } => {
                writes.iter().any(|w| matches!(w.change, Change::Put(value) if value.len >= 40))
            }
            _ => false,
        };
        let list = Generator::new(Purpose::Compare, 3, 0).list(2000);
        let fails = |list: &[Action]| {
            let first = list.iter().position(put);
            let batch = |action: &Action| matches!(action, Action::Batch { sync: true, .. });
            first.is_some_and(|first| list[first..].iter().any(batch))
        };
        let shrunk = shrink(&list, LONG, fails);
        assert!(fails(&shrunk.actions));
        assert!(fails(&shrunk.keep.of(&list)));
        assert!(shrunk.actions.len() <= 2, "{shrunk:?}");
        let bytes = shrunk.actions.iter().map(|action| match action {
            Action::Write(Write { change: Change::Put(value), .. }) => value.len,
            Action::Batch { writes, .. } => {
                assert_eq!(writes.len(), 1, "{shrunk:?}");
                0
            }
            action => panic!("{action} is of no use"),
        });
        assert!(bytes.sum::<u32>() <= 40, "{shrunk:?}");
    }

    /// Otherwise simplifying might never end.
    #[test]
    fn simpler_actions_lead_nowhere_but_down() {
        for action in Generator::new(Purpose::Compare, 5, 0).list(3000) {
            let steps = std::iter::successors(Some(action.clone()), |last| {
                let mut simpler = simpler(last);
                // The least different one, but for lengths, which would take long.
                let length = matches!(last, Action::Write(_) | Action::Batch { .. });
                if length { simpler.into_iter().next() } else { simpler.pop() }
            });
            assert!(steps.take(200).count() < 200, "{action}: simplifying does not end");
        }
    }
}
