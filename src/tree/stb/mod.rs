//! SplinterDB's STBε-tree (paper: Conway et al., USENIX ATC 2020).
//!
//! The *trunk* is a small tree of nodes in memory; its *bundles* refer to *branches* (tables on disk)
//! that hold all entries. A packed memtable is *incorporated* as the root's youngest bundle; a *flush*
//! moves a pivot's live bundles to the child by pointer; a *compaction* merges a node's small branches
//! afterwards, reading only what has not moved on. Each bundle has one *maplet* over its branches, so
//! that a probe a node, not a probe a branch, tells where a key may be.
//!
//! Invariants:
//! 1. The trunk is changed only under the `changes` lock, from the newest version, by copying; the
//!    manifest has the change before a version shows it.
//! 2. Everything of invariants in `node`, `trunk`, `plan`, `jobs` and `compaction`.

mod check;
mod choose;
mod compaction;
mod edit;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod jobs;
mod kind;
mod node;
mod open;
mod parameters;
mod plan;
mod reclaim;
#[cfg(test)]
mod stale_plan_tests;
#[cfg(test)]
mod test_support;
mod trunk;
mod version;

use std::sync::Arc;

use self::choose::Choice;
use self::compaction::CompactionJob;
use self::jobs::Jobs;
pub(super) use self::kind::KIND;
use self::node::{Bundle, BundleId, NEW, Node, edit as edit_node, ranges_meet};
use self::open::{OpenFiles, fetch_leaf_indexes};
use self::parameters::Parameters;
use self::plan::Plan;
use self::trunk::Rules;
use self::version::{Version, bundles, tables};
use super::damaged::Met;
use super::live::LiveKeys;
use super::output::TableOutput;
use super::record::{Still, commit_edit};
use super::space::Space;
use super::work::{compact_range, next_job};
use super::{
    ChangeLock, PackSource, Packed, PackedBytes, Tree, TreeContext, TreeState, TreeVersion,
};
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{NodeId, Seqno};
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{ArcSwap, Mutex, MutexGuard};
use crate::filter::{BloomFilter, FINGERPRINT_BITS_DEFAULT, MapletBuilder, SortedFingerprints};
use crate::jobs::Job;
use crate::manifest::TreeEdit;

/// Guarded by the change lock.
struct Changes {
    next_node: u64,
    live: LiveKeys,
}

/// An STBε-tree.
pub(super) struct StbTree {
    context: TreeContext,
    parameters: Parameters,
    changes: Mutex<Changes>,
    version: ArcSwap<Version>,
    jobs: Mutex<Jobs>,
    /// Space is short, but what takes it cannot be had back now (snapshots need it, say): slowing
    /// writers would not help.
    nothing_to_reclaim: AtomicBool,
}

impl StbTree {
    /// Rebuilds the trunk from its edits.
    pub(super) fn open(
        context: TreeContext,
        edits: &[TreeEdit],
        flushed: Seqno,
    ) -> Result<Arc<StbTree>> {
        let parameters = Parameters::new(&context.options);
        let mut recovered = edit::Recovered::default();
        let manifest_file = context.manifest.path();
        for edit in edits {
            recovered.apply(&edit.bytes, &manifest_file, edit.offset)?;
        }
        let (last_node, last_bundle) = recovered.last_numbers();
        let root = if edits.is_empty() {
            Arc::new(Node::empty_root())
        } else {
            let open = OpenFiles::open(&context, &recovered)?;
            let mut bundle = |id, record: &_| open.bundle(&context, id, record);
            let root = recovered.build(&manifest_file, &mut bundle)?;
            fetch_leaf_indexes(&root);
            root
        };
        let mut live = live_keys(&root, LiveKeys::default())?;
        let counters = Arc::clone(&context.counters);
        let shares = live.shares(0, || tables(&bundles(&root)));
        let version = Version::new(root, flushed, shares, counters, parameters);
        context.count_tables(version.summary.tables, live.sample_times());
        Ok(Arc::new(StbTree {
            context,
            parameters,
            changes: Mutex::new(Changes { next_node: last_node + 1, live }),
            version: ArcSwap::from_pointee(version),
            nothing_to_reclaim: AtomicBool::new(false),
            jobs: Mutex::new(Jobs::new(last_bundle)),
        }))
    }

    fn allocate_bundle(&self) -> BundleId {
        self.jobs.lock().allocate_bundle()
    }

