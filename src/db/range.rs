//! [`KeyRange`], a range of keys in the public API.
//!
//! [`RangeBounds`](std::ops::RangeBounds) has a type parameter for the key. With `..` and with a pair of
//! `Bound<&[u8]>` the compiler cannot infer it, so both need a type annotation. [`KeyRange`] has no
//! parameter and needs none.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::base::limits::KEY_BYTES_MAX;
use crate::base::planted::{Bug, planted};

/// A range of keys: `..`, `"a".."b"`, `"a"..="b"`, `"a"..`, `.."b"`, `..="b"`, or a pair of
/// [`Bound`]s. A key is any `AsRef<[u8]>`: `&str`, `&[u8]`, `String`, `Vec<u8>`, an array. A reference to
/// a range is also a range.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// use std::ops::Bound;
/// let db = spinney::Database::builder_in_memory().open()?;
/// let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
/// for key in ["a", "b", "c"] {
///     items.put(key, "")?;
/// }
/// assert_eq!(items.range(..).count(), 3);
/// assert_eq!(items.range("b"..).count(), 2);
/// let after_a: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Excluded(b"a"), Bound::Included(b"b"));
/// assert_eq!(items.range(after_a).count(), 1);
/// # Ok(()) }
/// ```
pub trait KeyRange {
    /// Returns the lower bound, as bytes.
    fn lower(&self) -> Bound<&[u8]>;

    /// Returns the upper bound, as bytes.
    fn upper(&self) -> Bound<&[u8]>;
}

impl KeyRange for RangeFull {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

/// Implements [`KeyRange`] for a range type, given the expressions for its bounds.
macro_rules! key_range {
    ($range:ty, $self:ident => $lower:expr, $upper:expr) => {
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn lower(&$self) -> Bound<&[u8]> {
                $lower
            }

            fn upper(&$self) -> Bound<&[u8]> {
                $upper
            }
        }
    };
}

key_range!(Range<K>, self => Bound::Included(self.start.as_ref()), Bound::Excluded(self.end.as_ref()));
key_range!(RangeInclusive<K>, self => Bound::Included(self.start().as_ref()), Bound::Included(self.end().as_ref()));
key_range!(RangeFrom<K>, self => Bound::Included(self.start.as_ref()), Bound::Unbounded);
key_range!(RangeTo<K>, self => Bound::Unbounded, Bound::Excluded(self.end.as_ref()));
key_range!(RangeToInclusive<K>, self => Bound::Unbounded, Bound::Included(self.end.as_ref()));
key_range!((Bound<K>, Bound<K>), self => end(&self.0), end(&self.1));

fn end<K: AsRef<[u8]>>(bound: &Bound<K>) -> Bound<&[u8]> {
    bound.as_ref().map(AsRef::as_ref)
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn lower(&self) -> Bound<&[u8]> {
        (**self).lower()
    }

    fn upper(&self) -> Bound<&[u8]> {
        (**self).upper()
    }
}

/// The first key of a range and the first key after it; `None` where the range is unbounded.
pub(crate) type Bounds = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The bounds of a range.
pub(crate) fn bounds_of(range: &impl KeyRange) -> Bounds {
    // The first key after `key` is `key` with a zero byte.
    let after = |key: &[u8]| [key, &[0]].concat();
    let lower = match range.lower() {
        Bound::Included(key) => Some(key.to_vec()),
        Bound::Excluded(key) => Some(after(key)),
        Bound::Unbounded => None,
    };
    let upper = match range.upper() {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) if planted(Bug::RangeEndInclusive) => Some(after(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Unbounded => None,
    };
    (lower, upper)
}

/// The range as keys bound it, which have at most 64 KiB. `None` if no key is in it.
pub(crate) fn range_of_keys((lower, upper): Bounds) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    // No key that a longer bound bounds is between its beginning and the next key.
    let as_key = |bound: Vec<u8>| match bound.get(..KEY_BYTES_MAX) {
        Some(beginning) if bound.len() > KEY_BYTES_MAX => bounds_of_prefix(beginning).1,
        _ => Some(bound),
    };
    let lower = as_key(lower.unwrap_or_default())?;
    let upper = upper.and_then(as_key);
    upper.as_ref().is_none_or(|upper| lower < *upper).then_some((lower, upper))
}

