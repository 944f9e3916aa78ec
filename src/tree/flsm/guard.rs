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

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::parameters::Parameters;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::live::Dead;
use crate::tree::range::{
    Derived, Key, RangeSize, TablePart, position_before, table_is_inside, table_overlaps,
    table_part, table_size,
};
use crate::tree::versioned::{Head, TreeNode, walk};

/// What guards hold and how far they are behind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Totals {
    pub(super) guards: u64,
    pub(super) fragments: u64,
    /// Bytes of guards that are due for compaction.
    pub(super) pending_bytes: u64,
    /// How far the guard that is furthest behind is: from 1 on it is due.
    pub(super) urgency: f64,
    /// Whether there are neighbours that are better one guard.
    pub(super) joinable: bool,
}

/// A table as a guard sees it.
#[derive(Clone)]
pub(super) struct Fragment {
    pub(super) table: Arc<Table>,
    /// What of it lies in the guard's range.
    pub(super) size: RangeSize,
    /// Entries of the table before that.
    pub(super) first: u64,
    /// Whether it came from a merge of all that there was in its range, on the last level, and holds one
    /// version a key and no tombstone.
    pub(super) fully_merged: bool,
}

/// A guard.
#[derive(Clone)]
pub(in crate::tree) struct Guard {
    pub(super) head: Head,
    pub(super) totals: Derived<Totals>,
    pub(super) depth: Derived<usize>,
    pub(super) dead: Derived<Dead>,
    /// Oldest first.
    pub(super) fragments: Vec<Fragment>,
    pub(super) children: Vec<Arc<Guard>>,
}

impl Fragment {
    /// Which of the table's entries lie in the guard's range.
    pub(super) fn part(&self) -> TablePart {
        TablePart { first: self.first, size: self.size }
    }
}

impl Guard {
    /// A guard of a range, with nothing in it.
    pub(super) fn empty(height: u32, lower: Key, upper: Option<Key>) -> Guard {
        Guard {
            head: Head::new(height, lower, upper),
            totals: Derived::default(),
            depth: Derived::default(),
            dead: Derived::default(),
            fragments: Vec::new(),
            children: Vec::new(),
        }
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
        self.fragments.iter().map(|fragment| fragment.size.bytes).sum()
    }

    /// Adds those of the tables that reach into the range, oldest first, as the youngest.
    pub(super) fn append(&mut self, tables: &[Arc<Table>], fully_merged: bool) -> Result<()> {
        let mut found = fragments_of(tables, fully_merged, self.range())?;
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

/// The parts of `tables` in a range, in their order; those that have none are left out.
pub(super) fn fragments_of(
    tables: &[Arc<Table>],
    fully_merged: bool,
    (lower, upper): (&[u8], Option<&[u8]>),
) -> Result<Vec<Fragment>> {
    let seen = |table: &Table| !planted(Bug::GuardStraddlingMissed) || *table.first_key() >= *lower;
    let inside = tables.iter().filter(|table| table_overlaps(table, lower, upper) && seen(table));
    inside
        .map(|table| {
            let TablePart { first, size } = table_part(table, lower, upper)?;
            Ok(Fragment { table: Arc::clone(table), size, first, fully_merged })
        })
        .collect()
}

impl Deref for Guard {
    type Target = Head;

    #[inline]
    fn deref(&self) -> &Head {
        #[cfg(test)]
        crate::base::visits::note();
        &self.head
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl TreeNode for Guard {
    fn empty_root() -> Guard {
        Guard::empty(0, Arc::from(&[][..]), None)
    }

    fn children(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.children.iter()
    }

    fn children_mut(&mut self) -> impl Iterator<Item = &mut Arc<Guard>> {
        self.children.iter_mut()
    }

    fn forget_derived(&mut self) {
        self.totals = Derived::default();
        self.depth = Derived::default();
        self.dead = Derived::default();
    }

    /// The totals say how many guards are due by the parameters. A copy derives them anew.
    fn for_other_parameters(self: &Arc<Guard>) -> Arc<Guard> {
        let mut guard = Guard::clone(self);
        guard.children.iter_mut().for_each(|child| *child = child.for_other_parameters());
        Arc::new(guard)
    }

    fn each_live_part(&self, f: &mut dyn FnMut(&Arc<Table>, TablePart)) -> Result<()> {
        self.fragments.iter().for_each(|fragment| f(&fragment.table, fragment.part()));
        Ok(())
    }
}

/// Whether the children's parts of the tables are about as large as what a merge would make of
/// them.
pub(super) fn pieces_are_large(
    guard: &Guard,
    tables: &[Arc<Table>],
    parameters: &Parameters,
) -> Result<bool> {
    let (mut bytes, mut pieces) = (0, 0);
    for table in tables {
        bytes += table_size(table, &guard.lower, guard.upper.as_deref())?.bytes;
        let overlaps =
            |child: &&Arc<Guard>| table_overlaps(table, &child.lower, child.upper.as_deref());
        pieces += guard.children.iter().filter(overlaps).count() as u64;
    }
    let each = bytes / pieces.max(1);
    // A table that lies in one child as a whole goes there, however small it is.
    Ok(each >= parameters.pass_bytes_min || pieces <= tables.len() as u64)
}

/// Whether two neighbours are better one guard. None of their tables may reach from one into the other:
/// what such a table holds beyond a guard may have been moved on there.
pub(super) fn is_joinable(a: &Guard, b: &Guard, parameters: &Parameters) -> bool {
    let small = match a.height {
        0 => {
            a.bytes() + b.bytes() <= parameters.guard_bytes / 2
                && (a.fragments.is_empty()
                    || b.fragments.is_empty()
                    || a.depth().max(b.depth()) <= 1)
        }
        _ => {
            let few = a.children.len().min(b.children.len()) <= parameters.fanout_max / 8;
            few && a.children.len() + b.children.len() <= parameters.fanout_max / 2
        }
    };
    let own = |guard: &Guard| {
        let (lower, upper) = guard.range();
        let inside = |f: &Fragment| table_is_inside(&f.table, lower, upper);
        guard.fragments.iter().all(inside)
    };
    small && own(a) && own(b)
}

/// Every table that is reachable, once, by number.
pub(super) fn tables(root: &Arc<Guard>) -> Vec<&Arc<Table>> {
    let mut all = BTreeMap::new();
    walk(root, &mut |guard| {
        all.extend(guard.fragments.iter().map(|fragment| (fragment.table.id(), &fragment.table)));
    });
    all.into_values().collect()
}
