//! Point reads: what a key's versions, newest first, add up to.

use std::ops::ControlFlow;

use super::state::{KeyspaceState, ReadState};
use super::store::Store;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::slice::Slice;
use crate::cache::{ReadContext, RowCache, fetch_misses};
use crate::merge::{Base, Operands, refuse_range_delete};
use crate::table::{BlobPointer, Caching};

/// What has been met of a key so far.
#[derive(Default)]
struct Lookup {
    operands: Operands,
    /// The number of the last version met: the same one met again, in a memtable that has just become
    /// a table, does not count twice.
    last: Option<Seqno>,
    /// The number of the first version met.
    newest: Option<Seqno>,
    found: Option<Found>,
    /// The tree's newest version of the key, if that is the value found.
    tree_seqno: Option<Seqno>,
    /// A record of the cache was the answer.
    is_record: bool,
    /// Only whether there is a value is asked, so none is copied.
    key_only: bool,
    /// The newest range delete that has the key: older versions are deleted.
    range_delete: Option<Seqno>,
}

enum Found {
    Value(Slice),
    /// The pointer of a value in a blob file.
    Blob(Slice),
    Deleted,
    Refused(Error),
}

impl Lookup {
    fn meet(&mut self, entry: EntryRef<'_>) -> ControlFlow<()> {
        if self.last.is_some_and(|last| last <= entry.seqno) {
            return ControlFlow::Continue(());
        }
        if Some(entry.seqno) < self.range_delete {
            self.newest = self.newest.or(self.range_delete);
            self.found = Some(Found::Deleted);
            return ControlFlow::Break(());
        }
        self.newest = self.newest.or(Some(entry.seqno));
        self.last = Some(entry.seqno);
        self.found = Some(match entry.kind {
            EntryKind::Put if self.key_only => Found::Value(Slice::default()),
            EntryKind::Put => Found::Value(Slice::from(entry.value)),
            EntryKind::PutBlob => Found::Blob(Slice::from(entry.value)),
            EntryKind::Delete => Found::Deleted,
            EntryKind::Merge | EntryKind::MergeBlob => {
                self.operands.push(entry.value, entry.kind.is_blob());
                return ControlFlow::Continue(());
            }
            EntryKind::RangeDelete => Found::Refused(refuse_range_delete(entry.key)),
        });
        ControlFlow::Break(())
    }

    /// Whether the key has a value. Operands always add up to one.
    fn into_presence(self) -> Result<bool> {
        match self.found {
            Some(Found::Refused(error)) => Err(error),
            Some(Found::Value(_) | Found::Blob(_)) => Ok(true),
            Some(Found::Deleted) | None => Ok(!self.operands.is_empty()),
        }
    }

    fn into_value(
        self,
        keyspace: &KeyspaceState,
        store: &Store,
        key: &[u8],
    ) -> Result<Option<Slice>> {
        if self.operands.is_empty() {
            return match self.found {
                Some(Found::Value(value)) => Ok(Some(value)),
                Some(Found::Blob(pointer)) => {
                    store.blobs.value(&BlobPointer::of_entry(&pointer)?, Caching::Caches).map(Some)
                }
                Some(Found::Refused(error)) => Err(error),
                Some(Found::Deleted) | None => Ok(None),
            };
        }
        let base = match &self.found {
            Some(Found::Value(value)) => Base::Value(value),
            Some(Found::Blob(pointer)) => Base::Blob(pointer),
            Some(Found::Refused(error)) => return Err(error.clone()),
            Some(Found::Deleted) | None => Base::Nothing,
        };
        let value = self.operands.fold(&keyspace.merge, key, base, true)?;
        Ok(Some(Slice::from(value)))
    }
}

/// One read of one key: where it looks, and as of when.
struct Reader<'a> {
    row_cache: &'a RowCache,
    keyspace: &'a KeyspaceState,
    read: &'a ReadState,
    snapshot: Seqno,
}

