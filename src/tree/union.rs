//! [`UnionCursor`]: the entries of several tables that may have some in common, each once.

use std::sync::Arc;

use crate::base::entry::{Cursor, EntryRef};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::merge::{MergeIterator, MergeSource};
use crate::table::{Table, TableCursor};

impl MergeSource for TableCursor {}

/// See the module's description.
pub(crate) struct UnionCursor {
    merged: MergeIterator<TableCursor>,
    last: Option<(Vec<u8>, Seqno)>,
}

impl UnionCursor {
    pub(crate) fn new(tables: &[Arc<Table>]) -> UnionCursor {
        let cursors = tables.iter().map(|table| table.cursor()).collect();
        UnionCursor { merged: MergeIterator::new(cursors), last: None }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let cursors = self.merged.sources().map(TableCursor::memory_bytes);
        self.merged.memory_bytes() + cursors.sum::<usize>()
    }

    pub(crate) fn pages_read(&self) -> u64 {
        self.merged.sources().map(|cursor| u64::from(cursor.pages_read())).sum()
    }

    fn note(&mut self) {
        self.last = self.merged.entry().map(|entry| (entry.key.to_vec(), entry.seqno));
    }

    /// Steps until the entry is another one.
    fn step(&mut self, step: fn(&mut MergeIterator<TableCursor>) -> Result<()>) -> Result<()> {
        loop {
            step(&mut self.merged)?;
            let same = match (self.merged.entry(), &self.last) {
                (Some(entry), Some((key, seqno))) => entry.seqno == *seqno && *entry.key == **key,
                _ => false,
            };
            if !same {
                self.note();
                return Ok(());
            }
        }
    }
}

impl Cursor for UnionCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.merged.seek_first()?;
        self.note();
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.merged.seek_last()?;
        self.note();
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.merged.seek(key)?;
        self.note();
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.merged.seek_before(key)?;
        self.note();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.step(MergeIterator::next)
    }

    fn prev(&mut self) -> Result<()> {
        self.step(MergeIterator::prev)
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        self.merged.entry()
    }
}
