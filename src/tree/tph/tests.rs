//! Keys that share hashes, with versions in many pieces.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::base::key_hash::{HashSecret, KeyHasher};
use crate::base::random::SplitMix;
use crate::cache::{Cache, DataFiles, ReadContext};
use crate::jobs::Step;
use crate::table::BlobFiles;
use crate::tree::CheckScope;
use crate::tree::test_support::{Reader, context, key_of};
use crate::tree::trunk::TrunkTree;
use crate::tree::{PackSource, Tree, TreeObserver};

const KEYS: u64 = 400;

/// A memtable: versions by key ascending, newest first.
struct Versions {
    entries: Vec<(Vec<u8>, u64, Option<Vec<u8>>)>,
    at: usize,
}

impl PackSource for Versions {
    fn next(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let (key, seqno, value) = self.entries.get(self.at.checked_sub(1)?)?;
        let kind = if value.is_some() { EntryKind::Put } else { EntryKind::Delete };
        let value = value.as_deref().unwrap_or_default();
        Some(EntryRef { key, seqno: Seqno(*seqno), kind, value })
    }

    fn entries(&self) -> usize {
        self.entries.len()
    }
}

/// What each key has had: a value, or nothing, from a number on.
type Model = BTreeMap<u64, Vec<(u64, Option<Vec<u8>>)>>;

fn check(tree: &TrunkTree, hasher: &KeyHasher, model: &Model, snapshots: &[u64]) {
    let (version, context) = (tree.version(), ReadContext::blocking());
    for snapshot in snapshots {
        for number in 0..KEYS + 50 {
            let key = key_of(number);
            let mut found = None;
            let see = &mut |entry: EntryRef<'_>| {
                found = (entry.kind == EntryKind::Put).then(|| entry.value.to_vec());
                ControlFlow::Break(())
            };
            version.get(&key, hasher.hash(&key), Seqno(*snapshot), &context, see).unwrap();
            let had = model
                .get(&number)
                .and_then(|versions| versions.iter().rev().find(|(seqno, _)| seqno <= snapshot));
            let expected = had.and_then(|(_, value)| value.clone());
            assert!(found == expected, "key {number} at {snapshot}");
        }
    }
}

/// Hashes of a few bits, or of one, are what an attacker who knew the secret could choose. Answers stay right, for older
/// snapshots too, and nothing takes long.
#[test]
fn keys_that_share_hashes_are_told_apart() {
    for (bits, displacement) in [(64, 0), (7, 0), (7, 1), (1, 0), (0, 1)] {
        let snapshots = [300, 700, 1_100, u64::MAX >> 8];
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(snapshots.map(Seqno).to_vec()));
        let mut context = context("tph", &observer);
        let mut hasher = KeyHasher::new(HashSecret::default());
        // The upper bits: indexes use 48.
        hasher.mask = if bits == 0 { 0 } else { u64::MAX << (64 - bits) };
        let hasher = Arc::new(hasher);
        let (vfs, cache) = (Arc::clone(&context.files.vfs), Arc::new(Cache::new(1 << 20)));
        let dir = Path::new("/store");
        let files = DataFiles::new(vfs, cache, dir, FileId(1), Arc::clone(&hasher));
        context.files = Arc::new(files);
        context.blobs = BlobFiles::new(&context.files);
        let mut options = (*context.options.load_full()).clone();
        options.own.set(&crate::tree::own_options::DISPLACEMENT, displacement);
        context.options.store(Arc::new(options));
        let tree = TrunkTree::open(context, &[], Seqno(0)).unwrap();
        let (mut model, mut random) = (Model::new(), SplitMix::new(bits));
        let mut seqno = 0;
        for _ in 0..if cfg!(miri) { 3 } else { 25 } {
            let mut entries = BTreeMap::new();
            for _ in 0..60 {
                let number = random.next() % KEYS;
                seqno += 1;
                let value = (!random.next().is_multiple_of(5))
                    .then(|| vec![seqno as u8; 1 + random.next() as usize % 300]);
                let of_key: &mut Vec<_> = entries.entry(number).or_default();
                of_key.push((seqno, value.clone()));
                model.entry(number).or_default().push((seqno, value));
            }
            let entries = entries.into_iter().flat_map(|(number, versions)| {
                versions.into_iter().rev().map(move |(seqno, value)| (key_of(number), seqno, value))
            });
            let mut memtable = Versions { entries: entries.collect(), at: 0 };
            let packed = Arc::clone(&tree).pack(&mut memtable).unwrap();
            packed.incorporate(Seqno(seqno)).unwrap();
            while let Some(mut job) = Arc::clone(&tree).next_job() {
                while job.step().unwrap() == Step::Again {}
            }
            check(&tree, &hasher, &model, &snapshots);
        }
        let manifest = tree.context.manifest.path();
        let mut problems = Vec::new();
        tree.version().check(CheckScope::full(&manifest), &mut |problem| problems.push(problem));
        assert!(problems.is_empty(), "{problems:?}");
        Arc::clone(&tree).compact(b"", None, &|| Ok(())).unwrap();
        check(&tree, &hasher, &model, &snapshots);
    }
}
