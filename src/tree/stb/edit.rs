//! How a change of the trunk is written in the manifest: the nodes and bundles that are new, and the
//! root. What is not new is named by its number (`docs/format/stb-edit.md`).
//!
//! Invariants:
//! 1. An edit names only nodes and bundles that it or an earlier edit of the keyspace defines.
//! 2. Numbers grow: a number is never defined twice.
//! 3. Each bound is written once, as a node's lower bound. A pivot's lower bound is its child's; an upper bound is
//!    the next sibling's lower bound, or the parent's upper. So a trunk that is built has no gaps and no overlaps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::node::{Bundle, BundleId, Derived, EXTENT_LIMIT, Extent, Key, Node, Pivot};
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, NodeId};
use crate::tree::Stretch;

const EDIT_VERSION: u8 = 1;

/// Writes an edit that defines every node and bundle below `root` that `is_new`, children first.
pub(super) fn encode(
    root: &Arc<Node>,
    node_is_new: &dyn Fn(&Node) -> bool,
    bundle_is_new: &dyn Fn(&Bundle) -> bool,
) -> Vec<u8> {
    let mut nodes = Vec::new();
    let mut bundles: BTreeMap<BundleId, &Arc<Bundle>> = BTreeMap::new();
    gather(root, node_is_new, &mut nodes);
    for node in &nodes {
        for bundle in node.bundles.iter().filter(|bundle| bundle_is_new(bundle)) {
            bundles.insert(bundle.id, bundle);
        }
    }
    let mut out = vec![EDIT_VERSION];
    put_varint(&mut out, bundles.len() as u64);
    for bundle in bundles.values() {
        put_varint(&mut out, bundle.id.0);
        put_varint(&mut out, bundle.maplet.file().id().0);
        put_varint(&mut out, bundle.branches.len() as u64);
        for table in &bundle.branches {
            put_varint(&mut out, table.id().0);
        }
    }
    put_varint(&mut out, nodes.len() as u64);
    for node in &nodes {
        encode_node(node, &mut out);
    }
    put_varint(&mut out, root.id.0);
    out
}

fn gather<'a>(node: &'a Arc<Node>, is_new: &dyn Fn(&Node) -> bool, nodes: &mut Vec<&'a Arc<Node>>) {
    // A node above a new one is new: the path was copied.
    if !is_new(node) {
        return;
    }
    for pivot in &node.pivots {
        if let Some(child) = &pivot.child {
            gather(child, is_new, nodes);
        }
    }
    nodes.push(node);
}

fn encode_node(node: &Node, out: &mut Vec<u8>) {
    put_varint(out, node.id.0);
    put_varint(out, u64::from(node.height));
    put_bytes(out, &node.lower);
    put_varint(out, node.bundles.len() as u64);
    for bundle in &node.bundles {
        put_varint(out, bundle.id.0);
    }
    put_varint(out, node.pivots.len() as u64);
    for pivot in &node.pivots {
        put_varint(out, pivot.child.as_ref().map_or(0, |child| child.id.0));
        put_varint(out, pivot.bundle_start as u64);
        put_varint(out, pivot.live.bytes);
        put_varint(out, pivot.live.entries);
    }
}

/// A bundle as an edit defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BundleRecord {
    pub(super) maplet: FileId,
    pub(super) branches: Vec<FileId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PivotRecord {
    /// 0 in a leaf.
    child: u64,
    bundle_start: usize,
    live: Extent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeRecord {
    /// Where it begins in the manifest.
    offset: u64,
    height: u32,
    lower: Vec<u8>,
    bundles: Vec<u64>,
    pivots: Vec<PivotRecord>,
}

/// What a sequence of edits has defined.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    bundles: BTreeMap<u64, BundleRecord>,
    nodes: BTreeMap<u64, NodeRecord>,
    root: u64,
    /// Where the manifest says which node is the root.
    root_offset: u64,
}

/// Deeper trunks do not exist; a damaged manifest must not make recovery recurse without end.
const HEIGHT_MAX: u32 = 64;

/// Opens the files of a bundle that a node names.
pub(super) type OpenBundle<'a> = dyn FnMut(BundleId, &BundleRecord) -> Result<Arc<Bundle>> + 'a;

