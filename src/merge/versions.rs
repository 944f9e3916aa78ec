//! The versions of one key that a compaction has gathered, and their reduction.
//!
//! Invariants:
//! 1. A fold is worth its cost. Where everything is in pages, which a compaction copies anyway, all
//!    possible folds are made. Bytes in blob files are copied by a fold only into something at
//!    least half as large again. Folds therefore copy an operand's bytes a number of times that is
//!    logarithmic in the size of the value.
//! 2. No fold has more input than `FoldLimits::fold_bytes_max`. Operands beyond that stay operands.
//! 3. A failed fold, whatever the reason, leaves the versions unchanged.

use super::operands::{Base, MergeContext, Operand, fold, partial_merge};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};

/// The cost of an entry besides its bytes: operands without bytes are worth folding too.
const ENTRY_BYTES: u64 = 16;

/// The limits of folds in a compaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoldLimits {
    /// Shorter values are stored in pages.
    pub(crate) inline_bytes: u64,
    /// The largest input of one fold.
    pub(crate) fold_bytes_max: u64,
    /// Operands are also folded into one another, not only over a value.
    pub(crate) folds_operands: bool,
}

#[derive(Debug)]
struct Version {
    seqno: Seqno,
    kind: EntryKind,
    stripe: usize,
    value: Value,
    /// Length of the value, also of one in a blob file.
    bytes: u64,
}

impl Version {
    fn cost(&self) -> u64 {
        self.bytes + ENTRY_BYTES
    }
}

#[derive(Debug)]
enum Value {
    /// `bytes[start..end]`.
    Gathered { start: usize, end: usize },
    /// What an operator made.
    Made(Vec<u8>),
}

/// A group of adjacent operands that are folded into one.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The oldest is the one before this place.
    end: usize,
    operands: usize,
    cost: u64,
    /// Whether all of them, and the result, are in pages.
    inline: bool,
}

/// Versions of one key, newest first, in reused buffers.
#[derive(Debug, Default)]
pub(super) struct Versions {
    key: Vec<u8>,
    bytes: Vec<u8>,
    list: Vec<Version>,
    /// The operator did not fold two operands that were read from blob files. No more are read in
    /// this compaction.
    keeps_operands: bool,
}

impl Versions {
    /// Clears everything and begins a key.
    pub(super) fn start(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.bytes.clear();
        self.list.clear();
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes of the values gathered.
    pub(super) fn gathered_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether the gathered versions hide an older version in `stripe`.
    pub(super) fn supersedes(&self, stripe: usize) -> bool {
        self.list.last().is_some_and(|last| last.stripe == stripe && !last.kind.is_operand())
    }

    /// Whether the oldest version gathered is an operand, so that the next older one matters.
    pub(super) fn ends_in_operand(&self) -> bool {
        self.list.last().is_some_and(|last| last.kind.is_operand())
    }

    /// Adds the next older version. `bytes` is the length of the value, also if it is in a blob
    /// file.
    pub(super) fn push(
        &mut self,
        seqno: Seqno,
        kind: EntryKind,
        stripe: usize,
        value: &[u8],
        bytes: u64,
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let value = Value::Gathered { start, end: self.bytes.len() };
        self.list.push(Version { seqno, kind, stripe, value, bytes });
    }

    /// The kind of the oldest version, if what is below that matters.
    pub(super) fn open_end(&self) -> Option<EntryKind> {
        let kind = self.list.last()?.kind;
        (kind.is_operand() || kind == EntryKind::Delete).then_some(kind)
    }

    /// The version at `index`, newest first.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<EntryRef<'_>> {
        let version = self.list.get(index)?;
        let value = value_of(&self.bytes, version);
        Some(EntryRef { key: &self.key, seqno: version.seqno, kind: version.kind, value })
    }

