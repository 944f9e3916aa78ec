//! The input of a compaction: what is live of some tables.
//!
//! Each key is looked up in the index once. What that says then is what counts for the key, whatever comes meanwhile:
//! that is younger.
//!
//! Invariants:
//! 1. A live key comes with all of its versions that were there when the snapshots were listed, also those in tables
//!    that are no inputs: tables have no order among them, so what is made of a part of a key's versions could not be
//!    put in its place.
//! 2. Of a key that is not live in the inputs, only tombstones come: they are needed while tables have older entries.
//! 3. A version of a number that supersedes others comes with them, if only as a tombstone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::places::{Places, page_of};
use super::versions::is_cut;
use crate::base::entry::{EntryKind, EntryRef, EntrySource};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::cache::ReadContext;
use crate::location_index::{IndexVersion, NearLeaf};
use crate::table::Table;
use crate::tree::placed::newest_in;
use crate::tree::versioned::InputScan;

/// What a compaction notes of its keys, in their order.
#[derive(Default)]
pub(super) struct Notes {
    /// The live keys that have been read, and not yet been asked for.
    live: VecDeque<Vec<u8>>,
    /// Of those with versions in other tables than the inputs: all tables with versions.
    pub(super) stacks: BTreeMap<Vec<u8>, Vec<u32>>,
    /// The keys below whose operands there is nothing.
    open: VecDeque<Vec<u8>>,
}

impl Notes {
    /// Forgets the live keys up to one that has been written; `ended` gets those before it, of which nothing has been.
    /// Returns whether the key was live.
    pub(super) fn wrote(&mut self, key: Option<&[u8]>, ended: &mut Vec<Vec<u8>>) -> bool {
        while let Some(first) = self.live.pop_front() {
            if key.is_some_and(|key| *first >= *key) {
                let is_live = key.is_some_and(|key| *first == *key);
                if !is_live {
                    self.live.push_front(first);
                }
                return is_live;
            }
            ended.push(first);
        }
        false
    }

    /// Takes the stacks of the keys up to one.
    pub(super) fn take_stacks(&mut self, last: &[u8]) -> BTreeMap<Vec<u8>, Vec<u32>> {
        let behind: Vec<u8> = last.iter().copied().chain([0]).collect();
        let rest = self.stacks.split_off(&behind);
        std::mem::replace(&mut self.stacks, rest)
    }

    /// Whether nothing lies below a key's operands. Keys are asked for in their order.
    pub(super) fn is_open(&mut self, key: &[u8]) -> bool {
        while self.open.front().is_some_and(|first| **first < *key) {
            self.open.pop_front();
        }
        self.open.front().is_some_and(|first| **first == *key)
    }
}

/// An input, and its number.
pub(super) struct Input {
    pub(super) scan: InputScan,
    pub(super) number: u32,
}

/// A version, with its value in the buffer.
struct Found {
    seqno: Seqno,
    kind: EntryKind,
    start: usize,
    end: usize,
}

/// See the module's description.
pub(super) struct LiveEntries {
    places: Arc<Places>,
    inputs: Vec<Input>,
    /// The numbers of the inputs.
    numbers: Vec<u32>,
    /// The inputs that have not ended, as a heap: the least key first.
    heap: Vec<usize>,
    is_new: bool,
    /// What is younger does not count.
    newest: Seqno,
    key: Vec<u8>,
    /// Newest first.
    found: Vec<Found>,
    values: Vec<u8>,
    at: usize,
    notes: Arc<Mutex<Notes>>,
    /// Where the index has been read last.
    near: NearLeaf,
}

impl LiveEntries {
    /// `newest` is what the index had before the snapshots were listed, as far as whole memtables.
    pub(super) fn new(
        places: &Arc<Places>,
        inputs: Vec<Input>,
        newest: Seqno,
        notes: &Arc<Mutex<Notes>>,
    ) -> LiveEntries {
        LiveEntries {
            places: Arc::clone(places),
            numbers: inputs.iter().map(|input| input.number).collect(),
            inputs,
            heap: Vec::new(),
            is_new: true,
            newest,
            key: Vec::new(),
            found: Vec::new(),
            values: Vec::new(),
            at: 0,
            notes: Arc::clone(notes),
            near: NearLeaf::default(),
        }
    }

