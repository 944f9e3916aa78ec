//! The tree that every kind with immutable files is: versions of nodes, changed by copying under one lock.
//!
//! [`VersionedTree`] is the tree, and implements [`Tree`] once. A kind says by
//! [`VersionedKind`] what its nodes and versions are, by [`Change`] what moves where, by [`Choose`] which job is next,
//! and by [`Compact`] what a compaction reads and writes.
//!
//! Invariants:
//! 1. The tree is changed only under the `changes` lock, from the newest submitted tree, by copying. The copies are made
//!    before the lock is taken, and again if another change has come first: no page is read, and no directory synced, while
//!    the lock is held. Only a change that others overtake again and again is made under the lock at last, so kinds make
//!    large changes in pieces. Nor is the manifest waited for under the lock: see [`pending`].
//! 2. Lock order: `changes`, then `jobs`.
//! 3. A version has the parameters that follow from the options under which its tree was submitted. Nodes that an older
//!    version shares with it have nothing that was derived from other parameters.
//! 4. Jobs are chosen and planned from the newest version, not from what is submitted. A job keeps its claim until its
//!    change is shown or refused. So a plan that is made of a version in which a job's inputs still are is excluded by that
//!    job's claim, or by its end (see [`Jobs`]).

mod check;
mod choose;
mod compaction;
mod deleted;
mod edit;
mod for_reads;
mod jobs;
mod node;
mod pending;
#[cfg(test)]
mod pending_tests;
mod quarantine;
mod range_deleted;
mod refs;
mod request;
mod split;
mod version;
mod worth;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use self::check::check_shape;
pub(super) use self::choose::{Choose, Gain, Intent, Now};
#[cfg(feature = "example")]
pub(super) use self::compaction::Compaction;
use self::compaction::Failed;
pub(super) use self::compaction::{Compact, CompactionJob, InputScan, STEP_ENTRIES, chunk_bytes};
use self::deleted::UNSETTLED;
pub(super) use self::edit::{DEFINED, EDIT_VERSION, Names, NodeBody, NodeRef, Recovered, encode};
pub(super) use self::jobs::Jobs;
pub(super) use self::node::{Head, NEW, Place, TreeNode, edit, live_keys, walk};
use self::pending::Changes;
use self::quarantine::Obstacle;
use self::range_deleted::RangeDeletesSearched;
pub(super) use self::refs::NodeRefs;
#[cfg(test)]
pub(super) use self::refs::count;
use self::request::{compact_range, next_requested, requested_at};
pub(super) use self::split::split_keys;
pub(super) use self::version::Version;
pub(super) use self::worth::{Deleted, Worth};
use super::context::sync_names;
use super::dead_blobs::{BlobUse, collected, collected_gain};
use super::live::LiveKeys;
use super::space::Space;
use super::{
    ChangeLock, Helpers, MappedIndex, NewEntries, PackSource, Packed, PackedBytes, Tree,
    TreeContext, TreeOptions, TreeState, TreeVersion,
};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::plain::{AtomicU64, AtomicUsize};
use crate::base::sync::{ArcSwap, Mutex};
use crate::jobs::Job;
use crate::manifest::TreeEdit;
use crate::table::Table;

/// While reads fail somewhere, the backlog counts at most as so much: writers are slowed for other places, and never stop for
/// these.
const BACKLOG_BESIDE_FAILURES_MAX: f64 = 0.9;

/// The rules that changes of one version follow.
#[derive(Debug, Clone)]
pub(super) struct Rules<P> {
    /// Sizes for the tree as it is now.
    pub(super) parameters: P,
    /// The file that has the nodes: errors name it.
    pub(super) manifest: PathBuf,
}

/// A compaction to do.
pub(super) trait CompactionPlan: Send {
    /// Where its inputs are.
    fn place(&self) -> &Place;

    /// Bytes to be read and merged.
    fn merge_bytes(&self) -> u64;

    /// The tables that are merged, as far as they lie in its place.
    fn merged_tables(&self) -> Vec<&Arc<Table>>;