/// The bounds of all keys that start with `prefix`.
pub(crate) fn bounds_of_prefix(prefix: &[u8]) -> Bounds {
    let mut upper = prefix.to_vec();
    while let Some(last) = upper.pop() {
        if last < 0xff {
            upper.push(last + 1);
            return (Some(prefix.to_vec()), Some(upper));
        }
    }
    (Some(prefix.to_vec()), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(lower: Option<&[u8]>, upper: Option<&[u8]>) -> Bounds {
        (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec))
    }

    /// `..` and pairs of `Bound<&[u8]>` did not compile (E0283): the key's type could not be inferred.
    #[test]
    fn every_way_to_write_a_range_compiles_without_a_hint_and_has_its_bounds() {
        assert_eq!(bounds_of(&(..)), owned(None, None));
        assert_eq!(bounds_of(&("a".."b")), owned(Some(b"a"), Some(b"b")));
        assert_eq!(bounds_of(&(b"a"..=b"b")), owned(Some(b"a"), Some(b"b\0")));
        assert_eq!(bounds_of(&(vec![1u8]..)), owned(Some(&[1]), None));
        assert_eq!(bounds_of(&(..String::from("b"))), owned(None, Some(b"b")));
        assert_eq!(bounds_of(&(..="b")), owned(None, Some(b"b\0")));
        let slices: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Excluded(b"a"), Bound::Unbounded);
        assert_eq!(bounds_of(&slices), owned(Some(b"a\0"), None));
        assert_eq!(bounds_of(&&slices), owned(Some(b"a\0"), None));
        let slices: (&[u8], &[u8]) = (b"a", b"c");
        assert_eq!(bounds_of(&(slices.0..slices.1)), owned(Some(b"a"), Some(b"c")));
    }

    #[test]
    fn bounds_that_no_key_can_be_are_bounds_of_the_same_keys() {
        let long = |last: u8| [vec![7; KEY_BYTES_MAX - 1], vec![last]].concat();
        let after = |key: &[u8]| [key, &[0]].concat();
        let of =
            |lower: &[u8], upper: Option<Vec<u8>>| range_of_keys((Some(lower.to_vec()), upper));
        assert_eq!(of(b"a", Some(b"b".to_vec())), Some((b"a".to_vec(), Some(b"b".to_vec()))));
        assert_eq!(of(b"a", Some(b"a".to_vec())), None);
        assert_eq!(range_of_keys((None, None)), Some((Vec::new(), None)));
        assert_eq!(of(b"", Some(Vec::new())), None);
        assert_eq!(of(b"", Some(after(&long(1)))), Some((Vec::new(), Some(long(2)))));
        assert_eq!(of(&after(&long(1)), None), Some((long(2), None)));
        assert_eq!(of(&after(&long(1)), Some(long(2))), None);
        let last = vec![0xff; KEY_BYTES_MAX];
        assert_eq!(of(b"", Some(after(&last))), Some((Vec::new(), None)));
        assert_eq!(of(&after(&last), None), None);
    }

    #[test]
    fn the_keys_with_a_prefix_end_before_the_next_prefix() {
        assert_eq!(bounds_of_prefix(b"ab"), owned(Some(b"ab"), Some(b"ac")));
        assert_eq!(bounds_of_prefix(b"a\xff"), owned(Some(b"a\xff"), Some(b"b")));
        assert_eq!(bounds_of_prefix(b"\xff"), owned(Some(b"\xff"), None));
        assert_eq!(bounds_of_prefix(b""), owned(Some(b""), None));
    }
}
