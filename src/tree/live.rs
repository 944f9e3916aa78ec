//! Estimates how much of a tree is live, from the samples of its tables.
//!
//! [`LiveKeys`] follows a fixed sample of the keyspace's keys, those with small hashes, through all
//! incorporated tables: a put makes a sampled key live with its size, a delete ends it. Compactions
//! do not change it. The total bytes of all tables are known exactly, and so are their bytes of
//! sampled keys. [`LiveShares`] is the live share of the latter. It is exact if nothing is dead,
//! however much of the data a few keys have. If a few keys have very many versions, live bytes are
//! instead the sampled keys' bytes divided by the sampled share of keys. [`Overlap`] estimates how
//! much of some tables is superseded by others among them, to choose what to merge. See
//! `docs/decisions/0013-live-keys.md`.
//!
//! Invariants:
//! 1. `LiveKeys` has every live key whose hash is below `threshold` (rounded down to three bits),
//!    and no other.
//! 2. Samples are applied oldest first.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::range::TablePart;
use crate::base::entry::EntryKind;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::table::{KeySample, SAMPLE_ALL, SampledKey, Table, folded_bytes};

/// The largest number of keys followed if their sizes are similar. The estimate is then off by at
/// most 2.2% in two of three cases.
const KEYS_MAX: usize = 4096;
/// If a few keys have most of the bytes, up to this many times as many are followed.
const UNEVEN_MAX: f64 = 4.0;
/// More keys are followed if the mean of the squared sizes is above this many times the square of
/// the mean size.
const UNEVEN_MIN: f64 = 4.0;
/// With fewer than this share of them, it is worth starting again from the tables if those have
/// more.
const KEYS_FEW_PART: usize = 4;
/// The number of keys followed however little memory there is.
const KEYS_SCARCE: f64 = 256.0;

/// Samples of later tables may be coarser. Tables that have fewer than this share of the followed
/// keys are not used for the live share.
const COARSE_PART: usize = 8;
/// The allowed deviation of the number of entries from the sample's prediction, in standard errors.
const LIKE_ERRORS: f64 = 4.0;
/// A key with more versions in a table, and more than this share of all sampled versions, has too
/// much weight.
const HOT_VERSIONS_MIN: u64 = 8;
const HOT_PART: u64 = 64;
/// The tables are compared again once their content differs by such a part, or after so many changes that one in
/// [`CHANGED_TABLES`] of them may be another.
const CHANGED_CONTENT: u64 = 128;
const CHANGED_TABLES: u64 = 64;

/// The total content of a tree's tables, dead or live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) entries: u64,
    /// The size of keys and values in bytes.
    pub(super) entry_bytes: u64,
    /// The size of values in blob files that tables point to, in bytes.
    pub(super) blob_bytes: u64,
}

impl Stored {
    /// Adds the content of a table.
    pub(super) fn add(&mut self, table: &Table) {
        let properties = table.properties();
        self.entries += properties.entries();
        self.entry_bytes += properties.entry_bytes();
        self.blob_bytes += blob_value_bytes(table);
    }

    /// Whether all of it is nearly as much. One change may be a merge of many tables, which drops a good part of them.
    fn is_like(&self, other: &Stored) -> bool {
        let near = |one: u64, other: u64| one.abs_diff(other) <= one.max(other) / CHANGED_CONTENT;
        near(self.entries, other.entries)
            && near(self.entry_bytes, other.entry_bytes)
            && near(self.blob_bytes, other.blob_bytes)
    }
}

/// The size of the values in blob files that a table points to, in bytes.
pub(super) fn blob_value_bytes(table: &Table) -> u64 {
    table.properties().blobs.iter().map(|blob| blob.bytes).sum()
}

/// The estimated live content of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Live {
    /// The number of keys that have a value.
    pub(super) keys: u64,
    /// The size of their keys and values in tables, in bytes.
    pub(super) entry_bytes: u64,
    /// The size of their values in blob files, in bytes.
    pub(super) blob_bytes: u64,
    /// Memory that the estimate uses.
    pub(super) memory_bytes: u64,
    /// The share of recently incorporated bytes that superseded others.
    pub(super) superseding_share: f64,
    /// The share that superseded nothing; less after opening.
    pub(super) new_share: f64,
}

