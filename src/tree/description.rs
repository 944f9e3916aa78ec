//! What a tree looks like, for `inspect` and for tests: plain data without handles, in words that fit every
//! kind. A kind's own terms are labels and names of counts.

use crate::base::slice::Slice;
use crate::table::Table;

/// A number and what it counts; a name that ends in `_bytes` counts bytes.
pub type NamedCount = (String, u64);

/// A tree as it is in one version.
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
    /// Sizes and limits that the tree derived from its options.
    pub parameters: Vec<NamedCount>,
}

/// A part of the tree that holds a range of keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeDescription {
    /// What the kind calls it: a `node` of a trunk, a `guard`.
    pub label: String,
    /// Its number.
    pub id: u64,
    /// 0 at the lowest level.
    pub height: u32,
    /// Its first possible key.
    pub lower: Slice,
    /// The first key that is not its own, or `None` for the last node.
    pub upper: Option<Slice>,
    /// The parts of its range, left to right, each with the child below it.
    pub children: Vec<ChildDescription>,
    /// What it holds, oldest first.
    pub groups: Vec<GroupDescription>,
}

/// A part of a node's range.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChildDescription {
    /// The first key of the part; it ends where the next begins.
    pub lower: Slice,
    /// The number of the node below, if there is one.
    pub node: Option<u64>,
    /// The first of the node's groups that is live in this part.
    pub first_group: usize,
    /// Estimated bytes of the node's live groups in this part.
    pub live_bytes: u64,
    /// Estimated entries, likewise.
    pub live_entries: u64,
}

/// Files that came to a node together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupDescription {
    /// What the kind calls it: a `bundle`, a `fragment`.
    pub label: String,
    /// Its number.
    pub id: u64,
    /// Its files, oldest first.
    pub files: Vec<FileDescription>,
    /// What it has besides: bytes of its maplet, for example.
    pub counts: Vec<NamedCount>,
}

/// A file of entries, as a node sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FileDescription {
    /// What it is: a `table`, for example.
    pub label: String,
    /// The file's number.
    pub id: u64,
    /// The file's bytes.
    pub bytes: u64,
    /// Entries in the whole file.
    pub entries: u64,
    /// The oldest sequence number.
    pub seqno_min: u64,
    /// The newest sequence number.
    pub seqno_max: u64,
    /// Estimated bytes within the node's range.
    pub live_bytes: u64,
    /// Of its entries: `tombstones`, and `superseded` ones, whose key a younger file of the group holds too. The file's
    /// `index_pages`. In `tph`, `local_index_bytes`, what its local index takes in memory when all of it is there.
    pub counts: Vec<NamedCount>,
}

impl NodeDescription {
    /// Every file of the node, by group.
    pub fn files(&self) -> impl Iterator<Item = &FileDescription> {
        self.groups.iter().flat_map(|group| &group.files)
    }
}

impl GroupDescription {
    /// The count of that name; 0 if there is none.
    pub fn count(&self, name: &str) -> u64 {
        count(&self.counts, name)
    }
}

impl FileDescription {
    /// The count of that name; 0 if there is none.
    pub fn count(&self, name: &str) -> u64 {
        count(&self.counts, name)
    }
}

fn count(counts: &[NamedCount], name: &str) -> u64 {
    counts.iter().find(|(counted, _)| counted == name).map_or(0, |(_, count)| *count)
}

/// Describes a table of which a node has so many bytes.
pub(super) fn described_table<const N: usize>(
    table: &Table,
    live_bytes: u64,
    counts: [(&str, u64); N],
) -> FileDescription {
    let properties = table.properties();
    FileDescription {
        label: "table".to_string(),
        id: table.id().0,
        bytes: table.bytes(),
        entries: properties.entries(),
        seqno_min: properties.seqno_min.0,
        seqno_max: properties.seqno_max.0,
        live_bytes,
        counts: named(counts),
    }
}

/// Counts with their names.
pub(super) fn named<const N: usize>(counts: [(&str, u64); N]) -> Vec<NamedCount> {
    counts.into_iter().map(|(name, count)| (name.to_string(), count)).collect()
}
