//! `Region`: a large stretch of memory that costs nothing until it is touched, and whose parts can
//! be given back.

use std::ptr::NonNull;

/// Alignment, and what the system may back by one large page.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of fixed size; zero until written for the first time.
#[derive(Debug)]
pub(crate) struct Region {
    /// Where the usable bytes start.
    base: NonNull<u8>,
    mapping: NonNull<u8>,
    mapping_bytes: usize,
}

// SAFETY: a region is plain memory that it owns; all access goes through raw pointers whose users
// answer for it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

#[cfg(not(miri))]
impl Region {
    /// Reserves `bytes`, aligned to 4 KiB at least; `None` if the system refuses.
    pub(crate) fn reserve(bytes: usize) -> Option<Region> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // Large pages save most TLB misses of random reads, but need room to align.
        let slack = if bytes >= 2 * HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let mapping_bytes = bytes.checked_add(slack)?;
        let flags = MapFlags::PRIVATE;
        #[cfg(target_os = "linux")]
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory
        // that exists.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let mapping = NonNull::new(mapping.ok()?.cast::<u8>())?;
        let offset = if slack > 0 { mapping.as_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        // SAFETY: the offset is below `slack`, so inside the mapping.
        let base = unsafe { mapping.add(offset.min(slack)) };
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // SAFETY: the range lies in our own mapping; this advice does not change its contents.
            // Without large pages everything works the same, only slower.
            let _ = unsafe {
                rustix::mm::madvise(base.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage)
            };
        }
        Some(Region { base, mapping, mapping_bytes })
    }

    /// Gives the memory of a range back to the system; its contents are lost.
    ///
    /// # Safety
    /// The range lies inside the region, starts and ends at multiples of 4 KiB, and nobody has a
    /// reference into it.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the caller vouches for the range.
            let _ = unsafe {
                rustix::mm::madvise(
                    self.base.as_ptr().add(offset).cast(),
                    bytes,
                    rustix::mm::Advice::LinuxDontNeed,
                )
            };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }
}

#[cfg(not(miri))]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, and nobody has a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

// The interpreter has no such system calls: there a region is a plain allocation.
#[cfg(miri)]
impl Region {
    pub(crate) fn reserve(bytes: usize) -> Option<Region> {
        let layout = Region::layout(bytes.next_multiple_of(4096))?;
        // SAFETY: the layout's size is not zero, see `layout`.
        let mapping = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Region { base: mapping, mapping, mapping_bytes: layout.size() })
    }

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.mapping_bytes && HUGE_PAGE_BYTES % 4096 == 0);
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
impl Drop for Region {
    fn drop(&mut self) {
        if let Some(layout) = Region::layout(self.mapping_bytes) {
            // SAFETY: allocated in `reserve` with the same layout.
            unsafe { std::alloc::dealloc(self.mapping.as_ptr(), layout) };
        }
    }
}

impl Region {
    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_writable_and_can_be_released_in_part() {
        for bytes in [4096, 8 * 4096, if cfg!(miri) { 16 * 4096 } else { 8 << 20 }] {
            let region = Region::reserve(bytes).unwrap();
            let base = region.base().as_ptr();
            assert_eq!(base as usize % 4096, 0);
            // SAFETY: both bytes and the released range are inside the region, and no reference
            // into it exists.
            unsafe {
                base.write(1);
                base.add(bytes - 1).write(2);
                if bytes > 4096 {
                    region.release(0, 4096);
                    base.write(3);
                    assert_eq!(base.read(), 3);
                }
                assert_eq!(base.add(bytes - 1).read(), if bytes > 0 { 2 } else { 0 });
            }
        }
        assert!(Region::reserve(usize::MAX - 4096).is_none());
    }
}
