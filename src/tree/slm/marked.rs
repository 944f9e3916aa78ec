//! The ranges of keys in which the index may have versions that only snapshots need: when a snapshot goes, these are
//! searched, and not the whole index.
//!
//! Ranges are in *layers*, one for each list of snapshots that versions were kept for. A snapshot that goes is the concern
//! of the layers that list it, so what is kept for an old one is not searched again and again when younger ones go.
//!
//! Invariants:
//! 1. A key that has a version which a snapshot needs is in a range of a layer that lists the snapshot, or in one that a
//!    search has taken, which puts back what it has not come to. Keys are noted after the index has the version.
//! 2. Layers are few, and all of them together have bounded memory. If they would be more, neighbours become one.

use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

use crate::base::ids::Seqno;
use crate::tree::range::Key;

/// If layers would be more, the neighbours that have the least ranges become one.
const LAYERS_MAX: usize = 8;
/// If all ranges would take more memory, those of the largest layer become half as many.
const BYTES_MAX: usize = 1 << 20;
/// What a range takes beside its keys, about.
const RANGE_BYTES: usize = 64;

/// Whether a snapshot is none of these any more, which are ascending. One beyond the last has come since they were listed.
pub(super) fn is_gone(snapshot: Seqno, now: &[Seqno]) -> bool {
    now.last().is_some_and(|last| snapshot <= *last) && now.binary_search(&snapshot).is_err()
}

/// The ranges that are marked for one list of snapshots.
#[derive(Default)]
pub(super) struct Layer {
    /// Ascending.
    pub(super) snapshots: Vec<Seqno>,
    /// By the first key, the key behind the last one. None overlaps another.
    ranges: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Layer {
    /// Whether one of its snapshots has gone. `now` is ascending; one that is beyond its last has come since.
    fn is_due(&self, now: &[Seqno]) -> bool {
        self.snapshots.iter().any(|snapshot| is_gone(*snapshot, now))
    }

    /// The first key of all ranges.
    pub(super) fn first(&self) -> Option<&[u8]> {
        self.ranges.first_key_value().map(|(lower, _)| &**lower)
    }

    /// The last range that begins before a bound.
    fn last(&self, before: Bound<&[u8]>) -> Option<(&[u8], &[u8])> {
        let last = self.ranges.range::<[u8], _>((Unbounded, before)).next_back();
        last.map(|(lower, upper)| (&**lower, &**upper))
    }

    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.last(Included(key)).is_some_and(|(_, upper)| *upper > *key)
    }

    fn insert(&mut self, lower: Vec<u8>, upper: Vec<u8>) {
        self.bytes += lower.len() + upper.len() + RANGE_BYTES;
        self.ranges.insert(lower, upper);
    }

    fn remove(&mut self, lower: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let (lower, upper) = self.ranges.remove_entry(lower)?;
        self.bytes -= lower.len() + upper.len() + RANGE_BYTES;
        Some((lower, upper))
    }

    fn add(&mut self, lower: &[u8], upper: &[u8]) {
        let mut lower = lower.to_vec();
        if let Some((before, end)) = self.last(Included(&lower))
            && *end >= *lower
        {
            if *end >= *upper {
                return;
            }
            lower = before.to_vec();
        }
        let mut upper = upper.to_vec();
        while let Some(first) = self.first_in(&lower, Included(&upper))
            && let Some((_, end)) = self.remove(&first)
        {
            upper = upper.max(end);
        }
        self.insert(lower, upper);
    }

    /// Where the first range begins that does so between two bounds.
    fn first_in(&self, lower: &[u8], upper: Bound<&[u8]>) -> Option<Vec<u8>> {
        let first = self.ranges.range::<[u8], _>((Included(lower), upper)).next();
        first.map(|(lower, _)| lower.clone())
    }

    /// The part of a range of keys that it may have marks in, from the first one to the last one.
    fn part_of(&self, (lower, upper): (&[u8], Option<&[u8]>)) -> Option<(Key, Key)> {
        let bound = upper.map_or(Unbounded, Excluded);
        let from = match self.has(lower) {
            true => Key::from(lower),
            false => Key::from(self.first_in(lower, bound)?),
        };
        let (_, end) = self.last(bound)?;
        let to = upper.filter(|upper| **upper < *end).unwrap_or(end);
        Some((from, Key::from(to)))
    }

