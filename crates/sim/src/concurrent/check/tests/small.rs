//! Small histories drawn at random, judged by the checker and by trying all orders.

use super::super::replay;
use super::{Kind, Verdict, judge};
use crate::concurrent::history::{Action, Change, History, Id, Operation, Seen, Write};
use crate::random::Random;

/// A few operations of a few threads on two keys, most of which see what some order of the commits
/// would show them.
fn drawn(random: &mut Random) -> History {
    let mut operations = Vec::new();
    let threads = 2 + random.below(3) as u32;
    let mut values: Vec<Vec<Seen>> = vec![vec![Seen::new()]; 2];
    let points = 4 + random.below(4);
    let mut moments: Vec<u64> = (0..2 * points as u64).collect();
    // Nearly in order, so that intervals overlap.
    for _ in 0..points * 2 {
        let at = random.below(moments.len() - 1);
        moments.swap(at, at + 1);
    }
    let mut free_from = vec![0; threads as usize + 1];
    for point in 0..points {
        let thread = 1 + random.below(threads as usize) as u32;
        let (a, b) = (moments[2 * point], moments[2 * point + 1]);
        // A thread does one thing after the other.
        let begun = a.min(b).max(free_from[thread as usize]) * 10 + 1;
        let ended = (a.max(b) + random.below(6) as u64) * 10 + 2 + point as u64 % 7;
        let ended = ended.max(begun + 1);
        free_from[thread as usize] = ended / 10 + 1;
        let action = if random.one_in(2) {
            let mut writes = Vec::new();
            for key in 0..2 {
                if random.one_in(2) {
                    let id = Id { thread, count: point as u32 * 2 + key };
                    let change = match random.below(4) {
                        0 => Change::Delete,
                        1 => {
                            let some = &values[key as usize];
                            let below = some[random.below(some.len())].clone();
                            values[key as usize].push([below, vec![id]].concat());
                            Change::Merge(id)
                        }
                        _ => {
                            values[key as usize].push(vec![id]);
                            Change::Put(id)
                        }
                    };
                    writes.push(Write { space: 0, key, change });
                }
            }
            Action::Commit { writes, accepted: true }
        } else {
            Action::Read { view: None, space: 0, found: Some(Vec::new()) }
        };
        operations.push(Operation { thread, begun, ended, action });
    }
    for operation in &mut operations {
        if let Action::Read { found: Some(found), .. } = &mut operation.action {
            for key in 0..2u32 {
                let some = &values[key as usize];
                if !random.one_in(4) {
                    found.push((key, some[random.below(some.len())].clone()));
                }
            }
        }
    }
    History { operations }
}

/// Whether any order at all explains it.
fn any_order(history: &History, order: &mut Vec<usize>, left: &mut Vec<usize>) -> bool {
    if left.is_empty() {
        return replay::check(history, order).is_ok();
    }
    for at in 0..left.len() {
        let op = left.remove(at);
        order.push(op);
        let begun = history.operations[op].begun;
        // Whoever had ended before comes before.
        let first = left.iter().all(|&other| history.operations[other].ended > begun);
        if first && any_order(history, order, left) {
            return true;
        }
        order.pop();
        left.insert(at, op);
    }
    false
}

#[test]
fn the_checker_agrees_with_trying_all_orders() {
    let mut random = Random::new(&[5]);
    let (mut held, mut circles) = (0, 0);
    for number in 0..30_000 {
        let history = drawn(&mut random);
        let mut all: Vec<usize> = (0..history.operations.len()).collect();
        let holds = any_order(&history, &mut Vec::new(), &mut all);
        match judge(&history) {
            Verdict::Holds(_) => {
                assert!(holds, "{number}: no order explains\n{history}");
                held += 1;
            }
            Verdict::Broken(violations) => {
                let told: String = violations.iter().map(|v| v.tell(&history)).collect();
                assert!(!holds, "{number}: an order explains\n{history}\n{told}");
                circles += usize::from(violations[0].kind == Kind::Circle);
            }
            Verdict::Undecided(why) => panic!("{number}: {why}\n{history}"),
        }
    }
    assert!(held > 1000 && circles > 1000, "{held} held, {circles} circles");
}
