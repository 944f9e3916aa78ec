//! Verification of an open store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::base::error::Error;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::store::options::CheckLevel;
use crate::store::store::Store;
use crate::table::BlobFile;
use crate::tree::CheckScope;

/// The result of [`Database::check`](super::database::Database::check): what was read, and the problems
/// found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Number of data files checked.
    pub files: u64,
    /// Size of these files in 4 KiB units. Only [`CheckLevel::Full`] reads all of them.
    pub pages: u64,
    /// Number of entries read and found in order; 0 at [`CheckLevel::Structure`].
    pub entries: u64,
    /// The problems found. If empty, the store passed all checks of the level.
    pub problems: Vec<Error>,
}

pub(crate) fn check(store: &Store, level: CheckLevel) -> CheckReport {
    let mut report = CheckReport::default();
    let mut waiting: BTreeMap<FileId, Arc<BlobFile>> = BTreeMap::new();
    report.problems = store.quarantine.errors();
    for keyspace in store.all_keyspaces() {
        let read = keyspace.read.load_full();
        let version = Arc::clone(&read.version);
        // Blob files that only memtables refer to. A check takes long: it must not keep memtables.
        let in_tree = version.files();
        for slot in read.frozen.iter().chain([&read.active]) {
            let blobs = slot.blobs.lock().clone();
            let others = blobs.into_iter().filter(|blob| !in_tree.contains(&blob.path()));
            waiting.extend(others.map(|blob| (blob.id(), blob)));
        }
        let range_deletes = Arc::clone(&read.range_deletes);
        drop(read);
        let problems = &mut report.problems;
        let scope = CheckScope {
            manifest: &store.manifest.path(),
            full: level == CheckLevel::Full,
            range_deletes: &range_deletes.map,
        };
        let counts = version.check(scope, &mut |problem| problems.push(problem));
        report.files += counts.files;
        report.pages += counts.pages;
        report.entries += counts.entries;
    }
    for blob in waiting.into_values() {
        report.files += 1;
        report.pages += blob.bytes() / UNIT_BYTES as u64;
        if level == CheckLevel::Full {
            report.problems.extend(blob.check().err());
        }
    }
    // A table is read once for itself and once for each reference to it, so a problem may be found
    // more than once.
    let mut told = BTreeSet::new();
    report.problems.retain(|problem| told.insert(place(problem)));
    if planted(Bug::CheckSilent) {
        report.problems.clear();
    }
    report
}

/// The identity of a problem: the file, the offset and the kind of damage. Offset 0 may mean the whole
/// file, which can have several problems; there the whole message is the identity.
fn place(problem: &Error) -> String {
    match problem {
        Error::Corruption { offset: 0, .. } => problem.to_string(),
        Error::Corruption { file, offset, what, .. } => {
            format!("{} {offset} {what}", file.display())
        }
        error => error.to_string(),
    }
}
