//! Opening a range: the cursors over all that may have its keys, and the pages that they need first.
//!
//! Invariants:
//! 1. The memory of cursors is counted before they copy leaves.

use super::{End, Inner, OpenRange, Run, RunCursor};
use crate::base::error::{Error, Result};
use crate::cache::fetch_misses;
use crate::merge::{MergeIterator, VisibleIterator};
use crate::store::state::ReadState;
use crate::tree::placed_pass::PlacedPass;
use crate::tree::{RangeAt, RangeRuns, TreeVersion};

/// So many cursors read their pages at once: more would not be faster, and all these pages are in memory beside those that
/// the cache has.
const SEEKS_AT_ONCE: usize = 32;
/// Memory of a cursor: mostly the copy of a leaf.
const CURSOR_BYTES: usize = 5 << 10;

impl Inner {
    pub(super) fn runs_at(&self, version: &dyn TreeVersion, at: RangeAt<'_>) -> Result<RangeRuns> {
        let range = version.runs_at(at, self.seqno());
        if range.advances(at) {
            return Ok(range);
        }
        let shown = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
        Err(Error::corruption(
            &self.store.manifest.path(),
            0,
            "bounds of a tree's leaves",
            format_args!("a leaf that leads on from {at:?}"),
            format_args!(
                "one from {} to {:?}",
                shown(&range.lower),
                range.upper.as_deref().map(shown)
            ),
        ))
    }

    /// Opens the range at the front's edge in the newest read state. Returns false at the end.
    pub(super) fn open_front(&mut self) -> Result<bool> {
        self.skip_gap(End::Front);
        let before = self.front.before.take();
        let from = &*self.front.edge;
        if self.back.edge.as_deref().is_some_and(|upper| from >= upper) {
            return Ok(false);
        }
        let read = self.keyspace.read.load_full();
        let range = self.runs_at(&*read.version, RangeAt::Key(from))?;
        let from = from.max(&*range.lower);
        let cursors = self.cursors(&read, &range, Some(from), before, true);
        self.charge(cursors.len());
        let from = (&*self.front.edge).max(&*range.lower);
        let mut visible = self.merge((&range, &read), cursors, End::Front);
        let sought = visible.seek(from);
        let RangeRuns { lower, upper, .. } = range;
        self.front.open = Some(Box::new(OpenRange { visible, lower, upper, read }));
        sought.map(|()| true)
    }

    /// Opens the range below the back's edge in the newest read state. Returns false at the end.
    pub(super) fn open_back(&mut self) -> Result<bool> {
        self.skip_gap(End::Back);
        let pass = self.back.before.take();
        let below = self.back.edge.as_deref();
        if below.is_some_and(|below| below <= &*self.front.edge) {
            return Ok(false);
        }
        let read = self.keyspace.read.load_full();
        let range = self.runs_at(&*read.version, RangeAt::Before(below))?;
        let cursors = self.cursors(&read, &range, below, pass, false);
        self.charge(cursors.len());
        let mut visible = self.merge((&range, &read), cursors, End::Back);
        let sought = visible.seek_last();
        let RangeRuns { lower, upper, .. } = range;
        self.back.open = Some(Box::new(OpenRange { visible, lower, upper, read }));
        sought.map(|()| true)
    }

    /// Counts so many more cursors, which are about to copy a leaf each, and sees to the memory. Without that, what threads open
    /// at once would be counted when it is there.
    fn charge(&mut self, cursors: usize) {
        let bytes = self.memory_bytes() + cursors * CURSOR_BYTES;
        self.recount(bytes);
        if self.store.open_iterators.wants_memory() {
            self.store.share_memory();
        }
    }

