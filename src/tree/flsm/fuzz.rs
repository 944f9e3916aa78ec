//! Fuzz target: the edits of guards.

use std::path::Path;
use std::sync::Arc;

use super::edit::{Recovered, encode};
use super::guard::Guard;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Error;
use crate::base::fuzz::{FILE, Target, named};

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "flsm-edit", run: edit, seeds: edit_seeds }];

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
    // A fragment needs its file; a tree without any is built.
    let mut refuse = |_| Err(Error::corruption(file, 0, "table", "a file", "none"));
    let Some(root) = named(recovered.build(file, &mut refuse)) else { return };
    let all = |root: &Arc<Guard>| encode(root, &|_| true);
    let whole = all(&root);
    let mut again = Recovered::default();
    again.apply(&whole, file).expect("what was encoded is decoded");
    let rebuilt = again.build(file, &mut refuse).expect("what was encoded is built");
    assert_eq!(all(&rebuilt), whole);
}

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
    let with_lengths = |edits: &[&[u8]]| {
        let mut out = Vec::new();
        edits.iter().for_each(|edit| put_bytes(&mut out, edit));
        out
    };
    vec![with_lengths(&[&one]), with_lengths(&[&one, &two]), with_lengths(&[&with_fragment])]
}
