//! What a version looks like, for `inspect`: a guard is a node, its children are pivots, and each of its
//! fragments is a bundle of one branch.

use super::guard::{Guard, walk};
use super::version::Version;
use crate::base::slice::Slice;
use crate::tree::description::{
    BranchDescription, BundleDescription, NodeDescription, PivotDescription, TreeDescription,
};

pub(super) fn describe(version: &Version) -> TreeDescription {
    let mut levels: Vec<Vec<NodeDescription>> = Vec::new();
    levels.resize_with(version.root.height as usize + 1, Vec::new);
    walk(&version.root, &mut |guard| {
        if let Some(level) = levels.get_mut(guard.height as usize) {
            level.push(describe_guard(guard));
        }
    });
    TreeDescription {
        kind: "flsm".to_string(),
        nodes: levels.into_iter().rev().flatten().collect(),
        disk_bytes: version.disk_bytes(),
        live_bytes: version.live_bytes(),
        parameters: version.parameters.named(),
    }
}

fn describe_guard(guard: &Guard) -> NodeDescription {
    let (lower, upper) = guard.range();
    let bundles = guard.fragments.iter().map(|fragment| {
        let (table, properties) = (&fragment.table, fragment.table.properties());
        let branch = BranchDescription {
            table: table.id().0,
            bytes: table.bytes(),
            entries: properties.entries(),
            tombstones: properties.deletes,
            superseded: 0,
            seqno_min: properties.seqno_min.0,
            seqno_max: properties.seqno_max.0,
            live_bytes: fragment.extent.bytes,
        };
        let id = table.id().0;
        BundleDescription { id, branches: vec![branch], maplet_bytes: 0, maplet_entries: 0 }
    });
    let pivot = |lower: &[u8], child| PivotDescription {
        lower: Slice::from(lower),
        child,
        ..PivotDescription::default()
    };
    let mut pivots: Vec<PivotDescription> =
        guard.children.iter().map(|child| pivot(&child.lower, Some(child.id.0))).collect();
    if pivots.is_empty() {
        pivots.push(pivot(lower, None));
    }
    NodeDescription {
        id: guard.id.0,
        height: guard.height,
        lower: Slice::from(lower),
        upper: upper.map(Slice::from),
        pivots,
        bundles: bundles.collect(),
    }
}
