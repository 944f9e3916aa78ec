//! stub of the public API; bodies are written elsewhere
use std::ops::RangeBounds;
use std::path::Path;
use super::options::*;
use super::statistics::Statistics;
use crate::base::error::Result;
use crate::base::slice::Slice;
use crate::tree::description::TreeDescription;

/// A store. Cheap to clone.
#[derive(Clone)]
pub struct Database;
/// A keyspace handle. Cheap to clone.
#[derive(Clone)]
pub struct Keyspace;
/// A batch.
pub struct Batch;
/// A snapshot.
#[derive(Clone)]
pub struct Snapshot;
/// A double-ended iterator of (key, value) pairs.
pub struct Iter;
/// What opening the store recovered.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// Journal records replayed.
    pub records_replayed: u64,
    /// Journal bytes replayed.
    pub bytes_replayed: u64,
    /// Records found beyond the first gap and dropped.
    pub records_dropped: u64,
    /// Bytes of them.
    pub bytes_dropped: u64,
    /// Why replay stopped where it did, if not at a clean end.
    pub stopped: Option<String>,
    /// Files that nothing referred to, removed.
    pub orphans_removed: u64,
}
/// What `check` found and read.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Files read.
    pub files: u64,
    /// Pages verified.
    pub pages: u64,
    /// Entries verified.
    pub entries: u64,
    /// Each problem found.
    pub problems: Vec<crate::Error>,
}
impl Database {
    /// Builder for a store in directory `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder { Builder::posix(path.as_ref()) }
    /// Builder for a store in memory.
    pub fn builder_in_memory() -> Builder { Builder::in_memory() }
    pub(crate) fn open(_b: Builder) -> Result<Database> { todo!() }
    /// Opens or creates a keyspace; mismatching options are `Conflict`.
    pub fn keyspace(&self, _name: &str, _options: KeyspaceOptions) -> Result<Keyspace> { todo!() }
    /// Opens a keyspace that exists, with the options it has. `NotFound` otherwise.
    pub fn existing_keyspace(&self, _name: &str) -> Result<Keyspace> { todo!() }
    /// Names of all keyspaces, sorted.
    pub fn keyspaces(&self) -> Vec<String> { todo!() }
    /// Drops a keyspace and its data.
    pub fn drop_keyspace(&self, _name: &str) -> Result<()> { todo!() }
    /// An empty batch.
    pub fn batch(&self) -> Batch { todo!() }
    /// A snapshot of everything committed.
    pub fn snapshot(&self) -> Snapshot { todo!() }
    /// Makes all commits so far durable against power loss.
    pub fn sync(&self) -> Result<()> { todo!() }
    /// Waits until background work is done.
    pub fn wait_idle(&self) -> Result<()> { todo!() }
    /// A consistent, openable copy in the new directory `dir`, by hard links.
    pub fn checkpoint(&self, _dir: impl AsRef<Path>) -> Result<()> { todo!() }
    /// Verifies the store. Damage is in the report, not an `Err`.
    pub fn check(&self, _level: CheckLevel) -> Result<CheckReport> { todo!() }
    /// Statistics.
    pub fn stats(&self) -> Statistics { todo!() }
    /// What opening recovered.
    pub fn recovery(&self) -> RecoveryReport { todo!() }
    /// Closes the store: waits for running steps, syncs the journal. Later calls give `Closed`.
    pub fn close(self) -> Result<()> { todo!() }
    /// One background step in deterministic mode; false if there was nothing to do.
    pub fn step(&self) -> Result<bool> { todo!() }
}
impl Keyspace {
    /// Name.
    pub fn name(&self) -> &str { todo!() }
    /// Options.
    pub fn options(&self) -> &KeyspaceOptions { todo!() }
    /// Put.
    pub fn put(&self, _key: impl AsRef<[u8]>, _value: impl AsRef<[u8]>) -> Result<()> { todo!() }
    /// Get.
    pub fn get(&self, _key: impl AsRef<[u8]>) -> Result<Option<Slice>> { todo!() }
    /// Delete.
    pub fn delete(&self, _key: impl AsRef<[u8]>) -> Result<()> { todo!() }
    /// Merge.
    pub fn merge(&self, _key: impl AsRef<[u8]>, _operand: impl AsRef<[u8]>) -> Result<()> { todo!() }
    /// Multi-get: all reads in flight at once; results in the order of the keys.
    pub fn multi_get<K: AsRef<[u8]>>(&self, _keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Slice>>> { todo!() }
    /// Whether the key has a value.
    pub fn contains_key(&self, _key: impl AsRef<[u8]>) -> Result<bool> { todo!() }
    /// All pairs.
    pub fn iter(&self) -> Iter { todo!() }
    /// Pairs with keys in the range (e.g. `"a".."b"`, or `(Bound<&[u8]>, Bound<&[u8]>)`).
    pub fn range<K: AsRef<[u8]>>(&self, _range: impl RangeBounds<K>) -> Iter { todo!() }
    /// Pairs whose keys start with the prefix.
    pub fn prefix(&self, _prefix: impl AsRef<[u8]>) -> Iter { todo!() }
    /// Makes the memtable part of the tree and waits for that.
    pub fn flush(&self) -> Result<()> { todo!() }
    /// Compacts the range fully (drops superseded versions and tombstones) and waits.
    pub fn compact<K: AsRef<[u8]>>(&self, _range: impl RangeBounds<K>) -> Result<()> { todo!() }
    /// How the tree looks.
    pub fn describe(&self) -> TreeDescription { todo!() }
}
impl Batch {
    /// Durability.
    pub fn durability(self, _d: Durability) -> Batch { todo!() }
    /// Put.
    pub fn put(&mut self, _ks: &Keyspace, _key: impl AsRef<[u8]>, _value: impl AsRef<[u8]>) { todo!() }
    /// Delete.
    pub fn delete(&mut self, _ks: &Keyspace, _key: impl AsRef<[u8]>) { todo!() }
    /// Merge.
    pub fn merge(&mut self, _ks: &Keyspace, _key: impl AsRef<[u8]>, _operand: impl AsRef<[u8]>) { todo!() }
    /// Number of operations.
    pub fn len(&self) -> usize { todo!() }
    /// Whether empty.
    pub fn is_empty(&self) -> bool { todo!() }
    /// Commits atomically.
    pub fn commit(self) -> Result<()> { todo!() }
}
impl Snapshot {
    /// Get.
    pub fn get(&self, _ks: &Keyspace, _key: impl AsRef<[u8]>) -> Result<Option<Slice>> { todo!() }
    /// Multi-get.
    pub fn multi_get<K: AsRef<[u8]>>(&self, _ks: &Keyspace, _keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Slice>>> { todo!() }
    /// Contains.
    pub fn contains_key(&self, _ks: &Keyspace, _key: impl AsRef<[u8]>) -> Result<bool> { todo!() }
    /// All pairs.
    pub fn iter(&self, _ks: &Keyspace) -> Iter { todo!() }
    /// Range.
    pub fn range<K: AsRef<[u8]>>(&self, _ks: &Keyspace, _range: impl RangeBounds<K>) -> Iter { todo!() }
    /// Prefix.
    pub fn prefix(&self, _ks: &Keyspace, _prefix: impl AsRef<[u8]>) -> Iter { todo!() }
}
impl Iterator for Iter { type Item = Result<(Slice, Slice)>; fn next(&mut self) -> Option<Self::Item> { todo!() } }
impl DoubleEndedIterator for Iter { fn next_back(&mut self) -> Option<Self::Item> { todo!() } }
