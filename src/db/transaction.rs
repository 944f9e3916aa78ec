//! [`Transaction`]: reads and writes over any keyspaces that take effect together or not at all, as if nothing else had
//! happened in between.
//!
//! A transaction reads at a snapshot, under its own writes. Its writes are kept in memory until it commits. Then what it
//! depends on is *validated*: nobody may have written to it since the snapshot (`commit`). If that holds, its writes are
//! one commit in the order of all commits.
//!
//! Invariants:
//! 1. Whatever a serializable transaction returns of the store is in its read set before it is returned, unless its own
//!    writes alone decide it.
//! 2. Locks of keys and memory are given back when the transaction ends, though an iterator may keep its state.

mod commit;
mod iterator;
mod operations;
mod reads;
mod retry;
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests;
mod writes;

use std::sync::Arc;
use std::time::Duration;

pub use self::iterator::TransactionIter;
use self::reads::Reads;
use self::writes::{Mark, Writes};
use super::iterator::Iter;
use super::keyspace::Keyspace;
use super::range::{Bounds, KeyRange, bounds_of, bounds_of_prefix, range_of_keys};
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::base::sync::{Mutex, MutexGuard};
use crate::store::locking::LOCK_TIMEOUT;
use crate::store::operation::{check_sizes, no_operator};
use crate::store::snapshots::{Reader, SnapshotGuard};
use crate::store::state::KeyspaceState;
use crate::store::store::OpenStore;
use crate::store::transaction_locks::{LockedKey, Owner};

/// What a transaction is protected from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// The result is as if the transactions had run one after the other. What a transaction has read, keys and ranges, must
    /// be unchanged when it commits; otherwise the commit returns [`Error::Conflict`].
    #[default]
    Serializable,
    /// The transaction reads one moment, and no update is lost: if somebody else has written to a key since then, a put or
    /// delete of it is a conflict. Reads are not validated, and take no memory. So two transactions may each read what the
    /// other one writes (*write skew*).
    Snapshot,
}

/// Reads and writes over any keyspaces of a store that take effect together when it commits, or not at all. Made by
/// [`Database::begin`](crate::Database::begin); [`Database::transact`](crate::Database::transact) also retries.
///
/// Reads see the state of all keyspaces at the moment when the transaction began, with its own writes. Dropping it
/// discards the writes. If it has not written, it commits without any validation. A transaction of which only the
/// snapshot is wanted is a [`Snapshot`](crate::Snapshot).
///
/// Conflicts are found at the commit: the work of a transaction that conflicts is lost. For keys that many want to change
/// at once, [`Transaction::get_for_update`] locks first.
///
/// # Memory
/// Writes, and with [`Isolation::Serializable`] the keys and the bounds of the ranges that were read, stay in memory until
/// the end. All transactions of a store together may have an eighth of its memory budget. One commit has at most
/// [`BATCH_BYTES_MAX`](crate::BATCH_BYTES_MAX), as a batch.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// use spinney::{Error, Isolation};
/// let db = spinney::Database::builder_in_memory().open()?;
/// let stock = db.keyspace("stock", spinney::KeyspaceOptions::stb())?;
/// let orders = db.keyspace("orders", spinney::KeyspaceOptions::stb())?;
/// stock.put("apples", "1")?;
/// let mut order = db.begin(Isolation::Serializable);
/// if order.get(&stock, "apples")?.as_deref() == Some(b"1") {
///     order.delete(&stock, "apples")?;
///     order.put(&orders, "ada", "apples")?;
/// }
/// stock.put("apples", "7")?; // somebody else
/// assert!(matches!(order.commit(), Err(Error::Conflict { .. })));
/// assert_eq!(orders.get("ada")?, None);
/// # Ok(()) }
/// ```
pub struct Transaction {
    store: Arc<OpenStore>,
    owner: Owner,
    isolation: Isolation,
    lock_timeout: Duration,
    inner: Shared,
}

/// The state of a transaction, which its iterators share.
type Shared = Arc<Mutex<Inner>>;

struct Inner {
    store: Arc<OpenStore>,
    isolation: Isolation,
    snapshot: Arc<SnapshotGuard>,
    /// Those that it has used. Their places in this list are their numbers here.
    keyspaces: Vec<Arc<KeyspaceState>>,
    writes: Writes,
    /// Kept with [`Isolation::Serializable`].
    reads: Reads,
    /// Something has been returned of the snapshot.
    has_read: bool,
    /// Keys that it has locked.
    locked: Vec<LockedKey>,
    /// The last operation has failed with a conflict that another try may not meet.
    conflict: Option<Conflict>,
    /// Taken of the store's memory for transactions.
    bytes: u64,
    has_ended: bool,
}