    /// Commits `root` as the newest trunk and shows it.
    fn commit(
        &self,
        changes: &mut MutexGuard<'_, Changes>,
        mut root: Arc<Node>,
        flushed: Seqno,
    ) -> Result<()> {
        let first_new = changes.next_node;
        number_nodes(&mut root, &mut changes.next_node);
        let before = self.version.load();
        let payload = edit::encode(&root, &|node| node.id.0 >= first_new, &|bundle| {
            !before.has_bundle(bundle.id)
        });
        drop(before);
        commit_edit(&self.context, payload, flushed)?;
        changes.live.limit(self.context.sample_share());
        if changes.live.is_small() && changes.live.is_outgrown(&tables(&bundles(&root))) {
            // An estimate: what is damaged is reported by who needs it.
            let anew = live_keys(&root, changes.live.anew());
            changes.live = anew.unwrap_or_else(|_| changes.live.clone());
        }
        let counters = Arc::clone(&self.context.counters);
        let count = counters.tables.load(Ordering::Relaxed);
        let shares = changes.live.shares(count, || tables(&bundles(&root)));
        let version = Arc::new(Version::new(root, flushed, shares, counters, self.parameters));
        self.context.count_tables(version.summary.tables, changes.live.sample_times());
        self.version.store(Arc::clone(&version));
        self.context.installed(version);
        Ok(())
    }

