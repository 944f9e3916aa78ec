//! Fuzz targets: the superblock, edits, and whole manifests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Manifest;
use super::edit::{Edit, Epochs, KeyspaceChange, KeyspaceEdit, KeyspaceMeta};
use super::log::{manifest_path, new_manifest};
use super::open::{NewStore, OpenOptions};
use super::record::{HEADER_BYTES, Identity, RECORD_HEAD_BYTES, RecordKind};
use super::state::{RecoveredState, State};
use super::superblock::Superblock;
use crate::base::checksum::checksum;
use crate::base::codec::{Decoder, put_bytes};
use crate::base::error::{Error, Result};
use crate::base::fuzz::{FILE, Target, named, split_first};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::key_hash::HashSecret;
use crate::vfs::{Access, MemoryVfs, Vfs};

const IDENTITY: Identity = Identity { store_id: 42, number: 1 };
const NEW_STORE: NewStore =
    NewStore { store_id: 42, hash_secret: HashSecret(*b"0123456789abcdef") };

pub(crate) const TARGETS: [Target; 3] = [
    Target { name: "superblock", run: superblock, seeds: superblock_seeds },
    Target { name: "manifest-edit", run: edit, seeds: edit_seeds },
    Target { name: "manifest", run: manifest, seeds: manifest_seeds },
];

fn superblock(data: &[u8]) {
    let mut bytes = data.to_vec();
    for _ in 0..2 {
        if let Some(found) = named(Superblock::decode(&bytes, Path::new(FILE))) {
            let again = named(Superblock::decode(&found.encode(), Path::new(FILE)));
            let again = again.expect("what was encoded is decoded");
            assert_eq!((again.version, again.store_id), (found.version, found.store_id));
            assert!(again.created_by == found.created_by || !found.created_by.is_ascii());
        }
        if let Some((body, sum)) = bytes.split_at_mut_checked(56)
            && let Some(sum) = sum.first_chunk_mut()
        {
            *sum = checksum(0, body).to_le_bytes();
        }
    }
}

fn superblock_seeds() -> Vec<Vec<u8>> {
    vec![Superblock::new(NEW_STORE).encode()]
}

fn edit(data: &[u8]) {
    let decode = |bytes: &[u8]| {
        let edit = named(Edit::decode(&mut Decoder::new(bytes, Path::new(FILE), 0)));
        edit.map(|(edit, _)| edit)
    };
    let Some(found) = decode(data) else { return };
    let mut bytes = Vec::new();
    found.encode(&mut bytes);
    assert_eq!(decode(&bytes).as_ref(), Some(&found));
    let mut state = State::default();
    if state.check(&found).is_ok() {
        state.apply(&found);
        let whole = state.to_edit(&[]);
        let mut again = State::default();
        assert_eq!(again.check(&whole), Ok(()));
        again.apply(&whole);
        assert_eq!(again, state, "a snapshot says something else than the edits");
    }
}

/// Edits that follow one another.
fn edits() -> Vec<Edit> {
    let meta = |name: &str, operator: Option<&str>| KeyspaceMeta {
        name: name.to_string(),
        kind: "stb".to_string(),
        options: vec![1, 0, 64, 2, 130, 1],
        operator: operator.map(str::to_string),
    };
    let of = |id, change| KeyspaceEdit { id: KeyspaceId(id), change };
    let create = |id, name, operator| of(id, KeyspaceChange::Create(meta(name, operator)));
    let first = Edit {
        keyspaces: vec![create(1, "one", None), create(2, "two", Some("append"))],
        next_file_id: Some(FileId(7)),
        journal_floor: Some(Seqno(300)),
        epochs: Some(Epochs { current: 3, older: vec![(1, Seqno(100)), (2, Seqno(200))] }),
        last_seqno: Some(Seqno(1 << 40)),
        next_keyspace_id: Some(KeyspaceId(9)),
    };
    let changes = vec![
        of(1, KeyspaceChange::TreeSnapshot(vec![1, 0, 0, 0])),
        of(1, KeyspaceChange::TreeEdit(b"an edit".to_vec())),
        of(1, KeyspaceChange::Flushed(Seqno(400))),
        of(1, KeyspaceChange::RangeDeleteDone(Seqno(300))),
        of(2, KeyspaceChange::Options(vec![1, 1, 64, 2, 130, 1])),
        of(2, KeyspaceChange::Drop),
    ];
    vec![first, Edit { keyspaces: changes, ..Edit::default() }]
}

fn edit_seeds() -> Vec<Vec<u8>> {
    let encode = |edit: &Edit| {
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        bytes
    };
    edits().iter().map(encode).collect()
}

/// Makes the records' checksums right, as far as there are records.
fn seal(bytes: &mut [u8]) {
    let mut at = HEADER_BYTES;
    while let Some(head) = bytes.get(at..at + RECORD_HEAD_BYTES) {
        let payload = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let end = at + RECORD_HEAD_BYTES + payload.next_multiple_of(8);
        let Some(record) = bytes.get(at..end) else { return };
        let sum = checksum(IDENTITY.seed(at as u64), &record[8..]);
        bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
}

fn dir() -> PathBuf {
    PathBuf::from(FILE)
}

fn put(vfs: &MemoryVfs, path: &Path, bytes: &[u8]) {
    let created = vfs.create(path, Access::Buffered);
    created.and_then(|file| file.write_at(0, bytes)).expect("a file");
}

/// A flag, and the records of a manifest.
fn manifest(data: &[u8]) {
    let (flags, records) = split_first(data);
    let mut bytes = [&IDENTITY.encode_header()[..], records].concat();
    if flags & 1 == 0 {
        seal(&mut bytes);
    }
    let vfs = MemoryVfs::new();
    vfs.create_dir_all(&dir()).expect("a directory");
    put(&vfs, &manifest_path(&dir(), IDENTITY.number), &bytes);
    put(&vfs, &Superblock::path(&dir()), &Superblock::new(NEW_STORE).encode());
    let vfs: Arc<dyn Vfs> = Arc::new(vfs);
    let open = || -> Result<(Manifest, RecoveredState)> {
        Manifest::open(&vfs, &dir(), OpenOptions { create: false, new_store: NEW_STORE })
    };
    let Some((manifest, found)) = named(open()) else { return };
    match manifest.commit(&Edit { next_file_id: Some(FileId(1)), ..Edit::default() }) {
        Ok(()) => {}
        Err(error @ Error::Conflict { .. }) => panic!("an edit of no keyspace: {error}"),
        Err(error) => panic!("files in memory fail: {error}"),
    }
    drop(manifest);
    let (_, again) = open().expect("what was read, and one edit more");
    let next_file_id = found.next_file_id.max(FileId(1));
    assert_eq!(again, RecoveredState { torn_bytes: 0, next_file_id, ..found });
}

fn manifest_seeds() -> Vec<Vec<u8>> {
    let [first, second] = &edits()[..] else { return Vec::new() };
    let mut state = State::default();
    state.apply(first);
    let trees = [(KeyspaceId(1), b"a tree".to_vec())];
    let mut bytes = new_manifest(IDENTITY, &state, &trees).expect("a small manifest");
    let whole = bytes.split_off(HEADER_BYTES);
    let mut payload = Vec::new();
    let mut edit = Vec::new();
    second.encode(&mut edit);
    put_bytes(&mut payload, &edit);
    let offset = (HEADER_BYTES + whole.len()) as u64;
    let record = IDENTITY.encode_record(offset, RecordKind::Edits, &payload).expect("a record");
    vec![[&[0], &*whole].concat(), [&[0], &*whole, &*record].concat()]
}
