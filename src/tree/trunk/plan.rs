//! Plans compactions: which are worth their cost, and what each reads and writes.
//!
//! All compactions work alike: they replace consecutive bundles of one node by one bundle. Small
//! branches are merged. A branch that is already large in the node's range gains nothing by being
//! copied and is *adopted*: only its part of the maplets is rewritten. So a leaf's maplet is
//! extended, not rebuilt, and data with locality is written once. A merge of everything in a leaf
//! (`Trigger::Full`) drops tombstones and superseded versions.
//!
//! Invariants:
//! 1. Branches are merged only with their neighbours in age, so the order by age is kept.
//! 2. A branch is read only in the ranges of those pivots for which its bundle is still live.
//! 3. A table is adopted only if every pivot that will read the output may see all of it.

use std::sync::Arc;

use super::node::{Bundle, BundleId, Node, live_ranges};
use super::parameters::Parameters;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::range::{Key, RangeSize, table_overlaps, table_size};
use crate::tree::versioned::{CompactionPlan, Place};
use crate::vfs::Vfs;

/// The most branches that one compaction of an index node has as inputs.
const RUN_BRANCHES_MAX: usize = 96;

/// A branch as an input: the table and the key ranges of it that count.
#[derive(Clone)]
pub(super) struct Input {
    pub(super) table: Arc<Table>,
    pub(super) ranges: Vec<(Key, Option<Key>)>,
    pub(super) size: RangeSize,
    /// True if the output may contain the table unchanged.
    adoptable: bool,
    /// True for a piece of which younger ones of its bundle have too many keys (CompassDB's paper, section 3.5).
    is_dead: bool,
}

/// What a compaction does with one or more consecutive input branches.
pub(super) enum Segment {
    /// It stays as it is.
    Adopt(Input),
    /// They become one new table, or none if no entry is left.
    Merge(Vec<Input>),
}

/// A compaction to do, or two nodes to be joined.
pub(in crate::tree) struct Plan {
    pub(super) place: Place,
    /// The two nodes of the place are to become one; nothing is merged.
    pub(super) joins: bool,
    /// Oldest first.
    pub(super) bundles: Vec<Arc<Bundle>>,
    /// Oldest first.
    pub(super) segments: Vec<Segment>,
    /// True if the range has no entries older than the inputs.
    pub(super) bottom: bool,
    /// Bytes to read and merge.
    pub(super) merge_bytes: u64,
    /// Compactions with larger numbers run first.
    pub(super) urgency: f64,
}

impl CompactionPlan for Plan {
    fn place(&self) -> &Place {
        &self.place
    }

    fn merge_bytes(&self) -> u64 {
        self.merge_bytes
    }

    fn merged_tables(&self) -> Vec<&Arc<Table>> {
        let merged = self.segments.iter().filter_map(|segment| match segment {
            Segment::Merge(inputs) => Some(inputs),
            Segment::Adopt(_) => None,
        });
        merged.flatten().map(|input| &input.table).collect()
    }

    fn bundles(&self) -> Option<Vec<u64>> {
        (!self.joins).then(|| self.bundles.iter().map(|bundle| bundle.id.0).collect())
    }
}

impl Plan {
    /// The join of the two nodes in a place.
    pub(super) fn join(place: Place) -> Plan {
        let (bundles, segments) = (Vec::new(), Vec::new());
        Plan { place, joins: true, bundles, segments, bottom: false, merge_bytes: 0, urgency: 0.0 }
    }

    /// Whether all that is read becomes one branch, or none.
    pub(super) fn is_one_merge(&self) -> bool {
        matches!(self.segments.as_slice(), [Segment::Merge(_)])
    }

    /// A planted bug: the maplets of the inputs are gone before the edit that replaces them.
    pub(super) fn remove_maplets(&self, vfs: &dyn Vfs) -> Result<()> {
        let mut files = self.bundles.iter().filter_map(|bundle| bundle.index.own_file());
        files.try_for_each(|file| vfs.remove(&file.path()))
    }

    pub(super) fn bundle_ids(&self) -> Vec<BundleId> {
        self.bundles.iter().map(|bundle| bundle.id).collect()
    }
}

/// Why a compaction is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The node may have enough small branches.
    Due,
    /// The leaf is merged completely.
    Full,
}

/// The input branches of a run of bundles, oldest first. Branches that do not reach into a live range
/// are left out.
fn inputs(
    node: &Node,
    positions: std::ops::Range<usize>,
    dead_percent_max: u64,
) -> Result<Vec<Input>> {
    let to = positions.end;
    let mut inputs = Vec::new();
    for position in positions {
        let ranges = live_ranges(node, position);
        let bundle = &node.bundles[position];
        for (ordinal, table) in bundle.branches.iter().enumerate() {
            let overlaps = |(lower, upper): &&(Key, Option<Key>)| {
                table_overlaps(table, lower, upper.as_deref())
            };
            let ranges: Vec<(Key, Option<Key>)> = ranges.iter().filter(overlaps).cloned().collect();
            if ranges.is_empty() {
                continue;
            }
            let mut size = RangeSize::default();
            for (lower, upper) in &ranges {
                size.add(table_size(table, lower, upper.as_deref())?);
            }
            let adoptable = is_adoptable(node, position, to, table);
            let is_dead = bundle.index.tells_dead(ordinal, dead_percent_max);
            inputs.push(Input { table: Arc::clone(table), ranges, size, adoptable, is_dead });
        }
    }
    Ok(inputs)
}

