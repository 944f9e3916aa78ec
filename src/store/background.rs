//! Background work: which job comes next, the trees' own jobs, and upkeep of journal and manifest. (`flush` has the
//! jobs that bring memtables into trees.)
//!
//! Invariants:
//! 1. A journal segment is removed only after the manifest has durably recorded that nothing in it is needed.

use std::sync::Arc;

use super::events::Event;
use super::flush::FlushJob;
use super::state::KeyspaceState;
use super::store::Store;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::jobs::{Job, Step, Urgency, WorkSource};
use crate::manifest::Edit;

/// How long a keyspace rests after its background work has failed.
const REST_NANOS: u64 = 1_000_000_000;
/// How long after a compaction that there was no room for: the next may be one that makes room.
const REST_FULL_NANOS: u64 = 5_000_000;
/// A manifest is rewritten when it is this many times what is live in it.
const MANIFEST_GROWTH_MAX: u64 = 4;

impl WorkSource for Store {
    fn next_job(&self, least: Urgency) -> Option<Box<dyn Job>> {
        let store = self.store.get()?.upgrade()?;
        if self.panicked.load(Ordering::Acquire) {
            // What was half done then must not be built on.
            return None;
        }
        if least == Urgency::Immediate {
            let is_due = self.journal.maintenance_due() && !self.poison.is_set();
            return is_due.then(|| Box::new(Segments { store }) as Box<dyn Job>);
        }
        let now = self.clock.nanos();
        let is_over = |rest: &AtomicU64| rest.load(Ordering::Relaxed) <= now;
        let mut keyspaces = self.all_keyspaces();
        // It waits for whoever freezes a memtable, and so hides that bug from nearly all threads.
        if !planted(Bug::FreezeAnnouncedEarly) {
            self.give_back(&keyspaces);
        }
        keyspaces.retain(|keyspace| !keyspace.is_dropped());
        for keyspace in keyspaces.iter().filter(|keyspace| is_over(&keyspace.rest_until_nanos)) {
            let claimed = keyspace.claim_waiting();
            if claimed.is_some() {
                let keyspace = Arc::clone(keyspace);
                return Some(Box::new(FlushJob { store, keyspace, claimed }));
            }
        }
        if least == Urgency::Pressing {
            return None;
        }
        if is_over(&self.upkeep_rest_until_nanos)
            && self.upkeep_due()
            && !self.upkeep_running.swap(true, Ordering::AcqRel)
        {
            return Some(Box::new(Upkeep { store }));
        }
        let candidates =
            keyspaces.iter().filter(|keyspace| is_over(&keyspace.tree_rest_until_nanos));
        let mut candidates = furthest_behind_first(candidates, |k| k.tree.state().backlog);
        candidates.find_map(|keyspace| {
            let job = Arc::clone(&keyspace.tree).next_job()?;
            let (store, keyspace) = (Arc::clone(&store), Arc::clone(keyspace));
            Some(Box::new(TreeJob { store, keyspace, job }) as Box<dyn Job>)
        })
    }

    fn job_panicked(&self, what: &str) {
        self.panicked(&format!("background work panicked: {what}"));
    }

    fn job_failed(&self, error: &Error) {
        match error {
            Error::Closed { .. } => {}
            Error::Poisoned { .. } => self.poison.set(error),
            // The listener has been told what poisoned the store.
            error if self.poison.is_of(error) => {}
            error => self.emit(|| Event::Error { error: error.clone() }),
        }
    }
}

/// Those with the greatest backlog first. Each is asked once: writers and other workers change it meanwhile, and a
/// sort that is told different things of one element may panic.
fn furthest_behind_first<T>(
    items: impl Iterator<Item = T>,
    backlog: impl Fn(&T) -> f64,
) -> impl Iterator<Item = T> {
    let mut items: Vec<(f64, T)> = items.map(|item| (backlog(&item), item)).collect();
    items.sort_by(|a, b| b.0.total_cmp(&a.0));
    items.into_iter().map(|(_, item)| item)
}

impl Store {
    /// Tells of a panic of the keyspace's operator, if there was one: what it was to fold is kept unfolded.
    pub(crate) fn hear_of_operator(&self, keyspace: &KeyspaceState) {
        let untold = keyspace.operator.as_ref().and_then(|operator| operator.take_untold());
        if let Some(error) = untold {
            *keyspace.operator_failure.lock() = Some(error.clone());
            self.emit(|| Event::Error { error });
        }
    }

