//! The newest version of each key of a keyspace, from tables that may be damaged and the journal.
//!
//! Invariants:
//! 1. When a key is handed out, every damage of a table that may hold a version of it is known.
//! 2. Damage outside the ranges in which a table counts is none.
//! 3. A table is read once, from its beginning to its end, whatever number of ranges it counts in.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, btree_map};
use std::iter::Peekable;

use super::super::damage::{DamagedRange, after};
use super::source::{Source, SourceKeyspace, Version};
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::merge::{Base, Operands, refuse_range_delete};
use crate::table::{LostPart, TableSalvage};
use crate::tree::RepairRange;

/// A table on its way.
struct Input {
    /// `None`: it could not be opened.
    scan: Option<TableSalvage>,
    /// Whether the scan has been begun.
    started: bool,
    /// The ranges in which something of it is lost.
    lost: Vec<(DamagedRange, Error)>,
    /// Why it could not be opened.
    failed: Option<Error>,
}

impl Input {
    fn open(source: &Source, id: FileId) -> Result<Input> {
        let (scan, failed) = match TableSalvage::open(&source.files, id) {
            Ok(scan) => (Some(scan), None),
            Err(error @ Error::UnsupportedVersion { .. }) => return Err(error),
            Err(error) => (None, Some(error)),
        };
        Ok(Input { scan, started: false, lost: Vec::new(), failed })
    }

    /// A key that no entry that is still to come is before; `None` if none is to come.
    fn bound(&self) -> Option<Vec<u8>> {
        let scan = self.scan.as_ref()?;
        match self.started {
            true => scan.entry().map(|entry| entry.key.to_vec()),
            false => Some(scan.properties().map_or(Vec::new(), |it| it.first_key.clone())),
        }
    }

    /// Goes one entry on.
    fn advance(&mut self) -> Result<()> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        self.started = true;
        let is_operand = scan.entry().is_some_and(|entry| entry.kind.is_operand());
        scan.next()?;
        let lost = scan.take_lost();
        if lost.is_empty() {
            return Ok(());
        }
        let first = scan.properties().map(|it| it.first_key.clone()).unwrap_or_default();
        self.lost.extend(lost.into_iter().map(|LostPart { after: last, upto, error }| {
            let lower = match last {
                // What the operand is applied to may be lost.
                Some(key) if is_operand => key,
                Some(key) => after(&key),
                None => first.clone(),
            };
            (DamagedRange { lower, upper: upto.map(|key| after(&key)) }, error)
        }));
        Ok(())
    }
}

/// What a key has in the result.
pub(super) enum Found {
    /// A value.
    Value(Vec<u8>),
    /// Merge operands, oldest first, over what they are to be applied to: they cannot be folded.
    Operands { base: Option<Vec<u8>>, operands: Vec<Vec<u8>>, error: Error },
}

/// Damage of one file, in one range.
struct Damage {
    file: Option<FileId>,
    range: DamagedRange,
    error: Error,
}

/// See the module's description.
pub(super) struct Newest<'a> {
    source: &'a Source,
    keyspace: &'a SourceKeyspace,
    inputs: BTreeMap<FileId, Input>,
    replayed: Peekable<btree_map::Iter<'a, Vec<u8>, Vec<Version>>>,
    /// How many parts have been begun.
    begun: usize,
    /// The part of the tree that is being read.
    part: Option<&'a RepairRange>,
    /// Its tables by the next key that each may have.
    heap: BinaryHeap<Reverse<(Vec<u8>, FileId)>>,
    damage: Vec<Damage>,
    /// Where the damage of this part begins in `damage`.
    damage_here: usize,
}

