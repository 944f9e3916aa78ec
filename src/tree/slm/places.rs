//! Where the keys of a tree are: the location index, and the tables that its locations name by number.
//!
//! The index follows the tree: a table is *pending* from before the first version that has it until all of its keys are
//! in the index. Readers of such a version ask the table's list of keys first. Several tables may be pending; they are
//! put into the index one after the other, the oldest first.
//!
//! Invariants:
//! 1. The index names tables of the newest version alone. A table has its number from before the first location names
//!    it until no reader can have read one that does.
//! 2. A key's versions in the index are those that somebody may need: the newest, those below operands, and those
//!    that a registered snapshot needed when they were superseded. They are all in the index, or, if they are many, in
//!    `many`.
//! 3. The live count of a table is at least the number of versions that name it. No location is added that names a
//!    table whose count is asked for ([`Places::live`]).
//! 4. Of the keys that a snapshot's reader does not find in memtables and in the pending table, the index says which
//!    versions the reader sees, if the snapshot is one that it [covers](State::covers).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::index_file::IndexFile;
use super::level::Level;
use super::live_ranks::LiveRanks;
use super::marked::Marked;
use super::pending::{Pending, Receiving};
use super::registry::Registry;
use super::room::{Lacking, RECORD_BYTES, UsualEntry};
use super::versions::is_cut;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{ArcSwap, Mutex, RwLock};
use crate::cache::PagePointer;
use crate::location_index::{
    IndexVersion, LeafAt, LeafEntries, LeafPlace, Load, LocationIndex, NearLeaf, Writing, pack,
    versions_max,
};
use crate::tree::description::{GroupDescription, named};
use crate::tree::{MappedIndex, NewEntries};

/// A key, and its versions.
pub(super) type KeyVersions = (Vec<u8>, Vec<IndexVersion>);

/// The second half of a rebuild, which the memtables that come meanwhile help with.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The first half is over.
    pub(super) is_begun: bool,
    /// The tables that are no longer missing.
    pub(super) received: BTreeSet<FileId>,
    /// The last one of them, if not all of its keys are in the index.
    pub(super) receiving: Option<Receiving>,
    /// Why somebody who helped has failed, and the rebuild with him.
    pub(super) failed: Option<Error>,
}

/// What the last rebuild began with, unless it succeeded.
pub(super) struct Rebuilt {
    /// The number that the tables went up to.
    pub(super) flushed: Seqno,
    /// The snapshots, ascending.
    pub(super) held: Vec<Seqno>,
    /// The shortest key that it found no room for.
    pub(super) without_room: Option<Vec<u8>>,
}

/// What readers need to know beside the index.
#[derive(Clone, Default)]
pub(super) struct State {
    /// The pending tables, the oldest first.
    pub(super) pending: Vec<Arc<Pending>>,
    /// The index has everything up to this number.
    pub(super) settled: Seqno,
    /// It has nothing beyond this number.
    floor: Seqno,
    /// The snapshots below for which all changes have kept what they need, ascending.
    kept: Vec<Seqno>,
    /// The index may lack keys: there was no room for one, or it could not be changed.
    is_partial: bool,
    /// Grows whenever that changes: what was read of the index before says nothing afterwards.
    epoch: u64,
}

impl State {
    fn add(&mut self, pending: Arc<Pending>) {
        let at = self.pending.partition_point(|other| other.flushed <= pending.flushed);
        self.pending.insert(at, pending);
    }

    /// The pending tables that a version has which ends at `flushed`, the oldest first.
    pub(super) fn pending_in(&self, flushed: Seqno) -> &[Arc<Pending>] {
        &self.pending[..self.pending.partition_point(|pending| pending.flushed <= flushed)]
    }

    /// Whether the index has what a reader at this number needs.
    pub(super) fn covers(&self, snapshot: Seqno) -> bool {
        planted(Bug::SlmCoversAny)
            || snapshot >= self.floor
            || self.kept.binary_search(&snapshot).is_ok()
    }

    /// A change that goes up to `floor` and keeps what `snapshots` need begins. Their last is the newest state.
    fn change(&mut self, floor: Seqno, snapshots: &[Seqno]) {
        let kept = |snapshot: &&Seqno| self.covers(**snapshot);
        self.kept = snapshots.iter().filter(kept).copied().collect();
        self.floor = self.floor.max(floor);
    }

