//! Small stores to be damaged, of each kind and in each form, with their expected content.
//!
//! Invariants:
//! 1. The same kinds, form and seed make the same bytes.
//! 2. [`Image::states`] has the store's content after each commit, beginning with none. The
//!    undamaged image opens with one of them, [`Image::expected`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney::{
    Builder, CheckLevel, Compression, Database, Durability, Error, Keyspace, KeyspaceOptions,
    RecoveryReport, TreeKind,
};

use crate::answers::Answers;
use crate::content::Content;
use crate::disk::{Disk, FileNumber, Names, Node, Policy};
use crate::kinds::{Kinds, with_fanout, with_own};
use crate::model::Pairs;
use crate::random::Random;
use crate::vfs::CrashVfs;

/// Where the store is.
const STORE: &str = "/data/store";
/// Where its copy is.
const COPY: &str = "/data/copy";
/// Commits of a store's first life.
const COMMITS: usize = 90;
const KEYS: usize = 40;

/// How a store was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Closed, with some of it in the journal.
    Closed,
    /// All of it in trees, compacted, and closed.
    Settled,
    /// Its process was killed.
    Killed,
    /// Killed twice, so that journals of several epochs count.
    KilledAgain,
    /// The power failed.
    PowerLost,
    /// A copy of another store.
    Copy,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 6] =
        [Form::Closed, Form::Settled, Form::Killed, Form::KilledAgain, Form::PowerLost, Form::Copy];

    /// The name as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Form::Closed => "closed",
            Form::Settled => "settled",
            Form::Killed => "killed",
            Form::KilledAgain => "killed-again",
            Form::PowerLost => "power-lost",
            Form::Copy => "copy",
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Form, String> {
        let known = Form::ALL.map(Form::name).join(", ");
        let found = Form::ALL.into_iter().find(|form| form.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of {known}"))
    }
}

/// What a store holds: its keyspaces' pairs.
pub type Contents = BTreeMap<String, Pairs>;

/// Names and bytes of files. Copies are cheap.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// What each name stands for.
    pub names: Names,
    /// Each file's bytes.
    pub contents: BTreeMap<FileNumber, Content>,
}

impl Files {
    /// Those that a process sees now.
    pub fn of(vfs: &CrashVfs) -> Files {
        let (names, contents) = vfs.view();
        Files { names, contents }
    }

    /// A file system that holds a copy of them.
    pub fn vfs(&self) -> CrashVfs {
        CrashVfs::of_files(self.names.clone(), self.contents.clone())
    }

    /// A file's bytes.
    pub fn content(&self, path: &Path) -> Option<&Content> {
        match self.names.get(path) {
            Some(Node::File(number)) => self.contents.get(&number),
            _ => None,
        }
    }

    /// A file's bytes, to be changed.
    pub fn content_mut(&mut self, path: &Path) -> Option<&mut Content> {
        match self.names.get(path) {
            Some(Node::File(number)) => self.contents.get_mut(&number),
            _ => None,
        }
    }

    /// The files of a directory, in the order of their names.
    pub fn list(&self, dir: &Path) -> Vec<PathBuf> {
        let files = self.names.iter().filter(|(_, node)| matches!(node, Node::File(_)));
        files
            .map(|(path, _)| path.to_path_buf())
            .filter(|path| path.parent() == Some(dir))
            .collect()
    }
}

/// A small store.
#[derive(Debug, Clone)]
pub struct Image {
    /// The trees of its keyspaces.
    pub kinds: Kinds,
    /// How it was left.
    pub form: Form,
    /// What it was made from.
    pub seed: u64,
    /// The store's directory, as names in `files` begin.
    pub dir: PathBuf,
    /// The files.
    pub files: Files,
    /// The files as they were at earlier moments, each with the same names meaning the same.
    pub earlier: Vec<Files>,
    /// What it held after each number of commits.
    pub states: Vec<Arc<Contents>>,
    /// How many commits were durable.
    pub synced: usize,
    /// How many commits were durable when the store was last opened, closed or copied, which its
    /// manifest has recorded.
    pub recorded: usize,
    /// How many commits it holds, undamaged.
    pub expected: usize,
    /// What recovery tells of it, undamaged.
    pub recovery: RecoveryReport,
    /// Keyspaces that are no more. The manifest alone tells that, and `DURABLE` that the manifest does.
    pub dropped: BTreeSet<String>,
    /// Files that an open without damage removes: nothing needs them.
    pub unneeded: BTreeSet<PathBuf>,
    /// The longest value that it ever held: one page may hold as much.
    pub value_bytes_max: u64,
    /// All keys that each keyspace ever had.
    keys: BTreeMap<String, Vec<Vec<u8>>>,
}

