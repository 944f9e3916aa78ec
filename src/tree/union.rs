//! [`UnionCursor`]: the entries of several tables that may have some in common.
//!
//! Invariants:
//! 1. Of entries of one key and number, an operand and what it was folded into by a compaction, the latter counts: what
//!    is older is in it.
//! 2. The merge is just behind the versions of the current key in the direction of the last step.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::merge::{MergeIterator, MergeSource};
use crate::table::{Table, TableCursor};

impl MergeSource for TableCursor {}

/// A version of the current key.
struct Version {
    seqno: Seqno,
    kind: EntryKind,
    value: Vec<u8>,
}

/// See the module's description.
pub(crate) struct UnionCursor {
    merged: MergeIterator<TableCursor>,
    key: Vec<u8>,
    /// Newest first; none without a position.
    versions: Vec<Version>,
    at: usize,
    /// The last step was backwards.
    backwards: bool,
}

impl UnionCursor {
    pub(crate) fn new(tables: &[Arc<Table>]) -> UnionCursor {
        let cursors = tables.iter().map(|table| table.cursor()).collect();
        let (key, versions) = (Vec::new(), Vec::new());
        let merged = MergeIterator::new(cursors);
        UnionCursor { merged, key, versions, at: 0, backwards: false }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let cursors = self.merged.sources().map(TableCursor::memory_bytes);
        let values = self.versions.iter().map(|version| version.value.capacity());
        self.merged.memory_bytes() + cursors.sum::<usize>() + values.sum::<usize>()
    }

    pub(crate) fn pages_read(&self) -> u64 {
        self.merged.sources().map(|cursor| u64::from(cursor.pages_read())).sum()
    }

    /// Reads the versions of the key that the merge is at, and moves on to the next key.
    fn load(&mut self, backwards: bool) -> Result<()> {
        self.versions.clear();
        self.backwards = backwards;
        let Some(entry) = self.merged.entry() else { return Ok(()) };
        self.key.clear();
        self.key.extend_from_slice(entry.key);
        let mut versions = Vec::new();
        while let Some(entry) = self.merged.entry().filter(|entry| *entry.key == *self.key) {
            let EntryRef { seqno, kind, value, .. } = entry;
            versions.push(Version { seqno, kind, value: value.to_vec() });
            if backwards { self.merged.prev()? } else { self.merged.next()? }
        }
        versions.sort_by_key(|version| (Reverse(version.seqno), version.kind.is_operand()));
        versions.dedup_by_key(|version| version.seqno);
        self.at = if backwards { versions.len() - 1 } else { 0 };
        self.versions = versions;
        Ok(())
    }
}

impl Cursor for UnionCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.versions.clear();
        self.merged.seek_first()?;
        self.load(false)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.versions.clear();
        self.merged.seek_last()?;
        self.load(true)
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.versions.clear();
        self.merged.seek(key)?;
        self.load(false)
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.versions.clear();
        self.merged.seek_before(key)?;
        self.load(true)
    }

    fn next(&mut self) -> Result<()> {
        if self.at + 1 < self.versions.len() {
            self.at += 1;
            return Ok(());
        }
        if self.versions.is_empty() {
            return Ok(());
        }
        self.versions.clear();
        if self.backwards {
            let mut behind = self.key.clone();
            behind.push(0);
            self.merged.seek(&behind)?;
        }
        self.load(false)
    }

    fn prev(&mut self) -> Result<()> {
        if self.at > 0 && !self.versions.is_empty() {
            self.at -= 1;
            return Ok(());
        }
        if self.versions.is_empty() {
            return Ok(());
        }
        self.versions.clear();
        if !self.backwards {
            self.merged.seek_before(&self.key)?;
        }
        self.load(true)
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let Version { seqno, kind, value } = self.versions.get(self.at)?;
        Some(EntryRef { key: &self.key, seqno: *seqno, kind: *kind, value })
    }
}
