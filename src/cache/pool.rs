//! The cache's book-keeping: which slots are free, what is evicted, and what it all takes.
//!
//! Eviction is a clock over the slots. It passes by a page that has been hit and takes one that has
//! not. A hit page loses its mark only when too few unmarked ones are about ([`SPARED_PER_EVICTED`]):
//! so the pages of a long scan replace one another and leave those alone that have been used twice.
//!
//! Invariants:
//! 1. `used_bytes` counts everything: frames that have been touched and not given back, heap pages, the
//!    tables, and what waits for the end of a grace period. Nothing is taken that would raise it above
//!    the capacity.
//! 2. An evicted page's memory is used again only after a grace period.
//! 3. No call scans, evicts or waits without bound.

use std::collections::VecDeque;
use std::sync::Arc;

use super::frames::{Extent, Frames, SLOTS_MAX, heap_charge};
use super::grace::{GracePeriod, Readers};
use super::index::{Index, Inserted, Locator, PackedKey, Position, worth};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::sync::yield_now;

/// How many marked pages the clock passes by, for each one it evicts, without taking their marks:
/// about an eighth of the cache is on probation.
const SPARED_PER_EVICTED: u32 = 7;
/// How many pages one insert looks at for eviction: then it takes the one that is worth least. (More
/// than a few only where many marked pages lie side by side.)
const PAGES_LOOKED_AT_MAX: u32 = 2048;
/// How many marks it takes while it looks for one page to evict.
const MARKS_TAKEN_MAX: u32 = 32;
/// Free frames are kept ready for as many inserts, since evicted ones are not free at once.
const RESERVE_FRAMES_MAX: u32 = 64;
/// How often an insert tries to end a grace period before it gives up.
const ADVANCES_MAX: u32 = 4;
/// How many rounds of eviction a change of capacity makes; inserts go on with the rest.
const SHRINK_ROUNDS_MAX: u32 = 10_000;
/// How many of them wait for readers without evicting more.
const SHRINK_WAITS_MAX: u32 = 500;
/// Pages evicted in one of them.
const SHRINK_ROUND_PAGES: u32 = 1024;
/// Per slot: its position and room in the lists of free and cold slots.
const TABLE_BYTES_PER_SLOT: usize = 3 * size_of::<u32>();

const NO_POSITION: u32 = u32::MAX;

/// Something readers may still look at.
enum Retired {
    Frame(u32),
    Heap(u32),
    Index(Arc<Index>),
}

struct Batch {
    period: GracePeriod,
    items: Vec<Retired>,
}

/// See the module's description.
pub(super) struct Pool {
    readers: Readers,
    capacity_bytes: usize,
    /// The index and the tables of slots.
    table_bytes: usize,
    frames_touched: usize,
    heap_bytes: usize,
    /// How much of these three is retired.
    retired_bytes: usize,
    /// Slots that exist: `0..slots`.
    slots: u32,
    /// Slots from here on have never been used.
    fresh: u32,
    /// Free slots whose frames are in memory.
    free: Vec<u32>,
    /// Free slots whose frames are not.
    cold: Vec<u32>,
    /// By slot: where in the index its page is.
    positions: Vec<u32>,
    pages: usize,
    hand: u32,
    spared_ahead: u32,
    /// Retired since the last grace period began.
    retired: Vec<Retired>,
    waiting: VecDeque<Batch>,
    evictions: u64,
}

impl Pool {
    /// For a cache with no room; see [`Pool::resize`].
    pub(super) fn new(index: &Index, readers: Readers) -> Pool {
        Pool {
            readers,
            capacity_bytes: 0,
            table_bytes: index.bytes(),
            frames_touched: 0,
            heap_bytes: 0,
            retired_bytes: 0,
            slots: 0,
            fresh: 0,
            free: Vec::new(),
            cold: Vec::new(),
            positions: Vec::new(),
            pages: 0,
            hand: 0,
            spared_ahead: 0,
            retired: Vec::new(),
            waiting: VecDeque::new(),
            evictions: 0,
        }
    }

