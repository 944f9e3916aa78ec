//! The layout of a block, and reading it.
//!
//! A block has 512 words. A *leaf* holds keys and locations; an *inner node* holds keys and blocks; a *key block* holds
//! a part of a long key.
//!
//! | words | contents of a leaf or an inner node |
//! |---|---|
//! | 0 | header, checked: block number, level (0 is a leaf), mark |
//! | 1 | the next leaf, checked: its block number, or 0 |
//! | 2–7 | zero |
//! | 8–39 | 128 slots of 16 bits in the order of the keys; zeros follow the last |
//! | 40–511 | records |
//!
//! A slot is the first word of a record (9 bits), 6 bits of the record's checksum, and a parity bit that makes the
//! number of ones even. A record:
//!
//! | word | contents |
//! |---|---|
//! | 0 | the location or the child, checked |
//! | 1 | checksum of the words after this one, the length and the flags (32 bits); length of the key (20); flags (12) |
//! | 2 | of an old version: the sequence number that superseded it |
//! | then | the first 256 bytes of the key, eight bytes a word, the first byte in the highest bits |
//! | then | of a longer key: the first key block, checked |
//!
//! Invariants:
//! 1. Records are ordered by key; of one key, the newest is first. No record changes but for its word 0.
//! 2. A slot with one flipped bit is noticed, and is not zero.
//! 3. Reading memory that a writer changes, or that is damaged, returns [`Damage`] or any bytes, but never panics and
//!    always ends. Who reads without the writers' lock checks the version of the block afterwards.

use std::cmp::Ordering;

use super::location::Location;
use super::word::{seal, unseal};
use crate::base::checksum::checksum;
use crate::base::ids::Seqno;
use crate::base::limits::KEY_BYTES_MAX;
use crate::base::sync::plain::{AtomicU64, Ordering as Memory};
use crate::pmem::{Region, WORD_BYTES};

pub(super) const BLOCK_WORDS: usize = 512;
/// The word of the next leaf.
pub(super) const NEXT_WORD: usize = 1;
pub(super) const SLOTS_START: usize = 8;
pub(super) const SLOTS_MAX: usize = 128;
pub(super) const SLOTS_PER_WORD: usize = 4;
const SLOT_WORDS: usize = SLOTS_MAX / SLOTS_PER_WORD;
pub(super) const HEAP_START: usize = SLOTS_START + SLOT_WORDS;
pub(super) const HEAP_WORDS: usize = BLOCK_WORDS - HEAP_START;

/// Longer keys have key blocks.
pub(super) const INLINE_KEY_BYTES: usize = 256;
const INLINE_KEY_WORDS: usize = INLINE_KEY_BYTES / WORD_BYTES;
/// The words of a key block before its bytes: header, next key block, checksum.
const KEY_BLOCK_START: usize = 3;
const KEY_BLOCK_WORDS: usize = BLOCK_WORDS - KEY_BLOCK_START;
pub(super) const KEY_BLOCK_BYTES: usize = KEY_BLOCK_WORDS * WORD_BYTES;
/// A record has the location, the header, a superseding number, the key and a key block at most.
const RECORD_WORDS_MAX: usize = 2 + 1 + INLINE_KEY_WORDS + 1;
/// The words behind the header of a short record.
const SHORT_REST_WORDS: usize = 8;

const LEVEL_MARK: u64 = 0x5b;
/// The level that key blocks have in their header.
pub(super) const KEY_BLOCK_LEVEL: u8 = 0xff;

const OLD_FLAG: u64 = 1;
const LEN_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 52;
const CHECKSUM_MASK: u64 = u32::MAX as u64;

/// The number of a block in its region. Block 0 is the region's header.
pub(super) type BlockNumber = u32;

/// Bytes that nobody wrote, or a writer's half-done change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) block: BlockNumber,
    /// Of the block.
    pub(super) word: usize,
    pub(super) what: &'static str,
    pub(super) found: u64,
}

/// The result of reading a block.
pub(super) type Read<T> = Result<T, Damage>;

pub(super) fn header_word(block: BlockNumber, level: u8) -> u64 {
    seal(u64::from(block) | u64::from(level) << 32 | LEVEL_MARK << 40)
}

pub(super) fn block_word(block: BlockNumber) -> u64 {
    seal(u64::from(block))
}

