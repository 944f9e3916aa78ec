//! What a transaction has written: in order, for savepoints, and by key, for its own reads.
//!
//! Invariants:
//! 1. `by_key` has the numbers of exactly the operations in `operations` that are of one key, ascending for each key, and no
//!    key without any. `range_deletes` has those of the others, ascending.
//! 2. Of a key, what counts comes after the last range delete that has it. So all range deletes can be committed first.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::range_delete::RangeDelete;
use crate::base::slice::Slice;
use crate::merge::{Base, Operands, RangeDeletes};
use crate::store::operation::Operation;
use crate::store::state::KeyspaceState;
use crate::store::watch::Range;

/// What an operation takes in memory beside its key and value.
const OPERATION_BYTES: usize = 144;

struct Written {
    /// No other operation of the transaction has had it.
    serial: u64,
    /// The place of its keyspace.
    place: usize,
    kind: EntryKind,
    key: Arc<[u8]>,
    value: Box<[u8]>,
}

/// The numbers of a key's operations.
type Numbers = Vec<u32>;

/// How far a transaction had written at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    len: usize,
    last: Option<u64>,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Writes {
    operations: Vec<Written>,
    next_serial: u64,
    /// By the place of the keyspace.
    by_key: Vec<BTreeMap<Arc<[u8]>, Numbers>>,
    range_deletes: Numbers,
    /// By the place of the keyspace: the last of them for each key, by its number and one.
    deleted: Vec<RangeDeletes>,
}

/// What a transaction has made of a key.
pub(super) struct OwnWrite<'a> {
    /// The value that it has put, `None` if it has deleted it; nothing if it has only merged.
    base: Option<Option<&'a [u8]>>,
    /// What it has merged since, oldest first.
    operands: Vec<&'a [u8]>,
}

impl OwnWrite<'_> {
    /// Whether the value depends on nothing below.
    pub(super) fn is_known(&self) -> bool {
        self.base.is_some()
    }

    /// Whether the key has a value, which `below` tells of the state below.
    pub(super) fn is_present(&self, below: bool) -> bool {
        !self.operands.is_empty() || self.base.map_or(below, |base| base.is_some())
    }

    /// The key's value over the one `below`.
    pub(super) fn value(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        below: Option<&[u8]>,
    ) -> Result<Option<Slice>> {
        let base = self.base.unwrap_or(below);
        if self.operands.is_empty() {
            return Ok(base.map(Slice::from));
        }
        let mut operands = Operands::default();
        self.operands.iter().for_each(|operand| operands.push(operand, false));
        let base = base.map_or(Base::Nothing, Base::Value);
        operands.fold(&keyspace.merge, key, base, false).map(|value| Some(Slice::from(value)))
    }
}

impl Writes {
    /// What one more operation takes in memory.
    pub(super) fn bytes_of(key: &[u8], value: &[u8]) -> u64 {
        (2 * OPERATION_BYTES + key.len() + value.len()) as u64
    }

    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Which operations there are: how many, and the serial number of the last one.
    pub(super) fn mark(&self) -> Mark {
        Mark { len: self.operations.len(), last: self.operations.last().map(|last| last.serial) }
    }

    /// Whether the operations of `mark` are all still there.
    pub(super) fn has(&self, mark: Mark) -> bool {
        let last = mark.len.checked_sub(1);
        let at = last.map(|last| self.operations.get(last).map(|operation| operation.serial));
        at.is_none_or(|serial| serial.is_some() && serial == mark.last)
    }

    /// Of a range delete, the key and the value are its bounds.
    pub(super) fn push(&mut self, place: usize, kind: EntryKind, key: &[u8], value: &[u8]) {
        if self.by_key.len() <= place {
            self.by_key.resize_with(place + 1, BTreeMap::new);
        }
        let number = self.operations.len() as u32;
        let key = match self.by_key[place].get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(key),
        };
        match kind {
            EntryKind::RangeDelete => {
                self.range_deletes.push(number);
                self.cover(place, number, &key, value);
            }
            _ => self.by_key[place].entry(Arc::clone(&key)).or_default().push(number),
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        self.operations.push(Written { serial, place, kind, key, value: value.into() });
    }