    /// Drops replaced read states that no reader holds any more. Where idle iterators hold some, closes their
    /// cursors first.
    pub(crate) fn give_back(&self, keyspaces: &[Arc<KeyspaceState>]) {
        let drop_unheld = || keyspaces.iter().filter(|keyspace| keyspace.drop_unheld()).count();
        if drop_unheld() > 0 {
            self.open_iterators.close_outdated();
            drop_unheld();
        }
    }

    /// The last number up to which all trees hold everything.
    fn floor(&self) -> Seqno {
        let visible = self.committer.visible();
        let keyspaces = self.all_keyspaces();
        let settled = keyspaces.iter().map(|keyspace| keyspace.settled_upto(visible));
        let quarantined = self.quarantine.settled_upto();
        let quarantined = quarantined.filter(|_| !planted(Bug::QuarantineNotCounted));
        settled.chain(quarantined).min().unwrap_or(visible).min(visible)
    }

    fn upkeep_due(&self) -> bool {
        if self.poison.is_set() {
            return false;
        }
        self.journal.maintenance_due()
            || self.journal.oldest_retirable().is_some_and(|oldest| oldest <= self.floor())
            || self.journal_is_long()
            || self.manifest_is_long()
    }

    fn journal_is_long(&self) -> bool {
        // What a quarantined keyspace needs of the journal no flush makes shorter.
        self.journal.bytes_used() > self.sizes.journal_bytes_max
            && self.quarantine.is_empty()
            && self.all_keyspaces().iter().any(|keyspace| {
                let read = keyspace.read.load();
                read.frozen.is_empty() && !read.active.memtable.is_empty()
            })
    }

    fn manifest_is_long(&self) -> bool {
        let total = self.manifest.bytes_total();
        // A manifest written anew would lack the trees of quarantined keyspaces.
        total > self.sizes.manifest_bytes_min
            && self.quarantine.is_empty()
            && total > self.manifest.bytes_live() * MANIFEST_GROWTH_MAX
            && self.registry.try_lock().is_some()
    }

    /// Whether a background thread would find something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.upkeep_due() || self.all_keyspaces().iter().any(|keyspace| keyspace.tree.has_work())
    }

    /// Makes the journal's next segments, if they are due.
    fn prepare_segments(&self) -> Result<()> {
        if !self.journal.maintenance_due() {
            return Ok(());
        }
        match self.journal.maintain() {
            // A spare segment is a convenience: who needs one and cannot have it is told.
            Ok(()) => Ok(()),
            Err(error) if error.is_refusal() => Ok(()),
            failed => self.poison.unless_refused(failed),
        }
    }

    /// One round of upkeep.
    pub(crate) fn upkeep(&self) -> Result<()> {
        self.prepare_segments()?;
        let floor = self.floor();
        if self.journal.oldest_retirable().is_some_and(|oldest| oldest <= floor) {
            self.retire(floor)?;
        }
        if self.journal_is_long() {
            self.flush_laggard();
        }
        if self.manifest_is_long() {
            self.rewrite_manifest()?;
        }
        Ok(())
    }

    /// Removes journal segments that hold nothing beyond `floor`.
    fn retire(&self, floor: Seqno) -> Result<()> {
        if planted(Bug::RetireBeforeEdit) {
            self.journal.retire(floor)?;
        }
        let edit = Edit {
            journal_floor: Some(floor),
            last_seqno: Some(floor),
            next_file_id: Some(self.files.next_file_id()),
            ..Edit::default()
        };
        self.commit_edit(&edit)?;
        self.journal.retire(floor)?;
        Ok(())
    }

    /// Freezes the memtable of the keyspace that holds on to the oldest part of the journal.
    fn flush_laggard(&self) {
        let visible = self.committer.visible();
        let keyspaces = self.all_keyspaces();
        let laggard = keyspaces.iter().min_by_key(|keyspace| keyspace.settled_upto(visible));
        if let Some(keyspace) = laggard {
            self.freeze(std::slice::from_ref(keyspace), |_| true);
        }
    }

    /// Writes the manifest anew, without what is dead in it. Some other time, if keyspaces are being created,
    /// dropped or copied: whoever is at that may be waiting for background work, or be carrying it out himself
    /// in this very call.
    pub(crate) fn rewrite_manifest(&self) -> Result<()> {
        let Some(_registry) = self.registry.try_lock() else { return Ok(()) };
        let keyspaces = self.all_keyspaces();
        let locks: Vec<_> =
            keyspaces.iter().map(|keyspace| (keyspace.id, keyspace.tree.lock_changes())).collect();
        let edits = self.manifest.edits_submitted();
        let trees: Vec<_> = locks
            .iter()
            .filter_map(|(id, lock)| lock.snapshot().map(|snapshot| (*id, snapshot)))
            .collect();
        self.manifest.rewrite(edits, &trees)?;
        Ok(())
    }
}

