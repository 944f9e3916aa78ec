//! The disk space that a merge needs and frees, estimated while the disk is full.
//!
//! Invariants:
//! 1. A merge that writes at most about as much as it frees at its end may use all free space,
//!    because the same amount is free again soon. (Readers may hold the replaced files a little
//!    longer.) Each such merge brings deletes nearer to the entries that they delete, so few merges
//!    write a little more than they free.
//! 2. A merge that frees space only later, because others need its inputs too, leaves enough space
//!    for deletes and for merges of the former kind. The exception is a merge with nearly all of
//!    its input dead: it writes little.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::live::{Dead, Overlap};
use super::range::TablePart;
use crate::base::ids::FileId;
use crate::cache::{DataFiles, Room};
use crate::table::Table;

/// The smallest share of its inputs that a merge must drop to count as freeing space.
const DEAD_SHARE_MIN: f64 = 1.0 / 16.0;
/// The output may be larger than this estimate by this share: smaller files have relatively more
/// indexes and partly filled pages.
const GROWTH_BYTES_MAX: u64 = 64 << 10;
const GROWTH_PART_MAX: u64 = 16;
/// A merge with at least this share of dead input counts as nearly all dead.
const MOSTLY_DEAD_SHARE: f64 = 0.75;

/// The files that remain while a merge replaces its inputs.
#[derive(Debug, Default)]
pub(super) struct Staying {
    tables: BTreeSet<FileId>,
    /// The bytes that those tables point to, by blob file.
    blobs: BTreeMap<FileId, u64>,
}

impl Staying {
    /// A table that others reference too, or that the merge adopts whole.
    pub(super) fn add(&mut self, table: &Table) {
        if self.tables.insert(table.id()) {
            for blob in &table.properties().blobs {
                *self.blobs.entry(blob.file).or_default() += blob.bytes;
            }
        }
    }
}

/// The bytes of a blob file that the inputs of a merge point to, and that it may copy.
struct Collected {
    file_bytes: u64,
    value_bytes: f64,
}

/// The space that a merge frees, and the space that it needs before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlook {
    /// The size of the files that are no longer needed after the merge.
    freed_bytes: u64,
    /// The approximate size of the output.
    written_bytes: u64,
    /// True if the inputs have deletes, or entries that other inputs supersede, or are the last
    /// references to blob files that are mostly dead.
    drops: bool,
    is_mostly_dead: bool,
}

impl Outlook {
    /// The outlook of a merge of parts of tables, oldest first, that copies values out of the blob
    /// files `collected` (ascending). `keeps_deletes` tells whether older data exists that the
    /// inputs may delete.
    pub(super) fn of<'a>(
        inputs: impl IntoIterator<Item = (&'a Arc<Table>, TablePart)>,
        keeps_deletes: bool,
        staying: &Staying,
        collected: &[FileId],
    ) -> Outlook {
        Outlook::with(inputs, None, keeps_deletes, staying, collected)
    }

    /// The same, if it is known what is dead of the parts: as much may be dead for what others have.
    pub(super) fn of_known<'a>(
        inputs: impl IntoIterator<Item = (&'a Arc<Table>, TablePart)>,
        dead: Dead,
        keeps_deletes: bool,
        staying: &Staying,
        collected: &[FileId],
    ) -> Outlook {
        Outlook::with(inputs, Some(dead), keeps_deletes, staying, collected)
    }

