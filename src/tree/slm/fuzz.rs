//! Fuzz target: the edits of levels.

use super::edit::Body;
use crate::base::fuzz::Target;
use crate::tree::edits::fuzz::{run, with_lengths};
use crate::tree::versioned::Recovered;

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "slm-edit", run: run::<Recovered<Body>>, seeds: edit_seeds }];

fn edit_seeds() -> Vec<Vec<u8>> {
    // A level that has an index and no table, two tables that come, and these that go.
    let none = [1, 0, 0, 1, 1, 0, 0, 4, 1];
    let come = [1, 0, 2, 1, 5, 70, 3, 7, 0, 1, 2, 0, 0, 4, 2];
    let go = [1, 2, 1, 3, 0, 1, 3, 0, 0, 4, 3];
    let whole = with_lengths(&[&none, &come, &go]);
    vec![with_lengths(&[&none]), with_lengths(&[&come]), with_lengths(&[&come, &go]), whole]
}
