//! redb, a copy-on-write B-tree in Rust.
//!
//! Settings that are not the defaults, for a store that may use M bytes in all:
//! - a cache of 3/4 of M; the default is 1 GiB;
//! - a buffered write is a commit of `Durability::None`, which is the cheapest it has and promises less
//!   than ours: it is lost with the process unless a durable commit follows. One in `DURABLE_EVERY` is
//!   durable, since what the others free can be used again, and forgotten, only after one that is;
//! - a thread keeps its read transaction until something has been written, since opening one costs more
//!   than a read.
//!
//! It has no compression.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{
    Database, Durability as RedbDurability, ReadOnlyTable, ReadableDatabase, TableDefinition,
    WriteTransaction,
};

use super::{Durability, Engine, Result, Session, Settings};

/// The table as a reader sees it.
type Reader = ReadOnlyTable<&'static [u8], &'static [u8]>;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");
/// One of this many commits is durable.
const DURABLE_EVERY: u64 = 50_000;

struct Redb {
    db: Database,
    /// Commits so far.
    commits: AtomicU64,
}

fn text(error: impl Display) -> String {
    error.to_string()
}

pub(super) fn open(settings: &Settings, _configuration: &str) -> Result<Box<dyn Engine>> {
    let cache_bytes = usize::try_from(settings.memory_bytes / 4 * 3).map_err(text)?;
    let file = settings.dir.join("redb");
    let db = Database::builder().set_cache_size(cache_bytes).create(file).map_err(text)?;
    let store = Redb { db, commits: AtomicU64::new(0) };
    // Reads need a table.
    store.change(Durability::Sync, |transaction| {
        transaction.open_table(TABLE).map(|_| ()).map_err(text)
    })?;
    Ok(Box::new(store))
}

impl Redb {
    fn change(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        let mut transaction = self.db.begin_write().map_err(text)?;
        let durable = durability == Durability::Sync
            || self.commits.load(Ordering::Relaxed) % DURABLE_EVERY == DURABLE_EVERY - 1;
        let durability = if durable { RedbDurability::Immediate } else { RedbDurability::None };
        transaction.set_durability(durability).map_err(text)?;
        change(&transaction)?;
        transaction.commit().map_err(text)?;
        self.commits.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl Engine for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession { store: self, reader: None }))
    }

    /// It does nothing in the background.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close().map_err(text)
    }
}

struct RedbSession<'a> {
    store: &'a Redb,
    /// The table after this many commits.
    reader: Option<(u64, Reader)>,
}

impl RedbSession<'_> {
    fn table(&mut self) -> Result<&Reader> {
        let commits = self.store.commits.load(Ordering::SeqCst);
        let reader = match self.reader.take().filter(|(as_of, _)| *as_of == commits) {
            Some(reader) => reader,
            None => {
                let transaction = self.store.db.begin_read().map_err(text)?;
                (commits, transaction.open_table(TABLE).map_err(text)?)
            }
        };
        Ok(&self.reader.insert(reader).1)
    }
}

impl Session for RedbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.reader = None;
        self.store.change(durability, |transaction| {
            let mut table = transaction.open_table(TABLE).map_err(text)?;
            table.insert(key, value).map(|_| ()).map_err(text)
        })
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.reader = None;
        self.store.change(Durability::Buffered, |transaction| {
            let mut table = transaction.open_table(TABLE).map_err(text)?;
            table.remove(key).map(|_| ()).map_err(text)
        })
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        let value = self.table()?.get(key).map_err(text)?;
        found(value.as_ref().map(|value| value.value()));
        Ok(())
    }

    /// It has no batched reads.
    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let table = self.table()?;
        for (place, key) in keys.iter().enumerate() {
            let found = table.get(key.as_slice()).map_err(text)?;
            each(place, found.as_ref().map(|found| found.value()));
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let range = self.table()?.range(from..).map_err(text)?;
        let mut seen = 0;
        for pair in range.take(usize::try_from(count).unwrap_or(usize::MAX)) {
            let (key, value) = pair.map_err(text)?;
            each(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
}
