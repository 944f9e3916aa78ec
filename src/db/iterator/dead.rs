//! How an iterator deals with many dead entries (tombstones, and what they hide) in succession.
//!
//! A step of the merge pauses every few dead entries. The pass then looks whether the keyspace knows the keys ahead to
//! be empty (`store::gaps`), and continues behind that gap. If the run of dead entries becomes long, the pass returns to
//! its beginning, and watches the range while it steps over it once more. At the next pair it records the range as a
//! gap for later iterators. It returns to the beginning because the cursors must be opened after the watch began.
//!
//! Invariants:
//! 1. A run begins at a key up to which the pass has yielded all pairs, and all keys from there to the pass's position
//!    have no visible pair.
//! 2. A run ends in the call in which it begins: at a pair, at the pass's end or at an error. After an error nothing
//!    is recorded, nor while an unreadable part is ahead, or one is looked for.
//! 3. A gap is skipped only if it holds for the iterator's number, which was determined before.

use super::{End, Inner, RunCursor};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::db::damage::after;
use crate::merge::VisibleIterator;
use crate::store::gaps::{Direction, Watch};

/// A step pauses after so many dead entries to look for a gap.
const ENTRIES_TO_LOOK: u64 = 8;
/// The same once the run is being watched: a gap may begin only much further on.
const ENTRIES_TO_LOOK_AGAIN: u64 = 64;
/// A range that is open is left only for a gap of this length: to open the next costs more than to step over few.
const ENTRIES_TO_LEAVE: u64 = 64;
/// A run that adjoins a gap is added to it from this length on. An iterator over a queue steps over half of this on
/// average.
const ENTRIES_TO_EXTEND: u64 = 64;
/// Any other run is recorded from this length on: to read it once more must be cheap compared to what later iterators
/// save. Shorter ones, of at least `ENTRIES_TO_EXTEND`, are now and then (`Gaps::is_short_run_due`).
const ENTRIES_TO_RECORD: u64 = 512;

/// A run of dead entries.
pub(super) struct DeadRun {
    /// Its first key, or backward its upper bound.
    from: Option<Vec<u8>>,
    /// The entries passed.
    dead: u64,
    /// A gap was skipped in it.
    has_gap: bool,
    /// After so many, it is tried to watch it.
    tries_from: u64,
    /// While it is watched: the number at which it is recorded.
    watch: Option<(Watch, Seqno)>,
    /// The first key with a put above the iterator's number.
    newer: Option<Vec<u8>>,
    /// The bound up to which it is known. `Some(None)` forward: no key is behind it.
    reached: Option<Option<Vec<u8>>>,
}

impl DeadRun {
    /// Notes what the cursors of a range have found that the pass leaves.
    pub(super) fn leave(&mut self, visible: &VisibleIterator<RunCursor>, end: End) {
        let (lower, upper) = visible.bounds();
        let bound = match end {
            End::Front => upper.map(<[u8]>::to_vec),
            End::Back => Some(lower.unwrap_or_default().to_vec()),
        };
        self.reached = Some(bound);
        // What was passed up to a pause has been counted.
        if !visible.is_paused() {
            self.dead += visible.dead_in_step();
        }
        self.note_newer(visible);
    }

    fn note_newer(&mut self, visible: &VisibleIterator<RunCursor>) {
        if self.newer.is_none() {
            self.newer = visible.newer().map(<[u8]>::to_vec);
        }
    }
}

impl Inner {
    /// Prepares new cursors for runs of dead entries.
    pub(super) fn prepare(&self, visible: &mut VisibleIterator<RunCursor>) {
        let is_watched = self.run.as_ref().is_some_and(|run| run.watch.is_some());
        let entries = match is_watched {
            true => ENTRIES_TO_LOOK_AGAIN,
            false => ENTRIES_TO_LOOK,
        };
        visible.pause_every(self.at_most(entries));
        if is_watched && !planted(Bug::GapIgnoresNewer) {
            visible.watch_newer();
        }
    }

    /// A number of entries, or that of the switch for tests if it is smaller.
    fn at_most(&self, entries: u64) -> u64 {
        self.store.switches.gap_entries_min.map_or(entries, |min| entries.min(u64::from(min)))
    }

    /// Handles a pause. The pass continues at its position, behind a gap, or at the beginning of the run. `is_new`:
    /// the range was opened in this step, so no pair of it has been yielded.
    #[cold]
    pub(super) fn pass_dead(&mut self, end: End, is_new: bool) {
        let (open, has_hole) = match end {
            End::Front => (&self.front.open, self.front.ahead.is_some() || self.front.careful),
            End::Back => (&self.back.open, self.back.ahead.is_some() || self.back.careful),
        };
        let Some(visible) = open.as_ref().map(|open| &open.visible) else { return };
        let Some(key) = visible.paused_at().filter(|_| !has_hole) else { return };
        let position = match end {
            End::Front => Some(key.to_vec()),
            End::Back => Some(after(key)),
        };
        let dead = visible.dead_in_step();
        let from = match (end, is_new) {
            (End::Front, true) => Some(self.front.edge.clone()),
            (End::Back, true) => self.back.edge.clone(),
            (_, false) => position.clone(),
        };
        let run = self.run_from(from);
        run.dead += dead;
        let (dead, has_gap, tries_from) = (run.dead, run.has_gap, run.tries_from);
        let gap = self.gap_at(end, position.as_deref(), self.at_most(ENTRIES_TO_LEAVE));
        let extends = has_gap || gap.is_some() || self.keyspace.gaps.is_short_run_due();
        let enough = if extends { ENTRIES_TO_EXTEND } else { ENTRIES_TO_RECORD };
        if dead >= self.at_most(enough).max(tries_from) && self.watch_run(end, position.as_deref())
        {
            self.leave_range(end);
            let Some(run) = &mut self.run else { return };
            // What the cursors of the first pass have found is from before the watch, or from before the run.
            (run.reached, run.newer) = (None, None);
            let from = run.from.clone();
            self.move_edge(end, from);
        } else if let Some(bound) = gap {
            self.leave_range(end);
            self.move_edge(end, position);
            self.pass_gap(end, bound);
        }
    }

