//! How a change of the guards is written in the manifest: those that are new, and the root. What is not
//! new is named by its number (`docs/format/flsm-edit.md`).
//!
//! Invariants:
//! 1. An edit names only guards that it or an earlier edit of the keyspace defines.
//! 2. Numbers grow: a number is never defined twice.
//! 3. A guard's upper bound is not written: it is the next sibling's lower bound, or the parent's upper.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::guard::{EXTENT_LIMIT, Extent, Fragment, Guard, GuardId, Key, Stretch as Part};
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::table::Table;
use crate::tree::Stretch;

const EDIT_VERSION: u8 = 1;

/// The fragment holds one version a key and no tombstone.
const FLAG_SETTLED: u8 = 1;

/// Writes an edit that defines every guard below `root` that `is_new`, children first.
pub(super) fn encode(root: &Arc<Guard>, is_new: &dyn Fn(&Guard) -> bool) -> Vec<u8> {
    let mut guards = Vec::new();
    gather(root, is_new, &mut guards);
    let mut out = vec![EDIT_VERSION];
    put_varint(&mut out, guards.len() as u64);
    for guard in guards {
        put_varint(&mut out, guard.id.0);
        put_varint(&mut out, u64::from(guard.height));
        put_bytes(&mut out, &guard.lower);
        put_varint(&mut out, guard.fragments.len() as u64);
        for fragment in &guard.fragments {
            put_varint(&mut out, fragment.table.id().0);
            out.push(if fragment.settled { FLAG_SETTLED } else { 0 });
            put_varint(&mut out, fragment.extent.bytes);
            put_varint(&mut out, fragment.extent.entries);
            put_varint(&mut out, fragment.first);
        }
        put_varint(&mut out, guard.children.len() as u64);
        for child in &guard.children {
            put_varint(&mut out, child.id.0);
        }
    }
    put_varint(&mut out, root.id.0);
    out
}

