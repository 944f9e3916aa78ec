//! The store answers as a versioned `BTreeMap` does: random operations in deterministic mode, with
//! sizes so small that memtables freeze, nodes flush, leaves split and space is reclaimed all the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney::vfs::MemoryVfs;
use spinney::{
    Builder, CheckLevel, Compression, Database, Durability, Keyspace, KeyspaceOptions, Snapshot,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

struct World {
    random: Random,
    seed: u64,
    vfs: MemoryVfs,
    db: Option<Database>,
    keyspaces: Vec<Keyspace>,
    models: Vec<Model>,
    snapshots: Vec<(Snapshot, Vec<Model>)>,
    keys: u64,
}

fn options(number: usize, seed: u64) -> KeyspaceOptions {
    let options = KeyspaceOptions::stb()
        .fanout_max(2 + (seed % 3) as u32)
        .merge_operator("append")
        .blob_bytes_min(200);
    if number % 2 == 1 { options.compression(Compression::Lz4) } else { options }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let keys = [20, 200, 2000][random.below(3) as usize];
        let mut world = World {
            random,
            seed,
            vfs: MemoryVfs::new(),
            db: None,
            keyspaces: Vec::new(),
            models: vec![Model::new(); 2],
            snapshots: Vec::new(),
            keys,
        };
        world.open();
        world
    }

    fn builder(&self) -> Builder {
        Database::builder("/store")
            .vfs(Arc::new(self.vfs.clone()))
            .memory_budget(1 << 20)
            .memtable_bytes(4096)
            .deterministic(self.seed)
    }

    fn open(&mut self) {
        let db = self.builder().open().unwrap();
        self.keyspaces = (0..self.models.len())
            .map(|number| db.keyspace(&format!("k{number}"), options(number, self.seed)).unwrap())
            .collect();
        self.db = Some(db);
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.keyspaces.clear();
        let db = self.db.take().unwrap();
        if self.random.below(2) == 0 {
            db.close().unwrap();
        } else {
            drop(db);
        }
        self.open();
    }

    fn db(&self) -> &Database {
        self.db.as_ref().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
        let n = self.random.below(self.keys);
        match n % 7 {
            0 => Vec::from(n.to_be_bytes()),
            1 => format!("{n}").into_bytes(),
            _ => format!("key/{:08}", n * 7919 % self.keys).into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(20) {
            0 => 0,
            1 => 300 + self.random.below(3000),
            2 => 17_000,
            _ => self.random.below(60),
        };
        let byte = self.random.next() as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
    }

    fn write(&mut self) {
        let count = if self.random.below(4) == 0 { self.random.below(20) + 1 } else { 1 };
        let mut batch = self.db().batch();
        if self.random.below(10) == 0 {
            batch = batch.durability(Durability::Sync);
        }
        for _ in 0..count {
            let number = self.random.below(self.models.len() as u64) as usize;
            let key = self.key();
            let value = self.value();
            let keyspace = self.keyspaces[number].clone();
            match self.random.below(10) {
                0..6 => {
                    batch.put(&keyspace, &key, &value);
                    self.models[number].insert(key, value);
                }
                6..8 => {
                    batch.delete(&keyspace, &key);
                    self.models[number].remove(&key);
                }
                _ => {
                    let operand = &value[..value.len().min(10)];
                    batch.merge(&keyspace, &key, operand);
                    self.models[number].entry(key).or_default().extend_from_slice(operand);
                }
            }
        }
        batch.commit().unwrap();
    }

    fn check_reads(&mut self) {
        let number = self.random.below(self.models.len() as u64) as usize;
        let keys: Vec<Vec<u8>> = (0..10).map(|_| self.key()).collect();
        let keyspace = &self.keyspaces[number];
        let model = &self.models[number];
        for key in &keys {
            let found = keyspace.get(key).unwrap();
            assert_eq!(
                found.as_deref(),
                model.get(key).map(|v| &**v),
                "{:?}",
                key.escape_ascii().to_string()
            );
        }
        let found = keyspace.multi_get(&keys).unwrap();
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(found.as_deref(), model.get(key).map(|v| &**v));
        }
        if let Some((snapshot, models)) = self.snapshots.last() {
            for key in &keys {
                let found = snapshot.get(keyspace, key).unwrap();
                assert_eq!(found.as_deref(), models[number].get(key).map(|v| &**v));
            }
        }
    }

    fn check_scans(&mut self) {
        let number = self.random.below(self.models.len() as u64) as usize;
        let (a, b) = (self.key(), self.key());
        let (from, to) = if a <= b { (a, b) } else { (b, a) };
        let keyspace = &self.keyspaces[number];
        let (mut iter, model) = match self.snapshots.first() {
            Some((snapshot, models)) if self.random.below(2) == 0 => {
                (snapshot.range(keyspace, from.clone()..to.clone()), &models[number])
            }
            _ => (keyspace.range(from.clone()..to.clone()), &self.models[number]),
        };
        let mut expected = model.range(from..to);
        loop {
            let (found, wanted) = if self.random.below(3) == 0 {
                (iter.next_back(), expected.next_back())
            } else {
                (iter.next(), expected.next())
            };
            let found = found.map(|pair| pair.unwrap());
            let found = found.as_ref().map(|(key, value)| (&**key, &**value));
            assert_eq!(found, wanted.map(|(key, value)| (&**key, &**value)));
            if wanted.is_none() {
                break;
            }
        }
    }

    fn check_all(&mut self) {
        let report = self.db().check(CheckLevel::Full).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        for (keyspace, model) in self.keyspaces.iter().zip(&self.models) {
            same(keyspace.iter(), model);
            let backwards: Vec<_> = keyspace.iter().rev().map(|pair| pair.unwrap().0).collect();
            assert!(backwards.iter().map(|key| &**key).eq(model.keys().rev().map(|key| &**key)));
        }
        for (snapshot, models) in &self.snapshots {
            for (keyspace, model) in self.keyspaces.iter().zip(models) {
                same(snapshot.iter(keyspace), model);
            }
        }
    }

    fn check_checkpoint(&mut self) {
        let dir = format!("/checkpoint-{}", self.random.next());
        self.db().checkpoint(&dir).unwrap();
        let copy = Database::builder(&dir)
            .vfs(Arc::new(self.vfs.clone()))
            .deterministic(self.seed)
            .open()
            .unwrap();
        for (number, model) in self.models.iter().enumerate() {
            let keyspace = copy.existing_keyspace(&format!("k{number}")).unwrap();
            same(keyspace.iter(), model);
        }
        assert!(copy.check(CheckLevel::Full).unwrap().problems.is_empty());
    }

    fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            match self.random.below(1000) {
                0..700 => self.write(),
                700..850 => self.check_reads(),
                850..930 => self.check_scans(),
                930..960 => {
                    self.db().step().unwrap();
                }
                960..970 => {
                    let snapshot = self.db().snapshot();
                    self.snapshots.push((snapshot, self.models.clone()));
                }
                970..982 => {
                    if !self.snapshots.is_empty() {
                        let index = self.random.below(self.snapshots.len() as u64) as usize;
                        self.snapshots.remove(index);
                    }
                }
                982..988 => {
                    let number = self.random.below(2) as usize;
                    self.keyspaces[number].flush().unwrap();
                }
                988..992 => {
                    let (a, b) = (self.key(), self.key());
                    let number = self.random.below(2) as usize;
                    self.keyspaces[number].compact(a..b).unwrap();
                }
                992..995 => self.check_all(),
                995..996 => self.check_checkpoint(),
                996..998 => self.db().wait_idle().unwrap(),
                _ => self.reopen(),
            }
        }
        self.check_all();
        self.reopen();
        self.check_all();
        self.keyspaces[0].compact::<&[u8]>(..).unwrap();
        self.check_all();
    }
}

fn same(iter: spinney::Iter, model: &Model) {
    let mut expected = model.iter();
    for pair in iter {
        let (key, value) = pair.unwrap();
        let (wanted_key, wanted_value) = expected.next().expect("a key that is not there");
        assert_eq!((&*key, &*value), (&**wanted_key, &**wanted_value));
    }
    assert_eq!(expected.next(), None);
}

#[test]
fn random_operations_agree_with_the_model() {
    let from: u64 = std::env::var("SPINNEY_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count: u64 = std::env::var("SPINNEY_SEEDS").map_or(12, |seeds| seeds.parse().unwrap());
    for seed in from..from + count {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 cargo test --test model");
        World::new(seed).run(3000);
    }
}