impl Recovered {
    /// Applies one edit, which begins at `offset` of `file`.
    ///
    /// # Errors
    /// `Corruption` if it cannot be an edit, `UnsupportedVersion` if it is a later one's.
    pub(super) fn apply(&mut self, edit: &[u8], file: &Path, offset: u64) -> Result<()> {
        let mut decoder = Decoder::new(edit, file, offset);
        let version = decoder.u8("stb edit version")?;
        if version != EDIT_VERSION {
            return Err(Error::UnsupportedVersion {
                file: file.to_path_buf(),
                found: u32::from(version),
                supported: u32::from(EDIT_VERSION),
            });
        }
        for _ in 0..decoder.count(3, "stb bundle count")? {
            let id = decoder.varint("stb bundle number")?;
            let maplet = FileId(decoder.varint("stb maplet number")?);
            let count = decoder.count(1, "stb branch count")?;
            let branches = (0..count)
                .map(|_| Ok(FileId(decoder.varint("stb table number")?)))
                .collect::<Result<_>>()?;
            self.bundles.insert(id, BundleRecord { maplet, branches });
        }
        for _ in 0..decoder.count(9, "stb node count")? {
            let (id, node) = decode_node(&mut decoder)?;
            self.nodes.insert(id, node);
        }
        self.root_offset = decoder.offset();
        self.root = decoder.varint("stb root number")?;
        if !decoder.is_empty() {
            return Err(decoder.corrupt("stb edit", "its end", "more bytes"));
        }
        Ok(())
    }

    /// The highest numbers defined, nodes' and bundles'.
    pub(super) fn last_numbers(&self) -> (u64, u64) {
        let last = |key: Option<&u64>| key.copied().unwrap_or(0);
        (last(self.nodes.keys().next_back()), last(self.bundles.keys().next_back()))
    }

    /// The bundles of the root.
    pub(super) fn root_bundles(&self) -> &[u64] {
        self.nodes.get(&self.root).map_or(&[], |root| &root.bundles)
    }