    /// Returns cursors over all memtables and runs that may have keys of a range, newest first. Reads the
    /// pages around `key` into the cache, those of all runs at once, level by level; in the forward
    /// direction also pages that are probably needed next. A run that begins after the key is opened when
    /// the merge reaches it. A read failure is reported by the cursor that needs the page, if any does.
    fn cursors(
        &self,
        read: &ReadState,
        range: &RangeRuns,
        key: Option<&[u8]>,
        mut before: Option<Box<PlacedPass>>,
        forward: bool,
    ) -> Vec<RunCursor> {
        let memtables = std::iter::once(&read.active).chain(&read.frozen);
        let mut cursors: Vec<RunCursor> = memtables
            .filter(|memtable| !memtable.memtable.is_empty())
            .map(|memtable| RunCursor::Memtable(Box::new(memtable.memtable.cursor())))
            .collect();
        let (is_careful, limit) = match forward {
            true => (self.front.careful, self.upper_ahead(range)),
            false => (self.back.careful, Some(self.lower_ahead(range))),
        };
        let is_ahead = |run: &&Run| match forward {
            true => {
                key.is_none_or(|key| run.last_key() >= key)
                    && limit.is_none_or(|limit| run.first_key() < limit)
            }
            false => {
                key.is_none_or(|key| run.first_key() < key)
                    && limit.is_none_or(|limit| run.last_key() >= limit)
            }
        };
        cursors.extend(range.runs.iter().filter(is_ahead).map(Run::cursor));
        if is_careful {
            cursors.iter_mut().for_each(|cursor| cursor.go_carefully(limit, forward));
            return cursors;
        }
        cursors.iter_mut().for_each(|cursor| cursor.go_on(&mut before, limit, forward));
        let Some(key) = key else { return cursors };
        let due: Vec<&mut RunCursor> =
            cursors.iter_mut().filter(|cursor| cursor.can_prefetch(key)).collect();
        if let [only] = &due[..]
            && !(forward && only.expects_more())
        {
            return cursors;
        }
        let upper = self.upper_within(range);
        let at_once = if self.store.switches.parallel_seeks { SEEKS_AT_ONCE } else { 1 };
        let mut due = due.into_iter();
        loop {
            let some: Vec<&mut RunCursor> = due.by_ref().take(at_once).collect();
            if some.is_empty() {
                break;
            }
            self.prefetch(some, key, upper, forward);
        }
        cursors
    }

    /// Reads the pages that cursors at `key` need first into the cache.
    fn prefetch(
        &self,
        mut due: Vec<&mut RunCursor>,
        key: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
    ) {
        // One round per level of the index, and one for the leaves.
        for _ in 0..8 {
            let mut misses = Vec::new();
            due.retain_mut(|cursor| {
                matches!(cursor.prefetch(key, upper, forward, &mut misses), Ok(false))
            });
            if misses.is_empty() {
                break;
            }
            let Ok(pages) = fetch_misses(misses) else { break };
            self.store.counters.pages_read.add(u64::from(pages));
        }
    }

    /// The end of the range, or of the iterator if that is nearer.
    pub(super) fn upper_within<'a>(&'a self, range: &'a RangeRuns) -> Option<&'a [u8]> {
        match (&self.back.edge, &range.upper) {
            (Some(own), Some(upper)) => Some((&**own).min(upper)),
            (own, upper) => own.as_deref().or(upper.as_deref()),
        }
    }

    /// The key at which the front's pass stops: a hole, the end of the range or the end of the iterator.
    pub(super) fn upper_ahead<'a>(&'a self, range: &'a RangeRuns) -> Option<&'a [u8]> {
        let hole = self.front.ahead.as_ref().map(|hole| &*hole.range.lower);
        match (self.upper_within(range), hole) {
            (Some(end), Some(hole)) => Some(end.min(hole)),
            (end, hole) => end.or(hole),
        }
    }

    /// The key at which the back's pass stops.
    pub(super) fn lower_ahead<'a>(&'a self, range: &'a RangeRuns) -> &'a [u8] {
        let hole = self.back.ahead.as_ref().and_then(|hole| hole.range.upper.as_deref());
        (&*self.front.edge).max(&*range.lower).max(hole.unwrap_or_default())
    }

    /// The part of a range that no pass had yielded when it was last opened, up to the first hole.
    fn merge(
        &self,
        (range, read): (&RangeRuns, &ReadState),
        cursors: Vec<RunCursor>,
        end: End,
    ) -> VisibleIterator<RunCursor> {
        let (lower, upper) = match end {
            End::Front => ((&*self.front.edge).max(&*range.lower), self.upper_ahead(range)),
            End::Back => (self.lower_ahead(range), self.upper_within(range)),
        };
        let mut visible = VisibleIterator::new(
            MergeIterator::new(cursors),
            self.seqno(),
            Some(lower),
            upper,
            self.keyspace.merge_of_scans.clone(),
        );
        visible.hide(read.cover(self.seqno()));
        if self.keys_only {
            visible.only_keys();
        }
        self.prepare(&mut visible);
        visible
    }
}
