//! The protocol of the two files: openings that die, memories that are lost and found again.

use std::cell::Cell;

use super::left::attach_what_is_left;
use super::mate::{NEW_FILE_NAME, PATH_BYTES_MAX};
use super::*;
use crate::base::documented::hex_block;
use crate::vfs::{Access, MemoryVfs};

fn mate(path: &str) -> Mate {
    let (tag, tag_before, progress, epoch) = (5, 3, Progress::Claimed, 4);
    Mate { store_id: 7, tag, tag_before, progress, epoch, path: PathBuf::from(path) }
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
struct Store {
    vfs: MemoryVfs,
    salvage: bool,
    read_only: bool,
    /// As the manifest has it.
    epoch: Cell<u32>,
}

impl Store {
    fn attach(&self, memory: Option<&str>) -> Result<Attached> {
        let vfs: Arc<dyn Vfs> = Arc::new(self.vfs.clone());
        let memory = memory.map(PersistentMemory::at);
        let opening = super::Opening {
            dir: Path::new("/store"),
            memory: memory.as_ref(),
            epoch: self.epoch.get(),
            salvage: self.salvage,
            read_only: self.read_only,
            is_stepped: false,
        };
        let lock = vfs.lock(Path::new("/store/LOCK"))?;
        attach(&opening, vfs, lock, 7)
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
        self.epoch.set(self.epoch.get() + 1);
        claim.settle(self.epoch.get()).unwrap();
        attached.lost.is_some()
    }

    /// The message of its error.
    fn complaint(&self, memory: Option<&str>) -> String {
        self.attach(memory).err().unwrap().to_string()
    }

    fn complaint_without_salvage(&mut self, memory: Option<&str>) -> String {
        let salvage = std::mem::replace(&mut self.salvage, false);
        let complaint = self.complaint(memory);
        self.salvage = salvage;
        complaint
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

    fn remove(&self, path: &str) {
        self.vfs.remove(Path::new(path)).unwrap();
    }

    /// Makes an empty file.
    fn touch(&self, path: &str) {
        self.vfs.create(Path::new(path), Access::Buffered).unwrap();
    }
}

fn store() -> Store {
    let (vfs, epoch) = (MemoryVfs::new(), Cell::new(0));
    let store = Store { vfs, salvage: false, read_only: false, epoch };
    store.vfs.create_dir_all(Path::new("/store")).unwrap();
    store
}

#[test]
fn an_opening_that_dies_changes_nothing() {
    let mut store = store();
    store.dies(Some("/memory"));
    store.dies(Some("/memory"));
    assert!(!store.succeeds(None));
    let before = store.contents("/store");
    store.dies(None);
    // The power failed before the store's file was durable.
    store.put("/store", &before);
    store.dies(None);
    store.put("/store", &before);
    assert!(!store.succeeds(None));
    // The memory is lost, and nobody has done without it yet.
    store.rename("/memory", "/lost");
    store.salvage = true;
    assert!(store.is_refused(None), "a directory has to be named");
    for new in ["/new", "/memory"] {
        store.dies(Some(new));
        store.salvage = false;
        assert!(store.is_refused(Some(new)) && store.is_refused(None), "{new}");
        store.salvage = true;
    }
    store.salvage = false;
    assert!(!store.succeeds(Some("/lost")));
    assert!(!store.succeeds(None));
}

/// The memory's file had a tag already that the store's had not, when it was lost.
#[test]
fn a_memory_that_is_found_again_goes_on_from_any_moment() {
    for found_and_lost_again in [false, true] {
        let mut store = store();
        assert!(!store.succeeds(Some("/memory")));
        let before = store.contents("/store");
        store.dies(None);
        store.put("/store", &before);
        store.rename("/memory", "/lost");
        store.salvage = true;
        store.dies(Some("/new"));
        if found_and_lost_again {
            let before = store.contents("/store");
            store.dies(Some("/lost"));
            store.put("/store", &before);
            store.rename("/lost", "/memory");
            store.dies(Some("/new"));
            store.rename("/memory", "/lost");
        }
        store.salvage = false;
        assert!(!store.succeeds(Some("/lost")));
        assert!(!store.succeeds(None));
    }
}

/// A salvage had changed the manifest, and died. What it had given up was taken for current again.
#[test]
fn what_a_salvage_has_given_up_does_not_come_back() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/lost");
    store.salvage = true;
    store.dies_late(Some("/new"));
    store.salvage = false;
    assert!(store.is_refused(Some("/lost")));
    // Nothing is there yet: the loss is still to be told.
    assert!(store.is_refused(None) && store.is_refused(Some("/new")));
    store.salvage = true;
    assert!(store.is_refused(Some("/lost")));
    assert!(store.succeeds(Some("/new")));
    store.salvage = false;
    assert!(!store.succeeds(None));
}

/// If the store's own file was removed, since it was damaged, the directory of a salvage that had died was taken for
/// the store's memory without a word of what had been lost.
#[test]
fn the_directory_of_a_salvage_that_died_is_not_taken_for_the_memory() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/lost");
    store.salvage = true;
    store.dies(Some("/new"));
    store.remove("/store/MEMORY");
    store.salvage = false;
    let error = store.complaint(Some("/new"));
    assert!(error.contains("has not come to its end") && error.contains("salvage_journal"));
    // Nor after another one that has died.
    store.salvage = true;
    store.dies(Some("/new"));
    store.salvage = false;
    assert!(store.is_refused(Some("/new")) && store.is_refused(None));
    store.remove("/store/MEMORY");
    assert!(!store.succeeds(Some("/lost")));
    store.remove("/store/MEMORY");
    store.salvage = true;
    assert!(store.succeeds(Some("/new")));
    store.salvage = false;
    assert!(!store.succeeds(None));
}

