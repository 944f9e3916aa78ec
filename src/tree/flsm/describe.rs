//! What a guard looks like, for `inspect`.

use super::guard::Guard;
use crate::base::slice::Slice;
use crate::tree::description::{
    ChildDescription, GroupDescription, NodeDescription, described_table,
};

pub(super) fn describe_guard(guard: &Guard) -> NodeDescription {
    let groups = guard.fragments.iter().map(|fragment| {
        let (table, id) = (&fragment.table, fragment.table.id().0);
        let counts = [("tombstones", table.properties().deletes)];
        let file = described_table(table, fragment.size.bytes, counts);
        let label = "fragment".to_string();
        GroupDescription { label, id, files: vec![file], counts: Vec::new() }
    });
    let children = guard.children.iter().map(|child| ChildDescription {
        lower: Slice::from(&*child.lower),
        node: Some(child.id.0),
        ..ChildDescription::default()
    });
    guard.described("guard", children.collect(), groups.collect())
}
