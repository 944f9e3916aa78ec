//! [`MappedRegion`]: a region in an ordinary file, which is mapped.
//!
//! What is stored survives the death of the process by itself, in the order of the stores. Where the file system has the
//! file in persistent memory, what has been flushed and fenced survives a power loss too. Elsewhere, each page of the file
//! then has any of its states since the last [`MappedRegion::sync`], whatever has been flushed and fenced. So whoever uses
//! it must find out whether there has been one.

use std::fmt::{self, Debug, Formatter};
use std::ops::Range;
use std::path::Path;

use super::residency::{PART_BYTES, Residency};
use super::{Region, WORD_BYTES};
use crate::base::error::Result;
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::vfs::SharedMap;

/// Who uses a part takes at most so many groups out of memory for it: 32 MiB.
const USER_GROUPS_MAX: usize = 8;

/// How many bytes of the disk may be taken by somebody who needs so many; `Full` if these are for others.
pub(crate) type TakeRoom = Box<dyn Fn(u64) -> Result<u64> + Send + Sync>;

/// See the module's description.
pub(crate) struct MappedRegion {
    map: SharedMap,
    room: Option<TakeRoom>,
    residency: Residency,
    /// The bytes before the map of the part that it begins in.
    before_bytes: usize,
}

impl MappedRegion {
    /// The region of a map, which takes as much of the disk as there is.
    pub(crate) fn new(map: SharedMap) -> MappedRegion {
        let before_bytes = map.base().addr().get() % PART_BYTES;
        let residency = Residency::new(before_bytes + map.address_bytes());
        MappedRegion { map, room: None, residency, before_bytes }
    }

    /// The same, if it has to ask for what it takes.
    pub(crate) fn with_room(self, room: TakeRoom) -> MappedRegion {
        MappedRegion { room: Some(room), ..self }
    }

    /// How many bytes may be taken of the disk, at least so many.
    fn take_room(&self, bytes: u64) -> Result<u64> {
        self.room.as_ref().map_or(Ok(u64::MAX), |room| room(bytes))
    }

    /// Whether what is flushed and fenced survives a power loss.
    pub(crate) fn is_persistent(&self) -> bool {
        self.map.is_persistent()
    }

    /// Makes everything stored so far durable.
    ///
    /// # Errors
    /// `Io`: what has been stored since the last sync may be lost.
    pub(crate) fn sync(&self) -> Result<()> {
        self.map.sync()
    }

    /// From now on, at most about so much of the region may stay in the memory of the process ([`Residency`]). What is there
    /// beyond that goes when more comes, or with [`MappedRegion::trim`]. The other words stay in the file, and come back when
    /// they are used.
    pub(crate) fn set_resident_bytes_max(&self, bytes: u64) {
        // It is not memory of the process then.
        let bytes = if self.map.is_persistent() { u64::MAX } else { bytes };
        self.residency.set_bytes_max(bytes);
    }

    /// How much that is.
    pub(crate) fn resident_bytes_max(&self) -> u64 {
        self.residency.bytes_max()
    }

    /// The most memory that the region has, as far as that is known.
    #[cfg(test)]
    fn resident_bytes(&self) -> u64 {
        self.residency.bytes()
    }

    /// Takes what is beyond the limit out of memory, until there is some room.
    #[inline]
    pub(crate) fn trim(&self) {
        if self.residency.is_over() {
            self.unmap(usize::MAX);
        }
    }

    #[cold]
    fn unmap(&self, groups_max: usize) {
        let before = self.before_bytes;
        self.residency.trim(before + self.map.bytes(), groups_max, |range| {
            self.map.release(range.start.saturating_sub(before)..range.end - before);
        });
    }
}

impl Debug for MappedRegion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedRegion").field("map", &self.map).finish_non_exhaustive()
    }
}

