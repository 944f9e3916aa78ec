//! The node: the payload of a leaf or index page, searched in place.
//!
//! It consists of a header, the common prefix of the keys, heads, slots and bodies. The heads are
//! the next bytes of every key, up to four, at a fixed width. A slot holds the end of an entry's
//! body, and its sequence number and kind as a difference from the page's smallest. A body is the
//! rest of the key, then the value. Heads and slots have the narrowest width that suffices for the
//! page, down to none.
//!
//! Invariants:
//! 1. [`Shape::parse`] has verified that heads and slots are inside the payload. Bodies are checked
//!    one by one when they are used. Nothing here panics, whatever the bytes.
//! 2. Every key is at least as long as prefix and head together, so heads compare as whole numbers.
//! 3. A fixed-width field is loaded together with the bytes before it. The header before the first
//!    field makes that load safe, and nothing needs to follow the last.

use std::cmp::Ordering;

use crate::base::codec::read_varint;
use crate::base::ids::Seqno;

/// The damage of a page; the caller adds file and offset.
pub(super) type Damage = &'static str;
/// The result of reading a page, or its damage.
pub(super) type Parsed<T> = Result<T, Damage>;

pub(super) const NODE_HEADER_BYTES: usize = 20;
/// The field of index nodes between header and prefix; see `index.rs`.
pub(super) const CHILD_HEADER_BYTES: usize = 24;
pub(super) const HEAD_BYTES_MAX: usize = 4;
/// Bits of a meta number below the sequence number.
pub(super) const KIND_BITS: u32 = 3;
pub(super) const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

/// True if the versions of the last key continue in the next leaf.
pub(super) const FLAG_CONTINUES: u8 = 1;
/// True if all keys have the same length.
pub(super) const FLAG_UNIFORM_KEYS: u8 = 2;
/// True if the last entry is split: its value goes on in the next leaf. Then the leaf has
/// [`FLAG_CONTINUES`] too.
pub(super) const FLAG_SPLIT: u8 = 4;
/// True if the first entry is the rest of the split entry before it.
pub(super) const FLAG_REST: u8 = 8;
/// The kind in the meta number of a rest, and of the separator of a leaf that begins with one.
pub(super) const REST_TAG: u64 = 7;

/// The locations of a node's parts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shape {
    pub(super) entries: usize,
    pub(super) flags: u8,
    pub(super) head_bytes: usize,
    meta_bytes: usize,
    end_bytes: usize,
    prefix_at: usize,
    heads_at: usize,
    slots_at: usize,
    bodies_at: usize,
    /// The size of a key after prefix and head in bytes, if uniform.
    key_rest_bytes: usize,
    /// The size of a body in bytes, if uniform.
    body_bytes: usize,
    meta_base: u64,
}

impl Shape {
    /// Reads and verifies the header of a node of `level` (0 is a leaf).
    #[inline]
    pub(super) fn parse(bytes: &[u8], level: u8) -> Parsed<Shape> {
        let Some(header) = bytes.first_chunk::<NODE_HEADER_BYTES>() else {
            return Err("node header");
        };
        if header[0] != level {
            return Err("node level");
        }
        let u16_at = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let mut base = [0; 8];
        base.copy_from_slice(&header[12..20]);
        let (flags, head_bytes) = (header[1], usize::from(header[2]));
        let (meta_bytes, end_bytes) = (usize::from(header[3]), usize::from(header[4]));
        let of_leaves = if level == 0 { FLAG_SPLIT | FLAG_REST } else { 0 };
        if flags & !(FLAG_CONTINUES | FLAG_UNIFORM_KEYS | of_leaves) != 0 {
            return Err("node flags");
        }
        if head_bytes > HEAD_BYTES_MAX || meta_bytes > 8 || !matches!(end_bytes, 0 | 2 | 4) {
            return Err("node field widths");
        }
        let entries = u16_at(8);
        let prefix_at = NODE_HEADER_BYTES + if level > 0 { CHILD_HEADER_BYTES } else { 0 };
        let heads_at = prefix_at + u16_at(6);
        let slots_at = heads_at + entries * head_bytes;
        let bodies_at = slots_at + entries * (end_bytes + meta_bytes);
        if entries == 0 || bodies_at > bytes.len() {
            return Err("node entry count");
        }
        // A rest is never split again.
        if flags & FLAG_SPLIT != 0 && (flags & FLAG_CONTINUES == 0 || entries == first_of(flags)) {
            return Err("node flags");
        }
        let mut body_bytes = 0;
        if end_bytes == 0 {
            body_bytes = (bytes.len() - bodies_at) / entries;
            if body_bytes * entries != bytes.len() - bodies_at {
                return Err("node bodies");
            }
        }
        let shape = Shape {
            entries,
            flags,
            head_bytes,
            meta_bytes,
            end_bytes,
            prefix_at,
            heads_at,
            slots_at,
            bodies_at,
            key_rest_bytes: u16_at(10),
            body_bytes,
            meta_base: u64::from_le_bytes(base),
        };
        if flags & FLAG_REST != 0 && shape.meta(bytes, 0) & KIND_MASK != REST_TAG {
            return Err("node flags");
        }
        Ok(shape)
    }

