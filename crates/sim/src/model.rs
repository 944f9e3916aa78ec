//! The expected content of a store after each commit, and the promises at each moment.
//!
//! Moments are numbers of file system operations: something that ended at moment *m* had ended
//! before the operation *m* of the record (counted from 0) began.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::action::{Action, KeyspaceNumber, Options, keyspace_name};
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
    /// The moment after it ended; the last there is if it never did.
    pub returned: usize,
}

impl Span {
    /// Something that has not ended.
    pub fn begun(issued: usize) -> Span {
        Span { issued, returned: usize::MAX }
    }
}

/// What happens to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It has this value.
    Put(Vec<u8>),
    /// It has none.
    Delete,
    /// This is folded into its value.
    Merge(Vec<u8>),
    /// It and all keys behind it, up to this one if there is one, have none.
    DeleteRange(Option<Vec<u8>>),
}

/// What happens to a key of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The keyspace's place in [`History::keyspaces`].
    pub place: usize,
    /// The key.
    pub key: Vec<u8>,
    /// What happens to it.
    pub effect: Effect,
}

/// A value from one commit on; `None` from a deletion on.
type Version = (usize, Option<Box<[u8]>>);

/// A keyspace, from its creation to its end.
#[derive(Debug, Clone)]
pub struct Incarnation {
    /// The number, which an earlier keyspace may have had.
    pub number: KeyspaceNumber,
    /// The name that goes with it.
    pub name: String,
    /// The options that it was given last.
    pub options: Options,
    /// All options that it has had, the first since it was created, and when it was given the others.
    options_given: Vec<(Span, Options)>,
    /// All values each key has had.
    versions: BTreeMap<Vec<u8>, Vec<Version>>,
    /// The fingerprint after so many commits, for each that changed it.
    pub fingerprints: Vec<(usize, u64)>,
    /// When it was created.
    pub created: Span,
    /// When it was dropped.
    pub dropped: Option<Span>,
}

impl Incarnation {
    /// A keyspace that holds `base` after `commits` commits.
    pub fn new(
        number: KeyspaceNumber,
        options: Options,
        base: Pairs,
        commits: usize,
        created: Span,
    ) -> Incarnation {
        let fingerprints = vec![(commits, fingerprint_of(&base))];
        let version = |value: Vec<u8>| vec![(commits, Some(value.into_boxed_slice()))];
        Incarnation {
            number,
            name: keyspace_name(number),
            options,
            options_given: vec![(created, options)],
            versions: base.into_iter().map(|(key, value)| (key, version(value))).collect(),
            fingerprints,
            created,
            dropped: None,
        }
    }

    /// It is about to be given other options; [`Incarnation::altered`] tells that it has been.
    pub fn alter(&mut self, options: Options, issued: usize) {
        self.options = options;
        self.options_given.push((Span::begun(issued), options));
    }

    /// It has been given the options that it was to be given last.
    pub fn altered(&mut self, at: usize) {
        if let Some((span, _)) = self.options_given.last_mut() {
            span.returned = at;
        }
    }

    /// Whether it is unknown which options it has: it was to be given some, and that has not returned.
    pub fn is_altered_by_chance(&self) -> bool {
        self.options_given[1..].iter().any(|(span, _)| span.returned == usize::MAX)
    }

    /// The options that it may have at a moment: the last of those that it must have been given, and all after them that
    /// it may have been given.
    pub fn options_at(&self, at: usize) -> Vec<Options> {
        let given = &self.options_given;
        let must = given.iter().rposition(|(span, _)| span.returned <= at).unwrap_or(0);
        let later = given[must + 1..].iter().filter(|(span, _)| span.issued < at);
        [given[must].1].into_iter().chain(later.map(|(_, options)| *options)).collect()
    }

    /// A key's value after `commits` commits.
    pub fn get(&self, key: &[u8], commits: usize) -> Option<&[u8]> {
        self.versions.get(key).and_then(|versions| value_after(versions, commits))
    }

