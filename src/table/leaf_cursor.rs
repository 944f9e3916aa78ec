//! A private copy of one leaf with a position, and the reassembled key at that position. Cursors
//! and scans step through it without the cache.
//!
//! Invariants:
//! 1. With a position, `key[..key_bytes]` is the whole key there, and `value` is within the
//!    payload.
//! 2. A split entry becomes a position when [`LeafCursor::join`] has appended its rest to the payload.
//! 3. `key` has room for [`SLACK_BYTES`] more than the key, so that short pieces are copied at a
//!    fixed width. From `load` on, its first bytes are the leaf's common prefix.

use super::blob_pointer::BlobPointer;
use super::node::{HEAD_BYTES_MAX, KIND_BITS, Node, Parsed, Shape};
use super::reader::{check_pointer, kind_of};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};

const SLACK_BYTES: usize = 32;

/// What [`LeafCursor::place`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Placed {
    Whole,
    /// The entry is split. It is not a position before [`LeafCursor::join`] has its rest.
    Split,
}

pub(super) struct LeafCursor {
    payload: Vec<u8>,
    shape: Shape,
    index: usize,
    key: Vec<u8>,
    key_bytes: usize,
    value: (usize, usize),
    seqno: Seqno,
    kind: EntryKind,
    positioned: bool,
    /// The leaf's bytes at the front of the payload. Behind them is the rest of the last entry, once that is joined.
    leaf_bytes: usize,
}

impl LeafCursor {
    pub(super) fn new() -> LeafCursor {
        LeafCursor {
            payload: Vec::new(),
            shape: Shape::default(),
            index: 0,
            // Enough for most prefixes.
            key: vec![0; 2 * SLACK_BYTES],
            key_bytes: 0,
            value: (0, 0),
            seqno: Seqno(0),
            kind: EntryKind::Put,
            positioned: false,
            leaf_bytes: 0,
        }
    }

    /// Copies a leaf. Afterwards there is no position.
    pub(super) fn load(&mut self, payload: &[u8]) -> Parsed<()> {
        self.positioned = false;
        self.payload.clear();
        self.payload.extend_from_slice(payload);
        self.leaf_bytes = payload.len();
        self.shape = Shape::default();
        self.shape = Shape::parse(&self.payload, 0)?;
        let prefix = self.payload.get(self.shape.prefix()).unwrap_or_default();
        if self.key.len() < prefix.len() + SLACK_BYTES {
            self.key.resize(prefix.len() + SLACK_BYTES, 0);
        }
        self.key[..prefix.len()].copy_from_slice(prefix);
        Ok(())
    }

    /// Memory used on the heap.
    pub(super) fn memory_bytes(&self) -> usize {
        self.payload.capacity() + self.key.capacity()
    }

    /// The number of entries of the leaf; 0 if none is loaded.
    #[inline]
    pub(super) fn entries(&self) -> usize {
        self.shape.entries
    }

