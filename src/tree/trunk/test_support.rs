//! Trunks made by hand.

use std::sync::Arc;

use super::branch_index::BranchIndex;
use super::node::{Bundle, BundleId, Node, Pivot};
use crate::base::ids::NodeId;
use crate::base::key_hash::hash_key;
use crate::cache::DataFiles;
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, SortedFingerprints};
use crate::table::Table;
use crate::tree::range::Key;
use crate::tree::test_support::key_of;
use crate::tree::versioned::TreeNode;

/// A bundle of one table that has those keys, by number.
pub(super) fn bundle(
    files: &Arc<DataFiles>,
    id: u64,
    table: &Arc<Table>,
    keys: impl IntoIterator<Item = u64>,
) -> Arc<Bundle> {
    let hashes = keys.into_iter().map(|key| hash_key(&key_of(key))).collect();
    let mut maplet = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, 1).unwrap();
    let fingerprints = SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT);
    maplet.add_branch(0, fingerprints).unwrap();
    let index = Arc::new(BranchIndex::Maplet(maplet.write_file(files).unwrap()));
    Arc::new(Bundle { id: BundleId(id), branches: vec![Arc::clone(table)], index, bloom: None })
}

/// A leaf of a range of numbers, with bundles oldest first.
pub(super) fn leaf(id: u64, keys: (u64, Option<u64>), bundles: &[&Arc<Bundle>]) -> Arc<Node> {
    let key = |number: u64| match number {
        0 => Key::from(&[][..]),
        _ => Key::from(key_of(number)),
    };
    let mut leaf = Node::empty_root();
    (leaf.id, leaf.lower, leaf.upper) = (NodeId(id), key(keys.0), keys.1.map(key));
    leaf.pivots[0].lower = Arc::clone(&leaf.lower);
    leaf.bundles = bundles.iter().map(|&bundle| Arc::clone(bundle)).collect();
    leaf.measure().unwrap();
    Arc::new(leaf)
}

/// A node above leaves, with a bundle that no leaf has been handed yet.
pub(super) fn root(id: u64, leaves: &[Arc<Node>], bundle: Option<&Arc<Bundle>>) -> Arc<Node> {
    let pivot = |child: &Arc<Node>| Pivot::new(Arc::clone(&child.lower), Some(Arc::clone(child)));
    let mut root = Node::empty_root();
    (root.id, root.height) = (NodeId(id), 1);
    root.pivots = leaves.iter().map(pivot).collect();
    root.bundles = bundle.cloned().into_iter().collect();
    root.measure().unwrap();
    Arc::new(root)
}
