//! Edits as the format's page shows them, and edits that cannot be.

use super::*;
use crate::base::documented::hex_block;
use crate::base::key_hash::hash_key;
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, SortedFingerprints};
use crate::tree::edits::tests::{
    bears_changed_bytes, data_files, file, refuses_later_versions, refuses_other_lengths, table,
};
use crate::tree::range::Key;
use crate::tree::trunk::branch_index::BranchIndex;

/// The bytes of the `nth` hex block of the format's page.
fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../../docs/format/stb-edit.md"), nth)
}

/// The three bundles of the example, with files as numbered there.
fn bundles() -> Vec<Arc<Bundle>> {
    let files = data_files();
    let bundle = |number| {
        let table = table(&files, number);
        let mut maplet = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, 1).unwrap();
        let hashes = std::iter::once(hash_key(b"key")).collect();
        let fingerprints = SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT);
        maplet.add_branch(0, fingerprints).unwrap();
        let index = Arc::new(BranchIndex::Maplet(maplet.write_file(&files).unwrap()));
        Arc::new(Bundle { id: BundleId(number), branches: vec![table], index, bloom: None })
    };
    (1..=3).map(bundle).collect()
}

fn pivot(lower: &str, child: Option<&Arc<Node>>, bundle_start: usize, live: (u64, u64)) -> Pivot {
    Pivot {
        lower: Key::from(lower.as_bytes()),
        child: child.cloned(),
        bundle_start,
        live: RangeSize { bytes: live.0, entries: live.1 },
    }
}

fn node(id: u64, upper: Option<&str>, pivots: Vec<Pivot>, bundles: &[&Arc<Bundle>]) -> Arc<Node> {
    let height = u32::from(pivots[0].child.is_some());
    let upper = upper.map(|upper| Key::from(upper.as_bytes()));
    let mut node = Node::empty(height, Arc::clone(&pivots[0].lower), upper);
    node.id = NodeId(id);
    (node.pivots, node.bundles) = (pivots, bundles.iter().map(|&it| Arc::clone(it)).collect());
    Arc::new(node)
}

/// The roots of the example before and after the compaction.
fn roots() -> (Arc<Node>, Arc<Node>) {
    let bundles = bundles();
    let [one, two, three] = [&bundles[0], &bundles[1], &bundles[2]];
    let left = node(1, Some("m"), vec![pivot("", None, 0, (5000, 50))], &[one]);
    let right = node(2, None, vec![pivot("m", None, 0, (3000, 30))], &[one, two]);
    let root = |id, right| {
        let pivots = vec![pivot("", Some(&left), 0, (500, 5)), pivot("m", Some(right), 1, (0, 0))];
        node(id, None, pivots, &[two])
    };
    let compacted = node(4, None, vec![pivot("m", None, 0, (3000, 30))], &[three]);
    (root(3, &right), root(5, &compacted))
}

/// Builds what `edits` say, taking bundles from those of the example, and writes it anew, whole.
fn rewrite(edits: &[&[u8]]) -> Result<Vec<u8>> {
    let known = bundles();
    let mut recovered = Recovered::<Body>::default();
    for edit in edits {
        recovered.apply(edit, file(), 0)?;
    }
    let root = build(&recovered, file(), &mut |id, record| {
        let bundle = known.iter().find(|bundle| bundle.id == id).expect("a bundle of the example");
        let branches = bundle.branches.iter().map(|table| table.id()).collect();
        let maplet = bundle.index.file().id();
        assert_eq!(*record, BundleRecord { maplet, branches });
        Ok(Arc::clone(bundle))
    })?;
    Ok(all(&root))
}

fn last_bundle(recovered: &Recovered<Body>) -> u64 {
    recovered.shared.keys().next_back().copied().unwrap()
}

fn all(root: &Arc<Node>) -> Vec<u8> {
    encode(root, 0, |_| true)
}

#[test]
fn the_documented_edits_are_what_is_written() {
    let (before, after) = roots();
    assert_eq!(all(&before), documented(0));
    let edit = encode(&after, 4, |bundle| bundle.id.0 > 2);
    assert_eq!(edit, documented(1));
}

