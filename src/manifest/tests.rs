//! The manifest's promises: what has been committed is there, what was not committed is not, and
//! nothing damaged or foreign is taken for a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::state::{RecoveredKeyspace, TreeEdit};
use super::test_support::{Crash, TestVfs};
use super::*;
use crate::base::documented::hex_block;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::key_hash::HashSecret;
use crate::base::range_delete::RangeDelete;
use crate::vfs::Vfs;

mod submitted;

const STORE_ID: u64 = 0x0123_4567_89ab_cdef;
const NEW_STORE: NewStore =
    NewStore { store_id: STORE_ID, hash_secret: HashSecret(*b"0123456789abcdef") };

fn dir() -> &'static Path {
    Path::new("/store")
}

fn manifest_path(number: u64) -> PathBuf {
    dir().join(format!("manifest-{number:08}"))
}

fn open_with(vfs: &Arc<TestVfs>, create: bool) -> Result<(Manifest, RecoveredState)> {
    let vfs: Arc<dyn Vfs> = Arc::clone(vfs) as Arc<dyn Vfs>;
    Manifest::open(&vfs, dir(), OpenOptions { create, new_store: NEW_STORE })
}

fn open(vfs: &Arc<TestVfs>) -> (Manifest, RecoveredState) {
    open_with(vfs, true).unwrap()
}

/// What a later open of the same disk would find, apart from what is about the open itself.
fn reopened(vfs: &TestVfs, crash: Crash) -> Result<RecoveredState> {
    let vfs = Arc::new(vfs.crash(crash));
    let inspected = Manifest::inspect(&*vfs, dir());
    let (_, state) = open_with(&vfs, false)?;
    assert_eq!(inspected?, state, "looking at a store must find what opening finds");
    let (_, again) = open_with(&vfs, false)?;
    assert_eq!(normal(again), normal(state.clone()), "a second open must find the same");
    Ok(normal(state))
}

fn normal(mut state: RecoveredState) -> RecoveredState {
    for keyspace in &mut state.keyspaces {
        keyspace.options_offset = 0;
        let edits = keyspace.tree_snapshot.iter_mut().chain(&mut keyspace.tree_edits);
        edits.for_each(|edit| edit.offset = 0);
    }
    RecoveredState { created: false, torn_bytes: 0, manifest_number: 0, ..state }
}

/// The straightforward model of the sum of edits.
fn apply(model: &mut RecoveredState, edit: &Edit) {
    fn raise<T: Ord + Copy>(number: &mut T, to: Option<T>) {
        *number = (*number).max(to.unwrap_or(*number));
    }
    raise(&mut model.next_file_id, edit.next_file_id);
    raise(&mut model.journal_floor, edit.journal_floor);
    raise(&mut model.last_seqno, edit.last_seqno);
    if let Some(epochs) = &edit.epochs {
        model.epochs = epochs.clone();
    }
    for KeyspaceEdit { id, change } in &edit.keyspaces {
        if let KeyspaceChange::Create(meta) = change {
            model.keyspaces.push(RecoveredKeyspace {
                id: *id,
                meta: meta.clone(),
                ..RecoveredKeyspace::default()
            });
            model.next_keyspace_id = KeyspaceId(id.0 + 1);
        }
        let at = model.keyspaces.iter().position(|keyspace| keyspace.id == *id).unwrap();
        let keyspace = &mut model.keyspaces[at];
        match change {
            KeyspaceChange::Create(_) => {}
            KeyspaceChange::Drop => {
                model.keyspaces.remove(at);
            }
            KeyspaceChange::Options(options) => keyspace.meta.options = options.clone(),
            KeyspaceChange::TreeEdit(payload) => keyspace.tree_edits.push(unplaced(payload)),
            KeyspaceChange::TreeSnapshot(payload) => {
                keyspace.tree_snapshot = Some(unplaced(payload));
                keyspace.tree_edits.clear();
            }
            KeyspaceChange::Flushed(seqno) => raise(&mut keyspace.flushed, Some(*seqno)),
            KeyspaceChange::RangeDelete(delete) => {
                keyspace.range_deletes.retain(|other| other.seqno != delete.seqno);
                keyspace.range_deletes.push(delete.clone());
                keyspace.range_deletes.sort_by_key(|delete| delete.seqno);
            }
            KeyspaceChange::RangeDeleteDone(seqno) => {
                keyspace.range_deletes.retain(|delete| delete.seqno != *seqno);
            }
        }
    }
}

