//! What a crash, and damage, may leave of the file.

use std::sync::Arc;

use super::ExampleTree;
use super::edit::{Named, NamedLog};
use super::log::LeftFile;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::cache::{FileType, ReadContext};
use crate::manifest::TreeEdit;
use crate::tree::sorted::Sorted;
use crate::tree::test_support::{Reader, context};
use crate::tree::{
    BadBatch, CheckpointFiles, Logged, OperationLog, OperationSource, PackSource, Tree,
    TreeContext, TreeObserver,
};
use crate::vfs::Access;

/// A memtable.
struct Puts(Vec<(&'static [u8], u64, EntryKind)>, usize);

impl PackSource for Puts {
    fn next(&mut self) -> Result<()> {
        self.1 += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let &(key, seqno, kind) = self.0.get(self.1.checked_sub(1)?)?;
        let value = if kind == EntryKind::Delete { &[][..] } else { b"value" };
        Some(EntryRef { key, seqno: Seqno(seqno), kind, value })
    }

    fn entries(&self) -> usize {
        self.0.len()
    }
}

/// A tree, with what keeps it going.
struct Bed {
    context: TreeContext,
    tree: Arc<ExampleTree>,
    _observer: Arc<dyn TreeObserver>,
}

impl Bed {
    fn new() -> Bed {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(Vec::new()));
        let context = context("example", &observer);
        let tree = ExampleTree::open(context.clone(), &[], Seqno(0)).unwrap();
        Bed { context, tree, _observer: observer }
    }

    fn add(&self, entries: &[(&'static [u8], u64, EntryKind)], flushed: u64) -> Result<()> {
        let packed = Arc::clone(&self.tree).pack(&mut Puts(entries.to_vec(), 0))?;
        packed.incorporate(Seqno(flushed))
    }

    fn edit(&self) -> TreeEdit {
        TreeEdit { offset: 77, bytes: self.tree.lock_changes().snapshot().unwrap() }
    }

    /// The tree that an edit names, as another process opens it.
    fn open(&self, edit: &TreeEdit, flushed: u64) -> Result<Arc<ExampleTree>> {
        self.context.files.retain_for_now();
        ExampleTree::open(self.context.clone(), std::slice::from_ref(edit), Seqno(flushed))
    }
}

fn seqnos(tree: &ExampleTree) -> Vec<u64> {
    tree.version.load().entries.iter().map(|entry| entry.seqno.0).collect()
}

const PUT: EntryKind = EntryKind::Put;

#[test]
fn superseded_versions_and_tombstones_are_dropped() {
    let bed = Bed::new();
    bed.add(&[(b"a", 1, PUT), (b"b", 2, PUT)], 2).unwrap();
    bed.add(&[(b"a", 3, PUT), (b"b", 4, EntryKind::Delete)], 4).unwrap();
    assert_eq!(seqnos(&bed.tree), [3]);
    let mut found = Vec::new();
    let version = bed.tree.version();
    let context = ReadContext::blocking();
    let get = version.get(b"a", 0, Seqno(9), &context, &mut |entry| {
        found.push(entry.seqno.0);
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!((get.is_ok(), found, version.flushed()), (true, vec![3], Seqno(4)));
}

/// A crash between the file's sync and the manifest's leaves a root that the manifest does not name. It must not
/// count: the journal may have lost its entries, and their numbers may be given out again.
#[test]
fn a_root_that_the_manifest_does_not_name_is_ignored() {
    let bed = Bed::new();
    bed.add(&[(b"a", 1, PUT)], 1).unwrap();
    let first = bed.edit();
    bed.add(&[(b"b", 2, PUT)], 2).unwrap();
    let second = bed.edit();
    assert_eq!(seqnos(&bed.open(&first, 1).unwrap()), [1]);
    assert_eq!(seqnos(&bed.open(&second, 2).unwrap()), [1, 2]);
}

#[test]
fn a_refused_commit_leaves_the_durable_root_alone() {
    let bed = Bed::new();
    bed.add(&[(b"a", 1, PUT)], 1).unwrap();
    let place =
        bed.tree.version.load().place.as_ref().map(|place| Arc::clone(&place.pool)).unwrap();
    for _ in 0..3 {
        let refused = |_: &Named| Err(Error::invalid("refused"));
        assert!(place.replace(&Sorted::default(), Seqno(2), Vec::new(), refused).is_err());
        assert_eq!(seqnos(&bed.open(&bed.edit(), 1).unwrap()), [1]);
        assert_eq!(place.check().unwrap(), 1);
    }
    bed.add(&[(b"b", 3, PUT)], 3).unwrap();
    assert_eq!(seqnos(&bed.open(&bed.edit(), 3).unwrap()), [1, 3]);
}

#[test]
fn damage_is_found_in_every_byte_that_counts() {
    let bed = Bed::new();
    bed.add(&[(b"a", 1, PUT)], 1).unwrap();
    let edit = bed.edit();
    let path = bed.tree.version.load().place.as_ref().unwrap().pool.path();
    let file = bed.context.files.vfs.open(&path, Access::Buffered, true).unwrap();
    // The root of generation 1 is in slot 1; its image begins at 8192.
    for (range, counts) in [(0..4096, false), (4096..8192, true), (8192..file.len().unwrap(), true)]
    {
        for at in range.clone().step_by(if counts { 1 } else { 512 }) {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 4]).unwrap();
            match bed.open(&edit, 1) {
                Ok(tree) => assert!(!counts && seqnos(&tree) == [1], "byte {at}"),
                Err(Error::UnsupportedVersion { file, .. }) => assert_eq!(file, path),
                Err(Error::Corruption { file, offset, .. }) => {
                    assert!(counts && file == path && range.contains(&offset), "byte {at}");
                }
                Err(error) => panic!("{error}"),
            }
            file.write_at(at, &byte).unwrap();
        }
    }
    bed.context.files.vfs.remove(&path).unwrap();
    assert!(bed.open(&edit, 1).is_err_and(|error| error.is_corruption()));
}

#[test]
fn a_checkpoint_has_the_version_and_not_what_the_file_holds_by_then() {
    struct Copy(TreeContext);
    impl CheckpointFiles for Copy {
        fn link(&mut self, file: &std::path::Path) -> Result<()> {
            panic!("{} changes in place", file.display());
        }
        fn write(&mut self, file: &std::path::Path, contents: &[u8]) -> Result<()> {
            self.0.files.vfs.open(file, Access::Buffered, true)?.write_at(0, contents)
        }
    }
    let bed = Bed::new();
    bed.add(&[(b"a", 1, PUT)], 1).unwrap();
    let (edit, version) = (bed.edit(), bed.tree.version());
    bed.add(&[(b"b", 2, PUT)], 2).unwrap();
    bed.add(&[(b"c", 3, PUT)], 3).unwrap();
    assert!(bed.open(&edit, 1).is_err_and(|error| error.is_corruption()));
    version.write_down(&mut Copy(bed.context.clone())).unwrap();
    assert_eq!(seqnos(&bed.open(&edit, 1).unwrap()), [1]);
    assert_eq!(version.files(), [bed.context.files.path(FileId(1), FileType::Pool)]);
}

/// Batches of the tree's log as recovery reads them: their first numbers, and how it ends.
fn logged(bed: &Bed, file: u64, epoch: u32) -> Result<(Vec<u64>, Option<BadBatch>)> {
    let (mut firsts, mut bad) = (Vec::new(), None);
    let named = NamedLog { file: FileId(file), epoch };
    for item in LeftFile::new(&bed.context.files, named).batches()? {
        match item? {
            Logged::Batch(batch) => {
                assert_eq!(batch.payload, vec![batch.first.0 as u8; 5 * batch.count as usize]);
                firsts.push(batch.first.0);
            }
            Logged::Bad(found) => bad = Some(found),
        }
    }
    Ok((firsts, bad))
}

/// A tree with a log in epoch 3 that has three batches of 1, 2 and 1 operations, from number 2 on, in file 2.
fn bed_with_log() -> (Bed, Arc<dyn OperationLog>) {
    let bed = Bed::new();
    let log = bed.tree.operation_log().unwrap();
    log.begin(3, Seqno(0));
    assert!(!log.reserve(1), "the first flush makes the first file");
    bed.add(&[(b"a", 1, PUT)], 1).unwrap();
    for (first, count) in [(2, 1), (3, 2), (5, 1)] {
        assert!(log.reserve(5 * count as usize));
        log.append(Seqno(first), count, Seqno(first - 1), &vec![first as u8; 5 * count as usize]);
    }
    assert_eq!((log.sync().unwrap(), log.sync().unwrap()), (1, 0));
    (bed, log)
}

#[test]
fn a_log_is_of_its_epoch_and_is_removed_when_the_floor_has_passed_it() {
    let (bed, log) = bed_with_log();
    assert_eq!(logged(&bed, 2, 3).unwrap(), (vec![2, 3, 5], None));
    assert!(logged(&bed, 2, 4).is_err_and(|error| error.is_corruption()), "another epoch's");
    let exists = |file| {
        let path = bed.context.files.path(FileId(file), FileType::OperationLog);
        bed.context.files.vfs.exists(&path).unwrap()
    };
    let payload = vec![0; 40 << 10];
    assert!(log.reserve(payload.len()));
    log.append(Seqno(6), 1, Seqno(5), &payload);
    assert!(!log.reserve(payload.len()));
    // The tree has it all, but other keyspaces may need the numbers.
    bed.add(&[(b"b", 6, PUT)], 6).unwrap();
    assert!(exists(2) && exists(3) && log.reserve(payload.len()));
    assert_eq!(log.sync().unwrap(), 1, "what was in the file before is synced with it");
    log.retire(Seqno(5));
    bed.add(&[(b"c", 7, PUT)], 7).unwrap();
    assert!(exists(2));
    log.retire(Seqno(6));
    assert!(exists(2), "the manifest names it");
    bed.add(&[(b"d", 8, PUT)], 8).unwrap();
    assert!(!exists(2) && exists(3));
}

#[test]
fn damage_in_a_log_is_found_in_every_byte() {
    let (bed, _log) = bed_with_log();
    let path = bed.context.files.path(FileId(2), FileType::OperationLog);
    let file = bed.context.files.vfs.open(&path, Access::Buffered, true).unwrap();
    // The header, and batches of 40, 48 and 40 bytes, with up to 6 bytes of padding.
    for at in 0..160 {
        let mut byte = [0];
        file.read_at(at, &mut byte).unwrap();
        file.write_at(at, &[byte[0] ^ 4]).unwrap();
        match logged(&bed, 2, 3) {
            Err(Error::Corruption { file, .. }) => {
                assert!(at < 32 && file == path, "byte {at}");
            }
            Err(error) => panic!("{error}"),
            Ok((firsts, None)) => assert_eq!(firsts, [2, 3, 5], "byte {at} is padding"),
            Ok((firsts, Some(bad))) => {
                assert!(at >= 32 && bad.offset <= at, "byte {at}");
                assert_eq!(firsts.len() as u64 + 1 + bad.batches, 3, "byte {at}");
                let durable = if bad.batches > 0 { 4 } else { 0 };
                assert_eq!(bad.durable, Seqno(durable), "byte {at}");
            }
        }
        file.write_at(at, &byte).unwrap();
    }
    bed.context.files.vfs.remove(&path).unwrap();
    assert!(logged(&bed, 2, 3).is_err_and(|error| error.is_corruption()));
}
