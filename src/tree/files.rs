//! The data files behind a version: its tables and the blob files that those refer to.
//!
//! Invariants:
//! 1. The tables handed in to [`blobs`], [`paths`] and [`check`] are all that the version reaches, each once.
//! 2. [`FileRefs`] counts a file in the sums while it has a reference, once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::CheckCounts;
use super::dead_blobs::{BlobUse, BlobUses};
use super::live::{Stored, blob_value_bytes};
use crate::base::error::Error;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::table::{BlobFile, SAMPLE_ALL, Table};

/// Sums over all files of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FileTotals {
    pub(super) tables: u64,
    pub(super) entries: u64,
    pub(super) deletes: u64,
    /// Without the lists of keys.
    pub(super) table_bytes: u64,
    /// Lists of keys in tables.
    pub(super) list_bytes: u64,
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
        self.deletes += properties.deletes;
        self.table_bytes += table.bytes() - table.key_list_bytes();
        self.list_bytes += table.key_list_bytes();
        self.entry_bytes += properties.entry_bytes();
        self.blob_value_bytes += blob_value_bytes(table);
        self.sample_bytes += properties.sample.memory_bytes();
    }

    /// Counts a table no more that was added.
    pub(super) fn remove(&mut self, table: &Table) {
        let properties = table.properties();
        self.tables -= 1;
        self.entries -= properties.entries();
        self.deletes -= properties.deletes;
        self.table_bytes -= table.bytes() - table.key_list_bytes();
        self.list_bytes -= table.key_list_bytes();
        self.entry_bytes -= properties.entry_bytes();
        self.blob_value_bytes -= blob_value_bytes(table);
        self.sample_bytes -= properties.sample.memory_bytes();
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.table_bytes + self.list_bytes + self.filter_bytes + self.blob_bytes
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

/// How often each thing is referred to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counts<T>(BTreeMap<T, u64>);

impl<T> Default for Counts<T> {
    fn default() -> Counts<T> {
        Counts(BTreeMap::new())
    }
}

impl<T: Ord> Counts<T> {
    /// Counts a reference; whether it is the first.
    pub(super) fn add(&mut self, to: T) -> bool {
        let count = self.0.entry(to).or_default();
        *count += 1;
        *count == 1
    }

    /// Counts a reference no more; whether it was the last.
    pub(super) fn remove(&mut self, to: &T) -> bool {
        let Some(count) = self.0.get_mut(to) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.0.remove(to);
        true
    }

    pub(super) fn contains(&self, to: &T) -> bool {
        self.0.contains_key(to)
    }

    /// The greatest that is referred to.
    pub(super) fn last(&self) -> Option<&T> {
        self.0.keys().next_back()
    }
}

/// A table, and how often it is referred to.
struct TableRefs {
    table: Arc<Table>,
    count: u64,
}

/// How often each table is referred to, and what follows for a whole tree: sums, and how dead blob files are. Kept up to
/// date by what a change adds and takes away.
#[derive(Default)]
pub(super) struct FileRefs {
    tables: BTreeMap<FileId, TableRefs>,
    /// The tables' thresholds of samples.
    thresholds: Counts<u64>,
    blobs: BlobUses,
    pub(super) totals: FileTotals,
}

impl PartialEq for FileRefs {
    fn eq(&self, other: &FileRefs) -> bool {
        let counts = |refs: &FileRefs| -> Vec<(FileId, u64)> {
            refs.tables.iter().map(|(id, refs)| (*id, refs.count)).collect()
        };
        counts(self) == counts(other)
            && self.thresholds == other.thresholds
            && self.blobs == other.blobs
            && self.totals == other.totals
    }
}

impl FileRefs {
    /// Counts a reference to a table.
    pub(super) fn add(&mut self, table: &Arc<Table>) {
        let new = || TableRefs { table: Arc::clone(table), count: 0 };
        let table_refs = self.tables.entry(table.id()).or_insert_with(new);
        table_refs.count += 1;
        if table_refs.count > 1 {
            return;
        }
        self.totals.add(table);
        self.thresholds.add(table.properties().sample.threshold());
        for blob in self.blobs.add(table) {
            self.totals.blobs += 1;
            self.totals.blob_bytes += blob.bytes();
        }
    }

    /// Counts a reference to a table no more.
    pub(super) fn remove(&mut self, table: &Arc<Table>) {
        let Some(table_refs) = self.tables.get_mut(&table.id()) else { return };
        table_refs.count -= 1;
        if table_refs.count > 0 {
            return;
        }
        self.tables.remove(&table.id());
        self.totals.remove(table);
        self.thresholds.remove(&table.properties().sample.threshold());
        for blob in self.blobs.remove(table) {
            self.totals.blobs -= 1;
            self.totals.blob_bytes -= blob.bytes();
        }
    }

    /// All tables, by number.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values().map(|refs| &refs.table)
    }

    /// The blob files worth collecting, the deadest first.
    pub(super) fn dead_blobs(&self) -> impl Iterator<Item = BlobUse> {
        self.blobs.dead()
    }

    /// The hashes below which all tables' samples are complete.
    pub(super) fn sample_threshold(&self) -> u64 {
        self.thresholds.0.keys().next().copied().unwrap_or(SAMPLE_ALL)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::entry::EntryKind;
    use crate::base::ids::Seqno;
    use crate::table::{BlobFiles, BlobWriter, TableBuilder, TableOptions};
    use crate::tree::dead_blobs::collected;
    use crate::tree::edits::tests::data_files;

    /// Four values in one blob file, in three tables: two point to one each, one to two.
    #[test]
    fn files_count_once_and_blob_files_are_dead_when_tables_that_point_to_them_go() {
        let files = data_files();
        let blobs = BlobFiles::new(&files);
        let mut writer = BlobWriter::new(&blobs).unwrap();
        let pointers: Vec<_> = (0..4).map(|_| writer.append(&[7; 5000]).unwrap()).collect();
        let blob = writer.finish().unwrap();
        let table = |values: std::ops::Range<usize>| {
            let mut table = TableBuilder::new(&files, &blobs, TableOptions::default()).unwrap();
            for value in values {
                let mut pointer = Vec::new();
                pointers[value].encode(&mut pointer);
                let key = [value as u8];
                table.add(&key, Seqno(1), EntryKind::PutBlob, &pointer).unwrap();
            }
            table.finish().unwrap()
        };
        let tables = [table(0..1), table(1..2), table(2..4)];
        let mut refs = FileRefs::default();
        let dead = |refs: &FileRefs| {
            let dead: Vec<_> = refs.dead_blobs().collect();
            collected(&dead, 0, 20_000).iter().map(|blob| blob.file).collect::<Vec<_>>()
        };
        tables.iter().for_each(|table| refs.add(table));
        // Once more, by another node.
        refs.add(&tables[2]);
        let totals = refs.totals;
        assert_eq!((totals.tables, totals.entries, totals.blobs), (3, 4, 1));
        assert_eq!((totals.blob_bytes, totals.blob_value_bytes), (blob.bytes(), 20_000));
        assert!(dead(&refs).is_empty());
        refs.remove(&tables[2]);
        assert_eq!(refs.totals, totals);
        refs.remove(&tables[2]);
        assert_eq!((refs.totals.tables, refs.totals.blob_value_bytes), (2, 10_000));
        assert!(dead(&refs).is_empty(), "half of it");
        refs.remove(&tables[0]);
        assert_eq!(dead(&refs), [blob.id()]);
        refs.add(&tables[2]);
        assert!(dead(&refs).is_empty());
        refs.remove(&tables[2]);
        refs.remove(&tables[1]);
        assert!(refs == FileRefs::default(), "{:?}", refs.totals);
    }
}