/// A salvage with another directory gave up a journal that was whole, since one byte of the file beside it was damaged,
/// or the file was not there. So did one after a salvage with the same directory had died.
#[test]
fn a_salvage_with_another_directory_gives_up_no_journal() {
    for of_memory in [None, Some(&b"damaged"[..])] {
        let mut store = store();
        assert!(!store.succeeds(Some("/memory")));
        let segment = Path::new("/memory/journal-00000001-00-00000001.log");
        store.vfs.create(segment, Access::Buffered).unwrap();
        store.vfs.remove(Path::new("/memory/MEMORY")).unwrap();
        of_memory.into_iter().for_each(|bytes| store.put("/memory", bytes));
        store.salvage = true;
        assert!(matches!(store.attach(Some("/new")), Err(Error::Conflict { .. })));
        assert!(!store.vfs.exists(Path::new("/new")).unwrap());
        store.dies(Some("/memory"));
        let error = store.complaint(Some("/new"));
        assert!(error.contains("/memory still has journal-"), "{error}");
        store.salvage = false;
        let error = store.complaint(None);
        assert!(error.contains("name the same directory again"), "{error}");
        store.salvage = true;
        // It has been moved away.
        store.rename("/memory", "/old");
        store.dies(Some("/new"));
        store.rename("/old", "/memory");
        assert!(store.succeeds(Some("/new")));
    }
}

/// The directory that the store's file names is another store's now, with a journal: nothing of it is to be given up.
#[test]
fn a_store_in_the_place_of_the_memory_is_not_in_the_way() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/lost");
    store.vfs.create_dir_all(Path::new("/memory")).unwrap();
    for name in [SUPERBLOCK_FILE_NAME, "journal-00000001-00-00000001.log"] {
        store.vfs.create(&Path::new("/memory").join(name), Access::Buffered).unwrap();
    }
    store.salvage = true;
    assert!(store.succeeds(Some("/new")));
}

