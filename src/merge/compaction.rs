//! `CompactionIterator`: the entries that a compaction keeps.
//!
//! Live snapshots divide the sequence numbers into *stripes*. Stripe 0 reaches up to the oldest
//! snapshot; the last stripe starts after the newest. No reader can distinguish two versions of a
//! key in one stripe, so a compaction keeps only what is visible at the end of each stripe.
//!
//! Invariants:
//! 1. Output is in entry order, and its sequence numbers are those of input versions of the same
//!    key.
//! 2. Within a stripe a key keeps at most one put or delete, below its newer operands, if any.
//! 3. A tombstone is dropped only if no version below it survives, here or elsewhere (`Bottom`).
//! 4. The first version of a key, if it is a put, is returned without a copy.
//! 5. A failed operator loses nothing: its operands are kept, and readers of the key receive the
//!    error.
//! 6. At most `FoldLimits::fold_bytes_max` bytes, plus one entry, of one key are gathered at a
//!    time. Operands beyond that are returned before older versions are examined.
//! 7. What a range delete deletes for every snapshot is dropped, but for tombstones: an index of versions (`slm`) has to know
//!    what has superseded an older one that a snapshot needs.

use super::loser_tree::{Keys, LoserTree};
use super::operands::{MergeContext, refuse_range_delete};
use super::range_deletes::Cover;
use super::versions::{FoldLimits, Versions};
use crate::base::entry::{EntryKind, EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};

/// See [`Bottom::Ask`].
pub(crate) type AskBottom = Box<dyn FnMut(&[u8], EntryKind) -> bool + Send>;

/// Whether versions of a key that are older than the inputs' may exist outside the inputs.
pub(crate) enum Bottom {
    /// They may, of any key.
    Never,
    /// They do not, of any key.
    Always,
    /// Asked for a key and the kind of its oldest version, a tombstone or an operand: true if there are none below.
    Ask(AskBottom),
}

impl Bottom {
    fn is_bottom(&mut self, key: &[u8], kind: EntryKind) -> bool {
        match self {
            Bottom::Never => false,
            Bottom::Always => true,
            Bottom::Ask(ask) => ask(key, kind),
        }
    }
}

/// The options of a compaction.
pub(crate) struct CompactionOptions {
    /// The live snapshots, ascending.
    pub(crate) snapshots: Vec<Seqno>,
    pub(crate) bottom: Bottom,
    /// The range deletes that are durable. What no snapshot sees for them is dropped.
    pub(crate) cover: Option<Box<Cover>>,
    /// How operands are folded. Without an operator they are kept unchanged.
    pub(crate) context: MergeContext,
    pub(crate) limits: FoldLimits,
}

/// The input so far. Bytes are those of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CompactionCounters {
    pub(crate) entries_in: u64,
    pub(crate) bytes_in: u64,
}

struct Sources<S>(Vec<S>);

/// The rank of an entry among those of its key: the newest comes first.
#[inline]
fn rank(entry: EntryRef<'_>) -> u64 {
    if planted(Bug::CompactKeepsOldest) { entry.seqno.0 } else { !entry.seqno.0 }
}

impl<S: EntrySource> Keys for Sources<S> {
    #[inline]
    fn key(&self, source: usize) -> &[u8] {
        self.0[source].entry().map_or(&[], |entry| entry.key)
    }
}

/// The stripe of a number.
#[inline]
fn stripe_of(snapshots: &[Seqno], seqno: Seqno) -> usize {
    snapshots.partition_point(|snapshot| *snapshot < seqno)
}

/// Whether range deletes delete a version for every snapshot that has it. See invariant 7.
#[inline]
fn is_hidden(cover: &mut Option<Box<Cover>>, snapshots: &[Seqno], entry: EntryRef<'_>) -> bool {
    let Some(cover) = cover else { return false };
    entry.kind != EntryKind::Delete
        && cover.hides(entry.key, entry.seqno, |seqno| stripe_of(snapshots, seqno))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first entry.
    New,
    /// Yielding the input's entry.
    Borrowed,
    /// Yielding an entry of `versions`; the input's entry has not been examined.
    Versions(usize),
    /// Past the last entry, or failed.
    Done,
}

/// Iterates over the entries to keep of several sources, by convention newest source first.
pub(crate) struct CompactionIterator<S> {
    sources: Sources<S>,
    tree: LoserTree,
    options: CompactionOptions,
    counters: CompactionCounters,
    state: State,
    /// The stripe of the last examined version of this key.
    stripe: usize,
    versions: Versions,
}