    fn with<'a>(
        inputs: impl IntoIterator<Item = (&'a Arc<Table>, TablePart)>,
        dead: Option<Dead>,
        keeps_deletes: bool,
        staying: &Staying,
        collected: &[FileId],
    ) -> Outlook {
        let mut overlap = Overlap::default();
        let (mut freed_bytes, mut bytes, mut delete_bytes, mut deletes) = (0, 0.0, 0.0, 0);
        let mut blobs: BTreeMap<FileId, Collected> = BTreeMap::new();
        let mut last = None;
        for (table, part) in inputs {
            let properties = table.properties();
            overlap.add(table, part);
            deletes += properties.deletes;
            // Tables are compressed, and have indexes.
            let in_file = table.bytes() as f64 / properties.entry_bytes().max(1) as f64;
            bytes += part.size.bytes as f64 * in_file;
            let part = part.size.entries as f64 / properties.entries().max(1) as f64;
            let delete = properties.key_bytes as f64 / properties.entries().max(1) as f64;
            delete_bytes += properties.deletes as f64 * part * delete * in_file;
            if last.replace(table.id()) != Some(table.id()) && !staying.tables.contains(&table.id())
            {
                freed_bytes += table.bytes();
            }
            for (blob, file) in properties.blobs.iter().zip(table.blobs()) {
                if collected.binary_search(&blob.file).is_ok() {
                    let new = Collected { file_bytes: file.bytes(), value_bytes: 0.0 };
                    blobs.entry(blob.file).or_insert(new).value_bytes += blob.bytes as f64 * part;
                }
            }
        }
        let dead = dead.unwrap_or_else(|| overlap.dead());
        // If others point into a blob file too, the merge frees its part only after they have freed
        // theirs.
        let (mut copied_bytes, mut gain_bytes) = (0.0, 0.0);
        for (file, Collected { file_bytes, value_bytes }) in blobs {
            let others = staying.blobs.get(&file).copied().unwrap_or_default();
            if others == 0 {
                freed_bytes += file_bytes;
            }
            copied_bytes += value_bytes;
            let part = value_bytes / (value_bytes + others as f64).max(1.0);
            gain_bytes += file_bytes as f64 * part;
        }
        copied_bytes *= 1.0 - dead.blob_share;
        let drops_values = copied_bytes < gain_bytes * (1.0 - DEAD_SHARE_MIN);
        // The dead bytes include the deletes themselves.
        let kept_bytes = if keeps_deletes { delete_bytes } else { 0.0 };
        let left_bytes = bytes * (1.0 - dead.share) + copied_bytes;
        Outlook {
            freed_bytes,
            written_bytes: (left_bytes + kept_bytes) as u64,
            drops: deletes > 0 || dead.share.max(dead.blob_share) >= DEAD_SHARE_MIN || drops_values,
            is_mostly_dead: left_bytes <= (bytes + gain_bytes) * (1.0 - MOSTLY_DEAD_SHARE),
        }
    }