/// Returns the end of the inputs that begin at `from`: the youngest bundle, or in an index node the last
/// one before there are more branches than a maplet should distinguish. A leaf has few branches and is
/// always compacted whole.
fn run_end(node: &Node, from: usize) -> usize {
    let mut branches = 0;
    let fits = |bundle: &&Arc<Bundle>| {
        branches += bundle.branches.len();
        node.height == 0 || branches <= RUN_BRANCHES_MAX
    };
    let count = node.bundles[from..].iter().take_while(fits).count();
    from + count.max(2).min(node.bundles.len() - from)
}

/// Returns true if a bundle's table may be adopted. It may not if a pivot that will read the output has
/// already flushed this bundle's entries: it would read them again, and not in the order of their age.
fn is_adoptable(node: &Node, position: usize, to: usize, table: &Table) -> bool {
    planted(Bug::AdoptAnything)
        || !(0..node.pivots.len()).any(|i| {
            let pivot = &node.pivots[i];
            pivot.bundle_start > position
                && pivot.bundle_start < to
                && table_overlaps(table, &pivot.lower, node.pivot_upper(i).map(|upper| &**upper))
        })
}

/// Returns the most urgent compaction of `node`, if it needs one.
pub(super) fn plan(node: &Node, parameters: &Parameters, trigger: Trigger) -> Result<Option<Plan>> {
    if node.bundles.is_empty() {
        return Ok(None);
    }
    let leaf = node.height == 0;
    let dead_percent_max = parameters.dead_percent_max;
    let branches: usize = node.bundles.iter().map(|bundle| bundle.branches.len()).sum();
    let many = node.bundles.len() >= parameters.bundles_max;
    if trigger == Trigger::Due && !many && branches <= parameters.leaf_branches_max {
        return Ok(None);
    }
    let is_short = |input: &Input| {
        let size = input.size.bytes;
        (leaf && size < parameters.branch_bytes_adopt)
            || (size.saturating_mul(8) < input.table.bytes() && (leaf || parameters.merges_remains))
            || input.table.bytes() < parameters.memtable_bytes / 8
    };
    let small = |input: &Input| is_short(input) || (leaf && input.is_dead);
    // In an index node, large bundles at the front are skipped: they have been compacted.
    let mut from = 0;
    if !leaf {
        let is_small = |position: usize| -> Result<bool> {
            Ok(inputs(node, position..position + 1, dead_percent_max)?.iter().any(small))
        };
        while from < node.bundles.len() && !is_small(from)? {
            from += 1;
        }
    }
    let to = run_end(node, from);
    let inputs = inputs(node, from..to, dead_percent_max)?;
    let smalls = inputs.iter().filter(|input| small(input)).count();
    let full =
        trigger == Trigger::Full || (leaf && branches - smalls > parameters.leaf_branches_max);
    if !full {
        let worth = if leaf {
            many && node.bundles.len() > 1
        } else {
            smalls >= parameters.bundles_max * 2
        };
        if !worth {
            return Ok(None);
        }
    }
    let mut segments: Vec<Segment> = Vec::new();
    for input in inputs {
        if input.is_dead && planted(Bug::DeadPieceDropped) {
            continue;
        }
        let adopts = input.adoptable && !small(&input);
        if !full && (adopts || (!leaf && planted(Bug::AdoptAnything))) {
            segments.push(Segment::Adopt(input));
        } else if let Some(Segment::Merge(inputs)) = segments.last_mut() {
            inputs.push(input);
        } else {
            segments.push(Segment::Merge(vec![input]));
        }
    }
    // What supersedes a dead piece is in younger ones: merged by itself it would only be copied, again and again.
    for segment in &mut segments {
        if let Segment::Merge(inputs) = segment
            && let [only] = inputs.as_slice()
            && !is_short(only)
            && only.adoptable
            && !full
        {
            *segment = Segment::Adopt(only.clone());
        }
    }
    let merge_bytes = segments
        .iter()
        .map(|segment| match segment {
            Segment::Adopt(_) => 0,
            Segment::Merge(inputs) => inputs.iter().map(|input| input.size.bytes).sum(),
        })
        .sum();
    let bundles = node.bundles[from..to].to_vec();
    let urgency = bundles.len() as f64 + branches as f64 / 8.0;
    let (place, bottom, joins) = (Place::of(node), leaf, false);
    Ok(Some(Plan { place, joins, bundles, segments, bottom, merge_bytes, urgency }))
}
