//! Edits as the format's page shows them, and edits that cannot be.

use super::*;
use crate::base::documented::hex_block;
use crate::base::key_hash::hash_key;
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, SortedFingerprints};
use crate::tree::edits::tests::{
    bears_changed_bytes, data_files, file, refuses_a_later_version, refuses_other_lengths, table,
};

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
        let maplet = Arc::new(maplet.write_file(&files).unwrap());
        Arc::new(Bundle { id: BundleId(number), branches: vec![table], maplet, sieve: None })
    };
    (1..=3).map(bundle).collect()
}

fn pivot(lower: &str, child: Option<&Arc<Node>>, bundle_start: usize, live: (u64, u64)) -> Pivot {
    Pivot {
        lower: Key::from(lower.as_bytes()),
        child: child.cloned(),
        bundle_start,
        live: Extent { bytes: live.0, entries: live.1 },
    }
}

fn node(id: u64, upper: Option<&str>, pivots: Vec<Pivot>, bundles: &[&Arc<Bundle>]) -> Arc<Node> {
    Arc::new(Node {
        id: NodeId(id),
        height: u32::from(pivots[0].child.is_some()),
        lower: Arc::clone(&pivots[0].lower),
        upper: upper.map(|upper| Key::from(upper.as_bytes())),
        pivots,
        bundles: bundles.iter().map(|bundle| Arc::clone(bundle)).collect(),
        ..Node::empty_root()
    })
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
    let mut recovered = Recovered::default();
    for edit in edits {
        recovered.apply(edit, file(), 0)?;
    }
    let root = recovered.build(file(), &mut |id, record| {
        let bundle = known.iter().find(|bundle| bundle.id == id).expect("a bundle of the example");
        let branches = bundle.branches.iter().map(|table| table.id()).collect();
        let maplet = bundle.maplet.file().id();
        assert_eq!(*record, BundleRecord { maplet, branches });
        Ok(Arc::clone(bundle))
    })?;
    Ok(all(&root))
}

fn all(root: &Arc<Node>) -> Vec<u8> {
    encode(root, &|_| true, &|_| true)
}

#[test]
fn the_documented_edits_are_what_is_written() {
    let (before, after) = roots();
    assert_eq!(all(&before), documented(0));
    let edit = encode(&after, &|node| node.id.0 > 3, &|bundle| bundle.id.0 > 2);
    assert_eq!(edit, documented(1));
}

#[test]
fn the_documented_edits_are_read() {
    let (before, after) = roots();
    assert_eq!(rewrite(&[&documented(0)]).unwrap(), all(&before));
    assert_eq!(rewrite(&[&documented(0), &documented(1)]).unwrap(), all(&after));

    let mut recovered = Recovered::default();
    recovered.apply(&documented(0), file(), 0).unwrap();
    assert_eq!(recovered.last_numbers(), (3, 2));
    recovered.apply(&documented(1), file(), 0).unwrap();
    assert_eq!(recovered.last_numbers(), (5, 3));
}

#[test]
fn cut_and_lengthened_edits_are_corruption() {
    for nth in [0, 1] {
        refuses_other_lengths::<Recovered>(&documented(nth));
    }
}

#[test]
fn no_changed_byte_does_harm() {
    bears_changed_bytes::<Recovered>(&documented(0));
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

#[test]
fn pivots_out_of_order_or_out_of_bounds_are_corruption() {
    let edit = documented(0);
    let root = edit.len() - 13;
    assert_eq!(edit[root..], [0, 1, 0, 0xf4, 3, 5, 1, b'm', 2, 1, 0, 0, 3]);
    let with = |at: usize, byte: u8| {
        let mut edit = edit.clone();
        edit[root + at] = byte;
        rewrite(&[&edit])
    };
    assert!(with(9, 1).is_ok());
    assert!(with(9, 2).unwrap_err().is_corruption());
    // A child on its own level.
    assert!(with(1, 3).unwrap_err().is_corruption());
    // One child below both: with 64 levels of that, building would not end.
    assert!(with(8, 1).unwrap_err().is_corruption());
    // The second pivot at "".
    let mut edit = documented(0);
    edit.splice(root + 6..root + 8, [0]);
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
}

#[test]
fn a_later_version_is_not_read() {
    refuses_a_later_version::<Recovered>(&documented(0));
}
