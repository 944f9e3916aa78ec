//! Verifying a store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::base::error::Error;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::store::options::CheckLevel;
use crate::store::store::Store;
use crate::table::BlobFile;

/// What a check has read, and what it found wrong.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Data files looked at.
    pub files: u64,
    /// Their 4 KiB units, which [`CheckLevel::Full`] alone reads.
    pub pages: u64,
    /// Entries read and found in order (none at [`CheckLevel::Structure`]).
    pub entries: u64,
    /// Each problem. Empty: the store is sound as far as the level looks.
    pub problems: Vec<Error>,
}

pub(crate) fn check(store: &Store, level: CheckLevel) -> CheckReport {
    let mut report = CheckReport::default();
    let mut waiting: BTreeMap<FileId, Arc<BlobFile>> = BTreeMap::new();
    report.problems = store.quarantine.errors();
    for keyspace in store.all_keyspaces() {
        let read = keyspace.read.load_full();
        let problems = &mut report.problems;
        let (manifest, full) = (store.manifest.path(), level == CheckLevel::Full);
        let counts = read.version.check(&manifest, full, &mut |problem| problems.push(problem));
        report.files += counts.files;
        report.pages += counts.pages;
        report.entries += counts.entries;
        // Large values whose pointers are in no tree yet.
        let in_tree = read.version.files();
        for slot in read.frozen.iter().chain([&read.active]) {
            let blobs = slot.blobs.lock().clone();
            let others = blobs.into_iter().filter(|blob| !in_tree.contains(&blob.path()));
            waiting.extend(others.map(|blob| (blob.id(), blob)));
        }
    }
    for blob in waiting.into_values() {
        report.files += 1;
        report.pages += blob.bytes() / UNIT_BYTES as u64;
        if level == CheckLevel::Full {
            report.problems.extend(blob.check().err());
        }
    }
    // A table is read for itself, and once more for what refers to it.
    let mut told = BTreeSet::new();
    report.problems.retain(|problem| told.insert(place(problem)));
    if planted(Bug::CheckSilent) {
        report.problems.clear();
    }
    report
}

/// What makes two problems the same: the file, the place in it and what is wrong there. Offset 0 may be the file as a
/// whole, in which several things can be wrong.
fn place(problem: &Error) -> String {
    match problem {
        Error::Corruption { offset: 0, .. } => problem.to_string(),
        Error::Corruption { file, offset, what, .. } => {
            format!("{} {offset} {what}", file.display())
        }
        error => error.to_string(),
    }
}