fn parity(slot: u16) -> u16 {
    (slot.count_ones() & 1) as u16
}

/// The slot of a record at word `offset` with this header.
pub(super) fn slot_of(offset: usize, header: u64) -> u16 {
    debug_assert!((HEAP_START..BLOCK_WORDS).contains(&offset));
    let tagged = offset as u16 | (header as u16 & 0x3f) << 9;
    tagged | parity(tagged) << 15
}

/// The word `index` of a key in persistent memory.
#[inline]
pub(super) fn key_word(key: &[u8], index: usize) -> u64 {
    let rest = &key[index * WORD_BYTES..];
    match rest.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut last = [0; WORD_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(last)
        }
    }
}

fn key_words(key_bytes: usize) -> usize {
    key_bytes.div_ceil(WORD_BYTES)
}

/// The words of a record.
pub(super) fn record_words(key_bytes: usize, is_old: bool) -> usize {
    let chain = usize::from(key_bytes > INLINE_KEY_BYTES);
    2 + usize::from(is_old) + key_words(key_bytes.min(INLINE_KEY_BYTES)) + chain
}

/// The header of a record whose later words are `rest`.
fn record_header(key_bytes: usize, flags: u64, rest: &[u64]) -> u64 {
    let fields = (key_bytes as u64) << LEN_SHIFT | flags << FLAGS_SHIFT;
    // Most records are short, and clearing room for the longest costs more than their checksum.
    let checksum = match rest.len() {
        ..=SHORT_REST_WORDS => checksum_of::<{ SHORT_REST_WORDS * WORD_BYTES }>(fields, rest),
        _ => checksum_of::<{ RECORD_WORDS_MAX * WORD_BYTES }>(fields, rest),
    };
    fields | checksum & CHECKSUM_MASK
}

/// The checksum of words that have at most `ROOM` bytes.
fn checksum_of<const ROOM: usize>(fields: u64, words: &[u64]) -> u64 {
    let mut bytes = [0; ROOM];
    for (place, word) in bytes.chunks_exact_mut(WORD_BYTES).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    checksum(fields, &bytes[..words.len() * WORD_BYTES])
}

/// Appends a record to `words`. A key of more than [`INLINE_KEY_BYTES`] continues in `key_block`.
pub(super) fn push_record(
    words: &mut Vec<u64>,
    first: u64,
    key: &[u8],
    superseded: Option<Seqno>,
    key_block: Option<BlockNumber>,
) {
    debug_assert_eq!(key.len() > INLINE_KEY_BYTES, key_block.is_some());
    let at = words.len();
    words.extend([first, 0]);
    words.extend(superseded.map(|seqno| seqno.0));
    let inline = &key[..key.len().min(INLINE_KEY_BYTES)];
    words.extend((0..key_words(inline.len())).map(|index| key_word(inline, index)));
    words.extend(key_block.map(block_word));
    let flags = if superseded.is_some() { OLD_FLAG } else { 0 };
    words[at + 1] = record_header(key.len(), flags, &words[at + 2..]);
}

/// The words of a key block for at most [`KEY_BLOCK_BYTES`] of a key.
pub(super) fn key_block_words(block: BlockNumber, next: BlockNumber, part: &[u8]) -> Vec<u64> {
    let mut words = vec![header_word(block, KEY_BLOCK_LEVEL), block_word(next), 0];
    words.extend((0..key_words(part.len())).map(|index| key_word(part, index)));
    words[2] = key_block_checksum(&words[KEY_BLOCK_START..]);
    words
}

fn key_block_checksum(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    checksum(0, &bytes)
}

/// A record of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// The first word.
    pub(super) offset: usize,
    pub(super) words: usize,
    pub(super) key_bytes: usize,
    pub(super) superseded: Option<Seqno>,
    /// The first word of the key.
    key_at: usize,
}

/// A record that has been found, with its slot and its header.
struct Probed {
    record: Record,
    slot: u16,
    header: u64,
}

/// The words of a region, read as blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks<'a> {
    region: &'a dyn Region,
    words: &'a [AtomicU64],
}

