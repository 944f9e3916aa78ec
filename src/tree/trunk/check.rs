//! Verifies a version: the trunk's shape, every table, every maplet, and that they agree.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::node::{Bundle, Node, bundles, tables};
use crate::base::error::{Error, Result};
use crate::cache::ReadContext;
use crate::tree::versioned::{TreeNode, check_shape, walk};
use crate::tree::{CheckCounts, files, wrong_node};

/// Bytes that a checking scan reads at once.
const CHUNK_BYTES: usize = 256 << 10;

pub(super) fn check(
    root: &Arc<Node>,
    manifest: &Path,
    full: bool,
    problem: &mut dyn FnMut(Error),
) -> CheckCounts {
    check_shape(root, manifest, problem);
    walk(root, &mut |node| check_pivots(node, manifest, problem));
    let bundles = bundles(root);
    let mut counts = files::check(&tables(&bundles), full, problem);
    let mut seen = BTreeSet::new();
    for bundle in bundles {
        let Some(file) = bundle.index.own_file() else {
            if full && let Err(error) = check_piece(bundle) {
                problem(error);
            }
            continue;
        };
        if !seen.insert(file.id()) {
            continue;
        }
        counts.files += 1;
        counts.pages += u64::from(file.units());
        if full && let Err(error) = bundle.index.check() {
            problem(error);
        }
    }
    if full && let Err(error) = check_coverage(root) {
        problem(error);
    }
    counts
}

/// A piece without a head has a local index with signatures, which the check of its table compares with its keys.
fn check_piece(bundle: &Bundle) -> Result<()> {
    for table in &bundle.branches {
        if table.piece(&ReadContext::blocking())?.is_none_or(|piece| !piece.has_signatures()) {
            let (path, what) = (table.pages().path(), "local index of a piece without a head");
            return Err(Error::corruption(&path, 0, what, "signatures", "none"));
        }
    }
    Ok(())
}

/// The invariants of a node's pivots (see `node`).
fn check_pivots(node: &Node, manifest: &Path, problem: &mut dyn FnMut(Error)) {
    let mut wrong = |what: &'static str, expected: &str, found: String| {
        problem(wrong_node(manifest, node.id.0, what, expected, found));
    };
    let children = node.children().count();
    if node.pivots.len() != children.max(1) {
        let found = format!("{} for {children} children", node.pivots.len());
        wrong("pivot count", "one for each child, or one of a leaf", found);
    }
    if node.pivots.first().is_none_or(|first| first.lower != node.lower) {
        wrong("first pivot", "the node's lower bound", format!("{:?}", node.lower));
    }
    for (position, pivot) in node.pivots.iter().enumerate() {
        if pivot.bundle_start > node.bundles.len() {
            wrong("bundle start", "at most the bundle count", pivot.bundle_start.to_string());
        }
        if pivot.child.as_ref().is_some_and(|child| child.lower != pivot.lower) {
            wrong("pivot", "the lower bound of its child", format!("pivot {position}"));
        }
    }
}

/// Every key of every branch must be named by its bundle's index, in the ranges that are read. That of an only piece is
/// compared with the keys when the table is checked.
fn check_coverage(node: &Arc<Node>) -> Result<()> {
    let context = ReadContext::blocking();
    for position in 0..node.pivots.len() {
        let lower = &node.pivots[position].lower;
        let upper = node.pivot_upper(position).map(|upper| &**upper);
        for bundle in node.live_bundles(position) {
            if bundle.index.own_file().is_none() {
                continue;
            }
            let hasher = &bundle.index.file().files().hasher;
            for (ordinal, table) in bundle.branches.iter().enumerate() {
                let mut scan = table.scan(Some(lower), upper, CHUNK_BYTES)?;
                while let Some(entry) = scan.entry() {
                    let named = bundle.index.probe(hasher.hash(entry.key), &context)?;
                    if !named.contains(ordinal as u8) {
                        return Err(Error::corruption(
                            &bundle.index.file().path(),
                            0,
                            "index of a bundle",
                            format_args!("branch {ordinal} (table {})", table.id()),
                            format_args!("nothing for key \"{}\"", entry.key.escape_ascii()),
                        ));
                    }
                    scan.next()?;
                }
            }
        }
        if let Some(child) = &node.pivots[position].child {
            check_coverage(child)?;
        }
    }
    Ok(())
}
