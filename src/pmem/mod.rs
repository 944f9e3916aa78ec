//! Byte-addressable persistent memory, as one trait: [`Region`].
//!
//! A region is an array of 8-byte words. A store of one word is atomic, also when the power fails. Stores reach the
//! memory in any order, except that the stores to one cache line reach it in program order. `flush` begins to write
//! lines back, and `fence` waits for all lines whose writing has begun. What a structure needs in order it separates
//! by a flush and a fence.
//!
//! Invariants:
//! 1. Every store goes through [`Region::store`]. Loads read the words directly.
//! 2. A structure in a region is correct if it is correct in every state in which each line holds a prefix of the
//!    stores to it since the last fence before which it was flushed. `simulated` builds these states.

mod emulated;
mod heap;
mod mapped;
mod residency;
#[cfg(test)]
pub(crate) mod simulated;
mod split_vfs;

pub use emulated::EmulatedMemory;
pub(crate) use emulated::{Delay, Emulated};
pub(crate) use heap::HeapRegion;
pub(crate) use mapped::{MappedRegion, TakeRoom};
pub(crate) use split_vfs::SplitVfs;

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;

use crate::base::error::{Error, Result};
use crate::base::sync::plain::{AtomicU64, Ordering};

/// The number of bytes that a store writes atomically.
pub(crate) const WORD_BYTES: usize = 8;
/// The number of words of a cache line.
pub(crate) const LINE_WORDS: usize = 8;

/// A region of persistent memory. See the module's description.
pub(crate) trait Region: Send + Sync + Debug {
    /// The words, for loads. Their number does not shrink.
    fn words(&self) -> &[AtomicU64];

    /// Stores a word. The store is visible to other threads at once, after all earlier stores of this thread.
    fn store(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Release);
    }

    /// Told before words of a block are read, which begins at `word`, and again afterwards: a region may count what of it is
    /// in memory.
    fn used(&self, _word: usize) {}

    /// Whether only a part of the region may be in memory, so that words have to be read from the disk.
    fn is_partly_resident(&self) -> bool {
        false
    }

    /// Told that words will be read soon: a region may begin to read them from the disk.
    fn will_read(&self, _words: Range<usize>) {}

    /// Begins to write back the cache lines that contain `words`.
    fn flush(&self, words: Range<usize>);

    /// Waits until every line whose writing has begun is persistent.
    fn fence(&self);

    /// Adds words of zeros until there are at least so many.
    ///
    /// # Errors
    /// `Full` if there is no room, or if the region has a fixed size.
    fn grow(&self, words: usize) -> Result<()> {
        let needed = (words * WORD_BYTES) as u64;
        Err(Error::Full { path: self.path().to_path_buf(), needed })
    }

    /// Gives the space of words back to the system, whose content is of no use any more. Returns false if that is not
    /// possible. Loads of them are of zeros or of what was there. They have to be had again before they are stored to.
    fn give_back(&self, _words: Range<usize>) -> bool {
        false
    }

    /// Gets the space of words again that was given back.
    ///
    /// # Errors
    /// `Full` if there is no room.
    fn have_again(&self, _words: Range<usize>) -> Result<()> {
        Ok(())
    }

    /// The name of the region in errors.
    fn path(&self) -> &Path;
}

/// Begins to write back the cache lines that contain `words`.
#[cfg_attr(test, track_caller)]
pub(crate) fn flush(region: &dyn Region, words: Range<usize>) {
    #[cfg(test)]
    simulated::set_site(std::panic::Location::caller());
    region.flush(words);
}

/// Waits until every line that this thread has flushed is persistent.
#[cfg_attr(test, track_caller)]
pub(crate) fn fence(region: &dyn Region) {
    #[cfg(test)]
    simulated::set_site(std::panic::Location::caller());
    region.fence();
}

/// Makes `words` persistent before anything that is stored later.
#[cfg_attr(test, track_caller)]
pub(crate) fn persist(region: &dyn Region, words: Range<usize>) {
    flush(region, words);
    fence(region);
}

/// The cache lines that contain `words`.
pub(crate) fn lines(words: &Range<usize>) -> Range<usize> {
    words.start / LINE_WORDS..words.end.div_ceil(LINE_WORDS)
}
