//! Tables that prove that the manifest has lost its end.
//!
//! A data file that nothing names is an orphan of a crash, as a rule. But a keyspace is durable in the
//! manifest before it has a table. So a table of a keyspace that the manifest has never heard of was made
//! after the manifest's end, in a time of which the manifest has lost all.
//!
//! Invariants:
//! 1. Only what a table says of itself, under its checksum, counts: one that a crash has cut proves nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::error::Error;
use crate::base::ids::{FileId, KeyspaceId};
use crate::cache::{DataFiles, FileType};
use crate::table::{Origin, TableSalvage};

/// Whose the tables among `names` are that are not `known`, as far as they say it themselves.
pub(crate) fn origins_of_unknown<'a>(
    files: &'a Arc<DataFiles>,
    names: impl Iterator<Item = &'a String> + 'a,
    known: impl Fn(FileId) -> bool + 'a,
) -> impl Iterator<Item = (PathBuf, Origin)> + 'a {
    let ids = names.filter_map(|name| match DataFiles::parse_name(name) {
        Some((id, FileType::Table)) => Some(id),
        _ => None,
    });
    ids.filter(move |&id| !known(id)).filter_map(|id| {
        let table = TableSalvage::open(files, id).ok()?;
        Some((table.path(), table.origin()?.clone()))
    })
}

/// The error of a manifest with valid records up to `end` that does not know the table's keyspace, if
/// the next keyspace it would create is `next`.
pub(crate) fn stranger(
    (manifest, end): (&Path, u64),
    next: KeyspaceId,
    (table, origin): &(PathBuf, Origin),
) -> Option<Error> {
    let Origin { keyspace, meta } = origin;
    (*keyspace >= next).then(|| {
        let name = table.file_name().unwrap_or_default().to_string_lossy();
        Error::corruption(
            manifest,
            end,
            "end of the manifest",
            format_args!(
                "the record that creates keyspace {:?}, of which {name} is a table",
                meta.name
            ),
            format_args!("keyspaces below number {next} alone; this one has number {keyspace}"),
        )
    })
}