    /// A change begins that drops what none of `snapshots` needs, of entries that were there when they were listed.
    fn keep_for(&mut self, snapshots: &[Seqno]) {
        let newest = snapshots.last().copied().unwrap_or_default();
        self.kept.retain(|kept| *kept > newest || snapshots.binary_search(kept).is_ok());
    }
}

/// See the module's description.
pub(in crate::tree) struct Places {
    index: LocationIndex,
    file: Option<IndexFile>,
    is_resumed: bool,
    /// What the lists of pending tables may take, as far as they are more than a few.
    pub(super) lists_bytes_max: usize,
    pub(super) registry: RwLock<Registry>,
    /// Locked after the registry.
    pub(super) ranks: Mutex<LiveRanks>,
    state: ArcSwap<State>,
    /// Held by whoever changes `state`. The tables that are becoming part of the tree, and are not pending: the index was
    /// partial.
    changes: Mutex<Vec<Arc<Pending>>>,
    /// The tables that are being put into the index.
    pub(super) receiving: Mutex<Option<Receiving>>,
    /// Keys with more versions than the index can hold, which has the newest of them then.
    pub(super) many: Mutex<BTreeMap<Vec<u8>, Vec<IndexVersion>>>,
    /// The index has become partial since a rebuild began.
    has_lacked_room: AtomicBool,
    pub(super) lacking: Mutex<Lacking>,
    pub(super) usual: Mutex<UsualEntry>,
    pub(super) rebuilt: Mutex<Option<Rebuilt>>,
    /// Locked before `changes`.
    pub(super) catching_up: Mutex<CatchUp>,
    /// A table has had operands.
    pub(super) has_operands: AtomicBool,
    /// The number of versions that only snapshots need, and where they are.
    superseded: AtomicU64,
    pub(super) marked: Mutex<Marked>,
    /// What was searched or merged last was searched.
    pub(super) has_pruned: AtomicBool,
}

/// Changes of the live counts and of the number of superseded versions, counted together.
#[derive(Default)]
pub(super) struct Counts {
    live: BTreeMap<u32, i64>,
    superseded: i64,
}

impl Counts {
    fn count(&mut self, versions: &[IndexVersion], by: i64) {
        for version in versions {
            *self.live.entry(version.location.table).or_default() += by;
            self.superseded += if version.superseded.is_some() { by } else { 0 };
        }
    }
}

impl Places {
    /// Places in an index. `file`: its file, if it has one. `is_resumed`: it is not empty.
    pub(super) fn new(index: LocationIndex, file: Option<IndexFile>, is_resumed: bool) -> Places {
        Places {
            index,
            file,
            is_resumed,
            lists_bytes_max: 0,
            registry: RwLock::default(),
            ranks: Mutex::default(),
            state: ArcSwap::from_pointee(State::default()),
            changes: Mutex::default(),
            receiving: Mutex::default(),
            many: Mutex::default(),
            has_lacked_room: AtomicBool::new(false),
            lacking: Mutex::default(),
            usual: Mutex::default(),
            rebuilt: Mutex::default(),
            catching_up: Mutex::default(),
            has_operands: AtomicBool::new(false),
            superseded: AtomicU64::new(0),
            marked: Mutex::default(),
            has_pruned: AtomicBool::new(false),
        }
    }

    /// From now on, lists of pending tables may take so much.
    pub(super) fn with_lists_bytes_max(self, lists_bytes_max: usize) -> Places {
        Places { lists_bytes_max, ..self }
    }

    /// The number of the index's file; 0 if it has none.
    pub(super) fn file_id(&self) -> FileId {
        self.file.as_ref().map_or(FileId(0), IndexFile::id)
    }

    /// The name of the index's file.
    pub(super) fn file_path(&self) -> Option<PathBuf> {
        self.file.as_ref().map(IndexFile::path)
    }

    /// The index has all that the level has, and nothing changes any more.
    pub(super) fn close(&self, level: &Level, flushed: Seqno) {
        let _writing = self.index.write();
        let is_in_memory = !self.many.lock().is_empty();
        let has_all = self.state.load().pending.is_empty() && !self.is_partial() && !is_in_memory;
        if let Some(file) = self.file.as_ref().filter(|_| has_all) {
            file.close(level, flushed);
        }
    }

