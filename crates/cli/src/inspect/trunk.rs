//! What text and page have in common: where each node lies in the key space, and sums over the tree.
//!
//! Invariants:
//! 1. A child's extent is its pivot's extent; the leaves' extents tile `0..1`.
//! 2. A leaf's width grows with the bytes in its range, but no leaf is too thin to be seen.

use std::collections::BTreeMap;

use spinney::{FileDescription, GroupDescription, NodeDescription, TreeDescription};

use spinney_quantity::{bytes, grouped, ratio};

/// The share of the width that is dealt out evenly, whatever the leaves hold.
const EVEN_SHARE: f64 = 0.4;
/// Ages are told apart in so many steps; 0 is the oldest.
pub(super) const AGE_STEPS: u64 = 9;

/// A stretch of the key space, as parts of the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Extent {
    pub(super) left: f64,
    pub(super) width: f64,
}

/// A node and where it lies.
#[derive(Debug)]
pub(super) struct PlacedNode<'a> {
    pub(super) node: &'a NodeDescription,
    pub(super) extent: Extent,
    /// Where its pivots lie.
    pub(super) pivots: Vec<Extent>,
}

/// Sums over a level or the whole tree; a table that several nodes share counts once.
#[derive(Debug, Default, Clone)]
pub(super) struct Sums {
    pub(super) nodes: u64,
    pub(super) groups: u64,
    pub(super) tables: u64,
    pub(super) entries: u64,
    pub(super) tombstones: u64,
    pub(super) superseded: u64,
    /// Bytes that a reader of the nodes can still meet.
    pub(super) live_bytes: u64,
    /// What groups have besides their files, by name.
    pub(super) counts: BTreeMap<String, u64>,
    pub(super) reclaimable_bytes: u64,
}

/// A tree, placed.
#[derive(Debug)]
pub(super) struct Trunk<'a> {
    pub(super) description: &'a TreeDescription,
    /// The root's level first; left to right.
    pub(super) levels: Vec<Vec<PlacedNode<'a>>>,
    pub(super) total: Sums,
    pub(super) seqno_max: u64,
    /// The largest part of a branch that lies in one node.
    pub(super) branch_live_bytes_max: u64,
}

/// Bytes of a branch that a compaction would drop, estimated.
pub(super) fn reclaimable_bytes(branch: &FileDescription) -> u64 {
    let share =
        ratio(branch.count("superseded") + branch.count("tombstones"), branch.entries).min(1.0);
    (branch.live_bytes as f64 * share) as u64
}

/// Bytes that a reader of the node can still meet: what its pivots say, or else its branches.
pub(super) fn live_bytes(node: &NodeDescription) -> u64 {
    let by_pivots: u64 = node.children.iter().map(|pivot| pivot.live_bytes).sum();
    if by_pivots > 0 { by_pivots } else { node.files().map(|branch| branch.live_bytes).sum() }
}

/// Whether a group has something of its own to be drawn beside its files.
pub(super) fn has_own(group: &GroupDescription) -> bool {
    !group.counts.is_empty() || group.files.len() != 1
}

/// A count, in bytes if its name says so.
pub(super) fn shown_count(name: &str, count: u64) -> String {
    match name.strip_suffix("_bytes") {
        Some(what) => format!("{what} {}", bytes(count)),
        None => format!("{} {}", grouped(count), name.replace('_', " ")),
    }
}

impl Sums {
    pub(super) fn of<'a>(nodes: impl Iterator<Item = &'a NodeDescription> + Clone) -> Sums {
        let mut sums = Sums::default();
        let mut tables = BTreeMap::new();
        for node in nodes {
            sums.nodes += 1;
            sums.groups += node.groups.len() as u64;
            sums.live_bytes += live_bytes(node);
            for bundle in &node.groups {
                for (name, count) in &bundle.counts {
                    *sums.counts.entry(name.clone()).or_default() += count;
                }
            }
            for branch in node.files() {
                sums.reclaimable_bytes += reclaimable_bytes(branch);
                tables.insert(branch.id, branch);
            }
        }
        sums.tables = tables.len() as u64;
        for branch in tables.values() {
            sums.entries += branch.entries;
            sums.tombstones += branch.count("tombstones");
            sums.superseded += branch.count("superseded");
        }
        sums
    }
}

impl<'a> Trunk<'a> {
    pub(super) fn new(description: &'a TreeDescription) -> Trunk<'a> {
        let nodes = &description.nodes;
        let mut trunk = Trunk {
            description,
            levels: Vec::new(),
            total: Sums::of(nodes.iter()),
            seqno_max: nodes
                .iter()
                .flat_map(NodeDescription::files)
                .map(|b| b.seqno_max)
                .max()
                .unwrap_or(0),
            branch_live_bytes_max: nodes
                .iter()
                .flat_map(NodeDescription::files)
                .map(|b| b.live_bytes)
                .max()
                .unwrap_or(0),
        };
        if let Some(root) = nodes.first() {
            let by_id: BTreeMap<u64, &NodeDescription> =
                nodes.iter().map(|node| (node.id, node)).collect();
            let mut shape = Shape { by_id, leaves: 0, bytes: 0 };
            shape.measure(root, &mut Vec::new());
            let left = &mut 0.0;
            trunk.place(root, &shape, left, &mut Vec::new());
        }
        trunk
    }

    /// Places the node's subtree from `left` on, and moves `left` behind it.
    fn place(
        &mut self,
        node: &'a NodeDescription,
        shape: &Shape<'a>,
        left: &mut f64,
        path: &mut Vec<u64>,
    ) {
        let depth = path.len();
        path.push(node.id);
        let start = *left;
        let mut pivots = Vec::new();
        for pivot in &node.children {
            let pivot_start = *left;
            match pivot.node.and_then(|child| shape.child(child, path)) {
                Some(child) => self.place(child, shape, left, path),
                None => *left += shape.leaf_width(shape.leaf_bytes(node)),
            }
            pivots.push(Extent { left: pivot_start, width: *left - pivot_start });
        }
        if node.children.is_empty() {
            *left += shape.leaf_width(shape.leaf_bytes(node));
        }
        path.pop();
        if self.levels.len() <= depth {
            self.levels.resize_with(depth + 1, Vec::new);
        }
        let extent = Extent { left: start, width: *left - start };
        self.levels[depth].push(PlacedNode { node, extent, pivots });
    }

    /// The step of a branch's age: 0 for the oldest.
    pub(super) fn age_step(&self, branch: &FileDescription) -> u64 {
        let part = ratio(branch.seqno_max, self.seqno_max);
        ((part * AGE_STEPS as f64) as u64).min(AGE_STEPS - 1)
    }

    /// What the kind calls a node.
    pub(super) fn node_word(&self) -> &'a str {
        self.description.nodes.first().map_or("node", |node| &node.label)
    }

