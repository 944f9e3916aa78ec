//! Range deletes: which numbers delete which keys.
//!
//! A *range delete* deletes every version of a key in `[lower, upper)` that has a number below its own. It is kept beside the
//! entries: no table has one. The bounds of all range deletes cut the keys into *fragments*, each with the numbers that
//! delete its keys.
//!
//! Invariants:
//! 1. Fragments are ascending, apart, and not empty. Each has at least one number; numbers are descending. Of fragments that
//!    were made together, no two neighbours have the same numbers.
//! 2. A [`RangeDeletes`] is immutable. One with a range delete more shares all chunks with it but those that change, so
//!    adding to many costs little.
//! 3. A version is deleted at a snapshot if a range delete with a number above the version's, and at most the snapshot's,
//!    has its key.

use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::range_delete::{Bound, RangeDelete};

/// Fragments of a chunk.
const CHUNK_FRAGMENTS_MAX: usize = 64;

/// Whether a range that ends at `inner` ends where one that ends at `outer` does, or before.
fn ends_within(inner: Option<&[u8]>, outer: Option<&[u8]>) -> bool {
    match (inner, outer) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(inner), Some(outer)) => inner <= outer,
    }
}

/// Keys that the same range deletes have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) lower: Bound,
    pub(crate) upper: Option<Bound>,
    /// Newest first.
    pub(crate) seqnos: Arc<[Seqno]>,
}

impl Fragment {
    /// The newest number up to a snapshot's.
    fn newest(&self, snapshot: Seqno) -> Option<Seqno> {
        self.seqnos.iter().copied().find(|seqno| *seqno <= snapshot)
    }

    fn part(&self, lower: &Bound, upper: &Option<Bound>) -> Fragment {
        let (lower, upper) = (Arc::clone(lower), upper.clone());
        Fragment { lower, upper, seqnos: Arc::clone(&self.seqnos) }
    }
}

/// Fragments, with what is compared first.
#[derive(Debug)]
struct Chunk {
    /// See [`head`].
    heads: Box<[u64]>,
    fragments: Box<[Fragment]>,
}

/// A map from keys to the range deletes that have them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RangeDeletes {
    /// With the head of its first fragment.
    chunks: Vec<(u64, Arc<Chunk>)>,
    /// All lower bounds begin with these bytes.
    common: Box<[u8]>,
}

/// Eight bytes of a key behind so many, as a number: those of two keys are in the order of the keys, or equal.
#[inline]
fn head(key: &[u8], common: usize) -> u64 {
    let rest = key.get(common..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 8];
    let count = rest.len().min(8);
    bytes[..count].copy_from_slice(&rest[..count]);
    u64::from_be_bytes(bytes)
}

impl Chunk {
    fn new(fragments: &[Fragment], common: usize) -> (u64, Arc<Chunk>) {
        let heads: Box<[u64]> =
            fragments.iter().map(|fragment| head(&fragment.lower, common)).collect();
        let first = heads.first().copied().unwrap_or_default();
        (first, Arc::new(Chunk { heads, fragments: fragments.into() }))
    }
}

/// The keys around one that have the same range deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span<'a> {
    /// No bound at the first key.
    pub(crate) lower: Option<&'a Bound>,
    pub(crate) upper: Option<&'a Bound>,
    /// Newest first.
    pub(crate) seqnos: &'a [Seqno],
}

