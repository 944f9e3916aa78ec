//! The precedence of operations: everything that follows from time and from what was seen.
//!
//! Each node has a clock: the number of nodes of each chain that must come before it. A new edge
//! raises clocks. A node that must come before itself proves that there is no order.
//!
//! The rules, with R an observer that saw a key with the value written by W:
//! - W before R.
//! - Another writer of the key that must come before R must come before W.
//! - Another writer of the key that must come after W must come after R.
//!
//! and with R an observer that saw a key absent:
//! - Between R and a put that must come before R there must be a delete. If only one is possible,
//!   it must be between them; if none is possible, R must come before the put.
//!
//! Invariants:
//! 1. Every edge holds in every order that explains the history.

use super::circle::Circle;
use super::index::{Index, Source};

/// Why one node must come before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It had ended when the other began.
    Time,
    /// The other saw what it wrote.
    Saw { sight: usize },
    /// It wrote a key, and an observer behind it saw what the other wrote there.
    BeforeSeen { sight: usize },
    /// It saw what was in a key before the other wrote there.
    Replaced { sight: usize },
    /// It saw nothing in a key where the other put something that nobody can have deleted before.
    NotYet { sight: usize },
    /// An observer behind both saw nothing in a key, and nobody but the other can have deleted what
    /// it had put there.
    OnlyDelete { sight: usize },
    /// The other saw nothing in a key that nobody else can have deleted.
    Deleted { sight: usize },
}

/// All that follows.
pub(super) struct Order<'a> {
    pub(super) index: &'a Index,
    width: usize,
    clocks: Vec<u32>,
    /// The edges to each node that are not of time.
    pub(super) before: Vec<Vec<(usize, Reason)>>,
    after: Vec<Vec<usize>>,
    /// Of each node and chain, the place of the first node that begins after the node has ended.
    next: Vec<u32>,
    changed: Vec<usize>,
}

type Derived = Result<(), Circle>;