    /// Gives what lies in a range of keys to another layer.
    fn move_to(&mut self, other: &mut Layer, (lower, upper): (&[u8], &[u8])) {
        self.cut_at(lower);
        self.cut_at(upper);
        while let Some(first) = self.first_in(lower, Excluded(upper))
            && let Some((lower, upper)) = self.remove(&first)
        {
            other.add(&lower, &upper);
        }
    }

    /// Makes two ranges of one that has keys on both sides of this one.
    fn cut_at(&mut self, key: &[u8]) {
        let over = self.last(Excluded(key)).filter(|(_, end)| **end > *key);
        let over = over.map(|(lower, _)| lower.to_vec());
        if let Some((lower, upper)) = over.and_then(|lower| self.remove(&lower)) {
            self.insert(lower, key.to_vec());
            self.insert(key.to_vec(), upper);
        }
    }

    /// Forgets what lies before a key; everything, if there is none.
    pub(super) fn forget_before(&mut self, key: Option<&[u8]>) {
        match key {
            Some(key) => self.move_to(&mut Layer::default(), (&[], key)),
            None => {
                *self = Layer { snapshots: std::mem::take(&mut self.snapshots), ..Layer::default() }
            }
        }
    }

    /// Makes one range of every two.
    fn widen(&mut self) {
        let ranges = std::mem::take(&mut self.ranges);
        self.bytes = 0;
        let mut ranges = ranges.into_iter();
        while let Some((lower, upper)) = ranges.next() {
            let upper = ranges.next().map_or(upper, |(_, upper)| upper);
            self.insert(lower, upper);
        }
    }

    /// Adds another layer.
    fn join(&mut self, other: &Layer) {
        self.snapshots.extend(&other.snapshots);
        self.snapshots.sort_unstable();
        self.snapshots.dedup();
        other.ranges.iter().for_each(|(lower, upper)| self.add(lower, upper));
    }
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Marked {
    /// The oldest first.
    layers: Vec<Layer>,
}

impl Marked {
    /// Notes that what is in a range of keys may be kept for these snapshots.
    pub(super) fn note(&mut self, snapshots: &[Seqno], range: (&[u8], &[u8])) {
        if snapshots.is_empty() {
            return;
        }
        let found = self.layers.iter().rposition(|layer| layer.snapshots == snapshots);
        let at = found.unwrap_or_else(|| {
            self.make_room();
            self.layers.push(Layer { snapshots: snapshots.to_vec(), ..Layer::default() });
            self.layers.len() - 1
        });
        self.layers[at].add(range.0, range.1);
        while self.bytes() > BYTES_MAX
            && let Some(largest) = self.layers.iter_mut().max_by_key(|layer| layer.bytes)
            && largest.ranges.len() > 1
        {
            largest.widen();
        }
    }

    /// The same of one key.
    pub(super) fn note_key(&mut self, snapshots: &[Seqno], key: &[u8]) {
        self.note(snapshots, (key, &[key, &[0]].concat()));
    }

    /// Makes room for one more layer.
    fn make_room(&mut self) {
        if self.layers.len() < LAYERS_MAX {
            return;
        }
        let least = self.layers.windows(2).map(|two| two[0].bytes + two[1].bytes).enumerate();
        if let Some((at, _)) = least.min_by_key(|(_, bytes)| *bytes) {
            let younger = self.layers.remove(at + 1);
            self.layers[at].join(&younger);
        }
    }

    /// The memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes + layer.snapshots.len() * 8).sum()
    }

    /// Whether a snapshot has gone that something may be kept for.
    pub(super) fn is_due(&self, now: &[Seqno]) -> bool {
        self.layers.iter().any(|layer| layer.is_due(now))
    }

    /// The first range of keys to be searched that lies in one of these.
    pub(super) fn due_in(&self, now: &[Seqno], free: &[(Key, Option<Key>)]) -> Option<(Key, Key)> {
        let mut due = self.layers.iter().filter(|layer| layer.is_due(now));
        due.find_map(|layer| {
            free.iter().find_map(|(lower, upper)| layer.part_of((lower, upper.as_deref())))
        })
    }

