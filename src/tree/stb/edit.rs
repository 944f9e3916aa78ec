//! How a change of the trunk is written in the manifest: the nodes and bundles that are new, and the
//! root. What is not new is named by its number (`docs/format/stb-edit.md`).
//!
//! Invariants:
//! 1. An edit names only nodes and bundles that it or an earlier edit of the keyspace defines.
//! 2. Numbers grow: a number is never defined twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::node::{Bundle, BundleId, Derived, Extent, Key, Node, Pivot};
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
    out.push(u8::from(node.upper.is_some()));
    if let Some(upper) = &node.upper {
        put_bytes(out, upper);
    }
    put_varint(out, node.bundles.len() as u64);
    for bundle in &node.bundles {
        put_varint(out, bundle.id.0);
    }
    put_varint(out, node.pivots.len() as u64);
    for pivot in &node.pivots {
        put_bytes(out, &pivot.lower);
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
    lower: Vec<u8>,
    child: u64,
    bundle_start: usize,
    live: Extent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeRecord {
    height: u32,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    bundles: Vec<u64>,
    pivots: Vec<PivotRecord>,
}

/// What a sequence of edits has defined.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    bundles: BTreeMap<u64, BundleRecord>,
    nodes: BTreeMap<u64, NodeRecord>,
    root: u64,
}

/// Deeper trunks do not exist; a damaged manifest must not make recovery recurse without end.
const HEIGHT_MAX: u32 = 64;

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
        for _ in 0..decoder.count(6, "stb node count")? {
            let (id, node) = decode_node(&mut decoder)?;
            self.nodes.insert(id, node);
        }
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

    /// The leaves' ranges, each with the tables that are live in it.
    ///
    /// # Errors
    /// `Corruption` if a node or bundle is undefined.
    pub(super) fn stretches(&self, file: &Path) -> Result<Vec<Stretch>> {
        let missing = |what| Error::corruption(file, 0, what, "one that an edit defines", "none");
        let mut stretches = Vec::new();
        // A node, and the tables of the nodes above that are live in it. No more nodes are looked at than
        // there are, should they name each other in a circle.
        let mut waiting = vec![(self.root, Vec::new())];
        let mut left = self.nodes.len();
        while let Some((id, above)) = waiting.pop() {
            let node = self.nodes.get(&id).ok_or_else(|| missing("stb node number"))?;
            left = left.checked_sub(1).ok_or_else(|| missing("stb node number"))?;
            for (at, pivot) in node.pivots.iter().enumerate().rev() {
                let mut tables: Vec<FileId> = above.clone();
                for number in node.bundles.iter().skip(pivot.bundle_start) {
                    let bundle = self.bundles.get(number);
                    let bundle = bundle.ok_or_else(|| missing("stb bundle number"))?;
                    tables.extend(&bundle.branches);
                }
                if pivot.child != 0 {
                    waiting.push((pivot.child, tables));
                    continue;
                }
                let next = node.pivots.get(at + 1).map(|next| next.lower.clone());
                let (lower, upper) = (pivot.lower.clone(), next.or_else(|| node.upper.clone()));
                stretches.push(Stretch { lower, upper, tables });
            }
        }
        stretches.sort_by(|a, b| a.lower.cmp(&b.lower));
        Ok(stretches)
    }

    /// Builds the trunk; `open` opens a bundle's files.
    ///
    /// # Errors
    /// `Corruption` if the root or anything below it is undefined or out of order, and what `open`
    /// says.
    pub(super) fn build(
        &self,
        file: &Path,
        open: &mut dyn FnMut(BundleId, &BundleRecord) -> Result<Arc<Bundle>>,
    ) -> Result<Arc<Node>> {
        let (mut opened, mut built) = (BTreeMap::new(), BTreeSet::new());
        self.build_node(self.root, HEIGHT_MAX, file, &mut opened, &mut built, open)
    }

    fn build_node(
        &self,
        id: u64,
        height_max: u32,
        file: &Path,
        opened: &mut BTreeMap<u64, Arc<Bundle>>,
        built: &mut BTreeSet<u64>,
        open: &mut dyn FnMut(BundleId, &BundleRecord) -> Result<Arc<Bundle>>,
    ) -> Result<Arc<Node>> {
        let missing = |what, id: u64| {
            Error::corruption(file, 0, what, "one that an edit defines", format_args!("{id}"))
        };
        let record = self.nodes.get(&id).ok_or_else(|| missing("stb node number", id))?;
        if !built.insert(id) {
            let once = "each node below one other";
            return Err(Error::corruption(file, 0, "stb node number", once, id));
        }
        if record.height > height_max
            || (record.height == 0) != (record.pivots.len() == 1 && record.pivots[0].child == 0)
        {
            return Err(Error::corruption(
                file,
                0,
                "stb node height",
                format_args!("at most {height_max}, and 0 for leaves alone"),
                record.height,
            ));
        }
        let mut bundles = Vec::with_capacity(record.bundles.len());
        for &number in &record.bundles {
            let bundle = match opened.get(&number) {
                Some(bundle) => Arc::clone(bundle),
                None => {
                    let defined = self
                        .bundles
                        .get(&number)
                        .ok_or_else(|| missing("stb bundle number", number))?;
                    let bundle = open(BundleId(number), defined)?;
                    opened.insert(number, Arc::clone(&bundle));
                    bundle
                }
            };
            bundles.push(bundle);
        }
        let mut pivots: Vec<Pivot> = Vec::with_capacity(record.pivots.len());
        for pivot in &record.pivots {
            let sorted = match pivots.last() {
                Some(last) => *last.lower < *pivot.lower,
                None => record.lower == pivot.lower,
            };
            if !sorted || pivot.bundle_start > bundles.len() {
                return Err(Error::corruption(
                    file,
                    0,
                    "stb pivot",
                    "a higher key than the one before, and a bundle of the node",
                    format_args!(
                        "{:?}, bundle {}",
                        pivot.lower.escape_ascii().to_string(),
                        pivot.bundle_start
                    ),
                ));
            }
            let child = match pivot.child {
                0 => None,
                child => Some(self.build_node(
                    child,
                    record.height.saturating_sub(1),
                    file,
                    opened,
                    built,
                    open,
                )?),
            };
            pivots.push(Pivot {
                lower: Key::from(&*pivot.lower),
                child,
                bundle_start: pivot.bundle_start,
                live: pivot.live,
            });
        }
        Ok(Arc::new(Node {
            summary: Derived::default(),
            seeks: Arc::default(),
            id: NodeId(id),
            height: record.height,
            lower: Key::from(&*record.lower),
            upper: record.upper.as_deref().map(Key::from),
            pivots,
            bundles,
        }))
    }
}

