//! Decides whether one order of commits explains what threads saw of a store.
//!
//! The promise: commits form one total order, each at a point between its beginning and its end. A
//! get, a `multi_get`, an iterator or a snapshot sees the result of a prefix of that order, which
//! ends at a point between the beginning and the end of the call that made it. A batch is one
//! commit. A conditional write is a commit and an observer at the same point. So there must be an
//! order of commits and observers that agrees with time and in which each observer sees the last
//! value written to each key.
//!
//! 1. `index` indexes the history and reports problems of single operations.
//! 2. `lives` judges the creation and the end of keyspaces.
//! 3. `order` derives which operations must precede which, until nothing more follows. A circle
//!    proves that there is no order; `circle` prints it.
//! 4. `witness` finds an order if there is no circle. `replay` verifies it by simple means.
//!
//! Invariants:
//! 1. A violation is never a false alarm: it follows from the promise.
//! 2. `Verdict::Holds` is never wrong: it comes with an order that `replay` has verified.

mod circle;
mod index;
mod lives;
mod order;
mod replay;
#[cfg(test)]
mod tests;
mod witness;

use std::fmt;

use super::history::History;

/// In what way a history is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something happened that must not, whatever else does.
    Odd,
    /// A value that nobody has written there.
    Invented,
    /// A write that was refused shows.
    Refused,
    /// Half of what one commit wrote to a key.
    Torn,
    /// A value from before it was written.
    Future,
    /// One view, two answers.
    Moved,
    /// An iterator out of order or out of its range.
    Iterator,
    /// Merge operands lost, doubled or in two orders.
    Operands,
    /// A keyspace that is closed while it lives, or lives on after its end.
    Closed,
    /// Some operations must each have come before another of them.
    Circle,
    /// All orders have been tried.
    NoOrder,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// In what way.
    pub kind: Kind,
    /// In words.
    pub what: String,
    /// The operations that contradict each other, by their places in the history.
    pub operations: Vec<usize>,
}

/// What a history is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Explained by this order of operations.
    Holds(Vec<usize>),
    /// Not to be explained.
    Broken(Vec<Violation>),
    /// Neither an explanation nor a contradiction was found in reasonable time.
    Undecided(String),
}

impl Violation {
    /// The violation with its operations, for reading.
    pub fn tell(&self, history: &History) -> String {
        let mut text = format!("{:?}: {}\n", self.kind, self.what);
        let mut told = self.operations.clone();
        told.sort_by_key(|&op| history.operations[op].begun);
        told.dedup();
        for op in told {
            let mut line = history.operations[op].to_string();
            if line.len() > 300 {
                let end = line.floor_char_boundary(300);
                line.truncate(end);
                line.push_str(" …");
            }
            text.push_str(&format!("  #{op}: {line}\n"));
        }
        text
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Judges a history.
pub fn judge(history: &History) -> Verdict {
    let mut violations = lives::judge(history);
    let (index, found) = index::Index::new(history);
    violations.extend(found);
    if !violations.is_empty() {
        return Verdict::Broken(violations);
    }
    let order = match order::Order::derive(&index) {
        Ok(order) => order,
        Err(circle) => return Verdict::Broken(vec![circle.tell(&index, history)]),
    };
    match witness::find(&index, &order) {
        witness::Search::Found(nodes) => {
            let operations: Vec<usize> = nodes.iter().map(|&node| index.nodes[node].op).collect();
            match replay::check(history, &operations) {
                Ok(()) => Verdict::Holds(operations),
                Err(what) => Verdict::Undecided(format!("the order that was found: {what}")),
            }
        }
        witness::Search::None(stuck) => {
            let what = "no order of these operations explains what was seen".to_string();
            let operations = stuck.iter().map(|&node| index.nodes[node].op).collect();
            Verdict::Broken(vec![Violation { kind: Kind::NoOrder, what, operations }])
        }
        witness::Search::GaveUp(tries) => {
            Verdict::Undecided(format!("{tries} orders were tried, none to its end"))
        }
    }
}
