//! How a version of the trunk is read.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::Trunk;
use super::node::{Node, bundles, tables};
use super::reclaim::{DeadParts, PathGains};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::base::sync::plain::Ordering;
use crate::cache::ReadContext;
use crate::table::Table;
use crate::tree::description::{
    ChildDescription, GroupDescription, NodeDescription, TreeDescription, described_table, named,
};
use crate::tree::range::{table_overlaps, table_size};
use crate::tree::run::Run;
use crate::tree::versioned;
use crate::tree::{CheckCounts, CheckScope, RangeAt, RangeRuns, RangeTables, TreeVersion, files};

/// A version.
pub(super) type Version = versioned::Version<Trunk>;

/// What a version knows beyond its files.
pub(in crate::tree) struct Summary {
    /// Memory of bundles and open files, but for samples.
    pub(super) files_memory_bytes: u64,
    dead_parts: OnceLock<DeadParts>,
    path_gains: OnceLock<PathGains>,
}

impl Summary {
    pub(super) fn new(files_memory_bytes: u64) -> Summary {
        let (dead_parts, path_gains) = (OnceLock::new(), OnceLock::new());
        Summary { files_memory_bytes, dead_parts, path_gains }
    }
}

impl Version {
    /// The gains of full compactions of leaves.
    pub(super) fn dead_parts(&self) -> &DeadParts {
        self.own.dead_parts.get_or_init(|| DeadParts::new(&self.root))
    }

    /// Their gains with the data on the paths to the leaves.
    pub(super) fn path_gains(&self) -> &PathGains {
        self.own.path_gains.get_or_init(|| PathGains::new(&self.root))
    }

    /// The path of nodes and pivot positions from the root to the leaf that `choose` picks.
    fn path(&self, choose: impl Fn(&Node) -> usize) -> Vec<(&Arc<Node>, usize)> {
        let mut path = Vec::with_capacity(self.root.height as usize + 1);
        let mut node = &self.root;
        loop {
            let position = choose(node);
            path.push((node, position));
            match &node.pivots[position].child {
                Some(child) => node = child,
                None => return path,
            }
        }
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
        super::lookup::get(&self.root, &self.counters, key, hash, snapshot, context, f)
    }

    fn runs_at(&self, at: RangeAt<'_>, _snapshot: Seqno) -> RangeRuns {
        let path = self.path(|node| match at {
            RangeAt::Key(key) => node.pivot_of(key),
            RangeAt::Before(key) => node.pivot_before(key),
        });
        let leaf = path.last().map_or(&self.root, |(leaf, _)| leaf);
        let (lower, upper) = leaf.range();
        let mut runs = Vec::new();
        for (node, position) in &path {
            for bundle in node.live_bundles(*position).iter().rev() {
                let overlaps = |table: &&Arc<Table>| table_overlaps(table, lower, upper);
                let meeting = bundle.branches.iter().rev().filter(overlaps);
                runs.extend(meeting.map(|table| Run::Table(Arc::clone(table))));
            }
        }
        if runs.len() > 1 {
            let wasted = runs.len() as u64 - 1;
            leaf.wasted_reads.fetch_add(wasted, Ordering::Relaxed);
            self.counters.count_wasted_reads(wasted);
        }
        RangeRuns { lower: Arc::clone(&leaf.lower), upper: leaf.upper.clone(), runs }
    }

    fn tables_at(&self, key: &[u8]) -> Option<RangeTables> {
        let path = self.path(|node| node.pivot_of(key));
        let (leaf, _) = path.last()?;
        let live = path.iter().flat_map(|(node, position)| node.live_bundles(*position));
        let tables = live.flat_map(|bundle| bundle.branches.iter().cloned()).collect();
        Some(RangeTables { upper: leaf.upper.clone(), tables })
    }

    fn files(&self) -> Vec<PathBuf> {
        let bundles = bundles(&self.root);
        let named = bundles
            .iter()
            .filter(|bundle| !(bundle.index.is_head() && planted(Bug::CheckpointWithoutHeads)));
        let indexes = named.filter_map(|bundle| Some(bundle.index.own_file()?.path()));
        files::paths(&tables(&bundles), indexes)
    }

    fn describe(&self) -> Result<TreeDescription> {
        self.described(self.parameters.kind_name, self.parameters.named(), describe_node)
    }

    fn check(&self, scope: CheckScope<'_>, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        self.check_totals(scope.manifest, problem);
        super::check::check(&self.root, scope.manifest, scope.full, problem)
    }
}

fn describe_node(node: &Arc<Node>) -> Result<NodeDescription> {
    let (lower, upper) = node.range();
    let mut groups = Vec::new();
    for bundle in &node.bundles {
        let mut files = Vec::new();
        for (ordinal, table) in bundle.branches.iter().enumerate() {
            let counts = [
                ("tombstones", table.properties().deletes),
                ("superseded", bundle.index.whole_counts(ordinal, table).superseded),
                ("index_pages", u64::from(table.properties().index_pages)),
            ];
            let live_bytes = table_size(table, lower, upper)?.bytes;
            let mut file = described_table(table, live_bytes, counts);
            if let Some(piece) = table.piece(&ReadContext::blocking())? {
                file.counts.push(("local_index_bytes".to_string(), piece.resident_bytes()));
            }
            files.push(file);
        }
        let index = &bundle.index;
        let counts =
            named([("index_bytes", index.own_bytes()), ("index_entries", index.entries())]);
        let label = "bundle".to_string();
        groups.push(GroupDescription { label, id: bundle.id.0, files, counts });
    }
    let children = node
        .pivots
        .iter()
        .map(|pivot| ChildDescription {
            lower: Slice::from(&*pivot.lower),
            node: pivot.child.as_ref().map(|child| child.id.0),
            first_group: pivot.bundle_start,
            live_bytes: pivot.live.bytes,
            live_entries: pivot.live.entries,
        })
        .collect();
    Ok(node.described("node", children, groups))
}
