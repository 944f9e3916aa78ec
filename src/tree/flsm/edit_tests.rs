//! Edits as the format's page shows them, and edits that cannot be.

use std::sync::Arc;

use super::*;
use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::cache::{Cache, Compression, DataFiles};
use crate::table::{BlobFiles, TableBuilder, TableOptions};
use crate::vfs::MemoryVfs;

fn file() -> &'static Path {
    Path::new("manifest-00000001")
}

/// The bytes of the `nth` hex block of the format's page.
fn documented(nth: usize) -> Vec<u8> {
    let page = include_str!("../../../docs/format/flsm-edit.md");
    let block = page.split("```hex\n").nth(nth + 1).and_then(|rest| rest.split("```").next());
    let lines = block.expect("the page has the block").lines();
    let words = lines.flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    words.map(|byte| u8::from_str_radix(byte, 16).expect("hex digits")).collect()
}

/// The tables of the example, numbered as there.
fn tables() -> Vec<Arc<Table>> {
    let cache = Arc::new(Cache::new(1 << 20));
    let vfs = Arc::new(MemoryVfs::new());
    let files = Arc::new(DataFiles::new(vfs, cache, Path::new("/"), FileId(5)));
    let blobs = BlobFiles::new(&files);
    let table = |number| {
        let options =
            TableOptions { compression: Compression::None, creation: number, filter: false };
        let mut table = TableBuilder::new(&files, &blobs, options).unwrap();
        table.add(b"key", Seqno(number), EntryKind::Put, b"value").unwrap();
        table.finish().unwrap()
    };
    (5..=9).map(table).collect()
}

fn fragment(tables: &[Arc<Table>], number: u64, settled: bool, size: (u64, u64)) -> Fragment {
    let table =
        tables.iter().find(|table| table.id() == FileId(number)).expect("an example's table");
    let extent = Extent { bytes: size.0, entries: size.1 };
    Fragment { table: Arc::clone(table), settled, extent }
}

/// The roots of the example before and after the compaction.
fn roots() -> (Arc<Guard>, Arc<Guard>) {
    let tables = tables();
    let key = |key: &str| Key::from(key.as_bytes());
    let guard = |id, height, lower, upper: Option<&str>, fragments, children| {
        let mut guard = Guard::empty(height, key(lower), upper.map(key));
        (guard.id, guard.fragments, guard.children) = (GuardId(id), fragments, children);
        Arc::new(guard)
    };
    let both = vec![fragment(&tables, 5, true, (5000, 50)), fragment(&tables, 7, false, (500, 5))];
    let left = guard(1, 0, "", Some("m"), both, vec![]);
    let right = guard(2, 0, "m", None, vec![fragment(&tables, 7, false, (3000, 30))], vec![]);
    let root = |id, left| guard(id, 1, "", None, vec![], vec![left, Arc::clone(&right)]);
    let merged = guard(4, 0, "", Some("m"), vec![fragment(&tables, 9, true, (5600, 56))], vec![]);
    (root(3, left), root(5, merged))
}

/// Builds what `edits` say, taking tables from those of the example, and writes it anew, whole.
fn rewrite(edits: &[&[u8]]) -> Result<Vec<u8>> {
    let known = tables();
    let mut recovered = Recovered::default();
    for edit in edits {
        recovered.apply(edit, file())?;
    }
    let root = recovered.build(file(), &mut |id| {
        let table = known.iter().find(|table| table.id() == id);
        Ok(Arc::clone(table.expect("a table of the example")))
    })?;
    Ok(all(&root))
}

fn all(root: &Arc<Guard>) -> Vec<u8> {
    encode(root, &|_| true)
}

#[test]
fn the_documented_edits_are_what_is_written() {
    let (before, after) = roots();
    assert_eq!(all(&before), documented(0));
    assert_eq!(encode(&after, &|guard| guard.id.0 > 3), documented(1));
}

#[test]
fn the_documented_edits_are_read() {
    let (before, after) = roots();
    assert_eq!(rewrite(&[&documented(0)]).unwrap(), all(&before));
    assert_eq!(rewrite(&[&documented(0), &documented(1)]).unwrap(), all(&after));

    let mut recovered = Recovered::default();
    recovered.apply(&documented(0), file()).unwrap();
    assert_eq!(recovered.last_number(), 3);
    recovered.apply(&documented(1), file()).unwrap();
    assert_eq!(recovered.last_number(), 5);
    assert_eq!(recovered.tables_in_use(), BTreeSet::from([FileId(7), FileId(9)]));
    let root = recovered.build(file(), &mut |id| {
        Ok(Arc::clone(tables().iter().find(|table| table.id() == id).expect("a table")))
    });
    let uppers: Vec<_> = root
        .unwrap()
        .children
        .iter()
        .map(|child| child.upper.as_deref().map(<[u8]>::to_vec))
        .collect();
    assert_eq!(uppers, [Some(b"m".to_vec()), None]);
}

#[test]
fn cut_and_lengthened_edits_are_corruption() {
    for edit in [documented(0), documented(1)] {
        for len in 0..edit.len() {
            let error = Recovered::default().apply(&edit[..len], file()).unwrap_err();
            assert!(error.is_corruption(), "{len} bytes: {error}");
        }
        let longer = [&*edit, &[0]].concat();
        assert!(Recovered::default().apply(&longer, file()).unwrap_err().is_corruption());
    }
}

#[test]
fn no_changed_byte_does_harm() {
    let edit = documented(0);
    for at in 0..edit.len() {
        for byte in 0..=255 {
            let mut changed = edit.clone();
            changed[at] = byte;
            let mut recovered = Recovered::default();
            if recovered.apply(&changed, file()).is_err() {
                continue;
            }
            let refuse = Error::corruption(file(), 0, "table", "any", "none");
            let _ = recovered.build(file(), &mut |_| Err(refuse.clone()));
        }
    }
}

#[test]
fn what_no_edit_defines_is_corruption() {
    // The second edit alone names guard 2.
    assert!(rewrite(&[&documented(1)]).unwrap_err().is_corruption());
    assert!(rewrite(&[]).unwrap_err().is_corruption());
    let mut edit = documented(0);
    *edit.last_mut().unwrap() = 9;
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
}

#[test]
fn guards_that_do_not_nest_are_corruption() {
    let edit = documented(0);
    let root = edit.len() - 8;
    assert_eq!(edit[root..], [3, 1, 0, 0, 2, 1, 2, 3]);
    let with = |at: usize, byte: u8| {
        let mut edit = edit.clone();
        edit[root + at] = byte;
        rewrite(&[&edit])
    };
    assert!(with(5, 1).is_ok());
    // A height that the children's does not follow.
    assert!(with(1, 2).unwrap_err().is_corruption());
    assert!(with(1, 0).unwrap_err().is_corruption());
    // One child twice, children out of order, the root below itself.
    assert!(with(6, 1).unwrap_err().is_corruption());
    assert!(with(5, 2).unwrap_err().is_corruption());
    assert!(with(5, 3).unwrap_err().is_corruption());
    // A guard of the last level as the root, whose range does not begin with the first key.
    assert!(with(7, 2).unwrap_err().is_corruption());
    assert!(with(7, 1).is_ok());
}

#[test]
fn a_later_version_is_not_read() {
    let mut edit = documented(0);
    edit[0] = 2;
    let error = Recovered::default().apply(&edit, file()).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 2, supported: 1, .. }));
}
