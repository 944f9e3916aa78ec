//! Structural changes: flushing, splitting, joining, growing and shrinking, and replacing the inputs of a compaction by
//! its output. All are pointer moves on new copies of nodes; no data is touched (paper, sections 2.3 and 3: flush, then
//! compact).
//!
//! Invariants:
//! 1. A change starts from a root, is committed only if that is still the newest, and keeps all invariants of `node`.
//! 2. No entry becomes live again: what is joined has no table that reaches from one part into the other.
//! 3. Flushes cascade before any compaction is chosen, so that a compaction reads only what stays.

use std::path::Path;
use std::slice;
use std::sync::Arc;

use super::Trunk;
use super::node::{Bundle, BundleId, Node, Pivot};
use super::parameters::Parameters;
use super::plan::Plan;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::range::{Key, RangeSize, ranges_overlap, table_overlaps, table_size};
use crate::tree::versioned::{Change, Place, edit, split_keys};
use crate::tree::wrong_node;

/// The rules that changes of one version follow.
pub(super) type Rules = crate::tree::versioned::Rules<Parameters>;

impl Change for Trunk {
    fn receive(root: &mut Arc<Node>, packed: &Arc<Bundle>, _rules: &Rules) -> Result<()> {
        edit(root).receive(slice::from_ref(packed))
    }

    fn rebalance(root: &mut Arc<Node>, rules: &Rules) -> Result<()> {
        shrink(root, rules)?;
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
            let mut above = Node::empty(height, lower, upper);
            let pivot = |part: Node| Pivot::new(Arc::clone(&part.lower), Some(Arc::new(part)));
            above.pivots = parts.into_iter().map(pivot).collect();
            *root = Arc::new(above);
        }
    }
}

/// Flushes the fullest pivots of an index node until it holds no more than it may, and then those with the oldest bundles.
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
    // Once each has been flushed, no bundle is left.
    for _ in 0..node.pivots.len() {
        if node.bundles.len() <= rules.parameters.node_bundles_max() {
            break;
        }
        let Some(oldest) = (0..node.pivots.len()).min_by_key(|&i| node.pivots[i].bundle_start)
        else {
            break;
        };
        flush_pivot(edit(node), oldest, rules)?;
    }
    Ok(())
}

/// Moves the live bundles of one pivot to its child, and on down as far as nodes are full.
fn flush_pivot(node: &mut Node, position: usize, rules: &Rules) -> Result<()> {
    let live = node.live_bundles(position);
    let lost = usize::from(planted(Bug::FlushLosesYoungest) && live.len() > 1);
    let moved = live[..live.len() - lost].to_vec();
    let to = position - usize::from(planted(Bug::FlushToWrongChild) && position > 0);
    let Some(child) = &mut node.pivots[to].child else { return Ok(()) };
    edit(child).receive(&moved)?;
    match child.height {
        0 => edit(child).drop_foreign_bundles(),
        _ => flush_full(child, rules)?,
    }
    node.pivots[position].live = RangeSize::default();
    if !planted(Bug::FlushStartStays) {
        node.pivots[position].bundle_start = node.bundles.len();
    }
    node.drop_dead_bundles();
    split_child(node, position, rules)
}

/// Replaces a child that has become too large by its parts.
fn split_child(node: &mut Node, position: usize, rules: &Rules) -> Result<()> {
    let Some(child) = &node.pivots[position].child else { return Ok(()) };
    let parts = split(child, rules)?;
    if parts.len() < 2 {
        return Ok(());
    }
    let bundle_start = node.pivots[position].bundle_start;
    let upper = node.pivot_upper(position).cloned();
    let mut pivots = Vec::with_capacity(parts.len());
    for part in parts {
        let mut live = RangeSize::default();
        for bundle in &node.bundles[bundle_start..] {
            live.add(bundle.size(&part.lower, part.upper.as_deref().or(upper.as_deref()))?);
        }
        let lower = Arc::clone(&part.lower);
        pivots.push(Pivot { lower, child: Some(Arc::new(part)), bundle_start, live });
    }
    node.pivots.splice(position..=position, pivots);
    Ok(())
}

