//! The bookkeeping of the page cache: free slots, eviction, and memory used.
//!
//! Eviction is a clock over the slots. It skips a page that has been hit and evicts one that has
//! not. A hit page loses its mark only when few unmarked pages remain ([`SPARED_PER_EVICTED`]). So
//! the pages of a long scan replace one another, and pages that have been used twice stay.
//!
//! Invariants:
//! 1. `used_bytes` counts everything: frames and units of multi-unit frames that have been touched
//!    and not released, heap pages, the tables, and what waits for the end of a grace period.
//!    Nothing is taken that would raise it above the capacity.
//! 2. An evicted page's memory is reused only after a grace period, and when no reader keeps it. What readers keep then
//!    is theirs, and not counted.
//! 3. No call scans, evicts or waits without bound.
//! 4. There are slots for as many pages as the capacity has room for, beside those that are left to their keepers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cold_slots::{ColdSlots, Use};
use super::frames::{Frames, LARGE_PAGE_SLOTS, MULTI_UNITS, PageHome, SLOTS_MAX, heap_charge};
use super::grace::{GracePeriod, Readers};
use super::index::{Index, Inserted, Locator, PackedKey, Position, worth};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::sync::yield_now;

/// Marked pages that the clock skips per evicted page without removing their marks: about an eighth
/// of the cache is on probation.
const SPARED_PER_EVICTED: u32 = 7;
/// Pages that one insertion examines for eviction before it evicts the least valuable of them. (It
/// examines more than a few only among many adjacent marked pages.)
const PAGES_LOOKED_AT_MAX: u32 = 2048;
/// Marks that are removed during the search for one page to evict.
const MARKS_TAKEN_MAX: u32 = 32;
/// Free frames are kept for this many insertions, because evicted frames are not free immediately.
const RESERVE_FRAMES_MAX: u32 = 64;
/// Attempts of an insertion to end a grace period before it gives up.
const ADVANCES_MAX: u32 = 4;
/// Rounds of eviction in a change of capacity. Insertions continue with the rest.
const SHRINK_ROUNDS_MAX: u32 = 10_000;
/// Of these, rounds that wait for readers without further eviction.
const SHRINK_WAITS_MAX: u32 = 500;
/// Pages evicted in one round.
const SHRINK_ROUND_PAGES: u32 = 1024;
/// If more slots than this part of the pages there is room for are left to their keepers, values are copied.
const LEFT_PART: u32 = 4;
/// If there are too few slots, so many more are made than are needed.
const MORE_SLOTS: u32 = if cfg!(any(miri, shuttle)) { 2 } else { 64 };
/// Per slot: its position, and room in the lists of free and cold slots.
const TABLE_BYTES_PER_SLOT: usize = 3 * size_of::<u32>();

const NO_POSITION: u32 = u32::MAX;

/// Memory that readers may still see.
enum Retired {
    Frame(u32),
    /// With its units.
    MultiUnit(u32, u32),
    Heap(u32),
    Index(Arc<Index>),
}

struct Batch {
    period: GracePeriod,
    items: Vec<Retired>,
}

/// See the module's description.
pub(super) struct SlotPool {
    readers: Readers,
    capacity_bytes: usize,
    /// The index and the tables of slots.
    table_bytes: usize,
    /// Units in memory, of frames and multi-unit frames.
    units: usize,
    heap_bytes: usize,
    /// The part of these three that is retired.
    retired_bytes: usize,
    /// Free slots by their resident units: of the frame if one, else of the multi-unit frame.
    free: [Vec<u32>; MULTI_UNITS + 1],
    /// Free slots without resident memory.
    cold: ColdSlots,
    /// By slot in use: the index position of its page.
    positions: Vec<u32>,
    pages: usize,
    hand: u32,
    spared_ahead: u32,
    /// What was retired since the last grace period began.
    retired: Vec<Retired>,
    waiting: VecDeque<Batch>,
    /// How many slots are left to their keepers, and their units.
    left_slots: u32,
    left_units: usize,
    evictions: u64,
}