    /// The pairs between two bounds after `commits` commits.
    pub fn range<'a>(
        &'a self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        commits: usize,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let bounds = match (lower, upper) {
            // The map refuses such ranges.
            (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) if to <= from => {
                (Bound::Included(from), Bound::Excluded(from))
            }
            bounds => bounds,
        };
        self.versions
            .range::<[u8], _>(bounds)
            .filter_map(move |(key, all)| Some((&**key, value_after(all, commits)?)))
    }

    /// All pairs after `commits` commits.
    pub fn pairs(&self, commits: usize) -> Pairs {
        let pairs = self.range(Bound::Unbounded, Bound::Unbounded, commits);
        pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    /// Applies a part of the commit which is the `commit`th.
    fn apply(&mut self, key: &[u8], effect: &Effect, commit: usize) {
        if let Effect::DeleteRange(to) = effect {
            let upper = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let pairs = self.range(Bound::Included(key), upper, commit);
            let keys: Vec<Vec<u8>> = pairs.map(|(key, _)| key.to_vec()).collect();
            keys.iter().for_each(|key| self.apply(key, &Effect::Delete, commit));
            return;
        }
        let mut sum = self.fingerprint(commit);
        let before = self.get(key, commit);
        if let Some(before) = before {
            sum = sum.wrapping_sub(fingerprint(key, before));
        }
        let after: Option<Box<[u8]>> = match effect {
            Effect::Put(value) => Some(value.as_slice().into()),
            Effect::Delete | Effect::DeleteRange(_) => None,
            Effect::Merge(value) => Some(self.options.operator.merge(before, value).into()),
        };
        if let Some(after) = &after {
            sum = sum.wrapping_add(fingerprint(key, after));
        }
        match self.fingerprints.last_mut() {
            Some((last, known)) if *last == commit => *known = sum,
            _ => self.fingerprints.push((commit, sum)),
        }
        let Some(versions) = self.versions.get_mut(key) else {
            self.versions.insert(key.to_vec(), vec![(commit, after)]);
            return;
        };
        match versions.last_mut() {
            Some((last, value)) if *last == commit => *value = after,
            _ => versions.push((commit, after)),
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
    /// From each of these moments on, so many commits were durable.
    pub durable: Vec<(usize, usize)>,
    /// All keyspaces there ever were.
    pub keyspaces: Vec<Incarnation>,
    /// The copies.
    pub checkpoints: Vec<Checkpoint>,
    /// When each action was begun, by its number.
    pub trace: Vec<(usize, usize)>,
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

    /// How many commits have been issued.
    pub fn issued(&self) -> usize {
        self.commits.len()
    }

    /// Applies a commit that is about to be issued; [`History::returned`] tells that it has
    /// returned.
    pub fn commit(&mut self, writes: &[Write], issued: usize) {
        let commit = self.commits.len() + 1;
        for write in writes {
            self.keyspaces[write.place].apply(&write.key, &write.effect, commit);
        }
        self.commits.push(Span::begun(issued));
    }

    /// The last commit has returned.
    pub fn returned(&mut self, at: usize) {
        if let Some(last) = self.commits.last_mut() {
            last.returned = at;
        }
    }

    /// What a keyspace held after `commits` commits.
    pub fn pairs_after(&self, place: usize, commits: usize) -> Pairs {
        self.keyspaces[place].pairs(commits)
    }

    /// The keyspaces that exist now, and their places.
    pub fn alive(&self) -> impl Iterator<Item = (usize, &Incarnation)> {
        self.keyspaces.iter().enumerate().filter(|(_, keyspace)| keyspace.dropped.is_none())
    }

    /// The last things that were done before a moment, of `actions`.
    pub fn trace_before(&self, actions: &[Action], at: usize) -> String {
        let end = self.trace.partition_point(|(from, _)| *from <= at);
        let lines = self.trace[end.saturating_sub(12)..end].iter().filter_map(|(from, number)| {
            Some(format!("  op {from}: #{number} {}\n", actions.get(*number)?))
        });
        lines.collect()
    }
}

fn value_after(versions: &[Version], commits: usize) -> Option<&[u8]> {
    let known = match versions.last() {
        Some((last, _)) if *last <= commits => versions.len(),
        _ => versions.partition_point(|(commit, _)| *commit <= commits),
    };
    versions.get(known.checked_sub(1)?)?.1.as_deref()
}
