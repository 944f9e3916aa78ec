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
use crate::table::{Hole, HoleAt, Table, TableCursor};

/// A cursor over one of the tables. A table that has no key there is not read.
struct Part {
    cursor: TableCursor,
    /// The cursor has been placed.
    is_sought: bool,
    /// Keys beyond this one are ignored: in the forward direction if true.
    limit: Option<(Box<[u8]>, bool)>,
}

impl Part {
    fn of(table: &Arc<Table>) -> Part {
        Part { cursor: table.cursor(), is_sought: false, limit: None }
    }

    fn go_carefully(&mut self, limit: Option<&[u8]>, forward: bool) {
        self.limit = limit.map(|limit| (Box::from(limit), forward));
        self.cursor.go_carefully(limit, forward);
    }

    /// Whether the table has keys that are not beyond the limit, in a direction.
    fn is_within_limit(&self, forward: bool) -> bool {
        let table = self.cursor.table();
        match &self.limit {
            Some((limit, true)) if forward => *table.first_key() < **limit,
            Some((limit, false)) if !forward => *table.last_key() >= **limit,
            _ => true,
        }
    }
}

impl Cursor for Part {
    fn seek_first(&mut self) -> Result<()> {
        self.is_sought = self.is_within_limit(true);
        if self.is_sought { self.cursor.seek_first() } else { Ok(()) }
    }

    fn seek_last(&mut self) -> Result<()> {
        self.is_sought = self.is_within_limit(false);
        if self.is_sought { self.cursor.seek_last() } else { Ok(()) }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.is_sought = self.cursor.table().last_key() >= key && self.is_within_limit(true);
        if self.is_sought { self.cursor.seek(key) } else { Ok(()) }
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.is_sought = self.cursor.table().first_key() < key && self.is_within_limit(false);
        if self.is_sought { self.cursor.seek_before(key) } else { Ok(()) }
    }

    fn next(&mut self) -> Result<()> {
        if self.is_sought { self.cursor.next() } else { Ok(()) }
    }

    fn prev(&mut self) -> Result<()> {
        if self.is_sought { self.cursor.prev() } else { Ok(()) }
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        if self.is_sought { self.cursor.entry() } else { None }
    }
}

impl MergeSource for Part {}

/// As many keys behind a place may be read before a cursor there has moved: the one that whoever merges it with others is
/// at, and the one behind, whose end it has to find.
const KEYS_AHEAD: usize = 2;

/// The first hole that a cursor over all of `tables` at the given place may meet with its next step.
///
/// # Errors
/// Errors that are neither damage nor failed reads.
pub(crate) fn union_hole(tables: &[Arc<Table>], at: HoleAt<'_>) -> Result<Option<Hole>> {
    let forward = matches!(at, HoleAt::From(_));
    let mut found = first_hole(tables, at, None)?;
    let mut from = match at {
        HoleAt::From(key) => Some(key.to_vec()),
        HoleAt::Before(key) => key.map(<[u8]>::to_vec),
    };
    for _ in 0..KEYS_AHEAD {
        // In front of what is known there may be more, which is nearer.
        let limit = found.as_ref().map(|hole| if forward { &*hole.lower } else { &*hole.upper });
        let Some(key) = next_key(tables, from.as_deref(), limit, forward)? else { break };
        let behind = [&key, &[0][..]].concat();
        let place = if forward { HoleAt::From(&key) } else { HoleAt::Before(Some(&behind)) };
        found = first_hole(tables, place, found)?;
        from = Some(if forward { behind } else { key });
    }
    Ok(found)
}

/// The first of the tables' holes at or behind a place, and of one that is known.
fn first_hole(tables: &[Arc<Table>], at: HoleAt<'_>, known: Option<Hole>) -> Result<Option<Hole>> {
    let mut first = known;
    for table in tables {
        let Some(hole) = table.hole(at)? else { continue };
        let is_first = first.as_ref().is_none_or(|first| match at {
            HoleAt::From(_) => hole.lower < first.lower,
            HoleAt::Before(_) => hole.upper > first.upper,
        });
        if is_first {
            first = Some(hole);
        }
    }
    Ok(first)
}

/// The next key of the tables: at or behind `from`, or in front of it, and in front of `limit`. None if there is none, or
/// if it cannot be read.
fn next_key(
    tables: &[Arc<Table>],
    from: Option<&[u8]>,
    limit: Option<&[u8]>,
    forward: bool,
) -> Result<Option<Vec<u8>>> {
    let is_within = |key: &[u8]| match forward {
        true => limit.is_none_or(|limit| key < limit),
        false => limit.is_none_or(|limit| key >= limit),
    };
    let mut next: Option<Vec<u8>> = None;
    for table in tables {
        let mut cursor = Part::of(table);
        cursor.go_carefully(limit, forward);
        let sought = match (forward, from) {
            (true, from) => cursor.seek(from.unwrap_or_default()),
            (false, Some(from)) => cursor.seek_before(from),
            (false, None) => cursor.seek_last(),
        };
        match sought {
            Ok(()) => {}
            Err(error) if error.is_unreadable() => return Ok(None),
            Err(error) => return Err(error),
        }
        let Some(entry) = cursor.entry().filter(|entry| is_within(entry.key)) else { continue };
        let is_next = next.as_deref().is_none_or(|next| match forward {
            true => entry.key < next,
            false => entry.key > next,
        });
        if is_next {
            next = Some(entry.key.to_vec());
        }
    }
    Ok(next)
}

/// A version of the current key.
struct Version {
    seqno: Seqno,
    kind: EntryKind,
    value: Vec<u8>,
}

/// See the module's description.
pub(crate) struct UnionCursor {
    merged: MergeIterator<Part>,
    key: Vec<u8>,
    /// Newest first; none without a position.
    versions: Vec<Version>,
    at: usize,
    /// The last step was backwards.
    backwards: bool,
}

impl UnionCursor {
    pub(crate) fn new(tables: &[Arc<Table>]) -> UnionCursor {
        let cursors = tables.iter().map(Part::of).collect();
        let (key, versions) = (Vec::new(), Vec::new());
        let merged = MergeIterator::new(cursors);
        UnionCursor { merged, key, versions, at: 0, backwards: false }
    }

    /// Reads no page ahead, and none that is only behind `limit`.
    pub(crate) fn go_carefully(&mut self, limit: Option<&[u8]>, forward: bool) {
        self.merged.sources_mut().for_each(|part| part.go_carefully(limit, forward));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let cursors = self.merged.sources().map(|part| part.cursor.memory_bytes());
        let values = self.versions.iter().map(|version| version.value.capacity());
        self.merged.memory_bytes() + cursors.sum::<usize>() + values.sum::<usize>()
    }

    pub(crate) fn pages_read(&self) -> u64 {
        self.merged.sources().map(|part| u64::from(part.cursor.pages_read())).sum()
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
