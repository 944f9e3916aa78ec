//! Verifying a store.

use super::options::CheckLevel;
use super::store::Store;
use crate::base::error::Error;
use crate::base::limits::UNIT_BYTES;

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

pub(crate) fn check(store: &Store, level: CheckLevel) -> CheckReport {
    let mut report = CheckReport::default();
    for keyspace in store.all_keyspaces() {
        let read = keyspace.read.load_full();
        let problems = &mut report.problems;
        let counts =
            read.version.check(level == CheckLevel::Full, &mut |problem| problems.push(problem));
        // What is on its way to the tree has its large values on the disk already.
        for slot in read.frozen.iter().chain([&read.active]) {
            for blob in slot.blobs.lock().iter() {
                report.files += 1;
                report.pages += blob.bytes() / UNIT_BYTES as u64;
                if level == CheckLevel::Full
                    && let Err(problem) = blob.check()
                {
                    report.problems.push(problem);
                }
            }
        }
        report.files += counts.files;
        report.pages += counts.pages;
        report.entries += counts.entries;
    }
    report
}
