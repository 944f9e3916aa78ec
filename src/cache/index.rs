//! The index of the page cache: a lock-free lookup from a page's key to its slot.
//!
//! It is a hash table of cache-line buckets with four entries each. A key may be in either of two
//! buckets. An entry stores the page's whole key in two words: one has the file's lower half and
//! the unit, the other has the file's upper half and the [`Locator`], which is everything that a
//! hit needs. A hit therefore reads one or two cache lines of the index, and the page itself.
//!
//! Invariants:
//! 1. One thread at a time writes entries: the one that holds the pool's lock. Readers change only
//!    an entry's use count, by compare-and-swap.
//! 2. A locator of 0 means empty. An entry changes from one page to another in this order: locator
//!    0, new key, new locator.
//! 3. While a reader is pinned, a slot that it has seen in the index is not given to another page.
//!    So if an entry's locator is the same before and after its key was read, key and locator
//!    belong together.

use std::ops::Deref;
use std::ptr::NonNull;

use super::frames::PageHome;
use super::page_cache::{PageClass, PageKey};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::mapping::Mapping;
use crate::base::prefetch::prefetch;
use crate::base::sync::modelled::{AtomicU64, Ordering};

const BUCKET_ENTRIES: usize = 4;
/// Entries per slot, in tenths. With two buckets to choose from, insertion rarely fails at this
/// load.
const ENTRIES_PER_SLOT_TENTHS: usize = 17;

const SLOT_BITS: u32 = 28;
const LEN_SHIFT: u32 = SLOT_BITS;
const LEN_BITS: u32 = 16;
const LEN_HEAP: u64 = (1 << LEN_BITS) - 1;
const CLASS_SHIFT: u32 = LEN_SHIFT + LEN_BITS;
const USES_SHIFT: u32 = CLASS_SHIFT + 2;
const USE_ONE: u64 = 1 << USES_SHIFT;
/// The page was prefetched: its first use does not count as a second one.
const AWAITED: u64 = 1 << (USES_SHIFT + 3);
const USES_MASK: u64 = (USE_ONE * 7) | AWAITED;
const OCCUPIED_SHIFT: u32 = USES_SHIFT + 4;
/// The file's upper bits and the occupied bit, compared together.
const FILE_BITS_MAX: u32 = 32 + (63 - OCCUPIED_SHIFT);

/// A page's key, as the index stores it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedKey {
    low: u64,
    /// Upper half of the file's number, then the occupied bit.
    high: u64,
}

impl PackedKey {
    /// `None` if the file's number does not fit; such a page is not cached. (Numbers are assigned
    /// one by one and never get that large.)
    #[inline]
    pub(super) fn new(key: PageKey) -> Option<PackedKey> {
        (key.file.0 >> FILE_BITS_MAX == 0).then_some(PackedKey {
            low: (key.file.0 << 32) | u64::from(key.unit),
            high: ((key.file.0 >> 32) << 1) | 1,
        })
    }

    pub(super) fn file(self) -> FileId {
        FileId((self.low >> 32) | ((self.high >> 1) << 32))
    }

    /// Decides about the stripe by its lowest bits, which hardly matter for the choice of buckets.
    #[inline]
    pub(super) fn stripe(self) -> usize {
        self.hash() as usize
    }

    #[inline]
    fn hash(self) -> u64 {
        let product = u128::from(self.low ^ 0x8ebc_6af0_9c88_c6e3)
            * u128::from(self.high.wrapping_mul(0xa076_1d64_78bd_642f) ^ 0xe703_7ed1_a0b4_28db);
        ((product >> 64) as u64) ^ product as u64
    }
}

/// The facts about a page that the index stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Locator(u64);