    /// Takes back all operations but those of a mark. Returns what they took in memory.
    pub(super) fn truncate(&mut self, mark: Mark) -> u64 {
        let (mut bytes, range_deletes) = (0, self.range_deletes.len());
        let len = mark.len + usize::from(planted(Bug::TransactionRollbackKeepsLast));
        while self.operations.len() > len {
            let Some(Written { place, kind, key, value, .. }) = self.operations.pop() else {
                break;
            };
            bytes += Writes::bytes_of(&key, &value);
            if kind == EntryKind::RangeDelete {
                self.range_deletes.pop();
                continue;
            }
            let of_keyspace = &mut self.by_key[place];
            if let Some(numbers) = of_keyspace.get_mut(&*key) {
                numbers.pop();
                if numbers.is_empty() {
                    of_keyspace.remove(&*key);
                }
            }
        }
        if self.range_deletes.len() < range_deletes {
            self.deleted.clear();
            for number in self.range_deletes.clone() {
                let Written { place, key, value, .. } = &self.operations[number as usize];
                let (place, key, value) = (*place, Arc::clone(key), value.clone());
                self.cover(place, number, &key, &value);
            }
        }
        bytes
    }

    /// What it has made of a key, if it has written to it.
    pub(super) fn own(&self, place: usize, key: &[u8]) -> Option<OwnWrite<'_>> {
        let numbers = self.by_key.get(place)?.get(key);
        let deleted = self.last_range_delete(place, key);
        if numbers.is_none() && deleted.is_none() {
            return None;
        }
        let mut own = OwnWrite { base: deleted.map(|_| None), operands: Vec::new() };
        let numbers = numbers.map_or(&[][..], |numbers| behind(numbers, deleted));
        for operation in self.effective(numbers) {
            match operation.kind {
                EntryKind::Merge => own.operands.push(&operation.value),
                EntryKind::Delete => own.base = Some(None),
                _ => own.base = Some(Some(&operation.value)),
            }
        }
        Some(own)
    }

    fn cover(&mut self, place: usize, number: u32, lower: &[u8], upper: &[u8]) {
        if self.deleted.len() <= place {
            self.deleted.resize_with(place + 1, RangeDeletes::default);
        }
        let seqno = Seqno(u64::from(number) + 1);
        if let Some(delete) = RangeDelete::of_operation(seqno, lower, upper) {
            self.deleted[place] = self.deleted[place].with(&delete, Seqno(0));
        }
    }

    /// The number of the last range delete that has a key.
    fn last_range_delete(&self, place: usize, key: &[u8]) -> Option<u32> {
        let Seqno(last) = self.deleted.get(place)?.newest(key, Seqno::MAX)?;
        u32::try_from(last - 1).ok()
    }

    /// The ranges that are deleted, with the places of their keyspaces.
    pub(super) fn deleted_ranges(&self) -> impl Iterator<Item = (usize, Range)> {
        self.range_deletes.iter().map(|number| {
            let Written { place, key, value, .. } = &self.operations[*number as usize];
            (*place, (key.to_vec(), (!value.is_empty()).then(|| value.to_vec())))
        })
    }

    /// Of a key's operations those that count: from its last put or delete on.
    fn effective(&self, numbers: &[u32]) -> impl Iterator<Item = &Written> {
        let of = |number: &u32| &self.operations[*number as usize];
        let is_whole = |number: &u32| of(number).kind != EntryKind::Merge;
        let from = numbers.iter().rposition(is_whole).unwrap_or(0);
        numbers[from..].iter().map(of)
    }

    /// The first key from `lower` on, and below `upper`.
    pub(super) fn next(&self, place: usize, lower: &[u8], upper: Option<&[u8]>) -> Option<&[u8]> {
        let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
        self.range(place, lower, upper)?.next().map(|(key, _)| &**key)
    }

    /// The last key below `upper`, and from `lower` on.
    pub(super) fn last(&self, place: usize, lower: &[u8], upper: Option<&[u8]>) -> Option<&[u8]> {
        let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
        self.range(place, lower, upper)?.next_back().map(|(key, _)| &**key)
    }

    fn range<'a>(
        &'a self,
        place: usize,
        lower: &[u8],
        upper: Bound<&[u8]>,
    ) -> Option<std::collections::btree_map::Range<'a, Arc<[u8]>, Numbers>> {
        if matches!(upper, Bound::Excluded(upper) if upper <= lower) {
            return None;
        }
        Some(self.by_key.get(place)?.range::<[u8], _>((Bound::Included(lower), upper)))
    }

    /// The places of the keyspaces that are written to.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let numbered = self.by_key.iter().enumerate();
        let of_keys = numbered.filter(|(_, keys)| !keys.is_empty()).map(|(place, _)| place);
        let of_ranges = self.range_deletes.iter();
        of_keys.chain(of_ranges.map(|number| self.operations[*number as usize].place))
    }

    /// Each key that is put or deleted, with the place of its keyspace. A merge takes the value as it is when it is committed.
    pub(super) fn overwritten(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.by_key.iter().enumerate().flat_map(move |(place, keys)| {
            let is_whole = |numbers: &Numbers| {
                let mut kinds = self.effective(numbers).map(|operation| operation.kind);
                kinds.any(|kind| kind != EntryKind::Merge)
            };
            keys.iter()
                .filter(move |(_, numbers)| is_whole(numbers))
                .map(move |(key, _)| (place, &**key))
        })
    }

    /// The operations to commit, by keyspace and key.
    pub(super) fn operations<'a>(
        &'a self,
        keyspaces: &'a [Arc<KeyspaceState>],
    ) -> impl Iterator<Item = Operation<'a>> {
        let range_deletes =
            self.range_deletes.iter().map(|number| &self.operations[*number as usize]);
        let by_place = self.by_key.iter().enumerate();
        let keys = by_place.flat_map(|(place, keys)| keys.iter().map(move |it| (place, it)));
        let of_keys = keys.flat_map(|(place, (key, numbers))| {
            let deleted = match self.range_deletes.is_empty() {
                true => None,
                false => self.last_range_delete(place, key),
            };
            self.effective(behind(numbers, deleted))
        });
        range_deletes.chain(of_keys).map(|written| Operation {
            keyspace: &keyspaces[written.place],
            kind: written.kind,
            key: &written.key,
            value: &written.value,
        })
    }
}