/// Makes the only child the root while there is one: a level less for each lookup.
fn shrink(root: &mut Arc<Node>, rules: &Rules) -> Result<()> {
    if root.height > 0 {
        edit(root).drop_dead_bundles();
    }
    while root.height > 0 && root.pivots.len() == 1 {
        if !root.live_bundles(0).is_empty() {
            flush_pivot(edit(root), 0, rules)?;
        }
        match root.pivots.as_slice() {
            [Pivot { child: Some(child), .. }] if root.bundles.is_empty() => {
                *root = Arc::clone(child);
            }
            // The flush has split the child.
            _ => break,
        }
    }
    Ok(())
}

/// The places of each two of a node's children that can be joined, each with the least `leaf_bytes_max` with which they
/// can be.
pub(super) fn joins(node: &Node, parameters: &Parameters) -> impl Iterator<Item = (Place, u64)> {
    let pairs = 0..node.pivots.len().saturating_sub(1);
    let joins = pairs.filter_map(|left| joinable(node, left, parameters));
    joins.map(|it| (Place { upper: it.b.upper.clone(), ..Place::of(it.a) }, it.leaf_bytes_max))
}

/// Makes one node of the two that take up a place, if they are still there and can be joined. Index nodes that have too
/// many pivots then are split again: the larger one has given the other some (paper, section 4). Returns false, and
/// changes nothing, if they cannot.
///
/// Nobody may be working in the place: the output of a compaction would take the place of its inputs in the joined node,
/// where they may be the neighbour's, or not lie side by side any more.
pub(super) fn join(node: &mut Arc<Node>, place: &Place, rules: &Rules) -> Result<bool> {
    if node.height <= place.height {
        return Ok(false);
    }
    let at = node.pivot_of(&place.lower);
    if node.height > place.height + 1 {
        let Some(child) = &node.pivots[at].child else { return Ok(false) };
        let mut child = Arc::clone(child);
        let joined = join(&mut child, place, rules)?;
        if joined {
            let node = edit(node);
            node.pivots[at].child = Some(child);
            split_child(node, at, rules)?;
        }
        return Ok(joined);
    }
    let Some(Joinable { a, b, bundle_start, .. }) = joinable(node, at, &rules.parameters) else {
        return Ok(false);
    };
    if a.lower != place.lower || b.upper != place.upper {
        return Ok(false);
    }
    let joined = match a.height {
        0 => joined_leaf(a, b),
        _ => joined_index_node(a, b, rules)?,
    };
    let mut live = node.pivots[at].live;
    live.add(node.pivots[at + 1].live);
    let (lower, child) = (Arc::clone(&a.lower), Some(Arc::new(joined)));
    let node = edit(node);
    node.pivots.splice(at..at + 2, [Pivot { lower, child, bundle_start, live }]);
    node.drop_dead_bundles();
    split_child(node, at, rules)?;
    Ok(true)
}

/// Two neighbours that can be joined.
struct Joinable<'a> {
    a: &'a Arc<Node>,
    b: &'a Arc<Node>,
    /// The joint start of their live bundles.
    bundle_start: usize,
    /// The least `leaf_bytes_max` with which they can be.
    leaf_bytes_max: u64,
}

/// The children at `left` and right of it, if one of them is small, they fit into one node (or into two that are not
/// small), and no bundle of one would come to life again in the range of the other.
fn joinable<'a>(node: &'a Node, left: usize, parameters: &Parameters) -> Option<Joinable<'a>> {
    let [a, b] = node.pivots.get(left..left + 2)? else { return None };
    let (child_a, child_b) = (a.child.as_ref()?, b.child.as_ref()?);
    let leaf_bytes_max = match child_a.height {
        0 => {
            let bytes = [a, b].map(|pivot| pivot.live.bytes);
            let [of_a, of_b] = [bytes[0] + child_a.live().bytes, bytes[1] + child_b.live().bytes];
            // One has a quarter of a leaf at most, and both have three.
            of_a.min(of_b).max((of_a + of_b).div_ceil(3)).saturating_mul(4)
        }
        _ => {
            let [of_a, of_b] = [child_a, child_b].map(|child| child.pivots.len());
            let (count, small) = (of_a + of_b, (parameters.fanout_max / 2).max(2));
            let fits =
                count <= parameters.fanout_max || count / parts_of(count, parameters) >= small;
            if of_a.min(of_b) < small && fits { 0 } else { u64::MAX }
        }
    };
    if leaf_bytes_max > parameters.leaf_bytes_max {
        return None;
    }
    // Bundles that are live for one alone have to lie outside it: then they are live for neither.
    let bundle_start = match planted(Bug::JoinStartTooLow) {
        true => a.bundle_start.min(b.bundle_start),
        false => a.bundle_start.max(b.bundle_start),
    };
    let older = |pivot: &Pivot| &node.bundles[pivot.bundle_start.min(bundle_start)..bundle_start];
    let revives = overlaps(older(a), node.pivot_range(left))
        || overlaps(older(b), node.pivot_range(left + 1))
        || (child_a.height == 0 && !are_apart(child_a, child_b));
    (!revives).then_some(Joinable { a: child_a, b: child_b, bundle_start, leaf_bytes_max })
}

