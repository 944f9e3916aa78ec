//! Edits: how changes of a tree are written in the manifest. An edit defines the nodes that are new and names the root;
//! what is not new is named by its number. What a node's record has beyond its number and place is the kind's.
//!
//! Invariants:
//! 1. An edit names only nodes that it or an earlier edit of the keyspace defines.
//! 2. Each bound is written once, as a node's lower bound. A node's upper bound is the next sibling's lower bound, or
//!    that of the node above. So a tree that is built has no gaps and no overlaps.
//! 3. What builds a tree, and what only reads its key ranges, checks the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};
use std::path::Path;
use std::sync::Arc;

use super::node::{Place, TreeNode};
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::manifest::TreeEdit;
use crate::tree::RepairRange;
use crate::tree::range::Key;

/// The version of an edit without anything newer.
pub(in crate::tree) const EDIT_VERSION: u8 = 1;

/// Higher trees do not exist; a damaged manifest must not make recovery recurse endlessly.
const HEIGHT_MAX: u32 = 64;

/// The names of an edit's fields in errors.
pub(in crate::tree) struct Names {
    pub(in crate::tree) edit: &'static str,
    pub(in crate::tree) version: &'static str,
    pub(in crate::tree) root: &'static str,
    pub(in crate::tree) count: &'static str,
    pub(in crate::tree) number: &'static str,
    pub(in crate::tree) height: &'static str,
    pub(in crate::tree) key: &'static str,
}

/// The part of a node's record that is the kind's own.
pub(in crate::tree) trait NodeBody: Debug + Sized {
    const NAMES: Names;
    /// The highest version of edits.
    const VERSION_MAX: u8 = EDIT_VERSION;
    /// The least number of bytes that a node's record has.
    const RECORD_BYTES_MIN: usize;
    /// What edits define beside nodes.
    type Shared: Debug + Default;

