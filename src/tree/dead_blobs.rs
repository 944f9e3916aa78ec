//! How much of each blob file tables point to, and which files compactions copy values out of, so that they can go.
//!
//! A file goes once no table points to it. Its values are of the whole key range, so that takes a merge of most leaves;
//! each copies what it still points to in the files that are collected.
//!
//! Invariants:
//! 1. While there is space, a file of which tables point to less than half is collected when tables are merged that point
//!    to it.
//! 2. While the tree takes too much space, the deadest are, until what is dead in them makes up for the excess.
//! 3. What is copied lies beside the files until they go. So only so many are collected at a time, the deadest first. As
//!    their values are copied they become deader, so others do not take their place before they are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::base::ids::FileId;
use crate::table::{BlobFile, Table};

/// A file of which more is pointed to is not worth the copies: four bytes for each that it gives back.
const LIVE_PERMILLE_MAX: u64 = 800;
/// Files of which less is pointed to are collected also while there is space.
const MOSTLY_DEAD_PERMILLE: u64 = 500;
/// The files that are collected at a time have this part of all values, or so many bytes.
const COLLECTED_PART: u64 = 12;
const COLLECTED_BYTES_MIN: u64 = 256 << 10;

/// What tables point to of a blob file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlobUse {
    pub(super) file: FileId,
    /// Bytes of its values that tables point to, and of all its values.
    live_bytes: u64,
    value_bytes: u64,
}

impl BlobUse {
    fn live_permille(&self) -> u64 {
        self.live_bytes.min(self.value_bytes).saturating_mul(1000) / self.value_bytes.max(1)
    }

    fn dead_bytes(&self) -> u64 {
        self.value_bytes.saturating_sub(self.live_bytes)
    }
}

/// What tables say of a blob file.
#[derive(Debug, Default, PartialEq, Eq)]
struct BlobRefs {
    /// The tables that hold it open.
    tables: u64,
    live_bytes: u64,
    value_bytes: u64,
}

impl BlobRefs {
    fn of(&self, file: FileId) -> BlobUse {
        BlobUse { file, live_bytes: self.live_bytes, value_bytes: self.value_bytes }
    }

    /// How much of it is live, if it is worth collecting.
    fn dead_order(&self, file: FileId) -> Option<u64> {
        let live = self.of(file).live_permille();
        (self.tables > 0 && live <= LIVE_PERMILLE_MAX).then_some(live)
    }
}

/// The blob files that tables point to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlobUses {
    files: BTreeMap<FileId, BlobRefs>,
    /// Those worth collecting, by how much of them is live.
    dead: BTreeSet<(u64, FileId)>,
}

impl BlobUses {
    /// Counts the pointers of a table that has come. Returns the files that no other points to.
    pub(super) fn add<'a>(&mut self, table: &'a Table) -> Vec<&'a BlobFile> {
        let mut new = Vec::new();
        for blob in table.blobs() {
            self.change(blob.id(), |refs| {
                refs.tables += 1;
                refs.value_bytes = blob.value_bytes();
                if refs.tables == 1 {
                    new.push(&**blob);
                }
            });
        }
        for pointed in &table.properties().blobs {
            self.change(pointed.file, |refs| {
                refs.live_bytes = refs.live_bytes.saturating_add(pointed.bytes);
            });
        }
        new
    }

    /// The same of a table that has gone. Returns the files that no other points to.
    pub(super) fn remove<'a>(&mut self, table: &'a Table) -> Vec<&'a BlobFile> {
        let mut last = Vec::new();
        for pointed in &table.properties().blobs {
            self.change(pointed.file, |refs| {
                refs.live_bytes = refs.live_bytes.saturating_sub(pointed.bytes);
            });
        }
        for blob in table.blobs() {
            self.change(blob.id(), |refs| {
                refs.tables = refs.tables.saturating_sub(1);
                if refs.tables == 0 {
                    last.push(&**blob);
                }
            });
        }
        last
    }

    fn change(&mut self, file: FileId, change: impl FnOnce(&mut BlobRefs)) {
        let refs = self.files.entry(file).or_default();
        let before = refs.dead_order(file);
        change(refs);
        let after = refs.dead_order(file);
        let is_gone = refs.tables == 0 && refs.live_bytes == 0;
        if before != after {
            before.map(|order| self.dead.remove(&(order, file)));
            after.map(|order| self.dead.insert((order, file)));
        }
        if is_gone {
            self.files.remove(&file);
        }
    }

    /// The files worth collecting, the deadest first.
    pub(super) fn dead(&self) -> impl Iterator<Item = BlobUse> {
        self.dead.iter().filter_map(|(_, file)| Some(self.files.get(file)?.of(*file)))
    }
}