    /// What the kind calls a group of files.
    pub(super) fn group_word(&self) -> &'a str {
        let mut groups = self.description.nodes.iter().flat_map(|node| &node.groups);
        groups.next().map_or("group", |group| &group.label)
    }

    /// What to call a level.
    pub(super) fn level_name(&self, depth: usize) -> String {
        let height = self.levels[depth].first().map_or(0, |placed| placed.node.height);
        match (self.levels.len(), depth, height) {
            (1, ..) => "one level".to_string(),
            (_, 0, _) => format!("root, height {height}"),
            (_, _, 0) => "last level".to_string(),
            _ => format!("height {height}"),
        }
    }
}

/// The sums that widths are made of.
struct Shape<'a> {
    by_id: BTreeMap<u64, &'a NodeDescription>,
    leaves: u64,
    bytes: u64,
}

impl<'a> Shape<'a> {
    /// The node of that number, unless it is missing or an ancestor: a picture of a broken tree must
    /// end too.
    fn child(&self, id: u64, path: &[u64]) -> Option<&'a NodeDescription> {
        if path.contains(&id) { None } else { self.by_id.get(&id).copied() }
    }

    fn measure(&mut self, node: &'a NodeDescription, path: &mut Vec<u64>) {
        path.push(node.id);
        for pivot in &node.children {
            match pivot.node.and_then(|child| self.child(child, path)) {
                Some(child) => self.measure(child, path),
                None => {
                    self.leaves += 1;
                    self.bytes += self.leaf_bytes(node);
                }
            }
        }
        if node.children.is_empty() {
            self.leaves += 1;
            self.bytes += self.leaf_bytes(node);
        }
        path.pop();
    }

    /// What a leaf holds; nothing for an inner node, whose branches lie over all its children.
    fn leaf_bytes(&self, node: &NodeDescription) -> u64 {
        if node.height == 0 { live_bytes(node) } else { 0 }
    }

    fn leaf_width(&self, bytes: u64) -> f64 {
        let even = 1.0 / self.leaves.max(1) as f64;
        let even_share = if self.bytes == 0 { 1.0 } else { EVEN_SHARE };
        even_share * even + (1.0 - even_share) * ratio(bytes, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::sample;
    use super::*;

    #[test]
    fn children_lie_under_their_pivots_and_leaves_tile_the_whole() {
        for (fanout, height) in [(1, 0), (3, 1), (5, 2), (8, 3)] {
            let description = sample(fanout, height, 1);
            let trunk = Trunk::new(&description);
            assert_eq!(trunk.levels.len(), height as usize + 1);
            let placed: usize = trunk.levels.iter().map(Vec::len).sum();
            assert_eq!(placed, description.nodes.len());
            for pair in trunk.levels.windows(2) {
                let pivots: Vec<Extent> =
                    pair[0].iter().flat_map(|placed| placed.pivots.iter().copied()).collect();
                let children: Vec<Extent> = pair[1].iter().map(|placed| placed.extent).collect();
                assert_eq!(pivots, children);
            }
            for level in &trunk.levels {
                let mut end = 0.0;
                for placed in level {
                    assert!((placed.extent.left - end).abs() < 1e-9);
                    end = placed.extent.left + placed.extent.width;
                }
                assert!((end - 1.0).abs() < 1e-9, "{end}");
            }
        }
    }

    #[test]
    fn a_broken_tree_is_placed_too() {
        let mut description = sample(3, 2, 1);
        let root = description.nodes[0].id;
        description.nodes[1].children[0].node = Some(root);
        description.nodes[2].children[0].node = Some(99_999);
        let trunk = Trunk::new(&description);
        assert_eq!(trunk.levels.len(), 3);
        assert!(Trunk::new(&TreeDescription::default()).levels.is_empty());
    }

    #[test]
    fn a_shared_table_counts_once() {
        let description = sample(4, 1, 3);
        let sums = Sums::of(description.nodes.iter());
        let all: u64 = description.nodes.iter().flat_map(NodeDescription::files).count() as u64;
        let mut tables: Vec<u64> = description
            .nodes
            .iter()
            .flat_map(NodeDescription::files)
            .map(|branch| branch.id)
            .collect();
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(sums.tables, tables.len() as u64);
        assert!(sums.tables < all, "the sample shares tables");
    }
}
