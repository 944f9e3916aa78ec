//! What the nodes of the newest version refer to, counted: what a change adds and takes away is looked at, and nothing
//! else of the tree.
//!
//! Invariants:
//! 1. References are counted under the change lock, once per node of the newest version that has them.
//! 2. [`follow`] visits the nodes that one of two trees alone has, and their children. A node that both have keeps
//!    its number, and so do all nodes below it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::node::{NEW, TreeNode, walk};
use crate::base::ids::NodeId;
use crate::base::planted::{Bug, planted};
use crate::tree::files::FileRefs;

/// Debug builds count all of a tree of at most so many tables after each change.
const TABLES_FEW: u64 = 64;
/// Of larger ones, after about one in so many.
const LOOKS_EVERY: u64 = 61;

/// The references of a tree's nodes: the kind's.
pub(in crate::tree) trait NodeRefs<N>: Default + PartialEq + Send {
    /// Counts what a node refers to, without the nodes below it.
    fn add(&mut self, node: &N);

    /// Counts that no more.
    fn remove(&mut self, node: &N);

    /// Counts what a root without nodes below it refers to instead of another one.
    fn replace(&mut self, before: &N, root: &N) {
        self.add(root);
        self.remove(before);
    }

    /// The tables and blob files, which are counted once per node, or once per group of tables that nodes share.
    fn files(&self) -> &FileRefs;
}

/// Counts a whole tree.
pub(in crate::tree) fn count<N: TreeNode, R: NodeRefs<N>>(root: &Arc<N>) -> R {
    let mut refs = R::default();
    walk(root, &mut |node| refs.add(node));
    refs
}

/// Whether the references of a tree are counted right, as far as it is looked at: small trees always, others now and then.
pub(super) fn is_counted<N: TreeNode, R: NodeRefs<N>>(
    refs: &R,
    root: &Arc<N>,
    first_new: u64,
) -> bool {
    let looks = refs.files().totals.tables <= TABLES_FEW || first_new.is_multiple_of(LOOKS_EVERY);
    #[cfg(test)]
    let _uncounted = crate::base::visits::Uncounted::begin();
    !looks || *refs == count(root)
}

/// Counts what is new below `root`, and no more what is gone of `before`. Nodes that both have keep their numbers, which
/// are below `first_new`.
pub(super) fn follow<N: TreeNode, R: NodeRefs<N>>(
    refs: &mut R,
    before: &Arc<N>,
    root: &Arc<N>,
    first_new: u64,
) {
    let is_new = root.id == NEW || root.id.0 >= first_new;
    let is_alone = |node: &Arc<N>| node.children().next().is_none();
    if is_new && is_alone(root) && is_alone(before) && !planted(Bug::RefsOfGoneNodes) {
        refs.replace(before, root);
        return;
    }
    // What is new comes first: what both trees refer to is never counted as gone.
    let mut kept = BTreeSet::new();
    add_new(refs, root, first_new, &mut kept);
    if !planted(Bug::RefsOfGoneNodes) {
        remove_gone(refs, before, &kept);
    }
}

fn add_new<N: TreeNode, R: NodeRefs<N>>(
    refs: &mut R,
    node: &Arc<N>,
    first_new: u64,
    kept: &mut BTreeSet<NodeId>,
) {
    if node.id != NEW && node.id.0 < first_new {
        kept.insert(node.id);
        return;
    }
    refs.add(node);
    node.children().for_each(|child| add_new(refs, child, first_new, kept));
}

fn remove_gone<N: TreeNode, R: NodeRefs<N>>(refs: &mut R, node: &Arc<N>, kept: &BTreeSet<NodeId>) {
    if kept.contains(&node.id) {
        return;
    }
    refs.remove(node);
    node.children().for_each(|child| remove_gone(refs, child, kept));
}
