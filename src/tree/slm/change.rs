//! Changes of the level: receiving a table, and replacing the inputs of a compaction by its output.
//!
//! Invariants:
//! 1. Only inputs that were planned are replaced.
//! 2. Whatever changes, the level has the file of the index that is in use from then on: one that was given up is not
//!    found by whoever opens the store next.

use std::sync::Arc;

use super::level::Level;
use super::level_tables::LevelTable;
use super::parameters::Parameters;
use super::registry::LevelKey;
use super::{PackedTable, Slm};
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::tree::versioned::{Change, edit};

/// The rules that changes of one version follow.
pub(super) type Rules = crate::tree::versioned::Rules<Parameters>;

impl Change for Slm {
    fn receive(root: &mut Arc<Level>, packed: &PackedTable, _rules: &Rules) -> Result<()> {
        let (table, number) = (Arc::clone(&packed.table), packed.number);
        let settled = table.properties().seqno_max;
        add(root, LevelTable { table, settled, number }, packed.index);
        Ok(())
    }

    fn rebalance(_root: &mut Arc<Level>, _rules: &Rules) -> Result<()> {
        Ok(())
    }
}

/// Removes tables. `index`: the file of the index that is in use. Returns false if nothing changes.
pub(super) fn remove(root: &mut Arc<Level>, removed: &[LevelKey], index: FileId) -> bool {
    let is_here = |(number, table): &&LevelKey| root.tables.has(*number, table);
    let removed: Vec<u32> = removed.iter().filter(is_here).map(|(number, _)| *number).collect();
    if removed.is_empty() {
        return false;
    }
    let level = edit(root);
    level.index = index;
    removed.into_iter().for_each(|number| level.tables.remove(number));
    true
}

/// Adds a table. `index`: the file of the index that is in use.
pub(super) fn add(root: &mut Arc<Level>, added: LevelTable, index: FileId) {
    let level = edit(root);
    level.index = index;
    level.tables.insert(added);
}