    fn start(&mut self) -> Result<()> {
        for (at, input) in self.inputs.iter_mut().enumerate() {
            input.scan.next()?;
            if input.scan.entry().is_some() {
                self.heap.push(at);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift(at);
        }
        self.is_new = false;
        Ok(())
    }

    fn key_of(&self, at: usize) -> &[u8] {
        let input = self.heap.get(at).and_then(|input| self.inputs[*input].scan.entry());
        input.map_or(&[], |entry| entry.key)
    }

    /// Lets the input at a place of the heap sink to where it belongs.
    fn sift(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            if left < self.heap.len() && self.key_of(left) < self.key_of(least) {
                least = left;
            }
            if right < self.heap.len() && self.key_of(right) < self.key_of(least) {
                least = right;
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    fn push(&mut self, seqno: Seqno, kind: EntryKind, value: &[u8]) {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.found.push(Found { seqno, kind, start, end: self.values.len() });
    }

    /// The versions of the key that the index names and that count.
    fn parts(&mut self) -> Result<(Vec<IndexVersion>, bool)> {
        let mut versions = self.places.versions_near(&self.key, &mut self.near)?;
        if self.places.is_partial() {
            return Err(partial());
        }
        let is_cut = is_cut(&versions);
        if versions.len() > 1 {
            let counts = |version: &IndexVersion| {
                let number = version.location.table;
                let is_old = |table: Arc<Table>| table.properties().seqno_max <= self.newest;
                self.numbers.contains(&number) || self.places.table(number).is_some_and(is_old)
            };
            let first = versions.iter().position(counts).unwrap_or(versions.len());
            versions.drain(..first);
        }
        Ok((versions, is_cut))
    }

    /// Reads the next key that has something to be merged.
    fn next_key(&mut self) -> Result<()> {
        self.found.clear();
        self.values.clear();
        self.at = 0;
        while self.found.is_empty() && !self.heap.is_empty() {
            let mut key = std::mem::take(&mut self.key);
            key.clear();
            key.extend_from_slice(self.key_of(0));
            self.key = key;
            let (parts, is_cut) = self.parts()?;
            let most = self.newest;
            let newest_of = |number: u32| {
                let part = parts.iter().find(|part| part.location.table == number)?;
                Some(newest_in(part.superseded).min(most))
            };
            while !self.heap.is_empty() && *self.key_of(0) == *self.key {
                let input = &mut self.inputs[self.heap[0]];
                let newest = newest_of(input.number);
                while let Some(entry) = input.scan.entry().filter(|entry| *entry.key == *self.key) {
                    let is_live = newest.is_some_and(|newest| entry.seqno <= newest);
                    if is_live || entry.kind == EntryKind::Delete {
                        let start = self.values.len();
                        self.values.extend_from_slice(entry.value);
                        let (seqno, kind, end) = (entry.seqno, entry.kind, self.values.len());
                        self.found.push(Found { seqno, kind, start, end });
                    }
                    input.scan.next()?;
                }
                if input.scan.entry().is_none() {
                    self.heap.swap_remove(0);
                }
                self.sift(0);
            }
            if parts.iter().any(|part| self.numbers.contains(&part.location.table)) {
                self.complete(&parts, is_cut)?;
            }
            if self.found.len() > 1 {
                // Of an operand that a compaction has folded over older versions, the result counts.
                self.found.sort_by_key(|found| (Reverse(found.seqno), found.kind.is_operand()));
                self.found.dedup_by_key(|found| found.seqno);
            }
            let is_open = self.found.last().is_some_and(|oldest| oldest.kind.is_operand());
            if is_open && !is_cut {
                self.notes.lock().open.push_back(self.key.clone());
            }
        }
        Ok(())
    }

    /// Adds what the inputs do not have of a live key.
    fn complete(&mut self, parts: &[IndexVersion], is_cut: bool) -> Result<()> {
        let mut is_stack = false;
        for part in parts {
            let number = part.location.table;
            if self.numbers.contains(&number) || planted(Bug::SlmOthersLeftOut) {
                continue;
            }
            is_stack = true;
            // Of what has just been replaced, somebody younger has come.
            let Some(table) = self.places.table(number) else { continue };
            let leaf = part.location.leaf.map(page_of);
            let newest = newest_in(part.superseded).min(self.newest);
            let (found, values) = (&mut self.found, &mut self.values);
            table.get_at(&self.key, leaf, newest, &ReadContext::blocking(), |entry| {
                let start = values.len();
                values.extend_from_slice(entry.value);
                let (seqno, kind, end) = (entry.seqno, entry.kind, values.len());
                found.push(Found { seqno, kind, start, end });
                ControlFlow::Continue(())
            })?;
        }
        for superseded in parts.iter().filter_map(|part| part.superseded) {
            let has = |found: &Found| found.seqno == superseded;
            if superseded <= self.newest && !self.found.iter().any(has) {
                self.push(superseded, EntryKind::Delete, &[]);
            }
        }
        debug_assert!(!is_cut, "all versions of a key are known");
        let mut notes = self.notes.lock();
        notes.live.push_back(self.key.clone());
        if is_stack {
            let tables = parts.iter().map(|part| part.location.table).collect();
            notes.stacks.insert(self.key.clone(), tables);
        }
        Ok(())
    }
}

/// Nothing is dropped by an index that may lack keys.
fn partial() -> Error {
    Error::invalid("an index lacks keys; nothing of its keyspace is compacted before it has them")
}

impl EntrySource for LiveEntries {
    fn next(&mut self) -> Result<()> {
        if self.is_new {
            self.start()?;
        }
        self.at += 1;
        if self.at < self.found.len() {
            return Ok(());
        }
        self.next_key()
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        let Found { seqno, kind, start, end } = *self.found.get(self.at)?;
        Some(EntryRef { key: &self.key, seqno, kind, value: &self.values[start..end] })
    }
}