fn builder(vfs: &CrashVfs, dir: &Path, seed: u64) -> Builder {
    let mut random = Random::new(&[seed, 11]);
    Database::builder(Path::new("/").join(dir))
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes([1024, 2048][random.below(2)])
        .journal_shards(1 + random.below(2))
        .deterministic(seed)
}

/// The kinds that a store has keyspaces of.
fn each(kinds: Kinds) -> Vec<TreeKind> {
    match kinds {
        Kinds::One(kind) => vec![kind],
        Kinds::Mixed | Kinds::All => TreeKind::ALL.to_vec(),
    }
}

/// Works on the store.
struct Worker {
    random: Random,
    keyspaces: Vec<Keyspace>,
    states: Vec<Arc<Contents>>,
    synced: usize,
    recorded: usize,
}

impl Worker {
    fn open(&mut self, db: &Database, kinds: Kinds) -> Result<(), Error> {
        self.keyspaces.clear();
        for kind in each(kinds) {
            let options = || with_fanout(KeyspaceOptions::new(kind), 2);
            let merged = options().merge_operator("append").blob_bytes_min(100);
            let all = [
                ("plain", options()),
                ("packed", options().compression(Compression::Lz4)),
                ("merged", with_own(merged, "one_level", 1)),
            ];
            for (name, options) in all {
                self.keyspaces.push(db.keyspace(&format!("{kind}-{name}"), options)?);
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key/{:04}", self.random.below(KEYS) * 7919 % 1009).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(120) {
            0 => 17_000,
            1..20 => self.random.below(400),
            _ => self.random.below(60),
        };
        let byte = self.random.draw() as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
    }

    fn commit(&mut self, db: &Database) -> Result<(), Error> {
        let sync = self.random.one_in(10);
        let mut batch = db.batch();
        if sync {
            batch = batch.durability(Durability::Sync);
        }
        let mut contents = Contents::clone(&self.states[self.states.len() - 1]);
        for _ in 0..1 + self.random.below(4) {
            let keyspace = self.keyspaces[self.random.below(self.keyspaces.len())].clone();
            let pairs = contents.entry(keyspace.name().to_string()).or_default();
            let (key, value) = (self.key(), self.value());
            match self.random.below(10) {
                0..2 => {
                    batch.delete(&keyspace, &key);
                    pairs.remove(&key);
                }
                2..5 if keyspace.name().ends_with("merged") => {
                    batch.merge(&keyspace, &key, &value);
                    pairs.entry(key).or_default().extend_from_slice(&value);
                }
                _ => {
                    batch.put(&keyspace, &key, &value);
                    pairs.insert(key, value);
                }
            }
        }
        batch.commit()?;
        self.states.push(Arc::new(contents));
        if sync {
            self.all_synced();
        }
        Ok(())
    }

    fn all_synced(&mut self) {
        self.synced = self.states.len() - 1;
    }

    /// The store was opened, closed or copied as it is.
    fn all_recorded(&mut self) {
        self.all_synced();
        self.recorded = self.synced;
    }

    fn work(&mut self, db: &Database, vfs: &CrashVfs, commits: usize) -> Result<Vec<Files>, Error> {
        let mut earlier = Vec::new();
        for number in 0..commits {
            self.commit(db)?;
            match self.random.below(16) {
                0..6 => drop(db.step()?),
                6 => self.keyspaces[self.random.below(self.keyspaces.len())].flush()?,
                7 => {
                    let index = self.random.below(self.keyspaces.len());
                    let (from, to) = (self.key(), self.key());
                    self.keyspaces[index].compact(from..to)?;
                }
                _ => {}
            }
            if number % 20 == 19 {
                earlier.push(Files::of(vfs));
            }
        }
        Ok(earlier)
    }
}

impl Image {
    /// Makes one.
    ///
    /// # Errors
    /// Whatever fails: nothing here should.
    pub fn build(kinds: Kinds, form: Form, seed: u64) -> Result<Image, String> {
        Image::make(kinds, form, seed)
            .map_err(|error| format!("making the {form} store of seed {seed}: {error}"))
    }