impl<'a> Newest<'a> {
    pub(super) fn new(source: &'a Source, keyspace: &'a SourceKeyspace) -> Newest<'a> {
        Newest {
            source,
            keyspace,
            inputs: BTreeMap::new(),
            replayed: keyspace.replayed.versions.iter().peekable(),
            begun: 0,
            part: None,
            heap: BinaryHeap::new(),
            damage: Vec::new(),
            damage_here: 0,
        }
    }

    /// The next key that has a value or operands, and those.
    pub(super) fn next(&mut self) -> Result<Option<(Vec<u8>, Found)>> {
        let mut versions = Vec::new();
        loop {
            let Some(part) = self.part else {
                if !self.begin_part()? {
                    return Ok(None);
                }
                continue;
            };
            let in_tables = self.heap.peek().map(|Reverse((key, _))| key);
            let in_journal = self.replayed.peek().map(|(key, _)| *key);
            let key = match (in_tables, in_journal) {
                (Some(a), Some(b)) => a.min(b).clone(),
                (Some(key), None) | (None, Some(key)) => key.clone(),
                (None, None) => {
                    self.part = None;
                    continue;
                }
            };
            if part.upper.as_ref().is_some_and(|upper| key >= *upper) {
                self.part = None;
                continue;
            }
            versions.clear();
            self.gather(&key, &mut versions)?;
            match self.value(&key, &mut versions) {
                Ok(Some(found)) => return Ok(Some((key, found))),
                Ok(None) => {}
                Err(error) => {
                    let range = DamagedRange::of_key(&key);
                    self.damage.push(Damage { file: None, range, error });
                }
            }
        }
    }

    /// Whether a newer version of the key that was handed out last may be lost.
    pub(super) fn is_doubtful(&self, key: &[u8]) -> bool {
        let here = self.damage.get(self.damage_here..).unwrap_or_default();
        here.iter().any(|damage| damage.range.contains(key))
    }

    /// All damage, in the order in which it was met.
    pub(super) fn into_damage(self) -> Vec<(DamagedRange, Error)> {
        self.damage.into_iter().map(|damage| (damage.range, damage.error)).collect()
    }

    /// Begins the next part; false if there is none.
    fn begin_part(&mut self) -> Result<bool> {
        let Some(part) = self.keyspace.repair_ranges.get(self.begun) else { return Ok(false) };
        self.begun += 1;
        self.part = Some(part);
        self.heap.clear();
        self.damage_here = self.damage.len();
        for &id in &part.tables {
            let input = match self.inputs.entry(id) {
                btree_map::Entry::Occupied(found) => found.into_mut(),
                btree_map::Entry::Vacant(free) => free.insert(Input::open(self.source, id)?),
            };
            let known = input.lost.clone();
            if let Some(error) = &input.failed {
                let (lower, upper) = (part.lower.clone(), part.upper.clone());
                let error = error.clone();
                self.note(id, &DamagedRange { lower, upper }, &error);
                continue;
            }
            for (range, error) in &known {
                self.note(id, range, error);
            }
            self.push(id);
        }
        // A table may be named twice.
        let mut waiting = std::mem::take(&mut self.heap).into_sorted_vec();
        waiting.dedup();
        self.heap = waiting.into();
        Ok(true)
    }

    fn push(&mut self, id: FileId) {
        if let Some(bound) = self.inputs.get(&id).and_then(Input::bound) {
            self.heap.push(Reverse((bound, id)));
        }
    }

    /// Notes damage of a table as far as it lies in this part.
    fn note(&mut self, id: FileId, range: &DamagedRange, error: &Error) {
        let Some(part) = self.part else { return };
        let Some(range) = range.within(&part.lower, part.upper.as_deref()) else { return };
        // The same damage in the part before.
        let goes_on = |damage: &&mut Damage| {
            damage.file == Some(id)
                && damage.range.upper.as_deref() == Some(&range.lower)
                && damage.error.to_string() == error.to_string()
        };
        let joined = self.damage.iter_mut().rev().take(64).find(goes_on);
        match joined {
            Some(damage) => {
                damage.range.upper = range.upper;
                // It counts for this part too.
                let at = self.damage.iter().position(|damage| damage.file == Some(id));
                self.damage_here = self.damage_here.min(at.unwrap_or(0));
            }
            None => self.damage.push(Damage { file: Some(id), range, error: error.clone() }),
        }
    }

    /// Moves a table on, and notes what damage that shows.
    fn advance(&mut self, id: FileId) -> Result<()> {
        let Some(input) = self.inputs.get_mut(&id) else { return Ok(()) };
        let known = input.lost.len();
        input.advance()?;
        let new: Vec<_> = input.lost.get(known..).unwrap_or_default().to_vec();
        for (range, error) in &new {
            self.note(id, range, error);
        }
        Ok(())
    }

    /// Takes all versions of a key, and goes on to the key after it.
    fn gather(&mut self, key: &[u8], versions: &mut Vec<Version>) -> Result<()> {
        while let Some(Reverse((bound, id))) = self.heap.peek()
            && **bound == *key
        {
            let id = *id;
            self.heap.pop();
            let lower = self.part.map(|part| part.lower.clone()).unwrap_or_default();
            while let Some(input) = self.inputs.get(&id) {
                if input.started {
                    let entry = input.scan.as_ref().and_then(|scan| scan.entry());
                    let Some(entry) = entry else { break };
                    // What lies before the part does not count in any that is still to come.
                    let passed = *entry.key < *lower;
                    if !passed && *entry.key != *key {
                        break;
                    }
                    if !passed {
                        let (seqno, kind, value) = (entry.seqno, entry.kind, entry.value.to_vec());
                        versions.push(Version { seqno, kind, value });
                    }
                }
                self.advance(id)?;
            }
            self.push(id);
        }
        if self.replayed.peek().is_some_and(|(next, _)| ***next == *key)
            && let Some((_, found)) = self.replayed.next()
        {
            versions.extend(found.iter().cloned());
        }
        Ok(())
    }

    /// What the versions make of the key.
    fn value(&self, key: &[u8], versions: &mut Vec<Version>) -> Result<Option<Found>> {
        // Of one number there may be an operand and what a merge of it has made: that is whole.
        versions.sort_by_key(|version| (Reverse(version.seqno), version.kind.is_operand()));
        versions.dedup_by_key(|version| version.seqno);
        let deleted = self.keyspace.range_deletes.newest(key, Seqno::MAX);
        versions.retain(|version| Some(version.seqno) > deleted);
        let context = &self.keyspace.merge;
        let mut operands = Operands::default();
        let mut base = Base::Nothing;
        for version in versions.iter() {
            base = match version.kind {
                EntryKind::Put => Base::Value(&version.value),
                EntryKind::PutBlob => Base::Blob(&version.value),
                EntryKind::Delete => Base::Nothing,
                EntryKind::Merge | EntryKind::MergeBlob => {
                    operands.push(&version.value, version.kind.is_blob());
                    continue;
                }
                EntryKind::RangeDelete => {
                    return Err(refuse_range_delete(key));
                }
            };
            break;
        }
        if operands.is_empty() {
            return Ok(self.base_value(base)?.map(Found::Value));
        }
        match operands.fold(context, key, base, true) {
            Ok(value) => Ok(Some(Found::Value(value))),
            // Without the operator's name they cannot be written either.
            Err(error @ Error::Merge { .. }) if context.operator_name.is_some() => {
                let base = self.base_value(base)?;
                let operands = versions.iter().take_while(|version| version.kind.is_operand());
                let operands = operands.map(|version| match version.kind.is_blob() {
                    true => self.read_blob(&version.value),
                    false => Ok(version.value.clone()),
                });
                let mut operands = operands.collect::<Result<Vec<_>>>()?;
                operands.reverse();
                Ok(Some(Found::Operands { base, operands, error }))
            }
            Err(error) => Err(error),
        }
    }

    fn base_value(&self, base: Base<'_>) -> Result<Option<Vec<u8>>> {
        match base {
            Base::Nothing => Ok(None),
            Base::Value(value) => Ok(Some(value.to_vec())),
            Base::Blob(pointer) => self.read_blob(pointer).map(Some),
        }
    }

    fn read_blob(&self, pointer: &[u8]) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        if let Some(blobs) = &self.keyspace.merge.blobs {
            blobs.read_blob(pointer, &mut value)?;
        }
        Ok(value)
    }
}
