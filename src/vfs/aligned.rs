//! `AlignedBuf`: owned bytes aligned to 4 KiB, as direct I/O needs them.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::base::limits::UNIT_BYTES;
use crate::base::pages::PageVec;

/// Owned, initialised bytes whose address is a multiple of 4 KiB.
///
/// ```
/// let mut buf = spinney::vfs::AlignedBuf::new(8192);
/// buf[0] = 1;
/// assert_eq!(buf.as_ptr() as usize % 4096, 0);
/// ```
pub struct AlignedBuf {
    bytes: PageVec<u8>,
}

impl AlignedBuf {
    /// `len` zero bytes; `len` is rounded up to a whole number of 4 KiB units, at least one.
    pub fn new(len: usize) -> AlignedBuf {
        AlignedBuf { bytes: PageVec::zeroed(len.max(1).next_multiple_of(UNIT_BYTES)) }
    }

    /// As [`AlignedBuf::new`], with whatever its memory was last used for: to be filled before it
    /// is looked at.
    pub(crate) fn unzeroed(len: usize) -> AlignedBuf {
        AlignedBuf { bytes: PageVec::unzeroed(len.max(1).next_multiple_of(UNIT_BYTES)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len())
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