    fn make(kinds: Kinds, form: Form, seed: u64) -> Result<Image, String> {
        let said = |error: Error| error.to_string();
        let vfs = CrashVfs::new(&Disk::default());
        let store = PathBuf::from(STORE.trim_start_matches('/'));
        let mut worker = Worker {
            random: Random::new(&[seed, 12, form as u64]),
            keyspaces: Vec::new(),
            states: Vec::new(),
            synced: 0,
            recorded: 0,
        };
        let db = builder(&vfs, &store, seed).open().map_err(said)?;
        worker.open(&db, kinds).map_err(said)?;
        let names = worker.keyspaces.iter().map(|keyspace| keyspace.name().to_string());
        let passing = KeyspaceOptions::new(kinds.of(0));
        db.keyspace("passing", passing).and_then(|_| db.drop_keyspace("passing")).map_err(said)?;
        worker.states.push(Arc::new(names.map(|name| (name, Pairs::new())).collect()));
        let mut earlier = worker.work(&db, &vfs, COMMITS).map_err(said)?;
        let mut dir = store.clone();
        let mut files = Files::default();
        match form {
            Form::Closed | Form::Settled => {
                if form == Form::Settled {
                    for keyspace in &worker.keyspaces {
                        keyspace.compact(..).map_err(said)?;
                    }
                    db.wait_idle().map_err(said)?;
                }
                worker.keyspaces.clear();
                db.close().map_err(said)?;
                worker.all_recorded();
            }
            Form::Killed => files = Files::of(&vfs),
            Form::KilledAgain => {
                let first = Files::of(&vfs);
                drop((std::mem::take(&mut worker.keyspaces), db));
                let vfs = first.vfs();
                let db = builder(&vfs, &store, seed).open().map_err(said)?;
                // What a recovery delivers is durable.
                worker.all_recorded();
                worker.open(&db, kinds).map_err(said)?;
                earlier.extend(worker.work(&db, &vfs, COMMITS / 4).map_err(said)?);
                files = Files::of(&vfs);
                worker.keyspaces.clear();
            }
            Form::PowerLost => {
                let log = vfs.take_log();
                let disk = Disk::default().after(&log);
                let left = disk.crash(Policy::PowerSectors, worker.random.draw(), None);
                (files.names, files.contents) = left.view();
            }
            Form::Copy => {
                db.checkpoint(COPY).map_err(said)?;
                worker.all_recorded();
                dir = PathBuf::from(COPY.trim_start_matches('/'));
            }
        }
        if files.names.iter().next().is_none() {
            files = Files::of(&vfs);
        }
        let (states, synced, recorded) = (worker.states, worker.synced, worker.recorded);
        let mut image = Image {
            kinds,
            form,
            seed,
            dir,
            files,
            earlier,
            states,
            synced,
            recorded,
            expected: 0,
            recovery: RecoveryReport::default(),
            dropped: BTreeSet::from(["passing".to_string()]),
            unneeded: BTreeSet::new(),
            value_bytes_max: 0,
            keys: BTreeMap::new(),
        };
        for (name, pairs) in image.states.iter().flat_map(|state| state.iter()) {
            let keys = image.keys.entry(name.clone()).or_default();
            keys.extend(pairs.keys().cloned());
            keys.sort();
            keys.dedup();
            let longest = pairs.values().map(|value| value.len() as u64).max();
            image.value_bytes_max = image.value_bytes_max.max(longest.unwrap_or(0));
        }
        image.measure()?;
        Ok(image)
    }

    /// All keys that a keyspace ever had.
    pub fn keys(&self, keyspace: &str) -> &[Vec<u8>] {
        self.keys.get(keyspace).map_or(&[], Vec::as_slice)
    }

    /// How to open it where its files are.
    pub fn builder(&self, vfs: &CrashVfs) -> Builder {
        builder(vfs, &self.dir, self.seed).create_if_missing(false)
    }

    /// Opens it undamaged and notes what it holds.
    fn measure(&mut self) -> Result<(), String> {
        let vfs = self.files.vfs();
        let db = self.builder(&vfs).open().map_err(|error| error.to_string())?;
        let answers = Answers::read(&db, self);
        if let Some(error) = answers.error() {
            return Err(format!("undamaged, it fails: {error}"));
        }
        let found = (0..self.states.len()).rev().find(|&k| answers.agree(&self.states[k]).is_ok());
        self.expected = found.ok_or("undamaged, it holds no state that it has had")?;
        if self.expected < self.synced {
            return Err(format!("holds {} commits of {} synced", self.expected, self.synced));
        }
        let report = db.check(CheckLevel::Full).map_err(|error| error.to_string())?;
        if !report.problems.is_empty() {
            return Err(format!("undamaged, a check finds {:?}", report.problems));
        }
        self.recovery = db.recovery();
        let after = Files::of(&vfs);
        let before = self.files.list(&self.dir);
        self.unneeded = before.into_iter().filter(|path| !after.names.contains(path)).collect();
        Ok(())
    }
}
