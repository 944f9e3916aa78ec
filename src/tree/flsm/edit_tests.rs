//! Edits as the format's page shows them, and edits that cannot be.

use std::collections::BTreeSet;

use super::*;
use crate::base::documented::hex_block;
use crate::base::error::Error;
use crate::tree::edits::tests::{
    bears_changed_bytes, data_files, file, refuses_later_versions, refuses_other_lengths, table,
};
use crate::tree::range::Key;

/// The bytes of the `nth` hex block of the format's page.
fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../../docs/format/flsm-edit.md"), nth)
}

/// The tables of the example, numbered as there.
fn tables() -> Vec<Arc<Table>> {
    let files = data_files();
    (5..=9).map(|number| table(&files, number)).collect()
}

fn fragment(
    tables: &[Arc<Table>],
    number: u64,
    fully_merged: bool,
    size: (u64, u64),
    first: u64,
) -> Fragment {
    let table =
        tables.iter().find(|table| table.id() == FileId(number)).expect("an example's table");
    let size = RangeSize { bytes: size.0, entries: size.1 };
    Fragment { table: Arc::clone(table), fully_merged, size, first }
}

/// The roots of the example before and after the compaction.
fn roots() -> (Arc<Guard>, Arc<Guard>) {
    let tables = tables();
    let key = |key: &str| Key::from(key.as_bytes());
    let guard = |id, height, lower, upper: Option<&str>, fragments, children| {
        let mut guard = Guard::empty(height, key(lower), upper.map(key));
        (guard.id, guard.fragments, guard.children) = (NodeId(id), fragments, children);
        Arc::new(guard)
    };
    let both =
        vec![fragment(&tables, 5, true, (5000, 50), 0), fragment(&tables, 7, false, (500, 5), 0)];
    let left = guard(1, 0, "", Some("m"), both, vec![]);
    let right = guard(2, 0, "m", None, vec![fragment(&tables, 7, false, (3000, 30), 5)], vec![]);
    let root = |id, left| guard(id, 1, "", None, vec![], vec![left, Arc::clone(&right)]);
    let merged =
        guard(4, 0, "", Some("m"), vec![fragment(&tables, 9, true, (5600, 56), 0)], vec![]);
    (root(3, left), root(5, merged))
}

/// Builds what `edits` say, taking tables from those of the example, and writes it anew, whole.
fn rewrite(edits: &[&[u8]]) -> Result<Vec<u8>> {
    let known = tables();
    let mut recovered = Recovered::<Body>::default();
    for edit in edits {
        recovered.apply(edit, file(), 0)?;
    }
    let root = build(&recovered, file(), &mut |id| {
        let table = known.iter().find(|table| table.id() == id);
        Ok(Arc::clone(table.expect("a table of the example")))
    })?;
    Ok(all(&root))
}

fn all(root: &Arc<Guard>) -> Vec<u8> {
    encode(root, 0)
}

#[test]
fn the_documented_edits_are_what_is_written() {
    let (before, after) = roots();
    assert_eq!(all(&before), documented(0));
    assert_eq!(encode(&after, 4), documented(1));
}

#[test]
fn the_documented_edits_are_read() {
    let (before, after) = roots();
    assert_eq!(rewrite(&[&documented(0)]).unwrap(), all(&before));
    assert_eq!(rewrite(&[&documented(0), &documented(1)]).unwrap(), all(&after));

    let mut recovered = Recovered::<Body>::default();
    recovered.apply(&documented(0), file(), 0).unwrap();
    assert_eq!(recovered.last_number(), 3);
    recovered.apply(&documented(1), file(), 0).unwrap();
    assert_eq!(recovered.last_number(), 5);
    let in_use = recovered.reachable();
    let in_use: BTreeSet<FileId> = in_use.iter().flat_map(|it| it.body.table_ids()).collect();
    assert_eq!(in_use, BTreeSet::from([FileId(7), FileId(9)]));
    let root = build(&recovered, file(), &mut |id| {
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
    // The second edit alone names guard 2.
    assert!(rewrite(&[&documented(1)]).unwrap_err().is_corruption());
    assert!(rewrite(&[]).unwrap_err().is_corruption());
    let mut edit = documented(0);
    *edit.last_mut().unwrap() = 9;
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
}

/// Errors named the manifest, but a place in the edit, or none at all.
#[test]
fn an_error_says_where_in_the_manifest_the_guard_is() {
    let mut recovered = Recovered::<Body>::default();
    let mut edit = documented(0);
    let root = edit.len() - 8;
    edit[root + 5] = 2;
    recovered.apply(&edit, file(), 1000).unwrap();
    let mut open = |id| Ok(Arc::clone(tables().iter().find(|table| table.id() == id).unwrap()));
    // The first child begins where guard 2 does, not where the root does.
    let right = edit.windows(4).position(|bytes| bytes == [2, 0, 1, b'm']).unwrap();
    match build(&recovered, file(), &mut open).err().unwrap() {
        Error::Corruption { file: named, offset, .. } => {
            assert_eq!((&*named, offset), (file(), 1000 + right as u64));
        }
        error => panic!("{error}"),
    }
    // The count says more than there are bytes.
    let error = Recovered::<Body>::default().apply(&edit[..3], file(), 1000).unwrap_err();
    assert!(matches!(error, Error::Corruption { offset: 1002, .. }), "{error}");
}

#[test]
fn guards_that_do_not_nest_are_corruption() {
    let edit = documented(0);
    let root = edit.len() - 8;
    assert_eq!(edit[root..], [3, 1, 0, 0, 2, 1, 2, 3]);
    let with = |at: usize, byte: u8| {
        let mut edit = edit.clone();
        edit[root + at] = byte;
        let built = rewrite(&[&edit]);
        // Repairs took key ranges from guards that opening refused: those of another height, in another order, or
        // beyond the guard above. Keys were read from tables in which they no longer counted.
        let mut recovered = Recovered::<Body>::default();
        recovered.apply(&edit, file(), 0).unwrap();
        let ranges = recovered.repair_ranges(file());
        let said = |error: Option<&Error>| error.map(ToString::to_string);
        assert_eq!(
            said(ranges.as_ref().err()),
            said(built.as_ref().err()),
            "repairs refuse it too"
        );
        built
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
    refuses_later_versions::<Recovered<Body>>(&documented(0), 1);
}
