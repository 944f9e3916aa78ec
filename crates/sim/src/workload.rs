//! Random work on a store that is so small that everything happens all the time.
//!
//! Invariants:
//! 1. The same seed does the same operations on the same disk.

use std::sync::Arc;

use spinney::{
    Builder, Compression, Database, Durability, Error, Keyspace, KeyspaceOptions, Result,
};

use crate::disk::{Disk, Op};
use crate::kinds::Kinds;
use crate::model::{Change, Checkpoint, History, Incarnation, Pairs, Span, Write, fingerprint_of};
use crate::random::Random;
use crate::vfs::CrashVfs;

/// Where the store is.
pub const STORE: &str = "/data/store";

/// The names of keyspaces; the last one comes and goes.
pub const NAMES: [&str; 4] = ["plain", "packed", "merged", "passing"];

/// The sizes of a run's store.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    seed: u64,
    kinds: Kinds,
    memtable_bytes: u64,
    keys: usize,
    value_bytes: usize,
    shards: usize,
    /// Keyspaces that are always there. With one alone, its tree gets ahead of the journal.
    keyspaces: usize,
}

impl Sizes {
    /// Those of a run.
    pub fn new(seed: u64, kinds: Kinds) -> Sizes {
        let mut random = Random::new(&[seed, 1]);
        Sizes {
            seed,
            kinds,
            memtable_bytes: [1024, 2048, 4096][random.below(3)],
            keys: [8, 40, 200][random.below(3)],
            value_bytes: [12, 60, 300][random.below(3)],
            shards: 1 + random.below(3),
            keyspaces: [1, 1, 2, 3][random.below(4)],
        }
    }

    /// How to create a run's keyspace of that name.
    pub fn options(&self, name: &str) -> KeyspaceOptions {
        let number = NAMES.iter().position(|known| *known == name).unwrap_or(0);
        let options = KeyspaceOptions::new(self.kinds.of(number)).fanout_max(2);
        match name {
            "packed" => options.compression(Compression::Lz4),
            "merged" => options.merge_operator("append").blob_bytes_min(100),
            _ => options,
        }
    }

    /// How to open a store of these sizes.
    pub fn builder(&self, vfs: &CrashVfs, dir: &str) -> Builder {
        Database::builder(dir)
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(1 << 20)
            .memtable_bytes(self.memtable_bytes)
            .journal_shards(self.shards)
            .deterministic(self.seed)
    }
}

/// What was done from one crash to the next.
pub struct Generation {
    /// The disk before.
    pub disk: Disk,
    /// What was done to it.
    pub log: Vec<Op>,
    /// What was done to the store.
    pub history: History,
}

/// A keyspace at the beginning of a generation.
pub type Inherited = (String, Pairs);

struct Worker {
    sizes: Sizes,
    random: Random,
    vfs: CrashVfs,
    db: Option<Database>,
    /// Open keyspaces and their places in the history.
    keyspaces: Vec<(usize, Keyspace)>,
    history: History,
    number: usize,
}

/// Opens the store on `disk`, works on it for some `steps`, and closes it.
///
/// # Errors
/// Whatever the store fails with: nothing here should fail.
pub fn run(
    sizes: Sizes,
    number: usize,
    disk: &Disk,
    inherited: Vec<Inherited>,
    checkpoints: Vec<Checkpoint>,
    steps: usize,
) -> std::result::Result<Generation, String> {
    let mut history = History { checkpoints, ..History::default() };
    for (name, pairs) in inherited {
        history.keyspaces.push(Incarnation::new(&name, pairs, 0, Span::default()));
    }
    let mut worker = Worker {
        sizes,
        random: Random::new(&[sizes.seed, 2, number as u64]),
        vfs: CrashVfs::new(disk),
        db: None,
        keyspaces: Vec::new(),
        history,
        number,
    };
    let done = worker.work(steps);
    let at = worker.vfs.ops();
    let trace = worker.history.trace_before(at);
    done.map_err(|error| format!("the store failed at op {at}: {error}\n{trace}"))?;
    Ok(Generation { disk: disk.clone(), log: worker.vfs.take_log(), history: worker.history })
}

