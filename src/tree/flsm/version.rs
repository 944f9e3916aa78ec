//! One immutable state of the tree, and how it is read.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::describe::describe;
use super::guard::{Guard, GuardId, table_meets, table_stretch, walk};
use super::lookup::{Lookup, Presence};
use super::parameters::Parameters;
use super::totals::{FileTotals, Totals};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;
use crate::cache::ReadContext;
use crate::table::Table;
use crate::tree::description::TreeDescription;
use crate::tree::live::{Live, LiveShares, Overlap};
use crate::tree::run::Run;
use crate::tree::space::Space;
use crate::tree::{CheckCounts, RangeAt, RangeRuns, TreeCounters, TreeVersion, files};

/// A version.
pub(super) struct Version {
    pub(super) root: Arc<Guard>,
    pub(super) flushed: Seqno,
    pub(super) totals: Totals,
    pub(super) files: FileTotals,
    /// What is live, estimated.
    pub(super) live: Live,
    pub(super) counters: Arc<TreeCounters>,
    pub(super) presence: Arc<Presence>,
    pub(super) parameters: Parameters,
    path_gains: OnceLock<BTreeMap<GuardId, PathGain>>,
}

/// What handing all that a guard and those below it hold down to the last level, and merging it there, gives
/// back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PathGain {
    pub(super) gain: u64,
    /// Bytes that would be merged.
    pub(super) bytes: u64,
}

/// Gathers the gains of the topmost guards that hold something. `above` are the guards above, the root first.
fn gather_path_gains<'a>(
    guard: &'a Arc<Guard>,
    above: &mut Vec<&'a Arc<Guard>>,
    gains: &mut BTreeMap<GuardId, PathGain>,
) {
    if guard.height > 0 {
        above.push(guard);
        guard.children.iter().for_each(|child| gather_path_gains(child, above, gains));
        above.pop();
        return;
    }
    let Some(top) = above.iter().position(|guard| !guard.fragments.is_empty()) else { return };
    let (lower, upper) = guard.range();
    let mut overlap = Overlap::default();
    guard.fragments.iter().for_each(|f| overlap.add(&f.table, f.stretch()));
    let own_bytes = overlap.bytes();
    for fragment in above[top..].iter().rev().flat_map(|guard| &guard.fragments) {
        // An index that cannot be read is reported by whoever needs it, not by an estimate.
        let stretch = table_stretch(&fragment.table, lower, upper).unwrap_or_default();
        overlap.add(&fragment.table, stretch);
    }
    if overlap.bytes() > own_bytes {
        let gain = gains.entry(above[top].id).or_default();
        gain.gain += (overlap.bytes() as f64 * overlap.dead().share) as u64;
        gain.bytes += overlap.bytes();
    }
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
        shares: LiveShares,
        counters: Arc<TreeCounters>,
        presence: Arc<Presence>,
        parameters: Parameters,
    ) -> Version {
        let totals = *root.totals(&parameters);
        Version {
            root,
            flushed,
            totals,
            files,
            live: shares.of(files.stored()),
            counters,
            presence,
            parameters,
            path_gains: OnceLock::new(),
        }
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.files.table_bytes + self.files.blob_bytes
    }

    /// What the tree takes, and what of it is live.
    pub(super) fn space(&self) -> Space {
        let Version { files, live, .. } = self;
        Space {
            disk_bytes: self.disk_bytes(),
            table_bytes: files.table_bytes,
            tables: files.tables,
            entry_bytes: files.entry_bytes,
            live_entry_bytes: live.entry_bytes,
            live_blob_bytes: live.blob_bytes,
            filter_bytes: 0,
            entries: files.entries,
            live_keys: live.keys,
            memtable_bytes: self.parameters.memtable_bytes,
            amplification_max_percent: self.parameters.space_amplification_max_percent,
        }
    }

    /// What the data files would take if they held live pairs alone.
    pub(super) fn live_bytes(&self) -> u64 {
        self.space().live_bytes()
    }

    /// How far disk space is above what it may be before it is reclaimed, in shares of the live bytes.
    #[cfg(test)]
    pub(super) fn space_excess(&self) -> f64 {
        self.space().excess()
    }

    /// What handing down what lies above the last level would give back, by the guard to begin with.
    pub(super) fn path_gains(&self) -> &BTreeMap<GuardId, PathGain> {
        self.path_gains.get_or_init(|| {
            let mut gains = BTreeMap::new();
            gather_path_gains(&self.root, &mut Vec::new(), &mut gains);
            gains
        })
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.totals.guards * 384
            + self.totals.fragments * 48
            + self.files.tables * 1024
            + self.sample_bytes()
    }

    /// Memory that samples of keys use.
    pub(super) fn sample_bytes(&self) -> u64 {
        self.files.sample_bytes + self.live.memory_bytes
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
        self.counters.count_filters(filter_use.probes, filter_use.false_positives);
        result
    }

    fn runs_at(&self, at: RangeAt<'_>) -> RangeRuns {
        let path = self.path(|guard| match at {
            RangeAt::Key(key) => guard.child_of(key),
            RangeAt::Before(key) => guard.child_before(key),
        });
        let last = path.last().map_or(&self.root, |guard| *guard);
        let (lower, upper) = last.range();
        let mut runs = Vec::new();
        for guard in &path {
            let before = runs.len();
            let meeting = guard.fragments.iter().rev().map(|fragment| &fragment.table);
            let meeting = meeting.filter(|table| match planted(Bug::GuardRegionStraddling) {
                true => upper.is_none_or(|upper| *table.last_key() < *upper),
                false => table_meets(table, lower, upper),
            });
            runs.extend(meeting.map(|table| Run::Table(Arc::clone(table))));
            let wasted = (runs.len() - before).saturating_sub(usize::from(guard.height == 0));
            if wasted > 0 {
                guard.seeks.fetch_add(wasted as u64, Ordering::Relaxed);
            }
        }
        RangeRuns { lower: Arc::clone(&last.lower), upper: last.upper.clone(), runs }
    }

    fn files(&self) -> Vec<PathBuf> {
        files::paths(&tables(&self.root), [])
    }

    fn describe(&self) -> Result<TreeDescription> {
        Ok(describe(self))
    }

    fn check(&self, manifest: &Path, full: bool, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        super::check::check(self, manifest, full, problem)
    }
}