    /// The share of a full disk that the merge may use, and the most that it may write; `None` if
    /// it must wait.
    pub(super) fn room(self, files: &DataFiles) -> Option<(Room, u64)> {
        let Outlook { freed_bytes, written_bytes, drops, is_mostly_dead } = self;
        let bytes_max = freed_bytes + freed_bytes / GROWTH_PART_MAX + GROWTH_BYTES_MAX;
        let (rooms, bytes_max): (&[Room], _) = match drops {
            true if written_bytes < bytes_max && freed_bytes > 0 => {
                (&[Room::ButForMemtables, Room::All], bytes_max)
            }
            true if is_mostly_dead => (&[Room::ButForMemtables], u64::MAX),
            true => (&[Room::ButForDeletes], u64::MAX),
            false => (&[], 0),
        };
        let fits = |room: &&Room| files.check_room(**room, written_bytes).is_ok();
        rooms.iter().find(fits).map(|room| (*room, bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::entry::EntryKind;
    use crate::base::ids::FileId;
    use crate::base::key_hash::test_hasher;
    use crate::cache::Cache;
    use crate::tree::range::RangeSize;
    use crate::tree::test_support::table_of;
    use crate::vfs::{Access, MemoryVfs, Vfs};

    const DISK_BYTES: u64 = 10 << 20;
    const RESERVE_BYTES: u64 = 1 << 20;
    const MEMTABLES_BYTES: u64 = 256 << 10;

    /// Files on a disk with a reserve, and the disk.
    fn disk() -> (Arc<DataFiles>, Arc<dyn Vfs>) {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::with_capacity(DISK_BYTES));
        let cache = Arc::new(Cache::new(1 << 20));
        let dir = Path::new("/store");
        vfs.create_dir_all(dir).unwrap();
        let files = DataFiles::new(Arc::clone(&vfs), cache, dir, FileId(1), test_hasher());
        files.keep_free(RESERVE_BYTES, || MEMTABLES_BYTES);
        (Arc::new(files), vfs)
    }

    /// Fills the disk up to so many bytes.
    fn leave(vfs: &dyn Vfs, free_bytes: u64) {
        let free = vfs.space(Path::new("/")).unwrap().unwrap().available_bytes;
        let filler = vfs.create(Path::new("/filler"), Access::Buffered).unwrap();
        filler.write_at(0, &vec![0; (free - free_bytes) as usize]).unwrap();
    }

    fn of(tables: &[Arc<Table>], keeps_deletes: bool, needed: &[&Arc<Table>]) -> Outlook {
        let mut staying = Staying::default();
        needed.iter().for_each(|table| staying.add(table));
        let whole = |table: &Arc<Table>| {
            let properties = table.properties();
            let bytes = properties.entry_bytes();
            TablePart { first: 0, size: RangeSize { bytes, entries: properties.entries() } }
        };
        let inputs = tables.iter().map(|table| (table, whole(table)));
        Outlook::of(inputs, keeps_deletes, &staying, &[])
    }

    #[test]
    fn what_a_merge_writes_and_frees_is_known_before_it_begins() {
        let (files, _) = disk();
        let puts = table_of(&files, EntryKind::Put, 1, 0..4000);
        let deletes = table_of(&files, EntryKind::Delete, 2, 0..2000);
        let both = [Arc::clone(&puts), Arc::clone(&deletes)];
        let near = |bytes: u64, truth: f64| (bytes as f64 - truth).abs() < truth * 0.25;
        // Half of the keys remain.
        let bottom = of(&both, false, &[]);
        assert!(bottom.drops && !bottom.is_mostly_dead);
        assert_eq!(bottom.freed_bytes, puts.bytes() + deletes.bytes());
        assert!(near(bottom.written_bytes, puts.bytes() as f64 / 2.0), "{bottom:?}");
        // The deletes move on to the data below.
        let higher = of(&both, true, &[]);
        assert!(higher.written_bytes > bottom.written_bytes + 2000 * 4, "{higher:?}");
        // Another merge needs one of them.
        assert_eq!(of(&both, false, &[&puts]).freed_bytes, deletes.bytes());
        // All of it is dead.
        let all = table_of(&files, EntryKind::Delete, 3, 0..4000);
        let emptied = of(&[Arc::clone(&puts), all], false, &[]);
        assert!(emptied.is_mostly_dead && emptied.written_bytes < 4096, "{emptied:?}");
        // Nothing is dead: no key occurs twice.
        let others = table_of(&files, EntryKind::Put, 2, 4000..8000);
        assert!(!of(&[puts, others], false, &[]).drops);
    }

    /// A merge that made no room yet used the space that deletes and merges that free space needed.
    #[test]
    fn the_sooner_a_merge_makes_room_the_more_of_the_disk_it_may_take() {
        let (files, vfs) = disk();
        let free = |free_bytes, outlook: Outlook| {
            let _ = vfs.remove(Path::new("/filler"));
            leave(&*vfs, free_bytes);
            outlook.room(&files)
        };
        let written_bytes = 100 << 10;
        let at_once =
            Outlook { freed_bytes: 200 << 10, written_bytes, drops: true, is_mostly_dead: false };
        let later = Outlook { freed_bytes: 0, ..at_once };
        let mostly_dead = Outlook { is_mostly_dead: true, ..later };
        let drops_nothing = Outlook { drops: false, ..at_once };
        let half = MEMTABLES_BYTES + RESERVE_BYTES / 2 + written_bytes;
        assert_eq!(free(half + 4096, later), Some((Room::ButForDeletes, u64::MAX)));
        assert_eq!(free(half - 4096, later), None);
        assert_eq!(free(half - 4096, mostly_dead), Some((Room::ButForMemtables, u64::MAX)));
        let least = MEMTABLES_BYTES + written_bytes;
        assert_eq!(free(least - 4096, mostly_dead), None);
        let (room, bytes_max) = free(least + 4096, at_once).unwrap();
        assert_eq!(room, Room::ButForMemtables);
        assert!(bytes_max >= at_once.freed_bytes && bytes_max < 2 * at_once.freed_bytes);
        assert_eq!(free(least - 4096, at_once), Some((Room::All, bytes_max)));
        assert_eq!(free(written_bytes - 4096, at_once), None);
        assert_eq!(free(half + 4096, drops_nothing), None);
    }
}
