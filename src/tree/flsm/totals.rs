//! Sums over the guards of a subtree, kept with each guard, and over the files of a whole tree, kept up
//! to date by what a change adds and takes away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::guard::{Guard, Totals, is_joinable};
use super::parameters::Parameters;
use crate::base::ids::{FileId, NodeId};
use crate::table::{BlobFile, Table};
use crate::tree::files::FileTotals;
use crate::tree::live::{Dead, Overlap};
use crate::tree::versioned::{NEW, walk};

impl Guard {
    /// Sums over the guard and all below it.
    pub(super) fn totals(&self, parameters: &Parameters) -> &Totals {
        self.totals.get_or(|| {
            let mut totals = self.own_totals(parameters);
            for child in &self.children {
                let below = child.totals(parameters);
                totals.guards += below.guards;
                totals.fragments += below.fragments;
                totals.pending_bytes += below.pending_bytes;
                totals.urgency = totals.urgency.max(below.urgency);
                totals.joinable |= below.joinable;
            }
            totals
        })
    }

    /// The same of the guard alone.
    pub(super) fn own_totals(&self, parameters: &Parameters) -> Totals {
        let urgency = self.urgency(parameters);
        Totals {
            guards: 1,
            fragments: self.fragments.len() as u64,
            urgency,
            joinable: self.children.windows(2).any(|two| is_joinable(&two[0], &two[1], parameters)),
            pending_bytes: if urgency >= 1.0 { self.bytes() } else { 0 },
        }
    }

    /// What a merge of all that the guard holds would drop, of what it holds: none if it is one fragment that a
    /// merge has made.
    pub(super) fn dead(&self) -> Dead {
        *self.dead.get_or(|| {
            let mut overlap = Overlap::default();
            self.fragments.iter().for_each(|f| overlap.add(&f.table, f.part()));
            overlap.dead()
        })
    }

    /// How near the guard is to being due for compaction: from 1 on it is.
    pub(super) fn urgency(&self, parameters: &Parameters) -> f64 {
        let depth = self.depth();
        if depth <= 1 {
            // Nothing lies over anything: there is nothing to merge, and no reader has to wait.
            return 0.0;
        }
        let due = self.due_depth(parameters);
        let by_depth = depth as f64 / (due + 1) as f64;
        match self.height {
            0 => {
                let bytes = self.bytes() as f64 / (parameters.guard_bytes_max() + 1) as f64;
                by_depth.max(if depth > 2 { bytes } else { 0.0 })
            }
            _ => by_depth,
        }
    }

    /// Whether what a compaction could hand on to each of the guards below would be too small to be
    /// worth a fragment.
    pub(super) fn crumbles(&self, parameters: &Parameters) -> bool {
        self.bytes() < parameters.fragment_bytes_min * self.children.len() as u64
    }

    /// The depth up to which the guard is not compacted: more than is allowed while what a compaction could
    /// hand on would be small.
    fn due_depth(&self, parameters: &Parameters) -> usize {
        match self.crumbles(parameters) {
            true => parameters.tables_per_guard_max * 2,
            false => parameters.tables_per_guard_max,
        }
    }
}

/// How many fragments refer to each table, and how many tables to each blob file.
#[derive(Default)]
pub(in crate::tree) struct FileRefs {
    tables: BTreeMap<FileId, u64>,
    blobs: BTreeMap<FileId, u64>,
    pub(super) totals: FileTotals,
}

impl FileRefs {
    /// Counts a whole tree.
    pub(super) fn of(root: &Arc<Guard>) -> FileRefs {
        let mut file_refs = FileRefs::default();
        walk(root, &mut |guard| file_refs.add(guard));
        file_refs
    }

    /// Counts what is new below `new` and no more what is gone of `old`. Guards that both have keep
    /// their numbers, which are below `first_new`.
    pub(super) fn change(&mut self, old: &Arc<Guard>, new: &Arc<Guard>, first_new: u64) {
        let mut kept = BTreeSet::new();
        self.add_new(new, first_new, &mut kept);
        self.remove_gone(old, &kept);
    }

    fn add_new(&mut self, guard: &Arc<Guard>, first_new: u64, kept: &mut BTreeSet<NodeId>) {
        if guard.id != NEW && guard.id.0 < first_new {
            kept.insert(guard.id);
            return;
        }
        self.add(guard);
        guard.children.iter().for_each(|child| self.add_new(child, first_new, kept));
    }

    fn remove_gone(&mut self, guard: &Arc<Guard>, kept: &BTreeSet<NodeId>) {
        if kept.contains(&guard.id) {
            return;
        }
        for fragment in &guard.fragments {
            self.remove_table(&fragment.table);
        }
        guard.children.iter().for_each(|child| self.remove_gone(child, kept));
    }

    fn add(&mut self, guard: &Arc<Guard>) {
        for fragment in &guard.fragments {
            let table = &fragment.table;
            let references = self.tables.entry(table.id()).or_default();
            *references += 1;
            if *references > 1 {
                continue;
            }
            self.totals.add(table);
            table.blobs().iter().for_each(|blob| self.add_blob(blob));
        }
    }

    fn add_blob(&mut self, blob: &Arc<BlobFile>) {
        let references = self.blobs.entry(blob.id()).or_default();
        *references += 1;
        if *references == 1 {
            self.totals.blobs += 1;
            self.totals.blob_bytes += blob.bytes();
        }
    }

    fn remove_table(&mut self, table: &Arc<Table>) {
        if !is_last(&mut self.tables, table.id()) {
            return;
        }
        self.totals.remove(table);
        for blob in table.blobs() {
            if is_last(&mut self.blobs, blob.id()) {
                self.totals.blobs -= 1;
                self.totals.blob_bytes -= blob.bytes();
            }
        }
    }
}

/// Takes one reference away; whether it was the last.
fn is_last(references: &mut BTreeMap<FileId, u64>, id: FileId) -> bool {
    let Some(count) = references.get_mut(&id) else { return false };
    *count -= 1;
    if *count > 0 {
        return false;
    }
    references.remove(&id);
    true
}