impl Region for MappedRegion {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        let first = self.map.base().cast::<AtomicU64>();
        // SAFETY: the map has this many bytes, is aligned to 4 KiB, and stays as long as the region. Any bytes are valid
        // words. Every access to them in this process is that of an atomic; no other process has the file, as whoever
        // opens a store locks it.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.map.bytes() / WORD_BYTES) }
    }

    fn store(&self, word: usize, value: u64) {
        // Nothing is unmapped here: who stores may exclude readers meanwhile.
        self.residency.count(self.before_bytes + word * WORD_BYTES);
        self.words()[word].store(value, Ordering::Release);
    }

    #[inline]
    fn used(&self, word: usize) {
        let at = self.before_bytes + word * WORD_BYTES;
        if self.residency.count(at) && self.residency.is_over() {
            self.unmap(USER_GROUPS_MAX);
            // It may have been among those that went.
            self.residency.count(at);
        }
    }

    fn is_partly_resident(&self) -> bool {
        self.map.bytes() as u64 > self.residency.bytes_max()
    }

    fn will_read(&self, words: Range<usize>) {
        self.map.will_read(words.start * WORD_BYTES..words.end * WORD_BYTES);
    }

    fn flush(&self, words: Range<usize>) {
        self.map.write_back(words.start * WORD_BYTES..words.end * WORD_BYTES);
    }

    fn fence(&self) {
        self.map.fence();
    }

    fn grow(&self, words: usize) -> Result<()> {
        let bytes = words.saturating_mul(WORD_BYTES);
        let room_bytes = self.take_room(bytes.saturating_sub(self.map.bytes()) as u64)?;
        self.map.grow(bytes, room_bytes)
    }

    fn give_back(&self, words: Range<usize>) -> bool {
        self.map.give_back(words.start * WORD_BYTES..words.end * WORD_BYTES)
    }

    fn have_again(&self, words: Range<usize>) -> Result<()> {
        self.take_room((words.len() * WORD_BYTES) as u64)?;
        self.map.have_again(words.start * WORD_BYTES..words.end * WORD_BYTES)
    }

    fn path(&self) -> &Path {
        self.map.path()
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::vfs::{Access, PosixVfs, Sharing, Vfs};

    #[test]
    fn words_survive_and_grow() {
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path): (Arc<dyn Vfs>, _) = (Arc::new(PosixVfs::new()), dir.path().join("region"));
        let map = || SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap();
        vfs.create(&path, Access::Buffered).unwrap();
        let region = MappedRegion::new(map());
        assert_eq!(region.words().len(), 8192);
        region.grow(8193).unwrap();
        assert_eq!(region.words().len(), 16384);
        region.store(16383, 5);
        region.set_resident_bytes_max(0);
        region.trim();
        assert_eq!(region.resident_bytes(), 64 << 10);
        assert_eq!(region.words()[16383].load(Ordering::Relaxed), 5);
        region.sync().unwrap();
        drop(region);
        let region = MappedRegion::new(map());
        assert_eq!(region.words()[16383].load(Ordering::Relaxed), 5);
    }

    /// An index took the last of the disk, which memtables needed to get into their trees: no delete was accepted any more.
    #[test]
    fn a_region_leaves_to_others_what_is_theirs() {
        use crate::base::error::Error;
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path): (Arc<dyn Vfs>, _) = (Arc::new(PosixVfs::new()), dir.path().join("region"));
        vfs.create(&path, Access::Buffered).unwrap();
        let room = |bytes| match bytes <= 4096 {
            true => Ok(4096),
            false => Err(Error::Full { path: "disk".into(), needed: bytes }),
        };
        let map = SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap();
        let region = MappedRegion::new(map).with_room(Box::new(room));
        assert!(matches!(region.grow(8192 + 513), Err(Error::Full { .. })));
        assert_eq!(region.words().len(), 8192);
        region.grow(8192 + 512).unwrap();
        assert_eq!(region.words().len(), 16384);
        if region.give_back(512..4608) {
            assert!(matches!(region.have_again(512..4608), Err(Error::Full { .. })));
            region.have_again(512..1024).unwrap();
        }
    }

    /// What is given back takes no space, and is zeros when it is had again.
    #[test]
    fn space_is_given_back_and_had_again() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path): (Arc<dyn Vfs>, _) = (Arc::new(PosixVfs::new()), dir.path().join("region"));
        vfs.create(&path, Access::Buffered).unwrap();
        let region =
            MappedRegion::new(SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap());
        (0..8192).for_each(|word| region.store(word, 7));
        region.sync().unwrap();
        let blocks = || std::fs::metadata(&path).unwrap().blocks() * 512;
        let before = blocks();
        if !region.give_back(512..4608) {
            return; // a file system without holes
        }
        assert_eq!(before - blocks(), 32 << 10);
        let word = |word: usize| region.words()[word].load(Ordering::Relaxed);
        assert_eq!([511, 512, 4607, 4608].map(word), [7, 0, 0, 7]);
        region.have_again(512..4608).unwrap();
        assert_eq!(blocks(), before);
        assert_eq!([511, 512, 4607, 4608].map(word), [7, 0, 0, 7]);
        region.store(512, 8);
        assert_eq!(word(512), 8);
    }
}