/// Where a transaction has met a conflict: somebody has written to the key, or has locked it and waits for this one.
struct Conflict {
    keyspace: Arc<KeyspaceState>,
    key: Vec<u8>,
}

/// A point in a transaction to go back to. See [`Transaction::savepoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint {
    owner: Owner,
    mark: Mark,
}

impl Transaction {
    pub(super) fn new(store: &Arc<OpenStore>, isolation: Isolation) -> Transaction {
        let visible = || store.committer.visible();
        let snapshot = store.snapshots.register(Reader::Snapshot, visible);
        let inner = Inner {
            store: Arc::clone(store),
            isolation,
            snapshot: Arc::new(snapshot),
            keyspaces: Vec::new(),
            writes: Writes::default(),
            reads: Reads::default(),
            has_read: false,
            locked: Vec::new(),
            conflict: None,
            bytes: 0,
            has_ended: false,
        };
        Transaction {
            store: Arc::clone(store),
            owner: store.transaction_locks.owner(true),
            isolation,
            lock_timeout: LOCK_TIMEOUT,
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    /// Returns the number by which errors name this transaction. No other one of the open store has it.
    pub fn id(&self) -> u64 {
        self.owner.number
    }

    /// Returns its isolation.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Sets how long [`Transaction::lock`] and [`Transaction::get_for_update`] wait for a key that is locked. The default
    /// is ten seconds.
    pub fn lock_timeout(&mut self, timeout: Duration) {
        self.lock_timeout = timeout;
    }

    fn enter(&self) -> Result<MutexGuard<'_, Inner>> {
        // In a forked child, a thread that holds the lock may not exist.
        self.store.check_open()?;
        let mut inner = self.inner.lock();
        inner.conflict = None;
        Ok(inner)
    }

    /// Returns the value of `key`, as this transaction sees it.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`]; `InvalidArgument` if the keyspace belongs to another store, or the transactions of
    /// the store have read and written too much.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let mut inner = self.enter()?;
        let place = inner.place(keyspace)?;
        inner.get(place, key.as_ref())
    }