    /// The number of the first whole entry: 1 after a rest.
    #[inline]
    pub(super) fn first(&self) -> usize {
        first_of(self.flags)
    }

    /// Whether entry `i` is split.
    #[inline]
    pub(super) fn is_split(&self, i: usize) -> bool {
        self.flags & FLAG_SPLIT != 0 && i + 1 == self.entries
    }

    /// The location of the common prefix.
    #[inline]
    pub(super) fn prefix(&self) -> std::ops::Range<usize> {
        self.prefix_at..self.heads_at
    }

    /// The start of entry `i`'s head.
    #[inline]
    pub(super) fn head_at(&self, i: usize) -> usize {
        self.heads_at + i * self.head_bytes
    }

    /// Sequence number and kind of entry `i`.
    #[inline]
    pub(super) fn meta(&self, bytes: &[u8], i: usize) -> u64 {
        let end = self.slots_at + (i + 1) * (self.end_bytes + self.meta_bytes);
        self.meta_base.wrapping_add(packed_before(bytes, end, self.meta_bytes))
    }

    /// The end of entry `i`'s body, not checked against the payload.
    #[inline]
    fn body_end(&self, bytes: &[u8], i: usize) -> usize {
        if self.end_bytes == 0 {
            return self.bodies_at + (i + 1) * self.body_bytes;
        }
        let at = self.slots_at + i * (self.end_bytes + self.meta_bytes);
        self.bodies_at + packed_before(bytes, at + self.end_bytes, self.end_bytes) as usize
    }

    /// The locations of entry `i`: where its key continues after the head, where its value starts,
    /// and where that ends. All are inside the payload and in this order.
    #[inline(always)]
    pub(super) fn body(&self, bytes: &[u8], i: usize) -> Parsed<(usize, usize, usize)> {
        let mut at = if i == 0 { self.bodies_at } else { self.body_end(bytes, i - 1) };
        let end = self.body_end(bytes, i);
        if at > end || end > bytes.len() {
            return Err("node slot");
        }
        let mut rest = self.key_rest_bytes;
        if self.flags & FLAG_UNIFORM_KEYS == 0 {
            match bytes.get(at..end).and_then(read_varint) {
                Some((n, used)) if n <= (end - at - used) as u64 => {
                    rest = n as usize;
                    at += used;
                }
                _ => return Err("node key length"),
            }
        } else if rest > end - at {
            return Err("node key length");
        }
        Ok((at, at + rest, end))
    }
}

#[inline]
fn first_of(flags: u8) -> usize {
    usize::from(flags & FLAG_REST != 0)
}

/// The `width` bytes before `end` as a little-endian number.
#[inline]
pub(super) fn packed_before(bytes: &[u8], end: usize, width: usize) -> u64 {
    match bytes.get(..end).and_then(|before| before.last_chunk::<8>()) {
        Some(field) if width > 0 => u64::from_le_bytes(*field) >> (64 - 8 * width.min(8)),
        _ => 0,
    }
}

/// A node in place.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) shape: &'a Shape,
}

