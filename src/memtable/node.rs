//! The nodes of the index: their layout, their version lock, and the search in a node.
//!
//! A node's slots are sorted 64-bit words `head << 32 | entry id`. A head is four key bytes, taken
//! at the node's prefix length, big-endian and zero-padded: where the heads differ they order the
//! keys, so most comparisons touch no entry. A leaf's slots are its entries; an inner node's are
//! separators, each the first entry of the child to its right.
//!
//! Invariants:
//! 1. A node is changed only while its [`VersionLock`] is held.
//! 2. Writers store with `Relaxed` after the release fence in `try_lock`, except what leads to
//!    memory a reader may not have seen (`meta`, children, siblings), which they store with
//!    `Release`.
//! 3. `meta` is stored after the slots it counts, and a slot that was ever counted holds a valid
//!    entry id permanently: so an inconsistent read may be wrong but never leads to invalid memory.
//! 4. `low` (inclusive) and `high` (exclusive) bound every key routed here; a missing bound is at
//!    an edge of the tree. All keys in a node share its first `prefix` bytes. With both bounds
//!    present, every key routed here shares them too; an `edge` node's prefix must be compared.

use std::cmp::Ordering as Order;
use std::hint::select_unpredictable;
use std::ptr;

use super::arena::{Arena, EntryId, NO_ENTRY};
use crate::base::ids::Seqno;
use crate::base::prefetch::prefetch_lines;
use crate::base::sync::plain::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::base::version_lock::{VersionGuard, VersionLock};

/// Small under Miri and in scenarios, so that few entries make a deep tree.
pub(super) const LEAF_SLOTS: usize = if cfg!(any(miri, shuttle)) { 6 } else { 59 };
pub(super) const INNER_SLOTS: usize = if cfg!(any(miri, shuttle)) { 4 } else { 61 };

/// A search target: the position before the entry with this key and trailer. Trailers order
/// descending.
#[derive(Clone, Copy)]
pub(super) struct Target<'k> {
    pub(super) key: &'k [u8],
    pub(super) trailer: u64,
}

