//! What a version knows beyond its files: the index, which names its tables.

use std::sync::Arc;

use super::level_tables::LevelTables;
use super::places::Places;
use super::scattered::Scattered;
use crate::table::Table;

/// What a version knows beyond its files.
pub(in crate::tree) struct Summary {
    pub(super) places: Arc<Places>,
    pub(super) scattered: Arc<Scattered>,
}

impl Summary {
    /// The table of a number: one of the version's `tables`, or a younger one. `None` if the index does not name it any
    /// more.
    pub(super) fn table(&self, tables: &LevelTables, number: u32) -> Option<Arc<Table>> {
        match tables.get(number) {
            Some(found) => Some(Arc::clone(&found.table)),
            None => self.places.table(number),
        }
    }
}
