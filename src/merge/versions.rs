//! What a compaction keeps of the versions of one key, once it has gathered them.

use super::operands::full_merge;
use super::operator::MergeOperator;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};

#[derive(Debug)]
struct Version {
    seqno: Seqno,
    kind: EntryKind,
    stripe: usize,
    value: Value,
}

#[derive(Debug)]
enum Value {
    /// `bytes[start..end]`.
    Gathered { start: usize, end: usize },
    /// What an operator made.
    Made(Vec<u8>),
}

/// How many versions `reduce` has done away with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) folded: u64,
    pub(super) tombstones: u64,
}

/// Versions of one key, newest first, in reused buffers.
#[derive(Debug, Default)]
pub(super) struct Versions {
    key: Vec<u8>,
    bytes: Vec<u8>,
    list: Vec<Version>,
}

impl Versions {
    /// Forgets everything and begins a key.
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

    /// Whether what has been gathered hides an older version in `stripe`.
    pub(super) fn supersedes(&self, stripe: usize) -> bool {
        self.list.last().is_some_and(|last| last.stripe == stripe && last.kind != EntryKind::Merge)
    }

    /// Adds the next older version.
    pub(super) fn push(&mut self, seqno: Seqno, kind: EntryKind, stripe: usize, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let value = Value::Gathered { start, end: self.bytes.len() };
        self.list.push(Version { seqno, kind, stripe, value });
    }

    /// Whether what lies beneath the oldest version matters.
    pub(super) fn ends_open(&self) -> bool {
        self.list
            .last()
            .is_some_and(|last| matches!(last.kind, EntryKind::Delete | EntryKind::Merge))
    }

    /// The version at `index`, newest first.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<EntryRef<'_>> {
        let version = self.list.get(index)?;
        let value = value_of(&self.bytes, version);
        Some(EntryRef { key: &self.key, seqno: version.seqno, kind: version.kind, value })
    }

    /// Folds operands within their stripes and drops tombstones with nothing beneath. `bottom` says
    /// that nothing older than these versions exists.
    pub(super) fn reduce(&mut self, operator: Option<&dyn MergeOperator>, bottom: bool) -> Dropped {
        let mut dropped = Dropped::default();
        if bottom {
            while self.list.last().is_some_and(|last| last.kind == EntryKind::Delete) {
                self.list.pop();
                dropped.tombstones += 1;
            }
        }
        let Some(operator) = operator else { return dropped };
        let gathered = self.list.len();
        // From the oldest stripe to the newest.
        let mut end = self.list.len();
        while let Some(last) = end.checked_sub(1) {
            let stripe = self.list[last].stripe;
            let newer = self.list[..end].iter().rposition(|v| v.stripe != stripe);
            let start = newer.map_or(0, |newer| newer + 1);
            let nothing_beneath = bottom && end == self.list.len();
            self.reduce_stripe(operator, start, end, nothing_beneath);
            end = start;
        }
        dropped.folded = (gathered - self.list.len()) as u64;
        dropped
    }

    /// Folds the operands at the front of `list[start..end]`, one stripe, over what follows them.
    fn reduce_stripe(
        &mut self,
        operator: &dyn MergeOperator,
        start: usize,
        end: usize,
        nothing_beneath: bool,
    ) {
        let last = &self.list[end - 1];
        let operands_end = if last.kind == EntryKind::Merge { end } else { end - 1 };
        if operands_end == start {
            return;
        }
        let foldable = match last.kind {
            EntryKind::Put | EntryKind::Delete => true,
            EntryKind::Merge => nothing_beneath,
            EntryKind::PutBlob | EntryKind::RangeDelete => false,
        };
        if foldable {
            let has_base = last.kind == EntryKind::Put && !planted(Bug::MergeBaseIgnored);
            let existing = has_base.then(|| value_of(&self.bytes, last));
            let operands: Vec<&[u8]> = self.list[start..operands_end]
                .iter()
                .rev()
                .skip(usize::from(planted(Bug::CompactLosesOperand)))
                .map(|version| value_of(&self.bytes, version))
                .collect();
            if let Ok(value) = full_merge(operator, &self.key, existing, &operands) {
                self.list[start].kind = EntryKind::Put;
                self.list[start].value = Value::Made(value);
                self.list.drain(start + 1..end);
                return;
            }
        }
        self.fold_partially(operator, start, operands_end);
    }

    /// Folds neighbouring operands of `list[start..end]` pairwise until no more can be, so that each
    /// byte is copied a logarithmic number of times.
    fn fold_partially(&mut self, operator: &dyn MergeOperator, start: usize, end: usize) {
        let rest = self.list.split_off(end);
        let mut operands = self.list.split_off(start);
        loop {
            let before = operands.len();
            let mut folded: Vec<Version> = Vec::with_capacity(before.div_ceil(2));
            let mut left = operands.into_iter().peekable();
            while let Some(mut newer) = left.next() {
                if planted(Bug::MergePartialSwapped)
                    && let Some(older) = left.peek_mut()
                {
                    std::mem::swap(&mut newer.value, &mut older.value);
                }
                if let Some(older) = left.peek()
                    && let Some(value) = operator.partial_merge(
                        &self.key,
                        value_of(&self.bytes, older),
                        value_of(&self.bytes, &newer),
                    )
                {
                    newer.value = Value::Made(value);
                    left.next();
                }
                folded.push(newer);
            }
            operands = folded;
            if operands.len() == before {
                break;
            }
        }
        self.list.append(&mut operands);
        self.list.extend(rest);
    }
}

fn value_of<'a>(bytes: &'a [u8], version: &'a Version) -> &'a [u8] {
    match &version.value {
        Value::Gathered { start, end } => &bytes[*start..*end],
        Value::Made(value) => value,
    }
}
