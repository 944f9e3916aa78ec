//! The engines that are measured, behind one interface.
//!
//! Invariants:
//! 1. A [`Session`] belongs to one thread; an [`Engine`] to all.
//! 2. A session does not keep its arguments, and its results are valid until the next call. An engine copies only
//!    where its own interface requires it.
//! 3. Every engine runs with the best settings known to us for the given memory and durability. Each setting that is
//!    not the default has its reason beside it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[cfg(feature = "peers")]
mod fjall;
mod leveldb;
mod library;
pub(crate) use library::functions;
mod lmdb;
#[cfg(feature = "peers")]
mod redb;
mod rocksdb;
mod spinney;
mod splinterdb;

/// The settings of every engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where its files are; a directory of its own.
    pub dir: PathBuf,
    /// The memory it may use, all of it, in bytes.
    pub memory_bytes: u64,
    /// The size of a memtable, if it is not the engine's choice.
    pub memtable_bytes: Option<u64>,
    /// Threads that will work at the same time.
    pub threads: usize,
    /// How many pairs it will hold, about.
    pub pairs: u64,
    /// The bytes of a pair, key and value.
    pub pair_bytes: u64,
    /// The compression of its data.
    pub compression: Compression,
}

/// The configuration of RocksDB and PebblesDB in CompassDB's paper.
const SMALL_CACHE: &str = "smallcache";

/// The setting of CompassDB's paper, as small against the data: a block cache of 32 MB, and four memtables of 128 MB, for
/// 200 GB. Not what anybody would choose who has the memory: its rows are labelled so wherever they are shown.
struct SmallCache {
    cache_bytes: usize,
    memtable_bytes: usize,
}

impl SmallCache {
    fn of(settings: &Settings) -> SmallCache {
        let data = settings.pairs * settings.pair_bytes;
        let part = |bytes: u64| usize::try_from(data / (200_000_000_000 / bytes)).unwrap_or(0);
        SmallCache {
            cache_bytes: part(32_000_000).max(256 << 10),
            memtable_bytes: part(128_000_000).max(1 << 20),
        }
    }
}

/// Compression on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// None at all
    #[default]
    None,
    /// LZ4 (LevelDB and PebblesDB, which do not have it, use Snappy; LMDB, redb and SplinterDB have no compression)
    Lz4,
}

/// A result with an error message.
pub type Result<T> = std::result::Result<T, String>;

/// A store under test.
pub trait Engine: Send + Sync {
    /// A thread's way in.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Waits until nothing is left to do in the background.
    fn settle(&self) -> Result<()>;

    /// For how long writers have been made to wait since it was opened, where the engine says.
    fn throttled(&self) -> Option<Duration> {
        None
    }

    /// Closes it.
    fn close(self: Box<Self>) -> Result<()>;
}

/// When a write is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// When it survives the end of the process.
    Buffered,
    /// When it survives power loss.
    Sync,
}

/// A property that a workload needs and not every engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Writes that survive power loss before they return.
    Sync,
    /// A store that can be opened after the death of its process.
    Recovery,
}

/// One thread's operations.
pub trait Session {
    /// Writes a pair.
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()>;

    /// Writes a pair if the key has no value; says whether it did. An engine that cannot do both as one reads, then writes:
    /// right as long as no other thread writes the key.
    fn insert_if_absent(
        &mut self,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<bool> {
        let mut is_there = false;
        self.get(key, &mut |found| is_there = found.is_some())?;
        if !is_there {
            self.put(key, value, durability)?;
        }
        Ok(!is_there)
    }

    /// Deletes a key.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Deletes the keys in `[from, to)`. An engine that cannot do so at once reads them and deletes each.
    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        const KEYS_AT_ONCE: u64 = 1000;
        loop {
            let mut keys = Vec::new();
            self.scan(from, KEYS_AT_ONCE, &mut |key, _| keys.push(key.to_vec()))?;
            keys.retain(|key| **key < *to);
            if keys.is_empty() {
                return Ok(());
            }
            keys.iter().try_for_each(|key| self.delete(key))?;
        }
    }

    /// Gives `found` the value, if there is one, where the engine has it: what an engine does not copy is not copied.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()>;

    /// The value, if there is one, copied to `value`.
    fn get_copy(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut is_there = false;
        self.get(key, &mut |found| {
            is_there = found.is_some();
            value.extend_from_slice(found.unwrap_or(&[]));
        })?;
        Ok(is_there)
    }

    /// The values of all the keys at once, each given to `each` with the key's place.
    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()>;

    /// Up to `count` pairs from `from` on, in order; says how many there were.
    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;

    /// The first pair from each key on, by one iterator that goes from key to key. `next_key` makes the keys, until it returns
    /// false. An engine whose iterators cannot do that makes one for each key.
    fn seek_each(
        &mut self,
        next_key: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut key = Vec::new();
        while next_key(&mut key) {
            self.scan(&key, 1, each)?;
        }
        Ok(())
    }
}

/// Opens an engine with its settings and configuration.
type Open = fn(&Settings, &str) -> Result<Box<dyn Engine>>;

/// An engine and its configuration, as the command line names it: `spinney:stb`, `rocksdb`,
/// `rocksdb:universal`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EngineName {
    engine: String,
    configuration: String,
}

/// An engine that can be opened.
struct Known {
    name: &'static str,
    /// The first one is the default.
    configurations: fn() -> Vec<&'static str>,
    /// Returns an error if something that it needs is not installed.
    available: fn() -> Result<()>,
    open: Open,
    /// How to install it.
    remedy: &'static str,
    /// What it does not support, and why.
    lacks: &'static [(Need, &'static str)],
}