    /// The state; to be asked before the index.
    pub(super) fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// Whether what the index has said since `before` was the state holds for a reader at `snapshot`.
    pub(super) fn covers(&self, before: &State, snapshot: Seqno) -> bool {
        let now = self.state.load();
        !now.is_partial && now.epoch == before.epoch && now.covers(snapshot)
    }

    fn change_state(&self, change: impl FnOnce(&mut State)) {
        let changes = self.changes.lock();
        self.store_state(&changes, change);
    }

    fn store_state(&self, _changes: &[Arc<Pending>], change: impl FnOnce(&mut State)) {
        let mut state = State::clone(&self.state.load());
        change(&mut state);
        self.state.store(Arc::new(state));
    }

    /// Whether tables are all still pending.
    pub(super) fn are_pending(&self, pending: &[Arc<Pending>]) -> bool {
        let now = self.state.load();
        let is_pending = |it: &Arc<Pending>| now.pending.iter().any(|other| Arc::ptr_eq(it, other));
        pending.is_empty() || pending.iter().all(is_pending)
    }

    /// A table is about to become part of the tree.
    pub(super) fn begin(&self, pending: Arc<Pending>) {
        self.usual.lock().add(&pending.table);
        let mut changes = self.changes.lock();
        match self.is_partial() {
            true => changes.push(pending),
            false => self.store_state(&changes, |state| state.add(pending)),
        }
    }

    /// A table has become part of the tree, or could not.
    pub(super) fn end(&self, number: u32, is_part: bool) {
        let mut changes = self.changes.lock();
        let is_it = |pending: &mut Arc<Pending>| pending.number == number;
        for pending in changes.extract_if(.., is_it).filter(|_| is_part) {
            self.note_lacking(&pending);
        }
        let state = self.state.load();
        if is_part {
            let pending = state.pending.iter().filter(|pending| pending.number == number);
            pending.for_each(|pending| pending.is_part.store(true, Ordering::SeqCst));
        } else {
            let is_other = |pending: &Arc<Pending>| pending.number != number;
            self.store_state(&changes, |state| state.pending.retain(is_other));
        }
    }

    /// The index cannot be relied on: the tables are asked.
    pub(super) fn distrust(&self) {
        let mut changes = self.changes.lock();
        self.file.iter().for_each(IndexFile::distrust);
        self.has_lacked_room.store(true, Ordering::SeqCst);
        // Whoever rebuilds the index does not see these yet.
        let state = self.state.load();
        let is_part = |pending: &&Arc<Pending>| pending.is_part.load(Ordering::SeqCst);
        state.pending.iter().filter(is_part).for_each(|pending| self.note_lacking(pending));
        changes.extend(state.pending.iter().filter(|pending| !is_part(pending)).cloned());
        self.store_state(&changes, |state| {
            state.pending.clear();
            state.is_partial = true;
            state.epoch += 1;
        });
    }

    /// The index lacks what it does not have of a pending table.
    fn note_lacking(&self, pending: &Pending) {
        self.lacking.lock().add(pending.keys_left());
    }

    /// What the index may need on the disk for what comes, for what is pending, and for what it lacks.
    pub(super) fn room_bytes(&self, new: NewEntries) -> u64 {
        if self.file.is_none() {
            return 0;
        }
        let usual = *self.usual.lock();
        let entry_bytes = new.data_bytes.checked_div(new.entries).unwrap_or(usual.entry_bytes);
        let more = new.record_bytes / (entry_bytes + RECORD_BYTES);
        // How much of the data keys are is not known. They are as long as the last ones.
        let mut keys = new.entries + more;
        let mut key_bytes = keys * usual.key_bytes.min(entry_bytes);
        let state = self.state.load();
        let left = state.pending.iter().map(|pending| pending.keys_left());
        for (more_keys, more_bytes) in left.chain([self.lacking.lock().known]) {
            (keys, key_bytes) = (keys + more_keys, key_bytes + more_bytes);
        }
        self.index.room_bytes(keys, key_bytes)
    }

