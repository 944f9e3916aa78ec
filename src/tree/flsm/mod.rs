//! PebblesDB's fragmented log-structured merge tree (paper: Raju et al., SOSP 2017).
//!
//! Each level is divided into *guards*: ranges of keys within which tables may overlap. A packed memtable
//! is *incorporated* by reference: the guards of the first level that it meets each see their own stretch
//! of it. A *compaction* merges one guard's tables and appends what it makes of them to the guards below,
//! without reading what is there, so that a byte is written once a level. Only on the last level are
//! tables merged in place. Guards are found where the data is: a guard of the last level that holds too
//! much is divided at keys that it holds, and one with too many below it is divided at some of theirs.
//!
//! Invariants:
//! 1. The guards are changed only under the `changes` lock, from the newest version, by copying; the
//!    manifest has the change before a version shows it.
//! 2. Everything of invariants in `guard`, `divide`, `plan`, `jobs`, `compaction` and `install`.

mod check;
mod choose;
mod compaction;
mod describe;
mod divide;
mod edit;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod guard;
mod install;
mod jobs;
mod kind;
mod lookup;
mod open;
mod parameters;
mod plan;
mod totals;
mod version;

use std::sync::Arc;

use self::compaction::{CompactionJob, Made};
use self::guard::{Guard, GuardId, NEW};
use self::jobs::Jobs;
pub(super) use self::kind::KIND;
use self::lookup::Presence;
use self::parameters::Parameters;
use self::plan::Plan;
use self::totals::Inventory;
use self::version::Version;
use super::damaged::Met;
use super::live::LiveKeys;
use super::output::TableOutput;
use super::record::{Still, commit_edit};
use super::space::Space;
use super::work::{compact_range, next_job};
use super::{
    ChangeLock, PackSource, Packed, PackedBytes, Tree, TreeContext, TreeState, TreeVersion,
};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{ArcSwap, Mutex, MutexGuard};
use crate::jobs::Job;
use crate::manifest::TreeEdit;
use crate::table::Table;

/// Guarded by the change lock.
struct Changes {
    next_guard: u64,
    inventory: Inventory,
    live: LiveKeys,
}

/// A fragmented log-structured merge tree.
pub(super) struct FlsmTree {
    context: TreeContext,
    parameters: Parameters,
    changes: Mutex<Changes>,
    version: ArcSwap<Version>,
    jobs: Mutex<Jobs>,
    /// Space is short, but what takes it cannot be had back now (snapshots need it, say): slowing
    /// writers would not help.
    nothing_to_reclaim: AtomicBool,
}

impl FlsmTree {
    /// Rebuilds the guards from their edits.
    pub(super) fn open(
        context: TreeContext,
        edits: &[TreeEdit],
        flushed: Seqno,
    ) -> Result<Arc<FlsmTree>> {
        let parameters = Parameters::new(&context.options, &context.files.hasher);
        let (root, last_guard) = open::recover(&context, edits)?;
        let inventory = Inventory::of(&root);
        let counters = Arc::clone(&context.counters);
        let presence = Arc::new(Presence::default());
        let totals = inventory.totals;
        let mut live = live_keys(&root, LiveKeys::default());
        let shares = live.shares(totals.tables, || version::tables(&root));
        context.count_tables(totals.tables, live.sample_times());
        let version =
            Version::new(root, flushed, totals, shares, counters, presence, parameters.clone());
        Ok(Arc::new(FlsmTree {
            context,
            parameters,
            changes: Mutex::new(Changes { next_guard: last_guard + 1, inventory, live }),
            version: ArcSwap::from_pointee(version),
            jobs: Mutex::default(),
            nothing_to_reclaim: AtomicBool::new(false),
        }))
    }