impl Reader<'_> {
    /// Gathers what the memtables and the row cache have of the key. If that is not all there is to know,
    /// goes on with the key's hash.
    #[inline(always)]
    fn look_in_memory(&self, key: &[u8], lookup: &mut Lookup) -> ControlFlow<(), u64> {
        if self.read.has_range_deletes() {
            lookup.range_delete = self.read.newest_range_delete(key, self.snapshot);
        }
        for memtable in std::iter::once(&self.read.active).chain(&self.read.frozen) {
            let memtable = &memtable.memtable;
            let newest = planted(Bug::MemtableGetNewest);
            let snapshot = if newest { Seqno::MAX } else { self.snapshot };
            let Some(newest) = memtable.get(key, snapshot) else { continue };
            if !newest.kind.is_operand() {
                lookup.meet(newest)?;
                continue;
            }
            for entry in memtable.versions(key, snapshot) {
                lookup.meet(entry)?;
            }
        }
        let hash = self.keyspace.hasher.hash(key);
        if lookup.range_delete.is_some() {
            // The row cache may have what it deletes.
            return ControlFlow::Continue(hash);
        }
        // A record that is too young for the snapshot says nothing about what is older.
        let visible = if planted(Bug::RowCacheOfAnyNumber) { Seqno::MAX } else { self.snapshot };
        let met = self.row_cache.get(self.keyspace.id, hash, key, |record| {
            record.seqno <= visible && lookup.meet(record).is_break()
        });
        if met != Some(true) {
            return ControlFlow::Continue(hash);
        }
        lookup.is_record = true;
        ControlFlow::Break(())
    }

    /// Gathers what the tree has of the key. After [`Error::NotResident`] it can be asked again, and takes
    /// nothing twice.
    #[inline(always)]
    fn look_in_tree(
        &self,
        key: &[u8],
        hash: u64,
        context: &ReadContext,
        lookup: &mut Lookup,
    ) -> Result<()> {
        if lookup.key_only
            && lookup.range_delete.is_none()
            && let Some(is_present) = self.read.version.presence(key, self.snapshot)?
        {
            lookup.found =
                Some(if is_present { Found::Value(Slice::default()) } else { Found::Deleted });
            return Ok(());
        }
        let mut is_newest = true;
        let result = self.read.version.get(key, hash, self.snapshot, context, &mut |entry| {
            let flow = lookup.meet(entry);
            if is_newest && matches!(lookup.found, Some(Found::Value(_))) {
                lookup.tree_seqno = Some(entry.seqno);
            }
            is_newest = false;
            flow
        });
        match result {
            Err(error) if planted(Bug::CorruptionIsAbsence) && error.is_corruption() => Ok(()),
            result => result,
        }
    }

    /// Offers to the row cache what had to be read from the disk, if a record can be made of it.
    fn admit(&self, store: &Store, key: &[u8], hash: u64, lookup: &Lookup) {
        // At an older snapshot there may be newer versions in the tree.
        let (Some(seqno), Some(Found::Value(value))) = (lookup.tree_seqno, &lookup.found) else {
            return;
        };
        // Where the cache holds most pages, a row is of a page that is cached as well, or soon will be.
        if lookup.key_only
            || lookup.range_delete.is_some()
            || store.cache.holds_most_of(store.files.bytes())
        {
            return;
        }
        let is_old = self.snapshot < self.read.version.flushed();
        if is_old && !planted(Bug::RowCacheOfOldSnapshots) {
            return;
        }
        let entry = EntryRef { key, seqno, kind: EntryKind::Put, value };
        let is_current = || self.keyspace.is_current(self.read);
        if self.row_cache.admit(self.keyspace.id, hash, entry, is_current) {
            store.cache.row_cache_has_grown();
        }
    }
}

/// The key's value at `snapshot`, or at the newest visible state.
pub(crate) fn get(
    store: &Store,
    keyspace: &KeyspaceState,
    key: &[u8],
    snapshot: Option<Seqno>,
) -> Result<Option<Slice>> {
    let answer = |found: Lookup, _| found.into_value(keyspace, store, key);
    look_up(store, keyspace, key, snapshot, false, answer)
}

/// The key's value in the newest visible state, and the number at which it was read. `key_only`, only whether there is one:
/// it is empty then, and no value is read from a blob file.
pub(crate) fn newest(
    store: &Store,
    keyspace: &KeyspaceState,
    key: &[u8],
    key_only: bool,
) -> Result<(Option<Slice>, Seqno)> {
    let mut read_at = Seqno(0);
    let answer = |found: Lookup, snapshot| {
        read_at = snapshot;
        match key_only {
            true => Ok(found.into_presence()?.then(Slice::default)),
            false => found.into_value(keyspace, store, key),
        }
    };
    let value = look_up(store, keyspace, key, None, key_only, answer)?;
    Ok((value, read_at))
}