/// Whether a table of the bundles may have a key of a range.
fn overlaps(bundles: &[Arc<Bundle>], (lower, upper): (&[u8], Option<&[u8]>)) -> bool {
    let mut tables = bundles.iter().flat_map(|bundle| &bundle.branches);
    tables.any(|table| table_overlaps(table, lower, upper))
}

/// Whether two leaves have no table that reaches into the other, where entries of it may have been merged already.
fn are_apart(a: &Node, b: &Node) -> bool {
    let apart = !overlaps(&a.bundles, b.range()) && !overlaps(&b.bundles, a.range());
    let is_shared = |bundle: &Arc<Bundle>| b.bundles.iter().any(|other| other.id == bundle.id);
    (apart || planted(Bug::JoinRevivesMoved)) && !a.bundles.iter().any(is_shared)
}

/// One leaf of two neighbours. Bundles of different ranges have no order by age, so those of `a` can all go first.
fn joined_leaf(a: &Node, b: &Node) -> Node {
    let mut joined = Node::empty(0, Arc::clone(&a.lower), b.upper.clone());
    let mut live = a.live();
    live.add(b.live());
    joined.pivots = vec![Pivot { live, ..Pivot::new(Arc::clone(&a.lower), None) }];
    joined.bundles = a.bundles.iter().chain(&b.bundles).cloned().collect();
    joined
}

/// One index node of two neighbours. Only one may have bundles: the one with fewer pivots flushes its own before.
fn joined_index_node(a: &Arc<Node>, b: &Arc<Node>, rules: &Rules) -> Result<Node> {
    let (mut a, mut b) = (Arc::clone(a), Arc::clone(b));
    if !a.bundles.is_empty() && !b.bundles.is_empty() {
        let fewer = if a.pivots.len() < b.pivots.len() { &mut a } else { &mut b };
        match planted(Bug::JoinForgetsBundles) {
            true => edit(fewer).bundles.clear(),
            false => flush_all(fewer, rules)?,
        }
    }
    let bundle_count = a.bundles.len() + b.bundles.len();
    let pivots = |node: &Node| {
        let start = |own| if node.bundles.is_empty() { bundle_count } else { own };
        let pivots = node.pivots.iter().cloned();
        let moved = pivots.map(|it| Pivot { bundle_start: start(it.bundle_start), ..it });
        moved.collect::<Vec<_>>()
    };
    let mut joined = Node::empty(a.height, Arc::clone(&a.lower), b.upper.clone());
    joined.pivots = pivots(&a);
    joined.pivots.extend(pivots(&b));
    joined.bundles = a.bundles.iter().chain(&b.bundles).cloned().collect();
    Ok(joined)
}

/// Moves all bundles of an index node to its children. What no pivot needs any more may still be there, and goes.
fn flush_all(node: &mut Arc<Node>, rules: &Rules) -> Result<()> {
    for position in (0..node.pivots.len()).rev() {
        if !node.live_bundles(position).is_empty() {
            flush_pivot(edit(node), position, rules)?;
        }
    }
    let node = edit(node);
    node.bundles.clear();
    node.pivots.iter_mut().for_each(|pivot| pivot.bundle_start = 0);
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
        vec![Pivot::new(Arc::clone(&lower), None)]
    };
    if let Some(first) = pivots.first_mut() {
        first.lower = Arc::clone(&lower);
    }
    let mut part = Node::empty(node.height, lower, upper);
    (part.pivots, part.bundles) = (pivots, node.bundles.clone());
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
        let overlaps = |table: &Arc<Table>| table_overlaps(table, &lower, upper.as_deref());
        self.bundles.retain(|bundle| bundle.branches.iter().any(overlaps));
    }
}

