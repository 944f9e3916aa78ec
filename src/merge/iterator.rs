//! `MergeIterator`: merges many cursors into one, in both directions.
//!
//! Invariants:
//! 1. Forwards, every source is at its first entry after the iterator's position (or at the
//!    position, if the position is its own) or past its end. Backwards, this is mirrored.
//! 2. A waiting source has not been positioned: none of its entries from the sought key on is
//!    before its bound. It competes with its bound, which ranks before every real entry of that
//!    key, so it is positioned before the iterator passes anything that it might hold. Sources wait
//!    only forwards.
//! 3. After an error there is no position; seek again. What was passed is known (`left_key`).
//! 4. In a run (one source has won for a while), the tournament is in the state of the run's
//!    beginning: its base is the key that the source had then, and `limit` is the first key of any
//!    other source. The tournament is played again when the source reaches the limit.

use super::loser_tree::{Keys, LoserTree};
use crate::base::entry::{Cursor, EntryRef};
use crate::base::error::{Error, Result};

/// A cursor that may know a lower bound of its entries without reading.
pub(crate) trait MergeSource: Cursor {
    /// A key that is not after any entry with key `>= from` (any key, without `from`), if that is
    /// known without reading. The merge then delays positioning the source until it reaches the
    /// bound.
    fn lower_bound(&self, from: Option<&[u8]>) -> Option<&[u8]> {
        let _ = from;
        None
    }
}

struct Source<C> {
    cursor: C,
    /// The bound that it competes with, if `waiting`.
    bound: Vec<u8>,
    waiting: bool,
}

impl<C: Cursor> Source<C> {
    fn order(&self, backwards: bool) -> Option<u64> {
        if self.waiting {
            return Some(0);
        }
        self.cursor.entry().map(|entry| rank(entry, backwards))
    }
}

/// The rank of an entry among those of its key. It is never 0, the rank of waiting sources.
#[inline]
fn rank(entry: EntryRef<'_>, backwards: bool) -> u64 {
    if backwards { entry.seqno.0 } else { !entry.seqno.0 }
}

impl<C: Cursor> Keys for Vec<Source<C>> {
    #[inline]
    fn key(&self, source: usize) -> &[u8] {
        let source = &self[source];
        if source.waiting {
            return &source.bound;
        }
        source.cursor.entry().map_or(&[], |entry| entry.key)
    }
}

/// The entries of all sources as one cursor. Of equal entries, that of the lower source comes
/// first.
pub(crate) struct MergeIterator<C> {
    sources: Vec<Source<C>>,
    tree: LoserTree,
    /// The source of the current entry.
    current: Option<usize>,
    backwards: bool,
    same_key: bool,
    /// How many times in succession the same source has won.
    wins: u32,
    run: Run,
    /// In a run: the key before the current one. After a failed wake: the key that was current
    /// before.
    last: Vec<u8>,
    /// Whether a run has ended at `last` in this step.
    run_ended: bool,
    /// A waiting source could not be positioned.
    wake_failed: bool,
}

/// Whether the tournament is suspended while one source is ahead of all others.
enum Run {
    None,
    /// As long as the source is before this key.
    Until(Vec<u8>),
    /// To the source's end: no other source is left.
    ToEnd,
}

/// After this many wins in succession a run begins.
const WINS_OF_RUN: u32 = 4;

impl<C: MergeSource> MergeIterator<C> {
    /// Merges `sources`, newest first by convention.
    pub(crate) fn new(sources: Vec<C>) -> MergeIterator<C> {
        let sources = sources
            .into_iter()
            .map(|cursor| Source { cursor, bound: Vec::new(), waiting: false })
            .collect();
        MergeIterator {
            sources,
            tree: LoserTree::default(),
            current: None,
            backwards: false,
            same_key: false,
            wins: 0,
            run: Run::None,
            last: Vec::new(),
            run_ended: false,
            wake_failed: false,
        }
    }

