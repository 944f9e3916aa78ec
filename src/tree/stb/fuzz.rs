//! Fuzz target: the edits of a trunk.

use std::path::Path;
use std::sync::Arc;

use super::edit::{Recovered, encode};
use super::node::Node;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Error;
use crate::base::fuzz::{FILE, Target, named};

pub(crate) const TARGETS: [Target; 1] = [Target { name: "stb-edit", run: edit, seeds: edit_seeds }];

/// Edits, each with its length before it.
fn edit(data: &[u8]) {
    let file = Path::new(FILE);
    let mut recovered = Recovered::default();
    let mut decoder = Decoder::new(data, file, 0);
    while !decoder.is_empty() {
        let Some(edit) = named(decoder.byte_string("edit")) else { break };
        if named(recovered.apply(edit, file)).is_none() {
            return;
        }
    }
    // A bundle needs its files; a trunk without any is built.
    let mut refuse = |_, _: &_| Err(Error::corruption(file, 0, "bundle", "files", "none"));
    let Some(root) = named(recovered.build(file, &mut refuse)) else { return };
    let all = |root: &Arc<Node>| encode(root, &|_| true, &|_| true);
    let whole = all(&root);
    let mut again = Recovered::default();
    again.apply(&whole, file).expect("what was encoded is decoded");
    let rebuilt = again.build(file, &mut refuse).expect("what was encoded is built");
    assert_eq!(all(&rebuilt), whole);
}

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
    let with_lengths = |edits: &[&[u8]]| {
        let mut out = Vec::new();
        edits.iter().for_each(|edit| put_bytes(&mut out, edit));
        out
    };
    vec![with_lengths(&[&one]), with_lengths(&[&one, &two]), with_lengths(&[&with_bundle])]
}