/// An edit of a tree, wherever the manifest has it.
fn unplaced(bytes: &[u8]) -> TreeEdit {
    TreeEdit { offset: 0, bytes: bytes.to_vec() }
}

fn create(id: u32, name: &str) -> KeyspaceEdit {
    let meta = KeyspaceMeta {
        name: name.to_string(),
        kind: "stb".to_string(),
        options: vec![id as u8; 3],
        operator: id.is_multiple_of(2).then(|| "u64_add".to_string()),
    };
    KeyspaceEdit { id: KeyspaceId(id), change: KeyspaceChange::Create(meta) }
}

fn tree_edit(id: u32, payload: &[u8]) -> Edit {
    let change = KeyspaceChange::TreeEdit(payload.to_vec());
    Edit { keyspaces: vec![KeyspaceEdit { id: KeyspaceId(id), change }], ..Edit::default() }
}

/// A range delete with bounds of these bytes.
fn range_delete(seqno: u64, bytes: &[u8]) -> KeyspaceChange {
    let (lower, upper) = bytes.split_at(bytes.len() / 2);
    let upper = if upper <= lower { &[][..] } else { upper };
    let delete = RangeDelete::of_operation(Seqno(seqno), lower, upper);
    KeyspaceChange::RangeDelete(delete.unwrap())
}

/// A random edit that `model` allows.
fn arb_edit() -> impl Strategy<Value = Vec<(u8, u64, Vec<u8>)>> {
    prop::collection::vec((0u8..13, 0u64..1 << 40, prop::collection::vec(any::<u8>(), 0..40)), 0..5)
}

fn build_edit(model: &RecoveredState, parts: Vec<(u8, u64, Vec<u8>)>) -> Edit {
    let mut edit = Edit::default();
    let mut after = model.clone();
    for (what, number, bytes) in parts {
        let chosen = after.keyspaces.get(number as usize % after.keyspaces.len().max(1));
        let id = chosen.map(|keyspace| keyspace.id);
        let change = match what {
            0 => {
                edit.next_file_id = Some(FileId(number));
                continue;
            }
            1 => {
                edit.journal_floor = Some(Seqno(number));
                continue;
            }
            2 => {
                edit.last_seqno = Some(Seqno(number));
                continue;
            }
            3 => {
                let older = bytes.iter().map(|&b| (u64::from(b), Seqno(number))).collect();
                edit.epochs = Some(Epochs { current: number, older });
                continue;
            }
            4 | 5 => create(after.next_keyspace_id.0, &format!("k{}", number % 1000)),
            other => {
                let Some(id) = id else { continue };
                let change = match other {
                    6 => KeyspaceChange::Options(bytes),
                    7 => KeyspaceChange::TreeSnapshot(bytes),
                    8 => KeyspaceChange::Flushed(Seqno(number)),
                    10 => range_delete(number % 8, &bytes),
                    11 => KeyspaceChange::RangeDeleteDone(Seqno(number % 8)),
                    9 if number % 4 == 0 => KeyspaceChange::Drop,
                    _ => KeyspaceChange::TreeEdit(bytes),
                };
                KeyspaceEdit { id, change }
            }
        };
        if let KeyspaceChange::Create(meta) = &change.change
            && after.keyspaces.iter().any(|keyspace| keyspace.meta.name == meta.name)
        {
            continue;
        }
        apply(&mut after, &Edit { keyspaces: vec![change.clone()], ..Edit::default() });
        edit.keyspaces.push(change);
    }
    edit
}

