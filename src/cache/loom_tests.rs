//! Models of the cache's index and of reclaiming: every order in which readers and the one who
//! evicts may meet. Pins are counted here; in the store `crossbeam_epoch` keeps them, which has
//! models of its own.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use super::frames::PageHome;
use super::grace::Over;
use super::index::{Index, Inserted, Locator, PackedKey};
use super::page_cache::{PageClass, PageKey};
use crate::base::ids::FileId;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

fn key(unit: u32) -> PackedKey {
    PackedKey::new(PageKey { file: FileId(1), unit }).unwrap()
}

fn locator(slot: u32) -> Locator {
    Locator::new(slot, PageHome::Frame(1), PageClass::Leaf, false)
}

/// An index of one bucket, frames, and who looks at them.
struct Cache {
    index: Index,
    frames: [UnsafeCell<u32>; 3],
    pinned: AtomicUsize,
    retired: AtomicBool,
    over: Over,
}

impl Cache {
    fn new() -> Arc<Cache> {
        Arc::new(Cache {
            index: Index::new(1),
            frames: std::array::from_fn(|_| UnsafeCell::new(0)),
            pinned: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            over: Over::new(),
        })
    }

    /// Puts page `unit` into a slot that is the caller's.
    fn publish(&self, unit: u32, slot: u32) {
        // SAFETY: no reader can find the slot; loom fails the model if one still looks at it.
        self.frames[slot as usize].with_mut(|frame| unsafe { *frame = unit });
        assert!(matches!(self.index.insert(key(unit), locator(slot)), Inserted::At(_)));
    }

    /// Looks for a page and at its bytes, pinned.
    fn read(&self, unit: u32) {
        self.pinned.fetch_add(1, Ordering::AcqRel);
        if let Some((entry, found)) = self.index.find(key(unit)) {
            entry.mark_used(found);
            // SAFETY: the slot was found while pinned.
            let bytes = self.frames[found.slot() as usize].with(|frame| unsafe { *frame });
            assert_eq!(bytes, unit, "the bytes of another page");
        }
        let last = self.pinned.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && self.retired.load(Ordering::Acquire) {
            self.over.set();
        }
    }

    /// Takes a page out and begins its grace period.
    fn retire(&self, unit: u32) {
        let position = self.index.position(key(unit)).unwrap();
        self.index.remove(position);
        self.retired.store(true, Ordering::Release);
        if self.pinned.fetch_add(0, Ordering::AcqRel) == 0 {
            self.over.set();
        }
    }
}

/// A reader sees the bytes of the page it asked for, whole, while its slot is evicted and used
/// again.
#[test]
fn a_reader_sees_its_page_or_none() {
    model(|| {
        let cache = Cache::new();
        cache.publish(1, 0);
        let evictor = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                cache.retire(1);
                if cache.over.get() {
                    cache.publish(2, 0);
                }
            })
        };
        cache.read(1);
        cache.read(2);
        evictor.join().unwrap();
    });
}

/// An entry that goes to another page and back never leads to the other page's slot: there, each
/// page has a slot of its own, since those that were seen are not free yet.
#[test]
fn an_entry_that_comes_back_leads_to_its_own_slots() {
    model(|| {
        let index = Arc::new(Index::new(1));
        index.insert(key(1), locator(0));
        let evictor = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                for (out, into, slot) in [(1, 2, 1), (2, 1, 2)] {
                    let position = index.position(key(out)).unwrap();
                    index.remove(position);
                    index.insert(key(into), locator(slot));
                }
            })
        };
        if let Some((_, found)) = index.find(key(1)) {
            assert_ne!(found.slot(), 1, "the slot of another page");
        }
        evictor.join().unwrap();
    });
}

/// Marks that readers leave and the clock takes away bring back no page that is gone.
#[test]
fn a_mark_brings_nothing_back() {
    model(|| {
        let index = Arc::new(Index::new(1));
        index.insert(key(1), locator(0));
        let reader = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                if let Some((entry, found)) = index.find(key(1)) {
                    entry.mark_used(found);
                }
            })
        };
        let position = index.position(key(1)).unwrap();
        if index.locator(position).uses() > 0 {
            index.age(position);
        }
        index.remove(position);
        reader.join().unwrap();
        assert!(index.find(key(1)).is_none());
    });
}