impl<S: EntrySource> CompactionIterator<S> {
    /// Compacts `sources`, each of which is before its first entry.
    pub(crate) fn new(sources: Vec<S>, options: CompactionOptions) -> Self {
        debug_assert!(options.snapshots.is_sorted());
        CompactionIterator {
            sources: Sources(sources),
            tree: LoserTree::default(),
            options,
            counters: CompactionCounters::default(),
            state: State::New,
            stripe: 0,
            versions: Versions::default(),
        }
    }

    /// The input so far, including the current entry.
    pub(crate) fn counters(&self) -> CompactionCounters {
        self.counters
    }

    fn start(&mut self) -> Result<()> {
        for source in &mut self.sources.0 {
            source.next()?;
        }
        let sources = &self.sources;
        self.tree
            .build(sources.0.len(), false, sources, |source| sources.0[source].entry().map(rank));
        Ok(())
    }

    /// The input's entry.
    #[inline]
    fn input(&self) -> Option<EntryRef<'_>> {
        self.sources.0.get(self.tree.winner()?)?.entry()
    }

    /// Advances to the input's next entry. Returns true if it has the same key.
    #[inline]
    fn advance(&mut self) -> Result<bool> {
        let Some(winner) = self.tree.winner() else { return Ok(false) };
        let source = &mut self.sources.0[winner];
        if let Some(entry) = source.entry() {
            self.tree.remember_winner(entry.key);
        }
        source.next()?;
        let entry = self.sources.0[winner].entry();
        let moved_to = entry.map(|entry| (entry.key, rank(entry)));
        self.tree.replace_winner(&self.sources, moved_to);
        Ok(self.tree.winner_equals_base())
    }

    /// Finds the next entry to keep, starting at the input's entry. `same_key` is whether that has
    /// the key of the version examined last.
    #[inline]
    fn find(&mut self, mut same_key: bool) -> Result<()> {
        loop {
            let Some(winner) = self.tree.winner() else { return Ok(()) };
            let Some(entry) = self.sources.0[winner].entry() else { return Ok(()) };
            let snapshots = &self.options.snapshots;
            let stripe = match snapshots.last() {
                None => 0,
                Some(newest) if *newest < entry.seqno => snapshots.len(),
                Some(_) => snapshots.partition_point(|snapshot| *snapshot < entry.seqno),
            };
            let bytes = (entry.key.len() + entry.value.len()) as u64;
            self.counters.entries_in += 1;
            self.counters.bytes_in += bytes;
            if same_key && stripe == self.stripe {
                same_key = self.advance()?;
                continue;
            }
            if is_hidden(&mut self.options.cover, snapshots, entry) {
                // The version examined last, if it is of this key, stays that.
                same_key &= self.advance()?;
                continue;
            }
            self.stripe = stripe;
            let keep = match entry.kind {
                EntryKind::Put | EntryKind::PutBlob => true,
                EntryKind::Delete if matches!(self.options.bottom, Bottom::Never) => true,
                EntryKind::Delete if stripe == 0 => {
                    if self.options.bottom.is_bottom(entry.key, entry.kind) {
                        same_key = self.advance()?;
                        continue;
                    }
                    true
                }
                EntryKind::Delete | EntryKind::Merge | EntryKind::MergeBlob => false,
                EntryKind::RangeDelete => return Err(refuse_range_delete(entry.key)),
            };
            if keep {
                self.state = State::Borrowed;
                return Ok(());
            }
            self.gather()?;
            if self.versions.is_empty() {
                same_key = false;
                continue;
            }
            self.state = State::Versions(0);
            return Ok(());
        }
    }

    /// Gathers the input's entry, which has been counted, and further versions of its key, and
    /// reduces them to what must be kept. If not all are gathered, the last one gathered is an
    /// operand.
    #[cold]
    fn gather(&mut self) -> Result<()> {
        let mut first = true;
        let mut more = false;
        while let Some(winner) = self.tree.winner() {
            let Some(entry) = self.sources.0[winner].entry() else { break };
            let snapshots = &self.options.snapshots;
            let stripe = stripe_of(snapshots, entry.seqno);
            let kind = entry.kind;
            if kind == EntryKind::RangeDelete {
                return Err(refuse_range_delete(entry.key));
            }
            if first {
                self.versions.start(entry.key);
            } else {
                self.counters.entries_in += 1;
                self.counters.bytes_in += (entry.key.len() + entry.value.len()) as u64;
            }
            first = false;
            let is_hidden = is_hidden(&mut self.options.cover, snapshots, entry);
            if !self.versions.supersedes(stripe) && !is_hidden {
                let own = entry.value.len() as u64;
                let blobs = self.options.context.blobs.as_ref().filter(|_| kind.is_blob());
                let bytes = blobs.and_then(|blobs| blobs.blob_bytes(entry.value)).unwrap_or(own);
                self.versions.push(entry.seqno, kind, stripe, entry.value, bytes);
            }
            more = self.advance()?;
            let full = self.versions.gathered_bytes() > self.options.limits.fold_bytes_max;
            if !more || (full && self.versions.ends_in_operand()) {
                break;
            }
        }
        let open = self.versions.open_end().filter(|_| !more);
        let bottom = open.is_some_and(|kind| {
            let (bottom, versions) = (&mut self.options.bottom, &self.versions);
            bottom.is_bottom(versions.key(), kind)
        });
        self.versions.reduce(&self.options.context, self.options.limits, bottom);
        Ok(())
    }
}