impl<'a> Node<'a> {
    /// The bytes that all keys start with.
    #[inline]
    fn prefix(&self) -> &'a [u8] {
        self.bytes.get(self.shape.prefix()).unwrap_or_default()
    }

    /// The head of entry `i` as a number: its first byte is the most significant.
    #[inline]
    fn head(&self, i: usize) -> u32 {
        let end = self.shape.head_at(i + 1);
        match self.bytes.get(..end).and_then(|before| before.last_chunk::<4>()) {
            Some(field) => u32::from_be_bytes(*field) & head_mask(self.shape.head_bytes),
            None => 0,
        }
    }

    #[inline]
    fn rest(&self, i: usize) -> Parsed<&'a [u8]> {
        let (from, to, _) = self.shape.body(self.bytes, i)?;
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }

    /// The value of entry `i`.
    #[inline]
    pub(super) fn value(&self, i: usize) -> Parsed<&'a [u8]> {
        let (_, from, to) = self.shape.body(self.bytes, i)?;
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }

    /// Sequence number and kind of entry `i`.
    #[inline]
    pub(super) fn meta(&self, i: usize) -> u64 {
        self.shape.meta(self.bytes, i)
    }

    /// Whether child `i` exists and begins with the rest of an entry of `key`, which is in the child before.
    #[inline]
    pub(super) fn begins_with_rest(&self, i: usize, key: &[u8]) -> Parsed<bool> {
        // In most tables the keys alone separate all leaves.
        if self.shape.meta_bytes == 0 && self.shape.meta_base & KIND_MASK != REST_TAG {
            return Ok(false);
        }
        Ok(i < self.shape.entries && self.meta(i) & KIND_MASK == REST_TAG && self.key_is(i, key)?)
    }

    /// The rest of the value of an entry, with which this leaf begins.
    pub(super) fn rest_of(&self, key: &[u8], seqno: Seqno) -> Parsed<&'a [u8]> {
        let meta = seqno.0 << KIND_BITS | REST_TAG;
        if self.shape.first() == 0 || self.meta(0) != meta || !self.key_is(0, key)? {
            return Err("rest of a split value");
        }
        self.value(0)
    }

    /// The key of entry `i`, reassembled.
    pub(super) fn key(&self, i: usize) -> Parsed<Vec<u8>> {
        let head = self.shape.head_at(i)..self.shape.head_at(i + 1);
        let head = self.bytes.get(head).unwrap_or_default();
        Ok([self.prefix(), head, self.rest(i)?].concat())
    }

    /// Returns true if entry `i` has this key.
    #[inline]
    pub(super) fn key_is(&self, i: usize, key: &[u8]) -> Parsed<bool> {
        let Some(suffix) = key.strip_prefix(self.prefix()) else { return Ok(false) };
        let width = self.shape.head_bytes;
        Ok(suffix.len() >= width
            && head_of(suffix, width) == self.head(i)
            && self.rest(i)? == suffix.get(width..).unwrap_or_default())
    }

    /// The number of entries before the position given by `key` and `threshold`: those with a
    /// smaller key, and those of `key` with a sequence number of at least `threshold`.
    #[inline]
    pub(super) fn search(&self, key: &[u8], threshold: u64) -> Parsed<usize> {
        let entries = self.shape.entries;
        let prefix = self.prefix();
        let shared = prefix.len().min(key.len());
        let (start, suffix) = key.split_at(shared);
        match start.cmp(prefix.get(..shared).unwrap_or_default()) {
            Ordering::Less => return Ok(0),
            Ordering::Greater => return Ok(entries),
            Ordering::Equal if shared < prefix.len() => return Ok(0),
            Ordering::Equal => {}
        }
        let width = self.shape.head_bytes;
        let target = head_of(suffix, width);
        let low = self.partition(0, entries, |head| head < target);
        if low == entries || self.head(low) != target {
            return Ok(low);
        }
        // Every key here is at least as long as its head: a shorter key is before its equals.
        let Some(rest) = suffix.get(width..) else { return Ok(low) };
        let mut from = low;
        let mut to = if low + 1 == entries || self.head(low + 1) != target {
            low + 1
        } else {
            self.partition(low + 1, entries, |head| head <= target)
        };
        while from < to {
            let middle = from.midpoint(to);
            let before = match self.rest(middle)?.cmp(rest) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => self.meta(middle) >> KIND_BITS >= threshold,
            };
            if before {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        Ok(from)
    }

    /// The first entry in `from..to` whose head is not `before`.
    #[inline]
    fn partition(&self, from: usize, to: usize, before: impl Fn(u32) -> bool) -> usize {
        let (mut base, mut len) = (from, to - from);
        while len > 1 {
            let half = len / 2;
            base += if before(self.head(base + half - 1)) { half } else { 0 };
            len -= half;
        }
        base + usize::from(len == 1 && before(self.head(base)))
    }
}

#[inline]
fn head_mask(width: usize) -> u32 {
    (u64::from(u32::MAX) >> (32 - 8 * width.min(HEAD_BYTES_MAX))) as u32
}

/// The first `width` bytes of a suffix as a head, as if zeros followed a shorter one.
#[inline]
fn head_of(suffix: &[u8], width: usize) -> u32 {
    let first = match suffix.first_chunk::<4>() {
        Some(field) => u32::from_be_bytes(*field),
        None => {
            let mut field = [0; 4];
            field[..suffix.len()].copy_from_slice(suffix);
            u32::from_be_bytes(field)
        }
    };
    (u64::from(first) >> (32 - 8 * width.min(HEAD_BYTES_MAX))) as u32
}
