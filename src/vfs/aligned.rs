//! `AlignedBuf`: owned bytes aligned to 4 KiB, as direct I/O needs them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::base::limits::UNIT_BYTES;
use crate::base::region::Region;

/// A buffer from this length on is memory of its own, from the system: such buffers come and go with
/// compactions and scans, in many sizes, and the gaps that they left in the heap would stay. (The
/// interpreter's stand-in for a region is not zero.)
const REGION_BYTES_MIN: usize = if cfg!(miri) { usize::MAX } else { 64 << 10 };

/// Owned, zero-initialised bytes whose address is a multiple of 4 KiB.
///
/// ```
/// let mut buf = spinney::vfs::AlignedBuf::new(8192);
/// buf[0] = 1;
/// assert_eq!(buf.as_ptr() as usize % 4096, 0);
/// ```
pub struct AlignedBuf {
    bytes: NonNull<u8>,
    len: usize,
    /// What owns the bytes, if it is not the heap.
    region: Option<Region>,
}

impl AlignedBuf {
    /// `len` zero bytes; `len` is rounded up to a whole number of 4 KiB units, at least one.
    pub fn new(len: usize) -> AlignedBuf {
        let len = len.max(1).next_multiple_of(UNIT_BYTES);
        if len >= REGION_BYTES_MIN
            && let Some(region) = Region::reserve_sparse(len)
        {
            return AlignedBuf { bytes: region.base(), len, region: Some(region) };
        }
        let layout = AlignedBuf::layout(len);
        // SAFETY: the layout's size is at least one unit, so not zero.
        let bytes = unsafe { alloc_zeroed(layout) };
        match NonNull::new(bytes) {
            Some(bytes) => AlignedBuf { bytes, len, region: None },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, UNIT_BYTES)
            .expect("a buffer is smaller than the address space")
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` is an allocation, or a region that was zero, of `len` bytes that `self` owns.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.region.is_none() {
            // SAFETY: allocated in `new` with the same layout.
            unsafe { dealloc(self.bytes.as_ptr(), AlignedBuf::layout(self.len)) }
        }
    }
}

// SAFETY: `AlignedBuf` owns its bytes as a `Vec<u8>` would.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access gives only `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        for len in [0, 1, 4096, 4097, if cfg!(miri) { 12288 } else { 1 << 20 }] {
            let mut buf = AlignedBuf::new(len);
            assert!(buf.len() >= len && buf.len().is_multiple_of(4096));
            assert_eq!(buf.as_ptr() as usize % 4096, 0);
            assert!(*buf == vec![0; buf.len()]);
            buf[len.saturating_sub(1)] = 7;
            // As it travels through queues: moved, shared, sent, dropped elsewhere.
            let sent = std::thread::spawn(move || buf[len.saturating_sub(1)]);
            assert_eq!(sent.join().unwrap(), 7);
        }
    }
}
