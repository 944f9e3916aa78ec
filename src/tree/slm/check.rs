//! Verifies a version: the level's shape, every file, and that the index agrees with the tables.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::level::Level;
use super::merged_keys::{CHUNKS_BYTES_USUAL, MergedKeys};
use super::places::{KeyVersions, Places, page_of};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::cache::ReadContext;
use crate::location_index::{IndexVersion, Location};
use crate::merge::RangeDeletes;
use crate::tree::versioned::check_shape;
use crate::tree::{CheckCounts, CheckScope, files};

/// No more differences between index and tables are looked for than these.
const PROBLEMS_MAX: usize = 100;

pub(super) fn check(
    (level, flushed): (&Arc<Level>, Seqno),
    places: &Places,
    CheckScope { manifest, full, range_deletes }: CheckScope<'_>,
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
            range_deletes,
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
    range_deletes: &'a RangeDeletes,
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

    /// Whether a range delete deletes all that the tables have of the key: the index may name it, or not.
    fn is_deleted(&self, expected: &MergedKeys) -> bool {
        self.range_deletes.newest(expected.key(), Seqno::MAX) > Some(expected.newest())
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
                    found.extend(self.check_absent(&expected));
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
                    false if is_live => found.extend(self.check_left(&key, &versions)?),
                    false => {}
                }
            }
            rest = next;
        }
        while has_expected && found.len() < PROBLEMS_MAX {
            found.extend(self.check_absent(&expected));
            has_expected = expected.next()?;
        }
        // A rebuild may have changed what has been compared.
        if self.is_current() && self.places.covers(&before, Seqno::MAX) {
            found.into_iter().for_each(problem);
        }
        Ok(())
    }

    /// Whether it is wrong that the index names a key of which no table has a value now. What a range delete has deleted since
    /// may be left for a snapshot, and then nothing else says that it is old.
    fn check_left(&self, key: &[u8], versions: &[IndexVersion]) -> Result<Option<Error>> {
        let Some(newest) = versions.first() else { return Ok(None) };
        let deleted = self.range_deletes.newest(key, Seqno::MAX);
        let seqno = self.seqno_at(key, newest.location)?;
        let is_left = seqno.is_some() && seqno < deleted;
        Ok((!is_left).then(|| self.wrong(key, "none", "a place")))
    }

    /// Whether it is wrong that the index does not name a key.
    fn check_absent(&self, expected: &MergedKeys) -> Option<Error> {
        (!self.is_deleted(expected)).then(|| self.wrong(expected.key(), "a place", "none"))
    }

    /// Compares the newest version of a key. Two tables may have it.
    fn check_key(
        &self,
        (key, mut versions): KeyVersions,
        expected: &MergedKeys,
    ) -> Result<Option<Error>> {
        if self.is_deleted(expected) {
            return Ok(None);
        }
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