/// The number of the key's newest version at `snapshot`, or in the newest visible state; `None` if it has none. And the number
/// at which it was read. Reads no value from a blob file.
pub(crate) fn newest_version(
    store: &Store,
    keyspace: &KeyspaceState,
    key: &[u8],
    snapshot: Option<Seqno>,
) -> Result<(Option<Seqno>, Seqno)> {
    let mut versions = (None, Seqno(0));
    let answer = |found: Lookup, snapshot| {
        versions = (found.newest, snapshot);
        match found.found {
            Some(Found::Refused(error)) => Err(error),
            _ => Ok(None),
        }
    };
    look_up(store, keyspace, key, snapshot, false, answer)?;
    Ok(versions)
}

/// Whether the key has a value at `snapshot`, or in the newest visible state. Reads no value from a blob file.
pub(crate) fn contains(
    store: &Store,
    keyspace: &KeyspaceState,
    key: &[u8],
    snapshot: Option<Seqno>,
) -> Result<bool> {
    let answer = |found: Lookup, _| Ok(found.into_presence()?.then(Slice::default));
    Ok(look_up(store, keyspace, key, snapshot, true, answer)?.is_some())
}

/// Looks a key up, and answers with what `answer` makes of what was found, and of the number at which it was read.
#[inline(always)]
fn look_up(
    store: &Store,
    keyspace: &KeyspaceState,
    key: &[u8],
    snapshot: Option<Seqno>,
    key_only: bool,
    answer: impl FnOnce(Lookup, Seqno) -> Result<Option<Slice>>,
) -> Result<Option<Slice>> {
    let is_checked = check_early(store, keyspace)?;
    let timed = super::counters::is_timed().then(|| store.clock.nanos());
    // First the state, then the number: what the state's trees have dropped is hidden at it.
    let read = keyspace.read.load();
    if !is_checked {
        check_readable(store, keyspace)?;
    }
    let snapshot = snapshot.unwrap_or_else(|| read.seqno_at_most(store.committer.visible()));
    let context = ReadContext::blocking();
    let reader = Reader { row_cache: store.cache.row_cache(), keyspace, read: &read, snapshot };
    let mut lookup = Lookup { key_only, ..Lookup::default() };
    if let ControlFlow::Continue(hash) = reader.look_in_memory(key, &mut lookup) {
        reader.look_in_tree(key, hash, &context, &mut lookup)?;
        if context.pages_read.get() > 0 {
            reader.admit(store, key, hash, &lookup);
        }
    }
    let is_record = lookup.is_record;
    let value = answer(lookup, snapshot)?;
    let counters = &store.counters;
    counters.gets.add(1);
    match &value {
        Some(value) => counters.user_bytes_read.add((key.len() + value.len()) as u64),
        None => counters.gets_absent.add(1),
    }
    if context.pages_read.get() > 0 {
        counters.pages_read.add(u64::from(context.pages_read.get()));
    }
    if is_record {
        counters.row_cache_hits.add(1);
    }
    if let Some(start) = timed {
        counters.get_latency.record(store.clock.nanos().saturating_sub(start));
    }
    Ok(value)
}

/// Rounds after which a key whose pages are evicted faster than they are used is read by itself.
const ROUNDS_MAX: usize = 16;

/// The keys' values, all reads of a round in flight at once.
pub(crate) fn multi_get(
    store: &Store,
    keyspace: &KeyspaceState,
    keys: &[impl AsRef<[u8]>],
    snapshot: Option<Seqno>,
) -> Result<Vec<Option<Slice>>> {
    multi_get_while(store, keyspace, keys, snapshot, || hold_open(Bug::ReadBeyondCut, 64))
}