/// A memory that had been moved could not be named if the file at its old place was damaged.
#[test]
fn what_is_damaged_at_the_old_place_of_the_memory_is_not_missed() {
    let store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/moved");
    store.put("/memory", b"damaged");
    assert!(store.complaint(Some("/new")).contains("cannot be read"));
    assert!(!store.succeeds(Some("/moved")));
}

/// A backup of the store from before it had persistent memory, opened with the memory's name, took the memory away from
/// the store, although it could not be opened.
#[test]
fn an_old_backup_does_not_take_the_memory_away() {
    let store = store();
    assert!(!store.succeeds(Some("/memory")));
    let of_store = store.contents("/store");
    store.vfs.remove(Path::new("/store/MEMORY")).unwrap();
    store.dies(Some("/memory"));
    store.vfs.remove(Path::new("/store/MEMORY")).unwrap();
    store.dies(Some("/memory"));
    store.put("/store", &of_store);
    assert!(!store.succeeds(None));
}

/// Without the store's file, no tag says of which moment the memory is. It was taken whatever its moment was. Without
/// the comparison of epochs, the openings here that are refused succeed.
#[test]
fn without_the_stores_file_the_epoch_tells_the_moment() {
    let store = store();
    assert!(!store.succeeds(Some("/memory")));
    assert!(!store.succeeds(None));
    store.remove("/store/MEMORY");
    let of_memory = store.contents("/memory");
    for (epoch, text) in [(1, "a later moment"), (3, "an earlier moment")] {
        store.epoch.set(epoch);
        let error = store.complaint(Some("/memory"));
        assert!(error.contains(text) && error.contains("spinney repair"), "{error}");
    }
    store.epoch.set(2);
    // Its own segments may be of any opening before, and the store's of those before that.
    store.touch("/store/journal-00000001-00-00000001.log");
    store.touch("/memory/journal-00000003-00-00000001.log");
    assert!(store.complaint(Some("/memory")).contains("a later moment"));
    store.rename(
        "/memory/journal-00000003-00-00000001.log",
        "/memory/journal-00000001-00-00000002.log",
    );
    assert!(store.complaint(Some("/memory")).contains("has gone on without"));
    store.rename(
        "/memory/journal-00000001-00-00000002.log",
        "/memory/journal-00000002-00-00000002.log",
    );
    assert_eq!(store.contents("/memory"), of_memory);
    assert!(!store.vfs.exists(Path::new("/store/MEMORY")).unwrap());
    store.dies(Some("/memory"));
    store.remove("/store/MEMORY");
    assert!(!store.succeeds(Some("/memory")));
}

/// An opening had begun its epoch, and died before it had settled. If the store's file was damaged as well, the memory was
/// refused as one of an earlier moment.
#[test]
fn an_opening_that_died_before_it_settled_is_of_the_moment_that_it_began() {
    let store = store();
    assert!(!store.succeeds(Some("/memory")));
    let claim = store.attach(None).unwrap().claim.unwrap();
    let begun = store.epoch.get() + u32::try_from(claim.epoch_step()).unwrap();
    drop(claim);
    store.remove("/store/MEMORY");
    store.epoch.set(begun + 1);
    assert!(store.complaint(Some("/memory")).contains("an earlier moment"));
    store.epoch.set(begun);
    assert!(!store.succeeds(Some("/memory")));
}

/// A directory in which nothing has been committed is of no moment.
#[test]
fn a_first_opening_that_died_is_not_in_the_way() {
    let store = store();
    store.dies(Some("/memory"));
    store.remove("/store/MEMORY");
    // The store went on without it.
    store.epoch.set(3);
    store.touch("/store/journal-00000003-00-00000001.log");
    store.touch("/memory/00000001.index");
    assert!(store.complaint(Some("/memory")).contains("an earlier moment"));
    store.remove("/memory/00000001.index");
    assert!(!store.succeeds(Some("/memory")));
    assert!(!store.succeeds(None));
}