impl<'k> Target<'k> {
    /// The position before all versions of the key.
    pub(super) fn newest(key: &'k [u8]) -> Target<'k> {
        Target { key, trailer: u64::MAX }
    }

    /// The position before the newest version of the key that the snapshot sees. No entry has this
    /// trailer.
    pub(super) fn visible(key: &'k [u8], snapshot: Seqno) -> Target<'k> {
        Target { key, trailer: snapshot.min(Seqno::MAX).0 << 8 | 0xff }
    }
}

/// The common part of leaves and inner nodes.
#[repr(C)]
pub(super) struct Header {
    version: VersionLock,
    meta: AtomicU64,
    pub(super) low: AtomicU32,
    pub(super) high: AtomicU32,
}

#[repr(C)]
pub(super) struct Leaf {
    pub(super) header: Header,
    /// The leaf to the right.
    pub(super) next: AtomicPtr<Leaf>,
    /// A leaf to the left from which `next` leads here.
    pub(super) prev: AtomicPtr<Leaf>,
    pub(super) slots: [AtomicU64; LEAF_SLOTS],
}

#[repr(C)]
pub(super) struct Inner {
    pub(super) header: Header,
    pub(super) slots: [AtomicU64; INNER_SLOTS],
    pub(super) children: [AtomicPtr<Header>; INNER_SLOTS + 1],
}

/// A reference to a node of either type, with its type.
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    Leaf(&'a Leaf),
    Inner(&'a Inner),
}

/// The fields of a node that change together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) count: usize,
    /// The number of prefix bytes that the heads skip, shared by all keys in the node.
    pub(super) prefix: usize,
    /// The position after the last insert, and the number of inserts in a row there (saturating):
    /// detects ascending runs.
    pub(super) run_end: u8,
    pub(super) run: u8,
    pub(super) leaf: bool,
    pub(super) edge: bool,
}

impl Meta {
    #[inline]
    fn unpack(word: u64) -> Meta {
        Meta {
            count: (word & 0xff) as usize,
            run_end: (word >> 8) as u8,
            run: (word >> 16) as u8,
            leaf: word >> 24 & 1 != 0,
            edge: word >> 25 & 1 != 0,
            prefix: (word >> 32) as usize,
        }
    }

    fn pack(self) -> u64 {
        self.count as u64
            | u64::from(self.run_end) << 8
            | u64::from(self.run) << 16
            | u64::from(self.leaf) << 24
            | u64::from(self.edge) << 25
            | (self.prefix as u64) << 32
    }
}

impl Header {
    fn new(meta: Meta, low: EntryId, high: EntryId) -> Header {
        Header {
            version: VersionLock::new(),
            meta: AtomicU64::new(meta.pack()),
            low: AtomicU32::new(low),
            high: AtomicU32::new(high),
        }
    }

    #[inline]
    pub(super) fn meta(&self) -> Meta {
        Meta::unpack(self.meta.load(Ordering::Acquire))
    }

    pub(super) fn set_meta(&self, meta: Meta) {
        self.meta.store(meta.pack(), Ordering::Release);
    }

    /// Waits until no writer holds the node and returns its version.
    #[inline]
    pub(super) fn read_version(&self) -> u64 {
        self.version.read()
    }

    /// Returns true if nothing has changed since `version` was read.
    #[inline]
    pub(super) fn is_still(&self, version: u64) -> bool {
        self.version.is_still(version)
    }

    /// Locks the node if nothing has changed since `version` was read.
    #[inline]
    pub(super) fn try_lock(&self, version: u64) -> Option<VersionGuard<'_>> {
        self.version.try_lock(version)
    }
}

/// Prefetches the part of a node that a search reads. Otherwise its cache lines would miss one
/// after the other.
#[inline]
pub(super) fn prefetch_node(node: *const Header) {
    prefetch_lines(node.cast(), size_of::<Leaf>());
}

/// Views a node as its actual type.
///
/// # Safety
/// `node` came from `Leaf::allocate` or `Inner::allocate` of an arena that outlives `'a`, through a
/// release-acquire edge.
#[inline]
pub(super) unsafe fn node<'a>(node: *const Header) -> (&'a Header, Node<'a>) {
    // SAFETY: the caller's promise. Every node starts with a `Header`, which tells its type and
    // never changes that. All fields are atomics, so they can be shared.
    unsafe {
        let header = &*node;
        if header.meta().leaf {
            (header, Node::Leaf(&*node.cast::<Leaf>()))
        } else {
            (header, Node::Inner(&*node.cast::<Inner>()))
        }
    }
}

impl Leaf {
    /// Allocates an empty leaf between `low` and `high`.
    pub(super) fn allocate(arena: &Arena, low: EntryId, high: EntryId) -> *mut Leaf {
        let edge = low == NO_ENTRY || high == NO_ENTRY;
        let meta = Meta { count: 0, prefix: 0, run_end: 0, run: 0, leaf: true, edge };
        let leaf = arena.allocate_node(size_of::<Leaf>()).cast::<Leaf>();
        // SAFETY: new, initialised memory of the right size and alignment that nothing else refers
        // to. Slots may have any bytes.
        unsafe {
            (&raw mut (*leaf).header).write(Header::new(meta, low, high));
            (&raw mut (*leaf).next).write(AtomicPtr::new(ptr::null_mut()));
            (&raw mut (*leaf).prev).write(AtomicPtr::new(ptr::null_mut()));
        }
        leaf
    }
}

impl Inner {
    /// Allocates a node between `low` and `high` without separators and with one child.
    pub(super) fn allocate(
        arena: &Arena,
        low: EntryId,
        high: EntryId,
        child: *mut Header,
    ) -> *mut Inner {
        let edge = low == NO_ENTRY || high == NO_ENTRY;
        let meta = Meta { count: 0, prefix: 0, run_end: 0, run: 0, leaf: false, edge };
        let inner = arena.allocate_node(size_of::<Inner>()).cast::<Inner>();
        // SAFETY: as in `Leaf::allocate`. Only the children of counted slots are read.
        unsafe {
            (&raw mut (*inner).header).write(Header::new(meta, low, high));
            (&raw mut (*inner).children[0]).write(AtomicPtr::new(child));
        }
        inner
    }
}