    /// The number of the first whole entry: 1 if the leaf begins with the rest of an entry.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.shape.first()
    }

    /// The flags of the leaf.
    pub(super) fn flags(&self) -> u8 {
        self.shape.flags
    }

    /// The key where `place` was last, even if it is not a position.
    pub(super) fn placed_key(&self) -> &[u8] {
        self.key.get(..self.key_bytes).unwrap_or_default()
    }

    /// The key of entry `i`.
    pub(super) fn key_at(&self, i: usize) -> Parsed<Vec<u8>> {
        Node { bytes: &self.payload, shape: &self.shape }.key(i)
    }

    /// Verifies that the leaf begins with the rest of this entry, if it begins with a rest.
    pub(super) fn check_rest(&self, key: &[u8], seqno: Seqno) -> Parsed<()> {
        match self.first() {
            0 => Ok(()),
            _ => Node { bytes: &self.payload, shape: &self.shape }.rest_of(key, seqno).map(drop),
        }
    }

    /// The entry number of the position.
    #[inline]
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// See [`Node::search`].
    pub(super) fn search(&self, key: &[u8], threshold: u64) -> Parsed<usize> {
        Node { bytes: &self.payload, shape: &self.shape }.search(key, threshold)
    }

    /// Removes the position.
    pub(super) fn unplace(&mut self) {
        self.positioned = false;
    }

    /// Moves to entry `i`, which exists and is not a rest.
    #[inline]
    pub(super) fn place(&mut self, i: usize) -> Parsed<Placed> {
        self.positioned = false;
        let bytes = self.payload.get(..self.leaf_bytes).unwrap_or_default();
        let shape = &self.shape;
        let (rest_at, value_at, value_end) = shape.body(bytes, i)?;
        let (prefix_bytes, head_bytes) = (shape.prefix().len(), shape.head_bytes);
        let rest_bytes = value_at - rest_at;
        let key_bytes = prefix_bytes + head_bytes + rest_bytes;
        if self.key.len() < key_bytes + SLACK_BYTES {
            self.key.resize(key_bytes + SLACK_BYTES, 0);
        }
        let head = bytes.get(shape.head_at(i)..).unwrap_or_default();
        let to = &mut self.key[prefix_bytes..];
        match (head.first_chunk::<HEAD_BYTES_MAX>(), to.first_chunk_mut::<HEAD_BYTES_MAX>()) {
            (Some(head), Some(to)) => *to = *head,
            _ => to[..head_bytes].copy_from_slice(head.get(..head_bytes).unwrap_or_default()),
        }
        let to = &mut to[head_bytes..];
        let rest = bytes.get(rest_at..).unwrap_or_default();
        match (rest.first_chunk::<SLACK_BYTES>(), to.first_chunk_mut::<SLACK_BYTES>()) {
            (Some(rest), Some(to)) if rest_bytes <= SLACK_BYTES => *to = *rest,
            _ => to[..rest_bytes].copy_from_slice(rest.get(..rest_bytes).unwrap_or_default()),
        }
        let meta = shape.meta(bytes, i);
        self.kind = kind_of(meta)?;
        self.seqno = Seqno(meta >> KIND_BITS);
        self.key_bytes = key_bytes;
        self.value = (value_at, value_end);
        self.index = i;
        if shape.is_split(i) {
            return self.place_split();
        }
        check_pointer(self.kind, bytes.get(value_at..value_end).unwrap_or_default())?;
        self.positioned = true;
        Ok(Placed::Whole)
    }

    #[cold]
    fn place_split(&mut self) -> Parsed<Placed> {
        if self.payload.len() == self.leaf_bytes {
            return Ok(Placed::Split);
        }
        self.value.1 = self.payload.len();
        self.positioned = true;
        Ok(Placed::Whole)
    }

    /// Appends the rest of the split entry that was placed last, from the payload of the next leaf.
    pub(super) fn join(&mut self, next: &[u8]) -> Parsed<()> {
        let shape = Shape::parse(next, 0)?;
        let rest = Node { bytes: next, shape: &shape }.rest_of(self.placed_key(), self.seqno)?;
        let is_joined = self.payload.len() > self.leaf_bytes;
        if is_joined || self.value.1 != self.leaf_bytes || self.kind.is_blob() || rest.is_empty() {
            return Err("split value");
        }
        let rest = if planted(Bug::SplitValueCut) { &rest[..1] } else { rest };
        self.payload.extend_from_slice(rest);
        self.value.1 = self.payload.len();
        self.positioned = true;
        Ok(())
    }

    /// Calls `f` with the entries from the position on (backwards: from the position back to the leaf's start), until it
    /// has passed `count` puts in blob files, whose pointers it passes too. Entries that cannot be read are left out.
    pub(super) fn entries_ahead(
        &self,
        forward: bool,
        count: usize,
        f: &mut dyn FnMut(Vec<u8>, Seqno, Option<BlobPointer>),
    ) {
        if !self.positioned {
            return;
        }
        let node = Node { bytes: &self.payload, shape: &self.shape };
        let mut left = count;
        for step in 0..self.shape.entries {
            let i = match forward {
                true => self.index + step,
                false => self.index.wrapping_sub(step),
            };
            if i >= self.shape.entries || i < self.shape.first() || left == 0 {
                return;
            }
            let meta = node.meta(i);
            let (Ok(kind), Ok(key)) = (kind_of(meta), node.key(i)) else { continue };
            let value = (kind == EntryKind::PutBlob).then(|| node.value(i).ok()).flatten();
            let pointer = value.and_then(BlobPointer::decode);
            left -= usize::from(pointer.is_some());
            f(key, Seqno(meta >> KIND_BITS), pointer);
        }
    }

    /// The entry at the position.
    #[inline]
    pub(super) fn entry(&self) -> Option<EntryRef<'_>> {
        if !self.positioned {
            return None;
        }
        Some(EntryRef {
            key: self.key.get(..self.key_bytes)?,
            seqno: self.seqno,
            kind: self.kind,
            value: self.payload.get(self.value.0..self.value.1)?,
        })
    }
}