impl Locator {
    /// For a page in `slot`. `awaited` if the page was prefetched.
    pub(super) fn new(slot: u32, home: PageHome, class: PageClass, awaited: bool) -> Locator {
        debug_assert!(slot >> SLOT_BITS == 0);
        let len = match home {
            PageHome::Frame(len) | PageHome::MultiUnit(len) => (len as u64).min(LEN_HEAP - 1),
            PageHome::Heap => LEN_HEAP,
        };
        let class_tag = match class {
            PageClass::Leaf => 0,
            PageClass::Index => 1,
            PageClass::Filter => 2,
            PageClass::Value => 3,
        };
        // A leaf or a value must be hit before the clock skips it.
        let uses = match class {
            PageClass::Leaf | PageClass::Value => 0,
            PageClass::Index | PageClass::Filter => uses_max(class),
        };
        let awaited = if awaited { AWAITED } else { 0 };
        Locator(
            u64::from(slot)
                | len << LEN_SHIFT
                | class_tag << CLASS_SHIFT
                | uses << USES_SHIFT
                | awaited,
        )
    }

    #[inline]
    pub(super) fn slot(self) -> u32 {
        (self.0 & ((1 << SLOT_BITS) - 1)) as u32
    }

    #[inline]
    pub(super) fn home(self) -> PageHome {
        match self.0 >> LEN_SHIFT & ((1 << LEN_BITS) - 1) {
            LEN_HEAP => PageHome::Heap,
            len if len <= UNIT_BYTES as u64 => PageHome::Frame(len as usize),
            len => PageHome::MultiUnit(len as usize),
        }
    }

    #[inline]
    pub(super) fn class(self) -> PageClass {
        match self.0 >> CLASS_SHIFT & 3 {
            0 => PageClass::Leaf,
            1 => PageClass::Index,
            2 => PageClass::Filter,
            _ => PageClass::Value,
        }
    }

    /// How many more times the clock skips the page.
    #[inline]
    pub(super) fn uses(self) -> u64 {
        self.0 >> USES_SHIFT & 7
    }
}

/// How often the clock skips a page after its last hit.
#[inline]
fn uses_max(class: PageClass) -> u64 {
    match class {
        PageClass::Leaf | PageClass::Value => 1,
        PageClass::Index | PageClass::Filter => 4,
    }
}

/// One page's place in the index.
#[derive(Debug, Default)]
pub(super) struct Entry {
    locator: AtomicU64,
    key: AtomicU64,
}