impl<'a> Blocks<'a> {
    pub(super) fn of(region: &'a dyn Region) -> Blocks<'a> {
        Blocks { region, words: region.words() }
    }

    pub(super) fn count(self) -> BlockNumber {
        (self.words.len() / BLOCK_WORDS) as BlockNumber
    }

    /// The number of a block in a word of the region's header.
    pub(super) fn header_block(self, word: usize) -> Read<BlockNumber> {
        let what = "the number of a block in the header";
        let found = self.words[word].load(Memory::Relaxed);
        let block = unseal(found).and_then(|content| u32::try_from(content).ok());
        block.ok_or(Damage { block: 0, word, what, found })
    }

    /// Told when a block has been read.
    #[inline]
    pub(super) fn has_used(self, block: BlockNumber) {
        self.region.used(block as usize * BLOCK_WORDS);
    }

    /// Told that a block will be read soon.
    pub(super) fn will_read(self, block: BlockNumber) {
        let start = block as usize * BLOCK_WORDS;
        if start < self.words.len() {
            self.region.will_read(start..start + BLOCK_WORDS);
        }
    }

    /// A block that another one refers to. `from` is the word that does so.
    pub(super) fn node(self, block: BlockNumber, from: (BlockNumber, usize)) -> Read<Node<'a>> {
        let start = block as usize * BLOCK_WORDS;
        match self.words.get(start..start + BLOCK_WORDS) {
            Some(words) if block != 0 => {
                self.region.used(start);
                Ok(Node { words, block, blocks: self })
            }
            _ => {
                let found = u64::from(block);
                Err(Damage { block: from.0, word: from.1, what: "the number of a block", found })
            }
        }
    }
}

/// A block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    words: &'a [AtomicU64],
    pub(super) block: BlockNumber,
    blocks: Blocks<'a>,
}

