//! Changes of the level: receiving a table, and replacing the inputs of a compaction by its output.
//!
//! Invariants:
//! 1. Only inputs that were planned are replaced.

use std::sync::Arc;

use super::Slm;
use super::level::Level;
use super::parameters::Parameters;
use crate::base::error::Result;
use crate::table::Table;
use crate::tree::versioned::{Change, edit};

/// The rules that changes of one version follow.
pub(super) type Rules = crate::tree::versioned::Rules<Parameters>;

impl Change for Slm {
    fn receive(root: &mut Arc<Level>, packed: &Arc<Table>, _rules: &Rules) -> Result<()> {
        edit(root).tables.push(Arc::clone(packed));
        Ok(())
    }

    fn rebalance(_root: &mut Arc<Level>, _rules: &Rules) -> Result<()> {
        Ok(())
    }
}

/// Removes `removed` and puts `outputs` in the place of the youngest of the inputs. Returns false if nothing changes.
pub(super) fn replace(
    root: &mut Arc<Level>,
    inputs: &[Arc<Table>],
    removed: &[Arc<Table>],
    outputs: &[Arc<Table>],
) -> bool {
    if removed.is_empty() && outputs.is_empty() {
        return false;
    }
    let is_one_of =
        |tables: &[Arc<Table>], table: &Arc<Table>| tables.iter().any(|it| it.id() == table.id());
    let level = edit(root);
    let youngest = level.tables.iter().rposition(|table| is_one_of(inputs, table));
    let at = youngest.map_or(level.tables.len(), |youngest| youngest + 1);
    level.tables.splice(at..at, outputs.iter().cloned());
    level.tables.retain(|table| !is_one_of(removed, table));
    true
}