/// Whole trees, for a rewrite, and the model with them.
fn snapshots(model: &mut RecoveredState) -> Vec<(KeyspaceId, Vec<u8>)> {
    let mut trees = Vec::new();
    for keyspace in &mut model.keyspaces {
        let tree = keyspace.tree().into_iter().flat_map(|edit| edit.bytes).collect::<Vec<u8>>();
        keyspace.tree_edits.clear();
        keyspace.tree_snapshot = Some(unplaced(&tree));
        trees.push((keyspace.id, tree));
    }
    trees
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_cut_of_the_log_is_a_prefix_of_the_commits(
        edits in prop::collection::vec(arb_edit(), 1..8),
        rewrite_at in 0usize..12,
    ) {
        let vfs = Arc::new(TestVfs::default());
        let (mut manifest, state) = open(&vfs);
        let mut model = normal(state);
        let mut number = 1;
        // The states after each commit, with the length of the log then.
        let mut history = vec![(manifest.bytes_total(), model.clone())];
        for (i, parts) in edits.into_iter().enumerate() {
            let edit = build_edit(&model, parts);
            manifest.commit(&edit).unwrap();
            apply(&mut model, &edit);
            if i == rewrite_at {
                let trees = snapshots(&mut model);
                prop_assert!(manifest.rewrite(manifest.edits_submitted(), &trees).unwrap());
                prop_assert_eq!(manifest.bytes_total(), manifest.bytes_live());
                number += 1;
                history.clear();
            } else if i % 3 == 2 {
                drop(manifest);
                manifest = open(&vfs).0;
            }
            history.push((manifest.bytes_total(), model.clone()));
        }
        for crash in [Crash::Process, Crash::Power] {
            prop_assert_eq!(&reopened(&vfs, crash).unwrap(), &model);
        }

        forget_end(&vfs);
        let path = manifest_path(number);
        let whole = vfs.contents(&path);
        let first = history[0].0 as usize;
        for cut in (0..=whole.len()).rev() {
            vfs.put(&path, &whole[..cut]);
            let found = reopened(&vfs, Crash::Process);
            if cut < first {
                prop_assert!(found.unwrap_err().is_corruption());
            } else {
                let expected = history.iter().rfind(|(end, _)| *end <= cut as u64).unwrap();
                prop_assert_eq!(&found.unwrap(), &expected.1);
            }
        }
    }
}

/// A store with a few commits; returns the states after the last two.
fn sample() -> (Arc<TestVfs>, RecoveredState, RecoveredState) {
    let vfs = Arc::new(TestVfs::default());
    let (manifest, _) = open(&vfs);
    manifest
        .commit(&Edit { keyspaces: vec![create(0, "a"), create(1, "b")], ..Edit::default() })
        .unwrap();
    manifest.commit(&tree_edit(1, b"first")).unwrap();
    manifest.commit(&Edit { last_seqno: Some(Seqno(99)), ..Edit::default() }).unwrap();
    let before = reopened(&vfs, Crash::Process).unwrap();
    manifest.commit(&tree_edit(0, &[7; 100])).unwrap();
    let after = reopened(&vfs, Crash::Process).unwrap();
    assert_ne!(before, after);
    forget_end(&vfs);
    (vfs, before, after)
}

/// Removes what says how far the manifest is durable: it must do without.
fn forget_end(vfs: &TestVfs) {
    vfs.remove(&dir().join("DURABLE")).unwrap();
}

