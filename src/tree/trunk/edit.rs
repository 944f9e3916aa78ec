//! The trunk's part of an edit: bundles, and of nodes the bundles and pivots (`docs/format/stb-edit.md`).
//!
//! Invariants:
//! 1. An edit names only bundles that it or an earlier edit of the keyspace defines.
//! 2. A pivot's lower bound is not written: it is its child's, or the leaf's own.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use super::node::{Bundle, BundleId, Node, Pivot};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, NodeId};
use crate::tree::range::{RangeSize, SIZE_LIMIT};
use crate::tree::versioned::{self, DEFINED, EDIT_VERSION, Names, NodeBody, NodeRef, Recovered};

/// The version of an edit with a bundle that has no index but that of its only table.
const VERSION_WITH_PIECES: u8 = 2;

const BUNDLE_NUMBER: &str = "stb bundle number";

/// Writes an edit that defines the nodes below `root` of a number from `first_new` on, and every bundle of them that
/// `is_new`.
pub(super) fn encode(
    root: &Arc<Node>,
    first_new: u64,
    is_new: impl Fn(&Bundle) -> bool,
) -> Vec<u8> {
    let bundles = |nodes: &[&Arc<Node>], out: &mut Vec<u8>| {
        let bundles = nodes.iter().flat_map(|node| &node.bundles).filter(|bundle| is_new(bundle));
        let bundles: BTreeMap<BundleId, &Arc<Bundle>> =
            bundles.map(|bundle| (bundle.id, bundle)).collect();
        put_varint(out, bundles.len() as u64);
        for bundle in bundles.values() {
            put_varint(out, bundle.id.0);
            put_varint(out, bundle.index.file().id().0);
            put_varint(out, bundle.branches.len() as u64);
            for table in &bundle.branches {
                put_varint(out, table.id().0);
            }
        }
        match bundles.values().all(|bundle| bundle.index.own_file().is_some()) {
            true => EDIT_VERSION,
            false => VERSION_WITH_PIECES,
        }
    };
    versioned::encode(root, first_new, bundles, encode_body)
}

fn encode_body(node: &Node, out: &mut Vec<u8>) {
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
pub(in crate::tree) struct BundleRecord {
    pub(super) maplet: FileId,
    pub(super) branches: Vec<FileId>,
}

impl BundleRecord {
    /// Whether the index is that of the only branch.
    pub(super) fn is_piece(&self) -> bool {
        *self.branches == [self.maplet]
    }
}

/// All bundles that edits define.
pub(super) type BundleRecords = BTreeMap<u64, BundleRecord>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct PivotRecord {
    /// 0 in a leaf.
    child: u64,
    bundle_start: usize,
    live: RangeSize,
}

/// The part of a node's record that is this kind's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Body {
    pub(super) bundles: Vec<u64>,
    pivots: Vec<PivotRecord>,
}

impl NodeBody for Body {
    const NAMES: Names = Names {
        edit: "stb edit",
        version: "stb edit version",
        root: "stb root number",
        count: "stb node count",
        number: "stb node number",
        height: "stb node height",
        key: "stb node key",
    };
    const VERSION_MAX: u8 = VERSION_WITH_PIECES;
    const RECORD_BYTES_MIN: usize = 9;
    type Shared = BundleRecords;

    fn decode_shared(decoder: &mut Decoder<'_>, bundles: &mut BundleRecords) -> Result<()> {
        for _ in 0..decoder.count(3, "stb bundle count")? {
            let id = decoder.varint(BUNDLE_NUMBER)?;
            let maplet = FileId(decoder.varint("stb maplet number")?);
            let count = decoder.count(1, "stb branch count")?;
            let branches = (0..count)
                .map(|_| Ok(FileId(decoder.varint("stb table number")?)))
                .collect::<Result<_>>()?;
            bundles.insert(id, BundleRecord { maplet, branches });
        }
        Ok(())
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Body> {
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
            if bytes | entries >= SIZE_LIMIT {
                return Err(decoder.corrupt("stb pivot size", "below 2^48", bytes.max(entries)));
            }
            pivots.push(PivotRecord { child, bundle_start, live: RangeSize { bytes, entries } });
        }
        Ok(Body { bundles, pivots })
    }

