//! Point reads: the index says which table has a key.
//!
//! Where the index cannot say it, the tables are asked themselves: it may have changed since the version was made,
//! have lacked room, or lack what only an old snapshot needs.
//!
//! Invariants:
//! 1. Versions are returned newest first, each once.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::places::{Places, page_of};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::cache::ReadContext;
use crate::table::Table;

/// A lookup of one key in a version.
pub(super) struct Lookup<'a> {
    pub(super) places: &'a Places,
    pub(super) tables: &'a [Arc<Table>],
    pub(super) flushed: Seqno,
    pub(super) key: &'a [u8],
    pub(super) snapshot: Seqno,
    pub(super) context: &'a ReadContext,
}

impl Lookup<'_> {
    /// Calls `f` with the versions of the key, newest first, until it breaks.
    pub(super) fn run(&self, f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>) -> Result<()> {
        let (versions, is_exact) = self.places.find(self.key, self.flushed)?;
        if versions.is_empty() && is_exact {
            return Ok(());
        }
        // The number below which the versions lie that have not been looked at. What is younger than the version is in
        // memtables, also if the index has it by now.
        let snapshot = self.snapshot.min(self.flushed);
        let mut below = snapshot.0.saturating_add(1);
        let mut has_base = false;
        for version in versions {
            if version.superseded.is_some_and(|superseded| superseded <= snapshot) {
                continue;
            }
            let Some(table) = self.places.table(version.location.table) else { break };
            let leaf = version.location.leaf.map(page_of);
            let mut flow = ControlFlow::Continue(());
            let mut is_held = false;
            let snapshot = Seqno(below.saturating_sub(1));
            table.get_at(self.key, leaf, snapshot, self.context, |entry| {
                is_held = true;
                has_base |= !matches!(entry.kind, EntryKind::Merge | EntryKind::MergeBlob);
                below = entry.seqno.0;
                flow = f(entry);
                flow
            })?;
            if flow.is_break() {
                return Ok(());
            }
            if !is_held && !is_exact {
                break;
            }
        }
        if has_base { Ok(()) } else { self.ask_tables(below, f) }
    }

    /// Calls `f` with the versions numbered below `below` that the version's tables have.
    #[cold]
    fn ask_tables(
        &self,
        below: u64,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(snapshot) = below.checked_sub(1).map(Seqno) else { return Ok(()) };
        let mut found: Vec<(Seqno, EntryKind, Vec<u8>)> = Vec::new();
        for table in self.tables {
            if *table.first_key() > *self.key
                || *table.last_key() < *self.key
                || table.properties().seqno_min > snapshot
            {
                continue;
            }
            table.get(self.key, snapshot, self.context, |entry| {
                found.push((entry.seqno, entry.kind, entry.value.to_vec()));
                match entry.kind {
                    EntryKind::Merge | EntryKind::MergeBlob => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            })?;
        }
        found.sort_by_key(|(seqno, ..)| std::cmp::Reverse(*seqno));
        // A compaction may have copied an entry and not yet replaced its table.
        found.dedup_by_key(|(seqno, ..)| *seqno);
        for (seqno, kind, value) in found {
            if f(EntryRef { key: self.key, seqno, kind, value: &value }).is_break() {
                break;
            }
        }
        Ok(())
    }
}