/// The same. What `meanwhile` does happens once the state has been loaded, and before the number is.
pub(crate) fn multi_get_while(
    store: &Store,
    keyspace: &KeyspaceState,
    keys: &[impl AsRef<[u8]>],
    snapshot: Option<Seqno>,
    meanwhile: impl FnOnce(),
) -> Result<Vec<Option<Slice>>> {
    let is_checked = check_early(store, keyspace)?;
    let read = keyspace.read.load_full();
    if !is_checked {
        check_readable(store, keyspace)?;
    }
    meanwhile();
    let snapshot = snapshot.unwrap_or_else(|| read.seqno_at_most(store.committer.visible()));
    let reader = Reader { row_cache: store.cache.row_cache(), keyspace, read: &read, snapshot };
    let mut values: Vec<Option<Slice>> = vec![None; keys.len()];
    // What memory has is asked for once; the tree again in each round, until nothing is missing.
    let mut waiting = Vec::with_capacity(keys.len());
    let mut bytes = 0;
    let mut pages = 0;
    let mut records = 0;
    // Values in blob files, to be read together at the end.
    let (mut blob_indexes, mut pointers) = (Vec::new(), Vec::new());
    let mut answer = |index: usize, key: &[u8], lookup: Lookup| {
        records += u64::from(lookup.is_record);
        if let (Some(Found::Blob(pointer)), true) = (&lookup.found, lookup.operands.is_empty()) {
            pointers.push(BlobPointer::of_entry(pointer)?);
            blob_indexes.push((index, key.len()));
            return Ok(());
        }
        let value = lookup.into_value(keyspace, store, key)?;
        bytes += value.as_ref().map_or(0, |value| key.len() + value.len());
        values[index] = value;
        Ok::<_, Error>(())
    };
    for (index, key) in keys.iter().enumerate() {
        let (key, mut lookup) = (key.as_ref(), Lookup::default());
        match reader.look_in_memory(key, &mut lookup) {
            ControlFlow::Break(()) => answer(index, key, lookup)?,
            ControlFlow::Continue(hash) => waiting.push((index, key, hash, lookup)),
        }
    }
    for round in 0.. {
        let mut context =
            if round < ROUNDS_MAX { ReadContext::collecting() } else { ReadContext::blocking() };
        let mut still_waiting = Vec::new();
        for (index, key, hash, mut lookup) in waiting {
            match reader.look_in_tree(key, hash, &context, &mut lookup) {
                Ok(()) => {
                    if round > 0 {
                        reader.admit(store, key, hash, &lookup);
                    }
                    answer(index, key, lookup)?;
                }
                Err(Error::NotResident) if planted(Bug::MultiGetGivesUp) && round > 0 => {}
                Err(Error::NotResident) => still_waiting.push((index, key, hash, lookup)),
                Err(error) => return Err(error),
            }
        }
        if let Some(misses) = context.misses.take() {
            match fetch_misses(misses.into_inner()) {
                Ok(read) => pages += u64::from(read),
                // Not every page is needed in the end. The read that needs one that is damaged tells of it.
                Err(error) if error.is_unreadable() => {}
                Err(error) => return Err(error),
            }
        }
        pages += u64::from(context.pages_read.get());
        waiting = still_waiting;
        if waiting.is_empty() {
            break;
        }
    }
    // `read` keeps the files.
    let blobs = store.blobs.values(&pointers, Caching::Caches)?;
    for ((index, key_bytes), value) in blob_indexes.into_iter().zip(blobs) {
        bytes += key_bytes + value.len();
        values[index] = Some(value);
    }
    let counters = &store.counters;
    counters.multi_get_keys.add(keys.len() as u64);
    counters.user_bytes_read.add(bytes as u64);
    counters.pages_read.add(pages);
    counters.row_cache_hits.add(records);
    Ok(values)
}

/// The planted bug: reads are refused by a look before the state is loaded.
#[inline(always)]
fn check_early(store: &Store, keyspace: &KeyspaceState) -> Result<bool> {
    let is_checked = planted(Bug::ReadChecksEarly);
    if is_checked {
        check_readable(store, keyspace)?;
        hold_open(Bug::ReadChecksEarly, 16);
    }
    Ok(is_checked)
}

/// Refuses reads through handles of what no longer exists. Who reads memtables loads the read state first: a drop
/// marks the keyspace, and then takes the memtables out of its state. A state that is loaded before the mark is seen
/// is whole.
pub(crate) fn check_readable(store: &Store, keyspace: &KeyspaceState) -> Result<()> {
    store.check_open()?;
    keyspace.check_exists()
}
