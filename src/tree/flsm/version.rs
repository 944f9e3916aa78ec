//! One immutable state of the tree, and how it is read.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::describe::describe;
use super::guard::{Guard, table_meets, walk};
use super::lookup::{Lookup, Presence};
use super::parameters::Parameters;
use super::superseding::Superseding;
use super::totals::{FileTotals, Totals};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;
use crate::cache::ReadContext;
use crate::table::Table;
use crate::tree::description::TreeDescription;
use crate::tree::space::Space;
use crate::tree::{CheckCounts, Region, RegionAt, TreeCounters, TreeVersion, files};

/// A version.
pub(super) struct Version {
    pub(super) root: Arc<Guard>,
    pub(super) flushed: Seqno,
    pub(super) totals: Totals,
    pub(super) files: FileTotals,
    /// How much of what is young lately turned out to supersede older entries.
    pub(super) superseding: Superseding,
    pub(super) counters: Arc<TreeCounters>,
    pub(super) presence: Arc<Presence>,
    pub(super) parameters: Parameters,
}

/// Every table that is reachable, once, by number.
pub(super) fn tables(root: &Arc<Guard>) -> Vec<&Arc<Table>> {
    let mut all = BTreeMap::new();
    walk(root, &mut |guard| {
        all.extend(guard.fragments.iter().map(|fragment| (fragment.table.id(), &fragment.table)));
    });
    all.into_values().collect()
}

impl Version {
    pub(super) fn new(
        root: Arc<Guard>,
        flushed: Seqno,
        files: FileTotals,
        superseding: Superseding,
        counters: Arc<TreeCounters>,
        presence: Arc<Presence>,
        parameters: Parameters,
    ) -> Version {
        let totals = *root.totals(&parameters);
        Version { root, flushed, totals, files, superseding, counters, presence, parameters }
    }

    /// Bytes of keys and values that would remain if everything superseded were dropped, as far as is
    /// known.
    fn live_entry_bytes(&self) -> u64 {
        let young = self.totals.young_bytes as f64 * (1.0 - self.superseding.share);
        let live = self.totals.base_bytes + young as u64;
        live.saturating_sub(self.totals.tombstone_bytes).max(live / 16)
    }

    /// The same with values in blob files.
    pub(super) fn live_bytes(&self) -> u64 {
        let share = self.live_entry_bytes() as f64 / self.files.entry_bytes.max(1) as f64;
        self.live_entry_bytes() + (self.files.blob_value_bytes as f64 * share.min(1.0)) as u64
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.files.table_bytes + self.files.blob_bytes
    }

    /// How far disk space is above what is allowed, in shares of the live bytes.
    pub(super) fn space_excess(&self) -> f64 {
        let live_entry_bytes = self.live_entry_bytes();
        let space = Space {
            disk_bytes: self.disk_bytes(),
            table_bytes: self.files.table_bytes,
            entry_bytes: self.files.entry_bytes,
            live_entry_bytes,
            live_blob_bytes: self.live_bytes() - live_entry_bytes,
        };
        let Parameters { space_bytes_free, space_amplification_max_percent, .. } = self.parameters;
        space.excess(space_bytes_free, space_amplification_max_percent)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.totals.guards * 384 + self.totals.fragments * 40 + self.files.tables * 1024
    }

    /// The blob files, ascending, of which tables point to less than half.
    pub(super) fn mostly_dead_blobs(&self) -> Vec<FileId> {
        if self.files.blob_value_bytes * 2 >= self.files.blob_bytes && self.files.blobs < 2 {
            return Vec::new();
        }
        files::mostly_dead_blobs(&tables(&self.root))
    }

    /// The guards from the root to the last level that `choose` leads to.
    fn path(&self, choose: impl Fn(&Guard) -> usize) -> Vec<&Arc<Guard>> {
        let mut path = vec![&self.root];
        let mut guard = &self.root;
        while let Some(child) = guard.children.get(choose(guard)) {
            path.push(child);
            guard = child;
        }
        path
    }
}

impl TreeVersion for Version {
    fn flushed(&self) -> Seqno {
        self.flushed
    }

    fn get(
        &self,
        key: &[u8],
        hash: u64,
        snapshot: Seqno,
        context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut lookup = Lookup::new(key, hash, snapshot, context, &self.presence);
        let result = lookup.run(&self.root, f);
        let filter_use = lookup.filter_use;
        self.counters.filter_probes.add(filter_use.probes);
        if filter_use.false_positives > 0 {
            self.counters.filter_false_positives.add(filter_use.false_positives);
        }
        result
    }

    fn region(&self, at: RegionAt<'_>) -> Region {
        let path = self.path(|guard| match at {
            RegionAt::Key(key) => guard.child_of(key),
            RegionAt::Before(key) => guard.child_before(key),
        });
        let last = path.last().map_or(&self.root, |guard| *guard);
        let (lower, upper) = last.range();
        let mut tables = Vec::new();
        for guard in &path {
            let before = tables.len();
            let meeting = guard.fragments.iter().rev().map(|fragment| &fragment.table);
            let meeting = meeting.filter(|table| match planted(Bug::GuardRegionStraddling) {
                true => upper.is_none_or(|upper| *table.last_key() < *upper),
                false => table_meets(table, lower, upper),
            });
            tables.extend(meeting.cloned());
            let wasted = (tables.len() - before).saturating_sub(usize::from(guard.height == 0));
            if wasted > 0 {
                guard.seeks.fetch_add(wasted as u64, Ordering::Relaxed);
            }
        }
        Region { lower: Arc::clone(&last.lower), upper: last.upper.clone(), tables }
    }

    fn files(&self) -> Vec<PathBuf> {
        files::paths(&tables(&self.root), [])
    }

    fn describe(&self) -> Result<TreeDescription> {
        Ok(describe(self))
    }

    fn check(&self, full: bool, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        super::check::check(self, full, problem)
    }
}
