//! [`Mapping`], an anonymous memory mapping. Its pages use no memory until they are touched, and
//! parts of it can be released.

use std::ptr::NonNull;

/// The size of a large page of the system.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;
/// Smaller mappings have no large pages.
pub(crate) const LARGE_MAPPING_BYTES: usize = 2 * LARGE_PAGE_BYTES;

/// Memory of fixed size, zero until it is written.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The address of the first usable byte.
    base: NonNull<u8>,
    /// The address of the mapping.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: a mapping owns plain memory. All access goes through raw pointers, whose users are
// responsible for it.
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
    /// Reserves `bytes` bytes, aligned to at least 4 KiB. Returns `None` if the system refuses. The
    /// system may use large pages: then the first use of a byte makes the surrounding 2 MiB
    /// resident.
    pub(crate) fn reserve(bytes: usize) -> Option<Mapping> {
        let mapping = Mapping::reserve_sparse(bytes)?;
        if bytes >= LARGE_MAPPING_BYTES {
            mapping.use_large_pages(0, bytes);
        }
        Some(mapping)
    }

    /// As [`Mapping::reserve`], for memory that is used and released in small parts: without large
    /// pages except where [`Mapping::use_large_pages`] allows them. Mappings of 4 MiB and more are
    /// aligned to large pages anyway.
    pub(crate) fn reserve_sparse(bytes: usize) -> Option<Mapping> {
        use rustix::mm::{ProtFlags, mmap_anonymous};
        let slack = if bytes >= LARGE_MAPPING_BYTES { LARGE_PAGE_BYTES } else { 0 };
        let mapped_bytes = bytes.checked_add(slack)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no existing
        // memory.
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
        // SAFETY: the offset is below `slack`, so it is inside the mapping.
        let base = unsafe { mapped.add(offset.min(slack)) };
        let mapping = Mapping { base, mapped, mapped_bytes };
        mapping.use_small_pages(0, bytes);
        Some(mapping)
    }

    /// Allows large pages in a range: its first use may then make the surrounding 2 MiB resident.
    /// The range must begin and end at multiples of 2 MiB, in a mapping aligned to them. Avoids
    /// most TLB misses of random reads. Returns false if there are no large pages.
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

    /// Splits the large pages of a range and discards its content. Otherwise a large page of which
    /// [`Mapping::release`] frees a part stays whole, and the process is charged for all of it.
    ///
    /// # Safety
    /// As for [`Mapping::release`].
    pub(crate) unsafe fn split_large_pages(&self, offset: usize, bytes: usize) {
        // This is a side effect of the advice, since Linux 4.5. Without the effect, nothing is
        // lost.
        #[cfg(target_os = "linux")]
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.advise(offset, bytes, rustix::mm::Advice::LinuxFree);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// Disallows large pages in a range: its first use then makes only 4 KiB resident.
    pub(crate) fn use_small_pages(&self, offset: usize, bytes: usize) {
        // A system without large pages refuses, which is fine.
        #[cfg(target_os = "linux")]
        // SAFETY: this does not change the contents.
        unsafe {
            self.advise(offset, bytes, rustix::mm::Advice::LinuxNoHugepage);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// # Safety
    /// The range is inside the mapping. If the advice may change its content, no reference into it
    /// exists.
    #[cfg(target_os = "linux")]
    unsafe fn advise(&self, offset: usize, bytes: usize, advice: rustix::mm::Advice) -> bool {
        debug_assert!(offset + bytes <= self.mapped_bytes);
        // SAFETY: guaranteed by the caller.
        unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), bytes, advice).is_ok() }
    }

    /// Releases the memory of a range to the system. The content is lost.
    ///
    /// # Safety
    /// The range is inside the mapping, begins and ends at multiples of 4 KiB, and no reference
    /// into it exists.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the caller guarantees the range.
        unsafe {
            self.advise(offset, bytes, rustix::mm::Advice::LinuxDontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.map_anew(offset, bytes);
        }
    }

    /// [`Mapping::release`] for systems without an advice that frees memory at once: replaces the
    /// range with untouched memory.
    ///
    /// # Safety
    /// As for [`Mapping::release`].
    #[cfg(any(test, not(target_os = "linux")))]
    unsafe fn map_anew(&self, offset: usize, bytes: usize) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: the range is inside this mapping, and the caller guarantees that no reference
        // into it exists. If the call fails the memory stays, which is allowed.
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
        // SAFETY: mapped in `reserve`, and no reference into it exists any more.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

// The interpreter has no such system calls: there a mapping is a heap allocation.
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
        // SAFETY: inside the allocation; the caller guarantees that no reference exists.
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
    /// Returns the address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns how many of the first `units` pages of 4 KiB are resident.
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
            // With large pages, a whole one if the system had one.
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