impl RangeDeletes {
    /// The map of a list, for readers at whatever number.
    pub(crate) fn of<'a>(deletes: impl IntoIterator<Item = &'a RangeDelete>) -> RangeDeletes {
        let mut all = RangeDeletes::default();
        deletes.into_iter().for_each(|delete| all = all.with(delete, Seqno::MAX));
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// All fragments.
    pub(crate) fn fragments(&self) -> impl Iterator<Item = &Fragment> {
        self.chunks.iter().flat_map(|(_, chunk)| chunk.fragments.iter())
    }

    /// The last chunk with a fragment that begins at `key` or before, and the last such fragment.
    #[inline]
    fn place_of(&self, key: &[u8]) -> Option<(usize, usize)> {
        let common = &*self.common;
        if !common.is_empty() && !key.starts_with(common) {
            // All bounds are above the key, or all below it.
            let chunk = self.chunks.len().checked_sub(1).filter(|_| *key > *common)?;
            return Some((chunk, self.chunks[chunk].1.fragments.len() - 1));
        }
        let wanted = head(key, common.len());
        let begins_by =
            |head: u64, lower: &Bound| head < wanted || head == wanted && **lower <= *key;
        let behind = self.chunks.partition_point(|(head, chunk)| {
            let first = chunk.fragments.first();
            first.is_some_and(|first| begins_by(*head, &first.lower))
        });
        let place = behind.checked_sub(1)?;
        let chunk = &*self.chunks[place].1;
        let mut at = chunk.heads.partition_point(|head| *head < wanted);
        while chunk.heads.get(at) == Some(&wanted) && *chunk.fragments[at].lower <= *key {
            at += 1;
        }
        Some((place, at.checked_sub(1)?))
    }

    /// The fragment that has a key.
    #[inline]
    fn fragment_of(&self, key: &[u8]) -> Option<&Fragment> {
        let (chunk, fragment) = self.place_of(key)?;
        let fragment = &self.chunks[chunk].1.fragments[fragment];
        fragment.upper.as_ref().is_none_or(|upper| *key < **upper).then_some(fragment)
    }

    /// The newest number, up to the snapshot's, that deletes a key.
    #[inline]
    pub(crate) fn newest(&self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        self.fragment_of(key)?.newest(snapshot)
    }

    /// What deletes a key, and which keys around it have the same range deletes.
    pub(crate) fn span(&self, key: &[u8]) -> Span<'_> {
        let Some((chunk, at)) = self.place_of(key) else {
            let upper = self.fragments().next().map(|fragment| &fragment.lower);
            return Span { lower: None, upper, seqnos: &[] };
        };
        let fragment = &self.chunks[chunk].1.fragments[at];
        match &fragment.upper {
            Some(upper) if **upper <= *key => {
                let next = self.chunks[chunk].1.fragments.get(at + 1);
                let next = next.or_else(|| self.chunks.get(chunk + 1)?.1.fragments.first());
                let behind = next.map(|fragment| &fragment.lower);
                Span { lower: Some(upper), upper: behind, seqnos: &[] }
            }
            upper => Span {
                lower: Some(&fragment.lower),
                upper: upper.as_ref(),
                seqnos: &fragment.seqnos,
            },
        }
    }

    /// The fragments that have keys of `[lower, upper)`.
    pub(crate) fn overlapping<'a>(
        &'a self,
        lower: &'a [u8],
        upper: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a Fragment> {
        let (chunk, fragment) = self.place_of(lower).unwrap_or_default();
        let first = self.chunks.get(chunk).map_or(&[][..], |(_, it)| &it.fragments[fragment..]);
        let others = self.chunks.get(chunk + 1..).unwrap_or_default();
        first
            .iter()
            .chain(others.iter().flat_map(|(_, chunk)| chunk.fragments.iter()))
            .skip_while(|it| it.upper.as_ref().is_some_and(|upper| **upper <= *lower))
            .take_while(move |it| upper.is_none_or(|upper| *it.lower < *upper))
    }

    /// The same with one more. No reader has a number from `since` on that is below the range delete's, so of its fragments'
    /// numbers from there on one is enough.
    pub(crate) fn with(&self, delete: &RangeDelete, since: Seqno) -> RangeDeletes {
        let (from, to) = (&delete.lower, &delete.upper);
        // Chunks before `first` end before the range, chunks from `end` on begin behind it.
        let ends_before = |(_, chunk): &(u64, Arc<Chunk>)| {
            let last = chunk.fragments.last().and_then(|last| last.upper.as_ref());
            last.is_some_and(|upper| upper <= from)
        };
        let mut first = self.chunks.partition_point(ends_before);
        let begins_behind = |(_, chunk): &(u64, Arc<Chunk>)| {
            let lower = chunk.fragments.first().map(|first| &first.lower);
            to.as_ref().is_some_and(|to| lower.is_some_and(|lower| lower >= to))
        };
        let mut end = self.chunks.partition_point(|chunk| !begins_behind(chunk));
        if first >= end {
            // It lies between two chunks: it joins one of them.
            first = first.min(self.chunks.len().saturating_sub(1));
            end = (first + 1).min(self.chunks.len());
        }
        let mut changed: Vec<Fragment> = Vec::new();
        let mut at = Some(Arc::clone(from));
        let touched = self.chunks[first..end].iter();
        for fragment in touched.flat_map(|(_, chunk)| chunk.fragments.iter()) {
            let own_end = fragment.upper.as_deref();
            let is_before = own_end.is_some_and(|upper| *upper <= **from);
            if is_before {
                changed.push(fragment.clone());
                continue;
            }
            let is_behind = to.as_ref().is_some_and(|to| fragment.lower >= *to);
            if is_behind {
                add_gap(&mut changed, &mut at, to.as_ref(), to, delete.seqno);
                changed.push(fragment.clone());
                continue;
            }
            if fragment.lower < *from {
                changed.push(fragment.part(&fragment.lower, &Some(Arc::clone(from))));
            }
            add_gap(&mut changed, &mut at, Some(&fragment.lower), to, delete.seqno);
            let lower = (&fragment.lower).max(from);
            let ends_inside = ends_within(own_end, to.as_deref());
            let upper = if ends_inside { &fragment.upper } else { to };
            let mut seqnos = fragment.seqnos.to_vec();
            let place = seqnos.partition_point(|seqno| *seqno > delete.seqno);
            if seqnos.get(place) != Some(&delete.seqno) {
                seqnos.insert(place, delete.seqno);
            }
            let needless = 1..seqnos.partition_point(|seqno| *seqno >= since).max(1);
            seqnos.drain(needless);
            let part = fragment.part(lower, upper);
            push(&mut changed, Fragment { seqnos: seqnos.into(), ..part });
            at = upper.clone();
            if !ends_inside && let Some(to) = to {
                changed.push(fragment.part(to, &fragment.upper));
                at = Some(Arc::clone(to));
            }
        }
        add_gap(&mut changed, &mut at, to.as_ref(), to, delete.seqno);
        // Evenly: what is left of a chunk is no chunk of one.
        let parts = changed.len().div_ceil(CHUNK_FRAGMENTS_MAX).max(1);
        let size = changed.len().div_ceil(parts).max(1);
        let common = match self.chunks.is_empty() {
            true => from.len(),
            false => shared(&self.common, from),
        };
        let common = to.as_ref().map_or(common, |to| common.min(shared(from, to)));
        let mut chunks = self.chunks.clone();
        let made: Vec<_> = changed.chunks(size).map(|part| Chunk::new(part, common)).collect();
        chunks.splice(first..end, made);
        if common != self.common.len() {
            chunks.iter_mut().for_each(|it| *it = Chunk::new(&it.1.fragments, common));
        }
        let changed = RangeDeletes { chunks, common: from[..common].into() };
        debug_assert!(changed.is_in_order());
        changed
    }

    fn is_in_order(&self) -> bool {
        let apart = |(a, b): (&Fragment, &Fragment)| {
            a.upper.as_ref().is_some_and(|upper| *upper <= b.lower)
        };
        self.fragments().zip(self.fragments().skip(1)).all(apart)
            && self.fragments().all(|it| {
                it.upper.as_ref().is_none_or(|upper| it.lower < *upper)
                    && !it.seqnos.is_empty()
                    && it.seqnos.is_sorted_by(|a, b| a > b)
            })
    }
}