#[test]
fn a_flipped_bit_is_corruption_or_costs_the_last_record_only() {
    let (vfs, before, _) = sample();
    let path = manifest_path(1);
    let whole = vfs.contents(&path);
    let last_record = whole.len() - (16 + 104);
    for at in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            vfs.put(&path, &bytes);
            match reopened(&vfs, Crash::Process) {
                Err(Error::Corruption { file, offset, .. }) => {
                    assert_eq!(file, path);
                    assert!(offset <= at as u64 + 24, "byte {at} reported at {offset}");
                }
                Ok(state) => {
                    // Its length says that it was to be longer, or shorter.
                    assert!((8..12).contains(&(at - last_record)), "byte {at} was not missed");
                    assert_eq!(state, before);
                }
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_the_superblock_is_corruption() {
    let (vfs, ..) = sample();
    let path = dir().join("SPINNEY");
    let whole = vfs.contents(&path);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        vfs.put(&path, &bytes);
        let error = open_with(&vfs, true).map(|_| ()).unwrap_err();
        assert!(error.is_corruption(), "byte {at}: {error}");
    }
    vfs.put(&path, &whole[..40]);
    assert!(open_with(&vfs, true).map(|_| ()).unwrap_err().is_corruption());
}

#[test]
fn garbage_behind_the_last_record_is_cut_off_before_the_next_commit() {
    let (vfs, _, after) = sample();
    let path = manifest_path(1);
    let whole = vfs.contents(&path);
    for garbage in [vec![0; 5000], vec![1; 77], [vec![9; 8], [1, 0, 0, 0].repeat(50)].concat()] {
        vfs.put(&path, &[whole.clone(), garbage.clone()].concat());
        let (manifest, state) = open(&vfs);
        assert_eq!(state.torn_bytes, garbage.len() as u64);
        // Not by the open: should it fail further on, the file is as it was.
        assert!(vfs.contents(&path).ends_with(&garbage));
        assert_eq!(normal(state), after);
        manifest.commit(&Edit { next_file_id: Some(FileId(1234)), ..Edit::default() }).unwrap();
        assert_eq!(vfs.contents(&path).len() as u64, manifest.bytes_total());
        let found = reopened(&vfs, Crash::Power).unwrap();
        assert_eq!(found, RecoveredState { next_file_id: FileId(1234), ..after.clone() });
        forget_end(&vfs);
    }
}

/// A flipped bit in the last record made it look torn, and the store came up without that commit:
/// with a flush undone whose journal was gone, or looking for tables that a later version had
/// replaced. A torn append leaves something blank, or ends before it should.
#[test]
fn a_last_record_that_has_all_arrived_is_damaged_and_not_torn() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let from = manifest.bytes_total() as usize;
    manifest.commit(&tree_edit(0, b"one more")).unwrap();
    forget_end(&vfs);
    let path = manifest_path(1);
    let whole = vfs.contents(&path);
    for at in from..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        vfs.put(&path, &bytes);
        match open_with(&vfs, true).map(|(_, state)| state.torn_bytes) {
            Err(Error::Corruption { offset, .. }) => assert!(offset as usize >= from),
            // Its length says that it was to be longer, or shorter.
            Ok(torn) => assert!((8..12).contains(&(at - from)) && torn > 0, "byte {at}"),
            Err(other) => panic!("{other}"),
        }
        vfs.put(&path, &whole[..at]);
        open(&vfs);
        let mut bytes = whole.clone();
        bytes[at / 8 * 8..at / 8 * 8 + 8].fill(0);
        vfs.put(&path, &bytes);
        open(&vfs);
    }
}

#[test]
fn a_record_from_another_place_is_corruption() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let path = manifest_path(1);
    let mut ends = vec![manifest.bytes_total() as usize];
    for payload in [b"one", b"two", b"six"] {
        manifest.commit(&tree_edit(0, payload)).unwrap();
        ends.push(manifest.bytes_total() as usize);
    }
    let mut whole = vfs.contents(&path);
    whole.copy_within(ends[0]..ends[1], ends[1]);
    vfs.put(&path, &whole);
    match open_with(&vfs, true).map(|_| ()) {
        Err(Error::Corruption { offset, .. }) => assert_eq!(offset, ends[1] as u64),
        other => panic!("{other:?}"),
    }
    // The manifest under another number.
    vfs.put(&manifest_path(7), &whole);
    let error = open_with(&vfs, true).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("identity"), "{error}");
}

