//! fjall, an LSM-tree in Rust.
//!
//! Settings that are not the defaults, for a store that may use M bytes in all:
//! - a cache of M/4, which its documentation recommends, and a memtable of M/8: several of them may wait
//!   to be written, and it keeps filters and indexes of the upper levels outside the cache;
//! - no compression unless asked, or else LZ4 on all levels; its filters are the default (0.01% false
//!   positives on the first level, 10 bits a key below);
//! - as many worker threads as there are cores, at least two.
//!
//! It reads and writes through the page cache. A write is handed to the kernel before it returns, which is
//! its default and survives the end of the process.

use std::ops::Bound;
use std::time::Duration;

use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Compression, Durability, Engine, Result, Session, Settings};

struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

fn text(error: fjall::Error) -> String {
    error.to_string()
}

pub(super) fn open(settings: &Settings, _configuration: &str) -> Result<Box<dyn Engine>> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let compression = CompressionPolicy::all(match settings.compression {
        Compression::None => CompressionType::None,
        Compression::Lz4 => CompressionType::Lz4,
    });
    let db = Database::builder(settings.dir.join("db"))
        .cache_size(settings.memory_bytes / 4)
        .worker_threads(cores)
        .open()
        .map_err(text)?;
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(settings.memory_bytes / 8)
            .data_block_compression_policy(compression)
    };
    let keyspace = db.keyspace("bench", options).map_err(text)?;
    Ok(Box::new(Fjall { db, keyspace }))
}

impl Engine for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession { store: self }))
    }

    fn settle(&self) -> Result<()> {
        let (mut quiet, mut completed) = (0, self.db.compactions_completed());
        while quiet < 10 {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.db.compactions_completed();
            let idle = self.db.outstanding_flushes() == 0 && self.db.active_compactions() == 0;
            quiet = if idle && now == completed { quiet + 1 } else { 0 };
            completed = now;
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.persist(PersistMode::SyncAll).map_err(text)
    }
}

struct FjallSession<'a> {
    store: &'a Fjall,
}

impl Session for FjallSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.store.keyspace.insert(key, value).map_err(text)?;
        if durability == Durability::Sync {
            self.store.db.persist(PersistMode::SyncData).map_err(text)?;
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.store.keyspace.remove(key).map_err(text)
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        found(self.store.keyspace.get(key).map_err(text)?.as_deref());
        Ok(())
    }

    /// It has no batched reads.
    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            let found = self.store.keyspace.get(key).map_err(text)?;
            each(place, found.as_deref());
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut seen = 0;
        let range =
            self.store.keyspace.range::<&[u8], _>((Bound::Included(from), Bound::Unbounded));
        for guard in range.take(usize::try_from(count).unwrap_or(usize::MAX)) {
            let (key, value) = guard.into_inner().map_err(text)?;
            each(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
}
