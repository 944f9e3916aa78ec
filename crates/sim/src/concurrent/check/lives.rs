//! The lifetimes of keyspaces: which operations must return `Closed`, and when.

use std::collections::BTreeMap;

use super::{Kind, Violation};
use crate::concurrent::history::{Action, History, Operation};

#[derive(Clone, Copy, Default)]
struct Life {
    created: Option<usize>,
    dropped: Option<usize>,
}

/// The keyspaces an operation needs, and whether it was told that one is closed.
fn uses(operation: &Operation) -> (Vec<u32>, bool) {
    match &operation.action {
        Action::Commit { writes, accepted } => {
            (writes.iter().map(|write| write.space).collect(), !accepted)
        }
        Action::Exchange { saw, writes } => {
            let seen = saw.iter().map(|saw| saw.space);
            (seen.chain(writes.iter().map(|write| write.space)).collect(), false)
        }
        Action::Read { space, found, .. } => (vec![*space], found.is_none()),
        Action::Scan(scan) => (vec![scan.space], false),
        _ => (Vec::new(), false),
    }
}

/// What is wrong with the lives of keyspaces, and what was odd by itself.
pub(super) fn judge(history: &History) -> Vec<Violation> {
    let mut lives: BTreeMap<u32, Life> = BTreeMap::new();
    let mut violations = Vec::new();
    for (op, operation) in history.operations.iter().enumerate() {
        match &operation.action {
            Action::Create { space, .. } => lives.entry(*space).or_default().created = Some(op),
            Action::Drop { space } => lives.entry(*space).or_default().dropped = Some(op),
            Action::Odd(what) => violations.push(Violation {
                kind: Kind::Odd,
                what: what.clone(),
                operations: vec![op],
            }),
            _ => {}
        }
    }
    for (op, operation) in history.operations.iter().enumerate() {
        let (spaces, closed) = uses(operation);
        let dropped = |space: &u32| lives.get(space).and_then(|life| life.dropped);
        if closed {
            // One of them at least was being dropped by then.
            let drops = spaces.iter().filter_map(dropped);
            let may =
                drops.filter(|&drop| history.operations[drop].begun < operation.ended).count();
            if may == 0 {
                violations.push(Violation {
                    kind: Kind::Closed,
                    what: "refused, although nobody had dropped the keyspace".to_string(),
                    operations: vec![op],
                });
            }
            continue;
        }
        for drop in spaces.iter().filter_map(dropped) {
            if history.operations[drop].ended < operation.begun {
                violations.push(Violation {
                    kind: Kind::Closed,
                    what: "done to a keyspace that had been dropped".to_string(),
                    operations: vec![op, drop],
                });
            }
        }
        for created in spaces.iter().filter_map(|space| lives.get(space).and_then(|l| l.created)) {
            if history.operations[created].begun > operation.ended {
                violations.push(Violation {
                    kind: Kind::Closed,
                    what: "done to a keyspace that was not there yet".to_string(),
                    operations: vec![op, created],
                });
            }
        }
    }
    violations
}