/// The numbers behind one.
fn behind(numbers: &[u32], deleted: Option<u32>) -> &[u32] {
    let from = deleted.map_or(0, |deleted| numbers.partition_point(|number| *number <= deleted));
    &numbers[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(writes: &Writes) -> Vec<(usize, &[u8])> {
        writes.overwritten().collect()
    }

    #[test]
    fn what_is_taken_back_leaves_what_was_before() {
        let mut writes = Writes::default();
        writes.push(0, EntryKind::Put, b"a", b"1");
        writes.push(2, EntryKind::Merge, b"a", b"+");
        let mark = writes.mark();
        writes.push(0, EntryKind::Delete, b"a", b"");
        writes.push(2, EntryKind::Put, b"a", b"2");
        writes.push(0, EntryKind::Put, b"b", b"3");
        assert_eq!(kept(&writes), [(0, &b"a"[..]), (0, b"b"), (2, b"a")]);
        assert_eq!(writes.next(0, b"a\0", None), Some(&b"b"[..]));
        assert_eq!(writes.next(0, b"b", Some(b"b")), None);
        assert_eq!(writes.last(0, b"", Some(b"b")), Some(&b"a"[..]));
        assert_eq!(writes.last(1, b"", None), None);
        assert!(writes.own(0, b"a").is_some_and(|own| !own.is_present(true)));
        let later = writes.mark();
        assert!(writes.has(later) && writes.truncate(mark) > 0);
        assert_eq!(kept(&writes), [(0, &b"a"[..])]);
        assert!(writes.own(0, b"a").is_some_and(|own| own.is_present(false)));
        assert!(writes.own(2, b"a").is_some_and(|own| !own.is_known()));
        assert!(writes.own(0, b"b").is_none() && writes.next(0, b"a\0", None).is_none());
        assert!(writes.has(mark) && !writes.has(later));
        // As many as there were, but others.
        (0..3).for_each(|_| writes.push(0, EntryKind::Put, b"c", b"4"));
        assert!(writes.has(mark) && !writes.has(later));
        // A range delete counts for what was there before it.
        let before = writes.mark();
        writes.push(0, EntryKind::RangeDelete, b"b", b"d");
        writes.push(0, EntryKind::Merge, b"c", b"5");
        assert!(writes.own(0, b"bb").is_some_and(|own| own.is_known() && !own.is_present(true)));
        assert!(writes.own(0, b"c").is_some_and(|own| own.is_known() && own.is_present(true)));
        assert!(writes.own(0, b"d").is_none() && writes.own(2, b"bb").is_none());
        assert_eq!(writes.deleted_ranges().count(), 1);
        writes.truncate(before);
        assert!(writes.own(0, b"bb").is_none() && writes.deleted_ranges().count() == 0);
        writes.truncate(Writes::default().mark());
        assert!(writes.own(0, b"a").is_none() && writes.own(2, b"a").is_none());
    }
}
