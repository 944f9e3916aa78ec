//! The level: the only node of a tree, with all of its tables.
//!
//! Invariants:
//! 1. Tables need no order: of a key, the entry with the highest sequence number is the newest.
//! 2. A level has no children, and all keys.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::level_tables::{LevelTable, LevelTables};
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::table::Table;
use crate::tree::files::FileRefs;
use crate::tree::range::{RangeSize, TablePart};
use crate::tree::versioned::{Head, NodeRefs, TreeNode};

/// See the module's description.
#[derive(Clone)]
pub(in crate::tree) struct Level {
    pub(super) head: Head,
    pub(super) tables: LevelTables,
    /// The file of the location index; 0 if there is none.
    pub(super) index: FileId,
}

/// All of a table's entries.
pub(super) fn whole(table: &Table) -> TablePart {
    let properties = table.properties();
    let (bytes, entries) = (properties.entry_bytes(), properties.entries());
    TablePart { first: 0, size: RangeSize { bytes, entries } }
}

impl Level {
    pub(super) fn new(tables: LevelTables, index: FileId) -> Level {
        Level { head: Head::new(0, Arc::from(&[][..]), None), tables, index }
    }

    /// The tables alone.
    pub(super) fn tables(&self) -> impl DoubleEndedIterator<Item = &Arc<Table>> {
        self.tables.iter().map(|it| &it.table)
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
        Level::new(LevelTables::default(), FileId(0))
    }

    fn children(&self) -> impl Iterator<Item = &Arc<Level>> {
        std::iter::empty()
    }

    fn children_mut(&mut self) -> impl Iterator<Item = &mut Arc<Level>> {
        std::iter::empty()
    }

    fn forget_derived(&mut self) {}

    /// Those that are settled up to the least number first: a compaction's output has a larger number than a memtable that
    /// has come meanwhile, and entries which that one ends.
    fn each_live_part(&self, f: &mut dyn FnMut(&Arc<Table>, TablePart)) -> Result<()> {
        let mut tables: Vec<&LevelTable> = self.tables.iter().collect();
        tables.sort_by_key(|it| (it.settled, it.number));
        tables.into_iter().for_each(|it| f(&it.table, whole(&it.table)));
        Ok(())
    }
}

/// What the level refers to: a tree has one.
#[derive(Default, PartialEq)]
pub(in crate::tree) struct LevelRefs {
    files: FileRefs,
    /// The tables that are counted.
    pub(super) tables: LevelTables,
}

impl LevelRefs {
    fn go_to(&mut self, tables: &LevelTables) {
        let difference = tables.since(&self.tables);
        difference.added.iter().for_each(|it| self.files.add(&it.table));
        difference.removed.iter().for_each(|it| self.files.remove(&it.table));
        self.tables = tables.clone();
    }
}

impl NodeRefs<Level> for LevelRefs {
    fn add(&mut self, level: &Level) {
        self.go_to(&level.tables);
    }

    fn remove(&mut self, _level: &Level) {
        self.go_to(&LevelTables::default());
    }

    fn replace(&mut self, _before: &Level, level: &Level) {
        self.go_to(&level.tables);
    }

    fn files(&self) -> &FileRefs {
        &self.files
    }
}
