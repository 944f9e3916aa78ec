//! The examples of edits in the format's description.

use std::path::Path;

use super::edit::{Edit, KeyspaceChange, KeyspaceEdit};
use crate::base::codec::Decoder;
use crate::base::documented::hex_block;
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::range_delete::RangeDelete;

#[test]
fn the_documented_range_delete_is_what_is_written_and_read() {
    let bytes = hex_block(include_str!("../../docs/format/manifest.md"), 2);
    let of = |change| KeyspaceEdit { id: KeyspaceId(0), change };
    let delete = RangeDelete::of_operation(Seqno(100), b"a", b"b").unwrap();
    let keyspaces = vec![
        of(KeyspaceChange::RangeDelete(delete)),
        of(KeyspaceChange::RangeDeleteDone(Seqno(50))),
    ];
    let edit = Edit { keyspaces, ..Edit::default() };
    let mut encoded = Vec::new();
    edit.encode(&mut encoded);
    assert_eq!(encoded, bytes);
    let mut decoder = Decoder::new(&bytes, Path::new("manifest"), 0);
    assert_eq!(Edit::decode(&mut decoder).unwrap().0, edit);
    // A range that ends before it begins.
    let mut wrong = bytes.clone();
    wrong[4] = b'c';
    let mut decoder = Decoder::new(&wrong, Path::new("manifest"), 0);
    assert!(Edit::decode(&mut decoder).unwrap_err().is_corruption());
}

#[test]
fn the_documented_change_of_options_is_what_is_written_and_read() {
    let bytes = hex_block(include_str!("../../docs/format/manifest.md"), 3);
    let options = vec![4, 1, 0xac, 2, 0x7d, 0];
    let change = KeyspaceChange::Options(options);
    let edit =
        Edit { keyspaces: vec![KeyspaceEdit { id: KeyspaceId(0), change }], ..Edit::default() };
    let mut encoded = Vec::new();
    edit.encode(&mut encoded);
    assert_eq!(encoded, bytes);
    let (decoded, offsets) =
        Edit::decode(&mut Decoder::new(&bytes, Path::new("manifest"), 100)).unwrap();
    assert_eq!((decoded, offsets), (edit, vec![103]));
}
