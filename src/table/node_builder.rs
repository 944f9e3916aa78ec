//! Collects the keys of a node, tracks an upper bound of its encoded size, and encodes it.
//!
//! Invariants:
//! 1. [`Measure::node_bytes`] is never less than the size that `encode` writes.
//! 2. Keys arrive in order, so the common prefix of all is the shortest common prefix of
//!    neighbours.

use super::node::{
    FLAG_REST, FLAG_UNIFORM_KEYS, HEAD_BYTES_MAX, KIND_MASK, NODE_HEADER_BYTES, REST_TAG,
};
use crate::base::codec::{put_varint, varint_bytes};

/// The prefix length has 16 bits.
const PREFIX_BYTES_MAX: usize = u16::MAX as usize;

/// All inputs of a node's size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measure {
    pub(super) entries: usize,
    prefix_bytes: usize,
    key_bytes: usize,
    key_bytes_min: usize,
    key_bytes_max: usize,
    meta_min: u64,
    meta_max: u64,
    value_bytes: usize,
    value_bytes_min: usize,
    value_bytes_max: usize,
}

impl Measure {
    pub(super) const EMPTY: Measure = Measure {
        entries: 0,
        prefix_bytes: PREFIX_BYTES_MAX,
        key_bytes: 0,
        key_bytes_min: usize::MAX,
        key_bytes_max: 0,
        meta_min: u64::MAX,
        meta_max: 0,
        value_bytes: 0,
        value_bytes_min: usize::MAX,
        value_bytes_max: 0,
    };

    /// The measure with one more entry, whose key shares `shared` bytes with the one before it.
    #[inline]
    pub(super) fn with(self, key: usize, shared: usize, meta: u64, value: usize) -> Measure {
        let prefix = if self.entries == 0 { key } else { shared };
        Measure {
            entries: self.entries + 1,
            prefix_bytes: self.prefix_bytes.min(prefix),
            key_bytes: self.key_bytes + key,
            key_bytes_min: self.key_bytes_min.min(key),
            key_bytes_max: self.key_bytes_max.max(key),
            meta_min: self.meta_min.min(meta),
            meta_max: self.meta_max.max(meta),
            value_bytes: self.value_bytes + value,
            value_bytes_min: self.value_bytes_min.min(value),
            value_bytes_max: self.value_bytes_max.max(value),
        }
    }

    /// All values have this length (they were measured as empty).
    pub(super) fn set_value_bytes(&mut self, each: usize) {
        self.value_bytes = each * self.entries;
        (self.value_bytes_min, self.value_bytes_max) = (each, each);
    }

    fn head_bytes(&self) -> usize {
        (self.key_bytes_min - self.prefix_bytes).min(HEAD_BYTES_MAX)
    }

    fn meta_bytes(&self) -> usize {
        width_bytes(self.meta_max - self.meta_min)
    }

    fn uniform_keys(&self) -> bool {
        self.key_bytes_min == self.key_bytes_max
    }

    fn bodies_bytes(&self) -> usize {
        let before = self.prefix_bytes + self.head_bytes();
        let length_bytes = if self.uniform_keys() {
            0
        } else {
            varint_bytes((self.key_bytes_max - before) as u64)
        };
        self.key_bytes + self.value_bytes + self.entries * length_bytes - self.entries * before
    }

    fn end_bytes(&self, bodies_bytes: usize) -> usize {
        if self.uniform_keys() && self.value_bytes_min == self.value_bytes_max {
            0
        } else if bodies_bytes <= usize::from(u16::MAX) {
            2
        } else {
            4
        }
    }

    /// An upper bound of the node's size, with `extra_bytes` between header and prefix.
    #[inline]
    pub(super) fn node_bytes(&self, extra_bytes: usize) -> usize {
        if self.entries == 0 {
            return 0;
        }
        let bodies = self.bodies_bytes();
        let each = self.head_bytes() + self.meta_bytes() + self.end_bytes(bodies);
        NODE_HEADER_BYTES + extra_bytes + self.prefix_bytes + self.entries * each + bodies
    }
}

/// The smallest number of bytes that hold `value`; none for zero.
#[inline]
pub(super) fn width_bytes(value: u64) -> usize {
    (64 - value.leading_zeros() as usize).div_ceil(8)
}

/// The length of the common prefix of `a` and `b`.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut shared = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let (mut left, mut right) = ([0; 8], [0; 8]);
        left.copy_from_slice(x);
        right.copy_from_slice(y);
        let differing = u64::from_le_bytes(left) ^ u64::from_le_bytes(right);
        if differing != 0 {
            return shared + differing.trailing_zeros() as usize / 8;
        }
        shared += 8;
    }
    let rest = a[shared..].iter().zip(&b[shared..]);
    shared + rest.take_while(|(x, y)| x == y).count()
}