/// The entry id in a slot.
#[inline]
pub(super) fn slot_id(slot: u64) -> EntryId {
    slot as EntryId
}

#[inline]
pub(super) fn slot(head: u32, id: EntryId) -> u64 {
    u64::from(head) << 32 | u64::from(id)
}

/// Four key bytes at `prefix`. Heads of keys with a common prefix order like the keys, or are
/// equal.
#[inline]
pub(super) fn head(key: &[u8], prefix: usize) -> u32 {
    match key.get(prefix..) {
        Some(&[a, b, c, d, ..]) => u32::from_be_bytes([a, b, c, d]),
        Some(rest) => {
            let mut bytes = [0; 4];
            bytes[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(bytes)
        }
        // Reached only by a reader that will find its node changed.
        None => 0,
    }
}

/// The number of leading bytes that two keys share.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 32;
    let steps = a.chunks_exact(STEP).zip(b.chunks_exact(STEP));
    let start = STEP * steps.take_while(|(a, b)| a == b).count();
    start + a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count()
}

/// Compares the entry with the target. The first `skip` bytes of the keys are known to be equal.
#[inline]
fn compare(arena: &Arena, id: EntryId, target: Target<'_>, skip: usize) -> Order {
    let (key, trailer) = arena.key(id);
    let (ours, theirs) = match (key.get(skip..), target.key.get(skip..)) {
        (Some(ours), Some(theirs)) => (ours, theirs),
        _ => (key, target.key),
    };
    ours.cmp(theirs).then(target.trailer.cmp(&trailer))
}

/// The number of slots in the node before the target.
#[inline]
pub(super) fn lower_bound(
    arena: &Arena,
    slots: &[AtomicU64],
    meta: Meta,
    target: Target<'_>,
) -> usize {
    let slots = &slots[..meta.count.min(slots.len())];
    if slots.is_empty() {
        return 0;
    }
    if meta.edge && meta.prefix > 0 {
        let (key, _) = arena.key(slot_id(slots[0].load(Ordering::Acquire)));
        let prefix = key.get(..meta.prefix).unwrap_or(key);
        let start = target.key.get(..meta.prefix).unwrap_or(target.key);
        match start.cmp(prefix) {
            Order::Less => return 0,
            Order::Greater => return slots.len(),
            Order::Equal => {}
        }
    }
    let head = head(target.key, meta.prefix);
    let first = heads_before(slots, slot(head, 0));
    let has_head = |at: usize| {
        slots.get(at).is_some_and(|slot| slot.load(Ordering::Relaxed) >> 32 == u64::from(head))
    };
    if !has_head(first) {
        return first;
    }
    // Slots with the target's head, usually one, are decided by their entries.
    arena.prefetch(slot_id(slots[first].load(Ordering::Acquire)));
    let (mut from, mut to) = (first, first + 1);
    if has_head(to) {
        to = match head.checked_add(1) {
            Some(above) => heads_before(slots, slot(above, 0)),
            None => slots.len(),
        };
    }
    while from < to {
        let middle = from.midpoint(to);
        let id = slot_id(slots[middle].load(Ordering::Acquire));
        if compare(arena, id, target, meta.prefix).is_lt() {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

/// The number of slots below `bound`, without data-dependent branches.
#[inline]
fn heads_before(slots: &[AtomicU64], bound: u64) -> usize {
    let mut from = 0;
    let mut len = slots.len();
    while len > 1 {
        let half = len / 2;
        let below = slots[from + half - 1].load(Ordering::Relaxed) < bound;
        from = select_unpredictable(below, from + half, from);
        len -= half;
    }
    from + usize::from(slots[from].load(Ordering::Relaxed) < bound)
}
