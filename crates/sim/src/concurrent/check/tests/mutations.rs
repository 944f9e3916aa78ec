//! Real histories, changed afterwards as a store that lies would change them.
//!
//! Not every change is a lie: a value that two writers wrote at once may as well be the other
//! one's. So only such changes are made as are false whatever the order was, by time alone
//! ([`Facts::is_false`]), and the checker has to find every one. What it says of the rest needs no
//! judge here: a history that it lets pass comes with an order, and `small` tries all orders.

use std::collections::BTreeMap;

use super::{Verdict, judge};
use crate::concurrent::Extent;
use crate::concurrent::history::{Action, Change, History, Id, Seen, Write};
use crate::concurrent::workload::record;
use crate::kinds::Kinds;
use crate::random::Random;

/// The moments between which something happened.
#[derive(Debug, Clone, Copy)]
struct Span {
    begun: u64,
    ended: u64,
}

impl Span {
    fn is_before(self, other: Span) -> bool {
        self.ended < other.begun
    }
}

/// Keyspace and key.
type Key = (u32, u32);

/// That a key was seen to hold something.
#[derive(Debug, Clone)]
struct Reading {
    op: usize,
    /// Which list of the operation's, and where in it.
    part: Part,
    at: usize,
    key: Key,
    seen: Seen,
    /// When the moment was that it shows.
    moment: Span,
    view: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Read,
    Front,
    Back,
}

/// What a history says by itself.
struct Facts {
    readings: Vec<Reading>,
    /// All writes to a key that were accepted.
    writes: BTreeMap<Key, Vec<(Span, Change)>>,
    /// When operands and puts were written, and to which key.
    written: BTreeMap<Id, (Key, Span)>,
}

impl Facts {
    fn of(history: &History) -> Facts {
        let mut views = BTreeMap::new();
        let mut facts =
            Facts { readings: Vec::new(), writes: BTreeMap::new(), written: BTreeMap::new() };
        for operation in &history.operations {
            let span = Span { begun: operation.begun, ended: operation.ended };
            match &operation.action {
                Action::View { view } => drop(views.insert(*view, span)),
                Action::Commit { writes, accepted: true } | Action::Exchange { writes, .. } => {
                    for write in writes {
                        let key = (write.space, write.key);
                        facts.writes.entry(key).or_default().push((span, write.change));
                        if let Change::Put(id) | Change::Merge(id) = write.change {
                            facts.written.insert(id, (key, span));
                        }
                    }
                }
                _ => {}
            }
        }
        for (op, operation) in history.operations.iter().enumerate() {
            let (view, space, lists) = match &operation.action {
                Action::Read { view, space, found: Some(found) } => {
                    (*view, *space, vec![(Part::Read, found)])
                }
                Action::Scan(scan) => {
                    let lists = vec![(Part::Front, &scan.front), (Part::Back, &scan.back)];
                    (scan.view, scan.space, lists)
                }
                _ => continue,
            };
            let span = Span { begun: operation.begun, ended: operation.ended };
            let moment = view.map_or(span, |view| views[&view]);
            for (part, found) in lists {
                for (at, (key, seen)) in found.iter().enumerate() {
                    let (key, seen) = ((space, *key), seen.clone());
                    facts.readings.push(Reading { op, part, at, key, seen, moment, view });
                }
            }
        }
        facts
    }

    /// Whether what was written as `id` is there at that moment whatever the order was: it had been
    /// written before, and nobody else put or deleted the key from then on until after the moment.
    fn must_show(&self, id: Id, moment: Span) -> bool {
        let Some(&(key, written)) = self.written.get(&id) else { return false };
        let stays = |(other, change): &(Span, Change)| match change {
            Change::Merge(_) => true,
            Change::Put(other) if *other == id => true,
            Change::Put(_) | Change::Delete => other.is_before(written) || moment.is_before(*other),
        };
        written.is_before(moment) && self.writes[&key].iter().all(stays)
    }

    /// Whether it is a lie that the key held `told` in place of what was seen.
    fn is_false(&self, reading: &Reading, told: &Seen) -> bool {
        let missing = |id: &Id| !told.contains(id) && self.must_show(*id, reading.moment);
        let too_early = |id: &Id| {
            self.written.get(id).is_some_and(|(_, written)| reading.moment.is_before(*written))
        };
        // Operands of which one had been written when the other began stand in that order; and
        // nothing stands below a put.
        let turned = |pair: &[Id]| match [pair[0], pair[1]].map(|id| self.written.get(&id)) {
            [Some((key, first)), Some((_, second))] => {
                let put = (*second, Change::Put(pair[1]));
                second.is_before(*first)
                    || self.writes[key].iter().any(|(_, change)| *change == put.1)
            }
            _ => false,
        };
        reading.seen.iter().any(missing)
            || told.iter().any(too_early)
            || told.windows(2).any(turned)
    }
}

fn one_of<'a, T>(all: &'a [T], random: &mut Random) -> Option<&'a T> {
    if all.is_empty() { None } else { Some(&all[random.below(all.len())]) }
}

/// Changes one thing into what is false; gives up if it draws nothing of that kind.
type Mutation = fn(&mut History, &mut Random) -> Option<()>;

/// Another value for one reading.
fn tell(history: &mut History, reading: &Reading, told: Seen) {
    let found = match (&mut history.operations[reading.op].action, reading.part) {
        (Action::Read { found: Some(found), .. }, Part::Read) => found,
        (Action::Scan(scan), Part::Front) => &mut scan.front,
        (Action::Scan(scan), Part::Back) => &mut scan.back,
        _ => unreachable!("a reading knows where it stands"),
    };
    found[reading.at].1 = told;
}

