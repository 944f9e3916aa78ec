//! The data files behind a version: its tables and the blob files that those refer to.
//!
//! Invariants:
//! 1. The tables handed in are all that the version reaches, each once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::CheckCounts;
use crate::base::error::Error;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::table::{BlobFile, Table};

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

/// What merging a table gives back of blob files that are mostly dead (`dead`): a guess, since others may
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
