//! Locks of keys, for writes that depend on what a key holds.
//!
//! A conditional write reads its keys without a lock, then locks them, sees that nobody has written to them meanwhile, and
//! commits. Commits to keyspaces that have had no conditional write take no lock (`condition`). Keys share a fixed number
//! of locks by their hash.
//!
//! Invariants:
//! 1. The locks of a commit are taken in ascending order, each once: no circle of commits waits for one another.
//! 2. Whoever holds some waits only for the journal and for commits with lower numbers. It reads no page, waits for no room
//!    in memtables, and calls no code of the user.
//! 3. A store without conditional writes has no locks: they take memory.

use std::sync::OnceLock;

use crate::base::sync::{CachePadded, Mutex, MutexGuard};

/// How many there are. With 16 writers, two of them meet in one in 60 commits.
const LOCKS: usize = 1024;
const WORD_BITS: usize = u64::BITS as usize;

type Lock = CachePadded<Mutex<()>>;

/// See the module's description.
#[derive(Default)]
pub(crate) struct KeyLocks {
    locks: OnceLock<Box<[Lock]>>,
}

/// Keeps keys locked.
pub(super) enum Locked<'a> {
    One { _guard: MutexGuard<'a, ()> },
    Several { _guards: Vec<MutexGuard<'a, ()>> },
}

impl KeyLocks {
    /// Locks the keys with these hashes.
    pub(super) fn lock(&self, mut hashes: impl Iterator<Item = u64>) -> Locked<'_> {
        let locks = self.locks.get_or_init(|| (0..LOCKS).map(|_| Lock::default()).collect());
        let first = hashes.next().map_or(0, number);
        // A conditional write has its key twice: as what is written, and as its condition.
        let mut others = hashes.map(number).skip_while(|other| *other == first);
        let Some(second) = others.next() else {
            return Locked::One { _guard: locks[first].lock() };
        };
        let mut wanted = [0u64; LOCKS / WORD_BITS];
        for number in [first, second].into_iter().chain(others) {
            wanted[number / WORD_BITS] |= 1 << (number % WORD_BITS);
        }
        let is_wanted =
            |number: &usize| wanted[number / WORD_BITS] >> (number % WORD_BITS) & 1 == 1;
        let guards = (0..LOCKS).filter(is_wanted).map(|number| locks[number].lock());
        Locked::Several { _guards: guards.collect() }
    }
}

/// Which lock is that of a hash.
fn number(hash: u64) -> usize {
    (hash % LOCKS as u64) as usize
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    /// Threads that lock the same keys in different orders come to an end, and exclude one another.
    #[test]
    fn several_keys_are_locked_together() {
        let locks = KeyLocks::default();
        let (inside, entered) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let (locks, inside, entered) = (&locks, &inside, &entered);
                scope.spawn(move || {
                    for round in 0..500 {
                        // All have 7, and 1031 is the same lock.
                        let others = [round * 31 + thread, 1031, round * 17, 5];
                        let hashes = others.into_iter().chain([7]);
                        let _locked = match thread % 2 {
                            0 => locks.lock(hashes),
                            _ => locks.lock(hashes.collect::<Vec<_>>().into_iter().rev()),
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        entered.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(entered.into_inner(), 2000);
    }

    /// A conditional write went through all locks to find its only one.
    #[test]
    fn a_key_that_is_named_twice_is_one_lock() {
        let locks = KeyLocks::default();
        assert!(matches!(locks.lock([7, 7, 7 + LOCKS as u64].into_iter()), Locked::One { .. }));
        assert!(matches!(locks.lock([7, 7, 8].into_iter()), Locked::Several { .. }));
        assert!(matches!(locks.lock(std::iter::empty()), Locked::One { .. }));
    }

    #[test]
    fn a_store_without_conditional_writes_has_no_locks() {
        let locks = KeyLocks::default();
        assert!(locks.locks.get().is_none());
        drop(locks.lock([7].into_iter()));
        assert!(locks.locks.get().is_some_and(|locks| locks.len() == LOCKS));
    }
}
