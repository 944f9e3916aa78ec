//! How an iterator continues after data that cannot be read.
//!
//! A step that fails on a damaged page loses its position. The pass closes its cursors, returns to
//! the key up to which it has yielded all pairs, and asks the runs of the range where the hole is.
//! Pairs before the hole are yielded first, by cursors that do not read it. Then the error is
//! returned with the hole's range. The next call continues after that range, because the versions
//! of other runs in it may be outdated.
//!
//! Invariants:
//! 1. No pair in a range reported as damaged is yielded afterwards, from either end.
//! 2. Each reported hole advances the pass, so an iterator ends whatever is damaged.

use std::sync::Arc;

use super::{End, Inner, OpenRange};
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::db::damage::{DamagedRange, after};
use crate::merge::Stopped;
use crate::table::HoleAt;
use crate::tree::RangeAt;

/// A hole that a pass has not reached yet.
#[derive(Debug, Clone)]
pub(super) struct Ahead {
    pub(super) range: DamagedRange,
    error: Error,
    /// The hole's range ends with the range of the runs. The damage may continue in the next range.
    may_go_on: bool,
}

impl Inner {
    /// Handles a failed step: advances to the next pair, or to a hole before it. Returns true if
    /// there is a pair.
    #[cold]
    pub(super) fn pass_damage(&mut self, end: End, error: Error) -> Result<bool> {
        let mut error = error;
        loop {
            // Nothing is recorded of a range with an error.
            self.run = None;
            if self.damaged.is_some() || !error.is_unreadable() {
                return Err(error);
            }
            let at_value = self.close_failed(end);
            let hole = match at_value {
                Some(key) => {
                    let range = DamagedRange::of_key(&key);
                    Some(Ahead { range, error: error.clone(), may_go_on: false })
                }
                None => self.hole(end)?,
            };
            match hole {
                Some(hole) => {
                    if let Some(reached) = self.note_ahead(end, hole) {
                        return self.give_out(end, *reached);
                    }
                }
                // The failed page was read ahead or is after the range: careful cursors read
                // neither.
                None if !*self.careful(end) => {}
                None => return Err(error),
            }
            *self.careful(end) = true;
            // What comes behind the damage is not read ahead as far as what came before it.
            match end {
                End::Front => self.front.before = None,
                End::Back => self.back.before = None,
            }
            match self.advance(end) {
                Ok(is_there) => return Ok(is_there),
                Err(again) => error = again,
            }
        }
    }

    fn advance(&mut self, end: End) -> Result<bool> {
        match end {
            End::Front => self.advance_front(),
            End::Back => self.advance_back(),
        }
    }

    fn careful(&mut self, end: End) -> &mut bool {
        match end {
            End::Front => &mut self.front.careful,
            End::Back => &mut self.back.careful,
        }
    }

    fn ahead(&mut self, end: End) -> &mut Option<Box<Ahead>> {
        match end {
            End::Front => &mut self.front.ahead,
            End::Back => &mut self.back.ahead,
        }
    }

    /// Closes a pass's range after a failure, and moves its edge to the position of the failure.
    /// Returns the key if only its value could not be read.
    fn close_failed(&mut self, end: End) -> Option<Vec<u8>> {
        let open = match end {
            End::Front => self.front.open.take(),
            End::Back => self.back.open.take(),
        }?;
        self.count_work(&open);
        let (key, stopped) = open.visible.stopped()?;
        match (end, stopped) {
            (End::Front, Stopped::After) => self.front.edge = after(key),
            (End::Front, Stopped::Before | Stopped::AtValue) => self.front.edge = key.to_vec(),
            (End::Back, Stopped::After) => self.back.edge = Some(key.to_vec()),
            (End::Back, Stopped::Before | Stopped::AtValue) => self.back.edge = Some(after(key)),
        }
        (stopped == Stopped::AtValue).then(|| key.to_vec())
    }

    /// Returns the first hole at or after the pass's edge, if a cursor would encounter one.
    fn hole(&self, end: End) -> Result<Option<Ahead>> {
        // Without the memtables, which writers may wait for.
        let version = Arc::clone(&self.keyspace.read.load().version);
        let (at, hole_at) = match end {
            End::Front => (RangeAt::Key(&self.front.edge), HoleAt::From(&self.front.edge)),
            End::Back => {
                let edge = self.back.edge.as_deref();
                (RangeAt::Before(edge), HoleAt::Before(edge))
            }
        };
        let range_runs = self.runs_at(&*version, at)?;
        let mut first: Option<Ahead> = None;
        for run in &range_runs.runs {
            let Some(hole) = run.hole(hole_at)? else { continue };
            let may_go_on = match end {
                End::Front => range_runs.upper.as_ref().is_some_and(|upper| *hole.upper > **upper),
                End::Back => *hole.lower < *range_runs.lower,
            };
            let range = DamagedRange { lower: hole.lower, upper: Some(hole.upper) };
            let range = range.within(&range_runs.lower, range_runs.upper.as_deref());
            let Some(range) = range.and_then(|range| self.left_of(range)) else { continue };
            let is_first = first.as_ref().is_none_or(|first| match end {
                End::Front => range.lower < first.range.lower,
                End::Back => is_above(&range.upper, &first.range.upper),
            });
            if is_first {
                first = Some(Ahead { range, error: hole.error, may_go_on });
            }
        }
        Ok(first)
    }