    /// Returns the values of `keys`, in the order of `keys`. The disk reads of all keys are in flight at the same time.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let mut inner = self.enter()?;
        let place = inner.place(keyspace)?;
        inner.multi_get(place, &keys)
    }

    /// Returns true if `key` has a value. Reads no value from a blob file.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let mut inner = self.enter()?;
        let place = inner.place(keyspace)?;
        inner.contains_key(place, key.as_ref())
    }

    /// Returns an iterator over all pairs.
    pub fn iter(&self, keyspace: &Keyspace) -> TransactionIter {
        self.iterate(keyspace, (None, None))
    }

    /// Returns an iterator over the pairs with keys in `range`. See [`Keyspace::range`].
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> TransactionIter {
        self.iterate(keyspace, bounds_of(&range))
    }

    /// Returns an iterator over the pairs with keys that start with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionIter {
        self.iterate(keyspace, bounds_of_prefix(prefix.as_ref()))
    }

    fn iterate(&self, keyspace: &Keyspace, bounds: Bounds) -> TransactionIter {
        let make = || {
            let mut inner = self.enter()?;
            let place = inner.place(keyspace)?;
            let range = match self.isolation {
                Isolation::Snapshot => None,
                Isolation::Serializable => {
                    let (lower, upper) = (bounds.0.as_deref().unwrap_or_default(), &bounds.1);
                    inner.charge(Reads::bytes_of_range(lower, upper.as_deref()))?;
                    Some(inner.reads.add_range(place, lower, upper.as_deref()))
                }
            };
            inner.has_read = true;
            let (state, snapshot) = (keyspace.state(), Some(&inner.snapshot));
            let iter = Iter::new(&self.store, state, snapshot, bounds.clone());
            Ok((place, iter, range))
        };
        match make() {
            Ok((place, iter, range)) => {
                let birthplace = self.store.birthplace;
                TransactionIter::new(&self.inner, birthplace, place, iter, bounds, range)
            }
            Err(error) => TransactionIter::failed(error),
        }
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// `InvalidArgument` if the key or the value is too long, the keyspace belongs to another store, or the transactions of
    /// the store have read and written too much; `ReadOnly`; `Closed`.
    pub fn put(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.write(keyspace, EntryKind::Put, key.as_ref(), value.as_ref())
    }

    /// Removes the value of `key`.
    ///
    /// # Errors
    /// The errors of [`Transaction::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(keyspace, EntryKind::Delete, key.as_ref(), &[])
    }

    /// Removes the values of all keys in `range`, those that the transaction has put before it included. Whatever is in the range
    /// when the transaction commits is removed; under [`Isolation::Snapshot`] that is a conflict if it was not there, or was
    /// another one, in the snapshot. See [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let carts = db.keyspace("carts", spinney::KeyspaceOptions::stb())?;
    /// # let orders = db.keyspace("orders", spinney::KeyspaceOptions::stb())?;
    /// carts.put("ada/1", "pears")?;
    /// carts.put("ada/2", "plums")?;
    /// db.transact(|transaction| {
    ///     let order: Vec<_> = transaction.prefix(&carts, "ada/").collect::<spinney::Result<_>>()?;
    ///     transaction.put(&orders, "ada", format!("{} things", order.len()))?;
    ///     transaction.delete_prefix(&carts, "ada/")
    /// })?;
    /// assert_eq!((orders.get("ada")?.unwrap().len(), carts.count(..)?), (8, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Transaction::put`].
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<()> {
        self.delete_within(keyspace, bounds_of(&range))
    }

    /// Removes the values of all keys that start with `prefix`. See [`Transaction::delete_range`].
    ///
    /// # Errors
    /// The errors of [`Transaction::put`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.delete_within(keyspace, bounds_of_prefix(prefix.as_ref()))
    }

    fn delete_within(&mut self, keyspace: &Keyspace, bounds: Bounds) -> Result<()> {
        match range_of_keys(bounds) {
            Some((lower, upper)) => {
                let upper = upper.unwrap_or_default();
                self.write(keyspace, EntryKind::RangeDelete, &lower, &upper)
            }
            None => self.enter()?.place(keyspace).map(|_| ()),
        }
    }

    /// Folds `operand` into the value of `key`, whatever that is when the transaction commits: without a read of the key,
    /// merges never conflict. See [`Keyspace::merge`].
    ///
    /// # Errors
    /// The errors of [`Transaction::put`] and [`Keyspace::merge`].
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        let state = keyspace.state();
        if state.merge.operator.is_none() {
            state.check_exists()?;
            return Err(no_operator(state));
        }
        self.write(keyspace, EntryKind::Merge, key.as_ref(), operand.as_ref())
    }

    fn write(
        &mut self,
        keyspace: &Keyspace,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let mut inner = self.enter()?;
        let place = inner.place(keyspace)?;
        inner.write(place, kind, key, value)
    }

    /// Locks `key` until the transaction ends: nobody else commits a write to it meanwhile. Waits if another transaction
    /// has it. Whoever else writes to it, with a transaction or without, waits until this transaction ends, for at most ten
    /// seconds. A thread that writes to a key that it has locked itself, but outside of the transaction, waits in vain.
    ///
    /// If somebody has written to the key since the transaction began, its snapshot is taken anew: then it sees the newest
    /// value. That needs everything that it has read to be unchanged. So lock first, then read.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let counters = db.keyspace("counters", spinney::KeyspaceOptions::stb())?;
    /// let mut transaction = db.begin(spinney::Isolation::Serializable);
    /// transaction.lock(&counters, "visits")?;
    /// let visits = transaction.get(&counters, "visits")?.map_or(0, |visits| visits[0]);
    /// transaction.put(&counters, "visits", [visits + 1])?;
    /// transaction.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - `Conflict` if a deadlock would arise: the error names all transactions of the circle; if the key stays locked
    ///   for longer than [`Transaction::lock_timeout`]; if the key was written to since the transaction began, and
    ///   something that it has read before too (with [`Isolation::Snapshot`], if it has read anything).
    /// - The errors of [`Transaction::put`] and [`Keyspace::get`]; `InvalidArgument` inside a merge operator.
    pub fn lock(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let mut inner = self.enter()?;
        let place = inner.place(keyspace)?;
        inner.lock(place, key.as_ref(), self.owner, self.lock_timeout)
    }

    /// Locks `key` ([`Transaction::lock`]), and returns its value.
    ///
    /// # Errors
    /// The errors of [`Transaction::lock`] and [`Transaction::get`].
    pub fn get_for_update(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        self.lock(keyspace, key.as_ref())?;
        self.get(keyspace, key)
    }

    /// Notes what has been written so far, for [`Transaction::rollback_to`].
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// let mut transaction = db.begin(spinney::Isolation::Serializable);
    /// transaction.put(&items, "a", "1")?;
    /// let before = transaction.savepoint();
    /// transaction.put(&items, "a", "2")?;
    /// transaction.rollback_to(before)?;
    /// assert_eq!(transaction.get(&items, "a")?.unwrap(), b"1");
    /// # Ok(()) }
    /// ```
    pub fn savepoint(&self) -> Savepoint {
        let mark = self.enter().map_or(Writes::default().mark(), |inner| inner.writes.mark());
        Savepoint { owner: self.owner, mark }
    }

    /// Takes back what has been written since `savepoint`, and the savepoints after it. What has been read since then still
    /// counts, and keys stay locked.
    ///
    /// # Errors
    /// `InvalidArgument` if the savepoint is of another transaction, or was taken back.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let mut inner = self.enter()?;
        if savepoint.owner != self.owner || !inner.writes.has(savepoint.mark) {
            return Err(Error::invalid(
                "the savepoint is of another transaction, or of a part that was taken back",
            ));
        }
        let bytes = inner.writes.truncate(savepoint.mark);
        inner.give_back(bytes);
        Ok(())
    }

    /// Commits all writes atomically, with `Durability::Buffered`.
    ///
    /// # Errors
    /// - `Conflict` if somebody has written to what the transaction has read ([`Isolation::Serializable`]), or to a key
    ///   that it puts or deletes ([`Isolation::Snapshot`]): begin anew. Also if a key that it writes to stays locked.
    /// - The errors of [`Batch::commit`](crate::Batch::commit) and [`Keyspace::get`].
    ///
    /// Nothing is written in these cases; the exception is a failed sync, as with a batch.
    pub fn commit(self) -> Result<()> {
        self.commit_with(Durability::Buffered)
    }

    /// [`Transaction::commit`] with the given durability.
    ///
    /// # Errors
    /// The errors of [`Transaction::commit`].
    pub fn commit_with(mut self, durability: Durability) -> Result<()> {
        self.try_commit(durability)
    }

    fn try_commit(&mut self, durability: Durability) -> Result<()> {
        let mut inner = self.enter()?;
        let result = inner.commit(self.owner, durability);
        inner.end();
        result
    }

    /// Discards all writes, as dropping the transaction does.
    pub fn rollback(self) {}
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.store.birthplace.is_here() {
            // In a forked child, the locks are the parent's.
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        self.inner.lock().end();
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("id", &self.owner.number)
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn check(&self) -> Result<()> {
        match self.has_ended {
            true => Err(Error::Closed { what: "the transaction".to_string() }),
            false => Ok(()),
        }
    }

    fn seqno(&self) -> Option<Seqno> {
        Some(self.snapshot.seqno()).filter(|_| !planted(Bug::TransactionReadsNewest))
    }

    /// The place of a keyspace among those that the transaction uses.
    fn place(&mut self, keyspace: &Keyspace) -> Result<usize> {
        if !Arc::ptr_eq(keyspace.store(), &self.store) {
            let name = keyspace.name();
            return Err(Error::invalid(format!("keyspace {name:?} belongs to another store")));
        }
        Ok(self.place_of(keyspace.state()))
    }

    fn place_of(&mut self, keyspace: &Arc<KeyspaceState>) -> usize {
        let known = self.keyspaces.iter().position(|known| Arc::ptr_eq(known, keyspace));
        known.unwrap_or_else(|| {
            self.keyspaces.push(Arc::clone(keyspace));
            self.keyspaces.len() - 1
        })
    }

    /// Takes so many bytes more of the memory for transactions.
    fn charge(&mut self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let wants_room = self.store.transaction_memory.take(bytes)?;
        self.bytes += bytes;
        if wants_room {
            self.store.share_memory();
        }
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.store.transaction_memory.give_back(bytes);
    }

    /// Notes that a key is read.
    fn note_read(&mut self, place: usize, key: &[u8]) -> Result<()> {
        self.has_read = true;
        if self.isolation == Isolation::Serializable
            && let Some(bytes) = self.reads.bytes_of_point(place, key)
        {
            self.charge(bytes)?;
            self.reads.add_point(place, key);
        }
        Ok(())
    }

    fn write(&mut self, place: usize, kind: EntryKind, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.check_not_read_only()?;
        check_sizes(key, value)?;
        self.charge(Writes::bytes_of(key, value))?;
        self.writes.push(place, kind, key, value);
        Ok(())
    }

    /// Returns the keys that were locked, and the memory. What is left is for iterators, which end.
    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        if !self.locked.is_empty() {
            self.store.transaction_locks.release(self.locked.iter());
            self.locked = Vec::new();
        }
        self.writes = Writes::default();
        self.reads = Reads::default();
        self.give_back(self.bytes);
    }
}
