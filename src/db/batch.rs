//! Batches: several writes to any keyspaces, committed atomically.

use std::sync::Arc;

use super::keyspace::Keyspace;
use super::range::{Bounds, KeyRange, bounds_of, bounds_of_prefix, range_of_keys};
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, hold_open, planted};
use crate::merge::Contained;
use crate::store::condition::{Condition, Preconditions};
use crate::store::operation::{Operation, check_sizes};
use crate::store::read;
use crate::store::state::KeyspaceState;
use crate::store::store::OpenStore;
use crate::store::tries::Tries;

/// A list of writes for one atomic commit. A later write overrides an earlier one to the same key.
///
/// A batch made by [`Batch::new`] belongs to the store of the first keyspace that is written to. A batch
/// made by [`Database::batch`](super::database::Database::batch) belongs to that database's store.
/// Dropping a batch writes nothing. A batch may have conditions ([`Batch::require_absent`] and its siblings): if one of
/// them does not hold, nothing is written.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// use spinney::{Batch, BatchOperation};
/// let db = spinney::Database::builder_in_memory().open()?;
/// let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
/// let mut batch = Batch::new();
/// batch.put(&items, "a", "1");
/// batch.delete(&items, "b");
/// assert_eq!(batch.len(), 2);
/// let first = batch.iter().next().unwrap();
/// assert_eq!(first, BatchOperation::Put { keyspace: "items", key: b"a", value: b"1" });
/// db.write(&batch)?; // or batch.commit(), which consumes it
/// batch.clear(); // keeps its memory for reuse
/// assert!(batch.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Batch {
    /// The store that the keyspaces belong to; `None` until the first write.
    store: Option<Arc<OpenStore>>,
    durability: Durability,
    keyspaces: Vec<Arc<KeyspaceState>>,
    operations: Vec<Gathered>,
    required: Vec<Required>,
    /// All keys and values, concatenated.
    bytes: Vec<u8>,
    /// The name of a keyspace of another store that was written to: the commit fails.
    foreign: Option<String>,
}

#[derive(Clone)]
struct Gathered {
    keyspace: usize,
    kind: EntryKind,
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

/// What a key must hold.
#[derive(Clone)]
struct Required {
    keyspace: usize,
    key: std::ops::Range<usize>,
    what: Wanted,
}

#[derive(Clone)]
enum Wanted {
    Absent,
    Present,
    Value(std::ops::Range<usize>),
}

/// One write of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchOperation<'a> {
    /// Sets the key's value.
    Put {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// Removes the key's value.
    Delete {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
    },
    /// Folds an operand into the key's value.
    Merge {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
        /// The operand.
        operand: &'a [u8],
    },
    /// Removes the values of all keys in a range.
    DeleteRange {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The first key of the range.
        lower: &'a [u8],
        /// The first key behind it, if it has an end.
        upper: Option<&'a [u8]>,
    },
}

impl Batch {
    /// Returns an empty batch that belongs to no store yet.
    pub fn new() -> Batch {
        Batch::default()
    }

    pub(crate) fn of(store: &Arc<OpenStore>) -> Batch {
        Batch { store: Some(Arc::clone(store)), ..Batch::default() }
    }

    /// Sets the durability of the commit. The default is `Durability::Buffered`.
    pub fn durability(mut self, durability: Durability) -> Batch {
        self.durability = durability;
        self
    }

    /// Removes all writes and conditions. Keeps the allocated memory, the durability and the store.
    pub fn clear(&mut self) {
        self.keyspaces.clear();
        self.operations.clear();
        self.required.clear();
        self.bytes.clear();
        self.foreign = None;
    }

    /// Returns the writes in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BatchOperation<'_>> {
        self.operations().map(|operation| {
            let Operation { keyspace, kind, key, value } = operation;
            let keyspace = keyspace.name.as_str();
            match kind {
                EntryKind::Delete => BatchOperation::Delete { keyspace, key },
                EntryKind::Merge => BatchOperation::Merge { keyspace, key, operand: value },
                EntryKind::RangeDelete => {
                    let upper = Some(value).filter(|value| !value.is_empty());
                    BatchOperation::DeleteRange { keyspace, lower: key, upper }
                }
                // A batch holds only these four kinds.
                _ => BatchOperation::Put { keyspace, key, value },
            }
        })
    }