    /// Takes what is to be searched in a range of keys.
    pub(super) fn take(&mut self, now: &[Seqno], range: (&[u8], &[u8])) -> Layer {
        let mut taken = Layer::default();
        let is_here = |layer: &Layer| layer.part_of((range.0, Some(range.1))).is_some();
        let due = self.layers.iter_mut().filter(|layer| layer.is_due(now) && is_here(layer));
        for layer in due {
            taken.snapshots.extend(&layer.snapshots);
            layer.move_to(&mut taken, range);
        }
        taken.snapshots.sort_unstable();
        taken.snapshots.dedup();
        self.layers.retain(|layer| !layer.ranges.is_empty());
        taken
    }

    /// Puts back what has not been searched.
    pub(super) fn put_back(&mut self, taken: &Layer) {
        for (lower, upper) in &taken.ranges {
            self.note(&taken.snapshots, (lower, upper));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    fn key(number: u64) -> Vec<u8> {
        [&number.to_be_bytes()[..], &[7; 60]].concat()
    }

    fn seqnos(numbers: &[u64]) -> Vec<Seqno> {
        numbers.iter().copied().map(Seqno).collect()
    }

    /// Whatever has been joined, each key is found when one of its snapshots has gone, and in no more memory than allowed.
    #[test]
    fn each_key_is_found_when_a_snapshot_of_its_own_has_gone() {
        let (mut marked, mut random) = (Marked::default(), SplitMix::new(1));
        let mut noted = Vec::new();
        for round in 0..30_000 {
            let first = round / 1000;
            let snapshots = seqnos(&[first, first + 1 + random.next() % 3]);
            let key = key(random.next() % 1_000_000);
            marked.note_key(&snapshots, &key);
            noted.push((snapshots, key));
            assert!(marked.layers.len() <= LAYERS_MAX && marked.bytes() < BYTES_MAX + 4096);
        }
        let (low, high) = (key(300_000), key(600_000));
        for gone in 0..35 {
            let now = seqnos(&(gone + 1..100).collect::<Vec<_>>());
            let mut taken = marked.take(&now, (&low, &high));
            let is_gone = |snapshots: &[Seqno]| snapshots.iter().any(|it| it.0 <= gone);
            for (snapshots, key) in noted.iter().filter(|(snapshots, _)| is_gone(snapshots)) {
                let is_in = low <= *key && *key < high;
                assert_eq!(taken.has(key), is_in, "{key:?}");
                assert!(!is_in || snapshots.iter().all(|it| taken.snapshots.contains(it)));
            }
            if gone % 2 == 0 {
                marked.put_back(&taken);
                continue;
            }
            // What has been searched up to here goes, or is noted again for those snapshots that there are.
            let middle = key(450_000);
            let has_ended = |key: &[u8]| *low <= *key && *key < *middle;
            noted.retain(|(snapshots, key)| !is_gone(snapshots) || !has_ended(key));
            let held: Vec<Seqno> =
                taken.snapshots.iter().copied().filter(|it| it.0 > gone).collect();
            for (_, key) in noted.iter().filter(|(_, key)| has_ended(key) && taken.has(key)) {
                marked.note_key(&held, key);
            }
            taken.forget_before(Some(&middle));
            assert!(!taken.has(&key(449_999)));
            marked.put_back(&taken);
        }
    }

    /// A range of keys in which jobs are at work keeps no others from being searched.
    #[test]
    fn what_is_free_is_found_beside_what_is_not() {
        let mut marked = Marked::default();
        let bound = |text: &str| Key::from(text.as_bytes());
        marked.note(&seqnos(&[5]), (b"b", b"f"));
        marked.note(&seqnos(&[5, 6]), (b"m", b"p"));
        let due = |now: &[u64], free: &[(&str, Option<&str>)]| {
            let free: Vec<_> = free.iter().map(|it| (bound(it.0), it.1.map(bound))).collect();
            marked.due_in(&seqnos(now), &free)
        };
        assert!(!marked.is_due(&seqnos(&[5, 6, 9])));
        assert_eq!(due(&[5, 6, 9], &[("", None)]), None);
        assert_eq!(due(&[5, 9], &[("", None)]), Some((bound("m"), bound("p"))));
        assert_eq!(due(&[9], &[("", None)]), Some((bound("b"), bound("f"))));
        assert_eq!(due(&[9], &[("", Some("b")), ("c", Some("d"))]), Some((bound("c"), bound("d"))));
        assert_eq!(due(&[9], &[("f", Some("n"))]), Some((bound("m"), bound("n"))));
        assert_eq!(due(&[9], &[("", Some("b")), ("f", Some("m")), ("p", None)]), None);
    }
}
