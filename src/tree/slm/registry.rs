//! The tables by the numbers that the index names them by.
//!
//! Invariants:
//! 1. A number is given to one table at a time, and not again while an older version may have that table.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::live_ranks::LiveCounts;
use crate::base::ids::FileId;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::table::Table;

/// A table's number, and the table.
pub(super) type LevelKey = (u32, Arc<Table>);

/// A table with a number.
pub(super) struct Numbered {
    pub(super) table: Arc<Table>,
    pub(super) live: AtomicU64,
    /// The number of versions that have named it, or would have if they had not been superseded while it was made: as many
    /// keys as it had that were live then.
    pub(super) named: AtomicU64,
    /// All of its keys that are live are in the index.
    pub(super) is_ready: AtomicBool,
}

impl Numbered {
    pub(super) fn counts(&self) -> LiveCounts {
        let properties = self.table.properties();
        LiveCounts {
            live: self.live.load(Ordering::SeqCst),
            named: self.named.load(Ordering::SeqCst),
            values: properties.entries().saturating_sub(properties.deletes),
            is_ready: self.is_ready.load(Ordering::SeqCst),
        }
    }
}

/// The tables by number.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) tables: BTreeMap<u32, Numbered>,
    pub(super) numbers: BTreeMap<FileId, u32>,
    /// Tables that the tree has no more, while older versions may have them.
    pub(super) gone: BTreeMap<u32, Weak<Table>>,
    /// Numbers are given in turn.
    pub(super) last: u32,
    /// How many are gone when those that nobody has are forgotten.
    forget_at: usize,
}

impl Registry {
    /// Gives numbers free whose tables no version has any more.
    pub(super) fn forget_gone(&mut self) {
        if self.gone.len() > self.forget_at {
            self.gone.retain(|_, table| table.strong_count() > 0);
            self.forget_at = 2 * self.gone.len() + 64;
        }
    }
}
