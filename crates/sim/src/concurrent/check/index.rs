//! An indexed history: its commits and views, with what each wrote or saw.
//!
//! Invariants:
//! 1. Checks of a single observer are made here: what it saw was written to that key by an accepted
//!    commit, is complete, and is consistent.
//! 2. A merge whose predecessor was seen is an observer too, of the key's value before it. A commit observes no key
//!    twice: what has merges has seen nothing of their keys.

use std::collections::BTreeMap;

use super::{Kind, Violation};
use crate::concurrent::history::{
    Action, Change, Found, History, Id, Scan, Seen, Write, seen_text,
};

/// A place in the order: a commit, or what a view, a read or an iterator sees.
pub(super) struct Node {
    /// The operation.
    pub(super) op: usize,
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// The thread's chain, and the place in it.
    pub(super) chain: usize,
    pub(super) place: u32,
    /// What it wrote.
    pub(super) versions: Vec<usize>,
    /// What it saw.
    pub(super) reads: Vec<usize>,
}

/// What a commit left in a key.
pub(super) struct Version {
    pub(super) key: usize,
    pub(super) node: usize,
    /// The operands; none after a delete.
    pub(super) operands: Vec<Id>,
    /// Whether what the key held before is still there below them.
    pub(super) extends: bool,
}

impl Version {
    pub(super) fn is_absent(&self) -> bool {
        self.operands.is_empty() && !self.extends
    }
}

/// Whose a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// There is none: nobody has written the key, or somebody has deleted it.
    Absent,
    Version(usize),
}

/// That a node saw something in a key.
pub(super) struct Sight {
    pub(super) node: usize,
    pub(super) key: usize,
    pub(super) source: Source,
    /// The operation that tells.
    pub(super) op: usize,
}

/// A key's versions in one chain, in the chain's order.
#[derive(Clone, Default)]
pub(super) struct Written {
    /// Those with a value.
    pub(super) values: Vec<usize>,
    /// Those without.
    pub(super) deletes: Vec<usize>,
    /// Both.
    pub(super) all: Vec<usize>,
}

/// A history, taken apart.
pub(super) struct Index {
    pub(super) nodes: Vec<Node>,
    /// The nodes of each thread.
    pub(super) chains: Vec<Vec<usize>>,
    /// Keyspace and key number.
    pub(super) keys: Vec<(u32, u32)>,
    pub(super) versions: Vec<Version>,
    pub(super) sights: Vec<Sight>,
    /// The sights of each version.
    pub(super) seen_by: Vec<Vec<usize>>,
    /// By key, then by chain.
    pub(super) written: Vec<Vec<Written>>,
}

/// Whose an operand is.
enum Owner {
    /// The last of this version.
    Last(usize),
    /// Another one of this version, or overwritten by the same commit.
    Inner(usize),
    /// Of an operation that was refused.
    Refused(usize),
}

struct Maker<'a> {
    history: &'a History,
    index: Index,
    key_of: BTreeMap<(u32, u32), usize>,
    /// The numbers of a keyspace's keys that were ever written, in order.
    universe: BTreeMap<u32, BTreeMap<u32, usize>>,
    owners: BTreeMap<Id, Owner>,
    views: BTreeMap<u32, usize>,
    /// What was seen just before a version that extends, and by which operation.
    predecessors: BTreeMap<usize, (Source, usize)>,
    violations: Vec<Violation>,
}

impl Index {
    /// Takes a history apart; what contradicts itself is told.
    pub(super) fn new(history: &History) -> (Index, Vec<Violation>) {
        let mut maker = Maker {
            history,
            index: Index {
                nodes: Vec::new(),
                chains: Vec::new(),
                keys: Vec::new(),
                versions: Vec::new(),
                sights: Vec::new(),
                seen_by: Vec::new(),
                written: Vec::new(),
            },
            key_of: BTreeMap::new(),
            universe: BTreeMap::new(),
            owners: BTreeMap::new(),
            views: BTreeMap::new(),
            predecessors: BTreeMap::new(),
            violations: Vec::new(),
        };
        maker.nodes();
        maker.versions();
        maker.sights();
        maker.merges();
        maker.finish();
        (maker.index, maker.violations)
    }
}

