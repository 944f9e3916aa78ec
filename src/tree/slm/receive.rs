//! Changes of the index: putting a table into it, and the output of a compaction in the place of its input.
//!
//! Invariants:
//! 1. A table is durable, and part of the tree, before the index names it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::index_file::FoundIndex;
use super::level::Level;
use super::level_tables::LevelTable;
use super::merged_keys::{MergedKeys, keys_of};
use super::pending::{NextKeys, Pending, ReceivedTable, Receiving};
use super::places::{Counts, Places, held};
use super::versions::{is_cut, location, over, without_end};
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::location_index::{IndexVersion, Load};
use crate::table::KeyList;

/// What has been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Some keys.
    Some,
    /// The last keys of so many tables.
    Tables(usize),
    /// Nothing: no table was left.
    All,
}

/// If so many memtables are not in the index, the next one waits until one of them is.
const PENDING_MAX: usize = 3;
/// The most that are received together by design, where the index is larger than its memory.
const TOGETHER_MAX: usize = 6;
/// With so many times what is received together, writers would all but stop; with half as much, they begin to be slowed.
const PENDING_STOP: f64 = 1.1;

/// Keys that are changed before others may change the index.
const KEYS_AT_ONCE: usize = 64;

/// What a compaction has made.
pub(super) struct Output<'a> {
    /// The table's number.
    pub(super) number: u32,
    pub(super) keys: &'a KeyList,
    /// Of each key, whether it was live when it was read.
    pub(super) were_live: &'a [bool],
}

impl Places {
    /// Goes on with an index that has what `found` says of the level. There are no snapshots. Memtables that were not all in
    /// the index when the process ended are pending again.
    pub(super) fn resume(&self, level: &Level, found: &FoundIndex, flushed: Seqno) -> Result<()> {
        self.register_all(level);
        let mut pending = Vec::new();
        for LevelTable { table, number, .. } in level.tables.iter() {
            let is_pending = table.properties().seqno_max > found.settled;
            self.set_live(*number, found.live.get(number).copied().unwrap_or(0));
            if is_pending {
                let (keys, flushed) = (keys_of(table)?, table.properties().seqno_max);
                pending.push((Arc::clone(table), *number, keys, flushed));
            } else {
                self.set_named(*number);
                self.set_ready(*number);
            }
        }
        if pending.is_empty() {
            self.built(flushed, level.tables.is_empty());
            return Ok(());
        }
        // All that is known is in the index once the last of them is.
        pending.sort_by_key(|(_, _, _, upto)| *upto);
        if let Some((.., upto)) = pending.last_mut() {
            *upto = flushed.max(*upto);
        }
        self.resumed(found.settled, flushed);
        for (table, number, keys, flushed) in pending {
            self.begin(Pending::new((table, number), keys, flushed, true));
        }
        // Nobody would put them into the index later, which a full check compares.
        if self.is_read_only() {
            while self.receive_some(usize::MAX, &|| vec![Seqno::MAX])? != Received::All {}
        }
        Ok(())
    }

    /// Puts the keys of a level's tables into the empty index. There are no snapshots. So many bytes are read at once.
    pub(super) fn build(&self, level: &Level, flushed: Seqno, chunks_bytes: u64) -> Result<()> {
        self.register_all(level);
        let mut counts = Counts::default();
        let mut keys = MergedKeys::new(level, vec![Seqno::MAX], chunks_bytes)?;
        let mut load = Load::default();
        let loaded = self.load(&mut load, &mut keys, &mut counts);
        // The index is in order, whatever it lacks.
        let ended = self.write()?.end_load(load);
        let has_all = loaded?;
        ended?;
        self.count(&mut counts);
        if !has_all {
            self.distrust();
        }
        for placed in level.tables.iter() {
            self.set_named(placed.number);
            self.set_ready(placed.number);
        }
        self.built(flushed, level.tables.is_empty());
        Ok(())
    }

    /// Returns false if there was no room for all keys.
    fn load(&self, load: &mut Load, keys: &mut MergedKeys, counts: &mut Counts) -> Result<bool> {
        let mut has_next = keys.next()?;
        while has_next {
            let mut writing = self.write()?;
            for _ in 0..KEYS_AT_ONCE {
                if !has_next {
                    break;
                }
                match self.load_key(&mut writing, load, counts, keys.key(), keys.versions()) {
                    Err(Error::Full { .. }) => return Ok(false),
                    loaded => loaded?,
                }
                has_next = keys.next()?;
            }
        }
        Ok(true)
    }

    /// How many pending tables are received together, and with how many of them the next one waits. Where the index is larger
    /// than what of it may be in memory, it reads and writes each leaf once for all that are received together; meanwhile as
    /// many come.
    fn together(&self) -> (usize, usize) {
        if !self.is_partly_resident() {
            return (1, PENDING_MAX);
        }
        let state = self.state();
        let lists_bytes: usize = state.pending.iter().map(|it| it.keys.memory_bytes()).sum();
        let of_one = lists_bytes / state.pending.len().max(1);
        let together = self.lists_bytes_max / 2 / of_one.max(1);
        let together = together.clamp(PENDING_MAX, TOGETHER_MAX);
        (together, 2 * together)
    }