impl<'a> Order<'a> {
    /// Derives all that follows from the rules.
    pub(super) fn derive(index: &'a Index) -> Result<Order<'a>, Circle> {
        let (width, nodes) = (index.chains.len(), index.nodes.len());
        let mut order = Order {
            index,
            width,
            clocks: vec![0; width * nodes],
            before: vec![Vec::new(); nodes],
            after: vec![Vec::new(); nodes],
            next: vec![0; width * nodes],
            changed: Vec::new(),
        };
        order.time();
        for (number, sight) in index.sights.iter().enumerate() {
            if let Source::Version(version) = sight.source {
                let writer = index.versions[version].node;
                order.add(writer, sight.node, Reason::Saw { sight: number })?;
            }
        }
        loop {
            let edges: usize = order.before.iter().map(Vec::len).sum();
            for version in 0..index.versions.len() {
                order.replaced(version)?;
            }
            for number in 0..index.sights.len() {
                match index.sights[number].source {
                    Source::Version(version) => order.before_seen(number, version)?,
                    Source::Absent => order.absent(number)?,
                }
            }
            if order.before.iter().map(Vec::len).sum::<usize>() == edges {
                return Ok(order);
            }
        }
    }

    /// What follows from time alone.
    fn time(&mut self) {
        let index = self.index;
        // Nodes are in the order of their beginnings.
        for (chain, members) in index.chains.iter().enumerate() {
            let mut ended = 0;
            for (node, found) in index.nodes.iter().enumerate() {
                while members.get(ended).is_some_and(|&m| index.nodes[m].ended < found.begun) {
                    ended += 1;
                }
                self.clocks[node * self.width + chain] = ended as u32;
            }
            let mut by_end: Vec<usize> = (0..index.nodes.len()).collect();
            by_end.sort_by_key(|&node| index.nodes[node].ended);
            let mut begun = 0;
            for node in by_end {
                let end = index.nodes[node].ended;
                while members.get(begun).is_some_and(|&m| index.nodes[m].begun < end) {
                    begun += 1;
                }
                self.next[node * self.width + chain] = begun as u32;
            }
        }
    }

    /// How many nodes of each chain must come before a node.
    pub(super) fn clock(&self, node: usize) -> &[u32] {
        &self.clocks[node * self.width..][..self.width]
    }

    /// Whether `a` must come before `b`.
    #[inline]
    pub(super) fn is_before(&self, a: usize, b: usize) -> bool {
        let a = &self.index.nodes[a];
        self.clocks[b * self.width + a.chain] > a.place
    }

    fn add(&mut self, a: usize, b: usize, reason: Reason) -> Derived {
        if self.is_before(a, b) {
            return Ok(());
        }
        self.before[b].push((a, reason));
        self.after[a].push(b);
        self.raise(a, b);
        while let Some(node) = self.changed.pop() {
            if self.is_before(node, node) {
                return Err(Circle::new(self, node));
            }
            for after in 0..self.after[node].len() {
                self.raise(node, self.after[node][after]);
            }
            for chain in 0..self.width {
                let place = self.next[node * self.width + chain] as usize;
                if let Some(&after) = self.index.chains[chain].get(place) {
                    self.raise(node, after);
                }
            }
        }
        Ok(())
    }

    /// `b` comes after all that `a` comes after, and after `a`.
    fn raise(&mut self, a: usize, b: usize) {
        let width = self.width;
        let (chain, place) = (self.index.nodes[a].chain, self.index.nodes[a].place);
        let mut raised = false;
        for at in 0..width {
            let mut least = self.clocks[a * width + at];
            if at == chain {
                least = least.max(place + 1);
            }
            let clock = &mut self.clocks[b * width + at];
            if *clock < least {
                *clock = least;
                raised = true;
            }
        }
        if raised {
            self.changed.push(b);
        }
    }

    fn node_of(&self, version: usize) -> usize {
        self.index.versions[version].node
    }

    fn place_of(&self, version: usize) -> u32 {
        self.index.nodes[self.node_of(version)].place
    }

    /// How many of these versions, in one chain's order, must come before `node`.
    fn count_before(&self, versions: &[usize], node: usize) -> usize {
        let Some(&first) = versions.first() else { return 0 };
        let chain = self.index.nodes[self.node_of(first)].chain;
        let clock = self.clocks[node * self.width + chain];
        versions.partition_point(|&version| self.place_of(version) < clock)
    }

    /// How many of these versions, in one chain's order, need not come after `node`.
    fn count_not_after(&self, versions: &[usize], node: usize) -> usize {
        versions.partition_point(|&version| !self.is_before(node, self.node_of(version)))
    }

    /// Writers of the key that must come before a reader come before the one whose value it saw.
    fn before_seen(&mut self, sight: usize, version: usize) -> Derived {
        let index = self.index;
        let (reader, key) = (index.sights[sight].node, index.sights[sight].key);
        let writer = self.node_of(version);
        for written in &index.written[key] {
            let count = self.count_before(&written.all, reader);
            let Some(&last) = written.all[..count].last() else { continue };
            let other = self.node_of(last);
            if other != writer && other != reader {
                self.add(other, writer, Reason::BeforeSeen { sight })?;
            }
        }
        Ok(())
    }

    /// Writers of the key that must come after a version come after all that saw it.
    fn replaced(&mut self, version: usize) -> Derived {
        let index = self.index;
        if index.seen_by[version].is_empty() {
            return Ok(());
        }
        let writer = self.node_of(version);
        for written in &index.written[index.versions[version].key] {
            let first = self.count_not_after(&written.all, writer);
            for &sight in &index.seen_by[version] {
                let reader = index.sights[sight].node;
                let mut others = written.all[first..].iter().map(|&other| self.node_of(other));
                if let Some(other) = others.find(|&other| other != reader) {
                    self.add(reader, other, Reason::Replaced { sight })?;
                }
            }
        }
        Ok(())
    }

    /// The deletes that may stand between a put and an observer that saw nothing: how many, up to
    /// two, and the first.
    fn deletes_between(&self, key: usize, put: usize, reader: usize) -> (usize, Option<usize>) {
        let (mut count, mut only) = (0, None);
        for written in &self.index.written[key] {
            let from = self.count_before(&written.deletes, put);
            let to = self.count_not_after(&written.deletes, reader);
            for &delete in written.deletes.get(from..to).unwrap_or_default() {
                let node = self.node_of(delete);
                if node != reader {
                    (count, only) = (count + 1, Some(node));
                }
                if count > 1 {
                    return (count, only);
                }
            }
        }
        (count, only)
    }

    fn absent(&mut self, sight: usize) -> Derived {
        let index = self.index;
        let (reader, key) = (index.sights[sight].node, index.sights[sight].key);
        for written in &index.written[key] {
            let count = self.count_before(&written.values, reader);
            let last = written.values[..count].last().map(|&put| self.node_of(put));
            if let Some(put) = last
                && put != reader
            {
                let (deletes, only) = self.deletes_between(key, put, reader);
                match only {
                    Some(delete) if deletes == 1 => {
                        self.add(put, delete, Reason::OnlyDelete { sight })?;
                        self.add(delete, reader, Reason::Deleted { sight })?;
                    }
                    None => self.add(reader, put, Reason::NotYet { sight })?,
                    Some(_) => {}
                }
            }
            // Later puts have fewer deletes behind them.
            let later = &written.values[count..];
            let first = later.partition_point(|&put| {
                let put = self.node_of(put);
                put == reader || self.deletes_between(key, put, reader).0 > 0
            });
            if let Some(&put) = later.get(first) {
                self.add(reader, self.node_of(put), Reason::NotYet { sight })?;
            }
        }
        Ok(())
    }
}
