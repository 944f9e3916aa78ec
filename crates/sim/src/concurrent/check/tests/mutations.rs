//! Real histories, changed afterwards as a store that lies would change them.

use super::{Verdict, judge};
use crate::concurrent::Extent;
use crate::concurrent::history::{Action, Change, Found, History, Id, Seen};
use crate::concurrent::workload::record;
use crate::kinds::Kinds;
use crate::random::Random;

/// The keys that were read and what they held, each with its operation.
fn readings(history: &mut History) -> Vec<&mut Found> {
    let mut readings = Vec::new();
    for operation in &mut history.operations {
        match &mut operation.action {
            Action::Read { found: Some(found), .. } if !found.is_empty() => readings.push(found),
            Action::Scan(scan) => {
                let both = [&mut scan.front, &mut scan.back];
                readings.extend(both.into_iter().filter(|found| !found.is_empty()));
            }
            _ => {}
        }
    }
    readings
}

/// Something a key held at some time.
fn another(history: &History, random: &mut Random, now: &Seen, space_of: Id) -> Option<Seen> {
    let mut copy = history.clone();
    let all: Vec<Seen> = readings(&mut copy)
        .into_iter()
        .flat_map(|found| found.iter().map(|(_, seen)| seen.clone()))
        .filter(|seen| seen != now && places(history, seen) == Some(space_of))
        .collect();
    if all.is_empty() { None } else { Some(all[random.below(all.len())].clone()) }
}

/// The keyspace and key to which a value was written, packed as an `Id`.
fn places(history: &History, seen: &Seen) -> Option<Id> {
    let last = seen.last()?;
    history.operations.iter().find_map(|operation| {
        let Action::Commit { writes, .. } = &operation.action else { return None };
        writes.iter().find_map(|write| match write.change {
            Change::Put(id) | Change::Merge(id) if id == *last => {
                Some(Id { thread: write.space, count: write.key })
            }
            _ => None,
        })
    })
}

/// Changes one thing; false if there was nothing to change.
type Mutation = fn(&mut History, &mut Random) -> bool;

fn one_reading(
    history: &mut History,
    random: &mut Random,
    change: impl Fn(&History, &mut Random, &Seen) -> Option<Seen>,
) -> bool {
    let before = history.clone();
    let mut readings = readings(history);
    let at = random.below(readings.len());
    let Some(found) = readings.get_mut(at) else { return false };
    let at = random.below(found.len());
    match change(&before, random, &found[at].1) {
        Some(seen) => {
            found[at].1 = seen;
            true
        }
        None => false,
    }
}

fn other_value(history: &mut History, random: &mut Random) -> bool {
    one_reading(history, random, |history, random, seen| {
        another(history, random, seen, places(history, seen)?)
    })
}

fn lost_value(history: &mut History, random: &mut Random) -> bool {
    let before = history.clone();
    let mut readings = readings(history);
    let count = readings.len();
    let Some(found) = readings.get_mut(random.below(count)) else { return false };
    let at = random.below(found.len());
    let was = !found[at].1.is_empty();
    found[at].1.clear();
    was && before != *history
}

fn lost_operand(history: &mut History, random: &mut Random) -> bool {
    one_reading(history, random, |_, random, seen| {
        (seen.len() > 1).then(|| {
            let mut less = seen.clone();
            less.remove(random.below(seen.len()));
            less
        })
    })
}

fn swapped_operands(history: &mut History, random: &mut Random) -> bool {
    one_reading(history, random, |_, random, seen| {
        (seen.len() > 1).then(|| {
            let mut swapped = seen.clone();
            let at = random.below(seen.len() - 1);
            swapped.swap(at, at + 1);
            swapped
        })
    })
}

fn skipped_key(history: &mut History, random: &mut Random) -> bool {
    let mut scans: Vec<&mut Found> = Vec::new();
    for operation in &mut history.operations {
        if let Action::Scan(scan) = &mut operation.action
            && scan.front.len() > 1
        {
            scans.push(&mut scan.front);
        }
    }
    let count = scans.len();
    let Some(front) = scans.get_mut(random.below(count)) else { return false };
    front.remove(random.below(front.len() - 1));
    true
}

/// A put that was acknowledged and is nowhere to be seen.
fn lost_put(history: &mut History, random: &mut Random) -> bool {
    let commits: Vec<usize> = (0..history.operations.len())
        .filter(|&op| {
            let action = &history.operations[op].action;
            matches!(action, Action::Commit { writes, accepted: true } if writes.len() == 1)
        })
        .collect();
    if commits.is_empty() {
        return false;
    }
    let op = commits[random.below(commits.len())];
    let operation = &mut history.operations[op];
    let Action::Commit { writes, .. } = &mut operation.action else { return false };
    writes[0].change = match writes[0].change {
        // What it wrote in truth shows; what it is said to have written does not.
        Change::Delete => Change::Put(Id { thread: 99, count: op as u32 }),
        Change::Put(_) | Change::Merge(_) => return false,
    };
    true
}

/// A view that is said to have been taken some time later.
fn late_view(history: &mut History, random: &mut Random) -> bool {
    let views: Vec<usize> = (0..history.operations.len())
        .filter(|&op| matches!(history.operations[op].action, Action::View { .. }))
        .collect();
    if views.is_empty() {
        return false;
    }
    let op = views[random.below(views.len())];
    let Action::View { view } = history.operations[op].action else { return false };
    let reads = history.operations.iter().filter(|operation| match &operation.action {
        Action::Read { view: Some(v), found: Some(found), .. } => *v == view && found.len() > 3,
        Action::Scan(scan) => scan.view == Some(view) && scan.front.len() > 3,
        _ => false,
    });
    let last = history.operations.iter().map(|operation| operation.ended).max().unwrap_or(0);
    let seen_much = reads.count() > 0;
    let operation = &mut history.operations[op];
    (operation.begun, operation.ended) = (last + 1, last + 2);
    operation.thread = 98;
    seen_much
}

#[test]
fn real_histories_that_were_changed_are_found_out() {
    let mutations: [(&str, Mutation, f64); 7] = [
        ("other value", other_value, 0.90),
        ("lost value", lost_value, 0.90),
        ("lost operand", lost_operand, 0.90),
        ("swapped operands", swapped_operands, 0.95),
        ("skipped key", skipped_key, 0.90),
        ("lost put", lost_put, 0.50),
        ("late view", late_view, 0.80),
    ];
    let extent = Extent { threads: 3, operations: 120, sessions: 1, ..Extent::default() };
    let histories: Vec<History> = (1..=4).map(|seed| record(seed, Kinds::Mixed, &extent)).collect();
    let mut random = Random::new(&[6]);
    for history in &histories {
        let verdict = judge(history);
        assert!(matches!(verdict, Verdict::Holds(_)), "{verdict:?}\n{history}");
    }
    for (name, mutation, floor) in mutations {
        let (mut changed, mut caught) = (0, 0);
        for attempt in 0..240 {
            let mut history = histories[attempt % histories.len()].clone();
            if mutation(&mut history, &mut random) {
                changed += 1;
                caught += usize::from(!matches!(judge(&history), Verdict::Holds(_)));
            }
        }
        eprintln!("{name}: {caught} of {changed} found out");
        assert!(changed >= 15, "{name}: only {changed} changes");
        assert!(caught as f64 >= floor * changed as f64, "{name}: {caught} of {changed}");
    }
}
