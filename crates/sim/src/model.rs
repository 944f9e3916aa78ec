//! What a store should hold after each of its commits, and what had been promised at each moment.
//!
//! Moments are numbers of file system operations: something that ended at moment *m* had ended before
//! the operation *m* of the record (counted from 0) began.

use std::collections::BTreeMap;

use crate::random::fingerprint;

/// What a keyspace holds.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The sum of the pairs' fingerprints.
pub fn fingerprint_of(pairs: &Pairs) -> u64 {
    pairs.iter().fold(0, |sum, (key, value)| sum.wrapping_add(fingerprint(key, value)))
}

/// From when to when something took place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    /// The moment before it began.
    pub issued: usize,
    /// The moment after it ended.
    pub returned: usize,
}

/// A change of one key.
#[derive(Debug, Clone)]
pub enum Change {
    /// The key has this value.
    Put(Vec<u8>),
    /// It has none.
    Delete,
    /// It has this at the end of its value.
    Append(Vec<u8>),
}

/// A change in a keyspace.
#[derive(Debug, Clone)]
pub struct Write {
    /// The keyspace's place in [`History::keyspaces`].
    pub keyspace: usize,
    /// The key.
    pub key: Vec<u8>,
    /// What happens to it.
    pub change: Change,
}

/// A keyspace, from its creation to its end.
#[derive(Debug, Clone)]
pub struct Incarnation {
    /// The name, which an earlier keyspace may have had.
    pub name: String,
    /// What it held when the history began.
    pub base: Pairs,
    /// What it holds now.
    pub pairs: Pairs,
    /// The fingerprint after so many commits, for each that changed it.
    pub fingerprints: Vec<(usize, u64)>,
    /// When it was created.
    pub created: Span,
    /// When it was dropped.
    pub dropped: Option<Span>,
}

impl Incarnation {
    /// A keyspace that holds `base` after `commits` commits.
    pub fn new(name: &str, base: Pairs, commits: usize, created: Span) -> Incarnation {
        Incarnation {
            name: name.to_string(),
            fingerprints: vec![(commits, fingerprint_of(&base))],
            pairs: base.clone(),
            base,
            created,
            dropped: None,
        }
    }

    /// The fingerprint after `commits` commits; that of the beginning if it is younger than those.
    pub fn fingerprint(&self, commits: usize) -> u64 {
        let next = self.fingerprints.partition_point(|(after, _)| *after <= commits);
        self.fingerprints[next.saturating_sub(1)].1
    }

    /// Whether it must be there at a moment.
    pub fn must_exist(&self, at: usize) -> bool {
        self.created.returned <= at && self.dropped.is_none_or(|dropped| dropped.issued >= at)
    }

    /// Whether it may be there at a moment.
    pub fn may_exist(&self, at: usize) -> bool {
        (self.created.issued < at || self.created.returned <= at)
            && self.dropped.is_none_or(|dropped| dropped.returned > at)
    }
}

/// A copy of the store, and what it holds.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Its directory.
    pub dir: String,
    /// When it was made.
    pub span: Span,
    /// Its keyspaces and their fingerprints.
    pub keyspaces: BTreeMap<String, u64>,
}

/// All that was done to a store between two crashes, and when.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// When the first open returned.
    pub opened: usize,
    /// Each commit.
    pub commits: Vec<Span>,
    /// What each commit wrote.
    pub writes: Vec<Vec<Write>>,
    /// From each of these moments on, so many commits were durable.
    pub durable: Vec<(usize, usize)>,
    /// All keyspaces there ever were.
    pub keyspaces: Vec<Incarnation>,
    /// The copies.
    pub checkpoints: Vec<Checkpoint>,
    /// What was done when, for the reader.
    pub trace: Vec<(usize, String)>,
}

/// Between how many and how many commits a store must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// At least.
    pub least: usize,
    /// At most.
    pub most: usize,
}

impl History {
    /// What was promised at a moment: to those whose process dies, or to those whose power fails.
    pub fn promise(&self, at: usize, unsynced_survives: bool) -> Promise {
        let most = self.commits.partition_point(|commit| commit.issued < at);
        let acknowledged = self.commits.partition_point(|commit| commit.returned <= at);
        let durable = self.durable.iter().filter(|(from, _)| *from <= at).map(|(_, k)| *k).max();
        let least = if unsynced_survives { acknowledged } else { durable.unwrap_or(0) };
        Promise { least, most }
    }

    /// Applies a commit to the model.
    pub fn commit(&mut self, writes: Vec<Write>, span: Span) {
        let commits = self.commits.len() + 1;
        for write in &writes {
            let keyspace = &mut self.keyspaces[write.keyspace];
            let (mut sum, key) = (keyspace.fingerprint(commits), &write.key);
            if let Some(before) = keyspace.pairs.get(key) {
                sum = sum.wrapping_sub(fingerprint(key, before));
            }
            apply(&mut keyspace.pairs, write);
            if let Some(after) = keyspace.pairs.get(key) {
                sum = sum.wrapping_add(fingerprint(key, after));
            }
            match keyspace.fingerprints.last_mut() {
                Some((after, last)) if *after == commits => *last = sum,
                _ => keyspace.fingerprints.push((commits, sum)),
            }
        }
        self.commits.push(span);
        self.writes.push(writes);
    }

    /// What a keyspace held after `commits` commits.
    pub fn pairs_after(&self, keyspace: usize, commits: usize) -> Pairs {
        let mut pairs = self.keyspaces[keyspace].base.clone();
        let writes = self.writes[..commits].iter().flatten();
        writes
            .filter(|write| write.keyspace == keyspace)
            .for_each(|write| apply(&mut pairs, write));
        pairs
    }

    /// The last things that were done before a moment.
    pub fn trace_before(&self, at: usize) -> String {
        let end = self.trace.partition_point(|(from, _)| *from <= at);
        let lines = self.trace[end.saturating_sub(12)..end].iter();
        lines.map(|(from, what)| format!("  op {from}: {what}\n")).collect()
    }
}

/// Changes what a keyspace holds.
pub fn apply(pairs: &mut Pairs, write: &Write) {
    match &write.change {
        Change::Put(value) => {
            pairs.insert(write.key.clone(), value.clone());
        }
        Change::Delete => {
            pairs.remove(&write.key);
        }
        Change::Append(value) => {
            pairs.entry(write.key.clone()).or_default().extend_from_slice(value);
        }
    }
}
