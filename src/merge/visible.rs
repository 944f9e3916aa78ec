//! `VisibleIterator`: the view of a reader at one snapshot, key by key.
//!
//! Invariants:
//! 1. Forwards, a put is borrowed from its source, where the merge is positioned. Otherwise key and
//!    value are in the iterator's own buffers, and the merge is past all versions of the key
//!    (forwards) or at the entry before the versions that were read (backwards).
//! 2. No key outside `[lower, upper)` is returned, and no seek positions the merge outside.
//! 3. After an error there is no position; seek again. `Stopped` says where: all visible keys
//!    before it have been returned.
//! 4. A step that passes many dead entries pauses ([`VisibleIterator::pause_every`]), between two keys. Every key
//!    between the pair before and `paused_at` then has no visible pair.
//! 5. While `watches` is set, `newer` is the first key passed that has a put or a merge above the snapshot.

use super::iterator::{MergeIterator, MergeSource};
use super::operands::{Base, MergeContext, Operands, refuse_range_delete};
use super::range_deletes::Cover;
use crate::base::entry::{Cursor, EntryKind};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};

/// A visible pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VisibleRef<'a> {
    pub(crate) key: &'a [u8],
    /// The sequence number of its newest version.
    pub(crate) seqno: Seqno,
    /// `Put`, or `PutBlob` if `value` is a pointer that the caller has to resolve.
    pub(crate) kind: EntryKind,
    pub(crate) value: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No position.
    Nowhere,
    /// At the merge's entry.
    Borrowed,
    /// At `key` and `value`.
    Owned { seqno: Seqno, kind: EntryKind },
    /// No pair: a step has passed many dead entries, and continues when asked for the next pair.
    Paused,
}

/// Where a step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// While leaving this key, which has been returned.
    After,
    /// At or before this key, which has not been returned.
    Before,
    /// At this key's value: all its versions are in the buffers.
    AtValue,
}

/// The pairs visible at a snapshot, in both directions. A new iterator has no position.
pub(crate) struct VisibleIterator<C> {
    merge: MergeIterator<C>,
    snapshot: Seqno,
    lower: Option<Box<[u8]>>,
    upper: Option<Box<[u8]>>,
    context: MergeContext,
    state: State,
    backwards: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    operands: Operands,
    /// True if values are not asked for: operands are passed without being folded.
    keys_only: bool,
    /// Of `key`.
    stopped: Option<Stopped>,
    /// Dead entries passed: deletes, and what they hide.
    dead: u64,
    /// A step pauses after so many dead entries, at this sum of them.
    pause_every: u64,
    pause_at: u64,
    watches: bool,
    newer: Option<Box<[u8]>>,
    /// What range deletes delete.
    cover: Option<Box<Cover>>,
}

impl<C: MergeSource> VisibleIterator<C> {
    /// The visible entries of `merge` at `snapshot` in `[lower, upper)`.
    pub(crate) fn new(
        merge: MergeIterator<C>,
        snapshot: Seqno,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        context: MergeContext,
    ) -> VisibleIterator<C> {
        VisibleIterator {
            merge,
            snapshot,
            lower: lower.map(Box::from),
            upper: upper.map(Box::from),
            context,
            state: State::Nowhere,
            backwards: false,
            key: Vec::new(),
            value: Vec::new(),
            operands: Operands::default(),
            keys_only: false,
            stopped: None,
            dead: 0,
            pause_every: u64::MAX,
            pause_at: u64::MAX,
            watches: false,
            newer: None,
            cover: None,
        }
    }

    /// Hides what range deletes delete: those of the snapshot.
    pub(crate) fn hide(&mut self, cover: Option<Box<Cover>>) {
        self.cover = cover;
    }

    /// From now on, values are not asked for. A pair with operands has an empty value.
    pub(crate) fn only_keys(&mut self) {
        self.keys_only = true;
    }

    /// Makes steps and seeks pause after so many dead entries.
    pub(crate) fn pause_every(&mut self, entries: u64) {
        self.pause_every = entries;
        self.pause_at = self.dead.saturating_add(entries);
    }

