//! Made-up trees, for tests and for looking at the page.

use spinney::{
    ChildDescription, FileDescription, GroupDescription, NodeDescription, Slice, TreeDescription,
};

use fastrand::Rng;

const KEYS: u64 = 1_000_000_000;

/// A tree whose nodes have `fanout` children, `height` levels above the leaves.
pub(super) fn sample(fanout: u64, height: u32, seed: u64) -> TreeDescription {
    let mut maker = Maker { random: Rng::with_seed(seed), fanout, next_id: 1, levels: Vec::new() };
    maker.levels.resize_with(height as usize + 1, Vec::new);
    maker.node(height, 0, KEYS);
    let mut description = TreeDescription::default();
    description.kind = "stb".to_string();
    description.nodes = maker.levels.into_iter().rev().flatten().collect();
    description.disk_bytes = description
        .nodes
        .iter()
        .flat_map(|node| node.groups.iter().flat_map(|bundle| &bundle.files))
        .map(|branch| branch.live_bytes)
        .sum();
    description.live_bytes = description.disk_bytes * 3 / 4;
    description.parameters =
        vec![("fanout_max".to_string(), fanout), ("memtable_bytes".to_string(), 24 << 20)];
    description
}

struct Maker {
    random: Rng,
    fanout: u64,
    next_id: u64,
    levels: Vec<Vec<NodeDescription>>,
}

fn key(number: u64) -> Slice {
    Slice::from(format!("user{number:012}").as_str())
}

impl Maker {
    fn node(&mut self, height: u32, from: u64, to: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let bundle_count =
            if height == 0 { 1 + self.random.u64(..3) } else { 2 + self.random.u64(..4) };
        let bundles: Vec<GroupDescription> =
            (0..bundle_count).map(|position| self.bundle(height, position, bundle_count)).collect();
        let pivot_count = if height == 0 { 1 } else { self.fanout.max(1) };
        let mut node = NodeDescription {
            label: "node".to_string(),
            id,
            height,
            lower: if from == 0 { Slice::default() } else { key(from) },
            upper: (to < KEYS).then(|| key(to)),
            children: Vec::new(),
            groups: bundles,
        };
        for pivot in 0..pivot_count {
            let lower = from + (to - from) * pivot / pivot_count;
            let upper = from + (to - from) * (pivot + 1) / pivot_count;
            let child = (height > 0).then(|| self.node(height - 1, lower, upper));
            let bundle_start =
                if height == 0 { 0 } else { self.random.u64(..bundle_count.min(4)) as usize };
            node.children.push(ChildDescription {
                lower: if lower == 0 { Slice::default() } else { key(lower) },
                node: child,
                first_group: bundle_start,
                live_bytes: if height == 0 { 0 } else { self.random.u64(..20 << 20) },
                live_entries: self.random.u64(..100_000),
            });
        }
        self.levels[height as usize].push(node);
        id
    }

    fn bundle(&mut self, height: u32, position: u64, count: u64) -> GroupDescription {
        let branch_count = 1 + self.random.u64(..if position == 0 { 4 } else { 2 });
        let branches = (0..branch_count).map(|branch| self.branch(height, position, count, branch));
        let branches: Vec<FileDescription> = branches.collect();
        let entries = branches.iter().map(|branch| branch.entries).sum();
        GroupDescription {
            id: self.random.u64(..100_000),
            files: branches,
            label: "bundle".to_string(),
            counts: vec![
                ("index_bytes".to_string(), entries * 2),
                ("index_entries".to_string(), entries),
            ],
        }
    }

    fn branch(&mut self, height: u32, position: u64, count: u64, branch: u64) -> FileDescription {
        let live_bytes = (4 << 20) + self.random.u64(..(40 << 20) / (1 + position + branch));
        let entries = live_bytes / 128;
        // What lies higher and what lies later in its node is newer.
        let newness = u64::from(height) * 20 + position * 20 / count + branch;
        let seqno_max = newness * 1_000_000 + self.random.u64(..20_000_000) + 1;
        FileDescription {
            label: "table".to_string(),
            // Few numbers: so tables are shared between nodes, as flushes share them.
            id: self.random.u64(..16),
            bytes: live_bytes * (1 + self.random.u64(..2)),
            entries,
            counts: vec![
                (
                    "tombstones".to_string(),
                    match self.random.u64(..3) {
                        0 => entries * self.random.u64(..40) / 100,
                        _ => 0,
                    },
                ),
                ("superseded".to_string(), entries * self.random.u64(..60) / 100),
            ],
            seqno_min: seqno_max.saturating_sub(5_000_000),
            seqno_max,
            live_bytes,
        }
    }
}
