//! Fuzz target: the edits of a trunk.

use super::edit::Recovered;
use crate::base::codec::{put_bytes, put_varint};
use crate::base::fuzz::Target;
use crate::tree::edits::fuzz::{run, with_lengths};

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "stb-edit", run: run::<Recovered>, seeds: edit_seeds }];

fn edit_seeds() -> Vec<Vec<u8>> {
    // A leaf of number 1 from "" on, and a root of number 3 above it and another leaf.
    let leaf = |id: u8, lower: &[u8], upper: Option<&[u8]>| {
        let mut out = vec![id, 0];
        put_bytes(&mut out, lower);
        out.push(u8::from(upper.is_some()));
        upper.into_iter().for_each(|upper| put_bytes(&mut out, upper));
        out.extend([0, 1]);
        put_bytes(&mut out, lower);
        out.extend([0, 0]);
        put_varint(&mut out, 5000);
        put_varint(&mut out, 50);
        out
    };
    let one = [&[1, 0, 1], &*leaf(1, b"", None), &[1]].concat();
    let mut root = vec![3, 1, 0, 0, 0, 2];
    for (lower, child) in [(&b""[..], 1), (b"m", 2)] {
        put_bytes(&mut root, lower);
        root.extend([child, 0, 0, 0]);
    }
    let (left, right) = (leaf(1, b"", Some(b"m")), leaf(2, b"m", None));
    let two = [&[1, 0, 3], &*left, &*right, &*root, &[3]].concat();
    let with_bundle =
        [&[1, 1, 1, 4, 1, 3, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0], &[1][..]].concat();
    vec![with_lengths(&[&one]), with_lengths(&[&one, &two]), with_lengths(&[&with_bundle])]
}
