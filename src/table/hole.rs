//! The damaged pages of a table, and the keys that may be lost with them.
//!
//! Invariants:
//! 1. Every entry of a page is between the bounds that are returned for the page. The index above
//!    it determines them.
//! 2. A page counts as damaged if a cursor could fail on it: it cannot be read, is not a page of
//!    its kind, or has a malformed entry.

use super::index::{PLAIN_SEPARATOR, child_pointer};
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::Parsed;
use super::reader::{Table, rest_page};
use crate::base::error::{Error, Result};
use crate::cache::{PageClass, PagePointer, ReadContext};

/// An unreadable part of a table.
#[derive(Debug, Clone)]
pub(crate) struct Hole {
    /// All of its entries are at or after this key.
    pub(crate) lower: Vec<u8>,
    /// All of its entries are before this key.
    pub(crate) upper: Vec<u8>,
    /// What is wrong, and where.
    pub(crate) error: Error,
}

/// Where the search for a hole begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HoleAt<'a> {
    /// From this key forwards.
    From(&'a [u8]),
    /// From before this key (without a key: from the end) backwards.
    Before(Option<&'a [u8]>),
}

/// The leaves that a cursor at a key may need: the leaf of the key, and one on each side.
const LEAVES_MAX: usize = 3;

/// A page with the bounds of its keys.
struct Bounded {
    page: PagePointer,
    lower: Vec<u8>,
    upper: Vec<u8>,
}

impl Table {
    /// The first hole that a cursor at the given place is in or reaches with its next step.
    ///
    /// # Errors
    /// Errors that are neither damage nor failed reads.
    pub(crate) fn hole(&self, at: HoleAt<'_>) -> Result<Option<Hole>> {
        let upper = [self.last_key(), &[0]].concat();
        let root = Bounded { page: self.footer.root, lower: self.first_key().to_vec(), upper };
        if is_passed(&root, at) {
            return Ok(None);
        }
        let mut leaves = LEAVES_MAX;
        self.hole_below(root, self.footer.height, at, &mut leaves)
    }

    fn hole_below(
        &self,
        parent: Bounded,
        level: u8,
        at: HoleAt<'_>,
        leaves: &mut usize,
    ) -> Result<Option<Hole>> {
        let context = ReadContext::blocking();
        if level == 0 {
            return match self.whole_entries(parent.page, &context) {
                Err(error) => hole(parent, error),
                Ok(entries) => {
                    // Leaves that hold only versions of the sought key do not count, nor those that hold no more than
                    // the rest of an entry.
                    let is_of_one_key = match at {
                        HoleAt::From(key) => *parent.lower == *key,
                        HoleAt::Before(Some(key)) => key.strip_suffix(&[0]) == Some(&*parent.lower),
                        HoleAt::Before(None) => false,
                    };
                    *leaves -= usize::from(entries > 0 && !is_of_one_key);
                    Ok(None)
                }
            };
        }
        let children = self.with_index(parent.page, level, &context, |node| {
            let entries = node.shape.entries;
            let mut children = Vec::with_capacity(entries);
            for child in 0..entries {
                let lower = match child {
                    0 => parent.lower.clone(),
                    _ => node.key(child)?,
                };
                let upper = match child + 1 {
                    next if next == entries => parent.upper.clone(),
                    next => {
                        let mut upper = node.key(next)?;
                        if node.meta(next) != PLAIN_SEPARATOR {
                            // Newer versions of the same key are before it.
                            upper.push(0);
                        }
                        upper
                    }
                };
                children.push(Bounded { page: child_pointer(node, child)?, lower, upper });
            }
            Ok(children)
        });
        let mut children = match children {
            Ok(children) => children,
            Err(error) => return hole(parent, error),
        };
        if let HoleAt::Before(_) = at {
            children.reverse();
        }
        for child in children {
            if is_passed(&child, at) {
                continue;
            }
            let found = self.hole_below(child, level - 1, at, leaves)?;
            if found.is_some() || *leaves == 0 {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The number of entries that begin in a leaf, all of which can be read.
    fn whole_entries(&self, page: PagePointer, context: &ReadContext) -> Result<usize> {
        let mut leaf = LeafCursor::new();
        let read = |payload: &[u8]| -> Parsed<Placed> {
            leaf.load(payload)?;
            let mut last = Placed::Whole;
            for entry in leaf.first()..leaf.entries() {
                last = leaf.place(entry)?;
            }
            Ok(last)
        };
        let read = self.file.with_page(page, PageClass::Leaf, context, read)?;
        let last = read.map_err(|damage| self.damaged(page, damage))?;
        let entries = leaf.entries() - leaf.first();
        if last == Placed::Whole {
            return Ok(entries);
        }
        let rest = rest_page(page);
        match self.file.with_page(rest, PageClass::Leaf, context, |next| leaf.join(next)) {
            Ok(joined) => {
                joined.map_err(|damage| self.damaged(page, damage))?;
                Ok(entries)
            }
            // The next leaf is a hole of its own, which begins with the key of the split entry.
            Err(error) if error.is_unreadable() => Ok(entries),
            Err(error) => Err(error),
        }
    }
}

/// Whether a page has nothing at or behind a place.
fn is_passed(page: &Bounded, at: HoleAt<'_>) -> bool {
    match at {
        HoleAt::From(key) => *page.upper <= *key,
        HoleAt::Before(Some(key)) => *page.lower >= *key,
        HoleAt::Before(None) => false,
    }
}

/// The page of an error, if the error is damage.
fn hole(page: Bounded, error: Error) -> Result<Option<Hole>> {
    match error.is_unreadable() {
        true => Ok(Some(Hole { lower: page.lower, upper: page.upper, error })),
        false => Err(error),
    }
}
