//! [`HeapRegion`]: a region in ordinary memory, which ends with the process.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{LINE_WORDS, Region, WORD_BYTES};
use crate::base::mapping::Mapping;
use crate::base::sync::plain::AtomicU64;

/// A region that is not persistent: for an index that is built when its store is opened, and below the emulation of
/// persistent memory. It uses memory for the words that have been written.
#[derive(Debug)]
pub(crate) struct HeapRegion {
    mapping: Mapping,
    words: usize,
    name: PathBuf,
}

impl HeapRegion {
    /// A region of zeros. The number of words is rounded up to whole cache lines. Returns `None` if the system has
    /// not so many addresses. Errors name the region by `name`.
    pub(crate) fn reserve(words: usize, name: &Path) -> Option<HeapRegion> {
        let words = words.checked_next_multiple_of(LINE_WORDS)?;
        let mapping = Mapping::reserve_sparse(words.checked_mul(WORD_BYTES)?)?;
        Some(HeapRegion { mapping, words, name: name.to_path_buf() })
    }
}

impl Region for HeapRegion {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        let first = self.mapping.base().cast::<AtomicU64>();
        // SAFETY: the mapping has this many words, is aligned to 4 KiB, and began as zeros, which are valid. It is not
        // released while the region exists, and every access to it is that of an atomic.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.words) }
    }

    fn flush(&self, _words: Range<usize>) {}

    fn fence(&self) {}

    fn path(&self) -> &Path {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::plain::Ordering;

    #[test]
    fn words_are_zero_until_they_are_stored() {
        let region = HeapRegion::reserve(1001, Path::new("heap")).unwrap();
        assert_eq!(region.words().len(), 1008);
        region.store(1007, 5);
        let sum: u64 = region.words().iter().map(|word| word.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 5);
        assert!(HeapRegion::reserve(usize::MAX, Path::new("heap")).is_none());
    }
}
