//! Stores as this version of the formats has them, committed: they are read, and what is written today is, byte for
//! byte, what was written then. `docs/format/README.md` says how they are stored, what to do when this fails, and when
//! a format's version is raised.
//!
//! `SPINNEY_GOLDENS=write cargo test --test goldens` writes them anew.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Random, contents, copy, file_name, files, pairs, store_path, with_fanout};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{
    Builder, CheckLevel, Compression, Database, Durability, Keyspace, KeyspaceOptions, MIB, Result,
    TreeKind,
};

const MAGIC: &[u8; 8] = b"SPINGOLD";
/// Fewer zeros than these are stored as they are.
const ZEROS_MIN: usize = 24;
/// The superblock names the program's version, which is no part of the format.
const CREATOR_AND_CHECKSUM: [std::ops::Range<usize>; 2] = [24..56, 72..80];
const NAMES: [&str; 4] = ["plain", "packed", "merged", "blobs"];

/// The files of a store.
type Files = BTreeMap<String, Vec<u8>>;
/// What a store holds, by keyspace.
type Model = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// What a golden is made of.
struct Golden {
    name: String,
    files: Files,
    model: Model,
}

fn builder(vfs: &MemoryVfs, dir: &Path) -> Builder {
    Database::builder(dir)
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(MIB)
        .memtable_bytes(2048)
        .journal_shards(3)
        .deterministic(7)
}

/// The kind's options, with what was the default when the goldens were written.
fn plain_options(kind: TreeKind) -> KeyspaceOptions {
    let times = if kind == TreeKind::Stb { 1.3 } else { 1.4 };
    KeyspaceOptions::new(kind).blob_bytes_min(4096).space_amplification_max(times)
}

fn options(kind: TreeKind, name: &str) -> KeyspaceOptions {
    let options = with_fanout(plain_options(kind), 2);
    match name {
        "packed" if kind == TreeKind::Slm => {
            options.compression(Compression::Lz4).key_list_percent_max(100)
        }
        "packed" => options.compression(Compression::Lz4),
        "merged" => options.merge_operator("append"),
        "blobs" => options.blob_bytes_min(100),
        _ => options,
    }
}

/// A store that is written to, and what it should hold.
struct Author {
    vfs: MemoryVfs,
    kind: TreeKind,
    /// None while it is being opened again.
    db: Option<Database>,
    keyspaces: Vec<Keyspace>,
    model: Model,
    random: Random,
}

impl Author {
    fn new(kind: TreeKind, seed: u64) -> Author {
        let vfs = MemoryVfs::new();
        let db = builder(&vfs, &store_path()).open().unwrap();
        let mut author = Author {
            vfs,
            kind,
            db: Some(db),
            keyspaces: Vec::new(),
            model: Model::new(),
            random: Random(seed),
        };
        author.open_keyspaces();
        author
    }

    fn open_keyspaces(&mut self) {
        let open = |name: &&str| self.db().keyspace(name, options(self.kind, name)).unwrap();
        self.keyspaces = NAMES.iter().map(open).collect();
        for name in NAMES {
            self.model.entry(name.to_string()).or_default();
        }
    }

    fn db(&self) -> &Database {
        self.db.as_ref().unwrap()
    }

    fn close(&mut self) {
        self.keyspaces.clear();
        self.db.take().unwrap().close().unwrap();
    }

    /// Closes the store and opens it again, so that there are several epochs.
    fn reopen(&mut self) {
        self.close();
        self.db = Some(builder(&self.vfs, &store_path()).open().unwrap());
        self.open_keyspaces();
    }