    fn operations(&self) -> impl ExactSizeIterator<Item = Operation<'_>> {
        self.operations.iter().map(|operation| Operation {
            keyspace: &self.keyspaces[operation.keyspace],
            kind: operation.kind,
            key: &self.bytes[operation.key.clone()],
            value: &self.bytes[operation.value.clone()],
        })
    }

    /// The place of a keyspace in the batch; `None` if it belongs to another store.
    fn place(&mut self, keyspace: &Keyspace) -> Option<usize> {
        let store = self.store.get_or_insert_with(|| Arc::clone(keyspace.store()));
        if !Arc::ptr_eq(keyspace.store(), store) {
            self.foreign = Some(keyspace.name().to_string());
            return None;
        }
        let state = keyspace.state();
        let known = self.keyspaces.iter().rposition(|known| Arc::ptr_eq(known, state));
        Some(known.unwrap_or_else(|| {
            self.keyspaces.push(Arc::clone(state));
            self.keyspaces.len() - 1
        }))
    }

    fn keep(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn push(&mut self, keyspace: &Keyspace, kind: EntryKind, key: &[u8], value: &[u8]) {
        let Some(keyspace) = self.place(keyspace) else { return };
        let (key, value) = (self.keep(key), self.keep(value));
        self.operations.push(Gathered { keyspace, kind, key, value });
    }

    /// Requires that `key` has no value when the batch is committed: otherwise nothing is written, and the commit returns
    /// `Conflict`. What the batch itself writes does not count.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let users = db.keyspace("users", spinney::KeyspaceOptions::stb())?;
    /// # let names = db.keyspace("names", spinney::KeyspaceOptions::stb())?;
    /// let register = |name: &str, id: &str| {
    ///     let mut batch = db.batch();
    ///     batch.require_absent(&names, name);
    ///     batch.require_absent(&users, id);
    ///     batch.put(&names, name, id);
    ///     batch.put(&users, id, name);
    ///     batch.commit()
    /// };
    /// register("ada", "1")?;
    /// assert!(matches!(register("ada", "2"), Err(spinney::Error::Conflict { .. })));
    /// assert_eq!(users.get("2")?, None);
    /// # Ok(()) }
    /// ```
    pub fn require_absent(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.require(keyspace, key.as_ref(), |_| Wanted::Absent);
    }

    /// Requires that `key` has a value when the batch is committed. As [`Batch::require_absent`].
    pub fn require_present(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.require(keyspace, key.as_ref(), |_| Wanted::Present);
    }

    /// Requires that `key` has this value when the batch is committed. As [`Batch::require_absent`].
    pub fn require_value(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) {
        self.require(keyspace, key.as_ref(), |batch| Wanted::Value(batch.keep(value.as_ref())));
    }

    fn require(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        what: impl FnOnce(&mut Batch) -> Wanted,
    ) {
        let Some(keyspace) = self.place(keyspace) else { return };
        let (key, what) = (self.keep(key), what(self));
        self.required.push(Required { keyspace, key, what });
    }

    /// Adds a write that sets the value of `key`.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(keyspace, EntryKind::Put, key.as_ref(), value.as_ref());
    }

    /// Adds a write that removes the value of `key`.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.push(keyspace, EntryKind::Delete, key.as_ref(), &[]);
    }

    /// Adds a merge operand for `key`. See [`Keyspace::merge`].
    pub fn merge(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.push(keyspace, EntryKind::Merge, key.as_ref(), operand.as_ref());
    }

    /// Adds a write that removes the values of all keys in `range`, those that the batch has put before it included. An empty
    /// range adds nothing. See [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let log = db.keyspace("log", spinney::KeyspaceOptions::stb())?;
    /// # let meta = db.keyspace("meta", spinney::KeyspaceOptions::stb())?;
    /// # log.put("0007", "an entry")?;
    /// let mut batch = db.batch();
    /// batch.delete_range(&log, .."0100");
    /// batch.put(&meta, "first", "0100");
    /// batch.commit()?;
    /// assert_eq!(log.get("0007")?, None);
    /// # Ok(()) }
    /// ```
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) {
        self.delete_within(keyspace, bounds_of(&range));
    }

    /// Adds a write that removes the values of all keys that start with `prefix`. See [`Batch::delete_range`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) {
        self.delete_within(keyspace, bounds_of_prefix(prefix.as_ref()));
    }

    fn delete_within(&mut self, keyspace: &Keyspace, bounds: Bounds) {
        if let Some((lower, upper)) = range_of_keys(bounds) {
            self.push(keyspace, EntryKind::RangeDelete, &lower, &upper.unwrap_or_default());
        }
    }

    /// Returns the number of writes.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns true if the batch has no writes.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns the total size of all keys and values, those of conditions included, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Commits all writes atomically, with the batch's durability. An empty batch with `Durability::Sync`
    /// syncs its store. An empty batch that belongs to no store does nothing.
    ///
    /// # Errors
    /// `InvalidArgument` if a key or value is too long, a keyspace has no merge operator for a merge, or a
    /// keyspace belongs to another store; `Full`; `Poisoned`; `Closed`; `ReadOnly`. Nothing is written in
    /// these cases. The exception is a failed sync: it is then unknown whether the batch survives a power
    /// loss. `Conflict` if a condition does not hold: it names the key. With conditions also the errors of
    /// [`Keyspace::get`], and `InvalidArgument` inside a merge operator.
    pub fn commit(self) -> Result<()> {
        match &self.store {
            Some(store) => self.write_to(store),
            None => Ok(()),
        }
    }

    /// Commits the writes to `store`.
    pub(crate) fn write_to(&self, store: &Arc<OpenStore>) -> Result<()> {
        let is_other = self.store.as_ref().is_some_and(|own| !Arc::ptr_eq(own, store));
        if is_other && !(self.is_empty() && self.required.is_empty()) {
            return Err(Error::invalid("the batch's keyspaces belong to another store"));
        }
        if let Some(name) = &self.foreign {
            return Err(Error::invalid(format!("keyspace {name:?} belongs to another store")));
        }
        if !self.required.is_empty() {
            return self.write_if(store);
        }
        if planted(Bug::BatchInHalves) || planted(Bug::BatchByKeyspace) {
            return self.write_in_parts(store);
        }
        store.commit(|| self.operations(), self.durability)
    }

    /// Commits the writes if all conditions hold. They are looked at without a lock; if nobody has written to one of their
    /// keys since then when all are locked, they hold together.
    fn write_if(&self, store: &Arc<OpenStore>) -> Result<()> {
        Contained::refuse_inside("a batch with conditions")?;
        store.check_writable()?;
        for required in &self.required {
            store.guard(&self.keyspaces[required.keyspace])?;
        }
        let mut conditions = Vec::with_capacity(self.required.len());
        let mut tries = Tries::default();
        loop {
            conditions.clear();
            for required in &self.required {
                conditions.push(self.look(store, required)?);
            }
            hold_open(Bug::ConditionNotVerified, 16);
            hold_open(Bug::ConditionSeesActiveOnly, 16);
            hold_open(Bug::ConditionIgnoresFlush, 16);
            let wanted = Preconditions::of(&conditions);
            if store.commit_if(|| self.operations(), self.durability, &wanted, &mut tries)? {
                return Ok(());
            }
        }
    }

    /// Whether a key holds now what it must, as a condition of the commit.
    fn look<'a>(&'a self, store: &OpenStore, required: &Required) -> Result<Condition<'a>> {
        let (keyspace, key) =
            (&self.keyspaces[required.keyspace], &self.bytes[required.key.clone()]);
        check_sizes(key, &[])?;
        let key_only = !matches!(required.what, Wanted::Value(_));
        let (found, since) = read::newest(store, keyspace, key, key_only)?;
        let differs = match (&required.what, found) {
            (Wanted::Absent, None) | (Wanted::Present, Some(_)) => None,
            (Wanted::Absent, Some(_)) => Some("a value, and the batch requires that it has none"),
            (Wanted::Present | Wanted::Value(_), None) => {
                Some("no value, and the batch requires one")
            }
            (Wanted::Value(wanted), Some(found)) => {
                let is_wanted = *found == self.bytes[wanted.clone()];
                (!is_wanted).then_some("another value than the batch requires")
            }
        };
        match differs {
            None => Ok(Condition { keyspace, key, since }),
            Some(what) => Err(Error::Conflict {
                what: format!(
                    "key \"{}\" of keyspace {:?} has {what}; nothing was written",
                    key.escape_ascii(),
                    keyspace.name
                ),
            }),
        }
    }

    /// The planted bugs of a batch that is not atomic.
    #[cold]
    fn write_in_parts(&self, store: &Arc<OpenStore>) -> Result<()> {
        let part = |number: usize| match planted(Bug::BatchInHalves) {
            true => usize::from(number >= self.len() / 2),
            false => self.operations[number].keyspace,
        };
        (0..self.keyspaces.len().max(2)).try_for_each(|wanted| {
            let numbered = || self.operations().enumerate();
            let of_part = || numbered().filter(|(n, _)| part(*n) == wanted).map(|(_, it)| it);
            store.commit(of_part, self.durability)
        })
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len())
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}
