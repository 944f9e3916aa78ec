//! *Watches*: the keys and ranges of keys that a commit depends on, while it is being decided.
//!
//! A commit that depends on few keys locks them (`condition`). One that depends on ranges, or on many keys, publishes them
//! as a watch of their keyspace. It then looks at what has been written up to that moment, without a lock. Commits that
//! come later compare their keys with the watches that are published. So with the keyspace locked, the commit has only to
//! ask whether its watch was *hit*.
//!
//! Invariants:
//! 1. A commit to a guarded keyspace shares its lock ([`Watches::share`]) until it is visible, and tells the watches of its
//!    keys before it gets its number.
//! 2. When [`Watches::publish`] returns, every such commit that has not seen the watch is visible.
//! 3. Whoever has a keyspace for itself ([`Watches::exclude`]) finds every commit to it either visible or not begun.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A range of keys, `None` without an end.
pub(crate) type Range = (Vec<u8>, Option<Vec<u8>>);

/// Keys and ranges of one keyspace.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) points: BTreeSet<Vec<u8>>,
    /// Ascending and apart.
    pub(crate) ranges: Vec<Range>,
    /// A key of it that somebody writes to.
    hit: OnceLock<Vec<u8>>,
}

impl Watch {
    pub(crate) fn new(points: BTreeSet<Vec<u8>>, mut ranges: Vec<Range>) -> Watch {
        ranges.retain(|(lower, upper)| upper.as_ref().is_none_or(|upper| lower < upper));
        ranges.sort_unstable();
        let mut apart: Vec<Range> = Vec::with_capacity(ranges.len());
        for (lower, upper) in ranges {
            match apart.last_mut() {
                Some((_, last)) if last.as_ref().is_none_or(|last| *last >= lower) => {
                    let is_further = last.is_some() && (upper.is_none() || *last < upper);
                    if is_further {
                        *last = upper;
                    }
                }
                _ => apart.push((lower, upper)),
            }
        }
        Watch { points, ranges: apart, hit: OnceLock::new() }
    }

    fn has(&self, key: &[u8]) -> bool {
        let after = self.ranges.partition_point(|(lower, _)| **lower <= *key);
        let is_in_range = after
            .checked_sub(1)
            .is_some_and(|at| self.ranges[at].1.as_ref().is_none_or(|upper| *key < **upper));
        is_in_range || self.points.contains(key)
    }

    /// A key of it, or where a range of it begins, of which a part is in `[lower, upper)`.
    fn key_in<'a>(&'a self, lower: &'a [u8], upper: Option<&[u8]>) -> Option<&'a [u8]> {
        let mut points = self.points.range::<[u8], _>((Bound::Included(lower), Bound::Unbounded));
        let point = points.next().filter(|point| upper.is_none_or(|upper| ***point < *upper));
        let meets = |range: &&Range| {
            range.1.as_ref().is_none_or(|end| **end > *lower)
                && upper.is_none_or(|upper| *range.0 < *upper)
        };
        let of_range = || Some(lower.max(&self.ranges.iter().find(meets)?.0));
        point.map(|point| &**point).or_else(of_range)
    }

    /// A key of it, or the first of a range of it, for which `is_meant` holds.
    pub(crate) fn key_that(
        &self,
        is_meant: impl Fn(&[u8], Option<&[u8]>) -> bool,
    ) -> Option<Vec<u8>> {
        let behind = |key: &[u8]| [key, &[0]].concat();
        let point = self.points.iter().find(|point| is_meant(point, Some(&behind(point))));
        let range = || self.ranges.iter().find(|(lower, upper)| is_meant(lower, upper.as_deref()));
        point.or_else(|| Some(&range()?.0)).cloned()
    }

    /// The key of it that a later commit writes to.
    pub(crate) fn hit(&self) -> Option<&[u8]> {
        self.hit.get().map(|key| &**key)
    }
}

/// The watches of a keyspace.
#[derive(Default)]
pub(crate) struct Watches {
    /// How many there are.
    count: AtomicU64,
    published: Mutex<Vec<Arc<Watch>>>,
    keyspace: RwLock<()>,
}

