//! How a version of the tree is read.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::Flsm;
use super::describe::describe_guard;
use super::guard::{Guard, Totals, tables};
use super::lookup::{Lookup, Presence};
use super::reclaim::{PathGains, path_gains};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;
use crate::cache::ReadContext;
use crate::tree::description::TreeDescription;
use crate::tree::range::table_overlaps;
use crate::tree::run::Run;
use crate::tree::versioned::{self};
use crate::tree::{CheckCounts, CheckScope, RangeAt, RangeRuns, RangeTables, TreeVersion, files};

/// A version.
pub(super) type Version = versioned::Version<Flsm>;

/// What a version knows beyond its files.
pub(in crate::tree) struct Summary {
    pub(super) totals: Totals,
    pub(super) presence: Arc<Presence>,
    path_gains: OnceLock<PathGains>,
}

impl Summary {
    pub(super) fn new(totals: Totals, presence: &Arc<Presence>) -> Summary {
        Summary { totals, presence: Arc::clone(presence), path_gains: OnceLock::new() }
    }
}

impl Version {
    /// The gains of merging what lies above the last level down to it, by the guard to begin with.
    pub(super) fn path_gains(&self) -> &PathGains {
        self.own.path_gains.get_or_init(|| path_gains(&self.root))
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
        let mut lookup = Lookup::new(key, hash, snapshot, context, &self.own.presence);
        let result = lookup.run(&self.root, f);
        let filter_use = lookup.filter_use;
        self.counters.count_filters(filter_use.probes, filter_use.false_positives);
        result
    }

    fn runs_at(&self, at: RangeAt<'_>, _snapshot: Seqno) -> RangeRuns {
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
                false => table_overlaps(table, lower, upper),
            });
            runs.extend(meeting.map(|table| Run::Table(Arc::clone(table))));
            let wasted = (runs.len() - before).saturating_sub(usize::from(guard.height == 0));
            if wasted > 0 {
                guard.wasted_reads.fetch_add(wasted as u64, Ordering::Relaxed);
                self.counters.count_wasted_reads(wasted as u64);
            }
        }
        RangeRuns { lower: Arc::clone(&last.lower), upper: last.upper.clone(), runs }
    }

    fn tables_at(&self, key: &[u8]) -> Option<RangeTables> {
        let path = self.path(|guard| guard.child_of(key));
        let last = path.last()?;
        let fragments = path.iter().flat_map(|guard| guard.fragments.iter());
        let tables = fragments.map(|fragment| Arc::clone(&fragment.table)).collect();
        Some(RangeTables { upper: last.upper.clone(), tables })
    }

    fn files(&self) -> Vec<PathBuf> {
        files::paths(&tables(&self.root), [])
    }

    fn describe(&self) -> Result<TreeDescription> {
        let describe = |guard: &Arc<Guard>| Ok(describe_guard(guard));
        self.described(super::KIND.name, self.parameters.named(), describe)
    }

    fn check(&self, scope: CheckScope<'_>, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        self.check_totals(scope.manifest, problem);
        super::check::check(&self.root, scope.manifest, scope.full, problem)
    }
}