    /// Commits `root` as the newest tree and shows it.
    fn commit(
        &self,
        changes: &mut MutexGuard<'_, Changes>,
        mut root: Arc<Guard>,
        flushed: Seqno,
    ) -> Result<()> {
        let first_new = changes.next_guard;
        number_guards(&mut root, &mut changes.next_guard);
        let payload = edit::encode(&root, &|guard| guard.id.0 >= first_new);
        commit_edit(&self.context, payload, flushed)?;
        let before = self.version.load_full();
        changes.inventory.change(&before.root, &root, first_new);
        let totals = changes.inventory.totals;
        changes.live.limit(self.context.sample_share());
        if changes.live.is_small() && changes.live.is_outgrown(&version::tables(&root)) {
            changes.live = live_keys(&root, changes.live.anew());
        }
        let shares = changes.live.shares(totals.tables, || version::tables(&root));
        self.context.count_tables(totals.tables, changes.live.sample_times());
        let version = Arc::new(Version::new(
            root,
            flushed,
            totals,
            shares,
            Arc::clone(&self.context.counters),
            Arc::clone(&before.presence),
            self.parameters.clone(),
        ));
        self.version.store(Arc::clone(&version));
        self.context.installed(version);
        Ok(())
    }

    /// Swaps the inputs of a plan for what was made of them.
    fn install(&self, plan: &Plan, made: &Made) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let root = Arc::clone(&version.root);
        let manifest = self.context.manifest.path();
        let parts = install::replace(root, plan, made, &self.parameters, &manifest)?;
        let root = divide::settle(parts, &self.parameters, &manifest)?;
        if plan.height == 0 && made.is_all {
            made.tables.iter().for_each(|table| changes.live.learn(&table.properties().sample));
        }
        self.commit(&mut changes, root, version.flushed)
    }

    /// Makes one guard of two.
    fn join(&self, plan: &Plan) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        if install::join(&mut root, plan, &self.parameters) {
            let manifest = self.context.manifest.path();
            let root = divide::settle(vec![root], &self.parameters, &manifest)?;
            self.commit(&mut changes, root, version.flushed)?;
        }
        Ok(())
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

    /// Claims a plan's guard, unless somebody is in the way.
    fn claim(self: &Arc<Self>, plan: Plan, ended_before: u64) -> Option<CompactionJob> {
        let number = self.jobs.lock().claim(&plan, ended_before)?;
        Some(CompactionJob::new(Arc::clone(self), number, plan))
    }

    fn note_retained(&self, tables: &[Arc<Table>], snapshots: &[Seqno]) {
        self.jobs.lock().claims.retain(tables, snapshots);
    }

    /// Damage that was met in a guard: it is left alone for a while.
    fn note_damage(&self, error: &Error, height: u32, range: (&[u8], Option<&[u8]>)) {
        self.jobs.lock().damaged.note(error, height, range, self.context.clock.nanos());
    }

    /// Adds a packed memtable, if any, and records that everything up to `flushed` is in the tree.
    fn incorporate(&self, packed: Option<Arc<Table>>, flushed: Seqno) -> Result<()> {
        let mut changes = self.changes.lock();
        let version = self.version.load_full();
        let mut root = Arc::clone(&version.root);
        let mut incorporated = None;
        if let Some(table) = packed {
            divide::receive(&mut root, true, &[Arc::clone(&table)], &self.parameters)?;
            incorporated = Some(table);
            let manifest = self.context.manifest.path();
            match divide::settle(vec![Arc::clone(&root)], &self.parameters, &manifest) {
                Ok(settled) => root = settled,
                // What lies damaged below stays where it is; what is new can still be taken in.
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(table) = incorporated {
            changes.live.apply(&table.properties().sample);
        }
        let result = self.commit(&mut changes, root, flushed.max(version.flushed));
        if result.is_err() {
            changes.live = live_keys(&version.root, changes.live.anew());
        }
        result
    }
}

/// What the samples of a tree's tables say of the keys that are live in it, added to `live`, which has none.
fn live_keys(root: &Arc<Guard>, mut live: LiveKeys) -> LiveKeys {
    fn take(guard: &Guard, live: &mut LiveKeys) {
        guard.children.iter().for_each(|child| take(child, live));
        for fragment in &guard.fragments {
            live.apply_stretch(&fragment.table, fragment.stretch());
        }
    }
    take(root, &mut live);
    live
}

/// Gives numbers to the new guards, children first.
fn number_guards(guard: &mut Arc<Guard>, next: &mut u64) {
    if guard.id != NEW {
        return;
    }
    let guard = Arc::make_mut(guard);
    guard.children.iter_mut().for_each(|child| number_guards(child, next));
    guard.id = GuardId(*next);
    *next += 1;
}

/// A packed memtable.
struct PackedTable {
    tree: Arc<FlsmTree>,
    table: Arc<Table>,
    bytes: PackedBytes,
}

impl Packed for PackedTable {
    fn bytes(&self) -> PackedBytes {
        self.bytes
    }

    fn incorporate(self: Box<Self>, flushed: Seqno) -> Result<()> {
        self.tree.incorporate(Some(self.table), flushed)
    }
}

impl Tree for FlsmTree {
    fn version(&self) -> Arc<dyn TreeVersion> {
        self.version.load_full()
    }

    fn pack(self: Arc<Self>, entries: &mut dyn PackSource) -> Result<Box<dyn Packed>> {
        let mut output = TableOutput::new(&self.context, self.parameters.filters)?;
        let mut data_bytes = 0;
        loop {
            entries.next()?;
            let Some(entry) = entries.entry() else { break };
            data_bytes += (entry.key.len() + entry.value.len()) as u64;
            output.add_new(self.context.files.hasher.hash(entry.key), entry)?;
        }
        let (table, written_bytes) = output.finish()?;
        self.context.packed(written_bytes);
        let bytes = PackedBytes { data: data_bytes, written: written_bytes };
        Ok(Box::new(PackedTable { tree: self, table, bytes }))
    }

    fn next_job(self: Arc<Self>) -> Option<Box<dyn Job>> {
        let choose = || self.choose(&self.version.load_full(), Met::Noted);
        next_job(|| self.jobs_ended(), choose, |plan, ended| self.claim(plan, ended))
    }

    fn has_work(&self) -> bool {
        let version = self.version.load_full();
        // Damage that is met here is work: whoever does it notes and tells it.
        self.choose(&version, Met::NotNoted).map_or(true, |plan| plan.is_some())
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
        // Level by level: what is above moves down before what is below is merged.
        for height in (0..=self.version.load().root.height).rev() {
            let next = |from: &[u8]| {
                let plan = self.next_uncompacted(&self.version.load_full(), height, from, upper)?;
                Ok(plan.map(|plan| {
                    let behind = plan.upper.clone();
                    (plan, behind)
                }))
            };
            let claim = |plan, ended| self.claim(plan, ended);
            compact_range((lower, upper), wait, || self.jobs_ended(), next, claim)?;
        }
        Ok(())
    }

    fn backlog(&self, frozen_bytes: u64) -> f64 {
        let version = self.version.load();
        let (damaged, merge_bytes) = {
            let jobs = self.jobs.lock();
            (jobs.damaged.exists(self.context.clock.nanos()), jobs.merge_bytes())
        };
        // Where damage keeps a guard from being compacted, waiting helps nobody.
        if damaged {
            return 0.0;
        }
        // A guard that has just become due is nobody's worry; at two and a half times what it should
        // hold, writers have to wait.
        let behind = ((version.totals.urgency - 1.0) / 1.5).max(0.0);
        if self.nothing_to_reclaim.load(Ordering::Relaxed) {
            return behind;
        }
        let space = self.space(&version);
        let coming = space.left_of(merge_bytes) + version.live.dead_of(frozen_bytes);
        behind.max(space.backlog(coming))
    }

    fn state(&self) -> TreeState {
        let version = self.version.load();
        TreeState {
            backlog: self.backlog(0),
            compaction_pending_bytes: version.totals.pending_bytes,
            tables: version.files.tables,
            entries: version.files.entries,
            disk_bytes: version.disk_bytes(),
            live_bytes: version.live_bytes(),
            live_keys: version.live.keys,
            superseding_share: version.live.superseding_share,
            memory_bytes: version.memory_bytes(),
            sample_bytes: version.sample_bytes(),
        }
    }

    fn lock_changes(&self) -> Box<dyn ChangeLock + '_> {
        let guard = self.changes.lock();
        let root = Arc::clone(&self.version.load().root);
        Box::new(Still::new(guard, move || {
            (root.id != NEW).then(|| edit::encode(&root, &|_| true))
        }))
    }
}
