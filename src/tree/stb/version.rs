//! One immutable state of the trunk, and how it is read.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::node::{Bundle, BundleId, Node, table_extent, table_meets, walk};
use super::parameters::Parameters;
use super::reclaim::{DeadParts, PathGains};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::slice::Slice;
use crate::base::sync::plain::Ordering;
use crate::cache::ReadContext;
use crate::table::Table;
use crate::tree::description::{
    ChildDescription, FileDescription, GroupDescription, NodeDescription, TreeDescription, named,
};
use crate::tree::live::{Live, LiveShares, Stored};
use crate::tree::run::Run;
use crate::tree::space::Space;
use crate::tree::{CheckCounts, RangeAt, RangeRuns, TreeCounters, TreeVersion, files};

/// Sums over a whole version, taken when it is made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Summary {
    pub(super) tables: u64,
    pub(super) entries: u64,
    pub(super) disk_bytes: u64,
    /// Of these, the tables'.
    pub(super) table_bytes: u64,
    /// Keys and values in tables, dead ones too.
    pub(super) entry_bytes: u64,
    /// Of the disk bytes, the maplets'.
    pub(super) filter_bytes: u64,
    /// Live bytes in index nodes: on their way to a leaf.
    pub(super) index_bytes: u64,
    /// Live bytes in leaves that no compaction has merged there yet.
    pub(super) pending_bytes: u64,
    /// What takes memory, but for samples.
    pub(super) memory_bytes: u64,
    /// Memory that the tables' samples use.
    pub(super) sample_bytes: u64,
}

/// A version.
pub(super) struct Version {
    pub(super) root: Arc<Node>,
    pub(super) flushed: Seqno,
    pub(super) summary: Summary,
    /// What is live, estimated.
    pub(super) live: Live,
    pub(super) counters: Arc<TreeCounters>,
    pub(super) parameters: Parameters,
    /// Of the bundles that are reachable, ascending.
    bundle_ids: Vec<BundleId>,
    dead_parts: OnceLock<DeadParts>,
    path_gains: OnceLock<PathGains>,
}

/// Every bundle that is reachable, once, by number. Each commit asks for them: sorting references takes a
/// fraction of what a set of them does.
pub(super) fn bundles(root: &Arc<Node>) -> Vec<&Arc<Bundle>> {
    let mut all = Vec::new();
    walk(root, &mut |node| all.extend(&node.bundles));
    all.sort_unstable_by_key(|bundle| bundle.id);
    all.dedup_by_key(|bundle| bundle.id);
    all
}

/// Every table of these bundles, once, by number.
pub(super) fn tables<'a>(bundles: &[&'a Arc<Bundle>]) -> Vec<&'a Arc<Table>> {
    let mut all: Vec<_> = bundles.iter().flat_map(|bundle| &bundle.branches).collect();
    all.sort_unstable_by_key(|table| table.id());
    all.dedup_by_key(|table| table.id());
    all
}

impl Version {
    pub(super) fn new(
        root: Arc<Node>,
        flushed: Seqno,
        shares: LiveShares,
        counters: Arc<TreeCounters>,
        parameters: Parameters,
    ) -> Version {
        let mut summary = Summary::default();
        let bundles = bundles(&root);
        let tables = tables(&bundles);
        let mut stored = Stored::default();
        for table in &tables {
            summary.tables += 1;
            stored.add(table);
            summary.disk_bytes += table.bytes();
            summary.table_bytes += table.bytes();
            summary.memory_bytes += 1024;
            summary.sample_bytes += table.properties().sample.memory_bytes();
        }
        for bundle in &bundles {
            summary.filter_bytes += bundle.maplet.file().bytes();
            summary.memory_bytes += 256 + 24 * bundle.branches.len() as u64;
            summary.memory_bytes += bundle.bloom.as_ref().map_or(0, |bloom| bloom.bytes() as u64);
        }
        summary.disk_bytes += summary.filter_bytes;
        for blob in files::blobs(&tables) {
            summary.disk_bytes += blob.bytes();
        }
        walk(&root, &mut |node| {
            let live = node.live();
            summary.memory_bytes += 256 + 128 * node.pivots.len() as u64;
            if node.height > 0 {
                summary.index_bytes += live.bytes;
                return;
            }
            let leaf = node.leaf_summary();
            if node.bundles.len() >= parameters.bundles_max {
                summary.pending_bytes += live.bytes.saturating_sub(leaf.settled_bytes);
            }
        });
        (summary.entries, summary.entry_bytes) = (stored.entries, stored.entry_bytes);
        let bundle_ids = bundles.iter().map(|bundle| bundle.id).collect();
        Version {
            bundle_ids,
            flushed,
            summary,
            live: shares.of(stored),
            counters,
            parameters,
            dead_parts: OnceLock::new(),
            path_gains: OnceLock::new(),
            root,
        }
    }

