//! Structural changes: flushing, splitting, growing. All are pointer moves on new copies of nodes;
//! no data is touched (paper, sections 2.3 and 3: flush, then compact).
//!
//! Invariants:
//! 1. A change starts from the newest root, under the change lock, and keeps all invariants of
//!    `node`.
//! 2. Flushes cascade before any compaction is chosen, so that a compaction reads only what stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::node::{Derived, Extent, Key, NEW, Node, Pivot, edit, table_extent, table_meets};
use super::parameters::Parameters;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::wrong_node;

/// What changes of a trunk follow.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// Sizes for the trunk as it is now.
    pub(super) parameters: Parameters,
    /// The file that has the nodes: errors name it.
    pub(super) manifest: PathBuf,
}

/// Moves data down from every node that holds too much, splits what has become too large, and grows
/// the trunk where its root had to be split.
///
/// # Errors
/// `Corruption`, which names the manifest, if a node's parts would not fill its range.
pub(super) fn settle(root: &mut Arc<Node>, rules: &Rules) -> Result<()> {
    if root.height > 0 {
        flush_full(root, rules)?;
        edit(root).drop_dead_bundles();
    }
    loop {
        let parts = split(root, rules)?;
        if parts.len() < 2 {
            return Ok(());
        }
        let height = root.height + 1;
        let (lower, upper) = (Arc::clone(&root.lower), root.upper.clone());
        let pivots = parts
            .into_iter()
            .map(|part| Pivot {
                lower: Arc::clone(&part.lower),
                child: Some(Arc::new(part)),
                bundle_start: 0,
                live: Extent::default(),
            })
            .collect();
        *root = Arc::new(Node {
            summary: Derived::default(),
            seeks: Arc::default(),
            id: NEW,
            height,
            lower,
            upper,
            pivots,
            bundles: Vec::new(),
        });
    }
}

/// Flushes the fullest pivots of an index node until it holds no more than it may.
fn flush_full(node: &mut Arc<Node>, rules: &Rules) -> Result<()> {
    while node.live().bytes > rules.parameters.node_bytes_max {
        let heaviest = (0..node.pivots.len()).max_by_key(|&i| node.pivots[i].live.bytes);
        match heaviest {
            Some(position) if node.pivots[position].live.bytes > 0 => {
                flush_pivot(edit(node), position, rules)?;
            }
            _ => break,
        }
    }
    Ok(())
}

/// Moves the live bundles of one pivot to its child, and on down as far as nodes are full.
pub(super) fn flush_pivot(node: &mut Node, position: usize, rules: &Rules) -> Result<()> {
    let mut moved = node.live_bundles(position).to_vec();
    let end = node.bundles.len();
    if planted(Bug::FlushLosesYoungest) && moved.len() > 1 {
        moved.pop();
    }
    if planted(Bug::FlushToWrongChild)
        && let Some(neighbour) = position.checked_sub(1)
        && let Some(child) = &mut node.pivots[neighbour].child
    {
        edit(child).receive(&std::mem::take(&mut moved))?;
    }
    let pivot = &mut node.pivots[position];
    let Some(child) = &mut pivot.child else { return Ok(()) };
    edit(child).receive(&moved)?;
    if !planted(Bug::FlushStartStays) {
        pivot.bundle_start = end;
    }
    pivot.live = Extent::default();
    if child.height > 0 {
        flush_full(child, rules)?;
    }
    node.drop_dead_bundles();
    split_child(node, position, rules)
}

/// Replaces a child that has become too large by its parts.
pub(super) fn split_child(node: &mut Node, position: usize, rules: &Rules) -> Result<()> {
    let Some(child) = &node.pivots[position].child else { return Ok(()) };
    let parts = split(child, rules)?;
    if parts.len() < 2 {
        return Ok(());
    }
    let bundle_start = node.pivots[position].bundle_start;
    let upper = node.pivot_upper(position).cloned();
    let mut pivots = Vec::with_capacity(parts.len());
    for part in parts {
        let mut live = Extent::default();
        for bundle in &node.bundles[bundle_start..] {
            live.add(bundle.extent(&part.lower, part.upper.as_deref().or(upper.as_deref()))?);
        }
        let lower = Arc::clone(&part.lower);
        pivots.push(Pivot { lower, child: Some(Arc::new(part)), bundle_start, live });
    }
    node.pivots.splice(position..=position, pivots);
    Ok(())
}

