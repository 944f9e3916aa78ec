//! The disk space that a merge needs and frees, estimated while the disk is full.
//!
//! Invariants:
//! 1. A merge that writes at most about as much as its end frees may use all free space: as much is free again soon. (Readers may hold on to what was replaced, a little longer.) Each brings deletes nearer to what they delete,
//!    so there are not many that write a little more.
//! 2. A merge that makes room later, since others need its inputs too, leaves enough to deletes and to merges of the
//!    former kind, unless nearly all that it reads is dead: then little more has to be written for the room to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::live::Overlap;
use super::range::TablePart;
use crate::base::ids::FileId;
use crate::cache::{DataFiles, Room};
use crate::table::Table;

/// What is dropped of the inputs of a merge that makes room is at least this share.
const DEAD_SHARE_MIN: f64 = 1.0 / 16.0;
/// What is written may be more than what goes by this, and by this part: files that are smaller have more indexes, and
/// pages that are not full.
const GROWTH_BYTES_MAX: u64 = 64 << 10;
const GROWTH_PART_MAX: u64 = 16;
/// Of a merge that reads this share of dead bytes, or more, nearly all is dead.
const MOSTLY_DEAD_SHARE: f64 = 0.75;

/// The files that stay while a merge replaces its inputs.
#[derive(Debug, Default)]
pub(super) struct Staying {
    tables: BTreeSet<FileId>,
    /// Bytes that those tables point to, by blob file.
    blobs: BTreeMap<FileId, u64>,
}

impl Staying {
    /// A table that others than the merge refer to, or that it takes over whole.
    pub(super) fn add(&mut self, table: &Table) {
        if self.tables.insert(table.id()) {
            for blob in &table.properties().blobs {
                *self.blobs.entry(blob.file).or_default() += blob.bytes;
            }
        }
    }
}

/// A blob file's bytes to which the inputs of a merge point, and which it may copy.
struct Collected {
    file_bytes: u64,
    value_bytes: f64,
}

/// What a merge of some inputs frees, and needs before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlook {
    /// Bytes of files that are not needed when it has ended.
    freed_bytes: u64,
    /// Bytes that will be written, about.
    written_bytes: u64,
    /// Whether the inputs hold deletes, or entries that others of them supersede, or are all that keeps blob files of
    /// which most is dead.
    drops: bool,
    is_mostly_dead: bool,
}

impl Outlook {
    /// Of a merge of parts of tables, oldest first, that copies values out of the blob files `collected`
    /// (ascending). `keeps_deletes` tells whether there is something below that the inputs may delete.
    pub(super) fn of<'a>(
        inputs: impl IntoIterator<Item = (&'a Arc<Table>, TablePart)>,
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
        let dead = overlap.dead();
        // Of a blob file that others point into too, the merge gives back its part, once they have given back theirs.
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
        // Among the dead are the deletes themselves.
        let kept_bytes = if keeps_deletes { delete_bytes } else { 0.0 };
        let left_bytes = bytes * (1.0 - dead.share) + copied_bytes;
        Outlook {
            freed_bytes,
            written_bytes: (left_bytes + kept_bytes) as u64,
            drops: deletes > 0 || dead.share.max(dead.blob_share) >= DEAD_SHARE_MIN || drops_values,
            is_mostly_dead: left_bytes <= (bytes + gain_bytes) * (1.0 - MOSTLY_DEAD_SHARE),
        }
    }

    /// What of a full disk the merge may take, and the most that it may write; `None` if it is to wait.
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
        // Half of the keys are left.
        let bottom = of(&both, false, &[]);
        assert!(bottom.drops && !bottom.is_mostly_dead);
        assert_eq!(bottom.freed_bytes, puts.bytes() + deletes.bytes());
        assert!(near(bottom.written_bytes, puts.bytes() as f64 / 2.0), "{bottom:?}");
        // The deletes go on to what is below.
        let higher = of(&both, true, &[]);
        assert!(higher.written_bytes > bottom.written_bytes + 2000 * 4, "{higher:?}");
        // Another needs one of them.
        assert_eq!(of(&both, false, &[&puts]).freed_bytes, deletes.bytes());
        // All of it is dead.
        let all = table_of(&files, EntryKind::Delete, 3, 0..4000);
        let emptied = of(&[Arc::clone(&puts), all], false, &[]);
        assert!(emptied.is_mostly_dead && emptied.written_bytes < 4096, "{emptied:?}");
        // Nothing is: what is merged has no key twice.
        let others = table_of(&files, EntryKind::Put, 2, 4000..8000);
        assert!(!of(&[puts, others], false, &[]).drops);
    }

    /// A merge that others had to end for took what deletes and merges that made room needed.
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