    /// Folds operands within their stripes and drops tombstones with nothing below. `bottom` means
    /// that no older version exists.
    pub(super) fn reduce(&mut self, context: &MergeContext, limits: FoldLimits, bottom: bool) {
        if bottom {
            while self.list.last().is_some_and(|last| last.kind == EntryKind::Delete) {
                self.list.pop();
            }
        }
        if context.operator.is_none() {
            return;
        }
        // From the oldest stripe to the newest.
        let mut end = self.list.len();
        while let Some(last) = end.checked_sub(1) {
            let stripe = self.list[last].stripe;
            let newer = self.list[..end].iter().rposition(|v| v.stripe != stripe);
            let start = newer.map_or(0, |newer| newer + 1);
            let nothing_beneath = bottom && end == self.list.len();
            self.reduce_stripe(context, limits, start, end, nothing_beneath);
            end = start;
        }
    }

    /// Folds the operands at the front of `list[start..end]`, one stripe, over the versions after
    /// them.
    fn reduce_stripe(
        &mut self,
        context: &MergeContext,
        limits: FoldLimits,
        start: usize,
        end: usize,
        nothing_beneath: bool,
    ) {
        let last = &self.list[end - 1];
        let mut operands_end = if last.kind.is_operand() { end } else { end - 1 };
        if operands_end == start {
            return;
        }
        let base_bytes = match last.kind {
            EntryKind::Put | EntryKind::PutBlob => Some(last.bytes),
            EntryKind::Delete => Some(0),
            EntryKind::Merge | EntryKind::MergeBlob => nothing_beneath.then_some(0),
            EntryKind::RangeDelete => None,
        };
        if let Some(base_bytes) = base_bytes
            && let Some(from) = self.worth_folding(limits, start, operands_end, base_bytes)
            && let Some(value) = self.fold_over_base(context, from, operands_end, end)
        {
            self.list[from].kind = EntryKind::Put;
            self.list[from].bytes = value.len() as u64;
            self.list[from].value = Value::Made(value);
            self.list.drain(from + 1..end);
            operands_end = from;
        }
        if limits.folds_operands {
            self.fold_partially(context, limits, start, operands_end);
        }
    }

    /// The newest of the operands `list[start..end]` to be folded over a base of this size,
    /// together with all older ones: as many as the limits of one fold allow, if that is worth
    /// copying the base.
    fn worth_folding(
        &self,
        limits: FoldLimits,
        start: usize,
        end: usize,
        base_bytes: u64,
    ) -> Option<usize> {
        let (mut from, mut cost) = (end, 0);
        while from > start
            && base_bytes + cost + self.list[from - 1].cost() <= limits.fold_bytes_max
        {
            from -= 1;
            cost += self.list[from].cost();
        }
        let operands = &self.list[from..end];
        let all_inline =
            base_bytes < limits.inline_bytes && operands.iter().all(|v| !v.kind.is_blob());
        let worth = all_inline || cost * 2 >= base_bytes;
        (from < end && worth).then_some(from)
    }

    /// Folds the operands `list[from..operands_end]` over what is below them.
    fn fold_over_base(
        &self,
        context: &MergeContext,
        from: usize,
        operands_end: usize,
        end: usize,
    ) -> Option<Vec<u8>> {
        let base = match self.list[operands_end..end].last() {
            _ if planted(Bug::MergeBaseIgnored) => Base::Nothing,
            Some(base) => match base.kind {
                EntryKind::Put => Base::Value(value_of(&self.bytes, base)),
                EntryKind::PutBlob => Base::Blob(value_of(&self.bytes, base)),
                _ => Base::Nothing,
            },
            None => Base::Nothing,
        };
        let operands: Vec<Operand<'_>> = self.list[from..operands_end]
            .iter()
            .rev()
            .skip(usize::from(planted(Bug::CompactLosesOperand)))
            .map(|version| Operand {
                bytes: value_of(&self.bytes, version),
                is_blob: version.kind.is_blob() && !planted(Bug::MergeBlobOperandRaw),
            })
            .collect();
        fold(context, &self.key, base, &operands).ok()
    }

