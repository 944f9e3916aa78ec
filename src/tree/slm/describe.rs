//! What the level looks like, for `inspect`.

use super::level::{Level, whole};
use super::places::Places;
use crate::tree::description::{GroupDescription, NodeDescription, described_table};

pub(super) fn describe_level(level: &Level, places: &Places) -> NodeDescription {
    let groups = level.tables().map(|table| {
        let live = places.live(table).unwrap_or_default();
        let counts = [("tombstones", table.properties().deletes), ("live_keys", live)];
        let file = described_table(table, whole(table).size.bytes, counts);
        let (label, id) = ("table".to_string(), table.id().0);
        GroupDescription { label, id, files: vec![file], counts: Vec::new() }
    });
    let mut groups: Vec<GroupDescription> = groups.collect();
    groups.push(places.described_index());
    level.described("level", Vec::new(), groups)
}
