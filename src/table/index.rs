//! Index nodes: separators as keys, and child pointers with running counts as values.
//!
//! A separator's meta number is a sequence number. It is [`Seqno::MAX`] if the keys alone separate.
//! If the versions of one key span pages, it is one below the last version of the previous page.
//! All child records of a page have the same width. A record has the unit, the number of units
//! minus one, and the entries and bytes up to the child's end, each as a difference from the page's
//! base.

use super::node::{CHILD_HEADER_BYTES, KIND_BITS, NODE_HEADER_BYTES, Node, Parsed, packed_before};
use super::node_builder::{NodeBuilder, common_prefix, width_bytes};
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::cache::{PAGE_HEADER_BYTES, PagePointer};

/// The meta number of a separator without a sequence number.
pub(super) const PLAIN_SEPARATOR: u64 = Seqno::MAX.0 << KIND_BITS;
/// An index page grows beyond one unit rather than have fewer children (keys may have 64 KiB).
const CHILDREN_MIN: usize = 8;
const INDEX_BYTES_MAX: usize = UNIT_BYTES - PAGE_HEADER_BYTES;

/// One child of an index node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) pointer: PagePointer,
    /// The number of entries of the table up to this child's start and end.
    pub(super) tuples: (u64, u64),
    /// The number of key and value bytes of the table up to this child's start and end.
    pub(super) bytes: (u64, u64),
}

struct ChildHeader {
    widths: [usize; 4],
    base_unit: u32,
    base_tuples: u64,
    base_bytes: u64,
}

impl ChildHeader {
    fn parse(node: &Node<'_>) -> Parsed<ChildHeader> {
        let at = NODE_HEADER_BYTES;
        let header = node.bytes.get(at..at + CHILD_HEADER_BYTES).ok_or("index node header")?;
        let widths = [0, 1, 2, 3].map(|i| usize::from(header[i]));
        if widths[0] > 4 || widths[1] > 2 || widths[2] > 8 || widths[3] > 8 {
            return Err("index node field widths");
        }
        Ok(ChildHeader {
            widths,
            base_unit: packed_before(node.bytes, at + 8, 4) as u32,
            base_tuples: packed_before(node.bytes, at + 16, 8),
            base_bytes: packed_before(node.bytes, at + 24, 8),
        })
    }

    /// The four fields of child `i`.
    fn fields(&self, node: &Node<'_>, i: usize) -> Parsed<[u64; 4]> {
        let (_, mut at, end) = node.shape.body(node.bytes, i)?;
        if end - at != self.widths.iter().sum::<usize>() {
            return Err("index node child");
        }
        Ok(self.widths.map(|width| {
            at += width;
            packed_before(node.bytes, at, width)
        }))
    }
}

/// The location of child `i`.
#[inline]
pub(super) fn child_pointer(node: &Node<'_>, i: usize) -> Parsed<PagePointer> {
    let header = ChildHeader::parse(node)?;
    let [unit, units, ..] = header.fields(node, i)?;
    pointer_of(&header, unit, units)
}

fn pointer_of(header: &ChildHeader, unit: u64, units: u64) -> Parsed<PagePointer> {
    let unit = u32::try_from(u64::from(header.base_unit) + unit);
    match (unit, u16::try_from(units + 1)) {
        (Ok(unit), Ok(units)) => Ok(PagePointer { unit, units }),
        _ => Err("index node child pointer"),
    }
}

/// Child `i` with its counts.
pub(super) fn child(node: &Node<'_>, i: usize) -> Parsed<Child> {
    let header = ChildHeader::parse(node)?;
    let [unit, units, tuples_end, bytes_end] = header.fields(node, i)?;
    let (tuples_start, bytes_start) = match i.checked_sub(1) {
        Some(before) => {
            let [.., tuples, bytes] = header.fields(node, before)?;
            (tuples, bytes)
        }
        None => (0, 0),
    };
    if tuples_start > tuples_end || bytes_start > bytes_end {
        return Err("index node counts");
    }
    let after = |base: u64, n: u64| base.checked_add(n).ok_or("index node counts");
    Ok(Child {
        pointer: pointer_of(&header, unit, units)?,
        tuples: (after(header.base_tuples, tuples_start)?, after(header.base_tuples, tuples_end)?),
        bytes: (after(header.base_bytes, bytes_start)?, after(header.base_bytes, bytes_end)?),
    })
}

