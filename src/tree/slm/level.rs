//! The level: the only node of a tree, with all of its tables.
//!
//! Invariants:
//! 1. Tables need no order: of a key, the entry with the highest sequence number is the newest.
//! 2. A level has no children, and all keys.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::table::Table;
use crate::tree::files::FileRefs;
use crate::tree::range::{RangeSize, TablePart};
use crate::tree::versioned::{Head, NodeRefs, TreeNode};

/// See the module's description.
#[derive(Clone)]
pub(in crate::tree) struct Level {
    pub(super) head: Head,
    pub(super) tables: Vec<Arc<Table>>,
    /// What the level says of each of them.
    pub(super) placed: Vec<Placed>,
    /// The file of the location index; 0 if there is none.
    pub(super) index: FileId,
}

/// What a level says of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) struct Placed {
    /// The number up to which the table's entries are what is needed of their keys. No tombstone up to that number in
    /// another table says anything of them.
    pub(super) settled: Seqno,
    /// The number by which the index names the table.
    pub(super) number: u32,
}

/// All of a table's entries.
pub(super) fn whole(table: &Table) -> TablePart {
    let properties = table.properties();
    let (bytes, entries) = (properties.entry_bytes(), properties.entries());
    TablePart { first: 0, size: RangeSize { bytes, entries } }
}

impl Level {
    pub(super) fn new(tables: Vec<Arc<Table>>, placed: Vec<Placed>, index: FileId) -> Level {
        assert_eq!(tables.len(), placed.len(), "a level");
        Level { head: Head::new(0, Arc::from(&[][..]), None), tables, placed, index }
    }

    /// Bytes of keys and values.
    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.properties().entry_bytes()).sum()
    }
}

impl Deref for Level {
    type Target = Head;

    #[inline]
    fn deref(&self) -> &Head {
        #[cfg(test)]
        crate::base::visits::note();
        &self.head
    }
}

impl DerefMut for Level {
    fn deref_mut(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl TreeNode for Level {
    fn empty_root() -> Level {
        Level::new(Vec::new(), Vec::new(), FileId(0))
    }

    fn children(&self) -> impl Iterator<Item = &Arc<Level>> {
        std::iter::empty()
    }

    fn children_mut(&mut self) -> impl Iterator<Item = &mut Arc<Level>> {
        std::iter::empty()
    }

    fn forget_derived(&mut self) {}

    fn each_live_part(&self, f: &mut dyn FnMut(&Arc<Table>, TablePart)) -> Result<()> {
        self.tables.iter().for_each(|table| f(table, whole(table)));
        Ok(())
    }
}

/// What a level refers to.
#[derive(Default, PartialEq)]
pub(in crate::tree) struct LevelRefs(FileRefs);

impl NodeRefs<Level> for LevelRefs {
    fn add(&mut self, level: &Level) {
        level.tables.iter().for_each(|table| self.0.add(table));
    }

    fn remove(&mut self, level: &Level) {
        level.tables.iter().for_each(|table| self.0.remove(table));
    }

    fn files(&self) -> &FileRefs {
        &self.0
    }
}