    /// Whether its place is still to be compacted when it is done.
    fn is_preparation(&self) -> bool {
        false
    }

    /// The bundles that it replaces; `None` if no other job may work in its place.
    fn bundles(&self) -> Option<Vec<u64>> {
        None
    }
}

/// A kind of versioned tree: its types, its files and its versions. The value is what a tree of the kind has beyond the
/// [`VersionedTree`].
pub(super) trait VersionedKind: Sized + Send + Sync + 'static {
    type Parameters: Clone + Send + Sync;
    type Node: TreeNode;
    /// The part of a node's record in an edit that is the kind's own.
    type Body: NodeBody;
    /// What a version knows beyond its files.
    type Summary: Send + Sync;
    /// What nodes refer to, counted.
    type Refs: NodeRefs<Self::Node>;
    /// A packed memtable.
    type Packed: Send + Sync;
    type Plan: CompactionPlan;
    /// What a compaction has done so far.
    type Progress: Default + Send;

    /// Disk space beyond `space_amplification_max`, in shares of the live bytes, that due compactions give back, while
    /// the data that is written replaces nothing.
    const LOAD_SHARE: f64 = 0.0;

    /// How many memtables a table of a compacted tree has, about.
    const MERGED_MEMTABLES: u64 = 3;

    /// The memtables whose tables many nodes share, at most: these stay until the last node has merged its part. Zero if
    /// what writers wait for bounds them already.
    fn shared_memtables(_parameters: &Self::Parameters) -> u64 {
        0
    }

    fn parameters(context: &TreeContext, options: &TreeOptions) -> Self::Parameters;

    /// Bytes of indexes that each live key needs beside what is usual.
    fn index_entry_bytes(_parameters: &Self::Parameters) -> u64 {
        0
    }

    /// The kind's own part of a tree that edits have defined.
    ///
    /// # Errors
    /// If the system lacks what it needs.
    fn new(context: &TreeContext, recovered: &Recovered<Self::Body>) -> Result<Self>;

    /// The tree that edits have defined is about to be shown.
    fn opened(&self, _root: &Arc<Self::Node>, _flushed: Seqno) -> Result<()> {
        Ok(())
    }

    /// Builds the nodes that edits have defined.
    fn open(context: &TreeContext, recovered: &Recovered<Self::Body>) -> Result<Arc<Self::Node>>;

    /// An edit that defines the nodes of a number from `first_new` on, and what else the tree `before` does not refer to.
    fn encode(root: &Arc<Self::Node>, first_new: u64, before: Option<&Self::Refs>) -> Vec<u8>;

    fn as_version(version: Arc<Version<Self>>) -> Arc<dyn TreeVersion>;

    /// Derives from nodes what a version of them is asked for when it is shown: pages may have to be read for it.
    fn derive(root: &Arc<Self::Node>, parameters: &Self::Parameters);

    /// What the kind knows of a version of these nodes, which refer to `refs`.
    fn summarize(
        &self,
        root: &Arc<Self::Node>,
        refs: &Self::Refs,
        parameters: &Self::Parameters,
    ) -> Self::Summary;

    /// Sizes for the tree as it is in a version.
    fn sized(parameters: &Self::Parameters, _version: &Version<Self>) -> Self::Parameters {
        parameters.clone()
    }

    /// Writes a frozen memtable's entries.
    fn pack(
        tree: &VersionedTree<Self>,
        entries: &mut dyn PackSource,
    ) -> Result<(Self::Packed, PackedBytes)>;

    fn packed_tables(packed: &Self::Packed) -> &[Arc<Table>];

    /// A packed memtable is about to become part of the tree, which then has everything up to `flushed`.
    fn incorporating(
        _tree: &VersionedTree<Self>,
        _packed: &Self::Packed,
        _flushed: Seqno,
    ) -> Result<()> {
        Ok(())
    }

    /// It has become part of the tree, durably, or could not. What the kind derives from the tree follows. That cannot
    /// fail: what is part of the tree must not be incorporated again.
    fn incorporated(_tree: &VersionedTree<Self>, _packed: &Self::Packed, _is_part: bool) {}

    /// See [`Tree::closing`].
    fn closing(_tree: &VersionedTree<Self>) {}

    /// How far behind compactions are, without those for space: 1 if writers have to wait.
    fn lag(version: &Version<Self>) -> f64;

    /// Bytes that are due for compaction.
    fn pending_bytes(version: &Version<Self>) -> u64;

    /// The disk space of an index beside the tables, and the part of it that is in use.
    fn index_bytes(_version: &Version<Self>) -> (u64, u64) {
        (0, 0)
    }

    /// Memory that nodes and open files use, without samples of keys and a mapped index.
    fn memory_bytes(version: &Version<Self>) -> u64;

    /// An index that is mapped from a file.
    fn mapped_index(_version: &Version<Self>) -> MappedIndex {
        MappedIndex::default()
    }

    /// See [`Tree::set_index_memory`].
    fn set_index_memory(_tree: &VersionedTree<Self>, bytes: u64) -> u64 {
        bytes
    }

    /// See [`Tree::trim_index`].
    fn trim_index(_tree: &VersionedTree<Self>) {}

    /// See [`Tree::index_room_bytes`].
    fn index_room_bytes(_tree: &VersionedTree<Self>, _new: NewEntries) -> u64 {
        0
    }
}

