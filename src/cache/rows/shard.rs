//! One shard of the row cache: a ring of rows in order of arrival, and a hash table of their
//! positions.
//!
//! New rows are written at the head of the ring, and the oldest are dropped at its tail. A row at
//! the tail that has been read since it was written is written again at the head, with one use
//! fewer (a clock). Positions count words since the shard was created and are never reused. A
//! reader can therefore tell whether a row was overwritten while it copied it: it was not, if the
//! tail has not passed its position.
//!
//! Invariants:
//! 1. Words at positions below `tail` may be overwritten at any time; those from `tail` to the head
//!    are never overwritten. `tail` is raised, followed by a fence, before the words are
//!    overwritten.
//! 2. The table is changed under `writer`. Readers only count uses, and only in a place that still
//!    holds the value that they found. Both use read-modify-write operations, which have one order.
//! 3. A key has at most one place in the table. While `writer` is held it may briefly have none
//!    although its row remains, so a search that must not miss a row holds `writer`.
//! 4. Each growth of memory is added to the account under `writer`.
//! 5. The ring's length changes only after `tail` has passed all rows: whoever uses the wrong length has a position below
//!    `tail`, or sees the new length, since a place is published after it.

use super::{ROW_BYTES_MAX, RowHash};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::{KeyspaceId, Seqno};
#[cfg(not(loom))]
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, hold_open, linger, planted};
use crate::base::sync::atomic;
use crate::base::sync::modelled::{AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// Words of a row before its key: hash, sequence number, keyspace and lengths.
const HEADER_WORDS: usize = 3;
const ROW_WORDS_MAX: usize = HEADER_WORDS + ROW_BYTES_MAX / 8;
/// Readers copy rows up to this size into a small buffer, which is cheaper to clear.
const SMALL_WORDS: usize = HEADER_WORDS + 32;
/// Places per bucket: one cache line.
const BUCKET_PLACES: usize = 8;
/// Bytes of the ring per place of the table.
const PLACE_RING_BYTES: usize = 64;
/// Places of the doorkeeper per place of the table.
const DOORKEEPER_SHARE: usize = 1;
/// The maximum number of rows that are rewritten for one new row.
const REWRITTEN_MAX: usize = 8;
/// Memory is counted in steps of this fraction of the ring.
const STEPS: usize = 8;
/// In place of a row's hash: the rest of the ring up to its end is unused.
const SKIPPED: u64 = u64::MAX;

/// A place of the table: 0, or tag, uses, position.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

const POSITION_BITS: u32 = 48;
const USES_MAX: u64 = 3;

impl Place {
    fn new(hash: RowHash, uses: u64, position: u64) -> Place {
        Place(Place::tag(hash) << 50 | uses << POSITION_BITS | position)
    }

    fn tag(hash: RowHash) -> u64 {
        hash.0 & 0x3fff
    }

    fn is_of(self, hash: RowHash) -> bool {
        self.0 != 0 && self.0 >> 50 == Place::tag(hash)
    }

    fn uses(self) -> u64 {
        self.0 >> POSITION_BITS & USES_MAX
    }

    fn used_once_more(self) -> Option<Place> {
        (self.uses() < USES_MAX).then(|| Place(self.0 + (1 << POSITION_BITS)))
    }

    fn position(self) -> u64 {
        self.0 & ((1 << POSITION_BITS) - 1)
    }
}

#[cfg(not(loom))]
type Word = crate::base::sync::plain::AtomicU64;
#[cfg(loom)]
type Word = AtomicU64;

/// Words that are zero until written.
#[cfg(not(loom))]
struct Words {
    mapping: crate::base::mapping::Mapping,
    count: usize,
}

#[cfg(not(loom))]
impl Words {
    fn reserve(count: usize) -> Option<Words> {
        let bytes = (count * 8).next_multiple_of(UNIT_BYTES);
        Some(Words { mapping: crate::base::mapping::Mapping::reserve(bytes)?, count })
    }

    #[inline]
    fn all(&self) -> &[Word] {
        // SAFETY: the mapping has room for so many words, is aligned, zero until written, and lives
        // as long as `self`; nothing reads or writes it but through these atomics.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr().cast(), self.count) }
    }

    /// Returns the memory to the system. All words are zero afterwards.
    #[cfg(not(miri))]
    fn release(&self) {
        let bytes = (self.count * 8).next_multiple_of(UNIT_BYTES);
        // SAFETY: a mapping is whole pages. Others have references to the words, but they are atomics: who reads one
        // finds what was there or zero, as if a thread had stored it.
        unsafe { self.mapping.release(0, bytes) };
    }

    /// Under Miri, released memory is uninitialized.
    #[cfg(miri)]
    fn release(&self) {
        self.all().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(loom)]
struct Words(Box<[Word]>);

#[cfg(loom)]
impl Words {
    fn reserve(count: usize) -> Option<Words> {
        Some(Words((0..count).map(|_| Word::new(0)).collect()))
    }

    fn all(&self) -> &[Word] {
        &self.0
    }

    fn release(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// What `writer` guards.
pub(super) struct Writer {
    /// Where the next row is written.
    head: u64,
    /// Where the first one was, since the ring has its present length: a multiple of that.
    first: u64,
    /// Memory that counts as used, of the ring and the table.
    counted_bytes: usize,
}

/// See the module's description.
pub(super) struct Shard {
    words: Words,
    /// The size of each part; the parts are consecutive.
    table_words: usize,
    doorkeeper_words: usize,
    /// The ring's length, and the most that there is room for.
    ring_words: AtomicU64,
    ring_words_max: usize,
    /// Where the oldest row starts.
    tail: AtomicU64,
    /// Whether a row was ever written.
    filled: AtomicBool,
    writer: Mutex<Writer>,
}

/// A row's header, decoded.
struct Header {
    hash: RowHash,
    seqno: Seqno,
    keyspace: KeyspaceId,
    key_bytes: usize,
    value_bytes: usize,
}

impl Header {
    fn decode([hash, seqno, lengths]: [u64; HEADER_WORDS]) -> Header {
        Header {
            hash: RowHash(hash),
            seqno: Seqno(seqno),
            keyspace: KeyspaceId((lengths >> 32) as u32),
            key_bytes: (lengths >> 16 & 0xffff) as usize,
            value_bytes: (lengths & 0xffff) as usize,
        }
    }

    fn words(&self) -> usize {
        row_words(self.key_bytes + self.value_bytes)
    }
}

fn row_words(bytes: usize) -> usize {
    HEADER_WORDS + bytes.div_ceil(8)
}

impl Shard {
    /// A shard of `bytes`; `None` if the system refuses.
    pub(super) fn reserve(bytes: usize) -> Option<Shard> {
        // A share for each part, in words.
        let places = bytes / (PLACE_RING_BYTES + 8 + 2 * DOORKEEPER_SHARE);
        let table_words = (places / BUCKET_PLACES).max(1) * BUCKET_PLACES;
        let doorkeeper_words = (table_words * DOORKEEPER_SHARE).div_ceil(4);
        let ring_words =
            (bytes / 8).saturating_sub(table_words + doorkeeper_words).max(2 * ROW_WORDS_MAX);
        let words = Words::reserve(table_words + doorkeeper_words + ring_words)?;
        Some(Shard {
            words,
            table_words,
            doorkeeper_words,
            ring_words: AtomicU64::new(ring_words as u64),
            ring_words_max: ring_words,
            // 0 is no position.
            tail: AtomicU64::new(ring_words as u64),
            filled: AtomicBool::new(false),
            writer: Mutex::new(Writer {
                head: ring_words as u64,
                first: ring_words as u64,
                counted_bytes: 0,
            }),
        })
    }

    /// The ring's length.
    #[inline]
    fn ring_words(&self) -> u64 {
        self.ring_words.load(Ordering::Relaxed)
    }

    /// Drops all rows and gives their memory back, which is taken off `total`. From now on the ring has `part` of the length
    /// that there is room for.
    pub(super) fn empty(&self, part: f64, total: &atomic::AtomicU64) {
        let words = (self.ring_words_max as f64 * part) as usize;
        let words = words.clamp((2 * ROW_WORDS_MAX).min(self.ring_words_max), self.ring_words_max);
        let mut writer = self.writer.lock();
        let first = (writer.head / words as u64 + 1) * words as u64;
        self.raise_tail(first);
        self.ring_words.store(words as u64, Ordering::Relaxed);
        self.filled.store(false, Ordering::Relaxed);
        self.words.release();
        (writer.head, writer.first) = (first, first);
        total.fetch_sub(writer.counted_bytes as u64, Ordering::Relaxed);
        writer.counted_bytes = 0;
    }

    pub(super) fn doorkeeper_bytes(&self) -> usize {
        self.doorkeeper_words * 8
    }

    /// The longest ring.
    pub(super) fn ring_bytes_max(&self) -> usize {
        self.ring_words_max * 8
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.filled.load(Ordering::Relaxed)
    }

    fn bucket(&self, hash: RowHash) -> &[Word] {
        let buckets = (self.table_words / BUCKET_PLACES) as u64;
        // The topmost bits chose the shard; these are the bits below.
        let number = (((hash.0 >> 12 & 0xffff_ffff) * buckets) >> 32) as usize;
        let first = number * BUCKET_PLACES;
        self.words.all().get(first..first + BUCKET_PLACES).unwrap_or_default()
    }

    fn ring(&self) -> &[Word] {
        &self.words.all()[self.table_words + self.doorkeeper_words..]
    }

    /// The words of the row at `position`. A row does not cross the end of the ring.
    fn row(&self, position: u64, words: usize) -> &[Word] {
        let start = (position % self.ring_words().max(1)) as usize;
        self.ring().get(start..start + words).unwrap_or_default()
    }

    fn header(&self, position: u64) -> Option<Header> {
        let words = self.row(position, HEADER_WORDS);
        let [hash, seqno, lengths] = words else { return None };
        Some(Header::decode([hash, seqno, lengths].map(|word| word.load(Ordering::Relaxed))))
    }

    #[inline]
    pub(super) fn get<R>(
        &self,
        hash: RowHash,
        keyspace: KeyspaceId,
        key: &[u8],
        f: impl FnOnce(EntryRef<'_>) -> R,
    ) -> Option<R> {
        for word in self.bucket(hash) {
            let place = Place(word.load(Ordering::Acquire));
            if !place.is_of(hash) {
                continue;
            }
            let Some(header) = self.header(place.position()).filter(|header| header.hash == hash)
            else {
                // The row of another key, or overwritten in the meantime.
                continue;
            };
            let found = match header.words() {
                0..=SMALL_WORDS => self.copy(&mut [0; 8 * SMALL_WORDS], place, keyspace, key, f),
                _ => self.copy(&mut [0; 8 * ROW_WORDS_MAX], place, keyspace, key, f),
            };
            if found.is_some()
                && let Some(used) = place.used_once_more()
            {
                let (old, new) = (place.0, used.0);
                let _ = word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
            }
            return found;
        }
        None
    }

    /// Copies the row, and calls `f` with it if it belongs to the key and was not overwritten.
    #[inline]
    fn copy<R>(
        &self,
        buffer: &mut [u8],
        place: Place,
        keyspace: KeyspaceId,
        key: &[u8],
        f: impl FnOnce(EntryRef<'_>) -> R,
    ) -> Option<R> {
        let header = self.header(place.position())?;
        let bytes = header.key_bytes + header.value_bytes;
        let words = self.row(place.position(), header.words());
        let payload = words.get(HEADER_WORDS..)?;
        for (word, chunk) in payload.iter().zip(buffer.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        fence(Ordering::Acquire);
        if place.position() < self.tail.load(Ordering::Relaxed) {
            return None;
        }
        let (found, value) = buffer.get(..bytes)?.split_at_checked(header.key_bytes)?;
        if found != key || header.keyspace != keyspace {
            return None;
        }
        Some(f(EntryRef { key, seqno: header.seqno, kind: EntryKind::Put, value }))
    }

    /// See `RowCache::admit`. Adds the growth of memory to `total`; returns true if it
    /// grew.
    pub(super) fn admit(
        &self,
        hash: RowHash,
        keyspace: KeyspaceId,
        entry: EntryRef<'_>,
        is_current: impl FnOnce() -> bool,
        total: &atomic::AtomicU64,
    ) -> bool {
        if !self.was_here(hash) {
            return false;
        }
        let mut writer = self.writer.lock();
        if !is_current() || self.find(hash, keyspace, entry.key).is_some() {
            return false;
        }
        self.append(&mut writer, hash, keyspace, entry, total)
    }

    /// Whether the doorkeeper has seen the hash before. Records the hash.
    fn was_here(&self, hash: RowHash) -> bool {
        let start = self.table_words;
        let words = self.words.all().get(start..start + self.doorkeeper_words).unwrap_or_default();
        let place = (hash.0 >> 8) as usize % (words.len() * 4).max(1);
        let Some(word) = words.get(place / 4) else { return false };
        let shift = place % 4 * 16;
        let mark = hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48 | 1;
        let before = word.load(Ordering::Relaxed);
        if before >> shift & 0xffff == mark {
            return true;
        }
        // A concurrent mark beside it may be lost: its key must then be offered once more.
        word.store(before & !(0xffff << shift) | mark << shift, Ordering::Relaxed);
        false
    }

    pub(super) fn wait_for_admissions(&self) {
        drop(self.writer.lock());
    }

    /// See `RowCache::supersede`. Adds the growth of memory to `total`; returns true if it
    /// grew.
    pub(super) fn supersede(
        &self,
        hash: RowHash,
        keyspace: KeyspaceId,
        entry: EntryRef<'_>,
        total: &atomic::AtomicU64,
    ) -> bool {
        if planted(Bug::RowCacheLookedUpUnlocked) && !self.seems_here(hash) {
            return false;
        }
        // The lock is taken before the search: a row that is being rewritten is briefly not in the
        // table.
        let mut writer = self.writer.lock();
        let Some(word) = self.find(hash, keyspace, entry.key) else { return false };
        word.swap(0, Ordering::AcqRel);
        if entry.kind != EntryKind::Put || entry.key.len() + entry.value.len() > ROW_BYTES_MAX {
            return false;
        }
        let total = if planted(Bug::RowCacheMemoryForgotten) { &Default::default() } else { total };
        self.append(&mut writer, hash, keyspace, entry, total)
    }

    /// A search without the lock, for [`Bug::RowCacheLookedUpUnlocked`].
    fn seems_here(&self, hash: RowHash) -> bool {
        self.bucket(hash).iter().any(|word| Place(word.load(Ordering::Relaxed)).is_of(hash))
    }

    /// The key's place. The caller holds the writer's lock.
    fn find(&self, hash: RowHash, keyspace: KeyspaceId, key: &[u8]) -> Option<&Word> {
        self.bucket(hash).iter().find(|word| {
            let place = Place(word.load(Ordering::Relaxed));
            place.is_of(hash)
                && self.copy(&mut [0; 8 * ROW_WORDS_MAX], place, keyspace, key, |_| ()).is_some()
        })
    }

    /// Writes a row at the head. Returns whether memory has grown.
    fn append(
        &self,
        writer: &mut Writer,
        hash: RowHash,
        keyspace: KeyspaceId,
        entry: EntryRef<'_>,
        total: &atomic::AtomicU64,
    ) -> bool {
        let lengths =
            u64::from(keyspace.0) << 32 | (entry.key.len() as u64) << 16 | entry.value.len() as u64;
        let mut row = [0; ROW_WORDS_MAX];
        let words = row_words(entry.key.len() + entry.value.len());
        for (word, value) in row.iter_mut().zip([hash.0, entry.seqno.0, lengths]) {
            *word = value;
        }
        let mut bytes = entry.key.iter().chain(entry.value).copied();
        for word in &mut row[HEADER_WORDS..words] {
            *word = u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap_or(0)));
        }
        self.make_room(writer, words);
        self.put(writer, hash, 0, &row[..words]);
        self.count_memory(writer, total)
    }

    /// Writes the words at the head and adds the row to the table. The caller has made room.
    fn put(&self, writer: &mut Writer, hash: RowHash, uses: u64, row: &[u64]) {
        let position = writer.head;
        for (word, value) in self.row(position, row.len()).iter().zip(row) {
            word.store(*value, Ordering::Relaxed);
        }
        writer.head += row.len() as u64;
        self.filled.store(true, Ordering::Relaxed);
        // A free place, or that of the oldest row, which would be dropped first.
        let tail = self.tail.load(Ordering::Relaxed);
        let order = |word: &&Word| {
            let place = Place(word.load(Ordering::Relaxed));
            if place.position() < tail {
                0
            } else {
                place.uses() << POSITION_BITS | place.position()
            }
        };
        if let Some(word) = self.bucket(hash).iter().min_by_key(order) {
            word.swap(Place::new(hash, uses, position).0, Ordering::AcqRel);
        }
    }

    /// Adds the growth of memory since the last call to `total`. Returns true if it has grown.
    fn count_memory(&self, writer: &mut Writer, total: &atomic::AtomicU64) -> bool {
        let grown = self.used_bytes(writer).saturating_sub(writer.counted_bytes);
        writer.counted_bytes += grown;
        total.fetch_add(grown as u64, Ordering::Relaxed);
        grown > 0
    }

    /// Memory of the ring and the table that is in use, in steps.
    fn used_bytes(&self, writer: &Writer) -> usize {
        let ring = self.ring_words() as usize;
        let touched = ((writer.head - writer.first) as usize).min(ring);
        if touched == 0 {
            return 0;
        }
        let step = (ring / STEPS).max(1);
        (self.table_words + touched.next_multiple_of(step).min(ring)) * 8
    }

    /// Keeps writers out.
    #[cfg(any(test, planted))]
    pub(super) fn hold(&self) -> impl std::ops::Deref<Target = Writer> + '_ {
        self.writer.lock()
    }

    /// All memory in use.
    #[cfg(any(test, planted))]
    pub(super) fn bytes(&self, writer: &Writer) -> usize {
        self.doorkeeper_bytes() + self.used_bytes(writer)
    }

    /// Makes room for `words` at the head in one piece. Drops the oldest rows, but rewrites up to
    /// `REWRITTEN_MAX` of them that have been used.
    fn make_room(&self, writer: &mut Writer, words: usize) {
        let mut patience = REWRITTEN_MAX;
        loop {
            let to_end = self.to_end(writer.head);
            if to_end < words as u64 {
                // Rows do not cross the end of the ring: the rest is skipped.
                while !self.has_room(writer, to_end) {
                    self.drop_oldest(writer);
                }
                if let [first, ..] = self.row(writer.head, 1) {
                    first.store(SKIPPED, Ordering::Relaxed);
                }
                writer.head += to_end;
            } else if self.has_room(writer, words as u64) {
                return;
            } else if patience > 0 && self.rewrite_oldest(writer) {
                patience -= 1;
            } else {
                self.drop_oldest(writer);
            }
        }
    }

    fn has_room(&self, writer: &Writer, words: u64) -> bool {
        writer.head + words <= self.tail.load(Ordering::Relaxed) + self.ring_words()
    }

    fn to_end(&self, position: u64) -> u64 {
        let ring = self.ring_words();
        ring - position % ring.max(1)
    }

    /// Rewrites the oldest row at the head, if it has been used. There is room: its own.
    fn rewrite_oldest(&self, writer: &mut Writer) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        let Some((header, place, word)) = self.oldest(tail) else { return false };
        let words = header.words();
        if place.uses() == 0 || self.to_end(writer.head) < words as u64 {
            return false;
        }
        let mut row = [0; ROW_WORDS_MAX];
        for (value, word) in row.iter_mut().zip(self.row(tail, words)) {
            *value = word.load(Ordering::Relaxed);
        }
        word.swap(0, Ordering::AcqRel);
        self.raise_tail(tail + words as u64);
        linger();
        hold_open(Bug::RowCacheLookedUpUnlocked, 16);
        self.put(writer, header.hash, place.uses() - 1, &row[..words]);
        true
    }

    /// The row at the tail, if it is still in the table.
    fn oldest(&self, tail: u64) -> Option<(Header, Place, &Word)> {
        let header = self.header(tail).filter(|header| header.hash.0 != SKIPPED)?;
        let of = |word: &Word| Place(word.load(Ordering::Relaxed));
        let word = self.bucket(header.hash).iter().find(|word| of(word).position() == tail)?;
        let place = of(word);
        Some((header, place, word))
    }

    /// Drops the row at the tail, or skips an unused rest.
    fn drop_oldest(&self, writer: &Writer) {
        let tail = self.tail.load(Ordering::Relaxed);
        if let Some((_, _, word)) = self.oldest(tail) {
            word.swap(0, Ordering::AcqRel);
        }
        let words = match self.header(tail) {
            Some(header) if header.hash.0 != SKIPPED => header.words() as u64,
            _ => self.to_end(tail),
        };
        self.raise_tail((tail + words).min(writer.head));
    }

    /// Called before the words below `tail` are overwritten.
    fn raise_tail(&self, tail: u64) {
        self.tail.store(tail, Ordering::Relaxed);
        fence(Ordering::Release);
    }
}