    /// Returns true if the last step paused. `next` or `prev` continues it.
    pub(crate) fn is_paused(&self) -> bool {
        self.state == State::Paused
    }

    /// After a pause: the next key in the direction of the step, if there is one within the bounds. (The sources know
    /// nothing of what is outside.)
    pub(crate) fn paused_at(&self) -> Option<&[u8]> {
        let key = self.merge.entry().filter(|_| self.is_paused())?.key;
        let is_within = self.lower.as_ref().is_none_or(|lower| *key >= **lower)
            && self.upper.as_ref().is_none_or(|upper| *key < **upper);
        is_within.then_some(key)
    }

    /// The dead entries passed so far.
    pub(crate) fn dead(&self) -> u64 {
        self.dead
    }

    /// After a pause: the dead entries passed since the step began or continued.
    pub(crate) fn dead_in_step(&self) -> u64 {
        (self.dead + self.pause_every).saturating_sub(self.pause_at)
    }

    /// Remembers from now on the first key with a put or a merge above the snapshot.
    pub(crate) fn watch_newer(&mut self) {
        self.watches = true;
    }

    /// The first key with a put or a merge above the snapshot, if one was passed.
    pub(crate) fn newer(&self) -> Option<&[u8]> {
        self.newer.as_deref()
    }

    /// The bounds.
    pub(crate) fn bounds(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        (self.lower.as_deref(), self.upper.as_deref())
    }

    /// The place of the last error. `None` if it was an error of a seek, so that nothing has been
    /// passed.
    pub(crate) fn stopped(&self) -> Option<(&[u8], Stopped)> {
        self.stopped.map(|stopped| (&*self.key, stopped))
    }

    #[cold]
    fn stop(&mut self, error: Error, stopped: Stopped) -> Error {
        if self.stopped != Some(Stopped::AtValue) {
            self.key = self.merge.left_key();
            self.stopped = Some(stopped);
        }
        error
    }

    pub(crate) fn merge_mut(&mut self) -> &mut MergeIterator<C> {
        &mut self.merge
    }

    /// The merge beneath.
    pub(crate) fn merge(&self) -> &MergeIterator<C> {
        &self.merge
    }