/// The parts into which a node should be split now; fewer than two if it should stay.
fn split(node: &Arc<Node>, rules: &Rules) -> Result<Vec<Node>> {
    let parameters = &rules.parameters;
    let bounds = if node.height > 0 {
        index_bounds(node, parameters)
    } else {
        leaf_bounds(node, parameters)?
    };
    if bounds.is_empty() {
        return Ok(Vec::new());
    }
    let mut parts = Vec::with_capacity(bounds.len() + 1);
    let mut lower = Arc::clone(&node.lower);
    for upper in bounds.iter().map(Some).chain([None]) {
        let part_upper = upper.cloned().or_else(|| node.upper.clone());
        parts.push(part(node, lower, part_upper)?);
        lower = upper.cloned().unwrap_or_else(|| Arc::clone(&node.lower));
        if planted(Bug::SplitBoundWrong) && node.height == 0 {
            lower = Arc::from([&*lower, &[0]].concat());
        }
    }
    check_parts(node, &parts, &rules.manifest)?;
    Ok(parts)
}

/// The parts of a node lie side by side, fill its range, and none is empty: who goes from one to the
/// next by their bounds would lose keys, or loop endlessly, where they do not.
fn check_parts(node: &Node, parts: &[Node], manifest: &Path) -> Result<()> {
    let mut lower = Some(&node.lower);
    for part in parts {
        let ascends = part.upper.as_ref().is_none_or(|upper| part.lower < *upper);
        if lower != Some(&part.lower) || !ascends || part.pivots.is_empty() {
            let expected = format_args!("from {lower:?} on, not empty");
            return Err(wrong_split(node, expected, part, manifest));
        }
        lower = part.upper.as_ref();
    }
    match parts.last() {
        Some(last) if last.upper != node.upper => {
            Err(wrong_split(node, format_args!("up to {:?}", node.upper), last, manifest))
        }
        _ => Ok(()),
    }
}

fn wrong_split(
    node: &Node,
    expected: std::fmt::Arguments<'_>,
    part: &Node,
    manifest: &Path,
) -> Error {
    let found = format_args!("{:?}, {} pivots", part.range(), part.pivots.len());
    wrong_node(manifest, node.id.0, "part of a split node", expected, found)
}

/// The part of a node between two keys, which are pivots' bounds if it is an index node.
fn part(node: &Node, lower: Key, upper: Option<Key>) -> Result<Node> {
    let mut pivots: Vec<Pivot> = if node.height > 0 {
        let inside = |pivot: &&Pivot| {
            pivot.lower >= lower && upper.as_ref().is_none_or(|upper| pivot.lower < *upper)
        };
        node.pivots.iter().filter(inside).cloned().collect()
    } else {
        vec![Pivot {
            lower: Arc::clone(&lower),
            child: None,
            bundle_start: 0,
            live: Extent::default(),
        }]
    };
    if let Some(first) = pivots.first_mut() {
        first.lower = Arc::clone(&lower);
    }
    let bundles = node.bundles.clone();
    let mut part = Node {
        summary: Derived::default(),
        seeks: Arc::default(),
        id: NEW,
        height: node.height,
        lower,
        upper,
        pivots,
        bundles,
    };
    if planted(Bug::SplitRightEmpty) && part.lower != node.lower {
        part.bundles.clear();
        part.pivots.iter_mut().for_each(|pivot| pivot.bundle_start = 0);
    }
    if part.height > 0 {
        part.drop_dead_bundles();
    } else {
        part.drop_foreign_bundles();
        part.measure()?;
    }
    Ok(part)
}