/// The checksum is right and what it covers is not: the error says where in the file that stands.
#[test]
fn an_edit_that_contradicts_itself_is_named_by_its_place() {
    let (vfs, ..) = sample();
    let identity = record::Identity { store_id: STORE_ID, number: 1 };
    let mut twice = Vec::new();
    let keyspaces = vec![create(9, "new"), create(10, "new")];
    Edit { keyspaces, ..Edit::default() }.encode(&mut twice);
    let place = |record: &[u8]| record.windows(twice.len()).position(|part| part == twice).unwrap();
    let check = |bytes: Vec<u8>, place: usize| {
        vfs.put(&manifest_path(1), &bytes);
        match open_with(&vfs, true).map(|_| ()) {
            Err(Error::Corruption { offset, .. }) => assert_eq!(offset, place as u64),
            other => panic!("{other:?}"),
        }
    };
    let encode =
        |at: usize, kind, payload: &[u8]| identity.encode_record(at as u64, kind, payload).unwrap();
    let header = identity.encode_header();
    let snapshot = encode(header.len(), record::RecordKind::Snapshot, &twice);
    check([&*header, &*snapshot].concat(), header.len() + place(&snapshot));
    // The same as an edit behind a good snapshot.
    let empty = encode(header.len(), record::RecordKind::Snapshot, &[]);
    let start = [header, empty].concat();
    let mut edits = Vec::new();
    crate::base::codec::put_bytes(&mut edits, &twice);
    let edits = encode(start.len(), record::RecordKind::Edits, &edits);
    check([&*start, &*edits].concat(), start.len() + place(&edits));
}

/// Runs `act` with a failure at each of its changes in turn, and checks what the next process
/// finds.
fn fail_everywhere(
    setup: impl Fn() -> Arc<TestVfs>,
    act: impl Fn(&Arc<TestVfs>) -> Result<()>,
    check: impl Fn(&TestVfs, Crash, bool),
) {
    for fail_after in 0.. {
        let vfs = setup();
        vfs.fail_after(Some(vfs.changes() + fail_after));
        let done = act(&vfs).is_ok();
        for crash in [Crash::Process, Crash::Power, Crash::Removals, Crash::Torn] {
            check(&vfs, crash, done);
        }
        if done {
            assert!(fail_after > 1);
            return;
        }
    }
}

#[test]
fn creating_can_be_interrupted_anywhere() {
    fail_everywhere(
        || Arc::new(TestVfs::default()),
        |vfs| open_with(vfs, true).map(|_| ()),
        |vfs, crash, done| {
            let after = Arc::new(vfs.crash(crash));
            let (_, state) = open_with(&after, true).unwrap();
            assert!(!done || !state.created);
            assert_eq!((state.store_id, state.hash_secret), (STORE_ID, NEW_STORE.hash_secret));
            assert!(state.created_by.starts_with("spinney "));
            assert_eq!(after.names(), ["SPINNEY", "manifest-00000001"]);
        },
    );
}

#[test]
fn a_commit_can_be_interrupted_anywhere() {
    let edit = || Edit { keyspaces: vec![create(5, "c")], ..tree_edit(0, b"x") };
    fail_everywhere(
        || sample().0,
        |vfs| open_with(vfs, true)?.0.commit(&edit()),
        |vfs, crash, done| {
            let (_, _, before) = sample();
            let mut after = before.clone();
            apply(&mut after, &edit());
            let found = reopened(vfs, crash).unwrap();
            assert!(found == after || !done && found == before);
        },
    );
}

#[test]
fn a_rewrite_can_be_interrupted_anywhere() {
    let trees = || vec![(KeyspaceId(0), b"tree 0".to_vec()), (KeyspaceId(1), b"tree 1".to_vec())];
    let (_, _, before) = sample();
    let mut after = before.clone();
    for (keyspace, (_, tree)) in after.keyspaces.iter_mut().zip(trees()) {
        keyspace.tree_snapshot = Some(unplaced(&tree));
        keyspace.tree_edits.clear();
    }
    let mut committed = after.clone();
    apply(&mut committed, &tree_edit(0, b"y"));
    fail_everywhere(
        || sample().0,
        |vfs| {
            let manifest = open_with(vfs, true)?.0;
            assert!(manifest.rewrite(manifest.edits_submitted(), &trees())?);
            manifest.commit(&tree_edit(0, b"y"))
        },
        |vfs, crash, done| {
            let found = reopened(vfs, crash).unwrap();
            let possible = [&before, &after, &committed];
            assert!(possible[if done { 2.. } else { 0.. }].contains(&&found));
        },
    );
}