    fn children(&self) -> impl Iterator<Item = u64> {
        self.pivots.iter().map(|pivot| pivot.child).filter(|child| *child != 0)
    }

    fn check(&self, height: u32, wrong: &mut dyn FnMut(&'static str, &dyn Display, &dyn Display)) {
        let pivots = self.pivots.len();
        let childless = pivots - self.children().count();
        let fits = if height == 0 { (pivots, childless) == (1, 1) } else { childless == 0 };
        if !fits {
            let expected = "one for each pivot, or none for the only pivot of a leaf";
            let found =
                format_args!("{childless} of {pivots} pivots without one at height {height}");
            return wrong("stb pivot child", &expected, &found);
        }
        let most = if height == 0 { 0 } else { self.bundles.len() };
        if let Some(pivot) = self.pivots.iter().find(|pivot| pivot.bundle_start > most) {
            let expected = format_args!("at most {most}");
            wrong("stb pivot bundle start", &expected, &pivot.bundle_start);
        }
    }

    fn tables(
        &self,
        child: usize,
        bundles: &BundleRecords,
        tables: &mut Vec<FileId>,
    ) -> std::result::Result<(), (&'static str, u64)> {
        let live_from = self.pivots.get(child).map_or(0, |pivot| pivot.bundle_start);
        for number in self.bundles.iter().skip(live_from) {
            tables.extend(&bundles.get(number).ok_or((BUNDLE_NUMBER, *number))?.branches);
        }
        Ok(())
    }
}

/// The bundles of the trunk that [`build`] will ask for, if nothing is wrong.
pub(super) fn bundles_in_use(recovered: &Recovered<Body>) -> BTreeMap<u64, &BundleRecord> {
    let nodes = recovered.reachable();
    let ids = nodes.iter().flat_map(|node| &node.body.bundles);
    ids.filter_map(|&id| recovered.shared.get(&id).map(|record| (id, record))).collect()
}

/// Opens the files of a bundle that a node names.
pub(super) type OpenBundle<'a> = dyn FnMut(BundleId, &BundleRecord) -> Result<Arc<Bundle>> + 'a;

/// Builds the trunk that edits have defined; `open` opens a bundle's files, once.
///
/// # Errors
/// As [`Recovered::build`], `Corruption` for a bundle that is not defined, and what `open` returns.
pub(super) fn build(
    recovered: &Recovered<Body>,
    file: &Path,
    open: &mut OpenBundle<'_>,
) -> Result<Arc<Node>> {
    let mut opened: BTreeMap<u64, Arc<Bundle>> = BTreeMap::new();
    recovered.build(file, &mut |NodeRef { id, place, .. }, record, children| {
        let mut node = Node::empty(place.height, place.lower, place.upper);
        node.id = NodeId(id);
        for id in &record.body.bundles {
            let bundle = match opened.get(id) {
                Some(bundle) => Arc::clone(bundle),
                None => {
                    let Some(bundle) = recovered.shared.get(id) else {
                        let at = record.offset;
                        return Err(Error::corruption(file, at, BUNDLE_NUMBER, DEFINED, id));
                    };
                    let bundle = open(BundleId(*id), bundle)?;
                    opened.insert(*id, Arc::clone(&bundle));
                    bundle
                }
            };
            node.bundles.push(bundle);
        }
        // A leaf's only pivot has no child.
        let children = children.into_iter().map(Some).chain([None]);
        for (&PivotRecord { bundle_start, live, .. }, child) in
            record.body.pivots.iter().zip(children)
        {
            let lower = child.as_ref().map_or(&node.lower, |child| &child.lower);
            node.pivots.push(Pivot { lower: Arc::clone(lower), child, bundle_start, live });
        }
        Ok(node)
    })
}

#[cfg(any(test, feature = "fuzz"))]
impl crate::tree::edits::Edits for Recovered<Body> {
    fn take(&mut self, edit: &[u8], file: &Path) -> Result<()> {
        self.apply(edit, file, 0)
    }

    fn rewritten(&self, file: &Path) -> Result<Vec<u8>> {
        // A bundle needs its files; a trunk without any is built.
        let none = || Error::corruption(file, 0, "bundle", "files", "none");
        Ok(encode(&build(self, file, &mut |_, _| Err(none()))?, 0, |_| true))
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