const KNOWN: &[Known] = &[
    Known {
        name: "spinney",
        configurations: spinney::configurations,
        available: || Ok(()),
        open: spinney::open,
        remedy: "",
        lacks: &[],
    },
    Known {
        name: "rocksdb",
        configurations: rocksdb::configurations,
        available: rocksdb::available,
        open: rocksdb::open,
        remedy: "install librocksdb (Debian: apt-get install librocksdb7.8)",
        lacks: &[],
    },
    Known {
        name: "leveldb",
        configurations: || vec!["default"],
        available: leveldb::available,
        open: leveldb::open,
        remedy: "install libleveldb (Debian: apt-get install libleveldb1d)",
        lacks: &[],
    },
    Known {
        name: "pebblesdb",
        configurations: || vec!["default", SMALL_CACHE],
        available: leveldb::pebblesdb_available,
        open: leveldb::open_pebblesdb,
        remedy: leveldb::PEBBLESDB_REMEDY,
        lacks: &[],
    },
    Known {
        name: "lmdb",
        configurations: || vec!["default"],
        available: lmdb::available,
        open: lmdb::open,
        remedy: "install liblmdb (Debian: apt-get install liblmdb0)",
        lacks: &[],
    },
    Known {
        name: "splinterdb",
        configurations: splinterdb::configurations,
        available: splinterdb::available,
        open: splinterdb::open,
        remedy: splinterdb::REMEDY,
        lacks: splinterdb::LACKS,
    },
    #[cfg(feature = "peers")]
    Known {
        name: "fjall",
        configurations: || vec!["default"],
        available: || Ok(()),
        open: fjall::open,
        remedy: "",
        lacks: &[],
    },
    #[cfg(feature = "peers")]
    Known {
        name: "redb",
        configurations: || vec!["default"],
        available: || Ok(()),
        open: redb::open,
        remedy: "",
        lacks: &[],
    },
];

/// Removes all files of an engine in this directory, as far as possible.
pub fn remove(dir: &Path) {
    let _ = fs::remove_dir_all(dir);
    let _ = fs::remove_dir_all(spinney::memory_dir(dir));
}

impl EngineName {
    /// Opens the engine in a directory that is empty or has its files.
    ///
    /// # Errors
    /// Errors of the engine; if it is not installed, what to install.
    pub fn open(&self, settings: &Settings) -> Result<Box<dyn Engine>> {
        let known = KNOWN.iter().find(|known| known.name == self.engine);
        let known = known.ok_or_else(|| format!("no engine {:?}", self.engine))?;
        (known.open)(settings, &self.configuration).map_err(|what| format!("{self}: {what}"))
    }

    /// Whether it can be opened at all here.
    ///
    /// # Errors
    /// A missing library, and what to install.
    pub fn check(&self) -> Result<()> {
        let known = KNOWN.iter().find(|known| known.name == self.engine);
        let known = known.ok_or_else(|| format!("no engine {:?}", self.engine))?;
        (known.available)().map_err(|what| format!("{self}: {what}; {}", known.remedy))
    }

    /// The environment variables of its process.
    ///
    /// RocksDB, LevelDB and PebblesDB allocate each block of their caches, on one thread, and free it on another: with
    /// glibc's arenas of one a thread the process grows by half, and the limit kills it. Their users take
    /// jemalloc or fewer arenas; with two, RocksDB (8 M pairs, 128 MiB) stays within its memory.
    pub fn environment(&self) -> &'static [(&'static str, &'static str)] {
        match self.engine.as_str() {
            "rocksdb" | "leveldb" | "pebblesdb" => &[("MALLOC_ARENA_MAX", "2")],
            _ => &[],
        }
    }

    /// Whether its buffered writes survive the end of the process.
    pub fn keeps_buffered(&self) -> bool {
        !matches!(self.engine.as_str(), "redb" | "splinterdb")
    }

    /// The reason why it does not support `need`, if it does not.
    pub fn lacks(&self, need: Need) -> Option<&'static str> {
        let known = KNOWN.iter().find(|known| known.name == self.engine)?;
        known.lacks.iter().find(|(lack, _)| *lack == need).map(|(_, why)| *why)
    }

    /// Every engine in every configuration that this build knows.
    pub fn all() -> Vec<EngineName> {
        let named = |known: &Known, configuration: &str| EngineName {
            engine: known.name.to_string(),
            configuration: configuration.to_string(),
        };
        let of = |known: &'static Known| {
            (known.configurations)().into_iter().map(move |name| named(known, name))
        };
        KNOWN.iter().flat_map(of).collect()
    }

    /// The engine without its configuration.
    pub fn engine(&self) -> &str {
        &self.engine
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.configuration.as_str() {
            "default" => f.write_str(&self.engine),
            configuration => write!(f, "{}:{configuration}", self.engine),
        }
    }
}

impl std::str::FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<EngineName, String> {
        let (engine, configuration) = text.split_once(':').unwrap_or((text, ""));
        let Some(known) = KNOWN.iter().find(|known| known.name == engine) else {
            let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
            let more =
                if cfg!(feature = "peers") { "" } else { "; fjall and redb need --features peers" };
            return Err(format!("no engine {engine:?}: there are {}{more}", names.join(", ")));
        };
        let configurations = (known.configurations)();
        let configuration = match configuration {
            "" => configurations[0],
            chosen => *configurations.iter().find(|known| **known == chosen).ok_or_else(|| {
                format!("{engine} has no configuration {chosen:?}: {}", configurations.join(", "))
            })?,
        };
        Ok(EngineName { engine: engine.to_string(), configuration: configuration.to_string() })
    }
}

/// A path as a C string.
fn c_path(path: &Path) -> Result<std::ffi::CString> {
    std::ffi::CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| format!("{} has a zero byte in it", path.display()))
}