    /// Folds each group of operands of `list[start..end]` into one.
    fn fold_partially(
        &mut self,
        context: &MergeContext,
        limits: FoldLimits,
        start: usize,
        end: usize,
    ) {
        // From the oldest to the newest. Of two adjacent groups the older is finally the larger.
        let mut groups: Vec<Group> = Vec::new();
        for place in (start..end).rev() {
            let version = &self.list[place];
            let inline = !version.kind.is_blob();
            let mut newest = Group { end: place + 1, operands: 1, cost: version.cost(), inline };
            while let Some(&older) = groups.last() {
                let cost = older.cost + newest.cost;
                let inline = older.inline && newest.inline && cost < limits.inline_bytes;
                let worth = newest.cost >= older.cost && cost <= limits.fold_bytes_max;
                if !inline && !worth {
                    break;
                }
                groups.pop();
                let operands = older.operands + newest.operands;
                newest = Group { end: older.end, operands, cost, inline };
            }
            groups.push(newest);
        }
        // The oldest group is at the end of the list, so earlier positions do not change.
        for group in groups.into_iter().filter(|group| group.operands > 1) {
            self.fold_group(context, group.end - group.operands, group.end);
        }
    }

    /// Folds adjacent operands of `list[start..end]` pairwise as long as possible, so that each
    /// byte is copied a logarithmic number of times.
    fn fold_group(&mut self, context: &MergeContext, start: usize, end: usize) {
        let Some(mut read) = self.read_group(context, start, end) else { return };
        let Some(operator) = context.operator.as_deref() else { return };
        let rest = self.list.split_off(end);
        let versions = self.list.split_off(start);
        let mut operands: Vec<(Version, Option<Vec<u8>>)> =
            versions.into_iter().zip(read.drain(..)).collect();
        loop {
            let before = operands.len();
            let mut folded = Vec::with_capacity(before.div_ceil(2));
            let mut left = operands.into_iter().peekable();
            while let Some(mut newer) = left.next() {
                let value = left.peek().and_then(|older| {
                    let pair = [older, &newer].map(|operand| bytes_of(&self.bytes, operand));
                    let first = usize::from(planted(Bug::MergePartialSwapped));
                    partial_merge(operator, &self.key, pair[first], pair[1 - first])
                });
                if let Some(value) = value {
                    newer.0.kind = EntryKind::Merge;
                    newer.0.bytes = value.len() as u64;
                    newer.0.value = Value::Made(value);
                    newer.1 = None;
                    left.next();
                }
                folded.push(newer);
            }
            operands = folded;
            if operands.len() == before {
                break;
            }
        }
        self.list.extend(operands.into_iter().map(|(version, _)| version));
        self.list.extend(rest);
    }

    /// Reads the operands of `list[start..end]` that are in blob files. Returns `None` if the
    /// operator does not fold two operands into one, or if one cannot be read.
    fn read_group(
        &mut self,
        context: &MergeContext,
        start: usize,
        end: usize,
    ) -> Option<Vec<Option<Vec<u8>>>> {
        let group = &self.list[start..end];
        if !group.iter().any(|version| version.kind.is_blob()) {
            return Some(group.iter().map(|_| None).collect());
        }
        if self.keeps_operands {
            return None;
        }
        let mut read = Vec::with_capacity(group.len());
        for (i, version) in group.iter().enumerate() {
            let value = value_of(&self.bytes, version);
            let is_blob = version.kind.is_blob() && !planted(Bug::MergeBlobOperandRaw);
            read.push(match is_blob {
                true => Some(context.read(&self.key, value).ok()?),
                false => None,
            });
            if i == 1 {
                let bytes = |i: usize| {
                    read[i].as_deref().unwrap_or_else(|| value_of(&self.bytes, &group[i]))
                };
                let operator = context.operator.as_deref()?;
                if partial_merge(operator, &self.key, bytes(1), bytes(0)).is_none() {
                    self.keeps_operands = true;
                    return None;
                }
            }
        }
        Some(read)
    }
}

fn value_of<'a>(bytes: &'a [u8], version: &'a Version) -> &'a [u8] {
    match &version.value {
        Value::Gathered { start, end } => &bytes[*start..*end],
        Value::Made(value) => value,
    }
}

/// The bytes of an operand, read already if they are in a blob file.
fn bytes_of<'a>(bytes: &'a [u8], (version, read): &'a (Version, Option<Vec<u8>>)) -> &'a [u8] {
    read.as_deref().unwrap_or_else(|| value_of(bytes, version))
}
