//! What a serializable transaction has read: keys, and the parts of ranges that its iterators have passed.
//!
//! Invariants:
//! 1. A range is in `ranges` before its iterator has read anything, and is extended before a pair is returned.

use std::collections::BTreeSet;

use crate::base::planted::{Bug, planted};
use crate::store::watch::{Range, Watch};

/// What a key takes in memory beside its bytes.
pub(super) const POINT_BYTES: usize = 64;
const RANGE_BYTES: usize = 160;

/// What an iterator has read of its range `lower..upper`: `lower..front` and `back..upper`.
struct ReadRange {
    lower: Vec<u8>,
    front: Vec<u8>,
    /// `None` while nothing has been read from the end of a range without an upper bound.
    back: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    is_open: bool,
}

impl ReadRange {
    fn parts(&self) -> impl Iterator<Item = Range> {
        let front = (self.lower.clone(), Some(self.front.clone()));
        let back = self.back.as_ref().map(|back| (back.clone(), self.upper.clone()));
        std::iter::once(front).chain(back)
    }
}

/// What was read of a keyspace.
#[derive(Default)]
struct OfKeyspace {
    points: BTreeSet<Vec<u8>>,
    ranges: Vec<ReadRange>,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Reads {
    /// By the place of the keyspace.
    of: Vec<OfKeyspace>,
}

/// A range among those of a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangeNumber {
    place: usize,
    number: usize,
}

impl Reads {
    fn of(&mut self, place: usize) -> &mut OfKeyspace {
        if self.of.len() <= place {
            self.of.resize_with(place + 1, OfKeyspace::default);
        }
        &mut self.of[place]
    }

    /// What `add_point` will take in memory; `None` if the key is there.
    pub(super) fn bytes_of_point(&self, place: usize, key: &[u8]) -> Option<u64> {
        let is_there = self.of.get(place).is_some_and(|of| of.points.contains(key));
        (!is_there).then_some((key.len() + POINT_BYTES) as u64)
    }

    pub(super) fn add_point(&mut self, place: usize, key: &[u8]) {
        self.of(place).points.insert(key.to_vec());
    }

    /// What `add_range` will take in memory.
    pub(super) fn bytes_of_range(lower: &[u8], upper: Option<&[u8]>) -> u64 {
        (RANGE_BYTES + 2 * lower.len() + 2 * upper.map_or(0, <[u8]>::len)) as u64
    }

    pub(super) fn add_range(
        &mut self,
        place: usize,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> RangeNumber {
        let (lower, upper) = (lower.to_vec(), upper.map(<[u8]>::to_vec));
        let ranges = &mut self.of(place).ranges;
        let (front, back) = (lower.clone(), upper.clone());
        ranges.push(ReadRange { lower, front, back, upper, is_open: true });
        RangeNumber { place, number: ranges.len() - 1 }
    }

    /// `None` once the transaction has ended.
    fn range(&mut self, RangeNumber { place, number }: RangeNumber) -> Option<&mut ReadRange> {
        self.of.get_mut(place)?.ranges.get_mut(number)
    }

    /// The front of a range has read everything up to `key`. Returns what more it takes in memory.
    pub(super) fn extend_front(&mut self, range: RangeNumber, key: &[u8]) -> u64 {
        let Some(ReadRange { front, .. }) = self.range(range) else { return 0 };
        let before = front.capacity();
        front.clear();
        front.extend_from_slice(key);
        front.push(0);
        (front.capacity() - before) as u64
    }

    /// The same of the back.
    pub(super) fn extend_back(&mut self, range: RangeNumber, key: &[u8]) -> u64 {
        let Some(ReadRange { back, .. }) = self.range(range) else { return 0 };
        let back = back.get_or_insert_default();
        let before = back.capacity();
        back.clear();
        back.extend_from_slice(key);
        (back.capacity() - before) as u64
    }

    /// The whole range has been read.
    pub(super) fn finish(&mut self, range: RangeNumber) {
        if planted(Bug::TransactionRangeEndsEarly) {
            return;
        }
        if let Some(range) = self.range(range) {
            range.front.clear();
            range.front.extend_from_slice(&range.lower);
            range.back = Some(range.lower.clone());
        }
    }

    /// Nothing more will be read of the range.
    pub(super) fn close(&mut self, range: RangeNumber) {
        if let Some(range) = self.range(range) {
            range.is_open = false;
        }
    }

    /// The places of the keyspaces that were read.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let numbered = self.of.iter().enumerate();
        numbered.filter(|(_, of)| !of.points.is_empty() || !of.ranges.is_empty()).map(|(at, _)| at)
    }