#[test]
fn of_two_manifests_the_older_is_durably_gone_once_open_returns() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let older = vfs.contents(&manifest_path(1));
    assert!(manifest.rewrite(0, &[]).unwrap());
    vfs.put(&manifest_path(1), &older);
    assert_eq!(open(&vfs).1.manifest_number, 2);
    assert_eq!(vfs.crash(Crash::Power).names(), ["DURABLE", "SPINNEY", "manifest-00000002"]);
    // And before a rewrite returns, too.
    assert!(open(&vfs).0.rewrite(0, &[]).unwrap());
    assert_eq!(vfs.crash(Crash::Power).names(), ["DURABLE", "SPINNEY", "manifest-00000003"]);
}

#[test]
fn commits_after_a_failed_rewrite_are_not_lost() {
    for fail_after in 0..5 {
        let (vfs, _, before) = sample();
        let (manifest, _) = open(&vfs);
        vfs.fail_after(Some(vfs.changes() + fail_after));
        let rewritten = manifest.rewrite(0, &[]).is_ok();
        vfs.fail_after(None);
        let committed = manifest.commit(&tree_edit(0, b"y"));
        // The clearing up failed too, so nobody knows which log the next open finds.
        assert!(!rewritten && matches!(committed, Err(Error::Poisoned { .. })));
        for crash in [Crash::Process, Crash::Power] {
            let found = reopened(&vfs, crash).unwrap();
            assert_eq!(found.last_seqno, before.last_seqno);
        }
    }
    // A passing failure, after which the new log can be cleared away.
    let (vfs, _, before) = sample();
    let (manifest, _) = open(&vfs);
    vfs.put(&manifest_path(2), b"in the way");
    assert!(manifest.rewrite(0, &[]).is_err());
    manifest.commit(&tree_edit(0, b"y")).unwrap();
    let mut expected = before;
    apply(&mut expected, &tree_edit(0, b"y"));
    assert_eq!(reopened(&vfs, Crash::Power).unwrap(), expected);
}

#[test]
fn a_rewrite_of_trees_that_have_moved_on_does_nothing() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let edits = manifest.edits_submitted();
    manifest.commit(&tree_edit(0, b"y")).unwrap();
    let bytes = manifest.bytes_total();
    assert!(!manifest.rewrite(edits, &[]).unwrap());
    assert_eq!(manifest.bytes_total(), bytes);
    assert_eq!(vfs.names(), ["DURABLE", "SPINNEY", "manifest-00000001"]);
}

/// What the store says it relies on is there after any crash, with the change that relies on it.
#[test]
fn what_the_journal_was_relied_on_for_stands_with_the_next_edit() {
    let vfs = Arc::new(TestVfs::default());
    let (manifest, _) = open(&vfs);
    manifest.require_journal_upto(Seqno(7));
    manifest.require_journal_upto(Seqno(4));
    assert_eq!(reopened(&vfs, Crash::Power).unwrap().last_seqno, Seqno(0));
    manifest.commit(&Edit { last_seqno: Some(Seqno(2)), ..Edit::default() }).unwrap();
    assert_eq!(reopened(&vfs, Crash::Power).unwrap().last_seqno, Seqno(7));
}

#[test]
fn every_byte_that_is_written_is_counted() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let (written, total) = (manifest.bytes_written(), manifest.bytes_total());
    manifest.commit(&tree_edit(0, b"y")).unwrap();
    let appended = manifest.bytes_total() - total;
    assert!(appended > 0);
    assert_eq!(manifest.bytes_written(), written + appended);
    assert_eq!(manifest.path(), manifest_path(1));
    assert!(manifest.rewrite(manifest.edits_submitted(), &[]).unwrap());
    assert_eq!(manifest.path(), manifest_path(2));
    assert_eq!(manifest.bytes_written(), written + appended + manifest.bytes_total());
    assert_eq!(manifest.bytes_live(), manifest.bytes_total());
}

#[test]
fn a_failed_commit_poisons() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    vfs.fail_after(Some(vfs.changes() + 1));
    assert!(matches!(manifest.commit(&tree_edit(0, b"y")), Err(Error::Io { .. })));
    vfs.fail_after(None);
    assert!(matches!(manifest.poison().first(), Some(Error::Io { .. })));
    assert!(matches!(manifest.commit(&tree_edit(0, b"z")), Err(Error::Poisoned { .. })));
    assert!(matches!(manifest.rewrite(1, &[]), Err(Error::Poisoned { .. })));
}

