//! What a version knows beyond its files: how the index names its tables.

use std::sync::Arc;

use super::places::Places;
use super::scattered::Scattered;
use crate::table::Table;

/// What a version knows beyond its files.
pub(in crate::tree) struct Summary {
    pub(super) places: Arc<Places>,
    pub(super) scattered: Arc<Scattered>,
    /// The tables' numbers, ascending, each with the table's place.
    numbers: Vec<(u32, u32)>,
}

impl Summary {
    pub(super) fn new(
        places: &Arc<Places>,
        scattered: &Arc<Scattered>,
        tables: &[Arc<Table>],
    ) -> Summary {
        // A table without a number cannot be in the index.
        let numbered =
            (0..).zip(tables).filter_map(|(at, table)| Some((places.number(table).ok()?, at)));
        let mut numbers: Vec<(u32, u32)> = numbered.collect();
        numbers.sort_unstable();
        let (places, scattered) = (Arc::clone(places), Arc::clone(scattered));
        Summary { places, scattered, numbers }
    }

    /// The table of a number: one of the version's `tables`, or a younger one. `None` if the index does not name it any
    /// more.
    pub(super) fn table(&self, tables: &[Arc<Table>], number: u32) -> Option<Arc<Table>> {
        match self.numbers.binary_search_by_key(&number, |(number, _)| *number) {
            Ok(at) => tables.get(self.numbers[at].1 as usize).cloned(),
            Err(_) => self.places.table(number),
        }
    }
}
