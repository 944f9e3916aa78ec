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
//! 2. Everything of invariants in `node`, `trunk`, `plan` and `compaction`.

mod check;
mod compaction;
mod edit;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod node;
mod open;
mod parameters;
mod plan;
mod reclaim;
#[cfg(test)]
mod stale_plan_tests;
mod trunk;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::compaction::CompactionJob;
use self::node::{Bundle, BundleId, NEW, Node, edit as edit_node, ranges_meet, walk};
use self::open::OpenFiles;
use self::parameters::Parameters;
use self::plan::{Plan, Wish, plan};
use self::version::Version;
use super::output::TableOutput;
use super::record::commit_edit;
use super::{ChangeLock, PackSource, Packed, Tree, TreeContext, TreeState, TreeVersion};
use crate::base::checksum::hash_key;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, NodeId, Seqno};
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{ArcSwap, Mutex, MutexGuard};
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, Sieve, SortedFingerprints};
use crate::jobs::{Job, Step};

/// Guarded by the change lock.
struct Changes {
    next_node: u64,
}

/// A job that is under way, and what it works on.
struct ActiveJob {
    number: u64,
    height: u32,
    lower: node::Key,
    upper: Option<node::Key>,
    bundles: Vec<BundleId>,
}

#[derive(Default)]
struct Jobs {
    next_number: u64,
    active: Vec<ActiveJob>,
    /// How many have ended.
    ended: u64,
    /// Numbers for bundles, drawn by jobs.
    next_bundle: u64,
    /// Tables that hold versions which only snapshots need, with those snapshots: nothing is to be
    /// gained there before one of them has gone.
    retained: BTreeMap<FileId, Vec<Seqno>>,
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
            recovered.build(&manifest_file, &mut |id, record| open.bundle(&context, id, record))?
        };
        let version = Version::new(root, flushed, 0.0, Arc::clone(&context.counters), parameters);
        Ok(Arc::new(StbTree {
            context,
            parameters,
            changes: Mutex::new(Changes { next_node: last_node + 1 }),
            version: ArcSwap::from_pointee(version),
            nothing_to_reclaim: AtomicBool::new(false),
            jobs: Mutex::new(Jobs { next_bundle: last_bundle + 1, ..Jobs::default() }),
        }))
    }

    fn allocate_bundle(&self) -> BundleId {
        let mut jobs = self.jobs.lock();
        jobs.next_bundle += 1;
        BundleId(jobs.next_bundle - 1)
    }

    /// The live snapshots, ascending, the newest visible state last.
    fn snapshots(&self) -> Vec<Seqno> {
        self.context.observer.upgrade().map(|observer| observer.snapshots()).unwrap_or_default()
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
        let known: BTreeSet<BundleId> =
            version::bundles(&before.root).iter().map(|bundle| bundle.id).collect();
        let payload = edit::encode(&root, &|node| node.id.0 >= first_new, &|bundle| {
            !known.contains(&bundle.id)
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
        if let Some(observer) = self.context.observer.upgrade() {
            observer.installed(version);
        }
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
            if !ranges_meet(range, (&plan.lower, plan.upper.as_deref())) {
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
        self.jobs.lock().ended
    }

    /// Claims the plan, unless another job works on some of the same, or one has ended since the plan
    /// was begun: what that one has swapped in, the plan may not have seen, and would bring the inputs
    /// back beside their output.
    fn claim(self: &Arc<Self>, plan: Plan, ended_before: u64) -> Option<CompactionJob> {
        let mut jobs = self.jobs.lock();
        if jobs.ended != ended_before || conflicts(&jobs, &plan) {
            return None;
        }
        let number = jobs.next_number;
        jobs.next_number += 1;
        jobs.active.push(ActiveJob {
            number,
            height: plan.height,
            lower: Arc::clone(&plan.lower),
            upper: plan.upper.clone(),
            bundles: plan.bundle_ids(),
        });
        drop(jobs);
        Some(CompactionJob::new(Arc::clone(self), number, plan))
    }

    fn job_ended(&self, number: u64) {
        let mut jobs = self.jobs.lock();
        jobs.active.retain(|job| job.number != number);
        jobs.ended += 1;
    }

    fn note_retained(&self, bundle: &Bundle, snapshots: &[Seqno]) {
        let mut jobs = self.jobs.lock();
        for table in &bundle.branches {
            jobs.retained.insert(table.id(), snapshots.to_vec());
        }
    }

    fn note_compaction(&self, read_bytes: u64, written_bytes: u64, nanos: u64) {
        let counters = &self.context.counters;
        counters.compactions.add(1);
        counters.compaction_read_bytes.add(read_bytes);
        counters.compaction_written_bytes.add(written_bytes);
        if let Some(observer) = self.context.observer.upgrade() {
            observer.compacted(read_bytes, written_bytes, nanos);
        }
    }

    /// The plan that is most urgent among those nobody works on.
    fn choose(&self, version: &Version) -> Result<Option<Plan>> {
        // A full compaction tidies its leaf too, so when space is short it comes first.
        if version.space_excess() > SPACE_EXCESS_MAX / 4.0
            && let Some(plan) = self.choose_reclaiming(version)?
        {
            return Ok(Some(plan));
        }
        let mut best: Option<Plan> = None;
        let mut failure = None;
        walk(&version.root, &mut |node| {
            if failure.is_some() || node.bundles.len() < self.parameters.bundles_max {
                return;
            }
            match plan(node, &self.parameters, Wish::Tidy) {
                Ok(Some(plan))
                    if best.as_ref().is_none_or(|best| best.urgency < plan.urgency)
                        && !conflicts(&self.jobs.lock(), &plan) =>
                {
                    best = Some(plan);
                }
                Ok(_) => {}
                Err(error) => failure = Some(error),
            }
        });
        match failure {
            Some(error) => Err(error),
            None if best.is_some() => Ok(best),
            None => self.choose_reclaiming(version),
        }
    }

    /// The leaf in which a full compaction gives back most, if the tree takes too much space.
    fn choose_reclaiming(&self, version: &Version) -> Result<Option<Plan>> {
        if version.space_excess() <= 0.0 {
            return Ok(None);
        }
        let now = self.snapshots();
        let dead = version.dead_parts();
        let mut best: Option<(u64, &Arc<Node>)> = None;
        walk(&version.root, &mut |node| {
            if node.height > 0 || node.bundles.is_empty() {
                return;
            }
            let live = node.live().bytes.max(1);
            let gain = dead.gain(node);
            if gain * 20 < live || !self.gains(node, &now) {
                return;
            }
            let score = gain * 1000 / live;
            if best.is_none_or(|(most, _)| most < score) {
                best = Some((score, node));
            }
        });
        let nothing = best.is_none() && self.jobs.lock().active.is_empty();
        self.nothing_to_reclaim.store(nothing, Ordering::Relaxed);
        let Some((_, node)) = best else { return Ok(None) };
        let chosen = plan(node, &self.parameters, Wish::Full)?;
        Ok(chosen.filter(|plan| !conflicts(&self.jobs.lock(), plan)))
    }

    /// The leaf whose iterators have read most from more tables than one, if that has cost more than
    /// merging the leaf would (PebblesDB's seek-triggered compaction, generalised).
    fn most_sought<'a>(&self, version: &'a Version) -> Option<&'a Arc<Node>> {
        if !self.context.options.seek_compaction {
            return None;
        }
        let mut best: Option<(u64, &Arc<Node>)> = None;
        walk(&version.root, &mut |node| {
            let seeks = node.seeks.load(Ordering::Relaxed);
            let wasted_bytes = seeks * UNIT_BYTES as u64;
            // A merge reads and writes the leaf, in order, at a quarter of what reads here and there cost.
            let worth = node.height == 0 && wasted_bytes > node.live().bytes / 2 + SEEK_BYTES_MIN;
            if worth && best.is_none_or(|(most, _)| most < seeks) {
                best = Some((seeks, node));
            }
        });
        best.map(|(_, node)| node)
    }

    /// Moves all that a much sought leaf's path holds down to it, and plans to merge it there.
    fn plan_sought(&self, version: &Version) -> Result<Option<Plan>> {
        let Some(leaf) = self.most_sought(version) else { return Ok(None) };
        leaf.seeks.store(0, Ordering::Relaxed);
        let (lower, upper) = (Arc::clone(&leaf.lower), leaf.upper.clone());
        self.flush_range(&lower, upper.as_deref())?;
        Ok(self.next_uncompacted(&lower, upper.as_deref())?.map(|(plan, _)| plan))
    }

    /// Whether a full compaction of the leaf could drop something that the last one could not.
    fn gains(&self, node: &Node, now: &[Seqno]) -> bool {
        let mut branches = node.bundles.iter().flat_map(|bundle| &bundle.branches);
        match (branches.next(), branches.next()) {
            (Some(only), None) => match self.jobs.lock().retained.get(&only.id()) {
                // The newest state moves on; what was a snapshot's is free once it has gone.
                Some(then) => {
                    let held = then.len().saturating_sub(1);
                    then[..held].iter().any(|snapshot| !now.contains(snapshot))
                }
                None => true,
            },
            (first, _) => first.is_some(),
        }
    }

    /// The next leaf in the range that is not yet one clean branch, as a plan.
    fn next_uncompacted(
        &self,
        from: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<Option<(Plan, Option<node::Key>)>> {
        let version = self.version.load_full();
        let mut cursor: node::Key = Arc::from(from);
        loop {
            let mut node = &version.root;
            while let Some(child) = &node.pivots[node.pivot_of(&cursor)].child {
                node = child;
            }
            if node.upper.as_ref().is_some_and(|upper| *upper <= cursor) {
                // From here the way would lead to this leaf again, and so on for ever.
                return Err(Error::corruption(
                    &self.context.manifest.path(),
                    node.id.0,
                    "upper bound of a leaf",
                    format_args!(
                        "above \"{}\", for which the pivots lead to it",
                        cursor.escape_ascii()
                    ),
                    format_args!("{:?}", node.upper),
                ));
            }
            let clean = match node.bundles.as_slice() {
                [] => true,
                [bundle] => match bundle.branches.as_slice() {
                    [table] => {
                        *table.first_key() >= *node.lower
                            && node.upper.as_ref().is_none_or(|upper| *table.last_key() < **upper)
                            && node.leaf_summary().reclaimable.entries == 0
                    }
                    _ => false,
                },
                _ => false,
            };
            if !clean && let Some(plan) = plan(node, &self.parameters, Wish::Full)? {
                return Ok(Some((plan, node.upper.clone())));
            }
            match &node.upper {
                Some(next) if upper.is_none_or(|upper| **next < *upper) => {
                    cursor = Arc::clone(next);
                }
                _ => return Ok(None),
            }
        }
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

fn conflicts(jobs: &Jobs, plan: &Plan) -> bool {
    jobs.active.iter().any(|job| {
        job.height == plan.height
            && ranges_meet((&job.lower, job.upper.as_deref()), (&plan.lower, plan.upper.as_deref()))
            && plan.bundles.iter().any(|bundle| job.bundles.contains(&bundle.id))
    })
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

/// Reads of iterators that a leaf has to have wasted, beyond what merging it costs, to be merged.
const SEEK_BYTES_MIN: u64 = 64 << 10;

/// Disk space above the allowed, in shares of the live bytes, at which writers all but stand still.
const SPACE_EXCESS_MAX: f64 = 0.15;

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

/// Keys of a packed memtable that are looked up to learn how many of its entries supersede others.
const SAMPLE_KEYS: usize = 32;

impl Tree for StbTree {
    fn version(&self) -> Arc<dyn TreeVersion> {
        self.version.load_full()
    }

    fn pack(&self, entries: &mut dyn PackSource) -> Result<Packed> {
        let mut output = TableOutput::new(&self.context, false)?;
        let mut hashes = Vec::with_capacity(entries.entries());
        let mut data_bytes = 0;
        let mut sample = Vec::with_capacity(SAMPLE_KEYS + 1);
        let sample_every = entries.entries() / SAMPLE_KEYS + 1;
        loop {
            entries.next()?;
            let Some(entry) = entries.entry() else { break };
            if hashes.len() % sample_every == 0 {
                sample.push((Box::from(entry.key), hash_key(entry.key)));
            }
            let last = hashes.len() + 1 == entries.entries();
            if (planted(Bug::PackLosesLast) && last && !hashes.is_empty())
                || (planted(Bug::PackSkipsTombstones) && !last && entry.kind == EntryKind::Delete)
            {
                continue;
            }
            data_bytes += (entry.key.len() + entry.value.len()) as u64;
            hashes.push(hash_key(entry.key));
            output.add_new(entry)?;
        }
        let (table, table_bytes) = output.finish()?;
        let sieve = Some(Sieve::of_hashes(&hashes));
        let mut maplet = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, 1)?;
        maplet.add_branch(0, SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT))?;
        let maplet = maplet.write_file(&self.context.files)?;
        let written_bytes = table_bytes + maplet.file().bytes();
        let counters = &self.context.counters;
        counters.flushes.add(1);
        counters.flush_written_bytes.add(written_bytes);
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
        loop {
            let ended = self.jobs_ended();
            let version = self.version.load_full();
            let chosen = match self.choose(&version) {
                Ok(None) => self.plan_sought(&version),
                chosen => chosen,
            };
            match chosen {
                Ok(chosen) => {
                    if let Some(job) = self.claim(chosen?, ended) {
                        return Some(Box::new(job));
                    }
                }
                Err(error) => return Some(Box::new(Failed(error))),
            }
            if self.jobs_ended() == ended {
                return None;
            }
        }
    }

    fn has_work(&self) -> bool {
        let version = self.version.load_full();
        self.choose(&version).is_ok_and(|plan| plan.is_some())
            || self.most_sought(&version).is_some()
    }

    fn compact(self: Arc<Self>, lower: &[u8], upper: Option<&[u8]>, wait: &dyn Fn()) -> Result<()> {
        self.flush_range(lower, upper)?;
        let mut cursor: node::Key = Arc::from(lower);
        loop {
            let ended = self.jobs_ended();
            let Some((plan, leaf_upper)) = self.next_uncompacted(&cursor, upper)? else { break };
            match self.claim(plan, ended) {
                Some(mut job) => while job.step()? == Step::Again {},
                None => {
                    wait();
                    continue;
                }
            }
            match leaf_upper {
                Some(next) if upper.is_none_or(|upper| *next < *upper) => cursor = next,
                _ => break,
            }
        }
        Ok(())
    }

    fn state(&self) -> TreeState {
        let version = self.version.load();
        let summary = &version.summary;
        let live_bytes = version.live_bytes();
        let pending = summary.pending_bytes as f64 / self.parameters.pending_bytes_max as f64;
        // Writers are slowed from a little above the allowed space on, ever more up to the limit.
        let excess = match self.nothing_to_reclaim.load(Ordering::Relaxed) {
            false => (version.space_excess() / SPACE_EXCESS_MAX + 0.4).clamp(0.0, 0.98),
            true => 0.0,
        };
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
        Box::new(StillTrunk { tree: self, _guard: guard })
    }
}

struct StillTrunk<'a> {
    tree: &'a StbTree,
    _guard: MutexGuard<'a, Changes>,
}

impl ChangeLock for StillTrunk<'_> {
    fn snapshot(&self) -> Option<Vec<u8>> {
        let root = self.tree.version.load_full();
        if root.root.id == NEW {
            return None;
        }
        Some(edit::encode(&root.root, &|_| true, &|_| true))
    }
}

/// Reports what went wrong while work was looked for.
struct Failed(Error);

impl Job for Failed {
    fn step(&mut self) -> Result<Step> {
        Err(self.0.clone())
    }
}