impl Live {
    /// Returns how many of `bytes`, or of the bytes that they supersede, will be dead once they are
    /// incorporated.
    pub(super) fn dead_of(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.superseding_share) as u64
    }
}

/// The estimated live share of the tables' content, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LiveShares {
    entries: f64,
    entry_bytes: f64,
    blob_bytes: f64,
    memory_bytes: u64,
    superseding_share: f64,
    new_share: f64,
}

impl LiveShares {
    /// Returns the live content of the tables' total.
    pub(super) fn of(&self, stored: Stored) -> Live {
        let part = |share: f64, of: u64| (share * of as f64).round() as u64;
        Live {
            keys: part(self.entries, stored.entries),
            entry_bytes: part(self.entry_bytes, stored.entry_bytes),
            blob_bytes: part(self.blob_bytes, stored.blob_bytes),
            memory_bytes: self.memory_bytes,
            superseding_share: self.superseding_share,
            new_share: self.new_share,
        }
    }
}

/// The newest state of a sampled key that has a value.
#[derive(Debug, Clone, Copy)]
struct LiveKey {
    entry_bytes: u32,
    blob_bytes: u32,
    /// True if operands have been added since its size was known.
    is_guess: bool,
}

impl LiveKey {
    fn square(&self) -> u128 {
        let bytes = u128::from(self.entry_bytes) + u128::from(self.blob_bytes);
        bytes * bytes
    }

    /// Returns the key after newer versions, of which the newest is `newer`; `None` if it then has
    /// no value.
    fn after(before: Option<LiveKey>, newer: &SampledKey) -> Option<LiveKey> {
        let key_bytes = u32::from(newer.key_bytes);
        match newer.kind {
            EntryKind::Put | EntryKind::PutBlob => Some(LiveKey {
                entry_bytes: newer.newest_bytes,
                blob_bytes: newer.blob_bytes,
                is_guess: newer.is_folded,
            }),
            EntryKind::Delete if planted(Bug::LiveForgetsDeletes) => before,
            EntryKind::Delete => None,
            EntryKind::Merge => {
                let operand = newer.newest_bytes.saturating_sub(key_bytes);
                let value = before.map(|before| before.entry_bytes.saturating_sub(key_bytes));
                let versions = u32::from(newer.versions);
                let operands = newer.bytes.saturating_sub(key_bytes.saturating_mul(versions));
                // A value in a blob file stays there after operands are folded into it.
                if let Some(before) = before.filter(|before| before.blob_bytes > 0) {
                    let blob_bytes = before.blob_bytes.saturating_add(operands);
                    return Some(LiveKey { blob_bytes, is_guess: true, ..before });
                }
                let value = folded_bytes(value, operand, operands, versions);
                Some(LiveKey {
                    entry_bytes: key_bytes.saturating_add(value),
                    blob_bytes: 0,
                    is_guess: true,
                })
            }
            // Operands in blob files stay beside their base value while they are the smaller part.
            EntryKind::MergeBlob => {
                let operands = newer.blob_bytes_all;
                Some(LiveKey {
                    entry_bytes: before.map_or(newer.newest_bytes, |before| before.entry_bytes),
                    blob_bytes: before.map_or(0, |b| b.blob_bytes).saturating_add(operands),
                    is_guess: true,
                })
            }
            EntryKind::RangeDelete => before,
        }
    }
}

/// A sample of a keyspace's keys, with the current size of each.
#[derive(Debug, Clone)]
pub(super) struct LiveKeys {
    threshold: u64,
    keys: BTreeMap<u32, LiveKey>,
    entry_bytes: u64,
    blob_bytes: u64,
    /// The sum of the squared sizes of the keys.
    squares: u128,
    /// The number of sizes that are guesses.
    guesses: usize,
    superseding_share: f64,
    /// The share that superseded nothing. What there was at opening counts as if it had superseded all.
    new_share: f64,
    /// As of the last comparison with the tables: the shares of entries, of their bytes, and of
    /// bytes in blob files.
    shares: [f64; 3],
    /// What the tables had then; `None` before the first comparison.
    compared: Option<Stored>,
    /// The number of changes of the tables since then.
    changes: u64,
    /// The multiple of [`KEYS_MAX`] keys to follow. It is larger for more uneven sizes.
    uneven: f64,
    /// The share of that for which there is memory.
    share: f64,
}

