//! Verifies the shape of a versioned tree.

use std::path::Path;
use std::sync::Arc;

use super::node::TreeNode;
use crate::base::error::Error;
use crate::tree::wrong_node;

/// Reports what is wrong about the ranges and heights of the nodes from the root down: the root has all keys, and the
/// nodes below one divide its range, one level down.
pub(in crate::tree) fn check_shape<N: TreeNode>(
    root: &Arc<N>,
    manifest: &Path,
    problem: &mut dyn FnMut(Error),
) {
    if !root.lower.is_empty() || root.upper.is_some() {
        let found = format_args!("{:?}", root.range());
        problem(wrong_node(manifest, root.id.0, "range of the root", "all keys", found));
    }
    check_below(&**root, manifest, problem);
}

fn check_below<N: TreeNode>(node: &N, manifest: &Path, problem: &mut dyn FnMut(Error)) {
    let mut wrong = |what: &'static str, expected: &str, found: String| {
        problem(wrong_node(manifest, node.id.0, what, expected, found));
    };
    if node.upper.as_ref().is_some_and(|upper| *upper <= node.lower) {
        wrong("range of a node", "ascending bounds", format!("{:?}", node.range()));
    }
    let count = node.children().count();
    if (node.height == 0) != (count == 0) {
        let found = format!("{count} at height {}", node.height);
        wrong("children of a node", "some above the last level alone", found);
    }
    let mut next = Some(&node.lower);
    for child in node.children() {
        if next != Some(&child.lower) || child.height + 1 != node.height {
            let found = format!("{:?} at height {}", child.range(), child.height);
            wrong("child", "the range that the one before left, one level down", found);
        }
        next = child.upper.as_ref();
    }
    if count > 0 && next != node.upper.as_ref() {
        wrong("last child", "up to the node's end", format!("{next:?}"));
    }
    node.children().for_each(|child| check_below(&**child, manifest, problem));
}