impl Node {
    /// Drops from a leaf the bundles none of whose branches reaches into its range.
    fn drop_foreign_bundles(&mut self) {
        let (lower, upper) = (Arc::clone(&self.lower), self.upper.clone());
        let meets = |table: &Arc<Table>| table_meets(table, &lower, upper.as_deref());
        self.bundles.retain(|bundle| bundle.branches.iter().any(meets));
    }
}

/// Where to split an index node with too many pivots: into parts of equal numbers of them.
fn index_bounds(node: &Node, parameters: &Parameters) -> Vec<Key> {
    let count = node.pivots.len();
    if count <= parameters.fanout_max {
        return Vec::new();
    }
    let parts = count.div_ceil((parameters.fanout_max * 2 / 3).max(2)).clamp(2, count);
    (1..parts).map(|i| Arc::clone(&node.pivots[i * count / parts].lower)).collect()
}

/// Where to split a leaf that holds too many unique bytes: at keys that part its bytes equally.
fn leaf_bounds(node: &Node, parameters: &Parameters) -> Result<Vec<Key>> {
    let bytes = node.live().bytes.saturating_sub(node.leaf_summary().reclaimable.bytes);
    if bytes <= parameters.leaf_bytes_max {
        return Ok(Vec::new());
    }
    // Each branch offers keys that part its own bytes; each key stands for its share of them.
    let parts = bytes.div_ceil((parameters.leaf_bytes_max * 5 / 8).max(1)).clamp(2, 64);
    let (lower, upper) = node.range();
    let mut offers: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut total = 0;
    for table in node.bundles.iter().flat_map(|bundle| &bundle.branches) {
        let extent = table_extent(table, lower, upper)?;
        if extent.bytes == 0 {
            continue;
        }
        let wanted = (extent.bytes * parts * 8 / bytes.max(1)).clamp(1, 256) as usize;
        let keys = table.approximate_split_keys(Some(lower), upper, wanted)?;
        let share = extent.bytes / (keys.len() as u64 + 1);
        total += share * keys.len() as u64;
        offers.extend(keys.into_iter().map(|key| (key, share)));
    }
    offers.sort_unstable();
    let mut bounds: Vec<Key> = Vec::new();
    let mut passed = 0;
    for (key, share) in offers {
        passed += share;
        let due = (bounds.len() as u64 + 1) * total / parts;
        let last = bounds.last().map_or(lower, |last| last);
        if passed >= due
            && bounds.len() as u64 + 1 < parts
            && *key > *last
            && upper.is_none_or(|upper| *key < *upper)
        {
            bounds.push(Arc::from(key));
        }
    }
    Ok(bounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A split that put a part's lower bound behind the upper bound of the one before made a trunk in
    /// which a compaction looped endlessly, and iterators too. Now the split is refused.
    #[test]
    fn parts_of_a_node_that_do_not_fill_it_are_refused() {
        let bounded = |lower: &str, upper: Option<&str>| {
            let mut node = Node::empty_root();
            node.lower = Arc::from(lower.as_bytes());
            node.upper = upper.map(|upper| Arc::from(upper.as_bytes()));
            node.pivots[0].lower = Arc::clone(&node.lower);
            node
        };
        let node = bounded("a", Some("z"));
        let manifest = Path::new("manifest-00000001");
        let whole = |parts: &[Node]| match check_parts(&node, parts, manifest) {
            Ok(()) => true,
            Err(Error::Corruption { file, offset: 0, .. }) if file == manifest => false,
            Err(error) => panic!("{error}"),
        };
        assert!(whole(&[bounded("a", Some("m")), bounded("m", Some("z"))]));
        assert!(!whole(&[bounded("a", Some("m")), bounded("m\0", Some("z"))]));
        assert!(!whole(&[bounded("a", Some("a")), bounded("a", Some("z"))]));
        assert!(!whole(&[bounded("a", Some("m")), bounded("m", Some("y"))]));
        assert!(!whole(&[bounded("b", Some("m")), bounded("m", Some("z"))]));
        let mut empty = bounded("m", Some("z"));
        empty.pivots.clear();
        assert!(!whole(&[bounded("a", Some("m")), empty]));
    }
}
