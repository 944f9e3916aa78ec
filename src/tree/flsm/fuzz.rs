//! Fuzz target: the edits of guards.

use super::edit::Body;
use crate::base::codec::{put_bytes, put_varint};
use crate::base::fuzz::Target;
use crate::tree::edits::fuzz::{run, with_lengths};
use crate::tree::versioned::Recovered;

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "flsm-edit", run: run::<Recovered<Body>>, seeds: edit_seeds }];

fn edit_seeds() -> Vec<Vec<u8>> {
    // A guard of the last level with number 1, and one with number 3 above it and another.
    let last = |id: u8, lower: &[u8]| {
        let mut out = vec![id, 0];
        put_bytes(&mut out, lower);
        out.extend([0, 0]);
        out
    };
    let one = [&[1, 1], &*last(1, b""), &[1]].concat();
    let two = [&[1, 3], &*last(1, b""), &*last(2, b"m"), &[3, 1, 0, 0, 2, 1, 2], &[3]].concat();
    let mut with_fragment = vec![1, 1, 1, 0, 0, 1, 7, 1];
    put_varint(&mut with_fragment, 5000);
    put_varint(&mut with_fragment, 50);
    with_fragment.extend([0, 1]);
    vec![with_lengths(&[&one]), with_lengths(&[&one, &two]), with_lengths(&[&with_fragment])]
}