/// A tree's own job, whose failure lets the tree rest; memtables still get into it.
struct TreeJob {
    store: Arc<Store>,
    keyspace: Arc<KeyspaceState>,
    job: Box<dyn Job>,
}

impl Job for TreeJob {
    fn step(&mut self) -> Result<Step> {
        if self.keyspace.is_dropped() {
            return Ok(Step::Done);
        }
        let step = self.job.step();
        self.store.hear_of_operator(&self.keyspace);
        if step.is_err() && self.keyspace.is_dropped() {
            return Ok(Step::Done);
        }
        let nanos = match &step {
            // No time passes for a stepped executor that would end the rest.
            Ok(Step::Postponed) if !self.store.executor.is_stepped() => REST_FULL_NANOS,
            Ok(step) => {
                self.store.work_done.fetch_add(u64::from(*step == Step::Done), Ordering::AcqRel);
                return Ok(*step);
            }
            Err(error) => {
                // Each such failure leaves one more place alone, so there is an end of them.
                let is_left_alone = error.is_corruption() && self.keyspace.tree.tell_damage(error);
                self.store.note_failure(&self.keyspace.compaction_failures, error, is_left_alone);
                match error {
                    _ if is_left_alone => 0,
                    // What there is no room for is left alone by the tree: others may make room.
                    Error::Full { .. } => REST_FULL_NANOS,
                    _ => REST_NANOS,
                }
            }
        };
        let rest = self.store.clock.nanos() + nanos;
        self.keyspace.tree_rest_until_nanos.store(rest, Ordering::Relaxed);
        step
    }
}

/// The journal's next segments.
struct Segments {
    store: Arc<Store>,
}

impl Job for Segments {
    fn step(&mut self) -> Result<Step> {
        let made = self.store.prepare_segments();
        made.inspect_err(|error| {
            self.store.note_failure(&self.store.upkeep_failures, error, false)
        })?;
        Ok(Step::Done)
    }
}

/// Upkeep of journal and manifest.
struct Upkeep {
    store: Arc<Store>,
}

impl Job for Upkeep {
    fn step(&mut self) -> Result<Step> {
        let kept = self.store.upkeep();
        match &kept {
            Ok(()) => self.store.upkeep_failures.forget(),
            Err(error) => self.store.note_failure(&self.store.upkeep_failures, error, false),
        }
        if kept.is_err() && !self.store.executor.is_stepped() {
            // What is refused now will be refused again at once.
            let rest = self.store.clock.nanos() + REST_NANOS;
            self.store.upkeep_rest_until_nanos.store(rest, Ordering::Relaxed);
        }
        kept.map(|()| Step::Done)
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.store.upkeep_running.store(false, Ordering::Release);
    }
}

/// A rate to begin with, before any has been seen.
pub(crate) fn initial_drain_rate() -> AtomicU64 {
    AtomicU64::new(64e6_f64.to_bits())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::furthest_behind_first;

    /// The sort asked for backlogs again at each comparison, while others changed them. From some twenty keyspaces on
    /// it can panic then, on a worker, which poisons the store.
    #[test]
    fn a_backlog_that_changes_while_keyspaces_are_sorted_is_no_panic() {
        let draw = Cell::new(1u64);
        let backlog = |_: &usize| {
            draw.set(draw.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            (draw.get() >> 33) as f64
        };
        for _ in 0..200 {
            let mut sorted: Vec<usize> = furthest_behind_first(0..100, backlog).collect();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..100));
        }
        let sorted = furthest_behind_first([0.5, 2.0, 1.0].into_iter(), |backlog| *backlog);
        assert!(sorted.eq([2.0, 1.0, 0.5]));
    }
}
