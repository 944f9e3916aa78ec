//! Changes of the level: receiving a table, and replacing the inputs of a compaction by its output.
//!
//! Invariants:
//! 1. Only inputs that were planned are replaced.

use std::sync::Arc;

use super::Slm;
use super::level::Level;
use super::parameters::Parameters;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::table::Table;
use crate::tree::versioned::{Change, edit};

/// The rules that changes of one version follow.
pub(super) type Rules = crate::tree::versioned::Rules<Parameters>;

impl Change for Slm {
    fn receive(root: &mut Arc<Level>, packed: &Arc<Table>, _rules: &Rules) -> Result<()> {
        let level = edit(root);
        level.tables.push(Arc::clone(packed));
        level.settled.push(packed.properties().seqno_max);
        Ok(())
    }

    fn rebalance(_root: &mut Arc<Level>, _rules: &Rules) -> Result<()> {
        Ok(())
    }
}

/// Removes `removed` and adds `outputs`, which have what is needed of their keys up to `settled`. Returns false if
/// nothing changes.
pub(super) fn replace(
    root: &mut Arc<Level>,
    removed: &[Arc<Table>],
    outputs: &[Arc<Table>],
    settled: Seqno,
) -> bool {
    if removed.is_empty() && outputs.is_empty() {
        return false;
    }
    let level = edit(root);
    let is_removed = |table: &Table| removed.iter().any(|it| it.id() == table.id());
    let tables =
        std::mem::take(&mut level.tables).into_iter().zip(std::mem::take(&mut level.settled));
    let stays = tables.filter(|(table, _)| !is_removed(table));
    let new = outputs.iter().map(|output| (Arc::clone(output), settled));
    (level.tables, level.settled) = stays.chain(new).unzip();
    true
}