/// Where to split an index node with too many pivots: into parts of equal numbers of them.
fn index_bounds(node: &Node, parameters: &Parameters) -> Vec<Key> {
    let count = node.pivots.len();
    if count <= parameters.fanout_max {
        return Vec::new();
    }
    let parts = parts_of(count, parameters);
    (1..parts).map(|i| Arc::clone(&node.pivots[i * count / parts].lower)).collect()
}

/// How many index nodes are made of one with so many pivots: of two thirds of the most each, about.
fn parts_of(count: usize, parameters: &Parameters) -> usize {
    let aim = (parameters.fanout_max * 2 / 3).max(2);
    ((count + aim / 2) / aim).clamp(2, count.max(2))
}

/// Where to split a leaf that holds too many unique bytes: at keys that part its bytes equally.
fn leaf_bounds(node: &Node, parameters: &Parameters) -> Result<Vec<Key>> {
    let bytes = node.live().bytes.saturating_sub(node.leaf_summary().reclaimable.bytes);
    if bytes <= parameters.leaf_bytes_max {
        return Ok(Vec::new());
    }
    let parts = bytes.div_ceil((parameters.leaf_bytes_max * 5 / 8).max(1)).clamp(2, 64);
    let (lower, upper) = node.range();
    let branches = node.bundles.iter().flat_map(|bundle| &bundle.branches);
    let sized = branches.map(|table| Ok((table, table_size(table, lower, upper)?.bytes)));
    split_keys((lower, upper), parts, &sized.collect::<Result<Vec<_>>>()?)
}

/// Moves everything in a range down to the leaves. Returns false if there is nothing to move.
pub(super) fn flush_range(
    node: &mut Arc<Node>,
    range: (&[u8], Option<&[u8]>),
    rules: &Rules,
) -> Result<bool> {
    if node.height == 0 {
        return Ok(false);
    }
    let mut changed = false;
    for position in (0..node.pivots.len()).rev() {
        if ranges_overlap(node.pivot_range(position), range)
            && !node.live_bundles(position).is_empty()
        {
            flush_pivot(edit(node), position, rules)?;
            changed = true;
        }
    }
    Ok(changed
        | change_children(node, range, rules, &mut |child| flush_range(child, range, rules))?)
}

/// Replaces the inputs of a plan by its output wherever they still are. Returns false if they are nowhere.
pub(super) fn replace(
    node: &mut Arc<Node>,
    plan: &Plan,
    inputs: &[BundleId],
    output: Option<&Arc<Bundle>>,
    rules: &Rules,
) -> Result<bool> {
    if node.height == plan.place.height {
        if !node.bundles.iter().any(|bundle| inputs.contains(&bundle.id)) {
            return Ok(false);
        }
        let node = edit(node);
        let replaced = node.replace_bundles(inputs, output.cloned())?;
        if node.height == 0 {
            node.drop_foreign_bundles();
        }
        return Ok(replaced);
    }
    change_children(node, plan.place.range(), rules, &mut |child| {
        replace(child, plan, inputs, output, rules)
    })
}

/// Changes the children that overlap a range by `change`, which returns whether it has changed one, and splits those
/// that have become too large. Returns whether any has changed.
fn change_children(
    node: &mut Arc<Node>,
    range: (&[u8], Option<&[u8]>),
    rules: &Rules,
    change: &mut dyn FnMut(&mut Arc<Node>) -> Result<bool>,
) -> Result<bool> {
    let mut changed = false;
    for position in (0..node.pivots.len()).rev() {
        let Some(child) = &node.pivots[position].child else { continue };
        if !ranges_overlap(node.pivot_range(position), range) {
            continue;
        }
        let mut child = Arc::clone(child);
        if change(&mut child)? {
            let node = edit(node);
            node.pivots[position].child = Some(child);
            split_child(node, position, rules)?;
            changed = true;
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::versioned::TreeNode;

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