    /// Commits so many batches, with what background work they bring.
    fn write(&mut self, commits: usize) {
        for commit in 0..commits {
            let mut batch = self.db().batch();
            if commit % 16 == 5 {
                batch = batch.durability(Durability::Sync);
            }
            for _ in 0..1 + self.random.below(3) {
                let place = self.random.below(4) as usize;
                let (name, keyspace) = (NAMES[place], &self.keyspaces[place]);
                let key = format!("key/{:03}", self.random.below(60) * 7 % 61).into_bytes();
                let len = match self.random.below(40) {
                    0 => 700,
                    _ => 5 + self.random.below(60) as usize,
                };
                let len = if name == "blobs" { 2 * len } else { len };
                let byte = self.random.below(200) as u8;
                let value: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8 % 32)).collect();
                let pairs = self.model.get_mut(name).unwrap();
                match self.random.below(10) {
                    0..3 => {
                        batch.delete(keyspace, &key);
                        pairs.remove(&key);
                    }
                    3..7 if name == "merged" => {
                        batch.merge(keyspace, &key, &value[..8.min(len)]);
                        pairs.entry(key).or_default().extend_from_slice(&value[..8.min(len)]);
                    }
                    _ => {
                        batch.put(keyspace, &key, &value);
                        pairs.insert(key, value);
                    }
                }
            }
            batch.commit().unwrap();
            if self.random.below(2) == 0 {
                self.db().step().unwrap();
            }
        }
    }

    fn golden(&self, what: &str, files: Files) -> Golden {
        Golden { name: format!("{}-{what}", self.kind), files, model: self.model.clone() }
    }
}

fn take(vfs: &MemoryVfs, dir: &Path) -> Files {
    let names = files(vfs, dir).into_iter();
    names.map(|(name, _)| (name.clone(), contents(vfs, &dir.join(&name)))).collect()
}

/// Closed properly; a keyspace has been dropped, and the store has been opened three times.
fn clean(kind: TreeKind) -> Golden {
    let mut author = Author::new(kind, 1);
    author.write(60);
    let passing = author.db().keyspace("passing", plain_options(kind)).unwrap();
    passing.put("gone", "soon").unwrap();
    drop(passing);
    author.reopen();
    author.write(60);
    author.db().drop_keyspace("passing").unwrap();
    author.reopen();
    author.write(30);
    author.keyspaces[0].compact(..).unwrap();
    author.close();
    let files = take(&author.vfs, &store_path());
    author.golden("clean", files)
}

/// As the end of its process leaves it: a journal of three shards and two epochs, tables that are
/// waited for, and versions that a snapshot kept.
fn crashed(kind: TreeKind) -> Golden {
    let mut author = Author::new(kind, 2);
    author.write(60);
    author.reopen();
    author.write(30);
    let snapshot = author.db().snapshot();
    author.write(60);
    author.keyspaces[1].compact(..).unwrap();
    author.write(25);
    let left = copy(&author.vfs, &store_path());
    drop(snapshot);
    let files = take(&left, &store_path());
    author.golden("crashed", files)
}

/// Large values, which go past the journal, and nothing but puts and deletes in the tree.
fn large(kind: TreeKind) -> Golden {
    let mut author = Author::new(kind, 3);
    for number in 0..3u8 {
        let value = vec![number; 17_000];
        author.keyspaces[3].put([number], &value).unwrap();
        author.model.get_mut("blobs").unwrap().insert(vec![number], value);
    }
    author.write(40);
    author.keyspaces[3].delete([1]).unwrap();
    author.model.get_mut("blobs").unwrap().remove(&[1][..]);
    let files = take(&copy(&author.vfs, &store_path()), &store_path());
    author.golden("large", files)
}

/// A copy made of a store that goes on.
fn checkpoint(kind: TreeKind) -> Golden {
    let mut author = Author::new(kind, 4);
    author.write(100);
    author.db().checkpoint("/copy").unwrap();
    let golden = author.golden("checkpoint", take(&author.vfs, Path::new("/copy")));
    author.write(20);
    golden
}

/// On a thread of its own: threads keep what they have learnt of readers.
fn write_all() -> Vec<Golden> {
    let write = || {
        let each = TreeKind::ALL.into_iter();
        each.flat_map(|kind| [clean(kind), crashed(kind), large(kind), checkpoint(kind)]).collect()
    };
    std::thread::spawn(write).join().unwrap()
}

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(format!("{name}.golden"))
}