/// A bundle with a single piece has no file of an index.
#[test]
fn a_bundle_with_the_index_of_its_table_is_written_as_documented() {
    let table = table(&data_files(), 5);
    let index = Arc::new(BranchIndex::Piece(Arc::clone(&table), 5));
    let bundle = Arc::new(Bundle { id: BundleId(1), branches: vec![table], index, bloom: None });
    let root = node(1, None, vec![pivot("", None, 0, (500, 5))], &[&bundle]);
    let edit = all(&root);
    assert_eq!(edit, documented(2), "{edit:02x?}");
    let mut recovered = Recovered::<Body>::default();
    recovered.apply(&edit, file(), 0).unwrap();
    assert!(recovered.shared.values().all(BundleRecord::is_piece));
    // The example's others have maplets.
    recovered.apply(&documented(0), file(), 0).unwrap();
    assert!(!recovered.shared.values().any(BundleRecord::is_piece));
}

#[test]
fn the_documented_edits_are_read() {
    let (before, after) = roots();
    assert_eq!(rewrite(&[&documented(0)]).unwrap(), all(&before));
    assert_eq!(rewrite(&[&documented(0), &documented(1)]).unwrap(), all(&after));

    let mut recovered = Recovered::<Body>::default();
    recovered.apply(&documented(0), file(), 0).unwrap();
    assert_eq!((recovered.last_number(), last_bundle(&recovered)), (3, 2));
    recovered.apply(&documented(1), file(), 0).unwrap();
    assert_eq!((recovered.last_number(), last_bundle(&recovered)), (5, 3));
}

#[test]
fn cut_and_lengthened_edits_are_corruption() {
    for nth in [0, 1] {
        refuses_other_lengths::<Recovered<Body>>(&documented(nth));
    }
}

#[test]
fn no_changed_byte_does_harm() {
    bears_changed_bytes::<Recovered<Body>>(&documented(0));
}

#[test]
fn what_no_edit_defines_is_corruption() {
    // The second edit alone names leaf 1 and bundle 2.
    assert!(rewrite(&[&documented(1)]).unwrap_err().is_corruption());
    assert!(rewrite(&[]).unwrap_err().is_corruption());
    let mut edit = documented(0);
    *edit.last_mut().unwrap() = 9;
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
}

/// The example's first edit, changed by `change`: the offset that its error names, which must not be another's than
/// the manifest's, or `None` if it is taken.
fn refused_at(change: impl FnOnce(&mut Vec<u8>)) -> Option<usize> {
    let mut edit = documented(0);
    change(&mut edit);
    let error = rewrite(&[&edit]).err()?;
    let repaired = |edit: &[u8]| {
        let mut recovered = Recovered::<Body>::default();
        recovered.apply(edit, file(), 0)?;
        recovered.repair_ranges(file())
    };
    assert_eq!(
        repaired(&edit).unwrap_err().to_string(),
        error.to_string(),
        "repairs refuse it too"
    );
    match error {
        Error::Corruption { file: named, offset, .. } => {
            assert_eq!(named, file());
            Some(offset as usize)
        }
        error => panic!("{error}"),
    }
}

/// Where the nodes of the example's first edit begin.
const LEFT: usize = 11;
const RIGHT: usize = LEFT + 11;
const ROOT: usize = RIGHT + 13;

#[test]
fn nodes_that_do_not_fit_where_they_are_named_are_corruption() {
    let edit = documented(0);
    assert_eq!(edit[LEFT..RIGHT], [1, 0, 0, 1, 1, 1, 0, 0, 0x88, 0x27, 50]);
    assert_eq!(edit[RIGHT..ROOT], [2, 0, 1, b'm', 2, 1, 2, 1, 0, 0, 0xb8, 0x17, 30]);
    assert_eq!(edit[ROOT..], [3, 1, 0, 1, 2, 2, 1, 0, 0xf4, 3, 5, 2, 1, 0, 0, 3]);
    let with = |at: usize, byte: u8| refused_at(|edit| edit[at] = byte);
    assert_eq!(with(ROOT + 12, 0), None);
    // Live bundles from behind the last one on; in a leaf, not all of them.
    assert_eq!(with(ROOT + 12, 2), Some(ROOT));
    assert_eq!(with(LEFT + 7, 1), Some(LEFT));
    // Heights: a level left out, a leaf above others, an index node without children, a leaf with some.
    assert_eq!(with(ROOT + 1, 2), Some(LEFT));
    assert_eq!(with(ROOT + 1, 0), Some(ROOT));
    assert_eq!(with(RIGHT + 1, 1), Some(RIGHT));
    assert_eq!(with(ROOT + 1, 65), Some(ROOT));
    assert_eq!(with(ROOT + 6, 0), Some(ROOT));
    assert_eq!(with(LEFT + 6, 2), Some(LEFT));
    // Children: one twice, in the wrong order, the root below itself, one that is not defined. With one child below
    // both of each of 64 levels, building would not end.
    assert_eq!(with(ROOT + 11, 1), Some(LEFT));
    assert_eq!(with(ROOT + 6, 2), Some(RIGHT));
    assert_eq!(with(ROOT + 6, 3), Some(ROOT));
    assert_eq!(with(ROOT + 6, 9), Some(ROOT));
    // Bounds: a first child that begins later than its parent, a second that begins no later than the first.
    assert_eq!(refused_at(|edit| drop(edit.splice(LEFT + 2..LEFT + 3, [1, b'a']))), Some(LEFT));
    assert_eq!(refused_at(|edit| drop(edit.splice(RIGHT + 2..RIGHT + 4, [0]))), Some(RIGHT));
    // A root whose range is not all keys.
    assert_eq!(refused_at(|edit| drop(edit.splice(ROOT + 2..ROOT + 3, [1, b'a']))), Some(ROOT));
    assert_eq!(with(edit.len() - 1, 2), Some(RIGHT));
    // Bundles that are not defined.
    assert_eq!(with(ROOT + 4, 7), Some(ROOT));
}