impl Default for LiveKeys {
    /// The live keys of an empty keyspace.
    fn default() -> LiveKeys {
        LiveKeys {
            threshold: SAMPLE_ALL,
            keys: BTreeMap::new(),
            entry_bytes: 0,
            blob_bytes: 0,
            squares: 0,
            guesses: 0,
            superseding_share: 0.0,
            new_share: 1.0,
            shares: [0.0; 3],
            compared: None,
            changes: 0,
            uneven: 1.0,
            share: 1.0,
        }
    }
}

impl LiveKeys {
    /// No keys yet, to be gathered again: with as many keys as are wanted of these.
    pub(super) fn anew(&self) -> LiveKeys {
        LiveKeys {
            uneven: self.uneven,
            share: self.share,
            superseding_share: self.superseding_share,
            new_share: self.new_share,
            ..LiveKeys::default()
        }
    }

    /// As at opening: what was written before may have superseded anything.
    pub(super) fn reopened() -> LiveKeys {
        LiveKeys { new_share: 0.0, ..LiveKeys::default() }
    }

    /// Applies a table that is younger than all before it.
    pub(super) fn apply(&mut self, sample: &KeySample) {
        self.lower_to(sample);
        let added: u64 = sample.below(self.threshold).iter().map(|key| u64::from(key.bytes)).sum();
        let (threshold, before) = (self.threshold, self.entry_bytes);
        sample.below(threshold).iter().for_each(|key| self.apply_key(key));
        self.lower_to_keys_max();
        if added > 0 && self.threshold == threshold {
            let new = self.entry_bytes.saturating_sub(before) as f64 / added as f64;
            let new = new.clamp(0.0, 1.0);
            self.superseding_share = (self.superseding_share + 1.0 - new) / 2.0;
            self.new_share = (self.new_share + new) / 2.0;
        }
    }

    /// Applies a part of a table's entries. The ends of a part are known to one page: deletes that
    /// may be in it count, because otherwise puts below them would stay live indefinitely.
    pub(super) fn apply_part(&mut self, table: &Table, part: TablePart) {
        let properties = table.properties();
        let page = properties.entries() / u64::from(properties.leaf_pages).max(1) + 1;
        let entries = part.entries();
        let near = entries.start.saturating_sub(page)..entries.end.saturating_add(page);
        self.lower_to(&properties.sample);
        for key in properties.sample.below(self.threshold) {
            let position = u64::from(key.position);
            let is_delete = key.kind == EntryKind::Delete;
            if entries.contains(&position) || is_delete && near.contains(&position) {
                self.apply_key(key);
            }
        }
        self.lower_to_keys_max();
    }

    fn apply_key(&mut self, key: &SampledKey) {
        let before = self.take(key.hash);
        let mut after = LiveKey::after(before, key);
        if planted(Bug::LiveForgetsOverwrites)
            && let (Some(before), Some(after)) = (before, &mut after)
        {
            after.entry_bytes = after.entry_bytes.saturating_add(before.entry_bytes);
        }
        if let Some(after) = after {
            self.put(key.hash, after);
        }
    }

    /// Learns the size of folded values from a merge of everything in a range.
    pub(super) fn learn(&mut self, sample: &KeySample) {
        if self.guesses == 0 {
            return;
        }
        for key in sample.below(self.threshold) {
            let is_put = matches!(key.kind, EntryKind::Put | EntryKind::PutBlob);
            let is_known = is_put && !key.is_folded;
            if is_known && self.keys.get(&key.hash).is_some_and(|known| known.is_guess) {
                let after = LiveKey::after(self.take(key.hash), key);
                after.into_iter().for_each(|after| self.put(key.hash, after));
            }
        }
    }

    fn take(&mut self, hash: u32) -> Option<LiveKey> {
        let before = self.keys.remove(&hash)?;
        self.subtract(&before);
        Some(before)
    }

    fn subtract(&mut self, key: &LiveKey) {
        self.entry_bytes -= u64::from(key.entry_bytes);
        self.blob_bytes -= u64::from(key.blob_bytes);
        self.squares -= key.square();
        self.guesses -= usize::from(key.is_guess);
    }

