//! The protocol of the two files: openings that die, memories that are lost and found again.

use super::*;
use crate::base::documented::hex_block;
use crate::vfs::MemoryVfs;

fn mate(path: &str) -> Mate {
    let (tag, tag_before, progress) = (5, 3, Progress::Claimed);
    Mate { store_id: 7, tag, tag_before, progress, path: PathBuf::from(path) }
}

#[test]
fn the_worked_example_of_the_format_page_is_what_is_written() {
    let example = hex_block(include_str!("../../../docs/format/persistent-memory.md"), 0);
    let mate = Mate { store_id: 0x0123_4567_89ab_cdef, ..mate("/mnt/pmem0/a") };
    assert_eq!(mate.encode().unwrap(), example);
    let file = Path::new("/store/MEMORY");
    assert_eq!(Mate::decode(&example, file).unwrap(), mate);
    for at in 0..example.len() {
        assert!(Mate::decode(&example[..at], file).unwrap_err().is_corruption(), "cut to {at}");
        let mut flipped = example.clone();
        flipped[at] ^= 1;
        assert!(Mate::decode(&flipped, file).unwrap_err().is_corruption(), "byte {at} flipped");
    }
    let mut newer = example[..example.len() - 8].to_vec();
    newer[8] = 2;
    newer.extend_from_slice(&checksum(0, &newer).to_le_bytes());
    let newer = Mate::decode(&newer, file);
    assert!(matches!(newer, Err(Error::UnsupportedVersion { found: 2, .. })), "{newer:?}");
}

/// A file system with the directories of a store, and what opening the store does about its memory.
struct Opening {
    vfs: MemoryVfs,
    salvage: bool,
}

impl Opening {
    fn attach(&self, memory: Option<&str>) -> Result<Attached> {
        let vfs: Arc<dyn Vfs> = Arc::new(self.vfs.clone());
        let mut builder = Builder::new(Path::new("/store"), Arc::clone(&vfs));
        builder = builder.salvage_journal(self.salvage);
        if let Some(memory) = memory {
            builder = builder.persistent_memory(PersistentMemory::at(memory));
        }
        let lock = vfs.lock(Path::new("/store/LOCK"))?;
        attach(&builder, vfs, lock, 7, false)
    }

    /// It dies before the manifest has begun the epoch.
    fn dies(&self, memory: Option<&str>) {
        drop(self.attach(memory).unwrap());
    }

    /// It dies while the manifest is being changed.
    fn dies_late(&self, memory: Option<&str>) {
        self.attach(memory).unwrap().claim.unwrap().give_up_lost().unwrap();
    }

    /// It succeeds; returns whether it went without the memory that there was.
    fn succeeds(&self, memory: Option<&str>) -> bool {
        let attached = self.attach(memory).unwrap();
        let claim = attached.claim.unwrap();
        claim.give_up_lost().unwrap();
        claim.settle().unwrap();
        attached.lost.is_some()
    }

    fn is_refused(&self, memory: Option<&str>) -> bool {
        self.attach(memory).is_err()
    }

    fn rename(&self, from: &str, to: &str) {
        self.vfs.rename(Path::new(from), Path::new(to)).unwrap();
    }

