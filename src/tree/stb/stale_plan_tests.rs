//! Plans that somebody else's job has overtaken.

use std::path::Path;
use std::sync::Weak;

use super::*;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::KeyspaceId;
use crate::cache::{Cache, Compression, ReadContext};
use crate::jobs::Clock;
use crate::manifest::{KeyspaceMeta, Manifest, OpenOptions};
use crate::merge::{Append, MergeOperator};
use crate::table::BlobFiles;
use crate::tree::{TreeCounters, TreeObserver, TreeOptions};
use crate::vfs::{MemoryVfs, Vfs};

/// One operand, as a memtable holds it.
struct Operand {
    seqno: u64,
    value: &'static [u8],
    left: usize,
}

impl PackSource for Operand {
    fn next(&mut self) -> Result<()> {
        self.left = self.left.wrapping_sub(1);
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let (seqno, value) = (Seqno(self.seqno), self.value);
        (self.left == 0).then_some(EntryRef { key: b"key", seqno, kind: EntryKind::Merge, value })
    }

    fn entries(&self) -> usize {
        1
    }
}

struct Nobody;

impl TreeObserver for Nobody {
    fn installed(&self, _version: Arc<dyn TreeVersion>) {}
    fn compacted(&self, _read_bytes: u64, _written_bytes: u64, _nanos: u64) {}
    fn snapshots(&self) -> Vec<Seqno> {
        Vec::new()
    }
    fn is_dropped(&self) -> bool {
        false
    }
}

fn tree() -> Arc<StbTree> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let dir = Path::new("/store");
    vfs.create_dir_all(dir).unwrap();
    let options = OpenOptions { create: true, new_store_id: 1 };
    let (manifest, _) = Manifest::open(&vfs, dir, options).unwrap();
    let keyspace = KeyspaceId(1);
    let operator: Arc<dyn MergeOperator> = Arc::new(Append);
    let meta = KeyspaceMeta {
        name: "items".to_string(),
        kind: "stb".to_string(),
        options: Vec::new(),
        operator: Some(operator.name().to_string()),
    };
    let keyspaces = vec![KeyspaceEdit { id: keyspace, change: KeyspaceChange::Create(meta) }];
    manifest.commit(&Edit { keyspaces, ..Edit::default() }).unwrap();
    let cache = Arc::new(Cache::new(1 << 20));
    let files = Arc::new(crate::cache::DataFiles::new(vfs, cache, dir, FileId(1)));
    let nobody: Weak<Nobody> = Weak::new();
    let context = TreeContext {
        keyspace,
        options: TreeOptions {
            compression: Compression::None,
            memtable_bytes: 1024,
            fanout_max: 2,
            blob_bytes_min: 4096,
            space_amplification_max_percent: 130,
            job_bytes_max: 1 << 20,
        },
        operator: Some(operator),
        blobs: BlobFiles::new(&files),
        files,
        manifest: Arc::new(manifest),
        counters: Arc::new(TreeCounters::default()),
        clock: Arc::new(Clock::simulated()),
        observer: nobody,
    };
    StbTree::open(context, &[], Seqno(0)).unwrap()
}

fn incorporate(tree: &StbTree, seqno: u64, value: &'static [u8]) {
    let packed = tree.pack(&mut Operand { seqno, value, left: 2 }).unwrap();
    tree.incorporate(Some(packed), Seqno(seqno)).unwrap();
}

/// The operands of the key, newest first.
fn operands(tree: &StbTree) -> Vec<Vec<u8>> {
    let mut operands = Vec::new();
    let hash = hash_key(b"key");
    tree.version()
        .get(b"key", hash, Seqno(u64::MAX >> 8), &ReadContext::blocking(), &mut |entry| {
            operands.push(entry.value.to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    operands
}

/// Found by `spinney-sim threads` (merge operands that a snapshot suddenly saw twice). One thread had
/// a compaction of a leaf's first two bundles under way; a third bundle came; another thread loaded
/// the trunk and planned to compact all three; the first thread's job swapped its output in and ended;
/// only then did the other look for jobs that were under way, and found none. Its inputs were no
/// longer what the leaf held, but one of them still was, so its output took that one's place beside
/// the first job's output: both held the first two bundles. The next compaction folded the operands of
/// both, and a tombstone that the second job had dropped would no longer have hidden what the first
/// had kept.
#[test]
fn a_plan_that_another_job_has_overtaken_is_not_carried_out() {
    let tree = tree();
    incorporate(&tree, 1, b"a");
    incorporate(&tree, 2, b"b");
    let (first, _) = tree.next_uncompacted(b"", None).unwrap().unwrap();
    let mut first = tree.claim(first, tree.jobs_ended()).unwrap();
    incorporate(&tree, 3, b"c");
    let ended = tree.jobs_ended();
    let (overtaken, _) = tree.next_uncompacted(b"", None).unwrap().unwrap();
    assert_eq!(overtaken.bundles.len(), 3);
    while first.step().unwrap() == Step::Again {}
    drop(first);
    if let Some(mut second) = tree.claim(overtaken, ended) {
        while second.step().unwrap() == Step::Again {}
    }
    Arc::clone(&tree).compact(b"", None, &|| ()).unwrap();
    assert_eq!(operands(&tree).concat(), b"abc", "{:?}", operands(&tree));
}