    fn put(&mut self, hash: u32, key: LiveKey) {
        self.entry_bytes += u64::from(key.entry_bytes);
        self.blob_bytes += u64::from(key.blob_bytes);
        self.squares += key.square();
        self.guesses += usize::from(key.is_guess);
        self.keys.insert(hash, key);
    }

    /// Removes the keys that a sample cannot have.
    fn lower_to(&mut self, sample: &KeySample) {
        let threshold = rounded_down(sample.threshold());
        if threshold < self.threshold {
            self.lower(threshold);
        }
    }

    fn keys_max(&self) -> usize {
        (KEYS_MAX as f64 * self.uneven * self.share).max(KEYS_SCARCE) as usize
    }

    /// Sets the share of the wanted keys that there is memory for.
    pub(super) fn limit(&mut self, share: f64) {
        if self.share != share {
            self.share = share;
            self.lower_to_keys_max();
        }
    }

    /// Removes keys beyond the wanted number.
    fn lower_to_keys_max(&mut self) {
        while self.keys.len() > self.keys_max() {
            self.lower(self.threshold / 2);
        }
    }

    fn lower(&mut self, threshold: u64) {
        self.threshold = threshold;
        let gone = match u32::try_from(threshold) {
            Ok(threshold) => self.keys.split_off(&threshold),
            Err(_) => return,
        };
        gone.values().for_each(|key| self.subtract(key));
    }