    /// Whether the bundle is reachable.
    pub(super) fn has_bundle(&self, id: BundleId) -> bool {
        self.bundle_ids.binary_search(&id).is_ok()
    }

    /// What the tree takes, and what of it is live.
    pub(super) fn space(&self) -> Space {
        let Version { summary, live, .. } = self;
        Space {
            disk_bytes: summary.disk_bytes,
            table_bytes: summary.table_bytes,
            tables: summary.tables,
            entry_bytes: summary.entry_bytes,
            live_entry_bytes: live.entry_bytes,
            live_blob_bytes: live.blob_bytes,
            filter_bytes: summary.filter_bytes,
            entries: summary.entries,
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

    /// What compactions of leaves would give back.
    pub(super) fn dead_parts(&self) -> &DeadParts {
        self.dead_parts.get_or_init(|| DeadParts::new(&self.root, self.mostly_dead_blobs()))
    }

    /// What they would give back with what is on its way to them.
    pub(super) fn path_gains(&self) -> &PathGains {
        self.path_gains.get_or_init(|| PathGains::new(&self.root))
    }

    /// The blob files, ascending, of which tables point to less than half.
    pub(super) fn mostly_dead_blobs(&self) -> Vec<FileId> {
        files::mostly_dead_blobs(&tables(&bundles(&self.root)))
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
        let mut probes = 0;
        let mut false_positives = 0;
        let mut node = &self.root;
        let mut position = node.pivot_of(key);
        prefetch_places(node.live_bundles(position), hash);
        let result = loop {
            // What the child will be asked is fetched while this node is.
            let below = node.pivots[position].child.as_ref().map(|child| {
                let position = child.pivot_of(key);
                prefetch_places(child.live_bundles(position), hash);
                (child, position)
            });
            let found = get_in_node(
                node,
                position,
                key,
                hash,
                snapshot,
                context,
                &mut |entry| f(entry),
                &mut probes,
                &mut false_positives,
            );
            match found {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break Ok(()),
                Err(error) => break Err(error),
            }
            match below {
                Some(below) => (node, position) = below,
                None => break Ok(()),
            }
        };
        self.counters.count_filters(probes, false_positives);
        result
    }

    fn runs_at(&self, at: RangeAt<'_>) -> RangeRuns {
        let path = self.path(|node| match at {
            RangeAt::Key(key) => node.pivot_of(key),
            RangeAt::Before(key) => node.pivot_before(key),
        });
        let leaf = path.last().map_or(&self.root, |(leaf, _)| leaf);
        let (lower, upper) = leaf.range();
        let mut runs = Vec::new();
        for (node, position) in &path {
            for bundle in node.live_bundles(*position).iter().rev() {
                let meets = |table: &&Arc<Table>| table_meets(table, lower, upper);
                let meeting = bundle.branches.iter().rev().filter(meets);
                runs.extend(meeting.map(|table| Run::Table(Arc::clone(table))));
            }
        }
        if runs.len() > 1 {
            leaf.seeks.fetch_add(runs.len() as u64 - 1, Ordering::Relaxed);
        }
        RangeRuns { lower: Arc::clone(&leaf.lower), upper: leaf.upper.clone(), runs }
    }

    fn files(&self) -> Vec<PathBuf> {
        let bundles = bundles(&self.root);
        let maplets = bundles.iter().map(|bundle| bundle.maplet.file().path());
        files::paths(&tables(&bundles), maplets)
    }

    fn describe(&self) -> Result<TreeDescription> {
        let mut levels: Vec<Vec<&Arc<Node>>> = vec![Vec::new(); self.root.height as usize + 1];
        walk(&self.root, &mut |node| levels[node.height as usize].push(node));
        let mut nodes = Vec::new();
        for node in levels.into_iter().rev().flatten() {
            nodes.push(describe_node(node)?);
        }
        Ok(TreeDescription {
            kind: super::KIND.name.to_string(),
            nodes,
            disk_bytes: self.summary.disk_bytes,
            live_bytes: self.live_bytes(),
            parameters: self.parameters.named(),
        })
    }

    fn check(&self, manifest: &Path, full: bool, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        super::check::check(self, manifest, full, problem)
    }
}

#[inline]
fn prefetch_places(bundles: &[Arc<Bundle>], hash: u64) {
    bundles.iter().for_each(|bundle| bundle.prefetch_place(hash));
}

#[allow(clippy::too_many_arguments)]
#[inline]
fn get_in_node(
    node: &Node,
    position: usize,
    key: &[u8],
    hash: u64,
    snapshot: Seqno,
    context: &ReadContext,
    f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    probes: &mut u64,
    false_positives: &mut u64,
) -> Result<ControlFlow<()>> {
    let live = node.live_bundles(position);
    live.iter().for_each(|bundle| bundle.prefetch_bytes(hash));
    for bundle in live.iter().rev() {
        if !bundle.may_hold(hash) {
            continue;
        }
        *probes += 1;
        let mut named = bundle.maplet.probe(hash, context)?;
        while let Some(ordinal) = named.pop_newest() {
            let Some(table) = bundle.branches.get(usize::from(ordinal)) else {
                return Err(Error::corruption(
                    &bundle.maplet.file().path(),
                    0,
                    "branch number in a maplet",
                    format_args!("below {}", bundle.branches.len()),
                    ordinal,
                ));
            };
            let mut flow = ControlFlow::Continue(());
            let mut held = false;
            table.get(key, snapshot, context, |entry| {
                held = true;
                flow = f(entry);
                flow
            })?;
            if flow.is_break() {
                return Ok(flow);
            }
            *false_positives += u64::from(!held);
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn describe_node(node: &Arc<Node>) -> Result<NodeDescription> {
    let (lower, upper) = node.range();
    let mut groups = Vec::new();
    for bundle in &node.bundles {
        let mut files = Vec::new();
        for (ordinal, table) in bundle.branches.iter().enumerate() {
            let properties = table.properties();
            files.push(FileDescription {
                label: "table".to_string(),
                id: table.id().0,
                bytes: table.bytes(),
                entries: properties.entries(),
                seqno_min: properties.seqno_min.0,
                seqno_max: properties.seqno_max.0,
                live_bytes: table_extent(table, lower, upper)?.bytes,
                counts: named([
                    ("tombstones", properties.deletes),
                    ("superseded", bundle.maplet.superseded(ordinal as u8)),
                ]),
            });
        }
        let maplet = &bundle.maplet;
        let counts =
            named([("maplet_bytes", maplet.bytes()), ("maplet_entries", maplet.entries())]);
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
    Ok(NodeDescription {
        label: "node".to_string(),
        id: node.id.0,
        height: node.height,
        lower: Slice::from(lower),
        upper: upper.map(Slice::from),
        children,
        groups,
    })
}