    /// Memory used beside its sources.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bounds = [&self.lower, &self.upper].into_iter().flatten().map(|bound| bound.len());
        self.merge.memory_bytes()
            + self.key.capacity()
            + self.value.capacity()
            + self.operands.memory_bytes()
            + bounds.sum::<usize>()
    }

    /// The pair at the position, or `None` without one.
    #[inline(always)]
    pub(crate) fn current(&self) -> Option<VisibleRef<'_>> {
        match self.state {
            State::Nowhere | State::Paused => None,
            State::Borrowed => self.merge.entry().map(|entry| VisibleRef {
                key: entry.key,
                seqno: entry.seqno,
                kind: entry.kind,
                value: entry.value,
            }),
            State::Owned { seqno, kind } => {
                Some(VisibleRef { key: &self.key, seqno, kind, value: &self.value })
            }
        }
    }

    /// Goes to the last pair.
    pub(crate) fn seek_last(&mut self) -> Result<()> {
        self.state = State::Nowhere;
        self.seek_merge_last()?;
        self.resolve_backwards().map_err(|error| self.stop(error, Stopped::Before))
    }

    /// Seeks the first pair with a key `>= key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Nowhere;
        match &self.lower {
            Some(lower) if **lower > *key => self.merge.seek(lower)?,
            _ => self.merge.seek(key)?,
        }
        self.resolve_forwards().map_err(|error| self.stop(error, Stopped::Before))
    }

    /// Advances one pair. Beyond the last there is no position.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<()> {
        self.pause_at = self.dead.saturating_add(self.pause_every);
        match std::mem::replace(&mut self.state, State::Nowhere) {
            State::Nowhere => return Ok(()),
            State::Paused if self.backwards => self.turn_forwards()?,
            State::Paused => {}
            State::Borrowed => {
                self.skip_versions().map_err(|error| self.stop(error, Stopped::After))?;
            }
            State::Owned { .. } if self.backwards => self.turn_forwards()?,
            State::Owned { .. } => {}
        }
        self.resolve_forwards().map_err(|error| self.stop(error, Stopped::Before))
    }

    /// Steps back one pair. Before the first there is no position.
    pub(crate) fn prev(&mut self) -> Result<()> {
        if self.state == State::Nowhere {
            return Ok(());
        }
        self.pause_at = self.dead.saturating_add(self.pause_every);
        if !self.backwards {
            self.turn_backwards()?;
        }
        self.state = State::Nowhere;
        self.resolve_backwards().map_err(|error| self.stop(error, Stopped::Before))
    }

    fn seek_merge_last(&mut self) -> Result<()> {
        match &self.upper {
            Some(upper) => self.merge.seek_before(upper),
            None => self.merge.seek_last(),
        }
    }

    /// Moves from any version of a key to the next key.
    #[inline]
    fn skip_versions(&mut self) -> Result<()> {
        loop {
            self.merge.next()?;
            if !self.merge.same_key() {
                return Ok(());
            }
        }
    }

    /// Passes a delete and all that it hides. Returns true if the step pauses.
    #[inline]
    fn skip_dead(&mut self) -> Result<bool> {
        loop {
            self.dead += 1;
            self.merge.next()?;
            if !self.merge.same_key() {
                return Ok(self.pause_if_due());
            }
        }
    }

    /// Pauses if the step has passed many dead entries. The merge is between two keys.
    #[inline]
    fn pause_if_due(&mut self) -> bool {
        let is_due = self.dead >= self.pause_at;
        if is_due {
            self.state = State::Paused;
        }
        is_due
    }

    /// Remembers a key that has a put or a merge above the snapshot.
    #[cold]
    fn note_newer(&mut self) {
        if self.newer.is_none() {
            self.newer = self.merge.entry().map(|entry| Box::from(entry.key));
        }
    }

    /// Finds the first visible pair from the merge's entry on, which is the first of its key.
    #[inline(always)]
    fn resolve_forwards(&mut self) -> Result<()> {
        self.backwards = false;
        loop {
            let Some(entry) = self.merge.entry() else { return Ok(()) };
            if self.upper.as_ref().is_some_and(|upper| *entry.key >= **upper) {
                return Ok(());
            }
            if entry.seqno > self.snapshot {
                if self.watches && entry.kind != EntryKind::Delete {
                    self.note_newer();
                }
                self.merge.next()?;
                continue;
            }
            if let Some(cover) = &mut self.cover
                && cover.deletes(entry.key, entry.seqno)
            {
                // All older versions are deleted too.
                if self.skip_dead()? {
                    return Ok(());
                }
                continue;
            }
            match entry.kind {
                EntryKind::Put | EntryKind::PutBlob => {
                    self.state = State::Borrowed;
                    return Ok(());
                }
                EntryKind::Delete => {
                    if self.skip_dead()? {
                        return Ok(());
                    }
                }
                EntryKind::Merge | EntryKind::MergeBlob => return self.fold_forwards(),
                EntryKind::RangeDelete => return Err(refuse_range_delete(entry.key)),
            }
        }
    }

    /// Folds the operands from the merge's entry on, and passes all versions of the key.
    fn fold_forwards(&mut self) -> Result<()> {
        let Some(first) = self.merge.entry() else { return Ok(()) };
        let seqno = first.seqno;
        self.key.clear();
        self.key.extend_from_slice(first.key);
        self.operands.clear();
        if self.keys_only {
            self.value.clear();
            self.skip_versions()?;
            self.state = State::Owned { seqno, kind: EntryKind::Put };
            return Ok(());
        }
        let value = loop {
            let base = match self.merge.entry() {
                Some(entry)
                    if let Some(cover) = &mut self.cover
                        && cover.deletes(entry.key, entry.seqno)
                        && !planted(Bug::RangeDeleteNotForOperands) =>
                {
                    Base::Nothing
                }
                Some(entry) if entry.kind.is_operand() => {
                    self.operands.push(entry.value, entry.kind.is_blob());
                    self.merge.next()?;
                    if self.merge.same_key() {
                        continue;
                    }
                    Base::Nothing
                }
                Some(entry) => match entry.kind {
                    EntryKind::Put => Base::Value(entry.value),
                    EntryKind::PutBlob => Base::Blob(entry.value),
                    EntryKind::Delete | EntryKind::Merge | EntryKind::MergeBlob => Base::Nothing,
                    EntryKind::RangeDelete => return Err(refuse_range_delete(entry.key)),
                },
                None => Base::Nothing,
            };
            let folded = self.operands.fold(&self.context, &self.key, base, true);
            break folded.inspect_err(|_| self.stopped = Some(Stopped::AtValue))?;
        };
        self.value = value;
        // The merge is at the base, or already past the key.
        if self.merge.entry().is_some_and(|entry| entry.key == &self.key[..]) {
            self.skip_versions()?;
        }
        self.state = State::Owned { seqno, kind: EntryKind::Put };
        Ok(())
    }

    /// Finds the last visible pair before the merge's entry, inclusive, which is the oldest version
    /// of a key.
    fn resolve_backwards(&mut self) -> Result<()> {
        self.backwards = true;
        loop {
            let Some(entry) = self.merge.entry() else { return Ok(()) };
            if self.lower.as_ref().is_some_and(|lower| *entry.key < **lower) {
                return Ok(());
            }
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            self.operands.clear();
            let mut base = None;
            let mut newest = entry.seqno;
            let mut versions = 0;
            while let Some(entry) = self.merge.entry() {
                if entry.seqno <= self.snapshot || planted(Bug::ReverseReadsNewest) {
                    versions += 1;
                    newest = entry.seqno;
                    let is_deleted = self
                        .cover
                        .as_mut()
                        .is_some_and(|cover| cover.deletes(entry.key, entry.seqno));
                    match entry.kind {
                        _ if is_deleted => {
                            base = None;
                            self.operands.clear();
                        }
                        EntryKind::Put | EntryKind::PutBlob => {
                            base = Some(entry.kind);
                            self.value.clear();
                            self.value.extend_from_slice(entry.value);
                            self.operands.clear();
                        }
                        EntryKind::Delete => {
                            base = None;
                            self.operands.clear();
                        }
                        EntryKind::Merge | EntryKind::MergeBlob => {
                            self.operands.push(entry.value, entry.kind.is_blob());
                        }
                        EntryKind::RangeDelete => return Err(refuse_range_delete(entry.key)),
                    }
                } else if self.watches && entry.kind != EntryKind::Delete {
                    self.note_newer();
                }
                self.merge.prev()?;
                if !self.merge.same_key() {
                    break;
                }
            }
            if self.keys_only && (base.is_some() || !self.operands.is_empty()) {
                self.value.clear();
                self.state = State::Owned { seqno: newest, kind: EntryKind::Put };
                return Ok(());
            }
            if !self.operands.is_empty() {
                let base = match base {
                    Some(EntryKind::PutBlob) => Base::Blob(&self.value),
                    Some(_) => Base::Value(&self.value),
                    None => Base::Nothing,
                };
                let folded = self.operands.fold(&self.context, &self.key, base, false);
                self.value = folded.inspect_err(|_| self.stopped = Some(Stopped::AtValue))?;
                self.state = State::Owned { seqno: newest, kind: EntryKind::Put };
                return Ok(());
            }
            if let Some(kind) = base {
                self.state = State::Owned { seqno: newest, kind };
                return Ok(());
            }
            self.dead += versions;
            if self.pause_if_due() {
                return Ok(());
            }
        }
    }

    /// From backwards at `key` to the first entry after it.
    #[cold]
    fn turn_forwards(&mut self) -> Result<()> {
        match (self.merge.entry().is_some(), &self.lower) {
            (true, _) => {}
            (false, Some(lower)) => self.merge.seek(lower)?,
            (false, None) => self.merge.seek_first()?,
        }
        while self.merge.entry().is_some_and(|entry| *entry.key <= *self.key) {
            self.merge.next()?;
        }
        Ok(())
    }

    /// From forwards at the current key to the last entry before it.
    #[cold]
    fn turn_backwards(&mut self) -> Result<()> {
        let was_paused = self.state == State::Paused;
        if (self.state == State::Borrowed || was_paused)
            && let Some(entry) = self.merge.entry()
        {
            self.key.clear();
            self.key.extend_from_slice(entry.key);
        } else if was_paused {
            // Paused past the last entry.
            self.state = State::Nowhere;
            return self.seek_merge_last();
        }
        self.state = State::Nowhere;
        if self.merge.entry().is_none() {
            self.seek_merge_last()?;
        }
        while self.merge.entry().is_some_and(|entry| *entry.key >= *self.key) {
            self.merge.prev()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::operator::U64Add;
    use super::super::range_deletes::RangeDeletes;
    use super::super::test_support::{
        Entry, ListCursor, arb_history, arb_range_deletes, blob, context, split, visible_beside,
    };
    use super::*;

    impl<C: MergeSource> VisibleIterator<C> {
        /// Goes to the first pair.
        fn seek_first(&mut self) -> Result<()> {
            self.state = State::Nowhere;
            match &self.lower {
                Some(lower) => self.merge.seek(lower)?,
                None => self.merge.seek_first()?,
            }
            self.resolve_forwards()
        }

        /// Seeks the last pair with a key `< key`.
        fn seek_before(&mut self, key: &[u8]) -> Result<()> {
            self.state = State::Nowhere;
            match &self.upper {
                Some(upper) if **upper < *key => self.merge.seek_before(upper)?,
                _ => self.merge.seek_before(key)?,
            }
            self.resolve_backwards()
        }
    }

    fn pair(iterator: &VisibleIterator<ListCursor>) -> Option<(Vec<u8>, Vec<u8>)> {
        let found = iterator.current()?;
        let value = match found.kind {
            EntryKind::PutBlob => blob(found.value),
            _ => found.value.to_vec(),
        };
        Some((found.key.to_vec(), value))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]
        #[test]
        fn any_walk_agrees_with_the_model(
            history in arb_history(0..50),
            deletes in arb_range_deletes(),
            snapshot in 0u64..100,
            sources in 1usize..5,
            lazy in any::<bool>(),
            bounds in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            walk in prop::collection::vec((0u8..14, any::<prop::sample::Index>()), 1..60),
            pause in prop::option::of(1u64..4),
        ) {
            let keys: Vec<Vec<u8>> = history.iter().map(|e| e.key.clone()).chain([vec![]]).collect();
            let lower = bounds.first().filter(|_| bounds.len() != 2).map(|i| i.get(&keys).clone());
            let upper = bounds.get(1).map(|i| i.get(&keys).clone());
            let model: Vec<(Vec<u8>, Vec<u8>)> = visible_beside(&history, &deletes, Seqno(snapshot))
                .into_iter()
                .filter(|(key, _)| lower.as_ref().is_none_or(|lower| key >= lower))
                .filter(|(key, _)| upper.as_ref().is_none_or(|upper| key < upper))
                .collect();
            let cursors = split(&history, sources).into_iter().map(|l| ListCursor::new(l, lazy));
            let mut iterator = VisibleIterator::new(
                MergeIterator::new(cursors.collect()),
                Seqno(snapshot),
                lower.as_deref(),
                upper.as_deref(),
                context(),
            );
            let map = Arc::new(RangeDeletes::of(&deletes));
            iterator.hide(Cover::new([map], Seqno(snapshot)));
            if let Some(entries) = pause {
                iterator.pause_every(entries);
                iterator.watch_newer();
            }
            let mut at: Option<usize> = None;
            for (step, index) in walk {
                let mut key = index.get(&keys).clone();
                if step % 2 == 0 {
                    key.push(0);
                }
                match step {
                    0 => {
                        iterator.seek_first().unwrap();
                        at = Some(0);
                    }
                    1 => {
                        iterator.seek_last().unwrap();
                        at = model.len().checked_sub(1);
                    }
                    2 | 3 => {
                        iterator.seek(&key).unwrap();
                        at = Some(model.partition_point(|(k, _)| *k < key));
                    }
                    4 | 5 => {
                        iterator.seek_before(&key).unwrap();
                        at = model.partition_point(|(k, _)| *k < key).checked_sub(1);
                    }
                    6..10 => {
                        iterator.next().unwrap();
                        at = at.map(|at| at + 1);
                    }
                    _ => {
                        iterator.prev().unwrap();
                        at = at.and_then(|at| at.checked_sub(1));
                    }
                }
                at = at.filter(|&at| at < model.len());
                while iterator.is_paused() {
                    prop_assert_eq!(pair(&iterator), None);
                    if let Some(paused_at) = iterator.paused_at() {
                        // All visible pairs that the step will find lie at or behind it.
                        let backwards = matches!(step, 1 | 4 | 5 | 10..);
                        let goes_on = at.is_none_or(|at| match backwards {
                            true => *model[at].0 <= *paused_at,
                            false => *model[at].0 >= *paused_at,
                        });
                        prop_assert!(goes_on, "a visible pair was passed before the pause");
                        prop_assert!(lower.as_deref().is_none_or(|lower| lower <= paused_at));
                        prop_assert!(upper.as_deref().is_none_or(|upper| upper > paused_at));
                    }
                    match step {
                        1 | 4 | 5 | 10.. => iterator.prev().unwrap(),
                        _ => iterator.next().unwrap(),
                    }
                }
                prop_assert_eq!(pair(&iterator), at.map(|at| model[at].clone()));
            }
        }
    }

    fn open(entries: Vec<Entry>, context: MergeContext) -> VisibleIterator<ListCursor> {
        let merge = MergeIterator::new(vec![ListCursor::new(entries, false)]);
        VisibleIterator::new(merge, Seqno::MAX, None, None, context)
    }

    #[test]
    fn the_newest_visible_version_gives_the_sequence_number() {
        let entries = vec![
            Entry::new(b"a", 9, EntryKind::Merge, b"2"),
            Entry::new(b"a", 4, EntryKind::Put, b"1"),
            Entry::new(b"b", 7, EntryKind::Put, b"1"),
        ];
        let mut iterator = open(entries, context());
        iterator.seek_first().unwrap();
        assert_eq!(iterator.current().unwrap().seqno, Seqno(9));
        iterator.next().unwrap();
        assert_eq!(iterator.current().unwrap().seqno, Seqno(7));
        iterator.prev().unwrap();
        assert_eq!(iterator.current().unwrap().seqno, Seqno(9));
    }

    #[test]
    fn what_cannot_be_folded_is_an_error_and_leaves_no_position() {
        let operand = vec![Entry::new(b"a", 9, EntryKind::Merge, b"2")];
        let blob = [operand.clone(), vec![Entry::new(b"a", 4, EntryKind::PutBlob, b"p")]].concat();
        let range = vec![Entry::new(b"a", 9, EntryKind::RangeDelete, b"2")];
        let add = MergeContext { operator: Some(Arc::new(U64Add)), ..MergeContext::default() };
        let cases = [
            (operand.clone(), MergeContext::default(), "not registered"),
            (operand, add.clone(), "operand has 1 bytes"),
            (blob, add, "blob file"),
            (range, context(), "range delete"),
        ];
        for (entries, context, expected) in cases {
            let mut iterator = open(entries, context);
            let error = iterator.seek_first().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(iterator.current(), None);
            let error = iterator.seek_last().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(iterator.current(), None);
        }
    }
}