    /// The index, which is partial, is about to be built anew, from tables up to a number and for these snapshots. No other
    /// job changes it.
    pub(super) fn begin_rebuild(&self, flushed: Seqno, snapshots: &[Seqno]) {
        *self.receiving.lock() = None;
        self.has_lacked_room.store(false, Ordering::SeqCst);
        self.lacking.lock().begin_rebuild();
        self.file.iter().for_each(IndexFile::distrust);
        self.forget_many(BTreeMap::clear);
        self.superseded.store(0, Ordering::SeqCst);
        {
            let registry = self.registry.write();
            // Which of the keys have versions that are kept is not known before they have been searched once.
            let tables = || registry.tables.values().map(|numbered| &numbered.table);
            let first = tables().map(|table| table.first_key()).min().unwrap_or_default();
            let last = tables().map(|table| table.last_key()).max().unwrap_or_default();
            let mut marked = self.marked.lock();
            *marked = Marked::default();
            marked.note(held(snapshots), (first, &[last, &[0]].concat()));
            drop(marked);
            let mut ranks = self.ranks.lock();
            for (number, numbered) in &registry.tables {
                numbered.is_ready.store(false, Ordering::SeqCst);
                numbered.live.store(0, Ordering::SeqCst);
                numbered.named.store(0, Ordering::SeqCst);
                ranks.set(*number, numbered.counts().rank());
            }
        }
        self.change_state(|state| {
            (state.floor, state.settled) = (flushed, flushed);
            state.kept = snapshots.to_vec();
        });
    }

    /// Ends a rebuild, if `newest` returns the newest level and its number: that has no table but those that are
    /// `received`. Tables that are becoming part of the tree are pending from then on. Returns false if the rebuild goes
    /// on.
    pub(super) fn end_rebuild(
        &self,
        received: &BTreeSet<FileId>,
        newest: impl FnOnce() -> Option<(Arc<Level>, Seqno)>,
    ) -> bool {
        let mut changes = self.changes.lock();
        if self.has_lacked_room() {
            return false;
        }
        let Some((level, flushed)) = newest() else { return false };
        for placed in level.tables.iter() {
            self.set_named(placed.number);
            self.set_ready(placed.number);
        }
        self.file.iter().for_each(|file| file.built(flushed));
        *self.rebuilt.lock() = None;
        *self.lacking.lock() = Lacking::default();
        let in_flight = std::mem::take(&mut *changes);
        self.store_state(&changes, |state| {
            in_flight
                .into_iter()
                .filter(|pending| !received.contains(&pending.table.id()))
                .for_each(|pending| state.add(pending));
            state.settled = flushed;
            state.floor = state.floor.max(flushed);
            state.is_partial = false;
            state.epoch += 1;
        });
        true
    }

    /// Whether the index has had no room since a rebuild began.
    pub(super) fn has_lacked_room(&self) -> bool {
        self.has_lacked_room.load(Ordering::SeqCst)
    }

    /// Notes a key that the index has these versions of, if some of them are kept for snapshots alone. What has been superseded
    /// before a number has been noted before.
    pub(super) fn mark(&self, key: &[u8], versions: &[IndexVersion], since: Seqno, held: &[Seqno]) {
        let is_new = |version: &IndexVersion| version.superseded.is_some_and(|it| it >= since);
        if !held.is_empty() && versions.iter().any(is_new) {
            self.marked.lock().note_key(held, key);
        }
    }

    /// The tables that are put into the index next, at most so many, the oldest first.
    pub(super) fn next_pending(&self, tables_max: usize) -> Vec<Arc<Pending>> {
        let state = self.state.load();
        let is_part = |pending: &&Arc<Pending>| pending.is_part.load(Ordering::SeqCst);
        let next = state.pending.iter().take_while(is_part).take(tables_max);
        if state.is_partial { Vec::new() } else { next.cloned().collect() }
    }

    /// Whether there are such tables.
    pub(super) fn has_pending(&self) -> bool {
        let state = self.state.load();
        let first = state.pending.first().filter(|_| !state.is_partial);
        first.is_some_and(|first| first.is_part.load(Ordering::SeqCst))
    }

