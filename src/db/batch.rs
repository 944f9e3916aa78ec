//! Batches: several writes, over any keyspaces, that happen wholly or not at all.

use std::sync::Arc;

use super::keyspace::Keyspace;
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::store::operation::Operation;
use crate::store::state::KeyspaceState;
use crate::store::store::OpenStore;

/// Writes gathered for one atomic commit. Later ones win over earlier ones for the same key.
///
/// A batch made by [`Batch::new`] belongs to the store of the first keyspace that it names; one made by
/// [`Database::batch`](super::database::Database::batch) belongs to that store. Dropping a batch writes nothing.
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
/// batch.clear(); // to be filled again, with the memory it has
/// assert!(batch.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Batch {
    /// The store that the keyspaces belong to; none until one is named.
    store: Option<Arc<OpenStore>>,
    durability: Durability,
    keyspaces: Vec<Arc<KeyspaceState>>,
    operations: Vec<Gathered>,
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
    /// A keyspace of another store was named.
    foreign: Option<String>,
}

#[derive(Clone)]
struct Gathered {
    keyspace: usize,
    kind: EntryKind,
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

/// One write of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchOperation<'a> {
    /// The key gets a value.
    Put {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// The key's value is removed.
    Delete {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
    },
    /// An operand is folded into the key's value.
    Merge {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
        /// The operand.
        operand: &'a [u8],
    },
}

impl Batch {
    /// An empty batch that belongs to no store yet.
    pub fn new() -> Batch {
        Batch::default()
    }

    pub(crate) fn of(store: &Arc<OpenStore>) -> Batch {
        Batch { store: Some(Arc::clone(store)), ..Batch::default() }
    }

    /// When the commit returns.
    pub fn durability(mut self, durability: Durability) -> Batch {
        self.durability = durability;
        self
    }

    /// Drops the writes. The memory, the durability and the store stay.
    pub fn clear(&mut self) {
        self.keyspaces.clear();
        self.operations.clear();
        self.bytes.clear();
        self.foreign = None;
    }

    /// The writes, in the order in which they were gathered.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BatchOperation<'_>> {
        self.operations().map(|operation| {
            let Operation { keyspace, kind, key, value } = operation;
            let keyspace = keyspace.name.as_str();
            match kind {
                EntryKind::Delete => BatchOperation::Delete { keyspace, key },
                EntryKind::Merge => BatchOperation::Merge { keyspace, key, operand: value },
                // Only these three are ever gathered.
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

    fn push(&mut self, keyspace: &Keyspace, kind: EntryKind, key: &[u8], value: &[u8]) {
        let store = self.store.get_or_insert_with(|| Arc::clone(keyspace.store()));
        if !Arc::ptr_eq(keyspace.store(), store) {
            self.foreign = Some(keyspace.name().to_string());
            return;
        }
        let state = keyspace.state();
        let known = self.keyspaces.iter().rposition(|known| Arc::ptr_eq(known, state));
        let keyspace = known.unwrap_or_else(|| {
            self.keyspaces.push(Arc::clone(state));
            self.keyspaces.len() - 1
        });
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let end = self.bytes.len();
        self.operations.push(Gathered { keyspace, kind, key: start..middle, value: middle..end });
    }

    /// Gives the key a value.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(keyspace, EntryKind::Put, key.as_ref(), value.as_ref());
    }

    /// Takes the key's value away.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.push(keyspace, EntryKind::Delete, key.as_ref(), &[]);
    }

    /// Folds an operand into the key's value.
    pub fn merge(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.push(keyspace, EntryKind::Merge, key.as_ref(), operand.as_ref());
    }

    /// How many writes it has gathered.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it has gathered none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Bytes of the keys and values gathered.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Carries the writes out, all at once. An empty batch with `Durability::Sync` is a sync of its store; an
    /// empty one that belongs to no store does nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value that is too long, a merge without operator, or a keyspace
    /// of another store; `Full`, `Poisoned`, `Closed`. Nothing has been written then, except that
    /// after a failed sync it is unknown what a power loss would leave.
    pub fn commit(self) -> Result<()> {
        match &self.store {
            Some(store) => self.write_to(store),
            None => Ok(()),
        }
    }

    /// Carries the writes out on `store`.
    pub(crate) fn write_to(&self, store: &Arc<OpenStore>) -> Result<()> {
        let is_other = self.store.as_ref().is_some_and(|own| !Arc::ptr_eq(own, store));
        if is_other && !self.is_empty() {
            return Err(Error::invalid("the batch's keyspaces belong to another store"));
        }
        if let Some(name) = &self.foreign {
            return Err(Error::invalid(format!("keyspace {name:?} belongs to another store")));
        }
        if planted(Bug::BatchInHalves) || planted(Bug::BatchByKeyspace) {
            return self.write_in_parts(store);
        }
        store.commit(|| self.operations(), self.durability)
    }

    /// The planted bugs of a batch that is not carried out all at once.
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