    /// With so many pending tables, the next one waits.
    pub(super) fn pending_max(&self) -> usize {
        self.together().1
    }

    /// How far the index is behind: with 1, writers would all but stop.
    pub(super) fn lag(&self) -> f64 {
        let (together, _) = self.together();
        self.pending() / (PENDING_STOP * together.max(PENDING_MAX) as f64)
    }

    /// Puts at most so many keys into the index. Returns true at the end.
    pub(super) fn receive_part(&self, receiving: &mut Receiving, keys_max: usize) -> Result<bool> {
        self.receive_keys(receiving, keys_max)?;
        let is_done = |it: &ReceivedTable| it.at >= it.pending.keys.len();
        if !receiving.tables.iter().all(is_done) && !planted(Bug::SlmReceivedEarly) {
            return Ok(false);
        }
        self.end_receiving(receiving);
        Ok(true)
    }

    /// Puts at most so many keys of the pending tables into the index. Returns [`Received::All`] if no table is left that is
    /// part of the tree. `snapshots` lists the snapshots.
    pub(super) fn receive_some(
        &self,
        keys_max: usize,
        snapshots: &dyn Fn() -> Vec<Seqno>,
    ) -> Result<Received> {
        let mut current = self.receiving.lock();
        if self.has_lacked_room() {
            // A rebuild will put them into the index.
            *current = None;
        }
        let mut receiving = match current.take() {
            Some(receiving) => receiving,
            None => {
                let pending = self.next_pending(self.together().0);
                if pending.is_empty() {
                    return Ok(Received::All);
                }
                self.begin_receiving(pending, snapshots())
            }
        };
        if !self.receive_part(&mut receiving, keys_max)? {
            *current = Some(receiving);
            return Ok(Received::Some);
        }
        Ok(Received::Tables(receiving.tables.len()))
    }

    /// `pending` are the oldest tables that are not in the index, the oldest first.
    pub(super) fn begin_receiving(
        &self,
        pending: Vec<Arc<Pending>>,
        snapshots: Vec<Seqno>,
    ) -> Receiving {
        let flushed = pending.iter().map(|it| it.flushed).max().unwrap_or_default();
        self.receiving(flushed, &snapshots);
        let new = |pending| ReceivedTable { pending, at: 0, had: 0 };
        Receiving { tables: pending.into_iter().map(new).collect(), snapshots }
    }

