//! The handle on a keyspace.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::iterator::Iter;
use super::range::{Bounds, KeyRange, bounds_of, bounds_of_prefix};
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

/// A keyspace of an open store: an ordered map of byte strings with a tree of its own. Clones share
/// it; any number of threads may use one.
///
/// Keys have up to 64 KiB, values up to 4 GiB - 1. [`put`](Keyspace::put), [`delete`](Keyspace::delete) and
/// [`merge`](Keyspace::merge) are `Durability::Buffered`; their `_with` forms take a [`Durability`]. A
/// [`Batch`](super::batch::Batch) makes several writes one.
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The options it was created with.
    pub fn options(&self) -> &KeyspaceOptions {
        &self.state.options
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

    /// Gives the key a value.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value that is too long, `Full`, `Poisoned`, `Closed`: nothing
    /// has been written then.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, Durability::Buffered)
    }

    /// [`Keyspace::put`] with a durability: with `Durability::Sync` the value survives power loss once this
    /// returns.
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
    /// As [`Keyspace::put`]. After a failed sync the store is poisoned, and it is unknown whether the value
    /// survives a power loss.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.write(EntryKind::Put, key.as_ref(), value.as_ref(), durability)
    }

    /// Takes the key's value away, if it has one.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, Durability::Buffered)
    }

    /// [`Keyspace::delete`] with a durability.
    ///
    /// # Errors
    /// As [`Keyspace::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write(EntryKind::Delete, key.as_ref(), &[], durability)
    }

    /// Folds an operand into the key's value by the keyspace's merge operator.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; `InvalidArgument` if the keyspace has no merge operator.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, Durability::Buffered)
    }

    /// [`Keyspace::merge`] with a durability.
    ///
    /// # Errors
    /// As [`Keyspace::put_with`]; `InvalidArgument` if the keyspace has no merge operator.
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.write(EntryKind::Merge, key.as_ref(), operand.as_ref(), durability)
    }

    /// The key's value.
    ///
    /// # Errors
    /// `Corruption` or `Io` if the disk fails, `Merge` if the operator refuses, `Closed`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        read::get(&self.store, &self.state, key.as_ref(), None)
    }

    /// The keys' values, in the keys' order, as of one moment. All disk reads are in flight at once.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        read::multi_get(&self.store, &self.state, &keys, None)
    }

    /// Whether the key has a value.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The number of keys in `range`, as of now. Reads all of them: the time is that of a scan, where
    /// [`Database::stats`](super::database::Database::stats) costs nothing.
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
    /// As [`Keyspace::get`].
    pub fn count(&self, range: impl KeyRange) -> Result<u64> {
        self.range(range).try_fold(0, |count, pair| pair.map(|_| count + 1))
    }

    fn iterate(&self, bounds: Bounds) -> Iter {
        Iter::new(&self.store, &self.state, None, bounds)
    }

    /// All pairs, as of now.
    pub fn iter(&self) -> Iter {
        self.iterate((None, None))
    }

    /// The pairs whose keys lie in `range`, as of now: `"a".."b"`, `.."b"`, or a pair of
    /// [`Bound`](std::ops::Bound)s.
    pub fn range(&self, range: impl KeyRange) -> Iter {
        self.iterate(bounds_of(&range))
    }

    /// The pairs whose keys start with `prefix`, as of now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.iterate(bounds_of_prefix(prefix.as_ref()))
    }

    /// Makes what is in memory part of the tree, and waits for that.
    ///
    /// # Errors
    /// `Full`, `Io`, `Poisoned`.
    pub fn flush(&self) -> Result<()> {
        self.store.check_writable()?;
        read::check_readable(&self.store, &self.state)?;
        Contained::refuse_inside("flush")?;
        // What failed before is tried again, and counts only if it fails again.
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

    /// Flushes, and compacts everything in `range` into one version of each key (and of each that a
    /// snapshot needs), dropping what is deleted or superseded. Waits for that.
    ///
    /// # Errors
    /// As [`Keyspace::flush`].
    pub fn compact(&self, range: impl KeyRange) -> Result<()> {
        self.flush()?;
        let (lower, upper) = bounds_of(&range);
        let lower = lower.unwrap_or_default();
        if upper.as_ref().is_some_and(|upper| *upper <= lower) {
            return Ok(());
        }
        let executor = &self.store.executor;
        // The tree looks for work between two waits.
        let ended = Cell::new(executor.ended());
        let wait = || {
            // What is in the way may have panicked and be there for good.
            self.store.check_writable()?;
            executor.wait(ended.get(), Duration::from_millis(5));
            ended.set(executor.ended());
            Ok(())
        };
        let result = self.store.changing("a compaction", || {
            Arc::clone(&self.state.tree).compact(&lower, upper.as_deref(), &wait)
        });
        self.state.drop_unheld();
        self.store.deliver_events();
        // Dropped meanwhile, it is told so, and not what the tree met then.
        result
            .map_err(|error| read::check_readable(&self.store, &self.state).err().unwrap_or(error))
    }

    /// What the keyspace's tree looks like.
    ///
    /// # Errors
    /// `Io` or `Corruption` from the tables' indexes.
    pub fn describe(&self) -> Result<TreeDescription> {
        self.store.check_open()?;
        self.state.read.load_full().version.describe()
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

    /// A flush had found the keyspace there, and froze its memtable when the keyspace had been dropped
    /// meanwhile: nobody took the memtable out of the pipeline, and the flush looped endlessly.
    /// (Found by the scenario `drop-keyspace`.)
    #[test]
    fn a_flush_that_meets_a_drop_ends() {
        let db = Database::builder_in_memory().deterministic(1).open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        items.put("key", "value").unwrap();
        db.drop_keyspace("items").unwrap();
        let cut = items.store.freeze(std::slice::from_ref(&items.state), |_| true);
        let flushed = items.store.flush_frozen(&items.state, cut);
        assert!(matches!(flushed, Err(crate::Error::Closed { .. })), "{flushed:?}");
    }
}
