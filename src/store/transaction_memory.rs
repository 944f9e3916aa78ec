//! What the writes and the read sets of open transactions take of the memory budget.
//!
//! Invariants:
//! 1. All transactions together have at most `bytes_max`; whoever wants more is refused.
//! 2. The page cache gives way in steps. What transactions have once needed is not given back to it: the allocator keeps
//!    it for the next ones.

use crate::base::error::{Error, Result};
use crate::base::sync::plain::{AtomicU64, Ordering};

/// They have at most this part of the budget.
const TRANSACTIONS_PART: u64 = 8;
const BYTES_MAX_MIN: u64 = 256 << 10;
/// In how many steps the cache gives way.
const STEPS: u64 = 16;

/// See the module's description.
pub(crate) struct TransactionMemory {
    bytes: AtomicU64,
    bytes_max: u64,
    step_bytes: u64,
    provided_bytes: AtomicU64,
}

impl TransactionMemory {
    pub(crate) fn new(memory_budget: u64) -> TransactionMemory {
        let bytes_max = (memory_budget / TRANSACTIONS_PART).max(BYTES_MAX_MIN);
        TransactionMemory {
            bytes: AtomicU64::new(0),
            bytes_max,
            step_bytes: (bytes_max / STEPS).max(1),
            provided_bytes: AtomicU64::new(0),
        }
    }

    /// Takes so many bytes more. Returns true if the cache is to give way.
    ///
    /// # Errors
    /// `InvalidArgument` if transactions have too much, and nothing is taken then.
    pub(crate) fn take(&self, bytes: u64) -> Result<bool> {
        let with = |before: u64| before.checked_add(bytes).filter(|all| *all <= self.bytes_max);
        let taken = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        let Ok(before) = taken else {
            return Err(Error::invalid(format!(
                "the open transactions of a store may have {} bytes of writes and of what they have read, and have {}: \
                 there is no room for {bytes} more; end others first, do less in one transaction, or give the store more \
                 memory (Builder::memory_budget: an eighth of it is for transactions)",
                self.bytes_max,
                self.bytes()
            )));
        };
        let all = before + bytes;
        Ok(all > self.step_bytes && all > self.provided_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// What they have.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What is to be taken from the cache for them, but for the first step.
    pub(super) fn bytes_to_provide(&self) -> u64 {
        let bytes = self.bytes();
        let wanted = match bytes <= self.step_bytes {
            true => 0,
            false => bytes.next_multiple_of(self.step_bytes) + self.step_bytes,
        };
        self.provided_bytes.fetch_max(wanted, Ordering::Relaxed).max(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_have_their_part_and_no_more() {
        let memory = TransactionMemory::new(16 << 20);
        assert!(!memory.take(100 << 10).unwrap());
        assert_eq!(memory.bytes_to_provide(), 0);
        assert!(memory.take(1 << 20).unwrap());
        assert!(memory.bytes_to_provide() >= memory.bytes());
        assert!(!memory.take(10).unwrap(), "the cache has given way for it");
        let error = memory.take(1 << 20).unwrap_err();
        assert!(error.to_string().contains("may have 2097152 bytes"), "{error}");
        memory.give_back((1 << 20) + (100 << 10) + 10);
        assert_eq!(memory.bytes(), 0);
        assert!(memory.bytes_to_provide() > 1 << 20);
    }
}