    /// After a failed step: the key of the entry that it started from.
    pub(crate) fn left_key(&self) -> Vec<u8> {
        match self.run {
            Run::None if !self.wake_failed => self.tree.base(),
            _ => self.last.clone(),
        }
    }

    /// Whether the last `next` or `prev` stayed within the versions of one key. False after a seek.
    #[inline]
    pub(crate) fn same_key(&self) -> bool {
        self.same_key
    }

    /// The sources, in the given order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &C> {
        self.sources.iter().map(|source| &source.cursor)
    }

    /// The cursors, before the first seek or when nothing more is asked of them.
    pub(crate) fn sources_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.sources.iter_mut().map(|source| &mut source.cursor)
    }

    /// Memory used, without the sources: bounds, the tournament, the run.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bounds: usize = self.sources.iter().map(|source| source.bound.capacity()).sum();
        let limit = match &self.run {
            Run::Until(limit) => limit.capacity(),
            Run::None | Run::ToEnd => 0,
        };
        self.sources.capacity() * size_of::<Source<C>>()
            + bounds
            + limit
            + self.last.capacity()
            + self.tree.memory_bytes()
    }

    /// Positions every source and starts the tournament. If a page of one source is not resident,
    /// the other sources still record theirs.
    fn seek_all(
        &mut self,
        backwards: bool,
        from: Option<&[u8]>,
        seek: impl Fn(&mut C) -> Result<()>,
    ) -> Result<()> {
        // On the way forward, a source that is at the key or behind it is where it belongs (invariant 1).
        let is_ahead = !self.backwards
            && !backwards
            && self.entry().is_some_and(|entry| from.is_some_and(|from| entry.key < from));
        self.current = None;
        self.same_key = false;
        self.wake_failed = false;
        self.backwards = backwards;
        let mut missing = None;
        for source in &mut self.sources {
            if is_ahead
                && !source.waiting
                && source
                    .cursor
                    .entry()
                    .is_some_and(|entry| from.is_some_and(|from| entry.key >= from))
            {
                continue;
            }
            source.waiting = false;
            if !backwards
                && let Some(bound) = source.cursor.lower_bound(from)
                && from.is_none_or(|from| bound > from)
            {
                source.bound.clear();
                source.bound.extend_from_slice(bound);
                source.waiting = true;
                continue;
            }
            match seek(&mut source.cursor) {
                Err(Error::NotResident) => missing = Some(Error::NotResident),
                result => result?,
            }
        }
        match missing {
            Some(error) => Err(error),
            None => self.restart(),
        }
    }

    fn restart(&mut self) -> Result<()> {
        self.wins = 0;
        self.run = Run::None;
        let (sources, backwards) = (&self.sources, self.backwards);
        self.tree.build(sources.len(), backwards, sources, |i| sources[i].order(backwards));
        self.position(false)
    }

    /// Makes the winner current, after positioning sources whose bound has won.
    #[inline]
    fn position(&mut self, same_key: bool) -> Result<()> {
        self.same_key = same_key;
        self.current = self.tree.winner();
        match self.current {
            Some(winner) if self.sources[winner].waiting => self.wake(winner),
            _ => Ok(()),
        }
    }

    #[cold]
    fn wake(&mut self, mut winner: usize) -> Result<()> {
        self.current = None;
        if !std::mem::take(&mut self.run_ended) {
            self.last = self.tree.base();
        }
        self.wake_failed = true;
        loop {
            let source = &mut self.sources[winner];
            self.tree.remember_winner(&source.bound);
            source.cursor.seek(&source.bound)?;
            source.waiting = false;
            self.replace_winner(winner);
            self.same_key &= self.tree.winner_equals_base();
            match self.tree.winner() {
                Some(next) if self.sources[next].waiting => winner = next,
                other => {
                    self.wake_failed = false;
                    self.current = other;
                    return Ok(());
                }
            }
        }
    }

    #[inline]
    fn advance(&mut self, current: usize, backwards: bool) -> Result<()> {
        self.current = None;
        if !matches!(self.run, Run::None) {
            return self.run_on(current, backwards);
        }
        let source = &mut self.sources[current];
        if let Some(entry) = source.cursor.entry() {
            self.tree.remember_winner(entry.key);
            if self.wins >= WINS_OF_RUN {
                self.start_run();
                return self.run_on(current, backwards);
            }
        }
        step(&mut source.cursor, backwards)?;
        self.run_ended = false;
        self.replace_winner(current);
        self.wins = if self.tree.winner() == Some(current) { self.wins + 1 } else { 0 };
        self.position(self.tree.winner_equals_base())
    }

    /// The winner's key is the tournament's base.
    #[cold]
    fn start_run(&mut self) {
        self.run = match self.tree.runner_up(&self.sources) {
            Some(next) => Run::Until(self.sources.key(next).to_vec()),
            None => Run::ToEnd,
        };
    }

    /// Advances one entry in a run.
    #[inline]
    fn run_on(&mut self, current: usize, backwards: bool) -> Result<()> {
        let cursor = &mut self.sources[current].cursor;
        self.last.clear();
        if let Some(entry) = cursor.entry() {
            self.last.extend_from_slice(entry.key);
        }
        step(cursor, backwards)?;
        if let Some(entry) = cursor.entry() {
            let goes_on = match &self.run {
                Run::Until(limit) if backwards => *entry.key > **limit,
                Run::Until(limit) => *entry.key < **limit,
                Run::None | Run::ToEnd => true,
            };
            if goes_on {
                self.same_key = *entry.key == *self.last;
                self.current = Some(current);
                return Ok(());
            }
        }
        self.wins = 0;
        self.run = Run::None;
        self.run_ended = true;
        self.replace_winner(current);
        // If the run advanced at all, its last key is before the limit, so neither another key nor
        // the base equals it.
        self.position(self.tree.winner_equals_base())
    }

    #[inline]
    fn replace_winner(&mut self, winner: usize) {
        let entry = self.sources[winner].cursor.entry();
        let moved_to = entry.map(|entry| (entry.key, rank(entry, self.backwards)));
        self.tree.replace_winner(&self.sources, moved_to);
    }

    /// Reverses every source to the other side of the current entry.
    #[cold]
    fn turn(&mut self, current: usize, backwards: bool) -> Result<()> {
        self.current = None;
        self.backwards = backwards;
        let key = match self.sources[current].cursor.entry() {
            Some(entry) => entry.key.to_vec(),
            None => Vec::new(),
        };
        for source in &mut self.sources {
            let cursor = &mut source.cursor;
            match (source.waiting, cursor.entry().is_some(), backwards) {
                // It holds nothing between the sought key and its bound, and the current key is
                // there.
                (true, ..) => cursor.seek_before(&key)?,
                (false, true, true) => cursor.prev()?,
                (false, true, false) => cursor.next()?,
                (false, false, true) => cursor.seek_last()?,
                (false, false, false) => cursor.seek_first()?,
            }
            source.waiting = false;
        }
        self.restart()?;
        self.same_key = self.entry().is_some_and(|entry| entry.key == key);
        Ok(())
    }
}