    /// All that was read in a keyspace, which is forgotten.
    pub(super) fn take_watch(&mut self, place: usize) -> Watch {
        let Some(of) = self.of.get_mut(place).map(std::mem::take) else { return Watch::default() };
        let ranges = of.ranges.into_iter().flat_map(|range| {
            let front = (range.lower, Some(range.front));
            let back = range.back.map(|back| (back, range.upper));
            std::iter::once(front).chain(back)
        });
        Watch::new(of.points, ranges.collect())
    }

    /// All that was read in a keyspace, and what iterators have yet to read of it if it is `to_be`.
    pub(super) fn watch(&self, place: usize, to_be: bool) -> Watch {
        let Some(of) = self.of.get(place) else { return Watch::default() };
        let mut ranges = Vec::with_capacity(of.ranges.len());
        for range in &of.ranges {
            match to_be && range.is_open {
                true => ranges.push((range.lower.clone(), range.upper.clone())),
                false => ranges.extend(range.parts()),
            }
        }
        Watch::new(of.points.clone(), ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(reads: &Reads, to_be: bool) -> Vec<(String, Option<String>)> {
        let shown = |key: Vec<u8>| key.escape_ascii().to_string();
        let ranges = reads.watch(0, to_be).ranges.into_iter();
        ranges.map(|(lower, upper)| (shown(lower), upper.map(shown))).collect()
    }

    fn some(lower: &str, upper: &str) -> (String, Option<String>) {
        (lower.to_string(), Some(upper.to_string()))
    }

    #[test]
    fn a_range_is_what_its_iterator_has_passed() {
        let mut reads = Reads::default();
        assert!(reads.places().next().is_none());
        let range = reads.add_range(0, b"b", Some(b"y"));
        assert!(ranges(&reads, false).is_empty());
        reads.extend_front(range, b"d");
        assert_eq!(ranges(&reads, false), [some("b", r"d\x00")]);
        reads.extend_back(range, b"x");
        assert_eq!(ranges(&reads, false), [some("b", r"d\x00"), some("x", "y")]);
        assert_eq!(ranges(&reads, true), [some("b", "y")]);
        reads.close(range);
        assert_eq!(ranges(&reads, true).len(), 2);
        reads.finish(range);
        assert_eq!(ranges(&reads, false), [some("b", "y")]);
    }

    #[test]
    fn a_range_without_an_end_is_read_from_both_sides() {
        let mut reads = Reads::default();
        let range = reads.add_range(0, b"", None);
        assert!(ranges(&reads, false).is_empty());
        reads.extend_front(range, b"d");
        assert_eq!(ranges(&reads, false), [some("", r"d\x00")]);
        reads.extend_back(range, b"x");
        assert_eq!(ranges(&reads, false), [some("", r"d\x00"), ("x".into(), None)]);
        reads.finish(range);
        assert_eq!(ranges(&reads, false), [(String::new(), None)]);
        reads.add_point(0, b"a");
        let taken = reads.take_watch(0);
        assert_eq!((taken.ranges.len(), taken.points.len()), (1, 1));
        assert!(reads.places().next().is_none());
        // Its iterator is still there.
        reads.extend_front(range, b"d");
        reads.close(range);
    }
}