    /// The keys of the pending table are about to be put into the index.
    pub(super) fn receiving(&self, flushed: Seqno, snapshots: &[Seqno]) {
        self.change_state(|state| state.change(flushed, snapshots));
    }

    /// All keys of these pending tables are in the index, which has everything up to a number.
    pub(super) fn received(&self, numbers: &[u32], settled: Seqno) {
        self.file.iter().for_each(|file| file.settled(settled));
        self.change_state(|state| {
            state.pending.retain(|other| !numbers.contains(&other.number));
            state.settled = state.settled.max(settled);
        });
    }

    /// All keys of a tree that has been opened are in the index.
    pub(super) fn built(&self, flushed: Seqno, is_empty: bool) {
        if let Some(file) = self.file.as_ref().filter(|_| !self.is_partial()) {
            file.built(flushed);
        }
        self.change_state(|state| {
            state.settled = flushed;
            // Nobody has seen anything in a tree that has nothing.
            state.floor = if is_empty { Seqno(0) } else { flushed };
        });
    }

    /// The index of a tree that has been opened has everything up to a number. The rest, up to `flushed`, is about to be
    /// pending.
    pub(super) fn resumed(&self, settled: Seqno, flushed: Seqno) {
        self.change_state(|state| (state.settled, state.floor) = (settled, flushed));
    }

    /// Whether nothing can be put into the file of the index.
    pub(super) fn is_read_only(&self) -> bool {
        self.file.as_ref().is_some_and(IndexFile::is_read_only)
    }

    /// What none of `snapshots` needs is about to be dropped.
    pub(super) fn dropping(&self, snapshots: &[Seqno]) {
        self.change_state(|state| state.keep_for(snapshots));
    }

    /// Whether the index may lack keys.
    pub(super) fn is_partial(&self) -> bool {
        self.state.load().is_partial
    }

    /// Whether there may be, or have been, operands.
    pub(super) fn has_operands(&self) -> bool {
        self.has_operands.load(Ordering::SeqCst)
    }

    /// The number of versions that only snapshots need.
    pub(super) fn superseded(&self) -> u64 {
        self.superseded.load(Ordering::SeqCst)
    }

    /// All versions of a key, newest first.
    pub(super) fn versions(&self, key: &[u8]) -> Result<Vec<IndexVersion>> {
        loop {
            let versions = self.index.versions(key)?;
            if !is_cut(&versions) || planted(Bug::SlmManyForgotten) {
                return Ok(versions);
            }
            // If the key has just changed, it is read again.
            let many = self.many.lock();
            if self.index.versions(key)? == versions {
                return Ok(many.get(key).cloned().unwrap_or(versions));
            }
        }
    }

    /// As [`Places::versions`], for somebody who looks ascending keys up.
    pub(super) fn versions_near(
        &self,
        key: &[u8],
        near: &mut NearLeaf,
    ) -> Result<Vec<IndexVersion>> {
        let versions = self.index.versions_near(key, near)?;
        if is_cut(&versions) {
            return self.versions(key);
        }
        Ok(versions)
    }

    /// What a leaf of the index has from a key on, or below a key. See [`Places::all_versions`].
    pub(super) fn leaf(&self, at: LeafAt<'_>) -> Result<LeafEntries> {
        self.index.leaf(at)
    }