    /// Puts at most so many keys into the index; fewer if there is no room for one.
    fn receive_keys(&self, receiving: &mut Receiving, keys_max: usize) -> Result<()> {
        let Receiving { tables, snapshots } = receiving;
        // Younger snapshots need nothing that the tables supersede.
        let flushed = tables.iter().map(|it| it.pending.flushed).max().unwrap_or_default();
        let held = held(snapshots);
        let held = &held[..held.partition_point(|snapshot| *snapshot < flushed)];
        let since: Vec<Seqno> =
            tables.iter().map(|it| it.pending.table.properties().seqno_min).collect();
        // A process that has ended may have put younger tables into the index, with these.
        let mut numbers: Vec<u32> = tables.iter().map(|it| it.pending.number).collect();
        let state = self.state();
        let others = state.pending.iter().map(|it| it.number);
        let others: Vec<u32> = others.filter(|number| !numbers.contains(number)).collect();
        numbers.extend(others);
        let mut next = NextKeys::begin(tables);
        next.fill(tables, KEYS_AT_ONCE);
        self.prefetch(next.keys(tables).map(|(key, _)| key));
        let mut left = keys_max;
        while left > 0 && next.len() > 0 && !self.has_lacked_room() {
            let mut now = next;
            if now.len() > left {
                now = NextKeys::begin(tables);
                now.fill(tables, left);
            }
            next = now.behind();
            next.fill(tables, KEYS_AT_ONCE);
            self.prefetch(next.keys(tables).map(|(key, _)| key));
            left = left.saturating_sub(now.len());
            let mut counts = Counts::default();
            let mut writing = self.write()?;
            let mut had = vec![0; tables.len()];
            for (key, places) in now.keys(tables) {
                let before = self.versions_now(&mut writing, key)?;
                let first = before.first().map(|it| it.location.table);
                let there = first.and_then(|it| numbers.iter().position(|number| *number == it));
                let mut after = Cow::Borrowed(&before);
                for &(table, at) in places {
                    let pending = &tables[table].pending;
                    let Some(listed) = pending.keys.get(at) else { continue };
                    had[table] += u64::from(listed.versions.newest.1 != EntryKind::Delete);
                    if there.is_none_or(|there| there < table) {
                        let number = pending.number;
                        after = Cow::Owned(over(&listed.versions, number, &after, snapshots));
                    }
                }
                let Cow::Owned(after) = after else { continue };
                self.set(&mut writing, &mut counts, key, &before, &after)?;
                let since = places.iter().map(|(table, _)| since[*table]).min();
                self.mark(key, &after, since.unwrap_or_default(), held);
            }
            self.count(&mut counts);
            for ((table, at), had) in tables.iter_mut().zip(&now.ats).zip(had) {
                (table.at, table.had) = (*at, table.had + had);
                table.pending.received.store(*at as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Begins to read the places of some keys of a list, as far as it has them.
    fn prefetch_listed(&self, keys: &KeyList, range: Range<usize>) {
        self.prefetch(range.filter_map(|at| keys.key(at)));
    }

    fn end_receiving(&self, Receiving { tables, .. }: &Receiving) {
        for ReceivedTable { pending, had, .. } in tables {
            // What a younger table has superseded before the index named it counts as what is superseded later.
            self.has_had(pending.number, *had);
        }
        // At once: whoever reads asks again after each change.
        let numbers: Vec<u32> = tables.iter().map(|it| it.pending.number).collect();
        let settled = tables.iter().map(|it| it.pending.flushed).max().unwrap_or_default();
        self.received(&numbers, settled);
        // A compaction takes what is settled of tables that are ready.
        numbers.iter().for_each(|number| self.set_ready(*number));
    }

    /// Lets the index name an output of a compaction instead of what it was made of: `inputs`, or, of the keys in
    /// `stacks`, the tables there. Of a key that none of these has any more, younger versions have come. Nothing is
    /// left of the keys that have `ended`.
    ///
    /// # Errors
    /// Some keys may have been changed then, and their changes are counted. The index is to be built anew.
    pub(super) fn replace(
        &self,
        output: Option<Output<'_>>,
        inputs: &[u32],
        stacks: &BTreeMap<Vec<u8>, Vec<u32>>,
        ended: &[Vec<u8>],
        snapshots: &[Seqno],
    ) -> Result<()> {
        self.dropping(snapshots);
        let made_of = |key: &[u8]| stacks.get(key).map_or(inputs, |stack| stack);
        for keys in ended.chunks(KEYS_AT_ONCE) {
            let mut counts = Counts::default();
            let mut writing = self.write()?;
            let set = keys.iter().try_for_each(|key| {
                let before = self.versions_now(&mut writing, key)?;
                let first = first_of(&before, made_of(key));
                let after = without_end(&before, first);
                self.set(&mut writing, &mut counts, key, &before, &after)
            });
            // What has been changed counts, also if the next key could not be.
            self.count(&mut counts);
            set?;
        }
        let Some(Output { number, keys, were_live }) = output else { return Ok(()) };
        let (mut at, mut had) = (0, 0);
        self.prefetch_listed(keys, 0..KEYS_AT_ONCE);
        while at < keys.len() {
            let end = keys.len().min(at + KEYS_AT_ONCE);
            self.prefetch_listed(keys, end..end + KEYS_AT_ONCE);
            let mut counts = Counts::default();
            let mut writing = self.write()?;
            let mut listed = (at..end).filter_map(|at| Some((at, keys.get(at)?)));
            let set = listed.try_for_each(|(at, listed)| {
                let before = self.versions_now(&mut writing, listed.key)?;
                let first = first_of(&before, made_of(listed.key));
                let (newest, kind) = listed.versions.newest;
                let is_deleted = kind == EntryKind::Delete && listed.versions.count == 1;
                // Several tombstones of a key are no value either.
                had += u64::from(!is_deleted && were_live.get(at).is_some_and(|was| *was));
                let Some(version) = before.get(first) else { return Ok(()) };
                let location = location(&listed.versions, number, is_cut(&before));
                let mut is_new = false;
                let after = if is_deleted {
                    without_end(&before, first)
                } else {
                    let deleted = (kind == EntryKind::Delete).then_some(newest);
                    let superseded = version.superseded.or(deleted);
                    let superseded = superseded.filter(|_| !planted(Bug::SlmOutputNotSuperseded));
                    is_new = version.superseded.is_none();
                    let output = IndexVersion { location, superseded };
                    before[..first].iter().copied().chain([output]).collect()
                };
                self.set(&mut writing, &mut counts, listed.key, &before, &after)?;
                if is_new {
                    self.mark(listed.key, &after, Seqno(0), held(snapshots));
                }
                Ok(())
            });
            self.count(&mut counts);
            set?;
            at = end;
        }
        self.has_had(number, had);
        self.set_ready(number);
        Ok(())
    }
}

/// The place of the first version that is in one of these tables; the number of versions if there is none.
fn first_of(versions: &[IndexVersion], tables: &[u32]) -> usize {
    let is_in = |version: &IndexVersion| tables.contains(&version.location.table);
    versions.iter().position(is_in).unwrap_or(versions.len())
}
