//! Long histories of a store that keeps its promises, since it is a map under a lock.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Verdict, judge};
use crate::concurrent::history::{Action, Change, History, Id, Operation, Scan, Seen, Write};
use crate::random::Random;

/// What a thread is about to do, and whether it has been done.
struct UnderWay {
    operation: Operation,
    done: bool,
}

struct Map {
    state: BTreeMap<u32, Seen>,
    keys: usize,
    written: u32,
}

impl Map {
    fn begin(&mut self, random: &mut Random, thread: u32) -> Action {
        let key = |random: &mut Random| random.below(self.keys) as u32;
        match random.below(20) {
            0..9 => {
                let count = if random.one_in(3) { 1 + random.below(5) } else { 1 };
                let mut writes: Vec<Write> = Vec::new();
                for _ in 0..count {
                    self.written += 1;
                    let id = Id { thread, count: self.written };
                    let change = match random.below(6) {
                        0 => Change::Delete,
                        1 => Change::Merge(id),
                        _ => Change::Put(id),
                    };
                    writes.push(Write { space: 0, key: key(random), change });
                }
                Action::Commit { writes, accepted: true }
            }
            9..19 => {
                let keys = (0..1 + random.below(6)).map(|_| (key(random), Seen::new())).collect();
                Action::Read { view: None, space: 0, found: Some(keys) }
            }
            _ => {
                let (a, b) = (key(random), key(random));
                Action::Scan(Scan {
                    view: None,
                    space: 0,
                    lower: a.min(b),
                    upper: a.max(b),
                    front: Vec::new(),
                    back: Vec::new(),
                    exhausted: true,
                    done: 0,
                })
            }
        }
    }

    fn carry_out(&mut self, action: &mut Action) {
        match action {
            Action::Commit { writes, .. } => {
                for write in writes {
                    match write.change {
                        Change::Put(id) => drop(self.state.insert(write.key, vec![id])),
                        Change::Delete => drop(self.state.remove(&write.key)),
                        Change::Merge(id) => self.state.entry(write.key).or_default().push(id),
                    }
                }
            }
            Action::Read { found: Some(found), .. } => {
                for (key, seen) in found {
                    *seen = self.state.get(key).cloned().unwrap_or_default();
                }
            }
            Action::Scan(scan) => {
                let range = self.state.range(scan.lower..scan.upper);
                scan.front = range.map(|(key, seen)| (*key, seen.clone())).collect();
            }
            _ => {}
        }
    }
}

/// A history of so many operations of so many threads that are stopped at any time.
fn drawn(operations: usize, threads: usize, keys: usize) -> History {
    let mut random = Random::new(&[7, operations as u64, threads as u64]);
    let mut map = Map { state: BTreeMap::new(), keys, written: 0 };
    let mut under_way: Vec<Option<UnderWay>> = (0..threads).map(|_| None).collect();
    let mut history = History::default();
    let mut now = 0;
    while history.operations.len() < operations {
        // The last thread is slow: much goes by while it does something.
        let slow = random.one_in(40);
        let at = if slow { threads - 1 } else { random.below(threads - 1) };
        now += 1;
        match under_way[at].take() {
            None => {
                let thread = at as u32;
                let action = map.begin(&mut random, thread);
                let operation = Operation { thread, begun: now, ended: 0, action };
                under_way[at] = Some(UnderWay { operation, done: false });
            }
            Some(mut way) if !way.done => {
                map.carry_out(&mut way.operation.action);
                way.done = true;
                under_way[at] = Some(way);
            }
            Some(mut way) => {
                way.operation.ended = now;
                history.operations.push(way.operation);
            }
        }
    }
    // What was done and has not ended may have been seen.
    for mut way in under_way.into_iter().flatten().filter(|way| way.done) {
        now += 1;
        way.operation.ended = now;
        history.operations.push(way.operation);
    }
    history
}

#[test]
fn long_histories_of_an_honest_store_hold() {
    for (operations, threads, keys) in [(4_000, 12, 3), (20_000, 5, 40)] {
        let history = drawn(operations, threads, keys);
        let started = Instant::now();
        let verdict = judge(&history);
        let took = started.elapsed();
        eprintln!("{operations} operations, {threads} threads, {keys} keys: {took:.1?}");
        assert!(matches!(verdict, Verdict::Holds(_)), "{operations} operations are not explained");
    }
}