    /// The files `MEMORY` as they are now.
    fn contents(&self, dir: &str) -> Vec<u8> {
        let file = self.vfs.open(&Path::new(dir).join(FILE_NAME), Access::Buffered, false);
        let file = file.unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn put(&self, dir: &str, contents: &[u8]) {
        self.vfs.create_dir_all(Path::new(dir)).unwrap();
        let path = Path::new(dir).join(FILE_NAME);
        let _ = self.vfs.remove(&path);
        self.vfs.create(&path, Access::Buffered).unwrap().write_at(0, contents).unwrap();
    }
}

fn opening() -> Opening {
    let opening = Opening { vfs: MemoryVfs::new(), salvage: false };
    opening.vfs.create_dir_all(Path::new("/store")).unwrap();
    opening
}

#[test]
fn an_opening_that_dies_changes_nothing() {
    let mut opening = opening();
    opening.dies(Some("/memory"));
    opening.dies(Some("/memory"));
    assert!(!opening.succeeds(None));
    let before = opening.contents("/store");
    opening.dies(None);
    // The power failed before the store's file was durable.
    opening.put("/store", &before);
    opening.dies(None);
    opening.put("/store", &before);
    assert!(!opening.succeeds(None));
    // The memory is lost, and nobody has done without it yet.
    opening.rename("/memory", "/lost");
    opening.salvage = true;
    assert!(opening.is_refused(None), "a directory has to be named");
    for new in ["/new", "/memory"] {
        opening.dies(Some(new));
        opening.salvage = false;
        assert!(opening.is_refused(Some(new)) && opening.is_refused(None), "{new}");
        opening.salvage = true;
    }
    opening.salvage = false;
    assert!(!opening.succeeds(Some("/lost")));
    assert!(!opening.succeeds(None));
}

/// The memory's file had a tag already that the store's had not, when it was lost.
#[test]
fn a_memory_that_is_found_again_goes_on_from_any_moment() {
    for found_and_lost_again in [false, true] {
        let mut opening = opening();
        assert!(!opening.succeeds(Some("/memory")));
        let before = opening.contents("/store");
        opening.dies(None);
        opening.put("/store", &before);
        opening.rename("/memory", "/lost");
        opening.salvage = true;
        opening.dies(Some("/new"));
        if found_and_lost_again {
            let before = opening.contents("/store");
            opening.dies(Some("/lost"));
            opening.put("/store", &before);
            opening.rename("/lost", "/memory");
            opening.dies(Some("/new"));
            opening.rename("/memory", "/lost");
        }
        opening.salvage = false;
        assert!(!opening.succeeds(Some("/lost")));
        assert!(!opening.succeeds(None));
    }
}

/// A salvage had changed the manifest, and died. What it had given up was taken for current again.
#[test]
fn what_a_salvage_has_given_up_does_not_come_back() {
    let mut opening = opening();
    assert!(!opening.succeeds(Some("/memory")));
    opening.rename("/memory", "/lost");
    opening.salvage = true;
    opening.dies_late(Some("/new"));
    opening.salvage = false;
    assert!(opening.is_refused(Some("/lost")));
    // Nothing is there yet: the loss is still to be told.
    assert!(opening.is_refused(None) && opening.is_refused(Some("/new")));
    opening.salvage = true;
    assert!(opening.is_refused(Some("/lost")));
    assert!(opening.succeeds(Some("/new")));
    opening.salvage = false;
    assert!(!opening.succeeds(None));
}

/// A backup of the store from before it had persistent memory, opened with the memory's name, took the memory away from
/// the store, although it could not be opened.
#[test]
fn an_old_backup_does_not_take_the_memory_away() {
    let opening = opening();
    assert!(!opening.succeeds(Some("/memory")));
    let of_store = opening.contents("/store");
    opening.vfs.remove(Path::new("/store/MEMORY")).unwrap();
    opening.dies(Some("/memory"));
    opening.vfs.remove(Path::new("/store/MEMORY")).unwrap();
    opening.dies(Some("/memory"));
    opening.put("/store", &of_store);
    assert!(!opening.succeeds(None));
}

#[test]
fn a_memory_of_another_time_is_refused() {
    let mut opening = opening();
    assert!(!opening.succeeds(Some("/memory")));
    let [of_store, of_memory] = ["/store", "/memory"].map(|dir| opening.contents(dir));
    assert!(!opening.succeeds(None));
    let [new_of_store, new_of_memory] = ["/store", "/memory"].map(|dir| opening.contents(dir));
    // Either has been restored from a backup.
    opening.put("/memory", &of_memory);
    assert!(opening.is_refused(None) && opening.is_refused(Some("/memory")));
    opening.put("/memory", &new_of_memory);
    opening.put("/store", &of_store);
    assert!(opening.is_refused(None) && opening.is_refused(Some("/memory")));
    opening.put("/store", &new_of_store);
    assert!(!opening.succeeds(None));
    // It is lost, done without, and found again.
    opening.rename("/memory", "/lost");
    opening.salvage = true;
    assert!(opening.succeeds(Some("/new")));
    assert!(!opening.succeeds(None));
    assert!(opening.is_refused(Some("/lost")));
    opening.rename("/new", "/gone");
    assert!(opening.is_refused(Some("/lost")));
    opening.rename("/lost", "/new");
    assert!(opening.is_refused(None));
}

#[test]
fn another_stores_file_in_the_place_of_the_stores_is_an_error() {
    let opening = opening();
    opening.put("/store", &Mate { store_id: 8, ..mate("/others") }.encode().unwrap());
    assert!(opening.is_refused(None));
    assert!(!opening.succeeds(Some("/memory")));
    assert!(!opening.succeeds(None));
}

#[test]
fn a_file_that_was_not_finished_is_written_anew() {
    let vfs = MemoryVfs::new();
    let dir = Path::new("/store");
    vfs.create_dir_all(dir).unwrap();
    vfs.create(&dir.join(NEW_FILE_NAME), Access::Buffered).unwrap();
    assert_eq!(Mate::read(&vfs, dir).unwrap(), None);
    let mate = mate("/memory");
    mate.write(&vfs, dir).unwrap();
    assert_eq!(Mate::read(&vfs, dir).unwrap(), Some(mate));
    assert_eq!(vfs.read_names(dir).unwrap(), [FILE_NAME]);
}

#[test]
fn paths_that_cannot_be_written_down_are_refused() {
    let long = mate(&"x".repeat(PATH_BYTES_MAX + 1));
    assert!(matches!(long.encode(), Err(Error::InvalidArgument { .. })));
}