impl SlotPool {
    /// For a cache without capacity; see [`SlotPool::resize`].
    pub(super) fn new(index: &Index, readers: Readers) -> SlotPool {
        SlotPool {
            readers,
            capacity_bytes: 0,
            table_bytes: index.bytes(),
            units: 0,
            heap_bytes: 0,
            retired_bytes: 0,
            free: std::array::from_fn(|_| Vec::new()),
            cold: ColdSlots::default(),
            positions: Vec::new(),
            pages: 0,
            hand: 0,
            spared_ahead: 0,
            retired: Vec::new(),
            waiting: VecDeque::new(),
            left_slots: 0,
            left_units: 0,
            evictions: 0,
        }
    }

    /// All memory used by the cache.
    pub(super) fn used_bytes(&self) -> usize {
        self.table_bytes + self.units * UNIT_BYTES + self.heap_bytes
    }

    pub(super) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    fn room(&self) -> usize {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    fn is_over_capacity(&self) -> bool {
        self.used_bytes() > self.capacity_bytes
    }

    fn can_never_hold(&self, bytes: usize) -> bool {
        self.capacity_bytes.saturating_sub(self.table_bytes) < bytes
    }

    /// Resident memory of free slots.
    fn free_bytes(&self) -> usize {
        let units = self.free.iter().enumerate().map(|(units, slots)| units * slots.len());
        units.sum::<usize>() * UNIT_BYTES
    }

    /// Takes a slot for a page of `len` bytes, and evicts as needed. Returns the slot and the
    /// page's place in it, or `None` if no slot is free yet.
    pub(super) fn take(
        &mut self,
        len: usize,
        frames: &Frames,
        index: &Index,
    ) -> Option<(u32, PageHome)> {
        self.take_back(frames);
        let home = PageHome::of(len);
        match home {
            PageHome::Frame(_) | PageHome::MultiUnit(_) => {
                match self.take_units(len.div_ceil(UNIT_BYTES).max(1), frames, index) {
                    Some(slot) if len <= UNIT_BYTES || frames.prepare_multi_unit(slot) => {
                        Some((slot, home))
                    }
                    Some(slot) => {
                        self.units -= len.div_ceil(UNIT_BYTES);
                        self.cold.put(Use::Beside, [slot]);
                        self.take_heap(len, frames, index)
                    }
                    None => None,
                }
            }
            PageHome::Heap => self.take_heap(len, frames, index),
        }
    }

    fn take_units(&mut self, units: usize, frames: &Frames, index: &Index) -> Option<u32> {
        let need_bytes = units * UNIT_BYTES;
        if self.can_never_hold(need_bytes) {
            return None;
        }
        self.make_room(need_bytes, frames, index);
        for _ in 0..ADVANCES_MAX {
            if !self.is_over_capacity() {
                if let Some(slot) = self.take_free(units, frames) {
                    return Some(slot);
                }
                self.release_free(need_bytes.saturating_sub(self.room()), frames);
                if self.room() >= need_bytes {
                    let taken = match units {
                        1 => self.take_cold_frame(frames),
                        _ => self.cold.take(Use::Beside).inspect(|_| self.units += units),
                    };
                    if taken.is_some() {
                        return taken;
                    }
                }
            }
            self.readers.advance();
            self.reclaim(frames);
        }
        None
    }

    /// Takes a slot with this many resident units, or a multi-unit frame with more.
    fn take_free(&mut self, units: usize, frames: &Frames) -> Option<u32> {
        if let Some(slot) = self.free[units].pop() {
            return Some(slot);
        }
        let more = units.max(2) + 1..=MULTI_UNITS;
        let (slot, had) =
            more.filter(|_| units > 1).find_map(|n| Some((self.free[n].pop()?, n)))?;
        // SAFETY: no reader sees free slots.
        unsafe { frames.release_multi_unit(slot, units..had) };
        self.units -= had - units;
        Some(slot)
    }

    /// Takes a frame that is not resident; if there is room, a large page of frames.
    fn take_cold_frame(&mut self, frames: &Frames) -> Option<u32> {
        if self.room() >= LARGE_PAGE_SLOTS as usize * UNIT_BYTES
            && let Some(slots) = self.cold.take_large_page()
        {
            if frames.use_large_page(slots.start) {
                self.units += slots.len();
                self.free[1].extend(slots.rev());
                return self.free[1].pop();
            }
            self.cold.put(Use::Frame, slots.rev());
        }
        self.cold.take(Use::Frame).inspect(|_| self.units += 1)
    }

    fn take_heap(&mut self, len: usize, frames: &Frames, index: &Index) -> Option<(u32, PageHome)> {
        let charge = heap_charge(len);
        if self.can_never_hold(charge) {
            return None;
        }
        self.make_room(charge, frames, index);
        for _ in 0..ADVANCES_MAX {
            self.release_free(charge.saturating_sub(self.room()), frames);
            if self.room() >= charge
                && let Some(slot) = self.cold.take(Use::Beside)
            {
                self.heap_bytes += charge;
                self.table_bytes += frames.prepare_heap(slot);
                return Some((slot, PageHome::Heap));
            }
            self.readers.advance();
            self.reclaim(frames);
        }
        None
    }

    /// Publishes the page that was copied into a taken slot. If the page is already cached, the
    /// slot becomes free again.
    pub(super) fn publish(
        &mut self,
        key: PackedKey,
        locator: Locator,
        frames: &Frames,
        index: &Index,
    ) {
        let mut inserted = index.insert(key, locator);
        if let Inserted::Full(position) = inserted {
            self.retire_page(position, frames, index);
            self.evictions += 1;
            inserted = index.insert(key, locator);
        }
        let slot = locator.slot();
        match inserted {
            Inserted::At(Position(position)) => {
                self.cover_begun();
                self.positions[slot as usize] = position;
                self.pages += 1;
            }
            // No reader has seen the slot, so it need not wait.
            Inserted::Present | Inserted::Full(_) => match locator.home() {
                PageHome::Frame(_) => self.free[1].push(slot),
                PageHome::MultiUnit(len) => self.free[len.div_ceil(UNIT_BYTES)].push(slot),
                PageHome::Heap => self.free_heap(slot, frames),
            },
        }
    }

    /// Makes room for a position per slot in use.
    fn cover_begun(&mut self) {
        let begun = self.cold.begun() as usize;
        if self.positions.len() < begun {
            self.positions.resize(begun, NO_POSITION);
        }
    }

    fn free_heap(&mut self, slot: u32, frames: &Frames) {
        self.heap_bytes -= frames.charge_of_heap(slot);
        // SAFETY: the slot's page has never been published, or a grace period has passed since it
        // was taken out of the index.
        unsafe { frames.drop_heap(slot) };
        self.cold.put(Use::Beside, [slot]);
    }

    /// Removes a page, if it is cached.
    pub(super) fn remove(&mut self, key: PackedKey, frames: &Frames, index: &Index) {
        if let Some(position) = index.position(key) {
            self.retire_page(position, frames, index);
        }
    }

    /// Removes the file's pages in up to `n` slots from `first`. Returns false if there are no such
    /// slots.
    pub(super) fn remove_file(
        &mut self,
        file: FileId,
        first: u32,
        n: u32,
        frames: &Frames,
        index: &Index,
    ) -> bool {
        self.cover_begun();
        let end = self.cold.begun().min(first.saturating_add(n));
        for slot in first..end {
            let position = Position(self.positions[slot as usize]);
            if position.0 != NO_POSITION && index.page(position).0.file() == file {
                self.retire_page(position, frames, index);
            }
        }
        first < end
    }

    fn retire_page(&mut self, position: Position, frames: &Frames, index: &Index) {
        let locator = index.remove(position);
        let slot = locator.slot();
        self.positions[slot as usize] = NO_POSITION;
        self.pages -= 1;
        match locator.home() {
            PageHome::Frame(_) => {
                self.retired_bytes += UNIT_BYTES;
                self.retired.push(Retired::Frame(slot));
            }
            PageHome::MultiUnit(len) => {
                let units = len.div_ceil(UNIT_BYTES);
                self.retired_bytes += units * UNIT_BYTES;
                self.retired.push(Retired::MultiUnit(slot, units as u32));
            }
            PageHome::Heap => {
                self.retired_bytes += frames.charge_of_heap(slot);
                self.retired.push(Retired::Heap(slot));
            }
        }
    }

    /// Begins the grace period of the retired memory.
    pub(super) fn seal(&mut self) {
        if !self.retired.is_empty() {
            let items = std::mem::take(&mut self.retired);
            self.waiting.push_back(Batch { period: GracePeriod::begin(&self.readers), items });
        }
    }

    /// Frees the retired memory that no reader can see any more.
    pub(super) fn reclaim(&mut self, frames: &Frames) {
        let is_over = |batch: &Batch| batch.period.is_over() || planted(Bug::FrameReusedEarly);
        while self.waiting.front().is_some_and(is_over) {
            let Some(batch) = self.waiting.pop_front() else { return };
            for item in batch.items {
                match item {
                    Retired::Frame(slot) => self.free_or_leave(slot, 1, frames),
                    Retired::MultiUnit(slot, units) => self.free_or_leave(slot, units, frames),
                    Retired::Heap(slot) => {
                        self.retired_bytes -= frames.charge_of_heap(slot);
                        self.free_heap(slot, frames);
                    }
                    Retired::Index(index) => {
                        self.retired_bytes -= index.bytes();
                        self.table_bytes -= index.bytes();
                    }
                }
            }
        }
        if self.is_over_capacity() {
            self.release_free(self.used_bytes() - self.capacity_bytes, frames);
        }
    }

    /// Prepares a taken slot for a value that readers may keep.
    pub(super) fn prepare_kept(&mut self, slot: u32, frames: &Frames) {
        self.table_bytes += frames.prepare_kept(slot);
    }

    /// Slots from here on have never been used.
    pub(super) fn slots_begun(&self) -> u32 {
        self.cold.begun()
    }

    /// Memory of evicted values that readers keep.
    pub(super) fn left_bytes(&self) -> usize {
        self.left_units * UNIT_BYTES
    }

    /// Whether so much is left to readers that they should get copies.
    pub(super) fn is_much_left(&self) -> bool {
        self.left_slots > self.slots_wanted() / LEFT_PART
    }

    /// How many pages the capacity has room for.
    fn slots_wanted(&self) -> u32 {
        let per_slot = UNIT_BYTES + TABLE_BYTES_PER_SLOT;
        (self.capacity_bytes / per_slot).min(SLOTS_MAX as usize) as u32
    }

    /// After a grace period: frees a slot, or leaves it to those who keep it.
    fn free_or_leave(&mut self, slot: u32, units: u32, frames: &Frames) {
        self.retired_bytes -= units as usize * UNIT_BYTES;
        if planted(Bug::KeptValueReused) || !frames.leave_to_keepers(slot) {
            self.free[units as usize].push(slot);
            return;
        }
        self.units -= units as usize;
        self.left_units += units as usize;
        self.left_slots += 1;
        self.make_slots(frames);
    }

    /// Keeps invariant 4.
    fn make_slots(&mut self, frames: &Frames) {
        let needed = self.slots_wanted().saturating_add(self.left_slots);
        if needed > self.cold.slots() {
            let more = MORE_SLOTS + self.left_slots / 4;
            let slots = frames.reserve(needed.saturating_add(more).min(SLOTS_MAX));
            if let Some(more @ 1..) = slots.checked_sub(self.cold.slots()) {
                self.table_bytes += more as usize * TABLE_BYTES_PER_SLOT;
                self.cold.grow(slots);
            }
        }
    }

    /// Takes back the slots that nobody keeps any more.
    pub(super) fn take_back(&mut self, frames: &Frames) {
        let Some((resident, released)) = frames.take_given_back() else { return };
        let slots = resident.len() + released.len();
        self.left_slots -= slots as u32;
        for (slot, units) in resident {
            self.left_units -= units as usize;
            self.units += units as usize;
            self.free[units as usize].push(slot);
        }
        for (slot, units) in released {
            self.left_units -= units as usize;
            self.cold.put(if units == 1 { Use::Frame } else { Use::Beside }, [slot]);
        }
        if self.is_over_capacity() {
            self.release_free(self.used_bytes() - self.capacity_bytes, frames);
        }
    }

    /// Whether a slot is free, with memory or without.
    fn has_free_slot(&self) -> bool {
        self.cold.has_any() || self.free.iter().any(|slots| !slots.is_empty())
    }

    /// Releases memory of free slots to the system: `bytes`, or less if there is less.
    fn release_free(&mut self, bytes: usize, frames: &Frames) {
        let mut units = bytes.div_ceil(UNIT_BYTES);
        for each in (2..=MULTI_UNITS).rev() {
            while units > 0
                && let Some(slot) = self.free[each].pop()
            {
                // SAFETY: no reader sees free slots.
                unsafe { frames.release_multi_unit(slot, 0..each) };
                self.cold.put(Use::Beside, [slot]);
                self.units -= each;
                units = units.saturating_sub(each);
            }
        }
        let n = units.min(self.free[1].len());
        if n > 0 {
            let mut slots = self.free[1].split_off(self.free[1].len() - n);
            // SAFETY: as above.
            unsafe { frames.release(&mut slots) };
            self.cold.put(Use::Frame, slots);
            self.units -= n;
        }
    }

    /// Evicts in advance, so that there is room after a grace period.
    fn make_room(&mut self, need_bytes: usize, frames: &Frames, index: &Index) {
        if !self.waiting.is_empty() {
            self.readers.advance();
            self.reclaim(frames);
        }
        let reserve = (self.slots_wanted() / 64).min(RESERVE_FRAMES_MAX) as usize * UNIT_BYTES;
        // After a shrink, the room may be negative.
        let over = self.used_bytes().saturating_sub(self.capacity_bytes);
        let available = self.room() + self.free_bytes();
        // The system may have refused slots.
        let has_slot = self.has_free_slot();
        if has_slot && available >= over + need_bytes + reserve / 2 {
            return;
        }
        let most = RESERVE_FRAMES_MAX as usize + need_bytes / UNIT_BYTES;
        let mut looks = PAGES_LOOKED_AT_MAX + 4 * most as u32;
        for evicted in 0..most {
            if (has_slot || evicted > 0)
                && available + self.retired_bytes >= over + need_bytes + reserve
                || !self.evict_one(&mut looks, frames, index)
                || looks == 0
            {
                break;
            }
        }
        self.seal();
    }

    /// Removes one page, after examining at most `looks` pages (at least one). Returns false if
    /// there is none.
    fn evict_one(&mut self, looks: &mut u32, frames: &Frames, index: &Index) -> bool {
        let mut least: Option<(u64, Position)> = None;
        let mut marks_taken = 0;
        if self.pages > 0 {
            self.cover_begun();
            let begun = self.cold.begun();
            for _ in 0..begun {
                let position = self.positions[self.hand as usize];
                self.hand = if self.hand + 1 >= begun { 0 } else { self.hand + 1 };
                if position == NO_POSITION {
                    continue;
                }
                let position = Position(position);
                let locator = index.locator(position);
                *looks = looks.saturating_sub(1);
                if locator.uses() == 0 {
                    let ahead = self.spared_ahead.saturating_add(SPARED_PER_EVICTED);
                    self.spared_ahead = ahead.min(self.slots_wanted());
                    least = Some((0, position));
                    break;
                }
                if least.is_none_or(|(least, _)| worth(locator) < least) {
                    least = Some((worth(locator), position));
                }
                match self.spared_ahead.checked_sub(1) {
                    Some(rest) => self.spared_ahead = rest,
                    None => {
                        index.age(position);
                        marks_taken += 1;
                    }
                }
                if *looks == 0 || marks_taken == MARKS_TAKEN_MAX {
                    break;
                }
            }
        }
        match least {
            Some((_, position)) => {
                self.retire_page(position, frames, index);
                self.evictions += 1;
                true
            }
            None => false,
        }
    }

    /// Changes the capacity, and evicts what no longer fits. If the index would be much too small
    /// or too large, it returns a new one. The caller shows it to readers, and then passes the old
    /// one to [`SlotPool::retire_index`] and calls [`SlotPool::shrink`].
    pub(super) fn resize(
        &mut self,
        capacity_bytes: usize,
        frames: &Frames,
        index: &Index,
    ) -> Option<Arc<Index>> {
        self.take_back(frames);
        self.capacity_bytes = capacity_bytes;
        let wanted = self.slots_wanted();
        let reserved = frames.reserve(wanted.saturating_add(self.left_slots).min(SLOTS_MAX));
        let slots = wanted.min(reserved);
        let more = reserved.saturating_sub(self.cold.slots()) as usize;
        if more > 0 {
            self.table_bytes += more * TABLE_BYTES_PER_SLOT;
            self.cold.grow(reserved);
            // Nothing has been evicted so far, so the marks are still meaningful.
            self.spared_ahead = slots;
        }
        let bytes = Index::bytes_for(slots);
        // Slightly too small is accepted: a slowly growing capacity must not rebuild the index each
        // time.
        if bytes <= index.bytes() / 4 * 5 && bytes >= index.bytes() / 4 {
            return None;
        }
        // Pages that do not fit the smaller index are evicted first.
        let mut looks = u32::MAX;
        while self.pages > slots as usize && self.evict_one(&mut looks, frames, index) {}
        let new = Arc::new(Index::new(slots));
        self.cover_begun();
        for slot in 0..self.cold.begun() as usize {
            if self.positions[slot] == NO_POSITION {
                continue;
            }
            let position = Position(self.positions[slot]);
            let (key, locator) = index.page(position);
            match new.insert(key, locator) {
                Inserted::At(Position(position)) => self.positions[slot] = position,
                Inserted::Present | Inserted::Full(_) => {
                    self.retire_page(position, frames, index);
                    self.evictions += 1;
                }
            }
        }
        self.table_bytes += new.bytes();
        Some(new)
    }

    /// Retires the old index, which readers may still use.
    pub(super) fn retire_index(&mut self, index: Arc<Index>) {
        self.retired_bytes += index.bytes();
        self.retired.push(Retired::Index(index));
    }

    /// Evicts until everything fits the capacity, unless readers delay it for long.
    pub(super) fn shrink(&mut self, frames: &Frames, index: &Index) {
        let mut waits = 0;
        for _ in 0..SHRINK_ROUNDS_MAX {
            let mut looks = u32::MAX;
            let before = self.pages;
            for _ in 0..SHRINK_ROUND_PAGES {
                let keeps = self.used_bytes() - self.retired_bytes - self.free_bytes();
                if keeps <= self.capacity_bytes || !self.evict_one(&mut looks, frames, index) {
                    break;
                }
            }
            self.seal();
            for _ in 0..ADVANCES_MAX {
                self.readers.advance();
                self.reclaim(frames);
            }
            if !self.is_over_capacity() || (self.pages == 0 && self.waiting.is_empty()) {
                break;
            }
            waits += u32::from(self.pages == before);
            if waits == SHRINK_WAITS_MAX {
                break;
            }
            yield_now();
        }
        self.trim();
    }

    /// Releases the tables of unused slots beyond the capacity.
    fn trim(&mut self) {
        let slots = self.cold.slots();
        let wanted = (self.capacity_bytes / UNIT_BYTES).min(slots as usize) as u32;
        // Which slots are left to their keepers is not known here.
        if self.left_slots > 0 {
            return;
        }
        let free: usize = self.free.iter().map(Vec::len).sum();
        let known_free = free + self.cold.len() + self.pages;
        // A slot that is neither free nor in the index is being filled or examined by a thread.
        if wanted > slots / 2 || known_free != self.cold.begun() as usize {
            return;
        }
        let used =
            self.positions.iter().rposition(|&p| p != NO_POSITION).map_or(0, |last| last + 1);
        let keep = (used as u32).max(wanted);
        if keep >= slots || self.free.iter().flatten().any(|&slot| slot >= keep) {
            return;
        }
        self.cold.truncate(keep);
        self.free.iter_mut().for_each(Vec::shrink_to_fit);
        self.positions.truncate(keep as usize);
        self.positions.shrink_to_fit();
        self.table_bytes -= (slots - keep) as usize * TABLE_BYTES_PER_SLOT;
        self.hand = 0;
    }
}