fn encode(files: &Files) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&(files.len() as u32).to_le_bytes());
    let put_run = |out: &mut Vec<u8>, zeros: usize, bytes: &[u8]| {
        out.extend_from_slice(&(zeros as u32).to_le_bytes());
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    for (name, bytes) in files {
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        let mut at = 0;
        while at < bytes.len() {
            let zeros = bytes[at..].iter().take_while(|&&byte| byte == 0).count();
            let start = at + zeros;
            let long = bytes[start..].windows(ZEROS_MIN).position(|run| run == [0; ZEROS_MIN]);
            let end = long.map_or(bytes.len(), |long| start + long);
            put_run(&mut out, zeros, &bytes[start..end]);
            at = end;
        }
    }
    out
}

fn decode(mut golden: &[u8]) -> Files {
    let mut next = |n: usize| {
        let (taken, rest) = golden.split_at(n);
        golden = rest;
        taken
    };
    assert_eq!(next(8), MAGIC);
    let count = u32::from_le_bytes(next(4).try_into().unwrap());
    let mut files = Files::new();
    for _ in 0..count {
        let len = usize::from(next(1)[0]);
        let name = String::from_utf8(next(len).to_vec()).unwrap();
        let len = u64::from_le_bytes(next(8).try_into().unwrap()) as usize;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let zeros = u32::from_le_bytes(next(4).try_into().unwrap()) as usize;
            let count = u32::from_le_bytes(next(4).try_into().unwrap()) as usize;
            bytes.resize(bytes.len() + zeros, 0);
            bytes.extend_from_slice(next(count));
        }
        files.insert(name, bytes);
    }
    files
}

/// The store of a golden, on a file system of its own.
fn restore(files: &Files) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    vfs.create_dir_all(&store_path()).unwrap();
    for (name, bytes) in files {
        let file = vfs.create(&store_path().join(name), Access::Buffered).unwrap();
        file.write_at(0, bytes).unwrap();
    }
    vfs
}

fn committed(name: &str) -> Files {
    let path = golden_path(name);
    let bytes = fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; a new tree kind gets its goldens by \
             `SPINNEY_GOLDENS=write cargo test --test goldens`",
            file_name(&path)
        )
    });
    decode(&bytes)
}

/// What differs between the files of then and now, in words.
fn difference(then: &Files, now: &Files) -> Option<String> {
    let names: Vec<&String> = then.keys().chain(now.keys()).collect();
    names.into_iter().find_map(|name| {
        let (Some(then), Some(now)) = (then.get(name), now.get(name)) else {
            let what = if then.contains_key(name) { "is not written any more" } else { "is new" };
            return Some(format!("{name} {what}"));
        };
        let counts = |at: &usize| {
            name != "SPINNEY" || !CREATOR_AND_CHECKSUM.iter().any(|range| range.contains(at))
        };
        let differs = |at: &usize| counts(at) && then.get(*at) != now.get(*at);
        (0..then.len().max(now.len())).find(differs).map(|at| {
            format!(
                "{name} differs at byte {at}: {:02x?} then, {:02x?} now ({} and {} bytes)",
                then.get(at),
                now.get(at),
                then.len(),
                now.len()
            )
        })
    })
}

/// Opens a golden and compares all it holds, from both ends.
fn read(vfs: &MemoryVfs, model: &Model) -> Result<Database> {
    let db = builder(vfs, &store_path()).create_if_missing(false).open()?;
    assert_eq!(db.keyspaces(), model.keys().cloned().collect::<Vec<_>>());
    for (name, expected) in model {
        let keyspace = db.existing_keyspace(name)?;
        let mut expected: Vec<_> =
            expected.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        assert!(pairs(keyspace.iter()) == expected, "{name}");
        for (key, value) in &expected {
            assert!(keyspace.get(key)?.as_deref() == Some(&value[..]), "{name}: {key:?}");
        }
        expected.reverse();
        let backwards = keyspace.iter().rev();
        let backwards: Vec<_> = backwards
            .map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())))
            .collect::<Result<_>>()?;
        assert!(backwards == expected, "{name}, backwards");
    }
    let report = db.check(CheckLevel::Full)?;
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    Ok(db)
}