impl Worker {
    fn work(&mut self, steps: usize) -> Result<()> {
        self.open()?;
        self.history.opened = self.vfs.ops();
        for name in &NAMES[..self.sizes.keyspaces] {
            if !self.keyspaces.iter().any(|(_, keyspace)| keyspace.name() == *name) {
                self.create(name)?;
            }
        }
        for _ in 0..steps {
            self.step()?;
        }
        self.compare()?;
        self.close()
    }

    fn note(&mut self, what: impl FnOnce() -> String) -> usize {
        let at = self.vfs.ops();
        self.history.trace.push((at, what()));
        at
    }

    fn db(&self) -> Result<&Database> {
        self.db.as_ref().ok_or(Error::Closed { what: "the store".to_string() })
    }

    fn open(&mut self) -> Result<()> {
        self.note(|| "open".to_string());
        let create = self.number == 0 && self.history.opened == 0;
        let db = self.sizes.builder(&self.vfs, STORE).create_if_missing(create).open()?;
        self.keyspaces.clear();
        for (place, incarnation) in self.history.keyspaces.iter().enumerate() {
            if incarnation.dropped.is_none() {
                let name = &incarnation.name;
                self.keyspaces.push((place, db.keyspace(name, self.sizes.options(name))?));
            }
        }
        self.db = Some(db);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.note(|| "close".to_string());
        self.keyspaces.clear();
        if let Some(db) = self.db.take() {
            db.close()?;
        }
        self.all_durable();
        Ok(())
    }

    /// From now on all commits are durable.
    fn all_durable(&mut self) {
        self.history.durable.push((self.vfs.ops(), self.history.commits.len()));
    }

    fn create(&mut self, name: &str) -> Result<()> {
        let issued = self.note(|| format!("create {name}"));
        let keyspace = self.db()?.keyspace(name, self.sizes.options(name))?;
        let span = Span { issued, returned: self.vfs.ops() };
        let commits = self.history.commits.len();
        self.keyspaces.push((self.history.keyspaces.len(), keyspace));
        self.history.keyspaces.push(Incarnation::new(name, Pairs::new(), commits, span));
        Ok(())
    }

    fn drop_one(&mut self, index: usize) -> Result<()> {
        let (place, keyspace) = self.keyspaces.remove(index);
        let issued = self.note(|| format!("drop {}", keyspace.name()));
        self.db()?.drop_keyspace(keyspace.name())?;
        let returned = self.vfs.ops();
        self.history.keyspaces[place].dropped = Some(Span { issued, returned });
        // A drop makes everything before it durable.
        self.all_durable();
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(1000) {
            0..700 => self.write(),
            700..860 => {
                self.note(|| "step".to_string());
                self.db()?.step().map(|_| ())
            }
            860..880 => {
                self.note(|| "sync".to_string());
                self.db()?.sync()?;
                self.all_durable();
                Ok(())
            }
            880..910 => {
                let (_, keyspace) = self.any_keyspace();
                self.note(|| format!("flush {}", keyspace.name()));
                keyspace.flush()
            }
            910..930 => {
                let (_, keyspace) = self.any_keyspace();
                let (from, to) = (self.key(), self.key());
                self.note(|| format!("compact {}", keyspace.name()));
                match self.random.one_in(2) {
                    true => keyspace.compact::<&[u8]>(..),
                    false => keyspace.compact(from..to),
                }
            }
            930..945 => {
                self.note(|| "wait_idle".to_string());
                self.db()?.wait_idle()
            }
            945..955 => self.checkpoint(),
            955..975 => {
                let passing = NAMES[3];
                match self.keyspaces.iter().position(|(_, k)| k.name() == passing) {
                    Some(index) => self.drop_one(index),
                    None => self.create(passing),
                }
            }
            975..980 => {
                let index = self.random.below(self.keyspaces.len());
                let name = self.keyspaces[index].1.name().to_string();
                self.drop_one(index)?;
                self.create(&name)
            }
            980..990 => {
                self.close()?;
                self.open()
            }
            _ => self.compare(),
        }
    }