    /// The bundles of the trunk that [`Recovered::build`] will ask for, if nothing is wrong.
    pub(super) fn bundles_in_use(&self) -> BTreeMap<u64, &BundleRecord> {
        let (mut bundles, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut nodes = vec![self.root];
        while let Some(id) = nodes.pop() {
            let Some(node) = self.nodes.get(&id).filter(|_| seen.insert(id)) else { continue };
            let defined = |&id: &u64| self.bundles.get(&id).map(|record| (id, record));
            bundles.extend(node.bundles.iter().filter_map(defined));
            nodes.extend(node.pivots.iter().map(|pivot| pivot.child));
        }
        bundles
    }

    /// The node `id`, which the manifest names at `named_at`.
    fn node(&self, id: u64, named_at: u64, file: &Path) -> Result<&NodeRecord> {
        let defined = "one that an edit defines";
        let missing = || Error::corruption(file, named_at, "stb node number", defined, id);
        self.nodes.get(&id).ok_or_else(missing)
    }

    /// The bundle `id`, which a node names.
    fn bundle(&self, id: u64, node: &NodeRecord, file: &Path) -> Result<&BundleRecord> {
        let defined = "one that an edit defines";
        let missing = || Error::corruption(file, node.offset, "stb bundle number", defined, id);
        self.bundles.get(&id).ok_or_else(missing)
    }

    /// The leaves' ranges, each with the tables that are live in it.
    ///
    /// # Errors
    /// `Corruption` where [`Recovered::build`] says so.
    pub(super) fn stretches(&self, file: &Path) -> Result<Vec<Stretch>> {
        let mut stretches: Vec<Stretch> = Vec::new();
        // Nodes from left to right, each with the tables of the nodes above that are live in it.
        let mut waiting = vec![(self.root_place(file)?, Vec::new())];
        let mut seen = BTreeSet::new();
        while let Some((place, above)) = waiting.pop() {
            let (node, places) = self.node_at(&place, file, &mut seen)?;
            for (pivot, below) in node.pivots.iter().zip(places).rev() {
                let mut tables: Vec<FileId> = above.clone();
                for &number in node.bundles.iter().skip(pivot.bundle_start) {
                    tables.extend(&self.bundle(number, node, file)?.branches);
                }
                if pivot.child != 0 {
                    waiting.push((below, tables));
                    continue;
                }
                let upper = below.upper.as_deref().map(<[u8]>::to_vec);
                stretches.push(Stretch { lower: below.lower.to_vec(), upper, tables });
            }
        }
        Ok(stretches)
    }

    /// Builds the trunk; `open` opens a bundle's files.
    ///
    /// # Errors
    /// `Corruption` if the root or anything below it is undefined or out of order, and what `open`
    /// says.
    pub(super) fn build(&self, file: &Path, open: &mut OpenBundle<'_>) -> Result<Arc<Node>> {
        let (opened, seen) = (BTreeMap::new(), BTreeSet::new());
        let root = self.root_place(file)?;
        Building { recovered: self, file, open, opened, seen }.node(root)
    }

    /// The root's place: all keys, at whatever height it says.
    fn root_place(&self, file: &Path) -> Result<Place> {
        let (id, named_at) = (self.root, self.root_offset);
        let height = self.node(id, named_at, file)?.height;
        Ok(Place { id, named_at, height, lower: Key::from(&[][..]), upper: None })
    }

    /// The node at a place, which it fits and which no other has, with the places of its pivots: those of the nodes
    /// below, or the leaf's own.
    fn node_at(
        &self,
        place: &Place,
        file: &Path,
        seen: &mut BTreeSet<u64>,
    ) -> Result<(&NodeRecord, Vec<Place>)> {
        let Place { id, named_at, height, .. } = *place;
        let node = self.node(id, named_at, file)?;
        if !seen.insert(id) {
            let once = "each node below one other";
            return Err(Error::corruption(file, named_at, "stb node number", once, id));
        }
        check_form(node, height, file)?;
        if *node.lower != *place.lower {
            let expected =
                format_args!("\"{}\", the first key there is", place.lower.escape_ascii());
            return Err(wrong_key(file, node, expected));
        }
        let mut places: Vec<Place> = Vec::with_capacity(node.pivots.len());
        for pivot in &node.pivots {
            let child = match pivot.child {
                0 => node,
                child => self.node(child, node.offset, file)?,
            };
            let lower = Key::from(&*child.lower);
            let ascends = places.last().map_or(lower == place.lower, |last| last.lower < lower);
            if !ascends || place.upper.as_ref().is_some_and(|upper| *upper <= lower) {
                let from = place.lower.escape_ascii();
                let expected = format_args!(
                    "ascending keys from \"{from}\" on in the range of node {id} above it"
                );
                return Err(wrong_key(file, child, expected));
            }
            if let Some(last) = places.last_mut() {
                last.upper = Some(Arc::clone(&lower));
            }
            let (id, height, upper) = (pivot.child, height.saturating_sub(1), place.upper.clone());
            places.push(Place { id, named_at: node.offset, height, lower, upper });
        }
        Ok((node, places))
    }
}

/// Where a node belongs, as the nodes above say.
struct Place {
    id: u64,
    /// Where the manifest names the node.
    named_at: u64,
    height: u32,
    lower: Key,
    upper: Option<Key>,
}

fn wrong_key(file: &Path, node: &NodeRecord, expected: std::fmt::Arguments<'_>) -> Error {
    let found = format_args!("\"{}\"", node.lower.escape_ascii());
    Error::corruption(file, node.offset, "stb node key", expected, found)
}

/// What the numbers of a node say of one another and of the node above, which has it at `height`.
fn check_form(node: &NodeRecord, height: u32, file: &Path) -> Result<()> {
    let wrong = |what, expected: std::fmt::Arguments<'_>, found: std::fmt::Arguments<'_>| {
        Err(Error::corruption(file, node.offset, what, expected, found))
    };
    if node.height != height || height > HEIGHT_MAX {
        return wrong(
            "stb node height",
            format_args!("{height}, one below the node above, at most {HEIGHT_MAX}"),
            format_args!("{}", node.height),
        );
    }
    let pivots = node.pivots.len();
    let childless = node.pivots.iter().filter(|pivot| pivot.child == 0).count();
    let fits = if height == 0 { (pivots, childless) == (1, 1) } else { childless == 0 };
    if !fits {
        return wrong(
            "stb pivot child",
            format_args!("one for each pivot, or none for the only pivot of a leaf"),
            format_args!("{childless} of {pivots} pivots without one at height {height}"),
        );
    }
    let most = if height == 0 { 0 } else { node.bundles.len() };
    match node.pivots.iter().find(|pivot| pivot.bundle_start > most) {
        Some(pivot) => wrong(
            "stb pivot bundle start",
            format_args!("at most {most}"),
            format_args!("{}", pivot.bundle_start),
        ),
        None => Ok(()),
    }
}

/// The trunk in the making, from the root down.
struct Building<'a, 'b> {
    recovered: &'a Recovered,
    file: &'a Path,
    open: &'a mut OpenBundle<'b>,
    opened: BTreeMap<u64, Arc<Bundle>>,
    seen: BTreeSet<u64>,
}

impl Building<'_, '_> {
    /// Builds the node at a place, and what is below it.
    fn node(&mut self, place: Place) -> Result<Arc<Node>> {
        let recovered = self.recovered;
        let (record, places) = recovered.node_at(&place, self.file, &mut self.seen)?;
        let bundles: Vec<Arc<Bundle>> =
            record.bundles.iter().map(|&id| self.bundle(id, record)).collect::<Result<_>>()?;
        let mut pivots = Vec::with_capacity(places.len());
        for (pivot, below) in record.pivots.iter().zip(places) {
            let PivotRecord { child, bundle_start, live } = *pivot;
            let lower = Arc::clone(&below.lower);
            let child = if child == 0 { None } else { Some(self.node(below)?) };
            pivots.push(Pivot { lower, child, bundle_start, live });
        }
        Ok(Arc::new(Node {
            summary: Derived::default(),
            seeks: Arc::default(),
            id: NodeId(place.id),
            height: place.height,
            lower: place.lower,
            upper: place.upper,
            pivots,
            bundles,
        }))
    }