#[test]
fn a_memory_of_another_time_is_refused() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    let [of_store, of_memory] = ["/store", "/memory"].map(|dir| store.contents(dir));
    assert!(!store.succeeds(None));
    let [new_of_store, new_of_memory] = ["/store", "/memory"].map(|dir| store.contents(dir));
    // Either has been restored from a backup.
    store.put("/memory", &of_memory);
    assert!(store.is_refused(None) && store.is_refused(Some("/memory")));
    store.put("/memory", &new_of_memory);
    store.put("/store", &of_store);
    assert!(store.is_refused(None) && store.is_refused(Some("/memory")));
    store.put("/store", &new_of_store);
    assert!(!store.succeeds(None));
    // It is lost, done without, and found again.
    store.rename("/memory", "/lost");
    store.salvage = true;
    assert!(store.succeeds(Some("/new")));
    assert!(!store.succeeds(None));
    assert!(store.is_refused(Some("/lost")));
    store.rename("/new", "/gone");
    assert!(store.is_refused(Some("/lost")));
    store.rename("/lost", "/new");
    assert!(store.is_refused(None));
}

/// After a salvage had died late, the error said that the journal is in the directory that was to be the new one, and
/// nothing of what to do. An index there was said to be of no store that is known.
#[test]
fn after_a_salvage_that_died_messages_say_what_to_do() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/lost");
    store.salvage = true;
    store.dies_late(Some("/new"));
    let index = Path::new("/new/00000001.index");
    store.vfs.create(index, Access::Buffered).unwrap();
    store.salvage = false;
    let error = store.complaint(None);
    assert!(error.contains("repeat it") && error.contains("name the same directory again"));
    // A repair said that it is of another moment.
    let vfs: Arc<dyn Vfs> = Arc::new(store.vfs.clone());
    let left = attach_what_is_left(vfs, Path::new("/store"), None, Some(7)).unwrap();
    let problem = left.problem.unwrap().to_string();
    assert!(problem.contains("a salvage that has not come to its end"), "{problem}");
    store.rename("/new", "/elsewhere");
    store.salvage = true;
    let error = store.complaint(Some("/elsewhere"));
    assert!(error.contains("a salvage") && error.contains("move it back"), "{error}");
}

/// If a directory was in the place of the lost memory in which an earlier salvage had died, the error said that a
/// salvage had given up the memory.
#[test]
fn a_salvage_of_another_moment_has_given_nothing_up() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/lost");
    store.salvage = true;
    store.dies_late(Some("/new"));
    assert!(store.complaint_without_salvage(None).contains("has given it up"));
    let of_salvage = store.contents("/new");
    assert!(store.succeeds(Some("/new")));
    store.put("/new", &of_salvage);
    let error = store.complaint_without_salvage(None);
    assert!(!error.contains("has given it up") && error.contains("make it available"), "{error}");
}

/// After a salvage that had failed, another directory was refused, since the first one had indexes: those it had made.
#[test]
fn indexes_of_a_salvage_that_failed_are_no_journal() {
    let mut store = store();
    assert!(!store.succeeds(Some("/memory")));
    store.rename("/memory", "/lost");
    store.salvage = true;
    store.dies(Some("/new"));
    store.touch("/new/00000001.index");
    store.dies(Some("/newer"));
    store.touch("/newer/journal-00000001-00-00000001.log");
    assert!(store.complaint(Some("/newest")).contains("/newer still has journal-"));
    store.remove("/newer/journal-00000001-00-00000001.log");
    assert!(store.succeeds(Some("/newest")));
}

#[test]
fn another_stores_file_in_the_place_of_the_stores_is_an_error() {
    let mut store = store();
    store.put("/store", &Mate { store_id: 8, ..mate("/others") }.encode().unwrap());
    assert!(store.is_refused(None) && store.is_refused(Some("/memory")));
    store.salvage = true;
    assert!(store.succeeds(Some("/memory")));
    store.salvage = false;
    assert!(!store.succeeds(None));
}