impl Entry {
    /// Records a hit. Stores only if the hit is not recorded yet.
    #[inline]
    pub(super) fn mark_used(&self, seen: Locator) {
        let most = uses_max(seen.class()) << USES_SHIFT;
        if seen.0 & USES_MASK != most {
            let used =
                if seen.0 & AWAITED != 0 { seen.0 & !AWAITED } else { seen.0 & !USES_MASK | most };
            // Relaxed: a read-modify-write keeps what the publisher has released visible. If it
            // fails, another thread has marked the page, or the page was removed.
            let _ =
                self.locator.compare_exchange(seen.0, used, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    entries: [Entry; BUCKET_ENTRIES],
}

/// The position of an entry in the index. Only the pool keeps such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position(pub(super) u32);

/// How an insertion went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// Done.
    At(Position),
    /// The page is already there.
    Present,
    /// Both buckets are full; the position of their least valuable page.
    Full(Position),
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Index {
    buckets: Buckets,
}

/// The buckets, initially empty. Where the system provides zeroed memory, an unused bucket uses
/// none: an index for a terabyte of pages has seven gigabytes.
#[derive(Debug)]
struct Buckets {
    start: NonNull<Bucket>,
    count: usize,
    /// What `start` points into.
    _owner: Owner,
}

#[derive(Debug)]
#[expect(dead_code, reason = "kept to be dropped")]
enum Owner {
    System(Mapping),
    Heap(HeapBuckets),
}

/// Buckets from `Box::into_raw`. A box that is moved would claim them for itself, and forbid `Buckets::start`.
#[derive(Debug)]
struct HeapBuckets(NonNull<[Bucket]>);

impl Drop for HeapBuckets {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw` in `Buckets::new`, taken back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: `Buckets` owns its buckets, as a box does.
unsafe impl Send for Buckets {}
// SAFETY: as above; buckets are made of atomics.
unsafe impl Sync for Buckets {}

/// Below this size most of an index is used, and large pages save time.
#[cfg(not(any(loom, shuttle, miri)))]
const LARGE_PAGES_BYTES_MAX: usize = 64 << 20;

impl Buckets {
    fn new(count: usize) -> Buckets {
        // A model's atomics are no plain zeros.
        #[cfg(not(any(loom, shuttle, miri)))]
        {
            let bytes = count * size_of::<Bucket>();
            let mapping = match bytes {
                ..=LARGE_PAGES_BYTES_MAX => Mapping::reserve(bytes),
                _ => Mapping::reserve_sparse(bytes),
            };
            if let Some(mapping) = mapping {
                // Aligned to 4 KiB, and zeros are empty entries.
                return Buckets {
                    start: mapping.base().cast(),
                    count,
                    _owner: Owner::System(mapping),
                };
            }
        }
        let buckets: Box<[Bucket]> = (0..count).map(|_| Bucket::default()).collect();
        let buckets = NonNull::from(Box::leak(buckets));
        Buckets { start: buckets.cast(), count, _owner: Owner::Heap(HeapBuckets(buckets)) }
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        // SAFETY: `start` points to `count` buckets that `_owner` keeps; nobody has them
        // exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Index {
    /// An empty index that suits a cache of `slots` pages.
    pub(super) fn new(slots: u32) -> Index {
        let buckets = Index::buckets_for(slots);
        Index { buckets: Buckets::new(buckets) }
    }

    fn buckets_for(slots: u32) -> usize {
        (slots as usize * ENTRIES_PER_SLOT_TENTHS).div_ceil(10 * BUCKET_ENTRIES).max(1)
    }

    /// The size of an index for `slots` pages.
    pub(super) fn bytes_for(slots: u32) -> usize {
        Index::buckets_for(slots) * size_of::<Bucket>()
    }

    /// What this one takes.
    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.buckets)
    }

    /// The two buckets that a key may be in (which may be the same).
    #[inline]
    fn choices(&self, key: PackedKey) -> [usize; 2] {
        let hash = key.hash();
        let n = self.buckets.len() as u64;
        [(((hash >> 32) * n) >> 32) as usize, (((hash & 0xffff_ffff) * n) >> 32) as usize]
    }

    /// Prefetches the buckets that `find` examines.
    #[inline]
    pub(super) fn prefetch(&self, key: PackedKey) {
        for bucket in self.choices(key) {
            prefetch((&raw const self.buckets[bucket]).cast());
        }
    }

    /// Finds a page. The caller is pinned.
    #[inline]
    pub(super) fn find(&self, key: PackedKey) -> Option<(&Entry, Locator)> {
        let choices = self.choices(key);
        // Half of all pages are in the second bucket: both are loaded together.
        prefetch((&raw const self.buckets[choices[1]]).cast());
        for bucket in choices {
            for entry in &self.buckets[bucket].entries {
                if entry.key.load(Ordering::Relaxed) != key.low {
                    continue;
                }
                // Invariant 3: locator, key, locator again.
                let locator = entry.locator.load(Ordering::Acquire);
                if locator >> OCCUPIED_SHIFT != key.high
                    || entry.key.load(Ordering::Acquire) != key.low
                    || (entry.locator.load(Ordering::Relaxed) ^ locator) & !USES_MASK != 0
                {
                    continue;
                }
                return Some((entry, Locator(locator)));
            }
        }
        None
    }

    fn entry(&self, position: Position) -> &Entry {
        let at = position.0 as usize;
        &self.buckets[at / BUCKET_ENTRIES].entries[at % BUCKET_ENTRIES]
    }

    /// Publishes a page. The caller holds the pool's lock.
    pub(super) fn insert(&self, key: PackedKey, locator: Locator) -> Inserted {
        if self.find(key).is_some() {
            return Inserted::Present;
        }
        // The emptier bucket; if both are full, the least valuable page.
        let mut room = None;
        let mut most_free = 0;
        let mut least = None;
        let mut least_worth = u64::MAX;
        for bucket in self.choices(key) {
            let mut free = 0;
            let mut free_at = None;
            for (way, entry) in self.buckets[bucket].entries.iter().enumerate() {
                let position = Position((bucket * BUCKET_ENTRIES + way) as u32);
                match Locator(entry.locator.load(Ordering::Relaxed)) {
                    Locator(0) => {
                        free += 1;
                        free_at = Some(position);
                    }
                    there if worth(there) < least_worth => {
                        least_worth = worth(there);
                        least = Some(position);
                    }
                    _ => {}
                }
            }
            if free > most_free {
                most_free = free;
                room = free_at;
            }
        }
        match (room, least) {
            (Some(position), _) => {
                let entry = self.entry(position);
                entry.key.store(key.low, Ordering::Release);
                entry.locator.store(key.high << OCCUPIED_SHIFT | locator.0, Ordering::Release);
                Inserted::At(position)
            }
            (None, Some(position)) => Inserted::Full(position),
            (None, None) => unreachable!("a bucket is neither full nor has it room"),
        }
    }

    /// The position of a page. The caller holds the pool's lock.
    pub(super) fn position(&self, key: PackedKey) -> Option<Position> {
        let (found, _) = self.find(key)?;
        for bucket in self.choices(key) {
            for (way, entry) in self.buckets[bucket].entries.iter().enumerate() {
                if std::ptr::eq(entry, found) {
                    return Some(Position((bucket * BUCKET_ENTRIES + way) as u32));
                }
            }
        }
        None
    }

    /// The page at an occupied position. The caller holds the pool's lock.
    pub(super) fn locator(&self, position: Position) -> Locator {
        Locator(self.entry(position).locator.load(Ordering::Relaxed))
    }

    /// The page at an occupied position with its key, for another index.
    pub(super) fn page(&self, position: Position) -> (PackedKey, Locator) {
        let entry = self.entry(position);
        let locator = entry.locator.load(Ordering::Relaxed);
        let key =
            PackedKey { low: entry.key.load(Ordering::Relaxed), high: locator >> OCCUPIED_SHIFT };
        (key, Locator(locator & ((1 << OCCUPIED_SHIFT) - 1)))
    }

    /// Removes the page at an occupied position. The caller holds the pool's lock.
    pub(super) fn remove(&self, position: Position) -> Locator {
        Locator(self.entry(position).locator.swap(0, Ordering::AcqRel))
    }

    /// Reduces the use count by one, for a pass of the clock. The caller holds the pool's lock and
    /// has seen a count above zero (readers only increase it).
    pub(super) fn age(&self, position: Position) {
        self.entry(position).locator.fetch_sub(USE_ONE, Ordering::Relaxed);
    }
}

/// Orders pages by their value.
pub(super) fn worth(locator: Locator) -> u64 {
    let serves_many = matches!(locator.class(), PageClass::Index | PageClass::Filter);
    locator.uses() << 1 | u64::from(serves_many)
}

#[cfg(test)]
mod tests {
    use super::super::frames::MULTI_UNITS;
    use super::*;

    fn key(file: u64, unit: u32) -> PackedKey {
        PackedKey::new(PageKey { file: FileId(file), unit }).unwrap()
    }

    #[test]
    fn a_locator_keeps_all_it_was_made_of() {
        for slot in [0, 1, (1 << SLOT_BITS) - 1] {
            let longest = MULTI_UNITS * UNIT_BYTES;
            for home in [0, UNIT_BYTES, UNIT_BYTES + 1, longest, longest + 1].map(PageHome::of) {
                for class in
                    [PageClass::Leaf, PageClass::Index, PageClass::Filter, PageClass::Value]
                {
                    for awaited in [false, true] {
                        let locator = Locator::new(slot, home, class, awaited);
                        assert_eq!(locator.slot(), slot);
                        assert_eq!(locator.home(), home);
                        assert_eq!(locator.class(), class);
                        let is_new = matches!(class, PageClass::Leaf | PageClass::Value);
                        assert_eq!(locator.uses() == 0, is_new);
                    }
                }
            }
        }
    }

    #[test]
    fn keys_that_share_half_their_bits_are_told_apart() {
        const LAST: u32 = FILE_BITS_MAX - 1;
        let index = Index::new(64);
        let all = [key(1, 7), key(1 << 32 | 1, 7), key(1, 8), key(2, 7), key((1 << LAST) + 1, 7)];
        for (slot, &k) in all.iter().enumerate() {
            let locator = Locator::new(slot as u32, PageHome::Frame(slot), PageClass::Leaf, false);
            assert!(matches!(index.insert(k, locator), Inserted::At(_)));
            assert_eq!(index.insert(k, locator), Inserted::Present);
        }
        for (slot, &k) in all.iter().enumerate() {
            assert_eq!(index.find(k).unwrap().1.slot(), slot as u32);
            let position = index.position(k).unwrap();
            let (packed, locator) = index.page(position);
            assert_eq!((packed.low, packed.high), (k.low, k.high));
            assert_eq!(packed.file().0 >> LAST, u64::from(slot == 4));
            assert_eq!(locator.home(), PageHome::Frame(slot));
            assert_eq!(index.remove(position).slot(), slot as u32);
            assert!(index.find(k).is_none());
        }
        assert!(PackedKey::new(PageKey { file: FileId(1 << FILE_BITS_MAX), unit: 0 }).is_none());
    }

    #[test]
    fn uses_are_marked_once_and_aged_away() {
        let index = Index::new(8);
        let uses = || index.find(key(1, 1)).unwrap().1.uses();
        let mark = || {
            let (entry, locator) = index.find(key(1, 1)).unwrap();
            entry.mark_used(locator);
        };
        for (class, awaited, expected) in [
            (PageClass::Leaf, false, [0, 1, 1]),
            (PageClass::Leaf, true, [0, 0, 1]),
            (PageClass::Value, false, [0, 1, 1]),
            (PageClass::Filter, false, [4, 4, 4]),
        ] {
            let locator = Locator::new(3, PageHome::Heap, class, awaited);
            let Inserted::At(position) = index.insert(key(1, 1), locator) else { panic!("full") };
            assert_eq!(uses(), expected[0]);
            mark();
            assert_eq!(uses(), expected[1]);
            mark();
            assert_eq!(uses(), expected[2]);
            let before = index.locator(position);
            index.age(position);
            assert_eq!(uses(), expected[2] - 1);
            // A reader that saw the page before has no say any more about what it did not see.
            index.find(key(1, 1)).unwrap().0.mark_used(before);
            assert_eq!(uses(), expected[2] - 1);
            index.remove(position);
        }
    }

    #[test]
    fn an_index_filled_to_its_slots_rarely_runs_out_of_room() {
        let slots = if cfg!(miri) { 64 } else { 20_000 };
        let index = Index::new(slots);
        let mut full = 0;
        for slot in 0..slots {
            // A few files, units one after another: the usual case.
            let k = key(u64::from(slot % 7) + 1000, slot / 7);
            let locator = Locator::new(slot, PageHome::Frame(1), PageClass::Leaf, false);
            full += u32::from(matches!(index.insert(k, locator), Inserted::Full(_)));
        }
        assert!(full * 50 <= slots, "{full} of {slots}");
    }
}