#[test]
fn contradictions_are_refused_and_change_nothing() {
    let (vfs, _, before) = sample();
    let (manifest, _) = open(&vfs);
    let edit = |keyspaces| Edit { keyspaces, ..Edit::default() };
    let change = |id, change| KeyspaceEdit { id: KeyspaceId(id), change };
    let cases = [
        edit(vec![create(9, "a")]),
        edit(vec![create(1, "new")]),
        edit(vec![create(9, "new"), create(10, "new")]),
        edit(vec![create(9, "new"), create(9, "newer")]),
        edit(vec![change(2, KeyspaceChange::Drop)]),
        edit(vec![change(0, KeyspaceChange::Drop), change(0, KeyspaceChange::Flushed(Seqno(1)))]),
        edit(vec![change(0, KeyspaceChange::Drop), create(0, "again")]),
    ];
    for case in cases {
        assert!(matches!(manifest.commit(&case), Err(Error::Conflict { .. })), "{case:?}");
    }
    assert_eq!(reopened(&vfs, Crash::Process).unwrap(), before);
    // A dropped keyspace's name is free again at once.
    manifest.commit(&edit(vec![change(0, KeyspaceChange::Drop), create(7, "a")])).unwrap();
    assert!(matches!(manifest.commit(&edit(vec![create(3, "x")])), Err(Error::Conflict { .. })));
}

#[test]
fn numbers_only_grow_whatever_the_order_of_the_commits() {
    let vfs = Arc::new(TestVfs::default());
    let (manifest, _) = open(&vfs);
    for number in [5, 3] {
        let edit = Edit {
            next_file_id: Some(FileId(number)),
            last_seqno: Some(Seqno(number)),
            journal_floor: Some(Seqno(number)),
            ..Edit::default()
        };
        manifest.commit(&edit).unwrap();
    }
    let found = reopened(&vfs, Crash::Power).unwrap();
    assert_eq!((found.next_file_id, found.last_seqno), (FileId(5), Seqno(5)));
    assert_eq!(found.journal_floor, Seqno(5));
}

