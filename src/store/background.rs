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

/// How long a keyspace's compactions, or upkeep, pause after a failure.
const BACKOFF_NANOS: u64 = 1_000_000_000;
/// The same after a compaction that found no room: the next may free some.
const BACKOFF_FULL_NANOS: u64 = 5_000_000;
/// A manifest is rewritten when it is this many times what is live in it.
const MANIFEST_GROWTH_MAX: u64 = 4;
/// Once nobody writes, it is rewritten when more than this part of it, and so many bytes, have been appended.
const MANIFEST_SETTLED_PART: u64 = 8;
const MANIFEST_SETTLED_BYTES: u64 = 4 << 10;
/// [`Store::manifest_settled_at`] while somebody writes.
pub(super) const UNSETTLED: u64 = u64::MAX;

impl WorkSource for Store {
    fn next_job(&self, least: Urgency) -> Option<Box<dyn Job>> {
        let store = self.store.get()?.upgrade()?;
        // What was half done when our code panicked must not be built on. In a poisoned store no change can be
        // committed: jobs would write their output again and again, and all of it would stay.
        if self.panicked.load(Ordering::Acquire) || self.poison.is_set() {
            return None;
        }
        if least == Urgency::Immediate {
            let is_due = self.journal.maintenance_due();
            return is_due.then(|| Box::new(Segments { store }) as Box<dyn Job>);
        }
        if let Some(job) = store.next_return() {
            return Some(job);
        }
        let now = self.clock.nanos();
        let is_over = |backoff: &AtomicU64| backoff.load(Ordering::Relaxed) <= now;
        let mut keyspaces = self.all_keyspaces();
        // It waits for whoever freezes a memtable, and so hides that bug from nearly all threads.
        if !planted(Bug::FreezeAnnouncedEarly) {
            self.give_back(&keyspaces);
        }
        keyspaces.retain(|keyspace| !keyspace.is_dropped());
        for keyspace in
            keyspaces.iter().filter(|keyspace| is_over(&keyspace.flush_backoff_until_nanos))
        {
            let claimed = keyspace.claim_waiting();
            if claimed.is_some() {
                let keyspace = Arc::clone(keyspace);
                return Some(Box::new(FlushJob { store, keyspace, claimed }));
            }
        }
        if least == Urgency::Pressing {
            return None;
        }
        if is_over(&self.upkeep_backoff_until_nanos)
            && self.upkeep_due()
            && !self.upkeep_running.swap(true, Ordering::AcqRel)
        {
            return Some(Box::new(Upkeep { store }));
        }
        let candidates =
            keyspaces.iter().filter(|keyspace| is_over(&keyspace.compaction_backoff_until_nanos));
        let mut candidates = furthest_behind_first(candidates, |k| k.tree.backlog(0));
        candidates.find_map(|keyspace| {
            let job = Arc::clone(&keyspace.tree).next_job()?;
            let (store, keyspace) = (Arc::clone(&store), Arc::clone(keyspace));
            let job = TreeJob { store, keyspace, job, has_buffers: false, memory_bytes: 0 };
            Some(Box::new(job) as Box<dyn Job>)
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
    pub(crate) fn report_operator_panic(&self, keyspace: &KeyspaceState) {
        let untold = keyspace.operator.as_ref().and_then(|operator| operator.take_untold());
        if let Some(error) = untold {
            *keyspace.operator_failure.lock() = Some(error.clone());
            self.emit(|| Event::Error { error });
        }
    }

    /// Drops replaced read states that no reader holds any more. Where idle iterators hold some, closes their
    /// cursors first. Sees what the page cache may have back.
    pub(crate) fn give_back(&self, keyspaces: &[Arc<KeyspaceState>]) {
        let drop_unheld = || keyspaces.iter().filter(|keyspace| keyspace.drop_unheld()).count();
        let mut kept_bytes = 0;
        if drop_unheld() > 0 {
            self.open_iterators.close_idle(|iterator| iterator.is_outdated());
            drop_unheld();
            kept_bytes = Store::drop_unheld_memtables(keyspaces);
        }
        self.note_kept(kept_bytes);
        self.provide_for_lists();
    }

    /// The last number up to which all trees hold everything: no older journal record is needed.
    fn persisted_upto(&self) -> Seqno {
        let visible = self.committer.visible();
        let keyspaces = self.all_keyspaces();
        let persisted = keyspaces.iter().map(|keyspace| keyspace.persisted_upto(visible));
        let quarantined = self.quarantine.persisted_upto();
        let quarantined = quarantined.filter(|_| !planted(Bug::QuarantineNotCounted));
        persisted.chain(quarantined).min().unwrap_or(visible).min(visible)
    }

    fn upkeep_due(&self) -> bool {
        if self.poison.is_set() {
            return false;
        }
        self.journal.maintenance_due()
            || self.journal.oldest_retirable().is_some_and(|oldest| oldest <= self.persisted_upto())
            || self.journal_is_long()
            || self.manifest_is_long()
            || self.manifest_is_unsettled()
            || self.rest_is_due()
            || self.range_deletes_are_due()
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

    /// Whether nobody writes, and the manifest is to be rewritten for that.
    fn manifest_is_unsettled(&self) -> bool {
        let live = self.manifest.bytes_live();
        let appended = self.manifest.bytes_total().saturating_sub(live);
        self.manifest_settled_at.load(Ordering::Relaxed) == self.committer.visible().0
            && appended > MANIFEST_SETTLED_BYTES.max(live / MANIFEST_SETTLED_PART)
            && self.quarantine.is_empty()
            && self.registry.try_lock().is_some()
    }

    /// Notes that nobody writes: what is worth it only then becomes due, until somebody writes.
    pub(super) fn settle(&self) {
        self.all_keyspaces().iter().for_each(|keyspace| keyspace.tree.settle());
        self.manifest_settled_at.store(self.committer.visible().0, Ordering::Relaxed);
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
        // First: what others find no room for may need it.
        let moved = self.move_range_deletes();
        self.prepare_segments()?;
        let upto = self.persisted_upto();
        if self.journal.oldest_retirable().is_some_and(|oldest| oldest <= upto) {
            self.retire(upto)?;
        }
        if self.journal_is_long() {
            self.flush_laggard();
        }
        if self.manifest_is_long() {
            self.rewrite_manifest()?;
        } else if self.manifest_is_unsettled() {
            match self.rewrite_manifest() {
                // It is as good as before.
                Err(error) if error.is_refusal() => {
                    self.manifest_settled_at.store(UNSETTLED, Ordering::Relaxed);
                }
                rewritten => rewritten?,
            }
        }
        if self.rest_is_due() {
            self.begin_rest();
        }
        moved
    }

    /// Removes journal segments that hold nothing beyond `upto`, which all trees hold.
    fn retire(&self, upto: Seqno) -> Result<()> {
        if planted(Bug::RetireBeforeEdit) {
            self.journal.retire(upto)?;
        }
        let edit = Edit {
            journal_floor: Some(upto),
            last_seqno: Some(upto),
            next_file_id: Some(self.files.next_file_id()),
            ..Edit::default()
        };
        self.commit_edit(&edit)?;
        self.journal.retire(upto)?;
        Ok(())
    }

    /// Freezes the memtable of the keyspace that holds on to the oldest part of the journal.
    fn flush_laggard(&self) {
        let visible = self.committer.visible();
        let keyspaces = self.all_keyspaces();
        let laggard = keyspaces.iter().min_by_key(|keyspace| keyspace.persisted_upto(visible));
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
        // The new log is written without the locks: what is submitted meanwhile is appended to it.
        let submitted = {
            let locks: Vec<_> = keyspaces
                .iter()
                .map(|keyspace| (keyspace.id, keyspace.tree.lock_changes()))
                .collect();
            let edits = self.manifest.edits_submitted();
            let trees = locks
                .iter()
                .filter_map(|(id, lock)| lock.snapshot().map(|snapshot| (*id, snapshot)))
                .collect();
            self.manifest.submit_rewrite(edits, trees)?
        };
        if let Some(submitted) = submitted {
            self.manifest.finish_rewrite(submitted)?;
        }
        Ok(())
    }
}

/// A tree's own job. After a failure the tree's jobs pause; memtables still get into it.
struct TreeJob {
    store: Arc<Store>,
    keyspace: Arc<KeyspaceState>,
    job: Box<dyn Job>,
    has_buffers: bool,
    /// The tree's when it began.
    memory_bytes: u64,
}

impl Job for TreeJob {
    fn step(&mut self) -> Result<Step> {
        if self.keyspace.is_dropped() {
            return Ok(Step::Done);
        }
        if !self.has_buffers {
            self.store.begin_buffers();
            self.has_buffers = true;
            self.memory_bytes = self.keyspace.tree.state().whole_memory_bytes();
        }
        let step = self.job.step();
        self.store.report_operator_panic(&self.keyspace);
        if step.is_err() && self.keyspace.is_dropped() {
            return Ok(Step::Done);
        }
        let nanos = match &step {
            // No time passes for a stepped executor that would end the pause.
            Ok(Step::Postponed) if !self.store.executor.is_stepped() => BACKOFF_FULL_NANOS,
            Ok(step) => {
                if *step == Step::Done {
                    self.store.work_done.fetch_add(1, Ordering::AcqRel);
                    let state = self.keyspace.tree.state();
                    let memory_bytes = state.whole_memory_bytes();
                    self.store.note_smaller_tree(self.memory_bytes.saturating_sub(memory_bytes));
                    self.store.trim_indexes();
                }
                // One job may build an index.
                self.store.note_index(&self.keyspace, self.keyspace.tree.mapped_index());
                // Of a job that goes on, only those who are delayed need to know.
                if *step == Step::Done || self.keyspace.write_delay.is_set() {
                    self.store.update_backlog_of(&self.keyspace);
                }
                return Ok(*step);
            }
            Err(error) => {
                // Each such failure quarantines one more place, so they come to an end.
                let is_quarantined = error.is_corruption() && self.keyspace.tree.tell_damage(error);
                self.store.note_failure(&self.keyspace.compaction_failures, error, is_quarantined);
                match error {
                    _ if is_quarantined => 0,
                    // The tree skips what there is no room for: other compactions may free some.
                    Error::Full { .. } => BACKOFF_FULL_NANOS,
                    // And what it did not read.
                    error if error.is_failed_read() => BACKOFF_FULL_NANOS,
                    _ => BACKOFF_NANOS,
                }
            }
        };
        let until = self.store.clock.nanos() + nanos;
        self.keyspace.compaction_backoff_until_nanos.store(until, Ordering::Relaxed);
        // Nobody waits for a place that has just been quarantined.
        self.store.update_backlog();
        step
    }
}

impl Drop for TreeJob {
    fn drop(&mut self) {
        if self.has_buffers {
            self.store.end_buffers();
        }
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
            let until = self.store.clock.nanos() + BACKOFF_NANOS;
            self.store.upkeep_backoff_until_nanos.store(until, Ordering::Relaxed);
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