    /// Returns the live share of the tables' content after a change of the tables, which are `count`
    /// and have `stored` now. `tables` supplies them if they are to be compared again.
    pub(super) fn shares<'a>(
        &mut self,
        count: u64,
        stored: Stored,
        tables: impl FnOnce() -> Vec<&'a Arc<Table>>,
    ) -> LiveShares {
        self.changes += 1;
        let is_like = |compared: &Stored| compared.is_like(&stored);
        if self.changes * CHANGED_TABLES >= count || !self.compared.as_ref().is_some_and(is_like) {
            self.shares = self.compared(&tables());
            self.uneven = self.uneven.max(self.unevenness());
            self.compared = Some(stored);
            self.changes = 0;
        }
        let [entries, entry_bytes, blob_bytes] = self.shares;
        LiveShares {
            entries,
            entry_bytes,
            blob_bytes,
            memory_bytes: self.keys.len() as u64 * 32,
            superseding_share: self.superseding_share,
            new_share: self.new_share,
        }
    }

    /// Compares the live bytes of the sampled keys with the tables' bytes of them.
    fn compared(&self, tables: &[&Arc<Table>]) -> [f64; 3] {
        let threshold = threshold_of(tables.iter().map(|table| &***table));
        let threshold = rounded_down(threshold).min(self.threshold);
        let (mut stored, mut sampled) = (Stored::default(), Stored::default());
        let mut versions_max = 0;
        for table in tables {
            stored.add(table);
            for key in table.properties().sample.below(threshold) {
                versions_max = versions_max.max(u64::from(key.version_count()));
                sampled.entries += u64::from(key.version_count());
                sampled.entry_bytes += u64::from(key.bytes);
                sampled.blob_bytes += u64::from(key.blob_bytes_all);
            }
        }
        let live = self.below(threshold);
        let share = |live: f64, all: f64| if all > 0.0 { (live / all).min(1.0) } else { 1.0 };
        let whole = self.scaled();
        let scaled = [
            share(whole.entries as f64, stored.entries as f64),
            share(whole.entry_bytes as f64, stored.entry_bytes as f64),
            share(whole.blob_bytes as f64, stored.blob_bytes as f64),
        ];
        let is_coarse = live.entries as usize * COARSE_PART < self.keys.len();
        let is_whole = self.threshold == SAMPLE_ALL;
        let is_hot = versions_max > HOT_VERSIONS_MIN && versions_max * HOT_PART > sampled.entries;
        if is_whole || is_coarse || is_hot {
            return scaled;
        }
        // The unsampled rest may be large values, or very many versions of a few keys, which are
        // entries too.
        let versions = sampled.entries as f64 / live.entries.max(1) as f64;
        let told = whole.entries as f64 * versions;
        let error = 1.0 / self.keys.len().max(1) as f64
            + (versions - 1.0).max(0.0) / (versions * versions * live.entries.max(1) as f64);
        if (told / stored.entries.max(1) as f64 - 1.0).abs() > LIKE_ERRORS * error.sqrt() {
            return scaled;
        }
        let entries = share(live.entries as f64, sampled.entries as f64);
        // With little or no data, assumes for bytes the share of entries, as if there were one more
        // key.
        let bytes = |live: u64, all: u64| {
            let one = all as f64 / sampled.entries.max(1) as f64;
            match all {
                0 => entries,
                _ => share(live as f64 + one * entries, all as f64 + one),
            }
        };
        [
            entries,
            bytes(live.entry_bytes, sampled.entry_bytes),
            bytes(live.blob_bytes, sampled.blob_bytes),
        ]
    }

    /// The live content of the keys with smaller hashes.
    fn below(&self, threshold: u64) -> Stored {
        let &LiveKeys { entry_bytes, blob_bytes, .. } = self;
        if threshold == self.threshold {
            return Stored { entries: self.keys.len() as u64, entry_bytes, blob_bytes };
        }
        let mut live = Stored::default();
        for (_, key) in self.keys.iter().take_while(|(hash, _)| u64::from(**hash) < threshold) {
            live.entries += 1;
            live.entry_bytes += u64::from(key.entry_bytes);
            live.blob_bytes += u64::from(key.blob_bytes);
        }
        live
    }

    /// The factor by which more keys must be followed for the same precision as with even sizes,
    /// limited by the memory.
    fn unevenness(&self) -> f64 {
        (self.relative_square() / UNEVEN_MIN).clamp(1.0, UNEVEN_MAX)
    }

    /// The mean of the squared sizes divided by the square of the mean size.
    fn relative_square(&self) -> f64 {
        let sum = (self.entry_bytes + self.blob_bytes) as f64;
        (self.squares as f64 * self.keys.len() as f64 / (sum * sum).max(1.0)).max(1.0)
    }

    /// The factor by which the samples of tables should be larger than usual.
    pub(super) fn sample_times(&self) -> u64 {
        self.uneven.round() as u64
    }

    /// The live content, by the share of keys that are followed.
    fn scaled(&self) -> Stored {
        let times = SAMPLE_ALL as f64 / self.threshold.max(1) as f64;
        let whole = |sampled: u64| (sampled as f64 * times) as u64;
        Stored {
            entries: whole(self.keys.len() as u64),
            entry_bytes: whole(self.entry_bytes),
            blob_bytes: whole(self.blob_bytes),
        }
    }

    /// Returns true if so few keys are followed that it may be worth starting again.
    fn is_small(&self) -> bool {
        self.keys.len() < self.keys_max() / KEYS_FEW_PART && self.threshold < SAMPLE_ALL
    }

    /// Returns true if starting again with the samples of all tables gives a better estimate, because
    /// the keyspace has become smaller. The samples are complete below `tables_threshold`.
    pub(super) fn is_outgrown(&self, tables_threshold: u64) -> bool {
        self.is_small() && rounded_down(tables_threshold) > self.threshold
    }
}

/// The greatest number of three bits and zeros up to `threshold`. A table's own threshold is lower
/// if more of its keys happen to have small hashes. The lowest of many tables' thresholds would be
/// that of the table with the most, and counts below it would be too high.
/// below it would be too high.
fn rounded_down(threshold: u64) -> u64 {
    let zeros = threshold.checked_ilog2().unwrap_or(0).saturating_sub(2);
    threshold >> zeros << zeros
}

/// The hashes below which all tables' samples are complete.
fn threshold_of<'a>(tables: impl IntoIterator<Item = &'a Table>) -> u64 {
    let thresholds = tables.into_iter().map(|table| table.properties().sample.threshold());
    thresholds.min().unwrap_or(SAMPLE_ALL)
}

/// The share of some parts of tables that is superseded by others of them, or deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Dead {
    /// The share of the key and value bytes, from 0 to 1.
    pub(super) share: f64,
    /// The share of the bytes in blob files.
    pub(super) blob_share: f64,
    /// The share of the entries that are deletes, or hidden by one.
    pub(super) deleted_share: f64,
    /// The number of sampled keys of the estimate.
    pub(super) keys: usize,
}