    fn any_keyspace(&mut self) -> (usize, Keyspace) {
        let index = self.random.below(self.keyspaces.len());
        self.keyspaces[index].clone()
    }

    fn key(&mut self) -> Vec<u8> {
        let n = self.random.below(self.sizes.keys);
        format!("key/{:04}", n * 7919 % 1009).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(200) {
            0 => 17_000,
            1..8 => self.random.below(3000),
            _ => self.random.below(self.sizes.value_bytes),
        };
        let byte = self.random.draw() as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
    }

    fn write(&mut self) -> Result<()> {
        let count = if self.random.one_in(4) { 1 + self.random.below(8) } else { 1 };
        let sync = self.random.one_in(12);
        let mut batch = self.db()?.batch();
        if sync {
            batch = batch.durability(Durability::Sync);
        }
        let mut writes = Vec::new();
        // Mostly to one keyspace, so that the others stay behind.
        let favourite = self.random.below(self.keyspaces.len());
        for _ in 0..count {
            let index = match self.random.one_in(3) {
                true => self.random.below(self.keyspaces.len()),
                false => favourite,
            };
            let (place, keyspace) = self.keyspaces[index].clone();
            let key = self.key();
            let merges = keyspace.name() == NAMES[2];
            let change = match self.random.below(10) {
                0..2 => Change::Delete,
                2..5 if merges => Change::Append(self.value()),
                _ => Change::Put(self.value()),
            };
            match &change {
                Change::Put(value) => batch.put(&keyspace, &key, value),
                Change::Delete => batch.delete(&keyspace, &key),
                Change::Append(value) => batch.merge(&keyspace, &key, value),
            }
            writes.push(Write { keyspace: place, key, change });
        }
        let commit = self.history.commits.len() + 1;
        let issued = self.note(|| match sync {
            true => format!("commit {commit}, {count} writes, sync"),
            false => format!("commit {commit}, {count} writes"),
        });
        batch.commit()?;
        self.history.commit(writes, Span { issued, returned: self.vfs.ops() });
        if sync {
            self.all_durable();
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        let dir = format!("/data/copy-{}-{}", self.number, self.history.checkpoints.len());
        let issued = self.note(|| format!("checkpoint {dir}"));
        let history = &self.history;
        let alive = history.keyspaces.iter().filter(|keyspace| keyspace.dropped.is_none());
        let keyspaces = alive
            .map(|keyspace| (keyspace.name.clone(), fingerprint_of(&keyspace.pairs)))
            .collect();
        self.db()?.checkpoint(&dir)?;
        let span = Span { issued, returned: self.vfs.ops() };
        self.history.checkpoints.push(Checkpoint { dir, span, keyspaces });
        Ok(())
    }

    /// The running store agrees with the model.
    fn compare(&mut self) -> Result<()> {
        self.note(|| "read everything".to_string());
        for (place, keyspace) in &self.keyspaces {
            let mut expected = self.history.keyspaces[*place].pairs.iter();
            for pair in keyspace.iter() {
                let (key, value) = pair?;
                if expected.next().is_none_or(|(k, v)| **k != *key || **v != *value) {
                    let key = key.escape_ascii();
                    let what = format!("the model at \"{key}\" in {}", keyspace.name());
                    return Err(Error::Conflict { what });
                }
            }
            if expected.next().is_some() {
                let what = format!("the model at the end of {}", keyspace.name());
                return Err(Error::Conflict { what });
            }
        }
        Ok(())
    }
}