/// The files that are collected, ascending, of those `dead` that are worth it (the deadest first), to get back
/// `wanted_bytes`. All values together are `all_bytes`.
pub(super) fn collected(dead: &[BlobUse], wanted_bytes: u64, all_bytes: u64) -> Vec<BlobUse> {
    let collected_bytes_max = (all_bytes / COLLECTED_PART).max(COLLECTED_BYTES_MIN);
    let (mut given_back, mut bytes) = (0, 0);
    let is_collected = |blob: &&BlobUse| {
        let is_wanted = match wanted_bytes {
            0 => blob.live_permille() < MOSTLY_DEAD_PERMILLE,
            _ => given_back < wanted_bytes,
        };
        // The first is collected however large it is.
        let fits = bytes == 0 || bytes + blob.value_bytes <= collected_bytes_max;
        given_back += blob.dead_bytes();
        bytes += blob.value_bytes;
        is_wanted && fits
    };
    let mut collected: Vec<BlobUse> = dead.iter().take_while(is_collected).copied().collect();
    collected.sort_by_key(|blob| blob.file);
    collected
}

/// What merging tables gives back in collected files (ascending), and the bytes that it copies out of them: of what is
/// dead in a file, each table that points to it has its part.
pub(super) fn collected_gain<'a>(
    tables: impl Iterator<Item = &'a Arc<Table>>,
    collected: &[BlobUse],
) -> (u64, u64) {
    let (mut gain, mut copied) = (0, 0);
    if collected.is_empty() {
        return (gain, copied);
    }
    for pointed in tables.flat_map(|table| &table.properties().blobs) {
        let of_file = collected.binary_search_by_key(&pointed.file, |blob| blob.file);
        if let Some(blob) = of_file.ok().and_then(|at| collected.get(at)) {
            let share = u128::from(blob.dead_bytes()) * u128::from(pointed.bytes);
            gain += (share / u128::from(blob.live_bytes.max(1))) as u64;
            copied += pointed.bytes;
        }
    }
    (gain, copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(file: u64, live_bytes: u64) -> BlobUse {
        BlobUse { file: FileId(file), live_bytes, value_bytes: 100 << 10 }
    }

    /// While there is space, files of which less than half is live. While it is short, the deadest until what is wanted
    /// is given back; never many at a time, but always one.
    #[test]
    fn the_deadest_are_collected_until_enough_is_given_back() {
        let dead = [used(9, 30 << 10), used(4, 45 << 10), used(7, 60 << 10), used(2, 70 << 10)];
        let files = |wanted_bytes, all_bytes| {
            let files = collected(&dead, wanted_bytes, all_bytes);
            files.iter().map(|blob| blob.file.0).collect::<Vec<_>>()
        };
        assert_eq!(files(0, 100 << 20), [4, 9]);
        assert_eq!(files(1, 100 << 20), [9]);
        assert_eq!(files(80 << 10, 100 << 20), [4, 9]);
        assert_eq!(files(140 << 10, 100 << 20), [4, 7, 9]);
        assert_eq!(files(u64::MAX, 100 << 20), [2, 4, 7, 9]);
        assert_eq!(files(u64::MAX, 1 << 20), [4, 9]);
        let large = BlobUse { file: FileId(3), live_bytes: 0, value_bytes: 1 << 30 };
        assert_eq!(collected(&[large, dead[0]], 0, 1 << 30), [large]);
    }
}
