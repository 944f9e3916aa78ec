//! What a version looks like, for `inspect`.

use super::guard::Guard;
use super::version::Version;
use crate::base::slice::Slice;
use crate::tree::description::{
    ChildDescription, FileDescription, GroupDescription, NodeDescription, TreeDescription, named,
};
use crate::tree::versioned::walk;

pub(super) fn describe(version: &Version) -> TreeDescription {
    let mut levels: Vec<Vec<NodeDescription>> = Vec::new();
    levels.resize_with(version.root.height as usize + 1, Vec::new);
    walk(&version.root, &mut |guard| {
        if let Some(level) = levels.get_mut(guard.height as usize) {
            level.push(describe_guard(guard));
        }
    });
    TreeDescription {
        kind: super::KIND.name.to_string(),
        nodes: levels.into_iter().rev().flatten().collect(),
        disk_bytes: version.files.disk_bytes(),
        live_bytes: version.live_bytes(),
        parameters: version.parameters.named(),
    }
}

fn describe_guard(guard: &Guard) -> NodeDescription {
    let (lower, upper) = guard.range();
    let groups = guard.fragments.iter().map(|fragment| {
        let (table, properties) = (&fragment.table, fragment.table.properties());
        let id = table.id().0;
        let file = FileDescription {
            label: "table".to_string(),
            id,
            bytes: table.bytes(),
            entries: properties.entries(),
            seqno_min: properties.seqno_min.0,
            seqno_max: properties.seqno_max.0,
            live_bytes: fragment.size.bytes,
            counts: named([("tombstones", properties.deletes)]),
        };
        let label = "fragment".to_string();
        GroupDescription { label, id, files: vec![file], counts: Vec::new() }
    });
    let children = guard.children.iter().map(|child| ChildDescription {
        lower: Slice::from(&*child.lower),
        node: Some(child.id.0),
        ..ChildDescription::default()
    });
    NodeDescription {
        label: "guard".to_string(),
        id: guard.id.0,
        height: guard.height,
        lower: Slice::from(lower),
        upper: upper.map(Slice::from),
        children: children.collect(),
        groups: groups.collect(),
    }
}