fn decode_node(decoder: &mut Decoder<'_>) -> Result<(u64, NodeRecord)> {
    let id = decoder.varint("stb node number")?;
    let height = decoder.varint("stb node height")?;
    let height = u32::try_from(height)
        .map_err(|_| decoder.corrupt("stb node height", "a small number", height))?;
    let lower = decoder.byte_string("stb node lower bound")?.to_vec();
    let upper = match decoder.u8("stb node upper flag")? {
        0 => None,
        1 => Some(decoder.byte_string("stb node upper bound")?.to_vec()),
        other => return Err(decoder.corrupt("stb node upper flag", "0 or 1", other)),
    };
    let count = decoder.count(1, "stb node bundle count")?;
    let bundles = (0..count)
        .map(|_| decoder.varint("stb node bundle number"))
        .collect::<Result<Vec<u64>>>()?;
    let count = decoder.count(5, "stb pivot count")?;
    if count == 0 {
        return Err(decoder.corrupt("stb pivot count", "at least 1", 0));
    }
    let mut pivots = Vec::with_capacity(count);
    for _ in 0..count {
        let lower = decoder.byte_string("stb pivot bound")?.to_vec();
        let child = decoder.varint("stb pivot child")?;
        let bundle_start = decoder.varint("stb pivot bundle start")?;
        let bundle_start = usize::try_from(bundle_start).map_err(|_| {
            decoder.corrupt("stb pivot bundle start", "a small number", bundle_start)
        })?;
        let bytes = decoder.varint("stb pivot bytes")?;
        let entries = decoder.varint("stb pivot entries")?;
        pivots.push(PivotRecord { lower, child, bundle_start, live: Extent { bytes, entries } });
    }
    Ok((id, NodeRecord { height, lower, upper, bundles, pivots }))
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
