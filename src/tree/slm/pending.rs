//! Tables that are not in the index, or not wholly, and how far they have been put into it.
//!
//! Those that are pending when somebody begins are put into the index in one pass, in the order of their keys: each leaf is
//! read, changed and written once for all of them.

use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::table::{KeyList, Table};

/// A table that is not in the index, or not wholly.
pub(super) struct Pending {
    pub(super) table: Arc<Table>,
    pub(super) number: u32,
    pub(super) keys: KeyList,
    /// The number that the first version with the table ends at.
    pub(super) flushed: Seqno,
    /// It is part of the tree, durably.
    pub(super) is_part: AtomicBool,
    /// How many of its keys are in the index.
    pub(super) received: AtomicU64,
}

impl Pending {
    pub(super) fn new(
        (table, number): (Arc<Table>, u32),
        keys: KeyList,
        flushed: Seqno,
        is_part: bool,
    ) -> Arc<Pending> {
        let (is_part, received) = (AtomicBool::new(is_part), AtomicU64::new(0));
        Arc::new(Pending { table, number, keys, flushed, is_part, received })
    }

    /// The number of its keys that are not in the index yet, and their bytes.
    pub(super) fn keys_left(&self) -> (u64, u64) {
        let of_all = |number: usize| (number as f64 * self.left()) as u64;
        (of_all(self.keys.len()), of_all(self.keys.key_bytes()))
    }

    /// The share of its keys that is not in the index yet.
    pub(super) fn left(&self) -> f64 {
        1.0 - self.received.load(Ordering::Relaxed) as f64 / self.keys.len().max(1) as f64
    }
}

/// How far tables have been put into the index, all of them in one pass: each leaf is changed once for all of them. The
/// oldest table is first.
pub(super) struct Receiving {
    pub(super) tables: Vec<ReceivedTable>,
    /// The snapshots that its keys' older versions are kept for.
    pub(super) snapshots: Vec<Seqno>,
}

/// One of the tables.
pub(super) struct ReceivedTable {
    pub(super) pending: Arc<Pending>,
    /// The keys before this one are in the index.
    pub(super) at: usize,
    /// How many of these have values.
    pub(super) had: u64,
}

/// The next keys of tables, in their order.
pub(super) struct NextKeys {
    /// Of each table, the first key behind them.
    pub(super) ats: Vec<usize>,
    /// The tables that have a key, and its place there, key by key. The oldest table is first.
    places: Vec<(usize, usize)>,
    /// Where the places of each key end.
    ends: Vec<usize>,
}

impl NextKeys {
    /// None, before the first that have not been received.
    pub(super) fn begin(tables: &[ReceivedTable]) -> NextKeys {
        let ats = tables.iter().map(|it| it.at).collect();
        NextKeys { ats, places: Vec::new(), ends: Vec::new() }
    }

    /// None, behind these.
    pub(super) fn behind(&self) -> NextKeys {
        NextKeys { ats: self.ats.clone(), places: Vec::new(), ends: Vec::new() }
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds keys until there are so many.
    pub(super) fn fill(&mut self, tables: &[ReceivedTable], keys_max: usize) {
        while self.ends.len() < keys_max {
            let keys = tables.iter().zip(&self.ats).filter_map(|(it, at)| it.pending.keys.key(*at));
            let Some(key) = keys.min() else { return };
            for (table, (it, at)) in tables.iter().zip(&mut self.ats).enumerate() {
                if it.pending.keys.key(*at) == Some(key) {
                    self.places.push((table, *at));
                    *at += 1;
                }
            }
            self.ends.push(self.places.len());
        }
    }

    pub(super) fn keys<'a>(
        &'a self,
        tables: &'a [ReceivedTable],
    ) -> impl Iterator<Item = (&'a [u8], &'a [(usize, usize)])> {
        let mut start = 0;
        self.ends.iter().filter_map(move |end| {
            let places = &self.places[std::mem::replace(&mut start, *end)..*end];
            let (table, at) = places.first()?;
            Some((tables[*table].pending.keys.key(*at)?, places))
        })
    }
}