impl<S: EntrySource> EntrySource for CompactionIterator<S> {
    #[inline]
    fn next(&mut self) -> Result<()> {
        let same_key = match std::mem::replace(&mut self.state, State::Done) {
            State::New => {
                self.start()?;
                false
            }
            State::Borrowed => self.advance()?,
            State::Versions(index) if self.versions.entry(index + 1).is_some() => {
                self.state = State::Versions(index + 1);
                return Ok(());
            }
            State::Versions(_) => false,
            State::Done => return Ok(()),
        };
        self.find(same_key)
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        match self.state {
            State::Borrowed => self.input(),
            State::Versions(index) => self.versions.entry(index),
            State::New | State::Done => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::operator::{Append, MergeOperator, U64Add};
    use super::super::range_deletes::RangeDeletes;
    use super::super::test_support::{
        Entry, ListSource, arb_history, arb_range_deletes, context, split, visible, visible_beside,
    };
    use super::*;

    /// `Append`, but without partial merges.
    struct FullAppend;

    impl MergeOperator for FullAppend {
        fn name(&self) -> &str {
            "full_append"
        }
        fn full_merge(
            &self,
            key: &[u8],
            existing: Option<&[u8]>,
            operands: &[&[u8]],
        ) -> std::result::Result<Vec<u8>, String> {
            Append.full_merge(key, existing, operands)
        }
    }

    fn compact(
        inputs: Vec<Vec<Entry>>,
        options: CompactionOptions,
    ) -> (Vec<Entry>, CompactionCounters) {
        let sources = inputs.into_iter().map(ListSource::new).collect();
        let mut compaction = CompactionIterator::new(sources, options);
        let mut out = Vec::new();
        loop {
            compaction.next().unwrap();
            let Some(entry) = compaction.entry() else { break };
            out.push(Entry::from(entry));
        }
        compaction.next().unwrap();
        assert!(compaction.entry().is_none());
        (out, compaction.counters())
    }

    fn options(snapshots: &[u64], bottom: Bottom) -> CompactionOptions {
        CompactionOptions {
            snapshots: snapshots.iter().copied().map(Seqno).collect(),
            bottom,
            cover: None,
            context: context(),
            limits: FoldLimits { inline_bytes: 1000, fold_bytes_max: 1000, folds_operands: true },
        }
    }

    fn put(key: &str, seqno: u64, value: &str) -> Entry {
        Entry::new(key.as_bytes(), seqno, EntryKind::Put, value.as_bytes())
    }

    fn delete(key: &str, seqno: u64) -> Entry {
        Entry::new(key.as_bytes(), seqno, EntryKind::Delete, b"")
    }

    fn merge(key: &str, seqno: u64, value: &str) -> Entry {
        Entry::new(key.as_bytes(), seqno, EntryKind::Merge, value.as_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]
        #[test]
        fn every_snapshot_sees_what_it_saw(
            history in arb_history(0..60),
            deletes in arb_range_deletes(),
            beneath_count in 0usize..30,
            snapshots in prop::collection::btree_set(0u64..80, 0..5),
            sources in 1usize..6,
            bottom in 0u8..3,
            operator in 0u8..3,
            limits in 0u8..3,
        ) {
            // The oldest versions lie beneath the compaction, except at the bottom.
            let beneath_count = beneath_count.min(history.len());
            let (beneath, input) = history.split_at(beneath_count);
            let (beneath, input) = match bottom {
                0 => (beneath.to_vec(), input.to_vec()),
                1 => (Vec::new(), history.clone()),
                _ => (beneath.to_vec(), input.to_vec()),
            };
            let keys_beneath: BTreeSet<Vec<u8>> = beneath.iter().map(|e| e.key.clone()).collect();
            let bottom = match bottom {
                0 => Bottom::Never,
                1 => Bottom::Always,
                _ => Bottom::Ask(Box::new(move |key: &[u8], _| !keys_beneath.contains(key))),
            };
            let at_bottom = matches!(bottom, Bottom::Always);
            let operator: Option<Arc<dyn MergeOperator>> = match operator {
                0 => None,
                1 => Some(Arc::new(Append)),
                _ => Some(Arc::new(FullAppend)),
            };
            let has_operator = operator.is_some();
            // Everything may be folded, or little at a time, or what is short.
            let limits = match limits {
                0 => FoldLimits { inline_bytes: 1000, fold_bytes_max: 100_000, folds_operands: true },
                1 => FoldLimits { inline_bytes: 30, fold_bytes_max: 60, folds_operands: true },
                _ => FoldLimits { inline_bytes: 30, fold_bytes_max: 100_000, folds_operands: true },
            };
            let folds_all = has_operator && limits.fold_bytes_max == 100_000;
            let snapshots: Vec<Seqno> = snapshots.into_iter().map(Seqno).collect();
            let (out, counters) = compact(split(&input, sources), CompactionOptions {
                snapshots: snapshots.clone(),
                bottom,
                cover: Cover::new([Arc::new(RangeDeletes::of(&deletes))], Seqno::MAX),
                context: MergeContext { operator, ..context() },
                limits,
            });

            prop_assert!(out.is_sorted_by(|a, b| a.order() < b.order()));
            let before = [beneath.clone(), input.clone()].concat();
            let after = [beneath, out.clone()].concat();
            for snapshot in snapshots.iter().copied().chain([Seqno::MAX]) {
                let seen = |entries: &[Entry]| visible_beside(entries, &deletes, snapshot);
                prop_assert_eq!(seen(&before), seen(&after));
            }

            prop_assert_eq!(counters.entries_in, input.len() as u64);
            let bytes = |entries: &[Entry]| entries.iter().map(Entry::bytes).sum::<u64>();
            prop_assert_eq!(counters.bytes_in, bytes(&input));

            // A pointer is handed on as it was.
            for entry in out.iter().filter(|e| e.kind.is_blob()) {
                prop_assert!(input.iter().any(|e| e.kind == entry.kind && e.value == entry.value));
            }

            // No more than needed: a put or delete per key and stripe; nothing ends in a tombstone
            // at the bottom.
            let stripe = |e: &Entry| snapshots.partition_point(|s| s.0 < e.seqno);
            for pair in out.windows(2) {
                let same = pair[0].key == pair[1].key && stripe(&pair[0]) == stripe(&pair[1]);
                prop_assert!(!same || pair[0].kind.is_operand());
                prop_assert!(!same || !folds_all || pair[1].kind.is_operand());
            }
            if at_bottom {
                for (i, entry) in out.iter().enumerate() {
                    let oldest = out.get(i + 1).is_none_or(|next| next.key != entry.key);
                    prop_assert!(!oldest || entry.kind != EntryKind::Delete);
                    prop_assert!(!oldest || !folds_all || !entry.kind.is_operand());
                }
            }
        }
    }

    #[test]
    fn a_tombstone_goes_only_when_nothing_beneath_it_survives() {
        let versions = vec![delete("a", 5), put("a", 1, "x")];
        let run = |snapshots: &[u64], bottom| {
            compact(vec![versions.clone()], options(snapshots, bottom)).0
        };
        assert_eq!(run(&[], Bottom::Never), [delete("a", 5)]);
        assert_eq!(run(&[], Bottom::Always), []);
        assert_eq!(run(&[1], Bottom::Always), versions);
        assert_eq!(run(&[5], Bottom::Always), []);
        assert_eq!(run(&[0], Bottom::Always), []);
        assert_eq!(run(&[], Bottom::Ask(Box::new(|_, _| false))), [delete("a", 5)]);
        assert_eq!(run(&[], Bottom::Ask(Box::new(|_, _| true))), []);
    }

    #[test]
    fn operands_fold_over_what_their_stripe_holds() {
        let versions = vec![merge("a", 9, "d"), merge("a", 8, "c"), put("a", 3, "b")];
        let run = |snapshots: &[u64]| {
            compact(vec![versions.clone()], options(snapshots, Bottom::Never)).0
        };
        assert_eq!(run(&[]), [put("a", 9, "bcd")]);
        assert_eq!(run(&[5]), [merge("a", 9, "cd"), put("a", 3, "b")]);
        assert_eq!(run(&[8]), [merge("a", 9, "d"), put("a", 8, "bc")]);
        let dangling = vec![merge("a", 9, "d"), merge("a", 8, "c")];
        let run = |bottom| compact(vec![dangling.clone()], options(&[], bottom)).0;
        assert_eq!(run(Bottom::Never), [merge("a", 9, "cd")]);
        assert_eq!(run(Bottom::Always), [put("a", 9, "cd")]);
    }

    #[test]
    fn an_operator_that_fails_loses_nothing() {
        let versions = vec![merge("a", 9, "not a number"), put("a", 3, "nor this")];
        let mut options = options(&[], Bottom::Always);
        options.context.operator = Some(Arc::new(U64Add));
        assert_eq!(compact(vec![versions.clone()], options).0, versions);
    }

    /// 5,120 appends of 64 KiB to one key were folded into a value that was copied by every
    /// compaction: one that held the key took as long as all its appends together, until the value
    /// was larger than a page can be and compaction of the keyspace stopped for good.
    #[test]
    fn a_large_value_is_copied_only_for_what_is_half_as_large_again() {
        let limits =
            FoldLimits { inline_bytes: 100, fold_bytes_max: 1 << 30, folds_operands: true };
        let long = "x".repeat(1000);
        let pointer = |kind, seqno, value: &str| Entry::new(b"a", seqno, kind, value.as_bytes());
        let run = |versions: Vec<Entry>| {
            compact(vec![versions], CompactionOptions { limits, ..options(&[], Bottom::Never) }).0
        };
        let base = pointer(EntryKind::PutBlob, 1, &long);
        let few = vec![merge("a", 9, "d"), merge("a", 8, "c"), base.clone()];
        assert_eq!(run(few), [merge("a", 9, "cd"), base.clone()]);
        let half = "y".repeat(500);
        let many = vec![merge("a", 9, &half), merge("a", 8, "c"), base];
        assert_eq!(run(many), [put("a", 9, &format!("blob of {long}c{half}"))]);
        // Operands too.
        let old = pointer(EntryKind::MergeBlob, 3, &long);
        let young = pointer(EntryKind::MergeBlob, 4, &half);
        assert_eq!(run(vec![young.clone(), old.clone()]), [young.clone(), old.clone()]);
        let folded = merge("a", 5, &format!("blob of {long}blob of {half}{long}"));
        assert_eq!(run(vec![merge("a", 5, &long), young, old]), [folded]);
    }

    /// A fold's input has a bound: what is beyond it stays operands, and no more of them are in
    /// memory.
    #[test]
    fn what_is_too_large_to_be_folded_stays_operands() {
        let limits = FoldLimits { inline_bytes: 4000, fold_bytes_max: 1000, folds_operands: true };
        let part = "x".repeat(300);
        let operands: Vec<Entry> = (2..12).rev().map(|seqno| merge("a", seqno, &part)).collect();
        let versions = [operands, vec![put("a", 1, "base")]].concat();
        let options = CompactionOptions { limits, ..options(&[], Bottom::Always) };
        let (out, _) = compact(vec![versions.clone()], options);
        assert_eq!(visible(&versions, Seqno::MAX), visible(&out, Seqno::MAX));
        assert!(out.len() < 7 && out.iter().all(|entry| entry.value.len() <= 1300), "{out:?}");
        assert_eq!(out.last().map(|entry| entry.kind), Some(EntryKind::Put));
    }

    /// An operator that keeps operands is not given them, read from blob files, in each compaction
    /// anew.
    #[test]
    fn operands_in_blob_files_are_read_in_vain_once() {
        let mut options = options(&[], Bottom::Never);
        options.context.operator = Some(Arc::new(FullAppend));
        options.limits.inline_bytes = 0;
        let pointer =
            |key: &str, seqno| Entry::new(key.as_bytes(), seqno, EntryKind::MergeBlob, b"p");
        let versions: Vec<Entry> =
            ["a", "b"].iter().flat_map(|key| [pointer(key, 9), pointer(key, 8)]).collect();
        assert_eq!(compact(vec![versions.clone()], options).0, versions);
    }

    #[test]
    fn a_range_delete_is_refused_by_name() {
        for kinds in [vec![EntryKind::RangeDelete], vec![EntryKind::Merge, EntryKind::RangeDelete]]
        {
            let entries: Vec<Entry> = kinds
                .into_iter()
                .enumerate()
                .map(|(i, kind)| Entry::new(b"a", 9 - i as u64, kind, b"b"))
                .collect();
            let sources = vec![ListSource::new(entries)];
            let mut compaction = CompactionIterator::new(sources, options(&[], Bottom::Never));
            let error = compaction.next().unwrap_err();
            assert!(error.to_string().contains("range delete"), "{error}");
            assert!(compaction.entry().is_none());
        }
    }
}