#[inline]
fn step<C: Cursor>(cursor: &mut C, backwards: bool) -> Result<()> {
    if backwards { cursor.prev() } else { cursor.next() }
}

impl<C: MergeSource> Cursor for MergeIterator<C> {
    fn seek_first(&mut self) -> Result<()> {
        self.seek_all(false, None, C::seek_first)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.seek_all(true, None, C::seek_last)
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.seek_all(false, Some(key), |cursor| cursor.seek(key))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.seek_all(true, None, |cursor| cursor.seek_before(key))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        match self.current {
            Some(current) if self.backwards => self.turn(current, false),
            Some(current) => self.advance(current, false),
            None => Ok(()),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        match self.current {
            Some(current) if !self.backwards => self.turn(current, true),
            Some(current) => self.advance(current, true),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.sources.get(self.current?)?.cursor.entry()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::test_support::{Entry, ListCursor, arb_history, split};
    use super::*;
    use crate::base::entry::EntryKind;

    fn merge(lists: Vec<Vec<Entry>>, lazy: &[bool]) -> MergeIterator<ListCursor> {
        let lazy = lazy.iter().copied().cycle();
        MergeIterator::new(
            lists.into_iter().zip(lazy).map(|(l, z)| ListCursor::new(l, z)).collect(),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]
        #[test]
        fn any_walk_agrees_with_the_sorted_list(
            history in arb_history(0..40),
            sources in 1usize..6,
            lazy in prop::collection::vec(any::<bool>(), 1..4),
            walk in prop::collection::vec((0u8..10, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut list = history.clone();
            list.sort_by(|a, b| a.order().cmp(&b.order()));
            let mut merged = merge(split(&history, sources), &lazy);
            let mut at: Option<usize> = None;
            for (step, index) in walk {
                let mut key = if list.is_empty() {
                    b"a".to_vec()
                } else {
                    index.get(&list).key.clone()
                };
                if step % 2 == 0 {
                    key.push(0);
                }
                let before = at.map(|at| list[at].key.clone());
                let mut stepped = false;
                match step {
                    0 => {
                        merged.seek_first().unwrap();
                        at = Some(0);
                    }
                    1 => {
                        merged.seek_last().unwrap();
                        at = list.len().checked_sub(1);
                    }
                    2 | 3 => {
                        merged.seek(&key).unwrap();
                        at = Some(list.partition_point(|e| e.key < key));
                    }
                    4 | 5 => {
                        merged.seek_before(&key).unwrap();
                        at = list.partition_point(|e| e.key < key).checked_sub(1);
                    }
                    6 | 7 => {
                        merged.next().unwrap();
                        at = at.map(|at| at + 1);
                        stepped = true;
                    }
                    _ => {
                        merged.prev().unwrap();
                        at = at.and_then(|at| at.checked_sub(1));
                        stepped = true;
                    }
                }
                at = at.filter(|&at| at < list.len());
                let expected = at.map(|at| list[at].clone());
                prop_assert_eq!(merged.entry().map(Entry::from), expected.clone());
                if let (true, Some(before), Some(now)) = (stepped, before, expected) {
                    prop_assert_eq!(merged.same_key(), before == now.key);
                }
            }
        }
    }

    fn puts(keys: &[&str]) -> Vec<Entry> {
        keys.iter().map(|key| Entry::new(key.as_bytes(), 1, EntryKind::Put, b"")).collect()
    }

    #[test]
    fn a_source_with_a_bound_is_positioned_only_when_the_merge_gets_there() {
        let lists = vec![puts(&["b", "c", "d"]), puts(&["m", "n"]), puts(&["x"])];
        let mut merged = merge(lists, &[true]);
        merged.seek(b"a").unwrap();
        let seeks = |merged: &MergeIterator<ListCursor>| -> Vec<usize> {
            merged.sources().map(|cursor| cursor.seeks).collect()
        };
        merged.next().unwrap();
        merged.next().unwrap();
        assert_eq!(merged.entry().unwrap().key, b"d");
        assert_eq!(seeks(&merged), [1, 0, 0]);
        merged.next().unwrap();
        assert_eq!(merged.entry().unwrap().key, b"m");
        assert_eq!(seeks(&merged), [1, 1, 0]);
        merged.prev().unwrap();
        assert_eq!(merged.entry().unwrap().key, b"d");
    }

    #[test]
    fn equal_entries_come_from_the_newer_source_first_in_both_directions() {
        let entry = |value: &str| vec![Entry::new(b"k", 1, EntryKind::Put, value.as_bytes())];
        let mut merged = merge(vec![entry("new"), entry("old")], &[false]);
        merged.seek_first().unwrap();
        assert_eq!(merged.entry().unwrap().value, b"new");
        merged.next().unwrap();
        assert_eq!(merged.entry().unwrap().value, b"old");
        merged.seek_last().unwrap();
        assert_eq!(merged.entry().unwrap().value, b"old");
        merged.prev().unwrap();
        assert_eq!(merged.entry().unwrap().value, b"new");
    }
}