/// The error of a store's file that was damaged, or was another store's, said to remove it and to name the directory.
/// If that was not there (its disk not mounted, or its name mistyped), it was made, and the store was opened without
/// its journal. Without the repair, the memory that is not there is not asked for, and is made.
#[test]
fn a_damaged_file_of_the_store_does_not_lose_the_memory() {
    let others = Mate { store_id: 8, ..mate("/others") }.encode().unwrap();
    for damage in [&b"damaged"[..], &others] {
        let mut store = store();
        assert!(!store.succeeds(Some("/memory")));
        store.put("/store", damage);
        let error = store.complaint(None);
        assert!(error.contains("name the directory") && !error.contains("remove"), "{error}");
        store.rename("/memory", "/away");
        for read_only in [true, false] {
            store.read_only = read_only;
            let error = store.complaint(Some("/memory"));
            assert!(error.contains("make it available") && !error.contains("remove"), "{error}");
        }
        assert!(!store.vfs.exists(Path::new("/memory")).unwrap());
        store.rename("/away", "/memory");
        // The memory of another moment, or of a store elsewhere.
        store.epoch.set(2);
        assert!(store.complaint(Some("/memory")).contains("an earlier moment"));
        store.epoch.set(1);
        let of_memory = store.contents("/memory");
        let progress = Progress::Settled;
        let elsewhere = Mate { progress, epoch: 1, ..mate("/elsewhere") };
        store.put("/memory", &elsewhere.encode().unwrap());
        assert!(store.complaint(Some("/memory")).contains("persistent memory of /elsewhere"));
        store.put("/memory", &of_memory);
        store.dies(Some("/memory"));
        store.put("/store", damage);
        assert!(!store.succeeds(Some("/memory")));
        // It is lost, and found again after a salvage that died.
        store.put("/store", damage);
        store.rename("/memory", "/lost");
        store.salvage = true;
        store.dies(Some("/new"));
        store.salvage = false;
        assert!(store.is_refused(Some("/new")) && store.is_refused(None));
        let of_salvage = store.contents("/store");
        store.dies(Some("/lost"));
        store.put("/store", &of_salvage);
        assert!(!store.succeeds(Some("/lost")));
        store.put("/store", damage);
        store.salvage = true;
        assert!(store.succeeds(Some("/newer")));
        store.salvage = false;
        assert!(!store.succeeds(None) && store.is_refused(Some("/lost")));
    }
}

/// A repair took a file of a newer version for a damaged one, and went on without what that says. Without the repair,
/// the newer version is a problem in the result, and no error.
#[test]
fn a_repair_does_not_guess_what_a_newer_file_says() {
    for dir in ["/store", "/memory"] {
        let store = store();
        assert!(!store.succeeds(Some("/memory")));
        let mut newer = store.contents(dir);
        newer.truncate(newer.len() - 8);
        newer[8] = 2;
        newer.extend_from_slice(&checksum(0, &newer).to_le_bytes());
        store.put(dir, &newer);
        let memory = PersistentMemory::at("/memory");
        for memory in [None, Some(&memory)] {
            let vfs: Arc<dyn Vfs> = Arc::new(store.vfs.clone());
            let left = attach_what_is_left(vfs, Path::new("/store"), memory, Some(7));
            let error = left.err().unwrap();
            assert!(matches!(error, Error::UnsupportedVersion { found: 2, .. }), "{error}");
        }
    }
}

/// If another store had come to the place of the memory's store, since the disk of that was not mounted, the error said
/// only to name another directory. Without the repair, it does not ask for the disk.
#[test]
fn another_store_in_the_place_of_the_memorys_is_told() {
    let store = store();
    store.put("/memory", &Mate { store_id: 8, ..mate("/store") }.encode().unwrap());
    assert!(store.complaint(Some("/memory")).contains("is its disk mounted?"));
    store.put("/memory", &Mate { store_id: 8, ..mate("/others") }.encode().unwrap());
    assert!(!store.complaint(Some("/memory")).contains("is its disk mounted?"));
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
