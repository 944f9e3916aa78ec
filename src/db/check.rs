//! Verifying a store.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::options::CheckLevel;
use super::state::ReadState;
use super::store::Store;
use crate::base::error::Error;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::table::BlobFile;

/// What a check has read, and what it found wrong.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Data files looked at.
    pub files: u64,
    /// Their 4 KiB units.
    pub pages: u64,
    /// Entries read and found in order (none at [`CheckLevel::Structure`]).
    pub entries: u64,
    /// Each problem. Empty: the store is sound as far as the level looks.
    pub problems: Vec<Error>,
}

/// Looks at the blob files of values that are still in memtables. One that tables name too has been
/// looked at with those.
fn check_memtables(read: &ReadState, level: CheckLevel, report: &mut CheckReport) {
    let tables: BTreeSet<PathBuf> = read.version.files().into_iter().collect();
    for slot in read.frozen.iter().chain([&read.active]) {
        let blobs: Vec<Arc<BlobFile>> = slot.blobs.lock().clone();
        for blob in blobs.into_iter().filter(|blob| !tables.contains(&blob.path())) {
            report.files += 1;
            report.pages += blob.bytes() / UNIT_BYTES as u64;
            if level == CheckLevel::Full
                && let Err(error) = blob.check()
            {
                report.problems.push(error);
            }
        }
    }
}

pub(crate) fn check(store: &Store, level: CheckLevel) -> CheckReport {
    let mut report = CheckReport::default();
    for keyspace in store.all_keyspaces() {
        let version = keyspace.read.load_full();
        let problems = &mut report.problems;
        let counts =
            version.version.check(level == CheckLevel::Full, &mut |problem| problems.push(problem));
        report.files += counts.files;
        report.pages += counts.pages;
        report.entries += counts.entries;
        check_memtables(&version, level, &mut report);
    }
    if planted(Bug::CheckSilent) {
        report.problems.clear();
    }
    report
}