/// Adds what no fragment has from `at` to the next fragment at `next` (`None`: there is none), within a range to `to`.
fn add_gap(
    changed: &mut Vec<Fragment>,
    at: &mut Option<Bound>,
    next: Option<&Bound>,
    to: &Option<Bound>,
    seqno: Seqno,
) {
    // `None`: the fragment before it has no end.
    let Some(lower) = at.clone() else { return };
    let upper = match (next, to) {
        (Some(next), Some(to)) => Some(next.min(to)),
        (next, to) => next.or(to.as_ref()),
    };
    if upper.is_some_and(|upper| lower >= *upper) {
        return;
    }
    let upper = upper.cloned();
    at.clone_from(&upper);
    push(changed, Fragment { lower, upper, seqnos: Arc::from([seqno]) });
}

/// How many bytes two keys begin with alike.
fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Adds a fragment, as a part of the one before if that has the same numbers.
fn push(changed: &mut Vec<Fragment>, fragment: Fragment) {
    match changed.last_mut() {
        Some(last)
            if last.upper.as_ref() == Some(&fragment.lower) && last.seqnos == fragment.seqnos =>
        {
            last.upper = fragment.upper;
        }
        _ => changed.push(fragment),
    }
}

/// The range deletes of a keyspace that are durable.
#[derive(Debug, Default)]
pub(crate) struct DurableRangeDeletes {
    /// Ascending by their numbers.
    pub(crate) list: Vec<RangeDelete>,
    pub(crate) map: Arc<RangeDeletes>,
    /// Every range delete of the keyspace up to this number is among them, or is not needed any more.
    pub(crate) upto: Seqno,
    /// About how much memory they take.
    pub(crate) memory_bytes: u64,
}