    /// All memory the cache takes.
    pub(super) fn used_bytes(&self) -> usize {
        self.table_bytes + self.frames_touched * UNIT_BYTES + self.heap_bytes
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

    /// Takes a slot for a page of up to 4 KiB, evicting as needed; `None` if none is free yet.
    pub(super) fn take_frame(&mut self, frames: &Frames, index: &Index) -> Option<u32> {
        if self.can_never_hold(UNIT_BYTES) {
            return None;
        }
        self.make_room(UNIT_BYTES, frames, index);
        for _ in 0..ADVANCES_MAX {
            if !self.is_over_capacity() {
                if let Some(slot) = self.free.pop() {
                    return Some(slot);
                }
                if self.room() >= UNIT_BYTES
                    && let Some(slot) = self.take_cold()
                {
                    self.frames_touched += 1;
                    return Some(slot);
                }
            }
            self.readers.advance();
            self.reclaim(frames);
        }
        None
    }

    /// Takes a slot for a heap page of `len` bytes, evicting as needed.
    pub(super) fn take_heap(&mut self, len: usize, frames: &Frames, index: &Index) -> Option<u32> {
        let charge = heap_charge(len);
        if self.can_never_hold(charge) {
            return None;
        }
        self.make_room(charge, frames, index);
        for _ in 0..ADVANCES_MAX {
            self.release_frames(charge.saturating_sub(self.room()), frames);
            if self.room() >= charge {
                if self.cold.is_empty() && self.fresh == self.slots {
                    self.release_frames(1, frames);
                }
                if let Some(slot) = self.take_cold() {
                    self.heap_bytes += charge;
                    self.table_bytes += frames.prepare_heap(slot);
                    return Some(slot);
                }
            }
            self.readers.advance();
            self.reclaim(frames);
        }
        None
    }

    fn take_cold(&mut self) -> Option<u32> {
        self.cold.pop().or_else(|| {
            let slot = self.fresh;
            (slot < self.slots).then(|| {
                self.fresh += 1;
                slot
            })
        })
    }

    /// Publishes the page that has been put into a taken slot. If it turns out to be there already
    /// the slot is free again.
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
                self.positions[slot as usize] = position;
                self.pages += 1;
            }
            // No reader has seen it, so it need not wait.
            Inserted::Present | Inserted::Full(_) => match locator.extent() {
                Extent::Frame(_) => self.free.push(slot),
                Extent::Heap => self.free_heap(slot, frames),
            },
        }
    }

    fn free_heap(&mut self, slot: u32, frames: &Frames) {
        self.heap_bytes -= frames.charge_of_heap(slot);
        // SAFETY: the slot's page has never been published, or a grace period has passed since it was
        // taken out of the index.
        unsafe { frames.drop_heap(slot) };
        self.cold.push(slot);
    }

    /// Takes a page out, if it is there.
    pub(super) fn remove(&mut self, key: PackedKey, frames: &Frames, index: &Index) {
        if let Some(position) = index.position(key) {
            self.retire_page(position, frames, index);
        }
    }

    /// Takes out the file's pages in up to `n` slots from `first`; false if there are no such slots.
    pub(super) fn remove_file(
        &mut self,
        file: FileId,
        first: u32,
        n: u32,
        frames: &Frames,
        index: &Index,
    ) -> bool {
        let end = self.fresh.min(first.saturating_add(n));
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
        match locator.extent() {
            Extent::Frame(_) => {
                self.retired_bytes += UNIT_BYTES;
                self.retired.push(Retired::Frame(slot));
            }
            Extent::Heap => {
                self.retired_bytes += frames.charge_of_heap(slot);
                self.retired.push(Retired::Heap(slot));
            }
        }
    }

    /// Begins the grace period of what has been retired.
    pub(super) fn seal(&mut self) {
        if !self.retired.is_empty() {
            let items = std::mem::take(&mut self.retired);
            self.waiting.push_back(Batch { period: GracePeriod::begin(&self.readers), items });
        }
    }

    /// Makes use of what nobody looks at any more.
    pub(super) fn reclaim(&mut self, frames: &Frames) {
        let is_over = |batch: &Batch| batch.period.is_over() || planted(Bug::FrameReusedEarly);
        while self.waiting.front().is_some_and(is_over) {
            let Some(batch) = self.waiting.pop_front() else { return };
            for item in batch.items {
                match item {
                    Retired::Frame(slot) => {
                        self.retired_bytes -= UNIT_BYTES;
                        self.free.push(slot);
                    }
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
            self.release_frames(self.used_bytes() - self.capacity_bytes, frames);
        }
    }

    /// Gives free frames back to the system, `bytes` of them if there are as many.
    fn release_frames(&mut self, bytes: usize, frames: &Frames) {
        let n = bytes.div_ceil(UNIT_BYTES).min(self.free.len());
        if n > 0 {
            let released = self.cold.len();
            self.cold.extend(self.free.drain(self.free.len() - n..));
            // SAFETY: free frames are in no reader's sight.
            unsafe { frames.release(&mut self.cold[released..]) };
            self.frames_touched -= n;
        }
    }

    /// Evicts ahead of need, so that there is room once a grace period has passed.
    fn make_room(&mut self, need_bytes: usize, frames: &Frames, index: &Index) {
        if !self.waiting.is_empty() {
            self.readers.advance();
            self.reclaim(frames);
        }
        let reserve = (self.slots / 64).min(RESERVE_FRAMES_MAX) as usize * UNIT_BYTES;
        // Room below zero counts too, after a shrink.
        let over = self.used_bytes().saturating_sub(self.capacity_bytes);
        let available = self.room() + self.free.len() * UNIT_BYTES;
        if available >= over + need_bytes + reserve / 2 {
            return;
        }
        let most = RESERVE_FRAMES_MAX as usize + need_bytes / UNIT_BYTES;
        let mut looks = PAGES_LOOKED_AT_MAX + 4 * most as u32;
        for _ in 0..most {
            if available + self.retired_bytes >= over + need_bytes + reserve
                || !self.evict_one(&mut looks, frames, index)
                || looks == 0
            {
                break;
            }
        }
        self.seal();
    }

    /// Takes one page out, looking at no more than `looks` pages (but at one at least); false if there
    /// is none.
    fn evict_one(&mut self, looks: &mut u32, frames: &Frames, index: &Index) -> bool {
        let mut least: Option<(u64, Position)> = None;
        let mut marks_taken = 0;
        if self.pages > 0 {
            for _ in 0..self.fresh {
                let position = self.positions[self.hand as usize];
                self.hand = if self.hand + 1 >= self.fresh { 0 } else { self.hand + 1 };
                if position == NO_POSITION {
                    continue;
                }
                let position = Position(position);
                let locator = index.locator(position);
                *looks = looks.saturating_sub(1);
                if locator.uses() == 0 {
                    self.spared_ahead =
                        self.spared_ahead.saturating_add(SPARED_PER_EVICTED).min(self.slots);
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

    /// Changes the capacity, evicting what no longer fits. If the table of pages would be much too
    /// small or too large for it, gives a new one, which the caller shows to the readers before it
    /// hands the old one to [`Pool::retire_index`] and calls [`Pool::shrink`].
    pub(super) fn resize(
        &mut self,
        capacity_bytes: usize,
        frames: &Frames,
        index: &Index,
    ) -> Option<Arc<Index>> {
        let per_slot = UNIT_BYTES + TABLE_BYTES_PER_SLOT;
        let wanted = (capacity_bytes / per_slot).min(SLOTS_MAX as usize) as u32;
        let slots = frames.reserve(wanted);
        self.capacity_bytes = capacity_bytes;
        if slots > self.slots {
            self.table_bytes += (slots - self.slots) as usize * TABLE_BYTES_PER_SLOT;
            self.positions.reserve_exact((slots - self.slots) as usize);
            self.positions.resize(slots as usize, NO_POSITION);
            self.slots = slots;
            // There was nothing to evict so far: nothing says that the marks are worth little.
            self.spared_ahead = slots;
        }
        let bytes = Index::bytes_for(slots);
        // A little too small will do: capacities that creep up must not rebuild it each time.
        if bytes <= index.bytes() / 4 * 5 && bytes >= index.bytes() / 4 {
            return None;
        }
        // Pages that will not fit the smaller one leave first.
        let mut looks = u32::MAX;
        while self.pages > slots as usize && self.evict_one(&mut looks, frames, index) {}
        let new = Arc::new(Index::new(slots));
        for slot in 0..self.fresh as usize {
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

    /// The old index, which readers may still look at.
    pub(super) fn retire_index(&mut self, index: Arc<Index>) {
        self.retired_bytes += index.bytes();
        self.retired.push(Retired::Index(index));
    }

    /// Evicts until all fits the capacity, unless readers hold it up for long.
    pub(super) fn shrink(&mut self, frames: &Frames, index: &Index) {
        let mut waits = 0;
        for _ in 0..SHRINK_ROUNDS_MAX {
            let mut looks = u32::MAX;
            let before = self.pages;
            for _ in 0..SHRINK_ROUND_PAGES {
                let keeps = self.used_bytes() - self.retired_bytes - self.free.len() * UNIT_BYTES;
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

    /// Gives back the tables of slots that are beyond the capacity and not in use.
    fn trim(&mut self) {
        let wanted = (self.capacity_bytes / UNIT_BYTES).min(self.slots as usize) as u32;
        let known_free = self.free.len() + self.cold.len() + self.pages;
        // If a slot is neither free nor in the index, a thread is filling it or looks at it.
        if wanted > self.slots / 2 || known_free != self.fresh as usize {
            return;
        }
        let used =
            self.positions.iter().rposition(|&p| p != NO_POSITION).map_or(0, |last| last + 1);
        let keep = (used as u32).max(wanted);
        if keep >= self.slots || self.free.iter().any(|&slot| slot >= keep) {
            return;
        }
        self.cold.retain(|&slot| slot < keep);
        self.cold.shrink_to_fit();
        self.free.shrink_to_fit();
        self.positions.truncate(keep as usize);
        self.positions.shrink_to_fit();
        self.table_bytes -= (self.slots - keep) as usize * TABLE_BYTES_PER_SLOT;
        self.fresh = self.fresh.min(keep);
        self.hand = 0;
        self.slots = keep;
    }
}