    /// Returns the part of a range that neither pass has yielded.
    fn left_of(&self, range: DamagedRange) -> Option<DamagedRange> {
        let back = match &self.back.open {
            Some(open) => open.last(),
            None => self.back.edge.as_deref(),
        };
        let range = range.within(&self.front.edge, back)?;
        match self.front_range().and_then(OpenRange::last) {
            Some(last) => range.within(&after(last), None),
            None => Some(range),
        }
    }

    /// Records a hole at which the pass must stop. Returns the hole that the pass has reached, if
    /// any.
    fn note_ahead(&mut self, end: End, hole: Ahead) -> Option<Box<Ahead>> {
        if let Some(mut known) = self.ahead(end).take() {
            let is_nearer = match end {
                End::Front => hole.range.lower < known.range.lower,
                End::Back => is_above(&hole.range.upper, &known.range.upper),
            };
            if !is_nearer {
                // Careful cursors have failed on their way to the known hole, or there is nothing before it. Nobody knows
                // where: all from the edge on counts as lost, so that nothing is passed over without a word.
                match end {
                    End::Front if self.front.edge < known.range.lower => {
                        known.range.lower.clone_from(&self.front.edge);
                    }
                    End::Back if is_above(&self.back.edge, &known.range.upper) => {
                        known.range.upper.clone_from(&self.back.edge);
                    }
                    _ => {}
                }
                return Some(known);
            }
        }
        let is_reached = match end {
            End::Front => hole.range.lower <= self.front.edge,
            End::Back => match (&hole.range.upper, &self.back.edge) {
                (Some(upper), Some(edge)) => upper >= edge,
                (upper, _) => upper.is_none(),
            },
        };
        let hole = Box::new(hole);
        if is_reached || planted(Bug::DamageHidesBefore) {
            return Some(hole);
        }
        *self.ahead(end) = Some(hole);
        None
    }

    /// Reports a hole if the pass has yielded every pair before it.
    #[cold]
    pub(super) fn reach_hole(&mut self, end: End) -> Result<bool> {
        match self.ahead(end).take() {
            Some(hole) => self.give_out(end, *hole),
            None => Ok(false),
        }
    }

    /// Returns a hole as its error, records its range, and moves the pass after it.
    fn give_out(&mut self, end: End, hole: Ahead) -> Result<bool> {
        let Ahead { range, error, mut may_go_on } = hole;
        // The other pass may already be past it.
        let Some(mut range) = self.left_of(range) else { return Ok(false) };
        self.go_past(end, &range);
        // A page may extend into the next range, where the hole counts too.
        while may_go_on {
            let Some(next) = self.hole(end)? else { break };
            let is_same = next.error.to_string() == error.to_string()
                && match end {
                    End::Front => Some(&next.range.lower) == range.upper.as_ref(),
                    End::Back => next.range.upper.as_ref() == Some(&range.lower),
                };
            if !is_same {
                break;
            }
            match end {
                End::Front => range.upper = next.range.upper,
                End::Back => range.lower = next.range.lower,
            }
            may_go_on = next.may_go_on;
            self.go_past(end, &range);
        }
        *self.careful(end) = false;
        self.damaged = Some(Box::new(range));
        Err(error)
    }

    fn go_past(&mut self, end: End, range: &DamagedRange) {
        match end {
            End::Front => {
                self.front.edge = match (&range.upper, &self.back.edge) {
                    (Some(upper), _) if planted(Bug::DamageHidesBehind) => {
                        [upper.get(..upper.len().saturating_sub(3)).unwrap_or_default(), &[0xff]]
                            .concat()
                    }
                    (Some(upper), _) => upper.clone(),
                    // The hole extends to the end.
                    (None, Some(edge)) => edge.clone(),
                    (None, None) => {
                        self.back.edge = Some(self.front.edge.clone());
                        return;
                    }
                };
            }
            End::Back => self.back.edge = Some(range.lower.clone()),
        }
    }
}

/// Whether an upper bound lies above another one. `None` is above all.
fn is_above(upper: &Option<Vec<u8>>, other: &Option<Vec<u8>>) -> bool {
    match (upper, other) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(upper), Some(other)) => upper > other,
    }
}
