//! Changes of the level: receiving a table, and replacing the inputs of a compaction by its output.
//!
//! Invariants:
//! 1. Only inputs that were planned are replaced.
//! 2. Whatever changes, the level has the file of the index that is in use from then on: one that was given up is not
//!    found by whoever opens the store next.

use std::sync::Arc;

use super::level::{Level, Placed};
use super::parameters::Parameters;
use super::{PackedTable, Slm};
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::table::Table;
use crate::tree::versioned::{Change, edit};

/// The rules that changes of one version follow.
pub(super) type Rules = crate::tree::versioned::Rules<Parameters>;

impl Change for Slm {
    fn receive(root: &mut Arc<Level>, packed: &PackedTable, _rules: &Rules) -> Result<()> {
        let level = edit(root);
        let settled = packed.table.properties().seqno_max;
        level.tables.push(Arc::clone(&packed.table));
        level.placed.push(Placed { settled, number: packed.number });
        level.index = packed.index;
        Ok(())
    }

    fn rebalance(_root: &mut Arc<Level>, _rules: &Rules) -> Result<()> {
        Ok(())
    }
}

/// Removes tables. `index`: the file of the index that is in use. Returns false if nothing changes.
pub(super) fn remove(root: &mut Arc<Level>, removed: &[Arc<Table>], index: FileId) -> bool {
    if removed.is_empty() {
        return false;
    }
    let level = edit(root);
    level.index = index;
    let is_removed = |table: &Table| removed.iter().any(|it| it.id() == table.id());
    let tables =
        std::mem::take(&mut level.tables).into_iter().zip(std::mem::take(&mut level.placed));
    (level.tables, level.placed) = tables.filter(|(table, _)| !is_removed(table)).unzip();
    true
}

/// Adds the output of a compaction. `index`: the file of the index that is in use.
pub(super) fn add(root: &mut Arc<Level>, output: &Arc<Table>, placed: Placed, index: FileId) {
    let level = edit(root);
    level.index = index;
    level.tables.push(Arc::clone(output));
    level.placed.push(placed);
}
