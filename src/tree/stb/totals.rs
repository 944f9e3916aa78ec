//! Sums over a whole version, made when the version is.

use std::sync::Arc;

use super::node::{BundleId, Node, bundles, tables};
use super::parameters::Parameters;
use crate::tree::files::{self, FileTotals};
use crate::tree::versioned::walk;

/// Sums over nodes and bundles.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    /// Live bytes in leaves that no compaction has merged there yet.
    pub(super) pending_bytes: u64,
    /// Memory, but for samples.
    pub(super) memory_bytes: u64,
}

/// The sums, and the numbers of all bundles, ascending.
pub(super) fn sums(
    root: &Arc<Node>,
    parameters: &Parameters,
) -> (FileTotals, Totals, Vec<BundleId>) {
    let (mut totals, mut files) = (Totals::default(), FileTotals::default());
    let bundles = bundles(root);
    let tables = tables(&bundles);
    for table in &tables {
        files.add(table);
        totals.memory_bytes += 1024;
    }
    for bundle in &bundles {
        files.filter_bytes += bundle.maplet.file().bytes();
        totals.memory_bytes += 256 + 24 * bundle.branches.len() as u64;
        totals.memory_bytes += bundle.bloom.as_ref().map_or(0, |bloom| bloom.bytes() as u64);
    }
    for blob in files::blobs(&tables) {
        files.blobs += 1;
        files.blob_bytes += blob.bytes();
    }
    walk(root, &mut |node| {
        totals.memory_bytes += 256 + 128 * node.pivots.len() as u64;
        if node.height == 0 && node.bundles.len() >= parameters.bundles_max {
            let merged_bytes = node.leaf_summary().merged_bytes;
            totals.pending_bytes += node.live().bytes.saturating_sub(merged_bytes);
        }
    });
    (files, totals, bundles.iter().map(|bundle| bundle.id).collect())
}