#[test]
fn a_directory_that_is_no_store_is_refused_and_left_alone() {
    let refused = |vfs: &Arc<TestVfs>, create: bool| match open_with(vfs, create) {
        Err(Error::NotAStore { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    };
    let vfs = Arc::new(TestVfs::default());
    assert!(refused(&vfs, false).contains("no such directory"));
    vfs.create_dir_all(dir()).unwrap();
    assert!(refused(&vfs, false).contains("empty"));
    for foreign in ["photo.jpg", "lost+found", "00000001.table", "manifest-00000002"] {
        let vfs = Arc::new(TestVfs::default());
        vfs.create_dir_all(dir()).unwrap();
        vfs.put(&dir().join(foreign), b"x");
        let before = vfs.changes();
        for create in [false, true] {
            assert!(refused(&vfs, create).contains(foreign));
        }
        assert_eq!(vfs.changes(), before);
    }
    // A store that has lost its superblock is no new store, even if only its manifest is left.
    let (vfs, ..) = sample();
    vfs.remove(&dir().join("SPINNEY")).unwrap();
    assert!(refused(&vfs, true).contains("manifest-00000001"));
    // A lock file, empty directories and lost+found do not keep a store from being created.
    let vfs = Arc::new(TestVfs::default());
    for name in ["", "lost+found", "lost+found/#12", "journal"] {
        vfs.create_dir_all(&dir().join(name)).unwrap();
    }
    vfs.put(&dir().join("LOCK"), b"");
    assert!(open(&vfs).1.created);
}

#[test]
fn a_store_without_a_manifest_is_corrupt_not_new() {
    let (vfs, ..) = sample();
    vfs.remove(&manifest_path(1)).unwrap();
    let error = open_with(&vfs, true).map(|_| ()).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("manifest"), "{error}");
}

#[test]
fn a_newer_format_is_named_as_such() {
    for (name, checksum_at) in [("SPINNEY", 72), ("manifest-00000001", 32)] {
        let (vfs, ..) = sample();
        let path = dir().join(name);
        let mut bytes = vfs.contents(&path);
        bytes[8] = 9;
        let sum = crate::base::checksum::checksum(0, &bytes[..checksum_at]);
        bytes[checksum_at..checksum_at + 8].copy_from_slice(&sum.to_le_bytes());
        vfs.put(&path, &bytes);
        match open_with(&vfs, true).map(|_| ()) {
            Err(Error::UnsupportedVersion { file, found: 9, supported: 1 }) => {
                assert_eq!(file, path);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn commits_from_many_threads_are_all_there_in_order() {
    let vfs = Arc::new(TestVfs::default());
    let (manifest, _) = open(&vfs);
    let keyspaces = (0..4).map(|id| create(id, &format!("k{id}"))).collect();
    manifest.commit(&Edit { keyspaces, ..Edit::default() }).unwrap();
    let syncs = vfs.syncs();
    std::thread::scope(|scope| {
        for id in 0..4 {
            let manifest = &manifest;
            scope.spawn(move || {
                for i in 0..100u32 {
                    manifest.commit(&tree_edit(id, &i.to_le_bytes())).unwrap();
                }
            });
        }
    });
    assert!(vfs.syncs() - syncs <= 400);
    assert_eq!(manifest.edits_submitted(), 401);
    let expected: Vec<TreeEdit> = (0..100u32).map(|i| unplaced(&i.to_le_bytes())).collect();
    for keyspace in reopened(&vfs, Crash::Power).unwrap().keyspaces {
        assert_eq!(keyspace.tree_edits, expected);
    }
}

#[test]
fn the_worked_example_of_the_format_page_is_a_store() {
    let page = include_str!("../../docs/format/manifest.md");
    let block = |nth: usize| hex_block(page, nth);
    let vfs = Arc::new(TestVfs::default());
    vfs.create_dir_all(dir()).unwrap();
    vfs.put(&dir().join("SPINNEY"), &block(0));
    vfs.put(&manifest_path(1), &block(1));
    let state = reopened(&vfs, Crash::Process).unwrap();
    let meta = KeyspaceMeta {
        name: "events".to_string(),
        kind: "stb".to_string(),
        options: vec![0xaa],
        operator: Some("u64_add".to_string()),
    };
    let expected = RecoveredState {
        store_id: STORE_ID,
        hash_secret: NEW_STORE.hash_secret,
        format_version: 1,
        created_by: "spinney 0.1.0".to_string(),
        next_file_id: FileId(300),
        journal_floor: Seqno(7),
        epochs: Epochs { current: 2, older: vec![(1, Seqno(9))] },
        last_seqno: Seqno(10),
        next_keyspace_id: KeyspaceId(1),
        keyspaces: vec![RecoveredKeyspace {
            id: KeyspaceId(0),
            meta,
            flushed: Seqno(7),
            tree_snapshot: None,
            tree_edits: vec![unplaced(b"tree")],
            ..RecoveredKeyspace::default()
        }],
        ..RecoveredState::default()
    };
    assert_eq!(state, expected);
    // And what this build writes is what the page shows.
    let vfs = Arc::new(TestVfs::default());
    let (manifest, _) = open(&vfs);
    let keyspace = &expected.keyspaces[0];
    let change = |change| KeyspaceEdit { id: keyspace.id, change };
    let keyspaces = vec![
        change(KeyspaceChange::Create(keyspace.meta.clone())),
        change(KeyspaceChange::TreeEdit(b"tree".to_vec())),
        change(KeyspaceChange::Flushed(keyspace.flushed)),
    ];
    let edit = Edit {
        keyspaces,
        next_file_id: Some(expected.next_file_id),
        journal_floor: Some(expected.journal_floor),
        epochs: Some(expected.epochs.clone()),
        last_seqno: Some(expected.last_seqno),
        ..Edit::default()
    };
    manifest.commit(&edit).unwrap();
    assert_eq!(vfs.contents(&manifest_path(1)), block(1));
    let written = vfs.contents(&dir().join("SPINNEY"));
    assert_eq!(written[..24], block(0)[..24], "the creator's version may differ");
}
