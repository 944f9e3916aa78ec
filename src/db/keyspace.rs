//! [`Keyspace`], the handle to one keyspace of an open store.

use std::sync::Arc;

use super::iterator::Iter;
use super::range::{Bounds, KeyRange, bounds_of, bounds_of_prefix, range_of_keys};
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::slice::Slice;
use crate::base::sync::plain::Ordering;
use crate::merge::Contained;
use crate::store::operation::Operation;
use crate::store::read;
use crate::store::state::KeyspaceState;
use crate::store::store::OpenStore;
use crate::tree::description::TreeDescription;
use crate::tree::options::KeyspaceOptions;

/// A keyspace of an open store: an ordered map from byte strings to byte strings, stored in its own
/// tree. Clones refer to the same keyspace. All methods may be called from any number of threads.
///
/// A key may have up to 64 KiB, a value up to 4 GiB - 1. [`put`](Keyspace::put),
/// [`delete`](Keyspace::delete) and [`merge`](Keyspace::merge) use `Durability::Buffered`; their `_with`
/// variants take a [`Durability`]. A [`Batch`](super::batch::Batch) commits several writes atomically.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// let db = spinney::Database::builder_in_memory().open()?;
/// let items = db.keyspace("items", spinney::KeyspaceOptions::stb().merge_operator("u64_add"))?;
/// items.put("apples", 3u64.to_le_bytes())?;
/// items.merge("apples", 4u64.to_le_bytes())?;
/// assert_eq!(items.get("apples")?.unwrap(), &7u64.to_le_bytes());
/// items.delete("apples")?;
/// assert_eq!(items.multi_get(["apples", "pears"])?, [None, None]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Keyspace {
    store: Arc<OpenStore>,
    state: Arc<KeyspaceState>,
}

impl Keyspace {
    pub(crate) fn new(store: &Arc<OpenStore>, state: Arc<KeyspaceState>) -> Keyspace {
        Keyspace { store: Arc::clone(store), state }
    }

    pub(crate) fn state(&self) -> &Arc<KeyspaceState> {
        &self.state
    }

    pub(crate) fn store(&self) -> &Arc<OpenStore> {
        &self.store
    }

    /// Returns the keyspace's name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Returns the options that the keyspace has now: those that it was created with, with all changes by
    /// [`Keyspace::alter`] since then.
    pub fn options(&self) -> KeyspaceOptions {
        (*self.state.options()).clone()
    }

    /// Changes options of the keyspace while it is in use. `change` makes the new options of the present ones; it is
    /// called again if another thread changes the options first, and runs without a lock.
    ///
    /// When this returns, the change is durable, and new work follows it: tables are written with the new compression
    /// and filters, values are put into blob files by the new `blob_bytes_min`, and the tree is compacted in the
    /// background to the new limits. What is stored already stays as it is until a compaction writes it anew.
    /// [`Keyspace::compact`] writes what it can merge or shrink, and leaves what is merged already. Values stay in
    /// their blob files. A lower limit slows writers until the tree has come near it. After a crash during the call, the keyspace has either the old options
    /// or the new ones.
    ///
    /// All options can be changed but the tree kind and the merge operator: the data is stored for these. For others
    /// create a new keyspace and copy the pairs.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::flsm())?;
    /// items.alter(|options| options.tables_per_guard_max(4).space_amplification_max(1.2))?;
    /// assert_eq!(items.options().values()[6], ("tables_per_guard_max", "4".to_string()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - `InvalidArgument` if the kind or merge operator differs, or the tree kind does not support an option; the
    ///   error names the option.
    /// - `Closed` if the keyspace has been dropped; `ReadOnly`; `Poisoned`.
    /// - `Full` if the disk is full. The options are then unchanged.
    pub fn alter(&self, mut change: impl FnMut(KeyspaceOptions) -> KeyspaceOptions) -> Result<()> {
        Contained::refuse_inside("alter")?;
        let altered = self.store.alter(&self.state, &mut change);
        self.store.deliver_events();
        altered
    }

    fn write(
        &self,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let operation = Operation { keyspace: &self.state, kind, key, value };
        self.store.commit(|| std::iter::once(operation), durability)
    }