/// How data moves in a kind of versioned tree: the kind's `change`.
pub(super) trait Change: VersionedKind {
    /// Adds a packed memtable as the youngest data of all.
    fn receive(
        root: &mut Arc<Self::Node>,
        packed: &Self::Packed,
        rules: &Rules<Self::Parameters>,
    ) -> Result<()>;

    /// Moves data down and divides nodes until none holds too much; adds a level if the root had to be divided.
    ///
    /// # Errors
    /// `Corruption`, which names the manifest, if a node's parts would not fill its range.
    fn rebalance(root: &mut Arc<Self::Node>, rules: &Rules<Self::Parameters>) -> Result<()>;
}

/// Whether a change brings files whose names need not be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NewFiles {
    Some,
    None,
}

/// A tree that no memtable has been added to for so long, and for twice as long as usual, is settled.
const SETTLED_NANOS: u64 = 3_000_000_000;

/// How often a change is made anew because another has come first, before it is made under the change lock.
const TRIES_MAX: u32 = 16;
/// A change that has been overtaken after so long is made under the lock next, when its pages are cached: once more
/// would be overtaken once more.
const TRY_NANOS_LONG: u64 = 5_000_000;

/// The tables that a change brings, for the estimate of what is live.
#[derive(Clone, Copy)]
pub(super) enum NewTables<'a> {
    /// None that says anything new.
    None,
    /// Data that is younger than all before.
    Younger(&'a [Arc<Table>]),
    /// All data of their ranges, merged.
    Merged(&'a [Arc<Table>]),
}

/// A versioned tree.
pub(super) struct VersionedTree<K: VersionedKind> {
    pub(super) context: TreeContext,
    pub(super) own: K,
    pub(super) changes: Mutex<Changes<K>>,
    pub(super) version: ArcSwap<Version<K>>,
    pub(super) jobs: Mutex<Jobs>,
    /// Space is short, but none can be reclaimed now (snapshots need it, say): slowing writers would not help.
    pub(super) nothing_to_reclaim: AtomicBool,
    /// The number of wasted reads from which on a node may have too many.
    look_for_waste_from: AtomicU64,
    /// Merges for reads that run, or are looked for.
    merges_for_reads: AtomicUsize,
    /// Of the deletes in tables, those that the last search for deleted parts has left.
    deletes_left: AtomicU64,
    /// The flushed number at which the tree is settled: nobody writes, or somebody waits for background work.
    settled_at: AtomicU64,
    /// When the last memtable was incorporated, or was waiting for it, and how long after the one before.
    incorporated_nanos: AtomicU64,
    interval_nanos: AtomicU64,
    /// As `settled_at`, until deletes are searched for in vain.
    deletes_settled_at: AtomicU64,
    range_deletes_searched: RangeDeletesSearched,
}

impl<K: VersionedKind> VersionedTree<K> {
    /// Rebuilds the tree from its edits.
    pub(super) fn open(
        context: TreeContext,
        edits: &[TreeEdit],
        flushed: Seqno,
    ) -> Result<Arc<VersionedTree<K>>> {
        let recovered = Recovered::of_edits(edits, &context.manifest.path())?;
        let own = K::new(&context, &recovered)?;
        let root = match edits.is_empty() {
            true => Arc::new(K::Node::empty_root()),
            false => K::open(&context, &recovered)?,
        };
        own.opened(&root, flushed)?;
        let live = match edits.is_empty() {
            true => LiveKeys::default(),
            false => live_keys(&root, LiveKeys::reopened())?,
        };
        let mut changes =
            Changes::new(&context, (root, flushed), recovered.last_number() + 1, live);
        let version = changes.newest_version(&context, &own);
        Ok(Arc::new(VersionedTree {
            context,
            own,
            changes: Mutex::new(changes),
            version: ArcSwap::from_pointee(version),
            jobs: Mutex::default(),
            nothing_to_reclaim: AtomicBool::new(false),
            look_for_waste_from: AtomicU64::new(1),
            merges_for_reads: AtomicUsize::new(0),
            deletes_left: AtomicU64::new(0),
            settled_at: AtomicU64::new(UNSETTLED),
            deletes_settled_at: AtomicU64::new(UNSETTLED),
            range_deletes_searched: RangeDeletesSearched::default(),
            incorporated_nanos: AtomicU64::new(0),
            interval_nanos: AtomicU64::new(0),
        }))
    }

    /// Shows a tree that no edit has defined.
    #[cfg(test)]
    pub(super) fn show(&self, root: Arc<K::Node>, flushed: Seqno) {
        let mut changes = self.changes.lock();
        // Numbers are never used twice.
        walk(&root, &mut |node| changes.next_node = changes.next_node.max(node.id.0 + 1));
        changes.replace(Arc::clone(&root), flushed);
        drop(changes);
        self.version.store(Arc::new(self.version_of(root, flushed)));
    }

    /// A version of some root, with the estimate of what is live made anew.
    #[cfg(test)]
    pub(super) fn version_of(&self, root: Arc<K::Node>, flushed: Seqno) -> Version<K> {
        let live = live_keys(&root, LiveKeys::default()).expect("tables whose indexes are read");
        Changes::new(&self.context, (root, flushed), 1, live)
            .newest_version(&self.context, &self.own)
    }

    /// Changes the newest tree by `change`, which returns false if there is nothing to commit, and may be called several
    /// times. The estimate of what is live follows the `tables` that it brings.
    ///
    /// The change is made without the change lock, since pages may have to be read for it. It is submitted if its base is
    /// still the newest tree; if another change has come first, it is made anew. When this returns, the change is durable
    /// and shown.
    ///
    /// # Errors
    /// What `change` returns: nothing has been submitted then. A refusal of the manifest, also of a change on which this
    /// one was built: the tree is as before. Any other error of the manifest has poisoned the store.
    pub(super) fn change(
        &self,
        new_files: NewFiles,
        change: impl Fn(&mut Arc<K::Node>, &Rules<K::Parameters>) -> Result<bool>,
        flushed: Seqno,
        tables: NewTables<'_>,
    ) -> Result<()> {
        if new_files == NewFiles::Some {
            sync_names(&self.context)?;
        }
        let mut tries = 0;
        loop {
            // Whoever is overtaken again and again lets nobody in at last.
            let early = (tries >= TRIES_MAX).then(|| self.lock());
            let found = early.as_ref().map_or_else(|| self.lock().find(), |changes| changes.find());
            let began = self.context.clock.nanos();
            let mut root = Arc::clone(&found.base.root);
            let rules = self.rules(&found.base.parameters, &self.version.load());
            if !change(&mut root, &rules)? {
                drop(early);
                // What the caller looks at next is the newest version.
                match self.wait_until_shown(&found)? {
                    true => return Ok(()),
                    false => continue,
                }
            }
            K::derive(&root, &found.base.parameters);
            let mut changes = early.unwrap_or_else(|| self.lock());
            if changes.is_newest(&found.base) || planted(Bug::ChangeOfOldVersion) {
                if let Some(submitted) = self.submit(&mut changes, root, flushed, tables)? {
                    drop(changes);
                    return self.finish(submitted);
                }
                drop(changes);
                self.settle_locked(|_, _| {});
            }
            let took = self.context.clock.nanos().saturating_sub(began);
            tries = if took > TRY_NANOS_LONG { TRIES_MAX } else { tries + 1 };
        }
    }

    /// Makes the estimate of what is live anew from the samples of all tables.
    fn gather_live_keys(&self) {
        let Some((root, anew)) = self.begin_gathering() else { return };
        self.end_gathering(live_keys(&root, anew));
    }

    /// The tree to gather from, and the estimate to begin with. `None` if that is being done already.
    pub(super) fn begin_gathering(&self) -> Option<(Arc<K::Node>, LiveKeys)> {
        let mut changes = self.lock();
        if changes.younger.is_some() {
            return None;
        }
        changes.younger = Some(Vec::new());
        Some((Arc::clone(changes.shown_root()), changes.live.anew()))
    }

    /// Shows an estimate that has been gathered. What has come meanwhile is added: compactions do not change what is
    /// live.
    pub(super) fn end_gathering(&self, gathered: Result<LiveKeys>) {
        let mut changes = self.lock();
        let younger = changes.younger.take().unwrap_or_default();
        // An estimate: damage is reported by those who need the damaged page.
        let Ok(mut live) = gathered else { return };
        younger.iter().for_each(|table| live.apply(&table.properties().sample));
        changes.live = live;
        self.show_renewed(&mut changes);
    }

    /// The rules for a change of a tree of these parameters. What is live in it is what is live in the newest version, or
    /// nearly.
    fn rules(&self, parameters: &K::Parameters, version: &Version<K>) -> Rules<K::Parameters> {
        let parameters = K::sized(parameters, version);
        Rules { parameters, manifest: self.context.manifest.path() }
    }

    /// The disk space that the tree uses. What snapshots retain counts as live: it cannot be reclaimed.
    pub(super) fn space(&self, version: &Version<K>) -> Space {
        let now = self.context.snapshots();
        let retained_bytes = self.jobs.lock().retained_bytes(&now);
        let mut space = version.space();
        space.live_entry_bytes = (space.live_entry_bytes + retained_bytes).min(space.entry_bytes);
        let idle_nanos = (self.context.clock.nanos())
            .saturating_sub(self.incorporated_nanos.load(Ordering::Relaxed));
        let usual_nanos = self.interval_nanos.load(Ordering::Relaxed);
        if self.settled_at.load(Ordering::Relaxed) == version.flushed.0
            || idle_nanos >= SETTLED_NANOS.max(2 * usual_nanos)
        {
            space.load_share = 0.0;
        }
        space
    }

    /// The blob files out of which merges copy values, ascending.
    pub(super) fn collected_blobs(&self, version: &Version<K>) -> Vec<BlobUse> {
        match version.dead_blobs.is_empty() {
            true => Vec::new(),
            false => {
                let wanted_bytes = self.space(version).excess_bytes();
                collected(&version.dead_blobs, wanted_bytes, version.files.blob_bytes)
            }
        }
    }

    /// Whether there is room for a merge of so many bytes, which copies so many bytes of values, beside those that are
    /// running. Until a merge ends, its output takes space beside its inputs.
    pub(super) fn has_room(&self, version: &Version<K>, merge_bytes: u64, copied: u64) -> bool {
        let running = {
            let jobs = self.jobs.lock();
            if jobs.is_idle() {
                return true;
            }
            jobs.running_bytes()
        };
        let space = self.space(version);
        let outputs = space.left_of(running.merged + merge_bytes) + running.copied + copied;
        space.has_room(outputs)
    }

    /// The bytes of values that carrying out a plan copies out of blob files, about.
    fn copied_bytes(&self, plan: &K::Plan, collected: &[BlobUse]) -> u64 {
        if collected.is_empty() {
            return 0;
        }
        let tables = plan.merged_tables();
        let (_, copied) = collected_gain(tables.iter().copied(), collected);
        let whole: u64 = tables.iter().map(|table| table.properties().entry_bytes()).sum();
        let share = plan.merge_bytes() as f64 / whole.max(1) as f64;
        (copied as f64 * share.min(1.0)) as u64
    }

    /// How many jobs have ended; to be asked before the version is loaded that a plan is made from.
    pub(super) fn jobs_ended(&self) -> u64 {
        self.jobs.lock().ended()
    }

    /// Claims the plan, unless another job excludes it.
    pub(super) fn claim(
        self: &Arc<Self>,
        plan: K::Plan,
        ended_before: u64,
    ) -> Option<CompactionJob<K>> {
        let collected = self.collected_blobs(&self.version.load());
        let copied_bytes = self.copied_bytes(&plan, &collected);
        let number = self.jobs.lock().claim(&plan, copied_bytes, ended_before)?;
        let collected = collected.iter().map(|blob| blob.file).collect();
        Some(CompactionJob::new(Arc::clone(self), number, plan, collected))
    }

    /// Quarantines a place, if the error tells of damage, of a full disk, or of a failed read.
    pub(super) fn note_damage(&self, error: &Error, place: &Place) {
        self.jobs.lock().quarantine.note(error, place, self.context.clock.nanos());
    }

    /// Returns `plan`, of a node. If planning failed and the job was to be started, quarantines the node.
    pub(super) fn planned<P>(&self, plan: Result<P>, node: &K::Node, intent: Intent) -> Result<P> {
        if intent == Intent::Start
            && let Err(error) = &plan
        {
            self.note_damage(error, &Place::of(node));
        }
        plan
    }
}

impl<K: Choose + Compact> VersionedTree<K> {
    /// Begins what `choose` chooses. While other jobs get in first, it chooses anew. Where all is to be merged for a caller
    /// anyway, that is begun instead.
    fn begin(
        self: &Arc<Self>,
        choose: impl Fn(&Self, &Version<K>, Intent) -> Result<Option<K::Choice>>,
        boxed: impl FnOnce(CompactionJob<K>) -> Box<dyn Job>,
    ) -> Option<Box<dyn Job>> {
        let plan = || match choose(self, &self.version.load_full(), Intent::Start)? {
            Some(choice) => K::plan_of(self, choice),
            None => Ok(None),
        };
        loop {
            let ended_before = self.jobs_ended();
            match plan() {
                Ok(plan) => {
                    let plan = plan?;
                    if let Some(job) = requested_at(self, plan.place()) {
                        return Some(Box::new(job));
                    }
                    let version = self.version.load();
                    let copied_bytes = self.copied_bytes(&plan, &self.collected_blobs(&version));
                    // What writes no files waits for no room.
                    let (merged, copied) = (plan.merge_bytes(), copied_bytes);
                    if (merged + copied == 0 || self.has_room(&version, merged, copied))
                        && let Some(job) = self.claim(plan, ended_before)
                    {
                        return Some(boxed(job));
                    }
                }
                Err(error) => return Some(Box::new(Failed(error))),
            }
            if self.jobs_ended() == ended_before {
                return None;
            }
        }
    }
}

impl<K: Change> VersionedTree<K> {
    /// Adds a packed memtable: everything up to `flushed` is in the tree then.
    fn incorporate(&self, packed: &K::Packed, flushed: Seqno) -> Result<()> {
        let receive = |root: &mut Arc<K::Node>, rules: &Rules<K::Parameters>| {
            K::receive(root, packed, rules)?;
            rebalance_undamaged::<K>(root, rules)?;
            Ok(true)
        };
        K::incorporating(self, packed, flushed)?;
        let tables = NewTables::Younger(K::packed_tables(packed));
        let now = self.context.clock.nanos();
        let before = self.incorporated_nanos.swap(now, Ordering::Relaxed);
        self.interval_nanos.store(now.saturating_sub(before), Ordering::Relaxed);
        let changed = self.change(NewFiles::Some, receive, flushed, tables);
        K::incorporated(self, packed, changed.is_ok());
        changed
    }
}

/// Rebalances a tree that has changed. If a damaged file prevents that, the tree stays as it is: that concerns neither
/// what is new nor what has been merged. A wrong split, for which the manifest is named, is an error.
pub(super) fn rebalance_undamaged<K: Change>(
    root: &mut Arc<K::Node>,
    rules: &Rules<K::Parameters>,
) -> Result<()> {
    let mut balanced = Arc::clone(root);
    match K::rebalance(&mut balanced, rules) {
        Ok(()) => *root = balanced,
        Err(Error::Corruption { file, .. }) if file != rules.manifest => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The key ranges of a tree that edits define; no file is opened.
pub(super) fn repair_ranges<K: VersionedKind>(
    edits: &[TreeEdit],
    file: &Path,
) -> Result<Vec<super::RepairRange>> {
    Recovered::<K::Body>::of_edits(edits, file)?.repair_ranges(file)
}

/// A packed memtable, with the tree that packed it.
struct PackedMemtable<K: VersionedKind> {
    tree: Arc<VersionedTree<K>>,
    packed: K::Packed,
    bytes: PackedBytes,
}

impl<K: Change> Packed for PackedMemtable<K> {
    fn bytes(&self) -> PackedBytes {
        self.bytes
    }

    fn incorporate(self: Box<Self>, flushed: Seqno) -> Result<()> {
        self.tree.incorporate(&self.packed, flushed)
    }
}

impl<K: Change + Choose + Compact> Tree for VersionedTree<K> {
    fn version(&self) -> Arc<dyn TreeVersion> {
        K::as_version(self.version.load_full())
    }

    fn pack(self: Arc<Self>, entries: &mut dyn PackSource) -> Result<Box<dyn Packed>> {
        let (packed, bytes) = K::pack(&self, entries)?;
        self.context.packed(bytes.written);
        Ok(Box::new(PackedMemtable { tree: self, packed, bytes }))
    }

    /// What a caller waits for comes after what writers may have to wait for.
    fn next_job(self: Arc<Self>) -> Option<Box<dyn Job>> {
        self.begin(Self::choose_needed, |job| Box::new(job))
            .or_else(|| Some(Box::new(next_requested(&self)?)))
            .or_else(|| self.begin_for_reads())
            .or_else(|| self.begin(Self::choose_useful, |job| Box::new(job)))
    }

    fn has_work(&self) -> bool {
        // Damage that is found here is work: the job quarantines and reports it.
        self.choose(&self.version.load_full(), Intent::Ask).map_or(true, |choice| choice.is_some())
    }

    fn retry_refused(&self) -> Option<Error> {
        self.jobs.lock().quarantine.retry_refused()
    }

    fn retry_damaged(&self) {
        self.jobs.lock().quarantine.retry_damaged();
    }

    fn settle(&self) {
        self.settled_at.store(self.version.load().flushed.0, Ordering::Relaxed);
        self.settle_deleted();
        self.settle_range_deleted();
    }

    fn tell_damage(&self, error: &Error) -> bool {
        self.jobs.lock().quarantine.tell(error)
    }

    fn compact(
        self: Arc<Self>,
        lower: &[u8],
        upper: Option<&[u8]>,
        helpers: &dyn Helpers,
    ) -> Result<()> {
        // Level by level: what is above moves down before what is below is merged.
        for height in (0..=K::begin_compact(&self, (lower, upper))?).rev() {
            compact_range(&self, height, (lower, upper), helpers)?;
        }
        K::end_compact(&self, (lower, upper));
        Ok(())
    }

    fn backlog(&self, frozen_bytes: u64) -> f64 {
        let version = self.version.load();
        let (obstacle, running) = {
            let jobs = self.jobs.lock();
            (jobs.quarantine.obstacle(self.context.clock.nanos()), jobs.running_bytes())
        };
        // While damage prevents the compaction of a node, delaying writers would not help.
        if obstacle == Obstacle::DamageOrRoom {
            return 0.0;
        }
        let lag = K::lag(&version);
        if self.nothing_to_reclaim.load(Ordering::Relaxed) {
            return lag;
        }
        if frozen_bytes > 0 {
            self.incorporated_nanos.store(self.context.clock.nanos(), Ordering::Relaxed);
        }
        let mut space = self.space(&version);
        // Whoever writes again after a rest does not wait for what only a tree at rest gives back.
        space.load_share = version.space().load_share;
        let outputs = space.left_of(running.merged) + running.copied;
        let due = space.left_of(K::pending_bytes(&version).saturating_sub(running.merged));
        let soon = outputs + version.live.dead_of(frozen_bytes);
        match obstacle {
            // What is due where reads fail may stay due. All other places still have to keep up.
            Obstacle::FailedReads => lag.max(space.backlog(soon)).min(BACKLOG_BESIDE_FAILURES_MAX),
            _ => lag.max(space.backlog(soon + space.shared(due))),
        }
    }

    fn state(&self) -> TreeState {
        let version = self.version.load();
        let Version { files, live, .. } = &**version;
        let mapped_index = K::mapped_index(&version);
        TreeState {
            backlog: self.backlog(0),
            compaction_pending_bytes: K::pending_bytes(&version),
            tables: files.tables,
            entries: files.entries,
            disk_bytes: version.disk_bytes(),
            live_bytes: version.live_bytes(),
            live_keys: live.keys,
            superseding_share: live.superseding_share,
            memory_bytes: K::memory_bytes(&version)
                + version.sample_bytes()
                + mapped_index.memory_bytes(),
            sample_bytes: version.sample_bytes(),
            mapped_index,
        }
    }

    /// Shows the tree as it is once more, with the parameters that follow from the options. As in a change, its nodes are
    /// copied before the lock is taken.
    fn set_options(&self, options: TreeOptions) {
        let options = Arc::new(options);
        let parameters = K::parameters(&self.context, &options);
        for tries in 0.. {
            let early = (tries >= TRIES_MAX).then(|| self.lock());
            let found = early.as_ref().map_or_else(|| self.lock().find(), |changes| changes.find());
            let root = found.base.root.for_other_parameters();
            K::derive(&root, &parameters);
            let mut changes = early.unwrap_or_else(|| self.lock());
            if !changes.is_newest(&found.base) {
                continue;
            }
            self.context.options.store(Arc::clone(&options));
            let (options, parameters) = (Arc::clone(&options), parameters.clone());
            let submitted = self.submit_altered(&mut changes, root, options, parameters);
            drop(changes);
            match submitted.map_or(Ok(()), |submitted| self.finish(submitted)) {
                // The change before it was refused, and this with it.
                Err(error) if error.is_refusal() => {}
                // A poisoned store follows no options: nobody writes or compacts.
                _ => return,
            }
        }
    }

    fn mapped_index(&self) -> MappedIndex {
        K::mapped_index(&self.version.load())
    }

    fn set_index_memory(&self, bytes: u64) -> u64 {
        K::set_index_memory(self, bytes)
    }

    fn trim_index(&self) {
        K::trim_index(self);
    }

    fn index_room_bytes(&self, new: NewEntries) -> u64 {
        K::index_room_bytes(self, new)
    }

    fn closing(&self) {
        K::closing(self);
    }

    fn lock_changes(&self) -> Box<dyn ChangeLock + '_> {
        Box::new(self.guard())
    }
}
