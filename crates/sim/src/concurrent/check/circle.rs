//! A readable proof that there is no order: a circle of operations, each of which must come before
//! the next.

use std::collections::VecDeque;

use super::index::Index;
use super::order::{Order, Reason};
use super::{Kind, Violation};
use crate::concurrent::history::History;

/// Nodes, each with the reason why it must come before the next one.
pub(super) struct Circle(Vec<(usize, Reason)>);

impl Circle {
    /// The shortest circle through a node.
    pub(super) fn new(order: &Order<'_>, node: usize) -> Circle {
        let index = order.index;
        let mut behind: Vec<Option<(usize, Reason)>> = vec![None; index.nodes.len()];
        let mut queue = VecDeque::from([node]);
        let mut closing = None;
        while let Some(at) = queue.pop_front() {
            if index.nodes[node].ended < index.nodes[at].begun {
                closing = Some((at, Reason::Time));
                break;
            }
            if let Some(&(_, reason)) = order.before[at].iter().find(|(before, _)| *before == node)
            {
                closing = Some((at, reason));
                break;
            }
            let in_time = index.chains.iter().filter_map(|chain| {
                let ended =
                    chain.partition_point(|&n| index.nodes[n].ended < index.nodes[at].begun);
                chain[..ended].last().map(|&before| (before, Reason::Time))
            });
            for (before, reason) in order.before[at].iter().copied().chain(in_time) {
                if behind[before].is_none() && before != node {
                    behind[before] = Some((at, reason));
                    queue.push_back(before);
                }
            }
        }
        let Some((mut at, reason)) = closing else { return Circle(Vec::new()) };
        let mut steps = vec![(node, reason)];
        while at != node {
            let Some((next, reason)) = behind[at] else { break };
            steps.push((at, reason));
            at = next;
        }
        Circle(shortened(index, steps))
    }

    /// The circle as a violation.
    pub(super) fn tell(&self, index: &Index, history: &History) -> Violation {
        let mut what = String::from("each of these must have come before the next:\n");
        let mut operations = Vec::new();
        for (at, &(node, reason)) in self.0.iter().enumerate() {
            let (next, _) = self.0[(at + 1) % self.0.len()];
            let (op, next) = (index.nodes[node].op, index.nodes[next].op);
            operations.push(op);
            let sight = match reason {
                Reason::Time => None,
                Reason::Saw { sight }
                | Reason::BeforeSeen { sight }
                | Reason::Replaced { sight }
                | Reason::NotYet { sight }
                | Reason::OnlyDelete { sight }
                | Reason::Deleted { sight } => Some(&index.sights[sight]),
            };
            let key = sight.map_or_else(String::new, |sight| {
                let (space, key) = index.keys[sight.key];
                format!("{space}/{key}")
            });
            let reader = sight.map_or(op, |sight| index.nodes[sight.node].op);
            operations.extend(sight.map(|sight| sight.op));
            operations.push(reader);
            let because = match reason {
                Reason::Time => format!("it had ended when #{next} began"),
                Reason::Saw { .. } => format!("#{next} saw what it wrote to {key}"),
                Reason::BeforeSeen { .. } => {
                    format!("it wrote {key} before #{reader}, which saw what #{next} wrote there")
                }
                Reason::Replaced { .. } => {
                    format!("it saw in {key} what was there before #{next} wrote it")
                }
                Reason::NotYet { .. } => format!(
                    "it saw nothing in {key}, where #{next} put what nobody can have deleted before"
                ),
                Reason::OnlyDelete { .. } => format!(
                    "it put {key}, #{reader} saw nothing there, and only #{next} can have deleted it"
                ),
                Reason::Deleted { .. } => {
                    format!("#{next} saw nothing in {key}, which only it can have deleted")
                }
            };
            what.push_str(&format!("    #{op} before #{next}: {because}\n"));
        }
        what.pop();
        operations.sort_by_key(|&op| history.operations[op].begun);
        operations.dedup();
        Violation { kind: Kind::Circle, what, operations }
    }
}

/// Steps in time, one behind the other, as one.
fn shortened(index: &Index, steps: Vec<(usize, Reason)>) -> Vec<(usize, Reason)> {
    let mut short: Vec<(usize, Reason)> = Vec::new();
    for (node, reason) in steps {
        let in_time = |(_, before): &(usize, Reason)| *before == Reason::Time;
        if reason == Reason::Time && short.last().is_some_and(in_time) {
            continue;
        }
        short.push((node, reason));
    }
    // The last and the first may be such too.
    if short.len() > 2
        && short[0].1 == Reason::Time
        && short.last().is_some_and(|last| last.1 == Reason::Time)
    {
        short.remove(0);
    }
    debug_assert!(!short.is_empty() && index.nodes.len() > 1);
    short
}