    /// Sets the value of `key`, with `Durability::Buffered`.
    ///
    /// # Errors
    /// `InvalidArgument` if the key or value is too long; `Full`; `Poisoned`; `Closed`; `ReadOnly`.
    /// Nothing is written in these cases.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, Durability::Buffered)
    }

    /// Sets the value of `key` with the given durability. With `Durability::Sync` the value survives a
    /// power loss once this returns.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// items.put_with("apples", "3", spinney::Durability::Sync)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`]. A failed sync poisons the store; it is then unknown whether the
    /// value survives a power loss.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.write(EntryKind::Put, key.as_ref(), value.as_ref(), durability)
    }

    /// Removes the value of `key`, if it has one, with `Durability::Buffered`.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, Durability::Buffered)
    }

    /// Removes the value of `key`, if it has one, with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write(EntryKind::Delete, key.as_ref(), &[], durability)
    }

    /// Removes the values of all keys in `range`, with `Durability::Buffered`, as one atomic write. Its cost does not depend on
    /// the number of keys: it is one record of the journal. Snapshots and iterators from before still see them. The disk
    /// space comes back in the background: what lies in the range as a whole is dropped without being read.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// let log = db.keyspace("log", spinney::KeyspaceOptions::stb())?;
    /// for number in 0..100u32 {
    ///     log.put(number.to_be_bytes(), "an entry")?;
    /// }
    /// log.delete_range(..90u32.to_be_bytes())?;
    /// assert_eq!(log.count(..)?, 10);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`].
    pub fn delete_range(&self, range: impl KeyRange) -> Result<()> {
        self.delete_range_with(range, Durability::Buffered)
    }

    /// Removes the values of all keys in `range` with the given durability. See [`Keyspace::delete_range`].
    ///
    /// # Errors
    /// The errors of [`Keyspace::put_with`].
    pub fn delete_range_with(&self, range: impl KeyRange, durability: Durability) -> Result<()> {
        self.delete_within(bounds_of(&range), durability)
    }

    /// Removes the values of all keys that start with `prefix`. See [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// let users = db.keyspace("users", spinney::KeyspaceOptions::stb())?;
    /// users.put("ada/name", "Ada")?;
    /// users.put("adam/name", "Adam")?;
    /// users.delete_prefix("ada/")?;
    /// assert_eq!(users.count(..)?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`].
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.delete_within(bounds_of_prefix(prefix.as_ref()), Durability::Buffered)
    }

    /// Removes the values of all keys. See [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// let cache = db.keyspace("cache", spinney::KeyspaceOptions::stb())?;
    /// cache.put("page", "...")?;
    /// cache.clear()?;
    /// assert!(cache.first()?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`].
    pub fn clear(&self) -> Result<()> {
        self.delete_within((None, None), Durability::Buffered)
    }

    fn delete_within(&self, bounds: Bounds, durability: Durability) -> Result<()> {
        match range_of_keys(bounds) {
            Some((lower, upper)) => {
                let upper = upper.unwrap_or_default();
                self.write(EntryKind::RangeDelete, &lower, &upper, durability)
            }
            // There is nothing to write, but perhaps to sync.
            None => self.store.commit(std::iter::empty, durability),
        }
    }

    /// Writes a merge operand for `key`, with `Durability::Buffered`. Reads and compactions fold it into
    /// the key's value with the keyspace's merge operator.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`]; `InvalidArgument` if the keyspace has no merge operator.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, Durability::Buffered)
    }

    /// Writes a merge operand for `key` with the given durability. See [`Keyspace::merge`].
    ///
    /// # Errors
    /// The errors of [`Keyspace::put_with`]; `InvalidArgument` if the keyspace has no merge operator.
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.write(EntryKind::Merge, key.as_ref(), operand.as_ref(), durability)
    }

    /// Returns the newest committed value of `key`, or `None` if it has none.
    ///
    /// # Errors
    /// `Corruption` or `Io` if the data cannot be read; `Merge` if the merge operator fails; `Closed`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        read::get(&self.store, &self.state, key.as_ref(), None)
    }

    /// Returns the values of `keys`, in the order of `keys`. All values are of the same moment. The disk
    /// reads of all keys are in flight at the same time.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        read::multi_get(&self.store, &self.state, &keys, None)
    }

    /// Returns true if `key` has a value. Reads no value from a blob file and folds no merge operands: a key with
    /// operands that cannot be folded has a value.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`], but not those of the value and of the merge operator.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.store, &self.state, key.as_ref(), None)
    }

    /// Returns the exact number of keys in `range` at the moment of the call. Takes as long as a scan of
    /// the range. [`Database::stats`](super::database::Database::stats) has an estimate without a scan.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// items.put("a", "1")?;
    /// items.put("a", "2")?;
    /// items.put("b", "3")?;
    /// assert_eq!(items.count(..)?, 2);
    /// assert_eq!(items.count("b"..)?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn count(&self, range: impl KeyRange) -> Result<u64> {
        self.range(range).keys().try_fold(0, |count, key| key.map(|_| count + 1))
    }

    fn iterate(&self, bounds: Bounds) -> Iter {
        Iter::new(&self.store, &self.state, None, bounds)
    }

    /// Returns the pair with the first key.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next().transpose()
    }

    /// Returns the pair with the last key.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let log = db.keyspace("log", spinney::KeyspaceOptions::stb())?;
    /// let next = log.last()?.map_or(0, |(key, _)| key[0] + 1);
    /// log.put([next], "an entry")?;
    /// assert_eq!(log.first()?, log.last()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Returns an iterator over all pairs at the moment of the call.
    pub fn iter(&self) -> Iter {
        self.iterate((None, None))
    }

    /// Returns an iterator over the pairs with keys in `range` at the moment of the call. A range is
    /// `"a".."b"`, `.."b"`, or a pair of [`Bound`](std::ops::Bound)s.
    pub fn range(&self, range: impl KeyRange) -> Iter {
        self.iterate(bounds_of(&range))
    }

    /// Returns an iterator over the pairs with keys that start with `prefix` at the moment of the call.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.iterate(bounds_of_prefix(prefix.as_ref()))
    }

    /// Writes the keyspace's memtables to its tree, and waits until they are durable there.
    ///
    /// # Errors
    /// `Full`, `Io`, `Poisoned`.
    pub fn flush(&self) -> Result<()> {
        self.store.check_writable()?;
        read::check_readable(&self.store, &self.state)?;
        Contained::refuse_inside("flush")?;
        // An earlier failure is forgotten: the flush is retried, and only a new failure counts.
        *self.state.flush_failure.lock() = None;
        self.state.flush_backoff_until_nanos.store(0, Ordering::Relaxed);
        let result = self.store.changing("a flush", || {
            let cut = self.store.freeze(std::slice::from_ref(&self.state), |_| true);
            self.store.flush_frozen(&self.state, cut)
        });
        self.state.drop_unheld();
        self.store.deliver_events();
        result
    }

    /// Flushes the keyspace and compacts all its tables in `range`. Deleted and superseded versions are
    /// dropped unless a snapshot needs them. Waits until the compaction has ended. The calling thread and the background
    /// threads share the work.
    ///
    /// # Errors
    /// The errors of [`Keyspace::flush`].
    pub fn compact(&self, range: impl KeyRange) -> Result<()> {
        self.flush()?;
        let (lower, upper) = bounds_of(&range);
        let lower = lower.unwrap_or_default();
        if upper.as_ref().is_some_and(|upper| *upper <= lower) {
            return Ok(());
        }
        let result = self
            .store
            .changing("a compaction", || self.store.compact(&self.state, &lower, upper.as_deref()));
        self.state.drop_unheld();
        self.store.deliver_events();
        // If the keyspace was dropped in the meantime, that is the error to report.
        result
            .map_err(|error| read::check_readable(&self.store, &self.state).err().unwrap_or(error))
    }

    /// Returns a description of the keyspace's tree: its nodes or levels, and their tables.
    ///
    /// # Errors
    /// `Io` or `Corruption` if the index of a table cannot be read.
    pub fn describe(&self) -> Result<TreeDescription> {
        self.store.check_open()?;
        // Without the memtables, which others may wait for.
        let version = Arc::clone(&self.state.read.load().version);
        version.describe()
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.state.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, KeyspaceOptions};

    /// A flush checked that the keyspace existed. The keyspace was dropped, and then the flush froze its
    /// memtable. Nothing removed that memtable from the pipeline, and the flush looped endlessly. (Found
    /// by the scenario `drop-keyspace`.)
    #[test]
    fn a_flush_of_a_dropped_keyspace_ends() {
        let db = Database::builder_in_memory().deterministic(1).open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        items.put("key", "value").unwrap();
        db.drop_keyspace("items").unwrap();
        let cut = items.store.freeze(std::slice::from_ref(&items.state), |_| true);
        let flushed = items.store.flush_frozen(&items.state, cut);
        assert!(matches!(flushed, Err(crate::Error::Closed { .. })), "{flushed:?}");
    }
}
