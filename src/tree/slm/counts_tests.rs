//! What counts of a change of the index that ends in the middle.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::change::add;
use super::level_tables::LevelTable;
use super::places::Places;
use super::receive::Output;
use super::*;
use crate::base::entry::EntryKind;
use crate::base::error::Error;
use crate::base::sync::plain::AtomicU64;
use crate::location_index::{IndexVersion, LeafPlace, Location, LocationIndex};
use crate::pmem::{HeapRegion, Region};
use crate::table::{BlobFiles, TableBuilder, TableOptions};
use crate::tree::TreeObserver;
use crate::tree::test_support::{Reader, context, key_of, table_of};

/// A region that cannot grow, since no descriptor is left.
#[derive(Debug)]
struct Fixed(HeapRegion);

impl Region for Fixed {
    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    fn flush(&self, _words: Range<usize>) {}

    fn fence(&self) {}

    fn grow(&self, _words: usize) -> Result<()> {
        Err(Error::TooManyFiles { op: "open", path: self.path().to_path_buf() })
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn index() -> LocationIndex {
    let region = HeapRegion::reserve(16 * 512, Path::new("index")).unwrap();
    LocationIndex::create(Arc::new(Fixed(region)), 7).unwrap()
}

/// The output of a compaction took the place of some of its input's keys, and of others not: there was no descriptor with
/// which the index could grow. The first were not counted, so the input counted as named indefinitely, and each further merge
/// of it ended as damage.
#[test]
fn what_has_been_changed_before_an_error_counts() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(u64::MAX >> 8)]));
    let tree = SlmTree::open(context("slm", &observer), &[], Seqno(0)).unwrap();
    // As many as there is room for: a removal takes less.
    let keys = {
        let (index, leaf) = (index(), LeafPlace { unit: 1, units: 1, is_split: false });
        let version = IndexVersion { location: Location::new(0, leaf, false), superseded: None };
        let has_room = |key: &u64| index.write().set(&key_of(*key), &[version]).is_ok();
        (0..).take_while(has_room).count() as u64
    };
    assert!(keys > 100, "{keys}");
    let files = &tree.context.files;
    let input = table_of(files, EntryKind::Put, 1, 0..keys);
    let mut level = Arc::clone(&tree.version.load_full().root);
    let (table, settled) = (Arc::clone(&input), Seqno(1));
    add(&mut level, LevelTable { table, settled, number: 0 }, FileId(0));
    let places = Places::new(index(), None, false);
    places.build(&level, Seqno(1), 0).unwrap();

    let mut output =
        TableBuilder::new(files, &BlobFiles::new(files), TableOptions::default()).unwrap();
    output.add(&key_of(0), Seqno(2), EntryKind::Delete, &[]).unwrap();
    // One location in the place of another needs no room; one that is superseded does.
    output.add(&key_of(1), Seqno(3), EntryKind::Delete, &[]).unwrap();
    output.add(&key_of(1), Seqno(2), EntryKind::Put, &[7; 100]).unwrap();
    let output = output.finish().unwrap();
    places.register(&output, 1);
    let listed = merged_keys::keys_of(&output).unwrap();
    let of = Output { number: 1, keys: &listed, were_live: &[true, true] };
    let replaced = places.replace(Some(of), &[0], &BTreeMap::new(), &[], &[Seqno::MAX]);
    assert!(matches!(replaced, Err(Error::TooManyFiles { .. })), "{replaced:?}");
    assert_eq!(places.versions(&key_of(0)).unwrap(), []);
    assert_eq!(places.versions(&key_of(1)).unwrap().len(), 1);
    assert_eq!(places.live(&input), Some(keys - 1));
}
