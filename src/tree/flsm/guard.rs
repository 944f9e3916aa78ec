//! Guards and the fragments in them: immutable once shared, changed by copying.
//!
//! The levels of the tree are the heights of one tree of guards, so guards are nested by construction: a
//! guard's children divide its range on the level below, and the first child begins where it begins.
//!
//! Invariants:
//! 1. Children are sorted by `lower`; the first child's `lower` is the guard's, and each range ends where
//!    the next begins, the last at the guard's `upper`. Guards of the last level (height 0) have none,
//!    all others at least one.
//! 2. A guard's fragments stand oldest first: where two hold versions of one key, those of the later are
//!    younger. A table may be a fragment of several guards; each sees what lies in its own range alone.
//! 3. What a guard holds of a key is younger than what any guard below it holds of the key.
//! 4. Order is age, key by key. Of two tables with keys in common either may have the lower sequence numbers
//!    elsewhere: a merge in place takes a small old fragment along with young ones, and the output is then
//!    younger than its older neighbours wherever both have a key, and older where it alone has one. So
//!    nothing follows from a table's least and greatest number, nor from file numbers.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::AtomicU64;
use crate::table::Table;
use crate::tree::derived::Derived;
use crate::tree::extent::position_before;
pub(super) use crate::tree::extent::{
    EXTENT_LIMIT, Extent, Key, Stretch, ranges_meet, table_extent, table_is_inside, table_meets,
    table_stretch,
};

/// Numbers guards within a keyspace; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GuardId(pub(super) u64);

/// The number of a guard that a change has made and not yet committed.
pub(super) const NEW: GuardId = GuardId(0);

/// A table as a guard sees it.
#[derive(Clone)]
pub(super) struct Fragment {
    pub(super) table: Arc<Table>,
    /// What of it lies in the guard's range.
    pub(super) extent: Extent,
    /// Entries of the table before that.
    pub(super) first: u64,
    /// Whether it came from a merge of all that there was in its range, on the last level, and holds one
    /// version a key and no tombstone.
    pub(super) settled: bool,
}

/// A guard.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) totals: Derived<super::totals::Totals>,
    pub(super) depth: Derived<usize>,
    pub(super) dead: Derived<crate::tree::live::Dead>,
    /// Tables that iterators had to open here beyond the one that would do, since the guard was last
    /// compacted for that. Shared by the guard's copies.
    pub(super) seeks: Arc<AtomicU64>,
    /// `NEW` while a change is being made; a number once the manifest names it.
    pub(super) id: GuardId,
    /// 0 on the last level.
    pub(super) height: u32,
    pub(super) lower: Key,
    pub(super) upper: Option<Key>,
    /// Oldest first.
    pub(super) fragments: Vec<Fragment>,
    pub(super) children: Vec<Arc<Guard>>,
}

impl Fragment {
    /// Which of the table's entries lie in the guard's range.
    pub(super) fn stretch(&self) -> Stretch {
        Stretch { first: self.first, extent: self.extent }
    }
}

impl Guard {
    /// A guard of a range, with nothing in it.
    pub(super) fn empty(height: u32, lower: Key, upper: Option<Key>) -> Guard {
        Guard {
            totals: Derived::default(),
            depth: Derived::default(),
            dead: Derived::default(),
            seeks: Arc::default(),
            id: NEW,
            height,
            lower,
            upper,
            fragments: Vec::new(),
            children: Vec::new(),
        }
    }

    /// The tree of an empty keyspace: one guard for all keys.
    pub(super) fn empty_root() -> Guard {
        Guard::empty(0, Arc::from(&[][..]), None)
    }

    /// The guard's range.
    pub(super) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.lower, self.upper.as_deref())
    }

    /// The position of the child whose range holds `key`, which the guard's range holds.
    #[inline]
    pub(super) fn child_of(&self, key: &[u8]) -> usize {
        let is_below = |child: &Arc<Guard>| match planted(Bug::GuardBoundOffByOne) {
            true => *child.lower < *key,
            false => *child.lower <= *key,
        };
        self.children.partition_point(is_below).saturating_sub(1)
    }

    /// The position of the child that holds the keys just below `key`, or the last for no bound.
    pub(super) fn child_before(&self, key: Option<&[u8]>) -> usize {
        position_before(&self.children, |child| &child.lower, key)
    }

    /// Bytes of the guard's own fragments.
    pub(super) fn bytes(&self) -> u64 {
        self.fragments.iter().map(|fragment| fragment.extent.bytes).sum()
    }

    /// Adds those of the tables that reach into the range, oldest first, as the youngest.
    pub(super) fn append(&mut self, tables: &[Arc<Table>], settled: bool) -> Result<()> {
        let mut found = fragments_of(tables, settled, self.range())?;
        if planted(Bug::GuardAppendsAsOldest) {
            std::mem::swap(&mut self.fragments, &mut found);
        }
        self.fragments.extend(found);
        if planted(Bug::GuardOrderByNumber) {
            self.fragments.sort_by_key(|fragment| fragment.table.id());
        }
        Ok(())
    }

    /// The most fragments that a reader of one key has to ask: those of neighbouring keys count once.
    pub(super) fn depth(&self) -> usize {
        *self.depth.get_or(|| {
            let all: Vec<(&[u8], &[u8])> = (self.fragments.iter())
                .map(|f| (f.table.first_key().max(&*self.lower), f.table.last_key()))
                .collect();
            let at = |key: &[u8]| all.iter().filter(|(f, l)| *f <= key && key <= *l).count();
            all.iter().map(|(first, _)| at(first)).max().unwrap_or(0)
        })
    }
}

/// The stretches of `tables` in a range, in their order; those that have none are left out.
pub(super) fn fragments_of(
    tables: &[Arc<Table>],
    settled: bool,
    (lower, upper): (&[u8], Option<&[u8]>),
) -> Result<Vec<Fragment>> {
    let seen = |table: &Table| !planted(Bug::GuardStraddlingMissed) || *table.first_key() >= *lower;
    let inside = tables.iter().filter(|table| table_meets(table, lower, upper) && seen(table));
    inside
        .map(|table| {
            let Stretch { first, extent } = table_stretch(table, lower, upper)?;
            Ok(Fragment { table: Arc::clone(table), extent, first, settled })
        })
        .collect()
}

/// Makes a guard changeable: copies it if an older version still shares it, and marks it new.
pub(super) fn edit(guard: &mut Arc<Guard>) -> &mut Guard {
    let guard = Arc::make_mut(guard);
    guard.id = NEW;
    guard.totals = Derived::default();
    guard.depth = Derived::default();
    guard.dead = Derived::default();
    guard
}

/// Calls `f` for every guard, parents before children, left to right.
pub(super) fn walk<'a>(root: &'a Arc<Guard>, f: &mut dyn FnMut(&'a Arc<Guard>)) {
    f(root);
    for child in &root.children {
        walk(child, f);
    }
}
