//! Models of what the memtable's threads do without a lock: every order in which they may meet.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::span::Span;
use crate::base::version_lock::VersionLock;

/// As many preemptions as are tried; more find nothing more in models of this size, and take long.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

/// Writes two words under the lock, unless somebody else was faster.
fn write_pair(lock: &VersionLock, pair: &[AtomicU64; 2], value: u64) -> bool {
    let version = lock.read();
    let Some(_guard) = lock.try_lock(version) else { return false };
    pair[0].store(value, Ordering::Relaxed);
    pair[1].store(value, Ordering::Relaxed);
    true
}

/// What was read between two equal versions belongs together.
#[test]
fn a_validated_read_is_of_one_moment() {
    model(|| {
        let shared: Arc<(VersionLock, [AtomicU64; 2])> =
            Arc::new((VersionLock::new(), Default::default()));
        let writers: Vec<_> = (1..=2)
            .map(|value| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || write_pair(&shared.0, &shared.1, value))
            })
            .collect();
        let (lock, pair) = &*shared;
        let version = lock.read();
        let seen = [pair[0].load(Ordering::Relaxed), pair[1].load(Ordering::Relaxed)];
        if lock.is_still(version) {
            assert_eq!(seen[0], seen[1]);
            assert_eq!(seen[0] == 0, version == 0);
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// Only one at a time holds the lock, and it sees what the one before it did.
#[test]
fn writers_take_turns() {
    model(|| {
        let shared = Arc::new((VersionLock::new(), UnsafeCell::new(0)));
        let add = |shared: &(VersionLock, UnsafeCell<u64>)| {
            let version = shared.0.read();
            let guard = shared.0.try_lock(version);
            if guard.is_some() {
                // SAFETY: the lock is held; loom fails the model if another access may overlap.
                shared.1.with_mut(|count| unsafe { *count += 1 });
            }
            u64::from(guard.is_some())
        };
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || add(&other));
        let ours = add(&shared) + add(&shared);
        let all = ours + thread.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(shared.1.with(|count| unsafe { *count }), all);
        assert!(all >= 1);
    });
}

/// A reader may look at an entry that a slot names before it knows that the node was still: the
/// entry was written before the slot.
#[test]
fn an_entry_is_whole_once_a_slot_names_it() {
    model(|| {
        let shared = Arc::new((VersionLock::new(), UnsafeCell::new(0u64), AtomicU64::new(0)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (lock, entry, slot) = &*shared;
                // SAFETY: no slot names the entry yet; loom fails the model if a reader looks.
                entry.with_mut(|entry| unsafe { *entry = 7 });
                let version = lock.read();
                let _guard = lock.try_lock(version).expect("nobody else locks");
                slot.store(1, Ordering::Relaxed);
            })
        };
        let (_, entry, slot) = &*shared;
        if slot.load(Ordering::Acquire) == 1 {
            // SAFETY: the entry does not change any more.
            assert_eq!(entry.with(|entry| unsafe { *entry }), 7);
        }
        writer.join().unwrap();
    });
}

/// A parent with one separator, and two leaves: where the upper key is depends on whether the left
/// leaf has been split.
#[derive(Default)]
struct Split {
    parent: Lock,
    left: Lock,
    /// Whether the parent leads to the right leaf.
    is_split: AtomicUsize,
    /// Whether the key is in the leaf.
    holds: [AtomicUsize; 2],
}

struct Lock(VersionLock);

impl Default for Lock {
    fn default() -> Lock {
        Lock(VersionLock::new())
    }
}

impl Split {
    fn new() -> Split {
        let split = Split::default();
        split.holds[0].store(1, Ordering::Relaxed);
        split
    }

    fn split(&self) {
        let (parent, left) = (self.parent.0.read(), self.left.0.read());
        let _parent = self.parent.0.try_lock(parent).expect("nobody else locks");
        let _left = self.left.0.try_lock(left).expect("nobody else locks");
        self.holds[1].store(1, Ordering::Relaxed);
        self.holds[0].store(0, Ordering::Relaxed);
        self.is_split.store(1, Ordering::Release);
    }

    /// Whether the key is there; `None` if something changed on the way.
    fn find(&self) -> Option<bool> {
        let parent = self.parent.0.read();
        let at = self.is_split.load(Ordering::Acquire);
        // The right leaf is not changed any more once it can be met.
        let left = (at == 0).then(|| self.left.0.read());
        if !self.parent.0.is_still(parent) {
            return None;
        }
        let found = self.holds[at].load(Ordering::Relaxed) == 1;
        left.is_none_or(|left| self.left.0.is_still(left)).then_some(found)
    }
}

/// Who goes down hand over hand (child's version first, then whether the parent is still the same)
/// misses no key that a split moves.
#[test]
fn a_split_hides_no_key() {
    model(|| {
        let node = Arc::new(Split::new());
        let writer = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.split())
        };
        assert_ne!(node.find(), Some(false));
        writer.join().unwrap();
        assert_eq!(node.find(), Some(true));
    });
}

const UNITS: u64 = 3;
/// Bits of an id that count units in a chunk.
const CHUNK_SHIFT: u32 = 8;

#[derive(Default)]
struct Chunks {
    /// Whether the chunk's address is known.
    known: [AtomicUsize; 6],
    /// The chunks given out so far.
    count: Mutex<usize>,
}

/// Allocates as the arena does.
fn allocate(span: &Span<UNITS>, chunks: &Chunks, units: u64) -> u32 {
    let id = loop {
        if let Some(id) = span.take(units) {
            break id;
        }
        let mut count = chunks.count.lock().unwrap();
        if span.is_spent() {
            *count += 1;
            // Relaxed: whoever has an id has it through the span.
            chunks.known[*count].store(1, Ordering::Relaxed);
            let id = (*count as u32) << CHUNK_SHIFT;
            span.renew(id, UNITS, units);
            break id;
        }
    };
    let known = chunks.known[(id >> CHUNK_SHIFT) as usize].load(Ordering::Relaxed);
    assert_eq!(known, 1, "the chunk of {id} is not known to who was given it");
    id
}

/// No two allocations overlap, and the chunk of each is known to whoever was given it.
#[test]
fn a_span_is_cut_without_overlap() {
    model(|| {
        let shared = Arc::new((Span::<UNITS>::new(), Chunks::default()));
        let threads: Vec<_> = [2, 1]
            .into_iter()
            .map(|units| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || (allocate(&shared.0, &shared.1, units), units as u32))
            })
            .collect();
        let mut taken = vec![(allocate(&shared.0, &shared.1, 1), 1)];
        taken.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{taken:?}");
        }
        for (id, units) in taken {
            assert!((id & ((1 << CHUNK_SHIFT) - 1)) + units <= UNITS as u32);
        }
    });
}
