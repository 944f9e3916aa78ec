//! Fuzz target: the edits of levels.

use super::edit::Body;
use crate::base::fuzz::Target;
use crate::tree::edits::fuzz::{run, with_lengths};
use crate::tree::versioned::Recovered;

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "slm-edit", run: run::<Recovered<Body>>, seeds: edit_seeds }];

fn edit_seeds() -> Vec<Vec<u8>> {
    // Levels with numbers 1 and 2, which have an index and no table, and one with two tables.
    let one = [1, 1, 1, 0, 0, 4, 0, 1];
    let two = [1, 1, 2, 0, 0, 4, 0, 2];
    let with_tables = [1, 1, 1, 0, 0, 4, 2, 5, 70, 1, 7, 0, 3, 1];
    vec![with_lengths(&[&one]), with_lengths(&[&one, &two]), with_lengths(&[&with_tables])]
}
