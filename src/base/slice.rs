//! [`Slice`], an immutable byte string that is cheap to clone. Short ones need no heap memory.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

use super::pages::{PageVec, size_class};

const INLINE_BYTES_MAX: usize = 22;
/// A key and a value of at most this many bytes together share one allocation.
const PAIR_BYTES_MAX: usize = 1024;
/// Longer slices are allocated outside the heap. Values of megabytes that several threads read and
/// drop fragmented the heap of each thread: the process used twice its memory budget.
pub(crate) const HEAP_BYTES_MAX: usize = 64 << 10;

/// An immutable byte string: a key or a value returned by the store.
///
/// Up to 22 bytes are stored inline. Longer strings are reference-counted, so a clone never copies
/// bytes. A key and a value yielded by an iterator may share one allocation of up to 1 KiB, which
/// is freed when both are dropped. A value of 4 KiB or more that was cached is not copied: the slice
/// keeps the memory that it was read into, also when the cache has evicted it, or the store has been
/// closed. That is its length, rounded up to 4 KiB.
///
/// ```
/// let s = spinney::Slice::from(b"hello".as_slice());
/// assert_eq!(&*s, b"hello");
/// assert_eq!(s, s.clone());
/// ```
#[derive(Clone)]
pub struct Slice(Repr);

#[derive(Clone)]
enum Repr {
    Inline {
        len: u8,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    Shared(Arc<[u8]>),
    Large(Arc<PageVec<u8>>),
    /// The first `n` bytes.
    Front(u32, Arc<[u8]>),
    /// The bytes after the first `n`.
    Back(u32, Arc<[u8]>),
    Kept(Arc<Kept<dyn Keeps>>),
}

/// Who keeps bytes as long as it exists: those of a value in the cache.
pub(crate) trait Keeps: Send + Sync + UnwindSafe + RefUnwindSafe {}

struct Kept<K: ?Sized> {
    bytes: NonNull<[u8]>,
    _keeper: K,
}

// SAFETY: shared and immutable bytes, which `Slice::kept` is told that the keeper keeps.
unsafe impl<K: ?Sized + Send> Send for Kept<K> {}
// SAFETY: as above.
unsafe impl<K: ?Sized + Sync> Sync for Kept<K> {}

impl Slice {
    /// The bytes that `keeper` keeps.
    ///
    /// # Safety
    /// Nobody writes the bytes, or takes their memory away, before `keeper` is dropped.
    pub(crate) unsafe fn kept(bytes: &[u8], keeper: impl Keeps + 'static) -> Slice {
        Slice(Repr::Kept(Arc::new(Kept { bytes: NonNull::from(bytes), _keeper: keeper })))
    }

    /// Copies the bytes into a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.deref().to_vec()
    }

    /// Creates the slices of a key and a value, with one allocation if both are long but not very
    /// long.
    #[inline]
    pub(crate) fn pair(key: &[u8], value: &[u8]) -> (Slice, Slice) {
        let bytes = key.len() + value.len();
        if key.len().min(value.len()) <= INLINE_BYTES_MAX || bytes > PAIR_BYTES_MAX {
            return (Slice::from(key), Slice::from(value));
        }
        let shared = Arc::<[u8]>::new_uninit_slice(bytes);
        // SAFETY: the new `Arc` has no other reference. (`Arc::get_mut` makes sure of that with an atomic exchange, which a
        // scan would have at each pair.)
        let room = unsafe { &mut *Arc::as_ptr(&shared).cast_mut() };
        let (front, back) = room.split_at_mut(key.len());
        front.write_copy_of_slice(key);
        back.write_copy_of_slice(value);
        // SAFETY: the new `Arc` has no other reference, and all its bytes have been written.
        let shared = unsafe { shared.assume_init() };
        let split = key.len() as u32;
        (Slice(Repr::Front(split, Arc::clone(&shared))), Slice(Repr::Back(split, shared)))
    }
}

/// Memory that a slice of `len` bytes has allocated, unless it shares an allocation with another one.
pub(crate) fn heap_bytes_of(len: usize) -> usize {
    let counts = 2 * size_of::<usize>();
    if len <= INLINE_BYTES_MAX {
        0
    } else if len <= HEAP_BYTES_MAX {
        len + counts
    } else {
        size_class(len) + size_of::<PageVec<u8>>() + counts
    }
}

impl From<&[u8]> for Slice {
    fn from(from: &[u8]) -> Slice {
        if from.len() <= INLINE_BYTES_MAX {
            let mut bytes = [0; INLINE_BYTES_MAX];
            bytes[..from.len()].copy_from_slice(from);
            Slice(Repr::Inline { len: from.len() as u8, bytes })
        } else if from.len() <= HEAP_BYTES_MAX {
            Slice(Repr::Shared(Arc::from(from)))
        } else {
            let mut bytes = PageVec::unzeroed(from.len());
            bytes.copy_from_slice(from);
            Slice::from(bytes)
        }
    }
}

impl From<PageVec<u8>> for Slice {
    fn from(from: PageVec<u8>) -> Slice {
        match from.len() {
            ..=HEAP_BYTES_MAX => Slice::from(&*from),
            _ => Slice(Repr::Large(Arc::new(from))),
        }
    }
}

impl<const N: usize> From<&[u8; N]> for Slice {
    fn from(from: &[u8; N]) -> Slice {
        Slice::from(from.as_slice())
    }
}

impl From<Vec<u8>> for Slice {
    fn from(from: Vec<u8>) -> Slice {
        Slice::from(from.as_slice())
    }
}

impl From<Arc<[u8]>> for Slice {
    fn from(from: Arc<[u8]>) -> Slice {
        Slice(Repr::Shared(from))
    }
}

impl From<&str> for Slice {
    fn from(from: &str) -> Slice {
        Slice::from(from.as_bytes())
    }
}

impl Default for Slice {
    fn default() -> Slice {
        Slice::from(&[])
    }
}

impl Deref for Slice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared(bytes) => bytes,
            Repr::Large(bytes) => bytes,
            Repr::Front(split, bytes) => &bytes[..*split as usize],
            Repr::Back(split, bytes) => &bytes[*split as usize..],
            // SAFETY: the keeper exists, so the bytes do (`Slice::kept`).
            Repr::Kept(kept) => unsafe { kept.bytes.as_ref() },
        }
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Slice {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl PartialEq for Slice {
    fn eq(&self, other: &Slice) -> bool {
        **self == **other
    }
}

impl Eq for Slice {}

impl PartialEq<[u8]> for Slice {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for Slice {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Slice {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

impl PartialOrd for Slice {
    fn partial_cmp(&self, other: &Slice) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slice {
    fn cmp(&self, other: &Slice) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl std::hash::Hash for Slice {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_its_key_and_its_value_whatever_their_lengths() {
        for key_bytes in [0, 1, 22, 23, 24, 100, 1000, 2000] {
            for value_bytes in [0, 1, 22, 23, 100, 924, 1000, 1001, 5000, 65_536, 65_537] {
                let key: Vec<u8> = (0..key_bytes).map(|i| i as u8).collect();
                let value: Vec<u8> = (0..value_bytes).map(|i| !(i as u8)).collect();
                let (key_slice, value_slice) = Slice::pair(&key, &value);
                assert_eq!(key_slice, key[..]);
                // Each slice outlives the other.
                let copy = value_slice.clone();
                drop((key_slice, value_slice));
                assert_eq!(copy, value[..]);
            }
        }
        assert_eq!(size_of::<Slice>(), 24);
    }
}
