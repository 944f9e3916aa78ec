//! Cache lines, written back to persistent memory without a system call.
//!
//! Where a file system maps persistent memory itself (`MAP_SYNC`), what has left the processor's caches is durable.
//! [`write_back`] begins to move lines out of the caches, and [`fence`] waits until that has been done.

use std::ptr::NonNull;

/// The number of bytes of a cache line on the machines that have these instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE_BYTES: usize = 64;

/// Whether the machine can write lines back.
pub(super) fn is_supported() -> bool {
    cfg!(all(target_arch = "x86_64", not(miri)))
}

/// Begins to write back the lines of `bytes` bytes.
///
/// # Safety
/// The bytes are mapped.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) unsafe fn write_back(start: NonNull<u8>, bytes: usize) {
    use std::arch::asm;

    let how = how();
    let before = start.addr().get() % LINE_BYTES;
    for at in (0..before + bytes).step_by(LINE_BYTES) {
        // SAFETY: the line has a byte of the range, so it is mapped. It belongs to one page.
        let line = unsafe { start.as_ptr().sub(before).add(at) };
        // SAFETY: these instructions change no byte, and `how` has found that the processor has them.
        unsafe {
            match how {
                How::WriteBack => {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                How::FlushFast => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                How::Flush => core::arch::x86_64::_mm_clflush(line),
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn write_back(_start: NonNull<u8>, _bytes: usize) {
    unreachable!("the machine has no such instructions: see `is_supported`")
}

/// Waits until all lines have left the caches that this thread has begun to write back.
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction, which changes no byte.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// The best instruction that the processor has.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Debug, Clone, Copy)]
enum How {
    /// The line stays in the cache.
    WriteBack,
    /// It does not, but lines are written beside one another.
    FlushFast,
    /// One line is written after the other.
    Flush,
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn how() -> How {
    use std::sync::LazyLock;

    const CLFLUSHOPT: u32 = 1 << 23;
    const CLWB: u32 = 1 << 24;
    static HOW: LazyLock<How> = LazyLock::new(|| {
        // Leaf 7 says which extensions there are.
        let features = match core::arch::x86_64::__cpuid(0).eax {
            7.. => core::arch::x86_64::__cpuid_count(7, 0).ebx,
            _ => 0,
        };
        match features {
            features if features & CLWB != 0 => How::WriteBack,
            features if features & CLFLUSHOPT != 0 => How::FlushFast,
            _ => How::Flush,
        }
    });
    *HOW
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instructions work on any memory, and change nothing.
    #[test]
    fn lines_that_are_written_back_keep_their_bytes() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        if is_supported() {
            for (start, len) in [(0, 1000), (1, 1), (63, 2), (65, 900), (7, 0)] {
                let start = NonNull::from(&bytes[start]);
                // SAFETY: the bytes are the vector's.
                unsafe { write_back(start, len) };
                fence();
            }
        }
        assert!(bytes.iter().zip((0..=255u8).cycle()).all(|(a, b)| *a == b));
    }
}