/// The keys of the node under construction. Values stay with the caller until `encode`.
pub(super) struct NodeBuilder {
    pub(super) measure: Measure,
    keys: Vec<u8>,
    key_ends: Vec<usize>,
    metas: Vec<u64>,
}

impl NodeBuilder {
    pub(super) fn new() -> NodeBuilder {
        NodeBuilder {
            measure: Measure::EMPTY,
            keys: Vec::new(),
            key_ends: Vec::new(),
            metas: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.measure = Measure::EMPTY;
        self.keys.clear();
        self.key_ends.clear();
        self.metas.clear();
    }

    /// Adds a key. `measure` is `self.measure.with(…)` for it, which the caller has computed to
    /// check that it fits.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], meta: u64, measure: Measure) {
        self.keys.extend_from_slice(key);
        self.key_ends.push(self.keys.len());
        self.metas.push(meta);
        self.measure = measure;
    }

    /// The key added last, with its meta number.
    #[inline]
    pub(super) fn last(&self) -> Option<(&[u8], u64)> {
        let meta = *self.metas.last()?;
        Some((self.key(self.metas.len() - 1), meta))
    }

    /// The key added first.
    pub(super) fn first_key(&self) -> Option<&[u8]> {
        if self.is_empty() { None } else { Some(self.key(0)) }
    }

    /// The meta number of the key added first.
    pub(super) fn first_meta(&self) -> u64 {
        self.metas.first().copied().unwrap_or_default()
    }

    #[inline]
    fn key(&self, i: usize) -> &[u8] {
        let from = if i == 0 { 0 } else { self.key_ends[i - 1] };
        &self.keys[from..self.key_ends[i]]
    }

    /// Whether the first entry is the rest of one that was split.
    pub(super) fn begins_with_rest(&self) -> bool {
        self.first_meta() & KIND_MASK == REST_TAG
    }

    /// Writes the node. `flags` are those that say how it goes on in the next one. `values` are the concatenated values, and `value_ends` their ends.
    pub(super) fn encode(
        &self,
        level: u8,
        flags: u8,
        extra: &[u8],
        values: &[u8],
        value_ends: &[usize],
        out: &mut Vec<u8>,
    ) {
        let measure = &self.measure;
        let (prefix, head) = (measure.prefix_bytes, measure.head_bytes());
        let (meta_bytes, end_bytes) =
            (measure.meta_bytes(), measure.end_bytes(measure.bodies_bytes()));
        let uniform = measure.uniform_keys();
        let key_rest = if uniform { measure.key_bytes_max - prefix - head } else { 0 };
        out.clear();
        out.reserve(measure.node_bytes(extra.len()));
        let flags = flags
            | if uniform { FLAG_UNIFORM_KEYS } else { 0 }
            | if level == 0 && self.begins_with_rest() { FLAG_REST } else { 0 };
        out.extend_from_slice(&[level, flags, head as u8, meta_bytes as u8, end_bytes as u8, 0]);
        for field in [prefix, measure.entries, key_rest] {
            let field = u16::try_from(field).expect("a node's counts have 16 bits");
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&measure.meta_min.to_le_bytes());
        out.extend_from_slice(extra);
        out.extend_from_slice(&self.key(0)[..prefix]);
        let mut key_from = 0;
        for &key_end in &self.key_ends {
            out.extend_from_slice(&self.keys[key_from + prefix..key_from + prefix + head]);
            key_from = key_end;
        }
        let rests_from = prefix + head;
        if end_bytes + meta_bytes > 0 {
            let (mut end, mut key_from, mut value_from) = (0, 0, 0);
            for ((&key_end, &value_end), meta) in
                self.key_ends.iter().zip(value_ends).zip(&self.metas)
            {
                let rest = key_end - key_from - rests_from;
                end += rest + value_end - value_from;
                if !uniform {
                    end += varint_bytes(rest as u64);
                }
                (key_from, value_from) = (key_end, value_end);
                out.extend_from_slice(&(end as u32).to_le_bytes()[..end_bytes]);
                let above = meta - measure.meta_min;
                out.extend_from_slice(&above.to_le_bytes()[..meta_bytes]);
            }
        }
        let (mut key_from, mut value_from) = (0, 0);
        for (&key_end, &value_end) in self.key_ends.iter().zip(value_ends) {
            let rest = &self.keys[key_from + rests_from..key_end];
            if !uniform {
                put_varint(out, rest.len() as u64);
            }
            out.extend_from_slice(rest);
            out.extend_from_slice(&values[value_from..value_end]);
            (key_from, value_from) = (key_end, value_end);
        }
    }
}