    /// Moves the edge behind a gap, before a range is opened there.
    pub(super) fn skip_gap(&mut self, end: End) {
        let (edge, has_hole) = match end {
            End::Front => (Some(&*self.front.edge), self.front.ahead.is_some()),
            End::Back => (self.back.edge.as_deref(), self.back.ahead.is_some()),
        };
        if has_hole || self.is_exhausted() {
            return;
        }
        let Some(bound) = self.gap_at(end, edge, 0) else { return };
        let from = edge.map(<[u8]>::to_vec);
        self.run_from(from);
        self.pass_gap(end, bound);
    }

    /// The run of this call, which begins at `from` if it is new.
    fn run_from(&mut self, from: Option<Vec<u8>>) -> &mut DeadRun {
        self.run.get_or_insert_with(|| {
            Box::new(DeadRun {
                from,
                dead: 0,
                has_gap: false,
                tries_from: 0,
                watch: None,
                newer: None,
                reached: None,
            })
        })
    }

    /// Whether the edges have met.
    fn is_exhausted(&self) -> bool {
        self.back.edge.as_deref().is_some_and(|back| *self.front.edge >= *back)
    }

    /// The far bound of the gap that begins or continues at a position, if one holds for the iterator's number.
    #[inline]
    fn gap_at(&self, end: End, position: Option<&[u8]>, dead_min: u64) -> Option<Option<Vec<u8>>> {
        let gaps = &self.keyspace.gaps;
        if !gaps.is_watched() {
            return None;
        }
        match end {
            End::Front => gaps.above(position.unwrap_or_default(), self.seqno(), dead_min),
            End::Back => gaps.below(position, self.seqno(), dead_min).map(Some),
        }
    }

    /// Goes past a gap. The pass has no cursors.
    #[cold]
    fn pass_gap(&mut self, end: End, bound: Option<Vec<u8>>) {
        self.store.counters.gaps_skipped.add(1);
        if let Some(run) = &mut self.run {
            run.has_gap = true;
            run.reached = Some(bound.clone());
        }
        let bound = match (end, bound, &self.back.edge) {
            (End::Front, Some(bound), Some(edge)) => Some(bound.min(edge.clone())),
            // The gap extends to the end.
            (End::Front, None, edge) => edge.clone(),
            (End::Back, Some(bound), _) => Some(bound.max(self.front.edge.clone())),
            (_, bound, _) => bound,
        };
        match (end, &bound) {
            // Nothing is left for either pass.
            (End::Front, None) => self.back.edge = Some(self.front.edge.clone()),
            _ => self.move_edge(end, bound),
        }
    }

    fn move_edge(&mut self, end: End, edge: Option<Vec<u8>>) {
        match end {
            End::Front => self.front.edge = edge.unwrap_or_default(),
            End::Back => self.back.edge = edge,
        }
    }

    /// Begins to watch the run, of which the pass has reached `position`. Returns false if it cannot be recorded now, or need
    /// not be. That is tried again when it has become twice as long: then it may be worth more than other gaps.
    fn watch_run(&mut self, end: End, position: Option<&[u8]>) -> bool {
        let seqno = self.seqno();
        let Some(run) = &mut self.run else { return false };
        run.tries_from = run.dead.saturating_mul(2);
        let direction = match end {
            End::Front => Direction::Forward,
            End::Back => Direction::Backward,
        };
        let range = (run.from.as_deref(), position);
        // A gap that was passed grows; another would have to be worth its place.
        let dead = if run.has_gap { u64::MAX } else { run.dead };
        let watch = self.keyspace.gaps.watch(direction, range, seqno, dead);
        // First the watch, then the number.
        let watch = watch.and_then(|watch| Some((watch, self.store.committer.catch_up()?)));
        let Some(watch) = watch else { return false };
        if dead < ENTRIES_TO_RECORD {
            self.keyspace.gaps.records_short_run();
        }
        (run.dead, run.tries_from) = (0, u64::MAX);
        run.watch = Some(watch);
        true
    }

    /// Ends the run at a pair, or at the pass's end, and records it if it was watched.
    #[cold]
    pub(super) fn end_run(&mut self, end: End) {
        let Some(mut run) = self.run.take() else { return };
        let Some((watch, since)) = run.watch.take() else {
            let short = self.at_most(ENTRIES_TO_EXTEND)..self.at_most(ENTRIES_TO_RECORD);
            if short.contains(&run.dead) && !run.has_gap {
                self.keyspace.gaps.passed_short_run(run.dead);
            }
            return;
        };
        let open = match end {
            End::Front => &self.front.open,
            End::Back => &self.back.open,
        };
        if let Some(open) = open {
            run.note_newer(&open.visible);
            if let Some(current) = open.visible.current() {
                run.dead += open.visible.dead_in_step();
                run.reached = Some(Some(match end {
                    End::Front => current.key.to_vec(),
                    End::Back => after(current.key),
                }));
            }
        }
        let Some(reached) = run.reached else { return };
        let oldest = self.store.oldest_reader();
        watch.record(reached.as_deref(), run.newer.as_deref(), (since, oldest), run.dead);
    }
}