/// A watch that is published until this is dropped.
pub(crate) struct Published<'a> {
    watches: &'a Watches,
    pub(crate) watch: Arc<Watch>,
}

impl Watches {
    /// Locks the keyspace for a commit that writes to some keys.
    #[inline]
    pub(super) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.keyspace.read()
    }

    /// Locks the keyspace for a commit that depends on a watch.
    pub(super) fn exclude(&self) -> RwLockWriteGuard<'_, ()> {
        self.keyspace.write()
    }

    /// Publishes a watch. The keyspace is guarded.
    pub(crate) fn publish(&self, watch: Watch) -> Published<'_> {
        let watch = Arc::new(watch);
        self.published.lock().push(Arc::clone(&watch));
        self.count.fetch_add(1, Ordering::SeqCst);
        if !planted(Bug::WatchWithoutBarrier) {
            drop(self.exclude());
        }
        Published { watches: self, watch }
    }

    /// Tells all watches but `own` that `key` is about to be written to. The keyspace is locked.
    #[inline]
    pub(super) fn tell(&self, key: &[u8], own: Option<&Arc<Watch>>) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.tell_all(key, own);
        }
    }

    /// The same of a range that is about to be deleted.
    #[cold]
    pub(super) fn tell_range(
        &self,
        (lower, upper): (&[u8], Option<&[u8]>),
        own: Option<&Arc<Watch>>,
    ) {
        for watch in self.published.lock().iter() {
            if own.is_none_or(|own| !Arc::ptr_eq(own, watch))
                && let Some(key) = watch.key_in(lower, upper)
            {
                let _ = watch.hit.set(key.to_vec());
            }
        }
    }

    #[cold]
    fn tell_all(&self, key: &[u8], own: Option<&Arc<Watch>>) {
        if planted(Bug::WatchNotTold) {
            return;
        }
        for watch in self.published.lock().iter() {
            if own.is_none_or(|own| !Arc::ptr_eq(own, watch)) && watch.has(key) {
                let _ = watch.hit.set(key.to_vec());
            }
        }
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        self.watches.published.lock().retain(|watch| !Arc::ptr_eq(watch, &self.watch));
        self.watches.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lower: &str, upper: Option<&str>) -> Range {
        (lower.into(), upper.map(Into::into))
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let of = |ranges: &[Range]| Watch::new(BTreeSet::new(), ranges.to_vec()).ranges;
        assert_eq!(of(&[range("c", Some("d")), range("a", Some("b"))]).len(), 2);
        let joined = of(&[range("b", Some("d")), range("a", Some("b")), range("c", Some("c"))]);
        assert_eq!(joined, [range("a", Some("d"))]);
        let joined = of(&[range("b", None), range("a", Some("c")), range("d", Some("e"))]);
        assert_eq!(joined, [range("a", None)]);
        let joined = of(&[range("a", Some("z")), range("b", Some("c")), range("z", Some("zz"))]);
        assert_eq!(joined, [range("a", Some("zz"))]);
        assert!(of(&[range("b", Some("a")), range("a", Some("a"))]).is_empty());
    }

    #[test]
    fn a_watch_is_hit_by_its_keys_alone() {
        let watches = Watches::default();
        watches.tell(b"b", None);
        let points = BTreeSet::from([b"x".to_vec()]);
        let ranges = vec![range("b", Some("d")), range("f", Some("g"))];
        let published = watches.publish(Watch::new(points, ranges));
        for key in ["a", "azz", "d", "e", "g", "w", "x\0"] {
            watches.tell(key.as_bytes(), None);
            assert_eq!(published.watch.hit(), None, "{key}");
        }
        watches.tell(b"c", Some(&published.watch));
        assert_eq!(published.watch.hit(), None, "its own");
        watches.tell(b"x", None);
        watches.tell(b"c", None);
        assert_eq!(published.watch.hit(), Some(&b"x"[..]));
        let of_range = watches.publish(Watch::new(BTreeSet::new(), vec![range("b", None)]));
        watches.tell(b"\xff", None);
        assert_eq!(of_range.watch.hit(), Some(&b"\xff"[..]));
        drop((published, of_range));
        assert_eq!(watches.count.load(Ordering::SeqCst), 0);
        assert!(watches.published.lock().is_empty());
    }
}