/// A subtree that reaches beyond the pivot that leads to it.
#[test]
fn a_child_that_begins_behind_its_parents_end_is_corruption() {
    let leaf = |id: u8, key: u8| [id, 0, 1, key, 0, 1, 0, 0, 0, 0];
    let index = |id: u8, key: u8, children: [u8; 2]| {
        let pivots = children.iter().flat_map(|&child| [child, 0, 0, 0]);
        [id, 1, 1, key, 0, 2].into_iter().chain(pivots).collect::<Vec<u8>>()
    };
    let trunk = |keys: [u8; 4]| {
        let leaves = (1..).zip(keys).flat_map(|(id, key)| leaf(id, key));
        let mut edit: Vec<u8> = [1, 0, 7].into_iter().chain(leaves).collect();
        // The first key there is, of leaf, node and root.
        edit.splice(5..7, [0]);
        edit.extend(index(5, keys[0], [1, 2]));
        let at = edit.len() - 12;
        edit.splice(at..at + 2, [0]);
        edit.extend(index(6, keys[2], [3, 4]));
        edit.extend([7, 2, 0, 0, 2, 5, 0, 0, 0, 6, 0, 0, 0, 7]);
        edit
    };
    assert!(rewrite(&[&trunk(*b"adgk")]).is_ok());
    for keys in [b"aggk", b"ahgk"] {
        let error = rewrite(&[&trunk(*keys)]).unwrap_err();
        let offset = 3 + 9;
        assert!(matches!(error, Error::Corruption { offset: at, .. } if at == offset), "{error}");
    }
}

/// Sums of what is live were made of whatever the manifest said, and could overflow.
#[test]
fn what_is_live_is_bounded() {
    let size = |bytes: u64, entries: u64| {
        let mut edit = vec![1, 0, 1, 1, 0, 0, 0, 1, 0, 0];
        put_varint(&mut edit, bytes);
        put_varint(&mut edit, entries);
        edit.push(1);
        rewrite(&[&edit])
    };
    assert!(size((1 << 48) - 1, (1 << 48) - 1).is_ok());
    assert!(size(1 << 48, 0).unwrap_err().is_corruption());
    assert!(size(0, 1 << 48).unwrap_err().is_corruption());
    assert!(size(u64::MAX, u64::MAX).unwrap_err().is_corruption());
}

/// Errors named the manifest, but a place in the edit, or none at all.
#[test]
fn an_error_says_where_in_the_manifest_the_node_is() {
    let mut recovered = Recovered::<Body>::default();
    let mut edit = documented(0);
    edit[LEFT + 7] = 1;
    recovered.apply(&edit, file(), 1000).unwrap();
    let offset = 1000 + LEFT as u64;
    let error = recovered.repair_ranges(file()).unwrap_err();
    assert!(matches!(error, Error::Corruption { offset: at, .. } if at == offset), "{error}");
    // The count says more than there are bytes.
    let error = Recovered::<Body>::default().apply(&edit[..3], file(), 1000).unwrap_err();
    assert!(matches!(error, Error::Corruption { offset: 1002, .. }), "{error}");
}

#[test]
fn a_later_version_is_not_read() {
    refuses_later_versions::<Recovered<Body>>(&documented(0), 2);
}
