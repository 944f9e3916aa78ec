//! Verifies a version: the level's shape, every file, and that the index agrees with the tables.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::level::Level;
use super::merged_keys::{CHUNKS_BYTES_USUAL, MergedKeys};
use super::places::{KeyVersions, Places, page_of};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::cache::ReadContext;
use crate::location_index::Location;
use crate::tree::versioned::check_shape;
use crate::tree::{CheckCounts, files};

/// No more differences between index and tables are looked for than these.
const PROBLEMS_MAX: usize = 100;

pub(super) fn check(
    (level, flushed): (&Arc<Level>, Seqno),
    places: &Places,
    manifest: &Path,
    full: bool,
    problem: &mut dyn FnMut(Error),
) -> CheckCounts {
    check_shape(level, manifest, problem);
    let tables: Vec<_> = level.tables().collect();
    let mut counts = files::check(&tables, full, problem);
    let index_file = places.file_path();
    counts.files += u64::from(index_file.is_some());
    if full {
        let index = Index {
            level,
            flushed,
            places,
            file: index_file.unwrap_or_else(|| manifest.to_path_buf()),
        };
        // A table that cannot be read has been reported.
        let _ = index.check(problem);
    }
    counts
}

/// The index of a version.
struct Index<'a> {
    level: &'a Level,
    flushed: Seqno,
    places: &'a Places,
    file: PathBuf,
}

impl Index<'_> {
    /// The index is of this version, and has everything. Else nothing can be said: memtables and compactions that have
    /// come since have changed it.
    fn is_current(&self) -> bool {
        let state = self.places.state();
        let has_all = state.pending.is_empty() && state.settled == self.flushed;
        has_all && !self.places.is_partial()
    }

    /// Compares the index with the tables, key by key.
    fn check(&self, problem: &mut dyn FnMut(Error)) -> Result<()> {
        let before = self.places.state();
        if !self.is_current() {
            return Ok(());
        }
        let mut found = Vec::new();
        let mut expected = MergedKeys::new(self.level, vec![Seqno::MAX], CHUNKS_BYTES_USUAL)?;
        let mut has_expected = expected.next()?;
        let mut rest = Some(Vec::new());
        while let Some(from) = rest.filter(|_| found.len() < PROBLEMS_MAX) {
            let (entries, next) = match self.places.entries_from(&from) {
                Ok(part) => part,
                Err(error) => {
                    problem(error);
                    return Ok(());
                }
            };
            for (key, versions) in entries {
                while has_expected && *expected.key() < *key && found.len() < PROBLEMS_MAX {
                    found.push(self.wrong(expected.key(), "a place", "none"));
                    has_expected = expected.next()?;
                }
                if found.len() >= PROBLEMS_MAX {
                    break;
                }
                let is_live = versions.iter().any(|it| it.superseded.is_none());
                match has_expected && *expected.key() == *key {
                    true => {
                        found.extend(self.check_key((key, versions), &expected)?);
                        has_expected = expected.next()?;
                    }
                    false if is_live => found.push(self.wrong(&key, "none", "a place")),
                    false => {}
                }
            }
            rest = next;
        }
        while has_expected && found.len() < PROBLEMS_MAX {
            found.push(self.wrong(expected.key(), "a place", "none"));
            has_expected = expected.next()?;
        }
        // A rebuild may have changed what has been compared.
        if self.is_current() && self.places.covers(&before, Seqno::MAX) {
            found.into_iter().for_each(problem);
        }
        Ok(())
    }

    /// Compares the newest version of a key. Two tables may have it.
    fn check_key(
        &self,
        (key, mut versions): KeyVersions,
        expected: &MergedKeys,
    ) -> Result<Option<Error>> {
        loop {
            let newest = versions.first().filter(|it| it.superseded.is_none());
            let Some(newest) = newest else {
                return Ok(Some(self.wrong(&key, "a place", "one that is superseded")));
            };
            let first = expected.versions().first();
            if first.is_some_and(|it| it.location == newest.location) {
                return Ok(None);
            }
            let seqno = self.seqno_at(&key, newest.location)?;
            if seqno == Some(expected.newest()) {
                return Ok(None);
            }
            // A compaction may have put the key elsewhere.
            let now = self.places.versions(&key)?;
            if now == versions {
                let at = |seqno: Seqno| format!("the place of number {seqno}");
                let there = seqno.map_or("a place without the key".to_string(), at);
                return Ok(Some(self.wrong(&key, &at(expected.newest()), &there)));
            }
            versions = now;
        }
    }

    /// The number of the newest entry of a key at a place.
    fn seqno_at(&self, key: &[u8], place: Location) -> Result<Option<Seqno>> {
        let mut seqno = None;
        if let Some(table) = self.places.table(place.table) {
            let (leaf, context) = (place.leaf.map(page_of), ReadContext::blocking());
            table.get_at(key, leaf, Seqno::MAX, &context, |entry| {
                seqno = Some(entry.seqno);
                ControlFlow::Break(())
            })?;
        }
        Ok(seqno)
    }

    fn wrong(&self, key: &[u8], expected: &str, found: &str) -> Error {
        let found = format!("{found}, of key \"{}\"", key.escape_ascii());
        Error::corruption(&self.file, 0, "place of a key in the index", expected, found)
    }
}