impl DurableRangeDeletes {
    /// A list, which is complete up to `upto`.
    pub(crate) fn new(mut list: Vec<RangeDelete>, upto: Seqno) -> DurableRangeDeletes {
        list.sort_unstable_by_key(|delete| delete.seqno);
        list.dedup_by_key(|delete| delete.seqno);
        let map = Arc::new(RangeDeletes::of(&list));
        // The manifest gets those of a memtable together.
        let upto = list.last().map_or(upto, |last| upto.max(last.seqno));
        DurableRangeDeletes::made(list, map, upto)
    }

    fn made(list: Vec<RangeDelete>, map: Arc<RangeDeletes>, upto: Seqno) -> DurableRangeDeletes {
        let memory_bytes = list.iter().map(RangeDelete::memory_bytes).sum();
        DurableRangeDeletes { list, map, upto, memory_bytes }
    }

    /// The same with more.
    pub(crate) fn with(&self, more: &[RangeDelete], upto: Seqno) -> DurableRangeDeletes {
        let mut list = self.list.clone();
        list.extend_from_slice(more);
        list.sort_unstable_by_key(|delete| delete.seqno);
        list.dedup_by_key(|delete| delete.seqno);
        let map = (*self.map).clone();
        let map = more.iter().fold(map, |map, delete| map.with(delete, Seqno::MAX));
        DurableRangeDeletes::made(list, Arc::new(map), self.upto.max(upto))
    }

    /// The same without some.
    pub(crate) fn without(&self, gone: &[Seqno]) -> DurableRangeDeletes {
        let kept = self.list.iter().filter(|delete| !gone.contains(&delete.seqno));
        DurableRangeDeletes::new(kept.cloned().collect(), self.upto)
    }
}

/// The range deletes of several maps, for who asks for keys that are near one another.
#[derive(Debug, Clone)]
pub(crate) struct Cover {
    maps: Vec<Arc<RangeDeletes>>,
    snapshot: Seqno,
    /// The span that was asked for last. Empty at first.
    lower: Option<Bound>,
    upper: Option<Bound>,
    is_known: bool,
    /// Newest first, at most the snapshot's.
    seqnos: Vec<Seqno>,
}

impl Cover {
    /// What deletes keys at a snapshot; `None` if nothing does.
    pub(crate) fn new(
        maps: impl IntoIterator<Item = Arc<RangeDeletes>>,
        snapshot: Seqno,
    ) -> Option<Box<Cover>> {
        let maps: Vec<_> = maps.into_iter().filter(|map| !map.is_empty()).collect();
        let (lower, upper, seqnos) = (None, None, Vec::new());
        (!maps.is_empty())
            .then(|| Box::new(Cover { maps, snapshot, lower, upper, is_known: false, seqnos }))
    }

    /// The numbers that delete a key, newest first.
    #[inline]
    pub(crate) fn of(&mut self, key: &[u8]) -> &[Seqno] {
        let is_within = self.is_known
            && self.lower.as_ref().is_none_or(|lower| **lower <= *key)
            && self.upper.as_ref().is_none_or(|upper| *key < **upper);
        if !is_within {
            self.find(key);
        }
        &self.seqnos
    }

    /// Whether a version of a key is deleted.
    #[inline]
    pub(crate) fn deletes(&mut self, key: &[u8], seqno: Seqno) -> bool {
        self.of(key).first().is_some_and(|newest| seqno < *newest)
    }

    /// Whether no reader sees a version of a key: it is deleted at every snapshot that has it. (Two numbers of one stripe have
    /// no snapshot between them.)
    #[inline]
    pub(super) fn hides(
        &mut self,
        key: &[u8],
        seqno: Seqno,
        stripe: impl Fn(Seqno) -> usize,
    ) -> bool {
        let mut oldest_first = self.of(key).iter().rev();
        let next = oldest_first.find(|deleted| **deleted > seqno);
        let ignores_snapshots = planted(Bug::RangeDeleteIgnoresSnapshots);
        next.is_some_and(|next| ignores_snapshots || stripe(*next) == stripe(seqno))
    }

    #[cold]
    fn find(&mut self, key: &[u8]) {
        self.seqnos.clear();
        let (mut lower, mut upper): (Option<&Bound>, Option<&Bound>) = (None, None);
        for map in &self.maps {
            let span = map.span(key);
            lower = lower.max(span.lower);
            upper = match (upper, span.upper) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            self.seqnos.extend(span.seqnos.iter().filter(|seqno| **seqno <= self.snapshot));
        }
        self.seqnos.sort_unstable_by(|a, b| b.cmp(a));
        self.seqnos.dedup();
        (self.lower, self.upper) = (lower.cloned(), upper.cloned());
        self.is_known = true;
    }
}

#[cfg(test)]
#[path = "range_deletes_tests.rs"]
mod tests;
