//! The nodes of a versioned tree: immutable once shared, changed by copying.
//!
//! Invariants:
//! 1. A node above a changed node is a changed node: the path from the root is copied.
//! 2. A node has a number once the manifest names it. Numbers are never used twice within a keyspace.

use std::ops::DerefMut;
use std::sync::Arc;

use crate::base::error::Result;
use crate::base::ids::NodeId;
use crate::base::slice::Slice;
use crate::base::sync::plain::AtomicU64;
use crate::table::Table;
use crate::tree::description::{ChildDescription, GroupDescription, NodeDescription};
use crate::tree::live::LiveKeys;
use crate::tree::range::{Key, TablePart, ranges_overlap};

/// The number of a node that a change has made and not yet committed.
pub(in crate::tree) const NEW: NodeId = NodeId(0);

/// A key range of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Place {
    pub(in crate::tree) height: u32,
    pub(in crate::tree) lower: Key,
    pub(in crate::tree) upper: Option<Key>,
}

impl Place {
    pub(in crate::tree) fn of(node: &Head) -> Place {
        let (lower, upper) = (Arc::clone(&node.lower), node.upper.clone());
        Place { height: node.height, lower, upper }
    }

    pub(in crate::tree) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.lower, self.upper.as_deref())
    }

    /// Whether it has a key in common with a range of a level.
    pub(in crate::tree) fn overlaps(&self, height: u32, range: (&[u8], Option<&[u8]>)) -> bool {
        self.height == height && ranges_overlap(self.range(), range)
    }
}

/// What the nodes of all kinds have.
#[derive(Clone)]
pub(in crate::tree) struct Head {
    /// `NEW` while a change is being made; a number once the manifest names it.
    pub(in crate::tree) id: NodeId,
    /// 0 on the last level.
    pub(in crate::tree) height: u32,
    pub(in crate::tree) lower: Key,
    pub(in crate::tree) upper: Option<Key>,
    /// Tables that iterators opened here beyond the one that would do, since the node was last merged for that. Shared
    /// by the node's copies.
    pub(in crate::tree) wasted_reads: Arc<AtomicU64>,
}

impl Head {
    pub(in crate::tree) fn new(height: u32, lower: Key, upper: Option<Key>) -> Head {
        Head { id: NEW, height, lower, upper, wasted_reads: Arc::default() }
    }

    pub(in crate::tree) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.lower, self.upper.as_deref())
    }

    /// Describes the node, which its kind calls `label`.
    pub(in crate::tree) fn described(
        &self,
        label: &str,
        children: Vec<ChildDescription>,
        groups: Vec<GroupDescription>,
    ) -> NodeDescription {
        let (lower, upper) = (Slice::from(&*self.lower), self.upper.as_deref().map(Slice::from));
        let (label, id) = (label.to_string(), self.id.0);
        NodeDescription { label, id, height: self.height, lower, upper, children, groups }
    }
}

/// A node: a key range of one level, with tables and with the nodes one level below.
pub(in crate::tree) trait TreeNode:
    DerefMut<Target = Head> + Clone + Send + Sync + 'static
{
    /// The only node of an empty tree: all keys, on the last level.
    fn empty_root() -> Self;

    /// The nodes below, left to right.
    fn children(&self) -> impl Iterator<Item = &Arc<Self>>;

    fn children_mut(&mut self) -> impl Iterator<Item = &mut Arc<Self>>;

    /// Forgets what was derived from the other fields, which are about to change.
    fn forget_derived(&mut self);

    /// Returns the tree of this root for other parameters: a copy of the nodes of which something was derived from the
    /// parameters. Their numbers are the same, so the manifest does not need them again.
    fn for_other_parameters(self: &Arc<Self>) -> Arc<Self> {
        Arc::clone(self)
    }

    /// Calls `f` with the parts of tables that count in this node, oldest first.
    fn each_live_part(&self, f: &mut dyn FnMut(&Arc<Table>, TablePart)) -> Result<()>;
}

/// Makes a node changeable: copies it if an older version still shares it, and marks it new.
pub(in crate::tree) fn edit<N: TreeNode>(node: &mut Arc<N>) -> &mut N {
    let node = Arc::make_mut(node);
    node.id = NEW;
    node.forget_derived();
    node
}

/// Calls `f` for every node, parents before children, left to right.
pub(in crate::tree) fn walk<'a, N: TreeNode>(root: &'a Arc<N>, f: &mut dyn FnMut(&'a Arc<N>)) {
    f(root);
    for child in root.children() {
        walk(child, f);
    }
}

/// Gives numbers to the new nodes, children first.
pub(super) fn number_nodes<N: TreeNode>(node: &mut Arc<N>, next: &mut u64) {
    if node.id != NEW {
        return;
    }
    let node = Arc::make_mut(node);
    node.children_mut().for_each(|child| number_nodes(child, next));
    node.id = NodeId(*next);
    *next += 1;
}

/// Adds to `live`, which has none, what the samples of a tree's tables say of the keys that are live in it.
pub(in crate::tree) fn live_keys<N: TreeNode>(
    root: &Arc<N>,
    mut live: LiveKeys,
) -> Result<LiveKeys> {
    fn add<N: TreeNode>(node: &N, live: &mut LiveKeys) -> Result<()> {
        node.children().try_for_each(|child| add(&**child, live))?;
        node.each_live_part(&mut |table, part| live.apply_part(table, part))
    }
    add(&**root, &mut live)?;
    Ok(live)
}