/// A golden opens and holds what it held, also after being written to and opened again.
fn assert_lives_on(name: &str, files: &Files, model: &Model) {
    let vfs = restore(files);
    for round in 0..3 {
        let mut model = model.clone();
        let db = read(&vfs, &model).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (name, pairs) in &mut model {
            let keyspace = db.existing_keyspace(name).unwrap();
            keyspace.put("later", "value").unwrap();
            pairs.insert(b"later".to_vec(), b"value".to_vec());
            if round == 1 {
                keyspace.compact(..).unwrap();
            }
        }
        db.close().unwrap();
        let db = read(&vfs, &model).unwrap_or_else(|error| panic!("{name}, again: {error}"));
        for name in model.keys() {
            db.existing_keyspace(name).unwrap().delete("later").unwrap();
        }
    }
}

/// The goldens open and hold what they held, also after being written to and opened again; and the
/// same calls write the same bytes today.
#[test]
fn what_was_written_then_is_read_and_written_now() {
    let goldens = write_all();
    if std::env::var("SPINNEY_GOLDENS").as_deref() == Ok("write") {
        for golden in &goldens {
            fs::write(golden_path(&golden.name), encode(&golden.files)).unwrap();
        }
    }
    for Golden { name, files: now, model } in goldens {
        let then = committed(&name);
        assert_lives_on(&name, &then, &model);
        if let Some(what) = difference(&then, &now) {
            panic!(
                "{name}: {what}. If a format has changed, raise its version; see \
                 docs/format/README.md"
            );
        }
    }
}

/// A store as it was when bundles of `tph` with a single piece had heads too.
#[test]
fn heads_of_single_pieces_are_read() {
    let name = "tph-single-heads";
    let clean = write_all().into_iter().find(|golden| golden.name == "tph-clean").unwrap();
    let then = committed(name);
    let heads = |files: &Files| files.keys().filter(|name| name.ends_with(".head")).count();
    assert!(heads(&then) > heads(&clean.files));
    assert_lives_on(name, &then, &clean.model);
}

#[test]
fn goldens_hold_what_they_are_for() {
    let names = |files: &Files, end: &str| files.keys().filter(|name| name.ends_with(end)).count();
    for kind in TreeKind::ALL {
        let crashed = committed(&format!("{kind}-crashed"));
        let shards: std::collections::BTreeSet<&str> = crashed
            .keys()
            .filter(|name| name.starts_with("journal-00000002-"))
            .map(|name| &name[17..19])
            .collect();
        assert_eq!(shards.len(), 3, "{:?}", crashed.keys());
        let clean = committed(&format!("{kind}-clean"));
        assert!(names(&clean, ".table") > 2, "{:?}", clean.keys());
        assert!(names(&clean, ".blob") > 0, "{:?}", clean.keys());
        assert!(names(&committed(&format!("{kind}-large")), ".blob") >= 2);
        assert_eq!(names(&committed(&format!("{kind}-checkpoint")), ".log"), 0);
    }
    let goldens = fs::read_dir(golden_path("x").parent().unwrap()).unwrap();
    let bytes: u64 = goldens.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 300_000 * TreeKind::ALL.len() as u64, "{bytes} bytes");
}

/// A changed, a missing and an additional byte or file is told by its place.
#[test]
fn differences_are_found() {
    let then: Files =
        [("a".to_string(), vec![0; 100]), ("SPINNEY".to_string(), vec![1; 80])].into();
    assert_eq!(decode(&encode(&then)), then);
    assert_eq!(difference(&then, &then), None);
    let mut now = then.clone();
    now.get_mut("SPINNEY").unwrap()[30] = 9;
    assert_eq!(difference(&then, &now), None, "the program's version is no part of the format");
    now.get_mut("a").unwrap()[77] = 5;
    assert_eq!(decode(&encode(&now)), now);
    assert!(difference(&then, &now).unwrap().starts_with("a differs at byte 77: Some(00) then"));
    now.insert("a".to_string(), vec![0; 101]);
    assert!(difference(&then, &now).unwrap().contains("at byte 100"));
    now.remove("a");
    assert_eq!(difference(&then, &now).unwrap(), "a is not written any more");
    assert_eq!(difference(&now, &then).unwrap(), "a is new");
}