/// The parts of tables to compare.
#[derive(Default)]
pub(super) struct Overlap<'a> {
    /// Oldest first.
    parts: Vec<(&'a Table, TablePart)>,
}

impl<'a> Overlap<'a> {
    /// Adds a part of a table that is younger than those before. Part of one leaf is told by no index, so it is empty: its
    /// keys count if another part has them too. A leaf of tombstones may end hundreds of entries.
    pub(super) fn add(&mut self, table: &'a Table, part: TablePart) {
        // Half of the leaf comes before such a part. A part without that is no part of the table.
        let is_part = part.first > 0 || table.properties().entries() == 1;
        if part.size.entries > 0 || is_part {
            self.parts.push((table, part));
        }
    }

    /// The size of the keys and values of all parts, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.size.bytes).sum()
    }

    /// Estimates what a merge of all parts drops, including tombstones.
    pub(super) fn dead(&self) -> Dead {
        // A table that is not told may have a coarser sample: then less seems dead.
        let told = self.parts.iter().filter(|(_, part)| part.size.entries > 0);
        let threshold = threshold_of(told.clone().map(|(table, _)| *table));
        if told.count() == 0 {
            return Dead::default();
        }
        let mut found: Vec<Found<'_>> = Vec::new();
        for (age, (table, part)) in self.parts.iter().enumerate() {
            let entries = match part.size.entries {
                0 => leaf_around(table, part.first),
                _ => part.entries(),
            };
            let inside = |key: &&SampledKey| entries.contains(&u64::from(key.position));
            let keys = table.properties().sample.below(threshold).iter().filter(inside);
            let (table, is_told) = (table.id(), part.size.entries > 0);
            found.extend(keys.map(|key| Found { age, table, key, is_told }));
        }
        found.sort_unstable_by_key(|it| (it.key.hash, it.age));
        // Of two parts of a table that are near each other, an untold one may reach into the other.
        found.dedup_by(|again, first| {
            let position = |it: &Found<'_>| (it.table, it.key.hash, it.key.position);
            let is_same = position(again) == position(first);
            first.is_told |= is_same && again.is_told;
            is_same
        });
        let (mut all, mut live) = ((0u64, 0u64), (0u64, 0u64));
        let (mut entries, mut deleted) = (0u64, 0u64);
        let mut keys = 0;
        for versions in found.chunk_by(|a, b| a.key.hash == b.key.hash) {
            if !versions.iter().any(|it| it.is_told) {
                continue;
            }
            keys += 1;
            let mut left = None;
            for Found { key, .. } in versions {
                all.0 += u64::from(key.bytes);
                all.1 += u64::from(key.blob_bytes_all);
                left = LiveKey::after(left, key);
            }
            let count: u64 = versions.iter().map(|it| u64::from(it.key.version_count())).sum();
            entries += count;
            match left {
                Some(left) => {
                    live.0 += u64::from(left.entry_bytes);
                    live.1 += u64::from(left.blob_bytes);
                }
                None => deleted += count,
            }
        }
        let share = |all: u64, live: u64| all.saturating_sub(live) as f64 / all.max(1) as f64;
        Dead {
            share: share(all.0, live.0),
            blob_share: share(all.1, live.1),
            deleted_share: deleted as f64 / entries.max(1) as f64,
            keys,
        }
    }
}

/// A sampled key in a part of a table.
struct Found<'a> {
    age: usize,
    table: FileId,
    key: &'a SampledKey,
    /// An index tells that the part is there.
    is_told: bool,
}

/// The entries that the leaf around an entry may have: those of a leaf of tombstones, which are keys alone.
fn leaf_around(table: &Table, entry: u64) -> std::ops::Range<u64> {
    let properties = table.properties();
    let of_keys = properties.entries() * UNIT_BYTES as u64 / properties.key_bytes.max(1);
    let leaf = 1 + of_keys.max(properties.entries() / u64::from(properties.leaf_pages).max(1));
    entry.saturating_sub(leaf)..entry.saturating_add(leaf)
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
