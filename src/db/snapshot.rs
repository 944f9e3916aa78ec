//! [`Snapshot`], a consistent view of the whole store at one moment.

use std::sync::Arc;

use super::iterator::Iter;
use super::keyspace::Keyspace;
use super::range::{Bounds, KeyRange, bounds_of, bounds_of_prefix};
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::store::read;
use crate::store::snapshots::{Reader, SnapshotGuard};
use crate::store::store::OpenStore;

/// A consistent view of all keyspaces at one moment: it contains a prefix of the commit order. While
/// it is held, the disk space of the versions that it sees is not reclaimed. Clones share the view.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// let db = spinney::Database::builder_in_memory().open()?;
/// let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
/// items.put("a", "1")?;
/// let snapshot = db.snapshot();
/// items.put("a", "2")?;
/// assert_eq!(snapshot.get(&items, "a")?.unwrap(), b"1");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    store: Arc<OpenStore>,
    guard: Arc<SnapshotGuard>,
}

impl Snapshot {
    pub(crate) fn new(store: &Arc<OpenStore>) -> Snapshot {
        let guard = store.snapshots.register(Reader::Snapshot, || store.committer.visible());
        Snapshot { store: Arc::clone(store), guard: Arc::new(guard) }
    }

    fn check(&self, keyspace: &Keyspace) -> Result<()> {
        if Arc::ptr_eq(keyspace.store(), &self.store) {
            return Ok(());
        }
        Err(Error::invalid(format!("keyspace {:?} belongs to another store", keyspace.name())))
    }

    /// Returns the value of `key` in the snapshot, or `None` if it has none.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`]; `InvalidArgument` if the keyspace belongs to another store.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.check(keyspace)?;
        let seqno = Some(self.guard.seqno()).filter(|_| !planted(Bug::SnapshotGetNewest));
        read::get(&self.store, keyspace.state(), key.as_ref(), seqno)
    }

    /// Returns the values of `keys` in the snapshot, in the order of `keys`. The disk reads of all keys
    /// are in flight at the same time.
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        self.check(keyspace)?;
        let keys: Vec<K> = keys.into_iter().collect();
        read::multi_get(&self.store, keyspace.state(), &keys, Some(self.guard.seqno()))
    }

    /// Returns true if `key` has a value in the snapshot. As [`Keyspace::contains_key`].
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.check(keyspace)?;
        read::contains(&self.store, keyspace.state(), key.as_ref(), Some(self.guard.seqno()))
    }

    fn iterate(&self, keyspace: &Keyspace, bounds: Bounds) -> Iter {
        match self.check(keyspace) {
            Ok(()) => Iter::new(&self.store, keyspace.state(), Some(&self.guard), bounds),
            Err(error) => Iter::failed(error),
        }
    }

    /// Returns the exact number of keys in `range`. Takes as long as a scan of the range.
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn count(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        self.range(keyspace, range).keys().try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// Returns an iterator over all pairs.
    pub fn iter(&self, keyspace: &Keyspace) -> Iter {
        self.iterate(keyspace, (None, None))
    }

    /// Returns an iterator over the pairs with keys in `range`. See [`Keyspace::range`].
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Iter {
        self.iterate(keyspace, bounds_of(&range))
    }

    /// Returns an iterator over the pairs with keys that start with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Iter {
        self.iterate(keyspace, bounds_of_prefix(prefix.as_ref()))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seqno", &self.guard.seqno().0).finish_non_exhaustive()
    }
}
