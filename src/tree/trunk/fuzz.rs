//! Fuzz target: the edits of a trunk.

use super::edit::Body;
use crate::base::codec::{put_bytes, put_varint};
use crate::base::fuzz::Target;
use crate::tree::edits::fuzz::{run, with_lengths};
use crate::tree::versioned::Recovered;

pub(in crate::tree) const TARGETS: [Target; 1] =
    [Target { name: "stb-edit", run: run::<Recovered<Body>>, seeds: edit_seeds }];

fn edit_seeds() -> Vec<Vec<u8>> {
    // A leaf of number 1 from "" on, and a root of number 3 above it and another leaf.
    let leaf = |id: u8, lower: &[u8]| {
        let mut out = vec![id, 0];
        put_bytes(&mut out, lower);
        out.extend([0, 1, 0, 0]);
        put_varint(&mut out, 5000);
        put_varint(&mut out, 50);
        out
    };
    let one = [&[1, 0, 1], &*leaf(1, b""), &[1]].concat();
    let root = [3, 1, 0, 0, 2, 1, 0, 0, 0, 2, 0, 0, 0];
    let two = [&[1, 0, 3], &*leaf(1, b""), &*leaf(2, b"m"), &root, &[3]].concat();
    let with_bundle = vec![1, 1, 1, 4, 1, 3, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1];
    vec![with_lengths(&[&one]), with_lengths(&[&one, &two]), with_lengths(&[&with_bundle])]
}
