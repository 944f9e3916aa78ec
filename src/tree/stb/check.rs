//! Verifies a version: the trunk's shape, every table, every maplet, and that they agree.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::node::Node;
use super::version::{Version, bundles, tables};
use crate::base::error::{Error, Result};
use crate::cache::ReadContext;
use crate::tree::{CheckCounts, files, wrong_node};

/// Bytes that a checking scan reads at once.
const CHUNK_BYTES: usize = 256 << 10;

pub(super) fn check(
    version: &Version,
    manifest: &Path,
    full: bool,
    problem: &mut dyn FnMut(Error),
) -> CheckCounts {
    check_node(&version.root, manifest, problem);
    let bundles = bundles(&version.root);
    let mut counts = files::check(&tables(&bundles), full, problem);
    let mut seen = BTreeSet::new();
    for bundle in bundles {
        if !seen.insert(bundle.maplet.file().id()) {
            continue;
        }
        counts.files += 1;
        counts.pages += u64::from(bundle.maplet.file().units());
        if full && let Err(error) = bundle.maplet.check() {
            problem(error);
        }
    }
    if full && let Err(error) = check_coverage(&version.root) {
        problem(error);
    }
    counts
}

/// The trunk's own invariants (see `node`).
fn check_node(node: &Arc<Node>, manifest: &Path, problem: &mut dyn FnMut(Error)) {
    let mut wrong = |what: &'static str, expected: &str, found: String| {
        problem(wrong_node(manifest, node.id.0, what, expected, found));
    };
    if node.pivots.first().is_none_or(|first| first.lower != node.lower) {
        wrong("first pivot", "the node's lower bound", format!("{:?}", node.lower));
    }
    for (position, pivot) in node.pivots.iter().enumerate() {
        if node.pivot_upper(position).is_some_and(|upper| *upper <= pivot.lower) {
            wrong("pivot order", "ascending bounds", format!("pivot {position}"));
        }
        if pivot.bundle_start > node.bundles.len() {
            wrong("bundle start", "at most the bundle count", pivot.bundle_start.to_string());
        }
        match &pivot.child {
            None if node.height > 0 => wrong("child", "one", format!("none at pivot {position}")),
            Some(_) if node.height == 0 => wrong("child", "none in a leaf", "one".to_string()),
            Some(child)
                if child.lower != pivot.lower
                    || child.upper.as_ref() != node.pivot_upper(position)
                    || child.height + 1 != node.height =>
            {
                wrong("child", "the pivot's range, one level down", format!("{}", child.id));
            }
            _ => {}
        }
    }
    for pivot in &node.pivots {
        if let Some(child) = &pivot.child {
            check_node(child, manifest, problem);
        }
    }
}

/// Every key of every branch must be named by its bundle's maplet, in the ranges that are read.
fn check_coverage(node: &Arc<Node>) -> Result<()> {
    let context = ReadContext::blocking();
    for position in 0..node.pivots.len() {
        let lower = &node.pivots[position].lower;
        let upper = node.pivot_upper(position).map(|upper| &**upper);
        for bundle in node.live_bundles(position) {
            let hasher = &bundle.maplet.file().files().hasher;
            for (ordinal, table) in bundle.branches.iter().enumerate() {
                let mut scan = table.scan(Some(lower), upper, CHUNK_BYTES)?;
                while let Some(entry) = scan.entry() {
                    let named = bundle.maplet.probe(hasher.hash(entry.key), &context)?;
                    if !named.contains(ordinal as u8) {
                        return Err(Error::corruption(
                            &bundle.maplet.file().path(),
                            0,
                            "maplet",
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