/// Draws readings until what `change` makes of one is a lie.
fn one_reading(
    history: &mut History,
    random: &mut Random,
    change: impl Fn(&Facts, &mut Random, &Reading) -> Option<Seen>,
) -> Option<()> {
    let facts = Facts::of(history);
    for _ in 0..50 {
        let reading = one_of(&facts.readings, random)?;
        if let Some(told) = change(&facts, random, reading)
            && facts.is_false(reading, &told)
        {
            tell(history, reading, told);
            return Some(());
        }
    }
    None
}

/// Something else that the key was seen to hold at some time.
fn other_value(history: &mut History, random: &mut Random) -> Option<()> {
    one_reading(history, random, |facts, random, reading| {
        let others: Vec<&Reading> = (facts.readings.iter())
            .filter(|other| other.key == reading.key && !other.seen.is_empty())
            .filter(|other| other.seen != reading.seen)
            .collect();
        one_of(&others, random).map(|other| other.seen.clone())
    })
}

fn lost_value(history: &mut History, random: &mut Random) -> Option<()> {
    one_reading(history, random, |_, _, _| Some(Seen::new()))
}

fn lost_operand(history: &mut History, random: &mut Random) -> Option<()> {
    one_reading(history, random, |_, random, reading| {
        let mut less = reading.seen.clone();
        if less.len() > 1 {
            less.remove(random.below(reading.seen.len()));
        }
        Some(less)
    })
}

fn swapped_operands(history: &mut History, random: &mut Random) -> Option<()> {
    one_reading(history, random, |_, random, reading| {
        let mut swapped = reading.seen.clone();
        let at = random.below(swapped.len().checked_sub(1).filter(|&pairs| pairs > 0)?);
        swapped.swap(at, at + 1);
        Some(swapped)
    })
}

/// An iterator passes a key by.
fn skipped_key(history: &mut History, random: &mut Random) -> Option<()> {
    let facts = Facts::of(history);
    let passed: Vec<&Reading> = (facts.readings.iter())
        .filter(|reading| reading.part == Part::Front && facts.is_false(reading, &Seen::new()))
        // How far an iterator came is told by the last key that it gave.
        .filter(|reading| match &history.operations[reading.op].action {
            Action::Scan(scan) => reading.at + 1 < scan.front.len(),
            _ => false,
        })
        .collect();
    let reading = one_of(&passed, random)?;
    if let Action::Scan(scan) = &mut history.operations[reading.op].action {
        scan.front.remove(reading.at);
    }
    Some(())
}

/// A put that was acknowledged and is nowhere to be seen.
fn lost_put(history: &mut History, random: &mut Random) -> Option<()> {
    let before = Facts::of(history);
    let mut lies = Vec::new();
    for (op, operation) in history.operations.iter().enumerate() {
        let Action::Commit { writes, accepted: true } = &operation.action else { continue };
        let [Write { change: Change::Delete, .. }] = &writes[..] else { continue };
        // What it wrote in truth shows; what it is said to have written does not.
        let id = Id { thread: 99, count: op as u32 };
        let write = Write { change: Change::Put(id), ..writes[0] };
        let mut changed = history.clone();
        changed.operations[op].action = Action::Commit { writes: vec![write], accepted: true };
        let key = (write.space, write.key);
        let mut absent = before.readings.iter().filter(|r| r.key == key && r.seen.is_empty());
        let facts = Facts::of(&changed);
        if absent.any(|reading| facts.must_show(id, reading.moment)) {
            lies.push(changed);
        }
    }
    *history = one_of(&lies, random)?.clone();
    Some(())
}

/// A view that is said to have been taken some time later, though something it shows had been
/// overwritten by then.
fn late_view(history: &mut History, random: &mut Random) -> Option<()> {
    let facts = Facts::of(history);
    let outdated = |reading: &&Reading| {
        let mut writes = facts.writes.get(&reading.key).into_iter().flatten();
        !reading.seen.is_empty() && writes.any(|(written, _)| reading.moment.is_before(*written))
    };
    let views: Vec<u32> = facts.readings.iter().filter(outdated).filter_map(|r| r.view).collect();
    let late = one_of(&views, random)?;
    let last = history.operations.iter().map(|operation| operation.ended).max()?;
    let taken = |action: &Action| matches!(action, Action::View { view } if view == late);
    let operation = history.operations.iter_mut().find(|operation| taken(&operation.action))?;
    (operation.begun, operation.ended) = (last + 1, last + 2);
    operation.thread = 98;
    Some(())
}

#[test]
fn every_lie_told_of_a_real_history_is_found_out() {
    let mutations: [(&str, Mutation); 7] = [
        ("other value", other_value),
        ("lost value", lost_value),
        ("lost operand", lost_operand),
        ("swapped operands", swapped_operands),
        ("skipped key", skipped_key),
        ("lost put", lost_put),
        ("late view", late_view),
    ];
    let extent = Extent { threads: 3, operations: 120, sessions: 1, ..Extent::default() };
    let histories: Vec<History> = (1..=4).map(|seed| record(seed, Kinds::Mixed, &extent)).collect();
    let mut random = Random::new(&[6]);
    for history in &histories {
        let verdict = judge(history);
        assert!(matches!(verdict, Verdict::Holds(_)), "{verdict:?}\n{history}");
    }
    for (name, mutation) in mutations {
        let mut changed = 0;
        for attempt in 0..120 {
            let mut history = histories[attempt % histories.len()].clone();
            if mutation(&mut history, &mut random).is_some() {
                changed += 1;
                let verdict = judge(&history);
                assert!(matches!(verdict, Verdict::Broken(_)), "{name}: {verdict:?}\n{history}");
            }
        }
        eprintln!("{name}: all of {changed} found out");
        assert!(changed >= 15, "{name}: only {changed} changes");
    }
}
