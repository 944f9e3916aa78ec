//! Verifying a store.

use super::options::CheckLevel;
use super::store::Store;
use crate::base::error::Error;
use crate::base::planted::{Bug, planted};

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
        let version = keyspace.read.load_full();
        let problems = &mut report.problems;
        let counts =
            version.version.check(level == CheckLevel::Full, &mut |problem| problems.push(problem));
        if planted(Bug::CheckSilent) {
            problems.clear();
        }
        report.files += counts.files;
        report.pages += counts.pages;
        report.entries += counts.entries;
    }
    report
}