    /// All versions of a key, of which a leaf has these.
    pub(super) fn all_versions<'a>(
        &self,
        key: &[u8],
        in_leaf: &'a [IndexVersion],
    ) -> Result<Cow<'a, [IndexVersion]>> {
        match is_cut(in_leaf) {
            true => self.versions(key).map(Cow::Owned),
            false => Ok(Cow::Borrowed(in_leaf)),
        }
    }

    /// The tables that the versions in a leaf of the index are in, from a key on, and the first key behind them.
    pub(super) fn tables_from(&self, key: &[u8]) -> Result<(Vec<u32>, Option<Vec<u8>>)> {
        self.index.tables_from(key)
    }

    /// The entries of a leaf of the index from a key on, and the first key behind them.
    pub(super) fn entries_from(&self, key: &[u8]) -> Result<(Vec<KeyVersions>, Option<Vec<u8>>)> {
        let part = self.index.ascending(key, false)?;
        let entries = part.entries.into_iter().map(|entry| (entry.key, entry.versions));
        Ok((entries.collect(), part.rest))
    }

    /// Whether only a part of the index may be in memory.
    pub(super) fn is_partly_resident(&self) -> bool {
        self.index.is_partly_resident()
    }

    /// Begins to read the places of ascending keys from the disk, if that may be necessary.
    pub(super) fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.index.prefetch(keys);
    }

    /// Waits until no other thread changes the index.
    ///
    /// # Errors
    /// `Io` if the index was closed, and cannot be known not to be.
    pub(super) fn write(&self) -> Result<Writing<'_>> {
        // What is written stays in memory until somebody does this.
        self.trim_index();
        let writing = self.index.write();
        self.file.iter().try_for_each(IndexFile::changing)?;
        Ok(writing)
    }

    /// All versions of a key, for the thread that changes the index.
    pub(super) fn versions_now(
        &self,
        writing: &mut Writing<'_>,
        key: &[u8],
    ) -> Result<Vec<IndexVersion>> {
        let versions = writing.versions(key)?;
        match is_cut(&versions) {
            true => Ok(self.many.lock().get(key).cloned().unwrap_or(versions)),
            false => Ok(versions),
        }
    }

    /// Sets the versions of a key, which were `before`. If there is no room, the index is partial from now on.
    pub(super) fn set(
        &self,
        writing: &mut Writing<'_>,
        counts: &mut Counts,
        key: &[u8],
        before: &[IndexVersion],
        after: &[IndexVersion],
    ) -> Result<()> {
        let set = match cut(key, after) {
            None => {
                let set = writing.set(key, after);
                if before.len() > versions_max(key.len()).max(1) && set.is_ok() {
                    self.forget_many(|many| drop(many.remove(key)));
                }
                set
            }
            Some(newest) => {
                let mut many = self.many.lock();
                // They are in memory alone.
                self.file.iter().for_each(|file| file.set_exceeded(true));
                many.insert(key.to_vec(), after.to_vec());
                writing.set(key, &newest)
            }
        };
        let after = match set {
            Ok(_) => after,
            Err(Error::Full { .. }) => {
                self.distrust();
                // There is always room for a removal.
                writing.remove(key)?;
                self.forget_many(|many| drop(many.remove(key)));
                &[]
            }
            Err(error) => return Err(error),
        };
        counts.count(before, if planted(Bug::SlmDeadCountedTwice) { -2 } else { -1 });
        counts.count(after, 1);
        Ok(())
    }

    /// Adds a key, which is greater than all before, to an index that is being filled.
    ///
    /// # Errors
    /// `Full` if there is no room for it.
    pub(super) fn load_key(
        &self,
        writing: &mut Writing<'_>,
        load: &mut Load,
        counts: &mut Counts,
        key: &[u8],
        versions: &[IndexVersion],
    ) -> Result<()> {
        match cut(key, versions) {
            None => writing.load(load, key, versions)?,
            Some(newest) => {
                writing.load(load, key, &newest)?;
                self.file.iter().for_each(|file| file.set_exceeded(true));
                self.many.lock().insert(key.to_vec(), versions.to_vec());
            }
        }
        counts.count(versions, 1);
        Ok(())
    }

    /// Keys have, in the index, all of their versions.
    fn forget_many(&self, forget: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<IndexVersion>>)) {
        let mut many = self.many.lock();
        let had = !many.is_empty();
        forget(&mut many);
        if had && many.is_empty() {
            self.file.iter().for_each(|file| file.set_exceeded(false));
        }
    }

    /// Adds what has been counted. It is to be called before the index is given to others.
    pub(super) fn count(&self, counts: &mut Counts) {
        let registry = self.registry.read();
        let mut ranks = self.ranks.lock();
        for (number, by) in std::mem::take(&mut counts.live) {
            if let Some(numbered) = registry.tables.get(&number) {
                numbered.live.fetch_add(by as u64, Ordering::SeqCst);
                if !numbered.is_ready.load(Ordering::SeqCst) {
                    numbered.named.fetch_add(by.max(0) as u64, Ordering::SeqCst);
                }
                ranks.set(number, numbered.counts().rank());
            }
        }
        drop(ranks);
        let superseded = std::mem::take(&mut counts.superseded);
        self.superseded.fetch_add(superseded as u64, Ordering::SeqCst);
    }

    /// What the index looks like, for `inspect`. `resumed`: it was opened with what it had, not built.
    pub(super) fn described_index(&self) -> GroupDescription {
        let counts = named([
            ("keys", self.index.keys()),
            ("index_bytes", self.index_bytes()),
            ("superseded", self.superseded()),
            ("partial", u64::from(self.is_partial())),
            ("resumed", u64::from(self.is_resumed)),
        ]);
        let (label, id) = ("location index".to_string(), self.file_id().0);
        GroupDescription { label, id, files: Vec::new(), counts }
    }

    /// How many tables are pending; one of which only a part is, as that part.
    pub(super) fn pending(&self) -> f64 {
        self.state.load().pending.iter().map(|pending| pending.left()).sum()
    }

    /// Whether somebody puts the keys of a pending table into the index.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.try_lock().is_none_or(|receiving| receiving.is_some())
    }

    /// Memory of what is pending, of the list of what snapshots need, and of an index that is not in a file.
    pub(super) fn memory_bytes(&self) -> u64 {
        let state = self.state.load();
        let pending: usize = state.pending.iter().map(|it| it.keys.memory_bytes()).sum();
        let index = if self.file.is_some() { 0 } else { self.index_bytes() };
        index + self.index.memory_bytes() + (pending + self.marked.lock().bytes()) as u64
    }

    /// The index, if it is in a file.
    pub(super) fn mapped_index(&self) -> MappedIndex {
        let max = self.file.as_ref().and_then(IndexFile::memory_bytes_max);
        max.map_or_else(MappedIndex::default, |memory_bytes_max| MappedIndex {
            // The system maps free blocks around those that are used.
            bytes: self.index.blocks().1 * 4096,
            memory_bytes_max,
        })
    }

    fn index_bytes(&self) -> u64 {
        self.index.blocks().0 * 4096
    }

    /// The disk space of the index, and what its keys need of that.
    pub(super) fn disk_bytes(&self) -> (u64, u64) {
        let all = self.index.blocks().1;
        let live = LocationIndex::kept_blocks(self.index.live_blocks());
        self.file.as_ref().map_or((0, 0), |_| (all * 4096, live.min(all) * 4096))
    }

    /// Packs the keys of a range into few blocks of the index, and gives the others back.
    pub(super) fn pack(&self, lower: &[u8], upper: Option<&[u8]>) {
        let packed = pack(lower, upper, || self.write());
        // It is built anew. Where there is no room for two more leaves, or the file cannot be changed now, it is done another
        // time.
        if packed.is_err_and(|error| error.is_corruption()) {
            self.distrust();
        }
        if self.file.is_some() {
            self.index.shrink_all();
        }
    }

    /// Gives disk space of the index back that it does not need any more.
    pub(super) fn shrink(&self) {
        if self.file.is_some() {
            self.index.shrink();
        }
    }

    /// See [`Tree::set_index_memory`](crate::tree::Tree::set_index_memory).
    pub(super) fn set_index_memory(&self, bytes: u64) -> u64 {
        self.file.as_ref().map_or(bytes, |file| file.set_memory_bytes_max(bytes))
    }

    pub(super) fn trim_index(&self) {
        self.file.iter().for_each(IndexFile::trim_memory);
    }
}

/// What the index has of a key's versions, if they are more than it can have of a key.
fn cut(key: &[u8], versions: &[IndexVersion]) -> Option<Vec<IndexVersion>> {
    let most = versions_max(key.len()).max(1);
    let mut newest = versions.get(..most).filter(|_| versions.len() > most)?.to_vec();
    newest.last_mut()?.location.is_operand = true;
    Some(newest)
}

/// The snapshots, without the newest state, which is the last of a list.
pub(super) fn held(snapshots: &[Seqno]) -> &[Seqno] {
    snapshots.split_last().map_or(&[], |(_, held)| held)
}

/// Where a leaf is in its table, and whether the entry that it is known for goes on in the next leaf.
pub(super) fn page_of(leaf: LeafPlace) -> (PagePointer, bool) {
    (PagePointer { unit: leaf.unit, units: leaf.units }, leaf.is_split)
}
