//! `Mapping`: an anonymous memory mapping. Its pages use no memory until they are touched, and
//! parts of it can be released.

use std::ptr::NonNull;

/// What the system may back by one large page.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;
/// A mapping with fewer bytes has no large pages.
pub(crate) const LARGE_MAPPING_BYTES: usize = 2 * LARGE_PAGE_BYTES;

/// Memory of fixed size; zero until written for the first time.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Where the usable bytes start.
    base: NonNull<u8>,
    /// Where the mapping starts.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: a mapping is plain memory that it owns; all access goes through raw pointers whose users
// answer for it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(not(miri))]
fn flags() -> rustix::mm::MapFlags {
    let flags = rustix::mm::MapFlags::PRIVATE;
    #[cfg(target_os = "linux")]
    let flags = flags | rustix::mm::MapFlags::NORESERVE;
    flags
}

#[cfg(not(miri))]
impl Mapping {
    /// Reserves `bytes`, aligned to 4 KiB at least; `None` if the system refuses. The system may
    /// back it by large pages: then the first use of a byte makes 2 MiB around it resident.
    pub(crate) fn reserve(bytes: usize) -> Option<Mapping> {
        let mapping = Mapping::reserve_sparse(bytes)?;
        if bytes >= LARGE_MAPPING_BYTES {
            mapping.use_large_pages(0, bytes);
        }
        Some(mapping)
    }

    /// As [`Mapping::reserve`], for memory of which small parts are used and given back: without
    /// large pages where [`Mapping::use_large_pages`] does not say otherwise. From 4 MiB on it is
    /// aligned to large pages all the same.
    pub(crate) fn reserve_sparse(bytes: usize) -> Option<Mapping> {
        use rustix::mm::{ProtFlags, mmap_anonymous};
        let slack = if bytes >= LARGE_MAPPING_BYTES { LARGE_PAGE_BYTES } else { 0 };
        let mapped_bytes = bytes.checked_add(slack)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory
        // that exists.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags(),
            )
        };
        let mapped = NonNull::new(mapped.ok()?.cast::<u8>())?;
        let offset = if slack > 0 { mapped.as_ptr().align_offset(LARGE_PAGE_BYTES) } else { 0 };
        // SAFETY: the offset is below `slack`, so inside the mapping.
        let base = unsafe { mapped.add(offset.min(slack)) };
        let mapping = Mapping { base, mapped, mapped_bytes };
        mapping.use_small_pages(0, bytes);
        Some(mapping)
    }

    /// From now on a first use of the range, which starts and ends at multiples of 2 MiB and lies
    /// in a mapping aligned to them, may make 2 MiB around it resident. That saves most TLB misses
    /// of random reads. False if there are no large pages.
    pub(crate) fn use_large_pages(&self, offset: usize, bytes: usize) -> bool {
        #[cfg(target_os = "linux")]
        // SAFETY: this does not change the contents.
        let is_done = unsafe { self.advise(offset, bytes, rustix::mm::Advice::LinuxHugepage) };
        #[cfg(not(target_os = "linux"))]
        let is_done = {
            let _ = (offset, bytes);
            false
        };
        is_done
    }

    /// Takes apart the large pages that back parts of the range, and loses its contents. Without
    /// this a large page of which [`Mapping::release`] gives a part back stays whole, and the
    /// process is charged for all of it.
    ///
    /// # Safety
    /// As for [`Mapping::release`].
    pub(crate) unsafe fn split_large_pages(&self, offset: usize, bytes: usize) {
        // A side effect of this advice, since Linux 4.5; where it has none nothing is lost.
        #[cfg(target_os = "linux")]
        // SAFETY: as the caller vouches.
        unsafe {
            self.advise(offset, bytes, rustix::mm::Advice::LinuxFree);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// From now on a first use of the range makes only 4 KiB around it resident.
    pub(crate) fn use_small_pages(&self, offset: usize, bytes: usize) {
        // A system without large pages refuses: just as well.
        #[cfg(target_os = "linux")]
        // SAFETY: this does not change the contents.
        unsafe {
            self.advise(offset, bytes, rustix::mm::Advice::LinuxNoHugepage);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// # Safety
    /// The range lies inside the mapping; and if the advice may change its contents, nobody has a
    /// reference into it.
    #[cfg(target_os = "linux")]
    unsafe fn advise(&self, offset: usize, bytes: usize, advice: rustix::mm::Advice) -> bool {
        debug_assert!(offset + bytes <= self.mapped_bytes);
        // SAFETY: as the caller vouches.
        unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), bytes, advice).is_ok() }
    }

    /// Gives the memory of a range back to the system; its contents are lost.
    ///
    /// # Safety
    /// The range lies inside the mapping, starts and ends at multiples of 4 KiB, and nobody has a
    /// reference into it.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the caller vouches for the range.
        unsafe {
            self.advise(offset, bytes, rustix::mm::Advice::LinuxDontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        // SAFETY: as the caller vouches.
        unsafe {
            self.map_anew(offset, bytes);
        }
    }

    /// What [`Mapping::release`] is where the system has no advice that frees memory at once: other
    /// memory, not yet touched, takes the range's place.
    ///
    /// # Safety
    /// As for [`Mapping::release`].
    #[cfg(any(test, not(target_os = "linux")))]
    unsafe fn map_anew(&self, offset: usize, bytes: usize) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: the range is inside our own mapping, and the caller vouches that nobody has a
        // reference into it. If it fails the memory stays, which is allowed.
        let _ = unsafe {
            mmap_anonymous(
                self.base.as_ptr().add(offset).cast(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags() | MapFlags::FIXED,
            )
        };
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, and nobody has a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

// The interpreter has no such system calls: there a mapping is a plain allocation.
#[cfg(miri)]
impl Mapping {
    pub(crate) fn reserve(bytes: usize) -> Option<Mapping> {
        let layout = Mapping::layout(bytes.next_multiple_of(4096))?;
        // SAFETY: the layout's size is not zero, see `layout`.
        let mapped = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Mapping { base: mapped, mapped, mapped_bytes: layout.size() })
    }

    pub(crate) fn reserve_sparse(bytes: usize) -> Option<Mapping> {
        Mapping::reserve(bytes)
    }

    pub(crate) fn use_large_pages(&self, _offset: usize, _bytes: usize) -> bool {
        false
    }

    pub(crate) fn use_small_pages(&self, _offset: usize, _bytes: usize) {}

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn split_large_pages(&self, _offset: usize, _bytes: usize) {}

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.mapped_bytes && LARGE_PAGE_BYTES % 4096 == 0);
        // SAFETY: inside the allocation, and the caller vouches that nobody looks.
        unsafe {
            type Unit = std::mem::MaybeUninit<[u8; 4096]>;
            let range = self.base.as_ptr().add(offset).cast::<Unit>();
            for i in 0..bytes / 4096 {
                range.add(i).write(Unit::uninit());
            }
        }
    }

    fn layout(bytes: usize) -> Option<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(bytes.max(4096), 4096).ok()
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(layout) = Mapping::layout(self.mapped_bytes) {
            // SAFETY: allocated in `reserve` with the same layout.
            unsafe { std::alloc::dealloc(self.mapped.as_ptr(), layout) };
        }
    }
}

