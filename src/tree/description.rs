//! What a tree looks like, for `inspect` and for tests: plain data without handles.

use crate::base::slice::Slice;

/// A tree as it stands in one version.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct TreeDescription {
    /// The tree kind's name.
    pub kind: String,
    /// The root first, then level by level, left to right.
    pub nodes: Vec<NodeDescription>,
    /// Bytes of all files.
    pub disk_bytes: u64,
    /// Estimated bytes that would remain if everything superseded were dropped.
    pub live_bytes: u64,
    /// What the tree derived from its options: name and value.
    pub parameters: Vec<(String, u64)>,
}

/// A trunk node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeDescription {
    /// Its number.
    pub id: u64,
    /// 0 for a leaf.
    pub height: u32,
    /// Its first possible key.
    pub lower: Slice,
    /// The first key that is not its own, or `None` for the last node.
    pub upper: Option<Slice>,
    /// Its pivots, left to right. A leaf has one, without a child.
    pub pivots: Vec<PivotDescription>,
    /// Its bundles, oldest first.
    pub bundles: Vec<BundleDescription>,
}

/// A pivot: a key range of a node and the child below it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PivotDescription {
    /// The range's first key; it ends where the next begins.
    pub lower: Slice,
    /// The child's number.
    pub child: Option<u64>,
    /// The first of the node's bundles that is live in this range.
    pub bundle_start: usize,
    /// Estimated bytes of the node's live bundles in this range.
    pub live_bytes: u64,
    /// Estimated entries, likewise.
    pub live_entries: u64,
}

/// A bundle: branches that lie under one maplet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BundleDescription {
    /// Its number.
    pub id: u64,
    /// Its branches, oldest first.
    pub branches: Vec<BranchDescription>,
    /// Bytes of its maplet.
    pub maplet_bytes: u64,
    /// Fingerprints in its maplet.
    pub maplet_entries: u64,
}

/// A branch: a table as the trunk sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BranchDescription {
    /// The table file's number.
    pub table: u64,
    /// The file's bytes.
    pub bytes: u64,
    /// Entries in the whole table.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Entries whose key a younger branch of the bundle holds too.
    pub superseded: u64,
    /// The oldest sequence number.
    pub seqno_min: u64,
    /// The newest sequence number.
    pub seqno_max: u64,
    /// Estimated bytes within this node's range.
    pub live_bytes: u64,
}