    /// The bundle `id` that a node names, opened once.
    fn bundle(&mut self, id: u64, node: &NodeRecord) -> Result<Arc<Bundle>> {
        if let Some(bundle) = self.opened.get(&id) {
            return Ok(Arc::clone(bundle));
        }
        let record = self.recovered.bundle(id, node, self.file)?;
        let bundle = (self.open)(BundleId(id), record)?;
        self.opened.insert(id, Arc::clone(&bundle));
        Ok(bundle)
    }
}

fn decode_node(decoder: &mut Decoder<'_>) -> Result<(u64, NodeRecord)> {
    let offset = decoder.offset();
    let id = decoder.varint("stb node number")?;
    let height = decoder.varint("stb node height")?;
    let height = u32::try_from(height)
        .map_err(|_| decoder.corrupt("stb node height", "a small number", height))?;
    let lower = decoder.byte_string("stb node key")?.to_vec();
    let count = decoder.count(1, "stb node bundle count")?;
    let bundles = (0..count)
        .map(|_| decoder.varint("stb node bundle number"))
        .collect::<Result<Vec<u64>>>()?;
    let count = decoder.count(4, "stb pivot count")?;
    if count == 0 {
        return Err(decoder.corrupt("stb pivot count", "at least 1", 0));
    }
    let mut pivots = Vec::with_capacity(count);
    for _ in 0..count {
        let child = decoder.varint("stb pivot child")?;
        let bundle_start = decoder.varint("stb pivot bundle start")?;
        let bundle_start = usize::try_from(bundle_start).map_err(|_| {
            decoder.corrupt("stb pivot bundle start", "a small number", bundle_start)
        })?;
        let bytes = decoder.varint("stb pivot bytes")?;
        let entries = decoder.varint("stb pivot entries")?;
        // Sums of these are made without looking.
        if bytes | entries >= EXTENT_LIMIT {
            return Err(decoder.corrupt("stb pivot size", "below 2^48", bytes.max(entries)));
        }
        pivots.push(PivotRecord { child, bundle_start, live: Extent { bytes, entries } });
    }
    Ok((id, NodeRecord { offset, height, lower, bundles, pivots }))
}

#[cfg(any(test, feature = "fuzz"))]
impl crate::tree::edits::Edits for Recovered {
    fn take(&mut self, edit: &[u8], file: &Path) -> Result<()> {
        self.apply(edit, file, 0)
    }

    fn rewritten(&self, file: &Path) -> Result<Vec<u8>> {
        // A bundle needs its files; a trunk without any is built.
        let mut refuse = |_, _: &_| Err(Error::corruption(file, 0, "bundle", "files", "none"));
        Ok(encode(&self.build(file, &mut refuse)?, &|_| true, &|_| true))
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