impl Mapping {
    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How many of the first `units` of 4 KiB are in memory.
    #[cfg(all(test, target_os = "linux", not(miri)))]
    pub(crate) fn resident_units(&self, units: usize) -> usize {
        use std::os::unix::fs::FileExt;
        let mut entries = vec![0; units * 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entries, self.base.as_ptr() as u64 / 4096 * 8).unwrap();
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_writable_and_can_be_released_in_part() {
        for bytes in [4096, 8 * 4096, if cfg!(miri) { 16 * 4096 } else { 8 << 20 }] {
            for reserve in [Mapping::reserve, Mapping::reserve_sparse] {
                let mapping = reserve(bytes).unwrap();
                let base = mapping.base().as_ptr();
                assert_eq!(base as usize % 4096, 0);
                // SAFETY: both bytes and the released range are inside the mapping, and no
                // reference into it exists.
                unsafe {
                    base.write(1);
                    base.add(bytes - 1).write(2);
                    if bytes > 4096 {
                        mapping.release(0, 4096);
                        base.write(3);
                        assert_eq!(base.read(), 3);
                    }
                    assert_eq!(base.add(bytes - 1).read(), if bytes > 0 { 2 } else { 0 });
                }
            }
        }
        assert!(Mapping::reserve(usize::MAX - 4096).is_none());
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn of_a_sparse_mapping_only_what_is_used_is_resident() {
        let mapping = Mapping::reserve_sparse(8 << 20).unwrap();
        let at = |unit: usize| mapping.base().as_ptr().wrapping_add(unit * 4096);
        // SAFETY: all units are inside the mapping, and no reference into it exists.
        unsafe {
            for unit in [5, 6, 7, 1000, 2000] {
                at(unit).write(1);
            }
            assert_eq!(mapping.resident_units(2048), 5);
            mapping.release(6 * 4096, 2 * 4096);
            assert_eq!(mapping.resident_units(2048), 3);
            assert_eq!((at(5).read(), at(1000).read()), (1, 1));
            mapping.map_anew(1000 * 4096, 4096);
            assert_eq!(mapping.resident_units(2048), 2);
            at(1000).write(2);
            assert_eq!((at(5).read(), at(1000).read(), at(2000).read()), (1, 2, 1));
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_large_page_gives_back_a_part_and_keeps_the_rest() {
        let mapping = Mapping::reserve_sparse(8 << 20).unwrap();
        let at = |unit: usize| mapping.base().as_ptr().wrapping_add(unit * 4096);
        let is_large = mapping.use_large_pages(LARGE_PAGE_BYTES, LARGE_PAGE_BYTES);
        // SAFETY: all units are inside the mapping, and no reference into it exists.
        unsafe {
            at(512).write(1);
            // With large pages all of one, if there was one to be had.
            assert!(mapping.resident_units(2048) == 1 || is_large);
            for unit in 512..1024 {
                at(unit).write(unit as u8);
            }
            mapping.use_small_pages(LARGE_PAGE_BYTES, LARGE_PAGE_BYTES);
            mapping.split_large_pages(600 * 4096, 3 * 4096);
            mapping.release(600 * 4096, 3 * 4096);
            assert_eq!(mapping.resident_units(2048), 509);
            for unit in (512..600).chain(603..1024) {
                assert_eq!(at(unit).read(), unit as u8);
            }
            at(601).write(9);
            assert_eq!(mapping.resident_units(2048), 510);
        }
    }
}
