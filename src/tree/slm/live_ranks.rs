//! Tables by how much of them is live, so that candidates for compaction are found without a look at all others.
//!
//! Invariants:
//! 1. A table has one rank. Ranks below 100 are the share of its keys that is live, in percent, rounded down.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeInclusive};

/// None of the keys that were live when it came has been superseded, and not all of its entries are live.
pub(super) const UNCHANGED: u8 = 100;
/// All of its entries are live.
pub(super) const WHOLE: u8 = 101;
/// No key was live when it came: it has tombstones, or entries that were superseded by then.
pub(super) const WITHOUT_KEYS: u8 = 102;
/// A job is at work on its counts.
pub(super) const NOT_READY: u8 = 103;

/// How many versions of a table the index names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LiveCounts {
    /// Now.
    pub(super) live: u64,
    /// When the table was made.
    pub(super) named: u64,
    /// Its entries that are no tombstones.
    pub(super) values: u64,
    pub(super) is_ready: bool,
}

impl LiveCounts {
    pub(super) fn rank(&self) -> u8 {
        let LiveCounts { live, named, values, is_ready } = *self;
        match live {
            _ if !is_ready => NOT_READY,
            _ if named == 0 => WITHOUT_KEYS,
            live if live >= named && live == values => WHOLE,
            live if live >= named => UNCHANGED,
            live => (u128::from(live) * 100 / u128::from(named)) as u8,
        }
    }

    /// Whether it may have entries that a tombstone elsewhere hides: not if all are live, and none for a snapshot alone.
    pub(super) fn may_hide_dead(&self) -> bool {
        !self.is_ready || self.live != self.values
    }
}

/// See the module's description.
#[derive(Default)]
pub(super) struct LiveRanks {
    tables: BTreeSet<(u8, u32)>,
    ranks: BTreeMap<u32, u8>,
}

impl LiveRanks {
    pub(super) fn set(&mut self, number: u32, rank: u8) {
        match self.ranks.insert(number, rank) {
            Some(before) if before == rank => return,
            Some(before) => self.tables.remove(&(before, number)),
            None => false,
        };
        self.tables.insert((rank, number));
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(rank) = self.ranks.remove(&number) {
            self.tables.remove(&(rank, number));
        }
    }

    /// The ranks and numbers of the tables of some ranks, those of which least is live first; only what comes behind
    /// `after`.
    pub(super) fn of(
        &self,
        ranks: RangeInclusive<u8>,
        after: Option<(u8, u32)>,
    ) -> impl Iterator<Item = (u8, u32)> {
        let from = after.map_or(Bound::Included((*ranks.start(), 0)), Bound::Excluded);
        let end = *ranks.end();
        let tables = self.tables.range((from, Bound::Unbounded));
        tables.take_while(move |(rank, _)| *rank <= end).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(live: u64, named: u64, values: u64) -> u8 {
        LiveCounts { live, named, values, is_ready: true }.rank()
    }

    #[test]
    fn a_rank_below_a_share_is_that_of_a_table_of_which_less_is_live() {
        for percent in 1..=100u8 {
            for live in 0..=1000 {
                let is_less = live * 100 < 1000 * u64::from(percent);
                assert_eq!(rank(live, 1000, 1000) < percent, is_less, "{live} of 1000, {percent}%");
            }
        }
        assert_eq!([rank(0, 1, 1), rank(u64::MAX / 2, u64::MAX, u64::MAX)], [0, 49]);
        assert_eq!([rank(5, 5, 5), rank(5, 5, 9), rank(0, 0, 0)], [WHOLE, UNCHANGED, WITHOUT_KEYS]);
        let unready = LiveCounts { live: 0, named: 0, values: 5, is_ready: false };
        assert_eq!(unready.rank(), NOT_READY);
    }

    #[test]
    fn tables_are_found_by_their_latest_rank() {
        let mut ranks = LiveRanks::default();
        [(7, NOT_READY), (8, 50), (9, 20), (7, 30), (10, WHOLE), (11, 5)]
            .into_iter()
            .for_each(|(number, rank)| ranks.set(number, rank));
        ranks.remove(11);
        ranks.remove(12);
        let of = |from: u8, to: u8, after| -> Vec<u32> {
            ranks.of(from..=to, after).map(|(_, number)| number).collect()
        };
        assert_eq!(of(0, 49, None), [9, 7]);
        assert_eq!(of(0, NOT_READY, None), [9, 7, 8, 10]);
        assert_eq!(of(0, NOT_READY, Some((30, 7))), [8, 10]);
        assert_eq!(of(WHOLE, WHOLE, None), [10]);
    }
}