/// The child that holds byte number `bytes` of the table (the last child, if beyond).
pub(super) fn child_at_byte(node: &Node<'_>, bytes: u64) -> Parsed<usize> {
    let header = ChildHeader::parse(node)?;
    let (mut from, mut to) = (0, node.shape.entries - 1);
    while from < to {
        let middle = from.midpoint(to);
        let [.., end] = header.fields(node, middle)?;
        if header.base_bytes.saturating_add(end) <= bytes {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    Ok(from)
}

/// A page of one index level, or a leaf, as the level above describes it.
pub(super) struct Subtree {
    pub(super) separator: Vec<u8>,
    pub(super) separator_meta: u64,
    pub(super) tuples: u64,
    pub(super) bytes: u64,
}

/// Builds one level of the index. Its pages are kept in memory until the leaves have been written.
pub(super) struct LevelBuilder {
    level: u8,
    node: NodeBuilder,
    pointers: Vec<PagePointer>,
    units_max: u16,
    /// The numbers of entries and bytes up to each child's end.
    ends: Vec<(u64, u64)>,
    /// The numbers of entries and bytes up to the node's start.
    start: (u64, u64),
    pages: Vec<(Subtree, Vec<u8>)>,
}

impl LevelBuilder {
    pub(super) fn new(level: u8) -> LevelBuilder {
        LevelBuilder {
            level,
            node: NodeBuilder::new(),
            pointers: Vec::new(),
            units_max: 1,
            ends: Vec::new(),
            start: (0, 0),
            pages: Vec::new(),
        }
    }

    /// Appends a child.
    pub(super) fn add(&mut self, subtree: &Subtree, pointer: PagePointer) {
        let (key, meta) = (&subtree.separator, subtree.separator_meta);
        let last = self.node.last();
        let shared = last.map_or(0, |(last, _)| common_prefix(last, key));
        let end = self.end();
        let end = (end.0 + subtree.tuples, end.1 + subtree.bytes);
        let grown = self.node.measure.with(key.len(), shared, meta, 0);
        let record: usize = self.widths(pointer, end).iter().sum();
        let bytes = grown.node_bytes(CHILD_HEADER_BYTES) + grown.entries * (record + 2);
        // (Two bytes for a slot's end, in case equal separators make the node count without any.)
        if bytes > INDEX_BYTES_MAX && self.node.measure.entries >= CHILDREN_MIN {
            self.close();
        }
        let measure = self.node.measure.with(key.len(), shared, meta, 0);
        self.node.push(key, meta, measure);
        self.pointers.push(pointer);
        self.units_max = self.units_max.max(pointer.units);
        self.ends.push(end);
    }

    fn end(&self) -> (u64, u64) {
        self.ends.last().copied().unwrap_or(self.start)
    }

    /// The widths that child records need if `pointer` and `end` are added last.
    fn widths(&self, pointer: PagePointer, end: (u64, u64)) -> [usize; 4] {
        let first = self.pointers.first().unwrap_or(&pointer);
        let units = self.units_max.max(pointer.units);
        [
            width_bytes(u64::from(pointer.unit - first.unit)),
            width_bytes(u64::from(units - 1)),
            width_bytes(end.0 - self.start.0),
            width_bytes(end.1 - self.start.1),
        ]
    }

    fn close(&mut self) {
        let (Some(&first), Some(&last)) = (self.pointers.first(), self.pointers.last()) else {
            return;
        };
        let end = self.end();
        let widths = self.widths(last, end);
        let mut header = Vec::with_capacity(CHILD_HEADER_BYTES);
        header.extend(widths.iter().map(|&width| width as u8));
        header.extend_from_slice(&first.unit.to_le_bytes());
        header.extend_from_slice(&self.start.0.to_le_bytes());
        header.extend_from_slice(&self.start.1.to_le_bytes());
        let mut records = Vec::new();
        let mut record_ends = Vec::with_capacity(self.pointers.len());
        let measure = &mut self.node.measure;
        for (pointer, child_end) in self.pointers.iter().zip(&self.ends) {
            let fields = [
                u64::from(pointer.unit - first.unit),
                u64::from(pointer.units - 1),
                child_end.0 - self.start.0,
                child_end.1 - self.start.1,
            ];
            for (field, width) in fields.iter().zip(widths) {
                records.extend_from_slice(&field.to_le_bytes()[..width]);
            }
            record_ends.push(records.len());
        }
        measure.set_value_bytes(records.len() / self.pointers.len());
        let mut payload = Vec::new();
        self.node.encode(self.level, 0, &header, &records, &record_ends, &mut payload);
        let subtree = Subtree {
            separator: self.node.first_key().unwrap_or_default().to_vec(),
            separator_meta: self.node.first_meta(),
            tuples: end.0 - self.start.0,
            bytes: end.1 - self.start.1,
        };
        self.pages.push((subtree, payload));
        self.start = end;
        self.node.clear();
        self.pointers.clear();
        self.units_max = 1;
        self.ends.clear();
    }

    /// The level's pages.
    pub(super) fn finish(mut self) -> Vec<(Subtree, Vec<u8>)> {
        self.close();
        self.pages
    }
}