fn gather<'a>(
    guard: &'a Arc<Guard>,
    is_new: &dyn Fn(&Guard) -> bool,
    guards: &mut Vec<&'a Arc<Guard>>,
) {
    // A guard above a new one is new: the path was copied.
    if !is_new(guard) {
        return;
    }
    guard.children.iter().for_each(|child| gather(child, is_new, guards));
    guards.push(guard);
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FragmentRecord {
    table: FileId,
    settled: bool,
    stretch: Part,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GuardRecord {
    /// Where it begins in the manifest.
    offset: u64,
    height: u32,
    lower: Vec<u8>,
    fragments: Vec<FragmentRecord>,
    children: Vec<u64>,
}

/// What a sequence of edits has defined.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    guards: BTreeMap<u64, GuardRecord>,
    root: u64,
    /// Where the manifest says which guard is the root.
    root_offset: u64,
}

/// More levels do not exist; a damaged manifest must not make recovery recurse without end.
const HEIGHT_MAX: u32 = 64;

/// Opens a table that a guard names.
pub(super) type OpenTable<'a> = dyn FnMut(FileId) -> Result<Arc<Table>> + 'a;

impl Recovered {
    /// Applies one edit, which begins at `offset` of `file`.
    ///
    /// # Errors
    /// `Corruption` if it cannot be an edit, `UnsupportedVersion` if it is a later one's.
    pub(super) fn apply(&mut self, edit: &[u8], file: &Path, offset: u64) -> Result<()> {
        let mut decoder = Decoder::new(edit, file, offset);
        let version = decoder.u8("flsm edit version")?;
        if version != EDIT_VERSION {
            return Err(Error::UnsupportedVersion {
                file: file.to_path_buf(),
                found: u32::from(version),
                supported: u32::from(EDIT_VERSION),
            });
        }
        for _ in 0..decoder.count(5, "flsm guard count")? {
            let (id, guard) = decode_guard(&mut decoder)?;
            self.guards.insert(id, guard);
        }
        self.root_offset = decoder.offset();
        self.root = decoder.varint("flsm root number")?;
        if !decoder.is_empty() {
            return Err(decoder.corrupt("flsm edit", "its end", "more bytes"));
        }
        Ok(())
    }

    /// The highest number defined.
    pub(super) fn last_number(&self) -> u64 {
        self.guards.keys().next_back().copied().unwrap_or(0)
    }

    /// The tables of the tree that [`Recovered::build`] will ask for, if nothing is wrong, each once.
    pub(super) fn tables_in_use(&self) -> BTreeSet<FileId> {
        let (mut tables, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut guards = vec![self.root];
        while let Some(id) = guards.pop() {
            let Some(guard) = self.guards.get(&id).filter(|_| seen.insert(id)) else { continue };
            tables.extend(guard.fragments.iter().map(|fragment| fragment.table));
            guards.extend(&guard.children);
        }
        tables
    }

    /// The ranges of the last level's guards, each with the tables that reach into it.
    ///
    /// # Errors
    /// `Corruption` if a guard is undefined.
    pub(super) fn stretches(&self, file: &Path) -> Result<Vec<Stretch>> {
        let mut stretches: Vec<Stretch> = Vec::new();
        // A guard, where it is named, and the tables of the guards above.
        let mut waiting = vec![(self.root, self.root_offset, Vec::new())];
        // No more guards are looked at than there are, should they name each other in a circle.
        let mut left = self.guards.len();
        while let Some((id, named_at, above)) = waiting.pop() {
            let guard = self.record(id, named_at, file)?;
            left = left.checked_sub(1).ok_or_else(|| named_twice(file, named_at, id))?;
            let mut tables: Vec<FileId> = above;
            tables.extend(guard.fragments.iter().map(|fragment| fragment.table));
            if guard.children.is_empty() {
                stretches.push(Stretch { lower: guard.lower.clone(), upper: None, tables });
            } else {
                let below = guard.children.iter();
                waiting.extend(below.map(|&child| (child, guard.offset, tables.clone())));
            }
        }
        stretches.sort_by(|a, b| a.lower.cmp(&b.lower));
        let lowers: Vec<Vec<u8>> = stretches.iter().map(|stretch| stretch.lower.clone()).collect();
        for (stretch, next) in stretches.iter_mut().zip(lowers.into_iter().skip(1)) {
            stretch.upper = Some(next);
        }
        Ok(stretches)
    }

    /// Builds the tree.
    ///
    /// # Errors
    /// `Corruption` if the root or anything below it is undefined or out of order, and what `open`
    /// says.
    pub(super) fn build(&self, file: &Path, open: &mut OpenTable<'_>) -> Result<Arc<Guard>> {
        let height = self.record(self.root, self.root_offset, file)?.height;
        let all_keys = (Key::from(&[][..]), None);
        let mut building = Building { recovered: self, file, open, built: BTreeSet::new() };
        building.guard(self.root, self.root_offset, height, all_keys)
    }

    /// The guard `id`, which the manifest names at `named_at`.
    fn record(&self, id: u64, named_at: u64, file: &Path) -> Result<&GuardRecord> {
        let defined = "one that an edit defines";
        let missing = || Error::corruption(file, named_at, "flsm guard number", defined, id);
        self.guards.get(&id).ok_or_else(missing)
    }
}

fn named_twice(file: &Path, named_at: u64, id: u64) -> Error {
    Error::corruption(file, named_at, "flsm guard number", "each guard below one other", id)
}

/// The tree in the making, from the root down: each guard has the height and the range that the guard above leaves
/// for it.
struct Building<'a, 'b> {
    recovered: &'a Recovered,
    file: &'a Path,
    open: &'a mut OpenTable<'b>,
    built: BTreeSet<u64>,
}

impl Building<'_, '_> {
    /// Builds the guard `id`, which the manifest names at `named_at`, and what is below it.
    fn guard(
        &mut self,
        id: u64,
        named_at: u64,
        height: u32,
        (lower, upper): (Key, Option<Key>),
    ) -> Result<Arc<Guard>> {
        let (recovered, file) = (self.recovered, self.file);
        let record = recovered.record(id, named_at, file)?;
        if !self.built.insert(id) {
            return Err(named_twice(file, named_at, id));
        }
        if record.height != height
            || height > HEIGHT_MAX
            || (height == 0) != record.children.is_empty()
        {
            return Err(Error::corruption(
                file,
                record.offset,
                "flsm guard height",
                format_args!("{height}, one below the guard above; 0 if nothing is below it"),
                format_args!("{}, {} children", record.height, record.children.len()),
            ));
        }
        if *record.lower != *lower {
            return Err(Error::corruption(
                file,
                record.offset,
                "flsm guard key",
                format_args!("\"{}\", the first of its range", lower.escape_ascii()),
                format_args!("\"{}\"", record.lower.escape_ascii()),
            ));
        }
        let mut guard = Guard::empty(height, lower, upper);
        guard.id = GuardId(id);
        for fragment in &record.fragments {
            let table = (self.open)(fragment.table)?;
            let (Part { first, extent }, settled) = (fragment.stretch, fragment.settled);
            guard.fragments.push(Fragment { table, extent, first, settled });
        }
        let mut lowers: Vec<Key> = Vec::with_capacity(record.children.len());
        for &child in &record.children {
            let child = recovered.record(child, record.offset, file)?;
            let key = Key::from(&*child.lower);
            let ascends = match lowers.last() {
                Some(last) => *last < key,
                None => key == guard.lower,
            };
            if !ascends || guard.upper.as_ref().is_some_and(|upper| *upper <= key) {
                return Err(Error::corruption(
                    file,
                    child.offset,
                    "flsm guard key",
                    "ascending keys in the range of the guard above",
                    format_args!("\"{}\"", key.escape_ascii()),
                ));
            }
            lowers.push(key);
        }
        for (at, &child) in record.children.iter().enumerate() {
            let upper = lowers.get(at + 1).cloned().or_else(|| guard.upper.clone());
            let range = (Arc::clone(&lowers[at]), upper);
            guard.children.push(self.guard(child, record.offset, height - 1, range)?);
        }
        Ok(Arc::new(guard))
    }
}

fn decode_guard(decoder: &mut Decoder<'_>) -> Result<(u64, GuardRecord)> {
    let offset = decoder.offset();
    let id = decoder.varint("flsm guard number")?;
    let height = decoder.varint("flsm guard height")?;
    let height = u32::try_from(height)
        .map_err(|_| decoder.corrupt("flsm guard height", "a small number", height))?;
    let lower = decoder.byte_string("flsm guard key")?.to_vec();
    let count = decoder.count(5, "flsm fragment count")?;
    let mut fragments = Vec::with_capacity(count);
    for _ in 0..count {
        let table = FileId(decoder.varint("flsm table number")?);
        let settled = match decoder.u8("flsm fragment flags")? {
            0 => false,
            FLAG_SETTLED => true,
            other => return Err(decoder.corrupt("flsm fragment flags", "0 or 1", other)),
        };
        let bytes = decoder.varint("flsm fragment bytes")?;
        let entries = decoder.varint("flsm fragment entries")?;
        let first = decoder.varint("flsm fragment place")?;
        // Sums of these are made without looking.
        if bytes | entries | first >= EXTENT_LIMIT {
            return Err(decoder.corrupt(
                "flsm fragment size",
                "below 2^48",
                bytes.max(entries).max(first),
            ));
        }
        let stretch = Part { first, extent: Extent { bytes, entries } };
        fragments.push(FragmentRecord { table, settled, stretch });
    }
    let count = decoder.count(1, "flsm child count")?;
    let children =
        (0..count).map(|_| decoder.varint("flsm child number")).collect::<Result<Vec<u64>>>()?;
    Ok((id, GuardRecord { offset, height, lower, fragments, children }))
}

#[cfg(any(test, feature = "fuzz"))]
impl crate::tree::edits::Edits for Recovered {
    fn take(&mut self, edit: &[u8], file: &Path) -> Result<()> {
        self.apply(edit, file, 0)
    }

    fn rewritten(&self, file: &Path) -> Result<Vec<u8>> {
        // A fragment needs its file; a tree without any is built.
        let mut refuse = |_| Err(Error::corruption(file, 0, "table", "a file", "none"));
        Ok(encode(&self.build(file, &mut refuse)?, &|_| true))
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
