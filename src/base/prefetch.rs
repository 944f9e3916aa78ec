//! Hints that fetch memory into the processor's cache ahead of its use.

/// The cache line size of common processors.
pub(crate) const LINE_BYTES: usize = 64;

/// Starts fetching the cache line at `byte`. A hint without any other effect.
#[inline]
pub(crate) fn prefetch(byte: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is harmless; SSE is part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(byte.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = byte;
}

/// Starts fetching `bytes` bytes at once, for reads that would otherwise miss one by one.
#[inline]
pub(crate) fn prefetch_lines(start: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE_BYTES) {
        prefetch(start.wrapping_add(offset));
    }
}
