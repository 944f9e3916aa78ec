//! The data files behind a version: its tables and the blob files that those refer to.
//!
//! Invariants:
//! 1. The tables handed in are all that the version reaches, each once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::CheckCounts;
use super::live::{Stored, blob_value_bytes};
use crate::base::error::Error;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::table::{BlobFile, Table};

/// Sums over all files of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FileTotals {
    pub(super) tables: u64,
    pub(super) entries: u64,
    pub(super) table_bytes: u64,
    /// Keys and values in tables, dead ones too.
    pub(super) entry_bytes: u64,
    /// Bytes of filters that are files of their own.
    pub(super) filter_bytes: u64,
    pub(super) blobs: u64,
    pub(super) blob_bytes: u64,
    /// Bytes of values in blob files that tables point to.
    pub(super) blob_value_bytes: u64,
    /// Memory that the tables' samples use.
    pub(super) sample_bytes: u64,
}

impl FileTotals {
    /// Counts a table, without its blob files.
    pub(super) fn add(&mut self, table: &Table) {
        let properties = table.properties();
        self.tables += 1;
        self.entries += properties.entries();
        self.table_bytes += table.bytes();
        self.entry_bytes += properties.entry_bytes();
        self.blob_value_bytes += blob_value_bytes(table);
        self.sample_bytes += properties.sample.memory_bytes();
    }

    /// Counts a table no more that was added.
    pub(super) fn remove(&mut self, table: &Table) {
        let properties = table.properties();
        self.tables -= 1;
        self.entries -= properties.entries();
        self.table_bytes -= table.bytes();
        self.entry_bytes -= properties.entry_bytes();
        self.blob_value_bytes -= blob_value_bytes(table);
        self.sample_bytes -= properties.sample.memory_bytes();
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.table_bytes + self.filter_bytes + self.blob_bytes
    }

    /// What the tables hold.
    pub(super) fn stored(&self) -> Stored {
        let &FileTotals { entries, entry_bytes, blob_value_bytes, .. } = self;
        Stored { entries, entry_bytes, blob_bytes: blob_value_bytes }
    }
}

/// The blob files of the tables, each once, by number.
pub(super) fn blobs<'a>(tables: &[&'a Arc<Table>]) -> Vec<&'a Arc<BlobFile>> {
    let all = tables.iter().flat_map(|table| table.blobs());
    all.map(|blob| (blob.id(), blob)).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Those of them, by number, of which the tables point to less than half.
pub(super) fn mostly_dead_blobs(tables: &[&Arc<Table>]) -> Vec<FileId> {
    let mut live: BTreeMap<FileId, u64> = BTreeMap::new();
    for reference in tables.iter().flat_map(|table| &table.properties().blobs) {
        *live.entry(reference.file).or_default() += reference.bytes;
    }
    let dead = |blob: &&Arc<BlobFile>| {
        live.get(&blob.id()).is_none_or(|live| live.saturating_mul(2) < blob.value_bytes())
    };
    blobs(tables).into_iter().filter(dead).map(|blob| blob.id()).collect()
}

/// The gain of merging a table in blob files that are mostly dead (`dead`): a guess, since other tables may
/// refer to them too.
pub(super) fn dead_blob_gain(table: &Table, dead: &[FileId]) -> u64 {
    let is_dead = |blob: &&Arc<BlobFile>| dead.contains(&blob.id());
    table.blobs().iter().filter(is_dead).map(|blob| blob.bytes() / 8).sum()
}

/// The paths of the tables and their blob files, and `others`, in order.
pub(super) fn paths(
    tables: &[&Arc<Table>],
    others: impl IntoIterator<Item = PathBuf>,
) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = others.into_iter().collect();
    paths.extend(tables.iter().map(|table| table.pages().path()));
    paths.extend(blobs(tables).iter().map(|blob| blob.path()));
    paths.sort();
    paths.dedup();
    paths
}

/// Verifies the tables and their blob files; without `full` they are only counted.
pub(super) fn check(
    tables: &[&Arc<Table>],
    full: bool,
    problem: &mut dyn FnMut(Error),
) -> CheckCounts {
    let mut counts = CheckCounts::default();
    for table in tables {
        counts.files += 1;
        counts.pages += table.bytes() / UNIT_BYTES as u64;
        if full {
            match table.check() {
                Ok(checked) => counts.entries += checked.entries,
                Err(error) => {
                    if error.is_corruption() {
                        table.check_other_pages(&error, problem);
                    }
                    problem(error);
                }
            }
        }
    }
    for blob in blobs(tables) {
        counts.files += 1;
        counts.pages += blob.bytes() / UNIT_BYTES as u64;
        if full && let Err(error) = blob.check() {
            problem(error);
        }
    }
    counts
}