impl Node<'_> {
    #[inline]
    pub(super) fn word(&self, word: usize) -> u64 {
        self.words[word].load(Memory::Relaxed)
    }

    #[cold]
    pub(super) fn damage(&self, word: usize, what: &'static str) -> Damage {
        let found = self.words.get(word).map_or(0, |word| word.load(Memory::Relaxed));
        Damage { block: self.block, word, what, found }
    }

    /// The content of a checked word.
    #[inline]
    fn content(&self, word: usize, what: &'static str) -> Read<u64> {
        unseal(self.word(word)).ok_or_else(|| self.damage(word, what))
    }

    #[inline]
    pub(super) fn level(&self) -> Read<u8> {
        let content = self.content(0, "the header of a block")?;
        if content as u32 != self.block || content >> 40 != LEVEL_MARK {
            return Err(self.damage(0, "the header of a block"));
        }
        Ok((content >> 32) as u8)
    }

    /// The next leaf, or the next key block.
    pub(super) fn next(&self) -> Read<Option<BlockNumber>> {
        let next = self.content(NEXT_WORD, "the number of the next block")?;
        match u32::try_from(next) {
            Ok(0) => Ok(None),
            Ok(next) => Ok(Some(next)),
            Err(_) => Err(self.damage(NEXT_WORD, "the number of the next block")),
        }
    }

    #[inline]
    pub(super) fn slot(&self, index: usize) -> u16 {
        let word = self.word(SLOTS_START + index / SLOTS_PER_WORD);
        (word >> (index % SLOTS_PER_WORD * 16)) as u16
    }

    /// The number of slots before the first zero.
    #[inline]
    pub(super) fn count(&self) -> usize {
        // Slots are filled in order: a word whose last slot is used is full.
        let (mut full_words, mut end) = (0, SLOT_WORDS);
        while full_words < end {
            let middle = full_words.midpoint(end);
            if self.word(SLOTS_START + middle) >> 48 == 0 {
                end = middle;
            } else {
                full_words = middle + 1;
            }
        }
        let start = full_words * SLOTS_PER_WORD;
        (start..SLOTS_MAX.min(start + SLOTS_PER_WORD))
            .find(|&index| self.slot(index) == 0)
            .unwrap_or(SLOTS_MAX.min(start + SLOTS_PER_WORD))
    }

    /// The record of a slot, verified.
    pub(super) fn record(&self, index: usize) -> Read<Record> {
        let Probed { record, slot, header } = self.probe(index)?;
        let is_right = match record.words - 2 {
            ..=SHORT_REST_WORDS => self.has_checksum::<SHORT_REST_WORDS>(&record, header),
            _ => self.has_checksum::<RECORD_WORDS_MAX>(&record, header),
        };
        if !is_right {
            return Err(self.damage(record.offset + 1, "the checksum of a record"));
        }
        if slot_of(record.offset, header) != slot {
            return Err(self.damage(SLOTS_START + index / SLOTS_PER_WORD, "a slot"));
        }
        Ok(record)
    }

    /// The record of a slot, of which it is known that it lies within the block.
    #[inline]
    fn probe(&self, index: usize) -> Read<Probed> {
        let slot = self.slot(index);
        let offset = usize::from(slot & 0x1ff);
        if parity(slot) != 0 || offset < HEAP_START || offset + 2 > BLOCK_WORDS {
            return Err(self.damage(SLOTS_START + index / SLOTS_PER_WORD, "a slot"));
        }
        let header = self.word(offset + 1);
        let key_bytes = (header >> LEN_SHIFT) as usize & ((1 << (FLAGS_SHIFT - LEN_SHIFT)) - 1);
        let flags = header >> FLAGS_SHIFT;
        let words = record_words(key_bytes, flags & OLD_FLAG != 0);
        if key_bytes > KEY_BYTES_MAX || flags > OLD_FLAG || offset + words > BLOCK_WORDS {
            return Err(self.damage(offset + 1, "the header of a record"));
        }
        let superseded = (flags & OLD_FLAG != 0).then(|| Seqno(self.word(offset + 2)));
        let key_at = offset + 2 + usize::from(superseded.is_some());
        let record = Record { offset, words, key_bytes, superseded, key_at };
        Ok(Probed { record, slot, header })
    }

    /// Whether the words behind the header are those that it was made of. `ROOM`: as many at most.
    fn has_checksum<const ROOM: usize>(&self, record: &Record, header: u64) -> bool {
        let mut rest = [0; ROOM];
        let rest = &mut rest[..record.words - 2];
        for (word, at) in rest.iter_mut().zip(record.offset + 2..) {
            *word = self.word(at);
        }
        record_header(record.key_bytes, header >> FLAGS_SHIFT, rest) == header
    }

    pub(super) fn location(&self, record: &Record) -> Read<Location> {
        Location::from_word(self.word(record.offset))
            .ok_or_else(|| self.damage(record.offset, "a location"))
    }

    pub(super) fn child(&self, record: &Record) -> Read<BlockNumber> {
        let child = self.content(record.offset, "the number of a child")?;
        u32::try_from(child).map_err(|_| self.damage(record.offset, "the number of a child"))
    }

    /// Nothing follows the last slot.
    pub(super) fn check_slots_end(&self) -> Read<()> {
        match (self.count()..SLOTS_MAX).find(|&slot| self.slot(slot) != 0) {
            None => Ok(()),
            Some(slot) => {
                Err(self.damage(SLOTS_START + slot / SLOTS_PER_WORD, "a slot after the last"))
            }
        }
    }

    /// Whether two records have the same key. Those of the same long key have the same key blocks.
    pub(super) fn same_key(&self, a: &Record, b: &Record) -> bool {
        let words = a.offset + a.words - a.key_at;
        a.key_bytes == b.key_bytes
            && (0..words).all(|index| self.word(a.key_at + index) == self.word(b.key_at + index))
    }

    /// Compares a record's key with `key`.
    pub(super) fn compare(&self, record: &Record, key: &[u8]) -> Read<Ordering> {
        let inline = record.key_bytes.min(INLINE_KEY_BYTES);
        let common = key_words(inline).min(key_words(key.len()));
        for index in 0..common.min(INLINE_KEY_WORDS) {
            let order = self.word(record.key_at + index).cmp(&key_word(key, index));
            if order != Ordering::Equal {
                return Ok(order);
            }
        }
        // Equal words with zeros behind the shorter key: the shorter key is the smaller one.
        if record.key_bytes <= INLINE_KEY_BYTES || key.len() <= INLINE_KEY_BYTES {
            return Ok(record.key_bytes.cmp(&key.len()));
        }
        let mut whole = Vec::new();
        self.read_key(record, &mut whole)?;
        Ok(whole.as_slice().cmp(key))
    }

    /// Replaces `key` by a record's key.
    pub(super) fn read_key(&self, record: &Record, key: &mut Vec<u8>) -> Read<()> {
        key.clear();
        self.push_key(record, key)
    }

    /// Appends a record's key to `bytes`.
    pub(super) fn push_key(&self, record: &Record, bytes: &mut Vec<u8>) -> Read<()> {
        let inline = record.key_bytes.min(INLINE_KEY_BYTES);
        push_key_words(bytes, inline, |index| self.word(record.key_at + index));
        match record.key_bytes > INLINE_KEY_BYTES {
            true => self.push_key_blocks(record, bytes),
            false => Ok(()),
        }
    }

    /// Appends what a long key has in key blocks.
    #[cold]
    fn push_key_blocks(&self, record: &Record, bytes: &mut Vec<u8>) -> Read<()> {
        let mut at = (self.block, record.key_at + INLINE_KEY_WORDS);
        let mut left = record.key_bytes - INLINE_KEY_BYTES;
        for block in self.key_blocks(record)? {
            let part = self.blocks.node(block, at)?;
            let of_part = left.min(KEY_BLOCK_BYTES);
            push_key_words(bytes, of_part, |index| part.word(KEY_BLOCK_START + index));
            left -= of_part;
            at = (block, NEXT_WORD);
        }
        Ok(())
    }

    /// The key blocks of a record, verified.
    pub(super) fn key_blocks(&self, record: &Record) -> Read<Vec<BlockNumber>> {
        let mut blocks = Vec::new();
        let mut rest = record.key_bytes.saturating_sub(INLINE_KEY_BYTES);
        let mut at = (self.block, record.key_at + INLINE_KEY_WORDS);
        let mut next = match rest {
            0 => None,
            _ => Some(self.content(at.1, "the number of a key block")?),
        };
        while rest > 0 {
            let missing = Damage { block: at.0, word: at.1, what: "a key block", found: 0 };
            let block = next.and_then(|next| u32::try_from(next).ok()).ok_or(missing)?;
            let part = self.blocks.node(block, at)?;
            if part.level()? != KEY_BLOCK_LEVEL {
                return Err(part.damage(0, "the header of a key block"));
            }
            let bytes = rest.min(KEY_BLOCK_BYTES);
            let words: Vec<u64> =
                (0..key_words(bytes)).map(|index| part.word(KEY_BLOCK_START + index)).collect();
            if key_block_checksum(&words) != part.word(2) {
                return Err(part.damage(2, "the checksum of a key block"));
            }
            blocks.push(block);
            rest -= bytes;
            at = (block, NEXT_WORD);
            next = part.next()?.map(u64::from);
        }
        Ok(blocks)
    }

    /// The first slot whose key is not less than `key` (with `after`: greater than `key`), and whether its key equals
    /// `key`.
    ///
    /// Only the two records between which that is are verified: as keys ascend, there is no other such place, whatever
    /// was met on the way to it.
    pub(super) fn lower_bound(&self, key: &[u8], after: bool) -> Read<(usize, bool)> {
        let is_before = |order| order == Ordering::Less || (after && order == Ordering::Equal);
        let count = self.count();
        let probed = |index| Ok(is_before(self.compare(&self.probe(index)?.record, key)?));
        let verified = |index| self.compare(&self.record(index)?, key);
        if let Ok(slot) = first_not_before(count, probed) {
            let follows = match slot.checked_sub(1) {
                Some(before) => is_before(verified(before)?),
                None => true,
            };
            let order = if slot < count { Some(verified(slot)?) } else { None };
            if follows && !order.is_some_and(is_before) {
                return Ok((slot, order == Some(Ordering::Equal)));
            }
        }
        // Something is damaged. It is named if it lies on the way, else there is no need for it.
        let slot = first_not_before(count, |index| Ok(is_before(verified(index)?)))?;
        Ok((slot, slot < count && verified(slot)? == Ordering::Equal))
    }
}

/// The first of so many, of which those that are before something come first.
fn first_not_before(count: usize, is_before: impl Fn(usize) -> Read<bool>) -> Read<usize> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if is_before(middle)? { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

/// Appends a key's words, of which the last one's bytes beyond the key are cut off.
#[inline]
fn push_key_words(key: &mut Vec<u8>, bytes: usize, word: impl Fn(usize) -> u64) {
    let words = bytes.div_ceil(WORD_BYTES);
    let end = key.len() + bytes;
    key.reserve(words * WORD_BYTES);
    for index in 0..words {
        key.extend_from_slice(&word(index).to_be_bytes());
    }
    key.truncate(end);
}
