//! Shared by the tests of trees: a context, a memtable, and an observer with snapshots.

use std::path::Path;
use std::sync::Arc;

use super::kinds::TreeKind;
use super::options::KeyspaceOptions;
use super::{PackSource, TreeContext, TreeCounters, TreeObserver, TreeOptions, TreeVersion};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::Result;
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::key_hash::{HashSecret, test_hasher};
use crate::base::sync::ArcSwap;
use crate::cache::{Cache, Compression, DataFiles};
use crate::jobs::Clock;
use crate::manifest::{
    Edit, KeyspaceChange, KeyspaceEdit, KeyspaceMeta, Manifest, NewStore, OpenOptions,
};
use crate::merge::{Append, MergeContext, MergeOperator};
use crate::table::{BlobFiles, Table, TableBuilder, TableOptions};
use crate::vfs::{MemoryVfs, Vfs};

/// A memtable of puts, one version a key.
pub(super) struct Puts {
    pub(super) seqno: u64,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) at: usize,
}

impl PackSource for Puts {
    fn next(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let key = self.keys.get(self.at.checked_sub(1)?)?;
        let seqno = Seqno(self.seqno);
        Some(EntryRef { key, seqno, kind: EntryKind::Put, value: &[7; 120] })
    }

    fn entries(&self) -> usize {
        self.keys.len()
    }
}

/// Holds snapshots.
pub(super) struct Reader(pub(super) Vec<Seqno>);

impl TreeObserver for Reader {
    fn installed(&self, _version: Arc<dyn TreeVersion>) {}
    fn compacted(&self, _read_bytes: u64, _written_bytes: u64, _nanos: u64) {}
    fn snapshots(&self) -> Vec<Seqno> {
        self.0.clone()
    }
    fn is_dropped(&self) -> bool {
        false
    }
}

/// The options of a kind, the first of its own with this value: the most children of a node, for most kinds.
pub(in crate::tree) fn with_first_option(kind: TreeKind, value: u32) -> KeyspaceOptions {
    let options = KeyspaceOptions::new(kind);
    let (name, _) = kind.options().next().expect("an option of its own");
    options.kind_option(name, value).expect("an option of the kind")
}

/// A store in memory with one empty keyspace: small memtables, operands appended.
pub(super) fn context(kind: &str, observer: &Arc<dyn TreeObserver>) -> TreeContext {
    context_on(Arc::new(MemoryVfs::new()), kind, observer)
}

/// The same store on a file system without it.
pub(super) fn context_on(
    vfs: Arc<dyn Vfs>,
    kind: &str,
    observer: &Arc<dyn TreeObserver>,
) -> TreeContext {
    let dir = Path::new("/store");
    vfs.create_dir_all(dir).unwrap();
    let options = OpenOptions {
        create: true,
        new_store: NewStore { store_id: 1, hash_secret: HashSecret::default() },
    };
    let (manifest, _) = Manifest::open(&vfs, dir, options).unwrap();
    let keyspace = KeyspaceId(1);
    let operator: Arc<dyn MergeOperator> = Arc::new(Append);
    let meta = KeyspaceMeta {
        name: "items".to_string(),
        kind: kind.to_string(),
        options: Vec::new(),
        operator: Some(operator.name().to_string()),
    };
    let keyspaces = vec![KeyspaceEdit { id: keyspace, change: KeyspaceChange::Create(meta) }];
    manifest.commit(&Edit { keyspaces, ..Edit::default() }).unwrap();
    let cache = Arc::new(Cache::new(1 << 20));
    let files = Arc::new(DataFiles::new(vfs, cache, dir, FileId(1), test_hasher()));
    TreeContext {
        keyspace,
        options: Arc::new(ArcSwap::from_pointee(TreeOptions {
            kind: TreeKind::from_name(kind).unwrap_or_default(),
            origin: Arc::default(),
            compression: Compression::None,
            memtable_bytes: 1024,
            own: KeyspaceOptions::stb().fanout_max(2).own,
            seek_compaction: true,
            merges_for_reads_max: 1,
            blob_bytes_min: 4096,
            space_amplification_max_percent: 130,
            job_bytes_max: 1 << 20,
            fold_bytes_max: 1 << 20,
        })),
        merge: MergeContext { operator: Some(operator), ..MergeContext::default() },
        blobs: BlobFiles::new(&files),
        files,
        manifest: Arc::new(manifest),
        counters: Arc::new(TreeCounters::default()),
        clock: Arc::new(Clock::simulated()),
        observer: Arc::downgrade(observer),
    }
}

/// The keys of [`table_of`].
pub(super) fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A table with puts of 100 bytes, and deletes, of keys by number, in the order of a table's entries: of each number and kind.
pub(super) fn table_with(
    files: &Arc<DataFiles>,
    entries: impl IntoIterator<Item = (u64, u64, EntryKind)>,
) -> Arc<Table> {
    let options = TableOptions { creation: files.next_file_id().0, ..TableOptions::default() };
    let mut table = TableBuilder::new(files, &BlobFiles::new(files), options).unwrap();
    for (key, seqno, kind) in entries {
        let value = if kind == EntryKind::Delete { &[][..] } else { &[7; 100] };
        table.add(&key_of(key), Seqno(seqno), kind, value).unwrap();
    }
    table.finish().unwrap()
}

/// A table with puts of 100 bytes, or deletes, of keys by number, ascending; `age` numbers its entries.
pub(super) fn table_of(
    files: &Arc<DataFiles>,
    kind: EntryKind,
    age: u64,
    keys: impl IntoIterator<Item = u64>,
) -> Arc<Table> {
    let options = TableOptions { creation: age, ..TableOptions::default() };
    let mut table = TableBuilder::new(files, &BlobFiles::new(files), options).unwrap();
    let value = if kind == EntryKind::Delete { &[][..] } else { &[7; 100] };
    for key in keys {
        table.add(&key_of(key), Seqno(age), kind, value).unwrap();
    }
    table.finish().unwrap()
}