fn folded(writes: &[Write], place: (u32, u32)) -> (Vec<Id>, bool) {
    let (mut operands, mut extends) = (Vec::new(), true);
    for write in writes.iter().filter(|write| (write.space, write.key) == place) {
        match write.change {
            Change::Put(id) => (operands, extends) = (vec![id], false),
            Change::Delete => (operands, extends) = (Vec::new(), false),
            Change::Merge(id) => operands.push(id),
        }
    }
    (operands, extends)
}

impl Maker<'_> {
    fn broken(&mut self, kind: Kind, what: String, operations: Vec<usize>) {
        self.violations.push(Violation { kind, what, operations });
    }

    fn nodes(&mut self) {
        let operations = &self.history.operations;
        let mut points: Vec<usize> = (0..operations.len())
            .filter(|&op| match &operations[op].action {
                Action::Commit { accepted, .. } => *accepted,
                Action::Exchange { .. } => true,
                Action::View { .. } => true,
                Action::Read { view, found, .. } => view.is_none() && found.is_some(),
                Action::Scan(scan) => scan.view.is_none(),
                _ => false,
            })
            .collect();
        points.sort_by_key(|&op| operations[op].begun);
        let mut chain_of = BTreeMap::new();
        for op in points {
            let operation = &operations[op];
            let node = self.index.nodes.len();
            let chain = *chain_of.entry(operation.thread).or_insert_with(|| {
                self.index.chains.push(Vec::new());
                self.index.chains.len() - 1
            });
            if let Action::View { view } = &operation.action {
                self.views.insert(*view, node);
            }
            self.index.nodes.push(Node {
                op,
                begun: operation.begun,
                ended: operation.ended,
                chain,
                place: self.index.chains[chain].len() as u32,
                versions: Vec::new(),
                reads: Vec::new(),
            });
            self.index.chains[chain].push(node);
        }
    }

    fn key(&mut self, place: (u32, u32)) -> usize {
        let chains = self.index.chains.len();
        *self.key_of.entry(place).or_insert_with(|| {
            let key = self.index.keys.len();
            self.index.keys.push(place);
            self.index.written.push(vec![Written::default(); chains]);
            self.universe.entry(place.0).or_default().insert(place.1, key);
            key
        })
    }

    fn versions(&mut self) {
        let history = self.history;
        for node in 0..self.index.nodes.len() {
            let (op, chain) = (self.index.nodes[node].op, self.index.nodes[node].chain);
            let (Action::Commit { writes, .. } | Action::Exchange { writes, .. }) =
                &history.operations[op].action
            else {
                continue;
            };
            let mut places: Vec<(u32, u32)> = writes.iter().map(|w| (w.space, w.key)).collect();
            places.sort_unstable();
            places.dedup();
            for place in places {
                let key = self.key(place);
                let (operands, extends) = folded(writes, place);
                let version = self.index.versions.len();
                for write in writes.iter().filter(|write| (write.space, write.key) == place) {
                    let (Change::Put(id) | Change::Merge(id)) = write.change else { continue };
                    let last = operands.last() == Some(&id);
                    let owner = if last { Owner::Last(version) } else { Owner::Inner(version) };
                    self.owners.insert(id, owner);
                }
                let version = Version { key, node, operands, extends };
                let written = &mut self.index.written[key][chain];
                let number = self.index.versions.len();
                written.all.push(number);
                match version.is_absent() {
                    true => written.deletes.push(number),
                    false => written.values.push(number),
                }
                self.index.versions.push(version);
                self.index.nodes[node].versions.push(number);
            }
        }
        self.index.seen_by = vec![Vec::new(); self.index.versions.len()];
        for (op, operation) in history.operations.iter().enumerate() {
            let Action::Commit { writes, accepted: false } = &operation.action else { continue };
            for write in writes {
                if let Change::Put(id) | Change::Merge(id) = write.change {
                    self.owners.insert(id, Owner::Refused(op));
                }
            }
        }
    }

    /// What every observer saw, each key once.
    fn sights(&mut self) {
        let history = self.history;
        let mut all: Vec<BTreeMap<(u32, u32), (Seen, usize)>> =
            vec![BTreeMap::new(); self.index.nodes.len()];
        let mut node_of = BTreeMap::new();
        self.index.nodes.iter().enumerate().for_each(|(n, node)| {
            node_of.insert(node.op, n);
        });
        for (op, operation) in history.operations.iter().enumerate() {
            let of_space = |space: u32, found: Found| -> Vec<((u32, u32), Seen)> {
                found.into_iter().map(|(key, seen)| ((space, key), seen)).collect()
            };
            let (view, found) = match &operation.action {
                Action::Read { view, space, found: Some(found) } => {
                    (view, of_space(*space, found.clone()))
                }
                Action::Scan(scan) => (&scan.view, of_space(scan.space, self.scanned(scan, op))),
                Action::Exchange { saw, .. } => {
                    let found = saw.iter().map(|saw| ((saw.space, saw.key), saw.seen.clone()));
                    (&None, found.collect())
                }
                _ => continue,
            };
            let node = match view {
                Some(view) => self.views.get(view),
                None => node_of.get(&op),
            };
            let Some(&node) = node else {
                let what = format!("operation {op} reads a view that nobody has taken");
                self.broken(Kind::Odd, what, vec![op]);
                continue;
            };
            for (place, seen) in found {
                let before = all[node].entry(place).or_insert_with(|| (seen.clone(), op));
                if before.0 != seen {
                    let (space, key) = place;
                    let what = format!(
                        "key {space}/{key} was {} and then {} in what is one view of the store",
                        seen_text(&before.0),
                        seen_text(&seen)
                    );
                    let operations = vec![self.index.nodes[node].op, before.1, op];
                    self.broken(Kind::Moved, what, operations);
                }
            }
        }
        for (node, seen) in all.into_iter().enumerate() {
            for (place, (seen, op)) in seen {
                self.sight(node, place, &seen, op);
            }
        }
    }

    /// All that an iterator says of the keys it has passed.
    fn scanned(&mut self, scan: &Scan, op: usize) -> Found {
        let ascends = scan.front.is_sorted_by(|a, b| a.0 < b.0);
        let descends = scan.back.is_sorted_by(|a, b| a.0 > b.0);
        let (front, back) = (scan.front.last(), scan.back.last());
        let apart = front.zip(back).is_none_or(|(front, back)| front.0 < back.0);
        if !ascends || !descends || !apart {
            let what = "an iterator whose keys are out of order, or come twice".to_string();
            self.broken(Kind::Iterator, what, vec![op]);
        }
        let mut found: BTreeMap<u32, &Seen> = BTreeMap::new();
        for (key, seen) in scan.front.iter().chain(&scan.back) {
            if !(scan.lower..scan.upper).contains(key) {
                let range = format!("{}..{}", scan.lower, scan.upper);
                let what = format!("an iterator over {range} that comes to key {key}");
                self.broken(Kind::Iterator, what, vec![op]);
            }
            if seen.is_empty() {
                let what = format!("an iterator with key {key} that holds nothing");
                self.broken(Kind::Iterator, what, vec![op]);
            }
            found.entry(*key).or_insert(seen);
        }
        let passed = |key: u32| {
            scan.exhausted
                || front.is_some_and(|(last, _)| key <= *last)
                || back.is_some_and(|(last, _)| key >= *last)
        };
        let mut all: Found = Vec::new();
        if let Some(universe) = self.universe.get(&scan.space)
            && scan.lower < scan.upper
        {
            for (&key, _) in universe.range(scan.lower..scan.upper) {
                if !found.contains_key(&key) && passed(key) {
                    all.push((key, Seen::new()));
                }
            }
        }
        all.extend(found.into_iter().map(|(key, seen)| (key, seen.clone())));
        all
    }

    fn sight(&mut self, node: usize, place: (u32, u32), seen: &[Id], op: usize) {
        let Some(source) = self.source(place, seen, op) else { return };
        let Some(&key) = self.key_of.get(&place) else { return };
        if let Source::Version(version) = source {
            let (observer, writer) =
                (&self.index.nodes[node], &self.index.nodes[self.index.versions[version].node]);
            if writer.begun > observer.ended {
                let what = format!(
                    "key {}/{} was seen to hold {} before anybody had begun to write that",
                    place.0,
                    place.1,
                    seen_text(seen)
                );
                let operations = vec![op, observer.op, writer.op];
                return self.broken(Kind::Future, what, operations);
            }
        }
        self.add_sight(Sight { node, key, source, op });
    }

    fn add_sight(&mut self, sight: Sight) {
        let number = self.index.sights.len();
        self.index.nodes[sight.node].reads.push(number);
        if let Source::Version(version) = sight.source {
            self.index.seen_by[version].push(number);
        }
        self.index.sights.push(sight);
    }

    /// Whose a value is. What its operands tell of their order is noted.
    fn source(&mut self, place: (u32, u32), seen: &[Id], op: usize) -> Option<Source> {
        let name = format!("key {}/{}, seen to hold {},", place.0, place.1, seen_text(seen));
        if (1..seen.len()).any(|at| seen[..at].contains(&seen[at])) {
            self.broken(Kind::Operands, format!("{name} shows an operand twice"), vec![op]);
            return None;
        }
        let mut rest = seen;
        let mut first = None;
        let mut above: Option<usize> = None;
        loop {
            let source = match rest.last() {
                None => Source::Absent,
                Some(id) => match self.owners.get(id) {
                    Some(&Owner::Last(version)) => Source::Version(version),
                    Some(&Owner::Inner(version)) => {
                        let node = self.index.versions[version].node;
                        let operations = vec![op, self.index.nodes[node].op];
                        let what = format!("{name} shows half of what {id} was committed with");
                        self.broken(Kind::Torn, what, operations);
                        return None;
                    }
                    Some(&Owner::Refused(refused)) => {
                        let what = format!("{name} shows {id}, which was refused");
                        self.broken(Kind::Refused, what, vec![op, refused]);
                        return None;
                    }
                    None => {
                        let what = format!("{name} shows {id}, which nobody has written");
                        self.broken(Kind::Invented, what, vec![op]);
                        return None;
                    }
                },
            };
            first = first.or(Some(source));
            if let Some(above) = above
                && !self.precedes(above, source, op, &name)
            {
                return None;
            }
            let Source::Version(version) = source else { break };
            let found = &self.index.versions[version];
            let writer = self.index.nodes[found.node].op;
            if self.index.keys[found.key] != place {
                let what = format!("{name} shows what was written to another key");
                self.broken(Kind::Invented, what, vec![op, writer]);
                return None;
            }
            let Some(below) = rest.strip_suffix(&*found.operands) else {
                let whole = seen_text(&found.operands);
                let what = format!("{name} does not end with {whole}, which were committed as one");
                self.broken(Kind::Operands, what, vec![op, writer]);
                return None;
            };
            if !found.extends {
                if !below.is_empty() {
                    let what = format!("{name} shows what a put should have replaced");
                    self.broken(Kind::Operands, what, vec![op, writer]);
                    return None;
                }
                break;
            }
            rest = below;
            above = Some(version);
        }
        first
    }

    /// Notes what was below a merge; false if it is not what somebody else has seen there.
    fn precedes(&mut self, version: usize, source: Source, op: usize, name: &str) -> bool {
        let known = *self.predecessors.entry(version).or_insert((source, op));
        if known.0 == source {
            return true;
        }
        let writer = self.index.nodes[self.index.versions[version].node].op;
        let operand = self.index.versions[version].operands[0];
        let what = format!("{name} has another operand below {operand} than was seen before");
        self.broken(Kind::Operands, what, vec![op, known.1, writer]);
        false
    }

    /// Makes merges observers of what was below them.
    fn merges(&mut self) {
        let mut predecessors: Vec<_> = std::mem::take(&mut self.predecessors).into_iter().collect();
        predecessors.sort_by_key(|(version, _)| *version);
        for (version, (source, op)) in predecessors {
            let Version { node, key, .. } = self.index.versions[version];
            self.add_sight(Sight { node, key, source, op });
        }
    }

    fn finish(&mut self) {
        // A commit that two merges in other keys make an observer has them in the order of its
        // keys.
        let index = &mut self.index;
        for node in &mut index.nodes {
            node.reads.sort_by_key(|&sight| index.sights[sight].key);
        }
    }
}
