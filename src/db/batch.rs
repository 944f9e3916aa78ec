//! Batches: several writes, over any keyspaces, that happen wholly or not at all.

use std::sync::Arc;

use super::keyspace::Keyspace;
use super::state::KeyspaceState;
use super::store::{OpenStore, Operation};
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};

/// Writes gathered for one atomic commit. Later ones win over earlier ones for the same key.
///
/// Dropping a batch without `commit` writes nothing.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// let db = spinney::Database::builder_in_memory().open()?;
/// let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
/// let mut batch = db.batch();
/// batch.put(&items, "a", "1");
/// batch.delete(&items, "b");
/// assert_eq!(batch.len(), 2);
/// batch.commit()?;
/// # Ok(()) }
/// ```
pub struct Batch {
    store: Arc<OpenStore>,
    durability: Durability,
    keyspaces: Vec<Arc<KeyspaceState>>,
    operations: Vec<BatchOperation>,
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
    /// A keyspace of another store was named.
    foreign: Option<String>,
}

struct BatchOperation {
    keyspace: usize,
    kind: EntryKind,
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

impl Batch {
    pub(crate) fn new(store: &Arc<OpenStore>) -> Batch {
        Batch {
            store: Arc::clone(store),
            durability: Durability::default(),
            keyspaces: Vec::new(),
            operations: Vec::new(),
            bytes: Vec::new(),
            foreign: None,
        }
    }

    /// When `commit` returns.
    pub fn durability(mut self, durability: Durability) -> Batch {
        self.durability = durability;
        self
    }

    fn push(&mut self, keyspace: &Keyspace, kind: EntryKind, key: &[u8], value: &[u8]) {
        if !Arc::ptr_eq(keyspace.store(), &self.store) {
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
        self.operations.push(BatchOperation {
            keyspace,
            kind,
            key: start..middle,
            value: middle..end,
        });
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

    /// Carries the writes out, all at once. An empty batch with `Durability::Sync` is a sync.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value that is too long, a merge without operator, or a keyspace
    /// of another store; `Full`, `Poisoned`, `Closed`. Nothing has been written then, except that
    /// after a failed sync it is unknown what a power loss would leave.
    pub fn commit(self) -> Result<()> {
        if let Some(name) = &self.foreign {
            return Err(Error::invalid(format!("keyspace {name:?} belongs to another store")));
        }
        let operations = || {
            self.operations.iter().map(|operation| Operation {
                keyspace: &self.keyspaces[operation.keyspace],
                kind: operation.kind,
                key: &self.bytes[operation.key.clone()],
                value: &self.bytes[operation.value.clone()],
            })
        };
        if planted(Bug::BatchInHalves) && self.len() > 1 {
            let middle = self.len() / 2;
            self.store.commit(|| operations().take(middle), self.durability)?;
            return self.store.commit(|| operations().skip(middle), self.durability);
        }
        if planted(Bug::BatchByKeyspace) {
            return self.keyspaces.iter().try_for_each(|one| {
                let of_one = |operation: &Operation<'_>| Arc::ptr_eq(operation.keyspace, one);
                self.store.commit(|| operations().filter(of_one), self.durability)
            });
        }
        self.store.commit(operations, self.durability)
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
