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

use self::compaction::CompactionJob;
use self::jobs::Jobs;
use self::node::{Bundle, BundleId, NEW, Node, edit as edit_node, ranges_meet};
pub(super) use self::open::stretches;
use self::open::{OpenFiles, fetch_leaf_indexes};
use self::parameters::Parameters;
use self::plan::Plan;
use self::version::Version;
use super::output::TableOutput;
use super::record::{Still, commit_edit};
use super::work::{compact_range, next_job};
use super::{ChangeLock, PackSource, Packed, Tree, TreeContext, TreeState, TreeVersion, space};
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{NodeId, Seqno};
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{ArcSwap, Mutex, MutexGuard};
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, Sieve, SortedFingerprints};
use crate::jobs::Job;

/// Guarded by the change lock.
struct Changes {
    next_node: u64,
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
        edits: &[Vec<u8>],
        flushed: Seqno,
    ) -> Result<Arc<StbTree>> {
        let parameters = Parameters::new(&context.options);
        let mut recovered = edit::Recovered::default();
        let manifest_file = context.manifest.path();
        for edit in edits {
            recovered.apply(edit, &manifest_file)?;
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
        let version = Version::new(root, flushed, 0.0, Arc::clone(&context.counters), parameters);
        Ok(Arc::new(StbTree {
            context,
            parameters,
            changes: Mutex::new(Changes { next_node: last_node + 1 }),
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
        superseding_share: f64,
    ) -> Result<()> {
        let first_new = changes.next_node;
        number_nodes(&mut root, &mut changes.next_node);
        let before = self.version.load();
        let payload = edit::encode(&root, &|node| node.id.0 >= first_new, &|bundle| {
            !before.has_bundle(bundle.id)
        });
        drop(before);
        commit_edit(&self.context, payload, flushed)?;
        let version = Arc::new(Version::new(
            root,
            flushed,
            superseding_share,
            Arc::clone(&self.context.counters),
            self.parameters,
        ));
        self.version.store(Arc::clone(&version));
        self.context.installed(version);
        Ok(())
    }

    /// Swaps the inputs of a compaction for its output wherever they still are.
    fn install_compaction(&self, plan: &Plan, output: Option<Arc<Bundle>>) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        if self.replace(&mut root, plan, &plan.bundle_ids(), output.as_ref())? {
            trunk::settle(&mut root, &self.parameters)?;
            if planted(Bug::FilesGoBeforeEdit) {
                for bundle in &plan.bundles {
                    self.context.files.vfs.remove(&bundle.maplet.file().path())?;
                }
            }
            self.commit(&mut changes, root, version.flushed, version.superseding_share)?;
        }
        Ok(())
    }

    fn replace(
        &self,
        node: &mut Arc<Node>,
        plan: &Plan,
        inputs: &[BundleId],
        output: Option<&Arc<Bundle>>,
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
            if self.replace(&mut child, plan, inputs, output)? {
                let node = edit_node(node);
                node.pivots[position].child = Some(child);
                trunk::split_child(node, position, &self.parameters)?;
                changed = true;
            }
        }
        Ok(changed)
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

    fn note_retained(&self, bundle: &Bundle, snapshots: &[Seqno]) {
        self.jobs.lock().claims.retain(&bundle.branches, snapshots);
    }

    /// Moves everything in the range down to the leaves.
    fn flush_range(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        if flush_below(&mut root, lower, upper, &self.parameters)? {
            trunk::settle(&mut root, &self.parameters)?;
            self.commit(&mut changes, root, version.flushed, version.superseding_share)?;
        }
        Ok(())
    }
}

fn flush_below(
    node: &mut Arc<Node>,
    lower: &[u8],
    upper: Option<&[u8]>,
    parameters: &Parameters,
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
            trunk::flush_pivot(edit_node(node), position, parameters)?;
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
        if flush_below(&mut child, lower, upper, parameters)? {
            let node = edit_node(node);
            node.pivots[position].child = Some(child);
            trunk::split_child(node, position, parameters)?;
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

/// What `pack` hands to `incorporate`.
struct PackedBundle {
    bundle: Arc<Bundle>,
    /// Some of its keys, with their hashes.
    sample: Vec<(Box<[u8]>, u64)>,
}

impl PackedBundle {
    /// The share of the sampled keys that the tree holds already.
    fn superseding_share(&self, version: &Version) -> Result<f64> {
        let mut held = 0;
        for (key, hash) in &self.sample {
            held += usize::from(version.may_hold(key, *hash)?);
        }
        Ok(held as f64 / self.sample.len().max(1) as f64)
    }
}

/// Keys of a packed memtable that are looked up to learn how many of its entries supersede others. Each
/// may read a page, so a small memtable has fewer.
fn sample_keys(memtable_bytes: u64) -> usize {
    (memtable_bytes >> 18).clamp(8, 32) as usize
}

impl Tree for StbTree {
    fn version(&self) -> Arc<dyn TreeVersion> {
        self.version.load_full()
    }

    fn pack(&self, entries: &mut dyn PackSource) -> Result<Packed> {
        let mut output = TableOutput::new(&self.context, false)?;
        let mut hashes = PageVec::with_capacity(entries.entries());
        let hasher = &self.context.files.hasher;
        let mut data_bytes = 0;
        let sample_keys = sample_keys(self.context.options.memtable_bytes);
        let mut sample = Vec::with_capacity(sample_keys);
        let sample_every = entries.entries() / sample_keys + 1;
        loop {
            entries.next()?;
            let Some(entry) = entries.entry() else { break };
            let hash = hasher.hash(entry.key);
            if hashes.len() % sample_every == 0 {
                sample.push((Box::from(entry.key), hash));
            }
            let last = hashes.len() + 1 == entries.entries();
            if (planted(Bug::PackLosesLast) && last && !hashes.is_empty())
                || (planted(Bug::PackSkipsTombstones) && !last && entry.kind == EntryKind::Delete)
            {
                continue;
            }
            data_bytes += (entry.key.len() + entry.value.len()) as u64;
            hashes.push(hash);
            output.add_new(entry)?;
        }
        let (table, table_bytes) = output.finish()?;
        let sieve = Some(Sieve::of_hashes(&hashes));
        let mut maplet = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, 1)?;
        maplet.add_branch(0, SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT))?;
        let maplet = maplet.write_file(&self.context.files)?;
        let written_bytes = table_bytes + maplet.file().bytes();
        self.context.packed(written_bytes);
        let id = self.allocate_bundle();
        let maplet = Arc::new(maplet);
        let bundle = Arc::new(Bundle { id, branches: vec![table], maplet, sieve });
        let inner = Box::new(PackedBundle { bundle, sample });
        Ok(Packed { inner, data_bytes, written_bytes })
    }

    fn incorporate(&self, packed: Option<Packed>, flushed: Seqno) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        let mut share = version.superseding_share;
        if let Some(packed) = packed {
            let Ok(packed) = packed.inner.downcast::<PackedBundle>() else {
                unreachable!("packed by another kind of tree")
            };
            // An estimate: what is damaged is reported by who needs it.
            share = share * 0.75 + packed.superseding_share(&version).unwrap_or(share) * 0.25;
            edit_node(&mut root).receive(&[packed.bundle])?;
            let mut settled = Arc::clone(&root);
            match trunk::settle(&mut settled, &self.parameters) {
                Ok(()) => root = settled,
                // What lies damaged below stays where it is; what is new can still be taken in.
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        self.commit(&mut changes, root, flushed.max(version.flushed), share)
    }

    fn next_job(self: Arc<Self>) -> Option<Box<dyn Job>> {
        let choose = || {
            let version = self.version.load_full();
            match self.choose(&version)? {
                None => self.plan_sought(&version),
                chosen => Ok(chosen),
            }
        };
        next_job(|| self.jobs_ended(), choose, |plan, ended| self.claim(plan, ended))
    }

    fn has_work(&self) -> bool {
        let version = self.version.load_full();
        self.choose(&version).is_ok_and(|plan| plan.is_some())
            || self.most_sought(&version).is_some()
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

    fn state(&self) -> TreeState {
        let version = self.version.load();
        let summary = &version.summary;
        let live_bytes = version.live_bytes();
        // Where damage keeps a node from being compacted, waiting helps nobody.
        let pending = match self.jobs.lock().damaged.exists(self.context.clock.nanos()) {
            true => 0.0,
            false => summary.pending_bytes as f64 / self.parameters.pending_bytes_max as f64,
        };
        let nothing_to_reclaim = self.nothing_to_reclaim.load(Ordering::Relaxed);
        let excess = space::backlog(version.space_excess(), nothing_to_reclaim);
        TreeState {
            backlog: pending.max(excess),
            compaction_pending_bytes: summary.pending_bytes,
            tables: summary.tables,
            entries: summary.entries,
            disk_bytes: summary.disk_bytes,
            live_bytes,
            memory_bytes: summary.memory_bytes,
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
