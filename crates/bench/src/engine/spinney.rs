//! Spinney itself, with nothing set but the memory: that is the promise. (`--memtable`
//! sets one thing more, for comparisons of trees at equal sizes, and a configuration such as
//! `stb-noseek` switches one thing off, to show what it is worth.)

use std::path::{Path, PathBuf};
use std::time::Duration;

use spinney::{Database, EmulatedMemory, Keyspace, KeyspaceOptions, PersistentMemory, TreeKind};

use super::{Compression, Durability, Engine, Result, Session, Settings};

/// Kinds with something switched off: filters of tables, seeks into several tables at once, the merging
/// of what has been sought too much, more than one table in a guard (PebblesDB-1 of its slides), or more than one large
/// piece in a leaf (the single tier of CompassDB's paper). `tph` with the paper's perfect hash functions. `slm` with other
/// thresholds, or without a way to choose what to merge. And kinds with journal and index in emulated persistent memory: as
/// slow as the number of nanoseconds and the bandwidth say.
const VARIANTS: [&str; 23] = [
    "stb-serial",
    "stb-noseek",
    "flsm-nofilter",
    "flsm-serial",
    "flsm-noseek",
    "flsm-one",
    "tph-single",
    "tph-cphash",
    "tph-onelevel",
    "tph-blobs",
    "tph-onelevelblobs",
    "slm-noseek",
    "slm-noleafscans",
    "slm-pages",
    "slm-live60",
    "slm-live80",
    "slm-pm300",
    "slm-pm500",
    "slm-pm900",
    "slm-pm500x2gb",
    "slm-pm500x5gb",
    "slm-pm500x8gb",
    "stb-pm500",
];

pub(super) fn configurations() -> Vec<&'static str> {
    // A build with a kind that is not finished can measure it.
    let kinds = TreeKind::ALL.iter().chain(TreeKind::FOR_TESTS);
    kinds.map(|kind| kind.name()).chain(VARIANTS).collect()
}

struct Spinney {
    db: Database,
    keyspace: Keyspace,
}

/// With it the values of most experiments are in blob files.
const BLOB_BYTES_MIN: u32 = 512;

/// The mode of the CompassDB paper that writes least: memtables are merged straight into the one level of a tree, and twice
/// the live data may be on disk.
fn one_level(options: KeyspaceOptions) -> KeyspaceOptions {
    options.one_level(true).space_amplification_max(2.0)
}

/// The emulated memory of a configuration.
fn emulated(variant: &str) -> Option<EmulatedMemory> {
    let (nanos, gigabytes) = match variant {
        "pm300" => (300, 0),
        "pm500" => (500, 0),
        "pm900" => (900, 0),
        "pm500x2gb" => (500, 2),
        "pm500x5gb" => (500, 5),
        "pm500x8gb" => (500, 8),
        _ => return None,
    };
    let bytes_per_second = gigabytes * 1_000_000_000;
    Some(EmulatedMemory { fence_nanos: nanos, bytes_per_second, ..EmulatedMemory::default() })
}

/// Where the emulated memory of the store in `dir` is: mapped files, of which the system keeps in memory what it has room
/// for under the limit.
pub(super) fn memory_dir(dir: &Path) -> PathBuf {
    dir.with_extension("memory")
}

pub(super) fn open(settings: &Settings, configuration: &str) -> Result<Box<dyn Engine>> {
    let text = |error: spinney::Error| error.to_string();
    let (kind, without) = configuration.split_once('-').unwrap_or((configuration, ""));
    let kind = TreeKind::from_name(kind).ok_or("no such tree")?;
    let mut builder = Database::builder(&settings.dir)
        .memory_budget(settings.memory_bytes)
        .parallel_seeks(without != "serial")
        .seek_compaction(without != "noseek");
    if let Some(bytes) = settings.memtable_bytes {
        builder = builder.memtable_bytes(bytes);
    }
    if let Some(memory) = emulated(without) {
        let path = memory_dir(&settings.dir);
        builder = builder.persistent_memory(PersistentMemory::at(path).emulated(memory));
    }
    let db = builder.open().map_err(text)?;
    let compression = match settings.compression {
        Compression::None => spinney::Compression::None,
        Compression::Lz4 => spinney::Compression::Lz4,
    };
    let filters = without != "nofilter";
    let mut options = KeyspaceOptions::new(kind).compression(compression).filters(filters);
    match without {
        "one" => options = options.tables_per_guard_max(1),
        "single" => options = options.pieces_max(1),
        "cphash" => options = options.displacement(true),
        "onelevel" => options = one_level(options),
        "blobs" => options = options.blob_bytes_min(BLOB_BYTES_MIN),
        "onelevelblobs" => options = one_level(options).blob_bytes_min(BLOB_BYTES_MIN),
        "noleafscans" => options = options.leaf_scans(false),
        "pages" => options = options.blob_bytes_min(u32::MAX),
        "live60" => options = options.live_percent_min(60),
        "live80" => options = options.live_percent_min(80),
        _ => {}
    }
    let keyspace = db.keyspace("bench", options).map_err(text)?;
    Ok(Box::new(Spinney { db, keyspace }))
}

impl Engine for Spinney {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(SpinneySession { store: self }))
    }

    fn settle(&self) -> Result<()> {
        self.db.wait_idle().map_err(|error| error.to_string())
    }

    fn throttled(&self) -> Option<Duration> {
        Some(self.db.stats().throttled)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Spinney { db, keyspace } = *self;
        drop(keyspace);
        db.close().map_err(|error| error.to_string())
    }
}

struct SpinneySession<'a> {
    store: &'a Spinney,
}

fn text<T>(result: spinney::Result<T>) -> Result<T> {
    result.map_err(|error| error.to_string())
}

impl Session for SpinneySession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        if durability == Durability::Buffered {
            return text(self.store.keyspace.put(key, value));
        }
        let mut batch = self.store.db.batch().durability(spinney::Durability::Sync);
        batch.put(&self.store.keyspace, key, value);
        text(batch.commit())
    }

    fn insert_if_absent(
        &mut self,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<bool> {
        let durability = match durability {
            Durability::Buffered => spinney::Durability::Buffered,
            Durability::Sync => spinney::Durability::Sync,
        };
        text(self.store.keyspace.insert_if_absent_with(key, value, durability))
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        text(self.store.keyspace.delete(key))
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        text(self.store.keyspace.delete_range(from..to))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        found(text(self.store.keyspace.get(key))?.as_deref());
        Ok(())
    }

    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let found = text(self.store.keyspace.multi_get(keys))?;
        found.iter().enumerate().for_each(|(place, value)| each(place, value.as_deref()));
        Ok(())
    }

    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut seen = 0;
        for pair in
            self.store.keyspace.range(from..).take(usize::try_from(count).unwrap_or(usize::MAX))
        {
            let (key, value) = text(pair)?;
            each(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }

    fn seek_each(
        &mut self,
        next_key: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let (mut iter, mut key) = (self.store.keyspace.iter(), Vec::new());
        while next_key(&mut key) {
            iter.seek(&key);
            if let Some(pair) = iter.next() {
                let (key, value) = text(pair)?;
                each(&key, &value);
            }
        }
        Ok(())
    }
}