    /// Swaps the inputs of a compaction for its output wherever they still are.
    fn install_compaction(&self, plan: &Plan, output: Option<Arc<Bundle>>) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        let rules = self.rules(&version);
        if self.replace(&mut root, plan, &plan.bundle_ids(), output.as_ref(), &rules)? {
            settle(&mut root, &rules)?;
            if planted(Bug::FilesGoBeforeEdit) {
                for bundle in &plan.bundles {
                    self.context.files.vfs.remove(&bundle.maplet.file().path())?;
                }
            }
            if plan.bottom {
                let branches = output.iter().flat_map(|bundle| &bundle.branches);
                branches.for_each(|table| changes.live.learn(&table.properties().sample));
            }
            self.commit(&mut changes, root, version.flushed)?;
        }
        Ok(())
    }

    fn replace(
        &self,
        node: &mut Arc<Node>,
        plan: &Plan,
        inputs: &[BundleId],
        output: Option<&Arc<Bundle>>,
        rules: &Rules,
    ) -> Result<bool> {
        if node.height == plan.height {
            if !node.bundles.iter().any(|bundle| inputs.contains(&bundle.id)) {
                return Ok(false);
            }
            return edit_node(node).replace_bundles(inputs, output.cloned());
        }
        let mut changed = false;
        for position in (0..node.pivots.len()).rev() {
            let range = (&*node.pivots[position].lower, node.pivot_upper(position).map(|u| &**u));
            let Some(child) = &node.pivots[position].child else { continue };
            if !ranges_meet(range, plan.range()) {
                continue;
            }
            let mut child = Arc::clone(child);
            if self.replace(&mut child, plan, inputs, output, rules)? {
                let node = edit_node(node);
                node.pivots[position].child = Some(child);
                trunk::split_child(node, position, rules)?;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// What changes of this version follow: sizes for a tree as large as it is.
    fn rules(&self, version: &Version) -> Rules {
        let parameters = self.parameters.sized(version.live.entry_bytes);
        Rules { parameters, manifest: self.context.manifest.path() }
    }

    /// What the tree takes. What snapshots hold on to counts as live: it cannot be had back.
    fn space(&self, version: &Version) -> Space {
        let now = self.context.snapshots();
        let retained_bytes = self.jobs.lock().claims.retained_bytes(&now);
        let mut space = version.space();
        space.live_entry_bytes = (space.live_entry_bytes + retained_bytes).min(space.entry_bytes);
        space
    }

    /// How many jobs have ended; to be asked before the version that a plan is made from is loaded.
    fn jobs_ended(&self) -> u64 {
        self.jobs.lock().claims.ended()
    }

    /// Claims the plan, unless somebody is in the way.
    fn claim(self: &Arc<Self>, plan: Plan, ended_before: u64) -> Option<CompactionJob> {
        let number = self.jobs.lock().claim(&plan, ended_before)?;
        Some(CompactionJob::new(Arc::clone(self), number, plan))
    }

    /// Damage that was met in a node: it is left alone for a while.
    fn note_damage(&self, error: &Error, height: u32, range: (&[u8], Option<&[u8]>)) {
        self.jobs.lock().damaged.note(error, height, range, self.context.clock.nanos());
    }

    /// Whether a node is left alone.
    fn is_left_alone(&self, node: &Node) -> bool {
        let now = self.context.clock.nanos();
        self.jobs.lock().damaged.meets(node.height, node.range(), now)
    }

    /// The same for damage alone.
    fn is_damaged(&self, node: &Node) -> bool {
        let now = self.context.clock.nanos();
        self.jobs.lock().damaged.meets_damage(node.height, node.range(), now)
    }

    fn note_retained(&self, bundle: &Bundle, snapshots: &[Seqno]) {
        self.jobs.lock().claims.retain(&bundle.branches, snapshots);
    }

    /// Moves everything in the range down to the leaves.
    fn flush_range(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        let rules = self.rules(&version);
        if flush_below(&mut root, lower, upper, &rules)? {
            trunk::settle(&mut root, &rules)?;
            self.commit(&mut changes, root, version.flushed)?;
        }
        Ok(())
    }

    /// Adds a packed memtable, if any, and records that everything up to `flushed` is in the tree.
    fn incorporate(&self, packed: Option<Arc<Bundle>>, flushed: Seqno) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        let mut incorporated = None;
        if let Some(packed) = packed {
            edit_node(&mut root).receive(&[Arc::clone(&packed)])?;
            incorporated = Some(packed);
            settle(&mut root, &self.rules(&version))?;
        }
        for table in incorporated.iter().flat_map(|bundle| &bundle.branches) {
            changes.live.apply(&table.properties().sample);
        }
        let result = self.commit(&mut changes, root, flushed.max(version.flushed));
        if result.is_err() {
            changes.live = live_keys(&version.root, changes.live.anew()).unwrap_or_default();
        }
        result
    }
}

/// Brings a trunk that has changed into shape. Where a damaged file is in the way, it stays as it is: that concerns
/// neither what is new nor what has been merged. A wrong split, of which the manifest is named, is an error.
fn settle(root: &mut Arc<Node>, rules: &Rules) -> Result<()> {
    let mut settled = Arc::clone(root);
    match trunk::settle(&mut settled, rules) {
        Ok(()) => *root = settled,
        Err(Error::Corruption { file, .. }) if file != rules.manifest => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn flush_below(
    node: &mut Arc<Node>,
    lower: &[u8],
    upper: Option<&[u8]>,
    rules: &Rules,
) -> Result<bool> {
    let mut changed = false;
    if node.height == 0 {
        return Ok(false);
    }
    for position in (0..node.pivots.len()).rev() {
        let range = (&*node.pivots[position].lower, node.pivot_upper(position).map(|u| &**u));
        if !ranges_meet(range, (lower, upper)) {
            continue;
        }
        if !node.live_bundles(position).is_empty() {
            trunk::flush_pivot(edit_node(node), position, rules)?;
            changed = true;
        }
    }
    for position in (0..node.pivots.len()).rev() {
        let range = (&*node.pivots[position].lower, node.pivot_upper(position).map(|u| &**u));
        let Some(child) = &node.pivots[position].child else { continue };
        if !ranges_meet(range, (lower, upper)) {
            continue;
        }
        let mut child = Arc::clone(child);
        if flush_below(&mut child, lower, upper, rules)? {
            let node = edit_node(node);
            node.pivots[position].child = Some(child);
            trunk::split_child(node, position, rules)?;
            changed = true;
        }
    }
    Ok(changed)
}

/// Gives numbers to the new nodes, children first.
fn number_nodes(node: &mut Arc<Node>, next: &mut u64) {
    if node.id != NEW {
        return;
    }
    let node = Arc::make_mut(node);
    for pivot in &mut node.pivots {
        if let Some(child) = &mut pivot.child {
            number_nodes(child, next);
        }
    }
    node.id = NodeId(*next);
    *next += 1;
}

/// What the samples of a trunk's tables say of the keys that are live in it, added to `live`, which has none.
fn live_keys(root: &Arc<Node>, mut live: LiveKeys) -> Result<LiveKeys> {
    fn take(node: &Arc<Node>, live: &mut LiveKeys) -> Result<()> {
        node.pivots
            .iter()
            .filter_map(|pivot| pivot.child.as_ref())
            .try_for_each(|child| take(child, live))?;
        for (position, bundle) in node.bundles.iter().enumerate() {
            let ranges = plan::live_ranges(node, position);
            for table in &bundle.branches {
                for (lower, upper) in &ranges {
                    let stretch = node::table_stretch(table, lower, upper.as_deref())?;
                    live.apply_stretch(table, stretch);
                }
            }
        }
        Ok(())
    }
    take(root, &mut live)?;
    Ok(live)
}

/// A packed memtable.
struct PackedBundle {
    tree: Arc<StbTree>,
    bundle: Arc<Bundle>,
    bytes: PackedBytes,
}

impl Packed for PackedBundle {
    fn bytes(&self) -> PackedBytes {
        self.bytes
    }

    fn incorporate(self: Box<Self>, flushed: Seqno) -> Result<()> {
        self.tree.incorporate(Some(self.bundle), flushed)
    }
}

impl Tree for StbTree {
    fn version(&self) -> Arc<dyn TreeVersion> {
        self.version.load_full()
    }

    fn pack(self: Arc<Self>, entries: &mut dyn PackSource) -> Result<Box<dyn Packed>> {
        let mut output = TableOutput::new(&self.context, false)?;
        let mut hashes = PageVec::with_capacity(entries.entries());
        let hasher = &self.context.files.hasher;
        let mut data_bytes = 0;
        loop {
            entries.next()?;
            let Some(entry) = entries.entry() else { break };
            let last = hashes.len() + 1 == entries.entries();
            if (planted(Bug::PackLosesLast) && last && !hashes.is_empty())
                || (planted(Bug::PackSkipsTombstones) && !last && entry.kind == EntryKind::Delete)
            {
                continue;
            }
            data_bytes += (entry.key.len() + entry.value.len()) as u64;
            let hash = hasher.hash(entry.key);
            hashes.push(hash);
            output.add_new(hash, entry)?;
        }
        let (table, table_bytes) = output.finish()?;
        let bloom = Some(BloomFilter::of_hashes(&hashes));
        let mut maplet = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, 1)?;
        maplet.add_branch(0, SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT))?;
        let maplet = maplet.write_file(&self.context.files)?;
        let written_bytes = table_bytes + maplet.file().bytes();
        self.context.packed(written_bytes);
        let id = self.allocate_bundle();
        let maplet = Arc::new(maplet);
        let bundle = Arc::new(Bundle { id, branches: vec![table], maplet, bloom });
        let bytes = PackedBytes { data: data_bytes, written: written_bytes };
        Ok(Box::new(PackedBundle { tree: self, bundle, bytes }))
    }

    fn next_job(self: Arc<Self>) -> Option<Box<dyn Job>> {
        let choose = || {
            let version = self.version.load_full();
            match self.choose(&version, Met::Noted)? {
                Some(Choice::Plan(plan)) => Ok(Some(plan)),
                Some(Choice::Path { lower, upper }) => {
                    self.flush_range(&lower, upper.as_deref())?;
                    Ok(self.next_uncompacted(&lower, upper.as_deref())?.map(|(plan, _)| plan))
                }
                None => self.plan_sought(&version),
            }
        };
        next_job(|| self.jobs_ended(), choose, |plan, ended| self.claim(plan, ended))
    }

    fn has_work(&self) -> bool {
        let version = self.version.load_full();
        // Damage that is met here is work: whoever does it notes and tells it.
        self.choose(&version, Met::NotNoted).map_or(true, |plan| plan.is_some())
            || self.most_sought(&version).is_some()
    }

    fn retry_refused(&self) -> Option<Error> {
        self.jobs.lock().damaged.retry_refused()
    }

    fn retry_damaged(&self) {
        self.jobs.lock().damaged.retry_damaged();
    }

    fn tell_damage(&self, error: &Error) -> bool {
        self.jobs.lock().damaged.tell(error)
    }

    fn compact(
        self: Arc<Self>,
        lower: &[u8],
        upper: Option<&[u8]>,
        wait: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.flush_range(lower, upper)?;
        compact_range(
            (lower, upper),
            wait,
            || self.jobs_ended(),
            |from| self.next_uncompacted(from, upper),
            |plan, ended| self.claim(plan, ended),
        )
    }

    fn backlog(&self, frozen_bytes: u64) -> f64 {
        let version = self.version.load();
        let (damaged, merge_bytes) = {
            let jobs = self.jobs.lock();
            (jobs.damaged.exists(self.context.clock.nanos()), jobs.merge_bytes())
        };
        // Where damage keeps a node from being compacted, waiting helps nobody.
        if damaged {
            return 0.0;
        }
        let pending =
            version.summary.pending_bytes as f64 / self.parameters.pending_bytes_max as f64;
        if self.nothing_to_reclaim.load(Ordering::Relaxed) {
            return pending;
        }
        let space = self.space(&version);
        let coming = space.left_of(merge_bytes) + version.live.dead_of(frozen_bytes);
        pending.max(space.backlog(coming))
    }

    fn state(&self) -> TreeState {
        let version = self.version.load();
        let summary = &version.summary;
        let live_bytes = version.live_bytes();
        let sample_bytes = summary.sample_bytes + version.live.memory_bytes;
        TreeState {
            backlog: self.backlog(0),
            compaction_pending_bytes: summary.pending_bytes,
            tables: summary.tables,
            entries: summary.entries,
            disk_bytes: summary.disk_bytes,
            live_bytes,
            live_keys: version.live.keys,
            superseding_share: version.live.superseding_share,
            memory_bytes: summary.memory_bytes + sample_bytes,
            sample_bytes,
        }
    }

    fn lock_changes(&self) -> Box<dyn ChangeLock + '_> {
        let guard = self.changes.lock();
        let root = Arc::clone(&self.version.load().root);
        Box::new(Still::new(guard, move || {
            (root.id != NEW).then(|| edit::encode(&root, &|_| true, &|_| true))
        }))
    }
}