    /// Decodes what an edit defines beside nodes, which comes before them.
    fn decode_shared(_decoder: &mut Decoder<'_>, _shared: &mut Self::Shared) -> Result<()> {
        Ok(())
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self>;

    /// The numbers of the nodes below, left to right.
    fn children(&self) -> impl Iterator<Item = u64>;

    /// Calls `wrong` with the name of a field, and with what is expected and found in it, if the body does not fit a
    /// node of this height.
    fn check(&self, height: u32, wrong: &mut dyn FnMut(&'static str, &dyn Display, &dyn Display));

    /// Adds the tables that may hold entries of a child's range, or of a leaf's.
    ///
    /// # Errors
    /// The name and the number of what is not defined.
    fn tables(
        &self,
        child: usize,
        shared: &Self::Shared,
        tables: &mut Vec<FileId>,
    ) -> std::result::Result<(), (&'static str, u64)>;
}

/// A node as an edit defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct NodeRecord<B> {
    /// Where it begins in the manifest.
    pub(in crate::tree) offset: u64,
    height: u32,
    lower: Vec<u8>,
    pub(in crate::tree) body: B,
}

/// A reference to a node.
pub(in crate::tree) struct NodeRef {
    pub(in crate::tree) id: u64,
    /// Where the manifest names the node.
    named_at: u64,
    /// Where the nodes above have it.
    pub(in crate::tree) place: Place,
}

/// Writes an edit that defines the nodes below `root` of a number from `first_new` on, children first. `shared` writes
/// what the edit defines beside these nodes, and returns the least version that has it.
pub(in crate::tree) fn encode<N: TreeNode>(
    root: &Arc<N>,
    first_new: u64,
    shared: impl FnOnce(&[&Arc<N>], &mut Vec<u8>) -> u8,
    body: impl Fn(&N, &mut Vec<u8>),
) -> Vec<u8> {
    let mut nodes = Vec::new();
    gather(root, first_new, &mut nodes);
    let mut out = vec![EDIT_VERSION];
    out[0] = shared(&nodes, &mut out);
    put_varint(&mut out, nodes.len() as u64);
    for node in nodes {
        put_varint(&mut out, node.id.0);
        put_varint(&mut out, u64::from(node.height));
        put_bytes(&mut out, &node.lower);
        body(node, &mut out);
    }
    put_varint(&mut out, root.id.0);
    out
}

fn gather<'a, N: TreeNode>(node: &'a Arc<N>, first_new: u64, nodes: &mut Vec<&'a Arc<N>>) {
    // A node above a new one is new: the path was copied.
    if node.id.0 < first_new {
        return;
    }
    node.children().for_each(|child| gather(child, first_new, nodes));
    nodes.push(node);
}

/// What a sequence of edits has defined.
#[derive(Debug)]
pub(in crate::tree) struct Recovered<B: NodeBody> {
    nodes: BTreeMap<u64, NodeRecord<B>>,
    pub(in crate::tree) shared: B::Shared,
    root: u64,
    /// Where the manifest says which node is the root.
    root_offset: u64,
}

impl<B: NodeBody> Default for Recovered<B> {
    fn default() -> Recovered<B> {
        let (nodes, shared) = (BTreeMap::new(), B::Shared::default());
        Recovered { nodes, shared, root: 0, root_offset: 0 }
    }
}

impl<B: NodeBody> Recovered<B> {
    /// Applies the edits of a keyspace.
    ///
    /// # Errors
    /// As [`Recovered::apply`].
    pub(super) fn of_edits(edits: &[TreeEdit], file: &Path) -> Result<Recovered<B>> {
        let mut recovered = Recovered::default();
        edits.iter().try_for_each(|edit| recovered.apply(&edit.bytes, file, edit.offset))?;
        Ok(recovered)
    }

    /// Applies one edit, which begins at `offset` of `file`.
    ///
    /// # Errors
    /// `Corruption` if it cannot be an edit, `UnsupportedVersion` if it is a later one's.
    pub(in crate::tree) fn apply(&mut self, edit: &[u8], file: &Path, offset: u64) -> Result<()> {
        let mut decoder = Decoder::new(edit, file, offset);
        let version = decoder.u8(B::NAMES.version)?;
        if !(EDIT_VERSION..=B::VERSION_MAX).contains(&version) {
            return Err(Error::UnsupportedVersion {
                file: file.to_path_buf(),
                found: u32::from(version),
                supported: u32::from(B::VERSION_MAX),
            });
        }
        B::decode_shared(&mut decoder, &mut self.shared)?;
        for _ in 0..decoder.count(B::RECORD_BYTES_MIN, B::NAMES.count)? {
            let offset = decoder.offset();
            let id = decoder.varint(B::NAMES.number)?;
            let height = decoder.varint(B::NAMES.height)?;
            let height = u32::try_from(height)
                .map_err(|_| decoder.corrupt(B::NAMES.height, "a small number", height))?;
            let lower = decoder.byte_string(B::NAMES.key)?.to_vec();
            let body = B::decode(&mut decoder)?;
            self.nodes.insert(id, NodeRecord { offset, height, lower, body });
        }
        self.root_offset = decoder.offset();
        self.root = decoder.varint(B::NAMES.root)?;
        if !decoder.is_empty() {
            return Err(decoder.corrupt(B::NAMES.edit, "its end", "more bytes"));
        }
        Ok(())
    }

    /// The highest number of a node.
    pub(in crate::tree) fn last_number(&self) -> u64 {
        self.nodes.keys().next_back().copied().unwrap_or(0)
    }

    pub(in crate::tree) fn root(&self) -> Option<&NodeRecord<B>> {
        self.nodes.get(&self.root)
    }

    /// The nodes that [`Recovered::build`] will make, if nothing is wrong.
    pub(in crate::tree) fn reachable(&self) -> Vec<&NodeRecord<B>> {
        let (mut nodes, mut seen) = (Vec::new(), BTreeSet::new());
        let mut waiting = vec![self.root];
        while let Some(id) = waiting.pop() {
            let Some(node) = self.nodes.get(&id).filter(|_| seen.insert(id)) else { continue };
            waiting.extend(node.body.children());
            nodes.push(node);
        }
        nodes
    }

    /// The key ranges of the last level, each with the tables that may hold entries of it.
    ///
    /// # Errors
    /// `Corruption` where [`Recovered::build`] says so.
    pub(in crate::tree) fn repair_ranges(&self, file: &Path) -> Result<Vec<RepairRange>> {
        let mut repair_ranges: Vec<RepairRange> = Vec::new();
        // Nodes from left to right, each with the tables of the nodes above that count in it.
        let mut waiting = vec![(self.root_ref(file)?, Vec::new())];
        let mut seen = BTreeSet::new();
        while let Some((node_ref, above)) = waiting.pop() {
            let (node, below) = self.resolve(&node_ref, file, &mut seen)?;
            let tables = |child: usize| -> Result<Vec<FileId>> {
                let mut tables: Vec<FileId> = above.clone();
                node.body.tables(child, &self.shared, &mut tables).map_err(|(what, number)| {
                    Error::corruption(file, node.offset, what, DEFINED, number)
                })?;
                Ok(tables)
            };
            if below.is_empty() {
                let Place { lower, upper, .. } = node_ref.place;
                let upper = upper.map(|upper| upper.to_vec());
                repair_ranges.push(RepairRange {
                    lower: lower.to_vec(),
                    upper,
                    tables: tables(0)?,
                });
            }
            for (at, child) in below.into_iter().enumerate().rev() {
                waiting.push((child, tables(at)?));
            }
        }
        Ok(repair_ranges)
    }

    /// Builds the tree: `make` makes a node of what it is referred to by, its record, and the nodes below it.
    ///
    /// # Errors
    /// `Corruption` if the root or anything below it is undefined or out of order, and what `make` returns.
    pub(in crate::tree) fn build<N>(
        &self,
        file: &Path,
        make: &mut MakeNode<'_, B, N>,
    ) -> Result<Arc<N>> {
        self.build_below(self.root_ref(file)?, file, &mut BTreeSet::new(), make)
    }

    fn build_below<N>(
        &self,
        node_ref: NodeRef,
        file: &Path,
        seen: &mut BTreeSet<u64>,
        make: &mut MakeNode<'_, B, N>,
    ) -> Result<Arc<N>> {
        let (node, below) = self.resolve(&node_ref, file, seen)?;
        let children: Vec<Arc<N>> = below
            .into_iter()
            .map(|child| self.build_below(child, file, seen, make))
            .collect::<Result<_>>()?;
        make(node_ref, node, children).map(Arc::new)
    }

    /// The node `id`, which the manifest names at `named_at`.
    fn node(&self, id: u64, named_at: u64, file: &Path) -> Result<&NodeRecord<B>> {
        let missing = || Error::corruption(file, named_at, B::NAMES.number, DEFINED, id);
        self.nodes.get(&id).ok_or_else(missing)
    }

    /// The root: all keys, at whatever height it says.
    fn root_ref(&self, file: &Path) -> Result<NodeRef> {
        let (id, named_at) = (self.root, self.root_offset);
        let height = self.node(id, named_at, file)?.height;
        let place = Place { height, lower: Key::from(&[][..]), upper: None };
        Ok(NodeRef { id, named_at, place })
    }

    /// The node that is referred to, which fits its place and is nowhere else in the tree, and the nodes below it.
    fn resolve(
        &self,
        node_ref: &NodeRef,
        file: &Path,
        seen: &mut BTreeSet<u64>,
    ) -> Result<(&NodeRecord<B>, Vec<NodeRef>)> {
        let NodeRef { id, named_at, place: Place { height, lower, upper } } = node_ref;
        let node = self.node(*id, *named_at, file)?;
        if !seen.insert(*id) {
            let once = "each below one other";
            return Err(Error::corruption(file, *named_at, B::NAMES.number, once, id));
        }
        node.check_form(*height, file)?;
        if *node.lower != **lower {
            let expected = format_args!("\"{}\", the first of its range", lower.escape_ascii());
            return Err(node.wrong_key(file, expected));
        }
        let mut below: Vec<NodeRef> = Vec::new();
        for child in node.body.children() {
            let record = self.node(child, node.offset, file)?;
            let from = Key::from(&*record.lower);
            let ascends = below.last().map_or(from == *lower, |last| last.place.lower < from);
            if !ascends || upper.as_ref().is_some_and(|upper| *upper <= from) {
                let first = lower.escape_ascii();
                let expected =
                    format_args!("ascending keys from \"{first}\" on in the range of {id} above");
                return Err(record.wrong_key(file, expected));
            }
            if let Some(last) = below.last_mut() {
                last.place.upper = Some(Arc::clone(&from));
            }
            let (height, upper) = (height.saturating_sub(1), upper.clone());
            let place = Place { height, lower: from, upper };
            below.push(NodeRef { id: child, named_at: node.offset, place });
        }
        Ok((node, below))
    }
}

/// Makes a node: see [`Recovered::build`].
pub(in crate::tree) type MakeNode<'a, B, N> =
    dyn FnMut(NodeRef, &NodeRecord<B>, Vec<Arc<N>>) -> Result<N> + 'a;

/// What is expected of a number that no edit defines.
pub(in crate::tree) const DEFINED: &str = "one that an edit defines";

impl<B: NodeBody> NodeRecord<B> {
    /// What the numbers of a node say of one another and of the node above, which has it at `height`.
    fn check_form(&self, height: u32, file: &Path) -> Result<()> {
        if self.height != height || height > HEIGHT_MAX {
            return Err(Error::corruption(
                file,
                self.offset,
                B::NAMES.height,
                format_args!("{height}, one below the node above, at most {HEIGHT_MAX}"),
                self.height,
            ));
        }
        let mut found = Ok(());
        self.body.check(height, &mut |what, expected, value| {
            found = Err(Error::corruption(file, self.offset, what, expected, value));
        });
        found
    }

    fn wrong_key(&self, file: &Path, expected: std::fmt::Arguments<'_>) -> Error {
        let found = format_args!("\"{}\"", self.lower.escape_ascii());
        Error::corruption(file, self.offset, B::NAMES.key, expected, found)
    }
}
