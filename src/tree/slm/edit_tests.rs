//! Edits as the format's page shows them, and edits that cannot be.

use super::*;
use crate::base::documented::hex_block;
use crate::tree::edits::tests::{
    bears_changed_bytes, data_files, file, refuses_later_versions, refuses_other_lengths, table,
};
use crate::tree::versioned::count;

/// The bytes of the `nth` hex block of the format's page.
fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../../docs/format/slm-edit.md"), nth)
}

/// The tables of the example, numbered as there.
fn tables() -> Vec<Arc<Table>> {
    let files = data_files();
    (5..=9).map(|number| table(&files, number)).collect()
}

/// A level of `known` tables: of each its file, the number that it is settled up to, and its own number.
fn level(known: &[Arc<Table>], id: u64, tables_of: &[(u64, u64, u32)]) -> Arc<Level> {
    let mut tables = LevelTables::default();
    for (file, settled, number) in tables_of {
        let table = known.iter().find(|table| table.id() == FileId(*file));
        let table = Arc::clone(table.expect("an example's table"));
        tables.insert(LevelTable { table, settled: Seqno(*settled), number: *number });
    }
    let mut level = Level::new(tables, FileId(4));
    level.id = NodeId(id);
    Arc::new(level)
}

/// The levels of the example.
fn levels() -> (Arc<Level>, Arc<Level>) {
    let known = tables();
    let before = level(&known, 1, &[(5, 0, 1), (7, 0, 2), (8, 0, 3)]);
    (before, level(&known, 2, &[(8, 0, 3), (9, 300, 4)]))
}

/// An edit with all of a level.
fn whole(level: &Arc<Level>) -> Vec<u8> {
    encode(level, 0, None)
}

/// Builds what `edits` say and writes it anew, whole.
fn rewrite(edits: &[&[u8]]) -> Result<Vec<u8>> {
    let known = tables();
    let mut recovered = Recovered::<Body>::default();
    for edit in edits {
        recovered.apply(edit, file(), 0)?;
    }
    let find = |id: &FileId| known.iter().find(|table| table.id() == *id).cloned();
    let mut open = |ids: &[FileId]| Ok(ids.iter().map(|id| find(id).expect("a table")).collect());
    Ok(whole(&build(&recovered, file(), &mut open)?))
}

#[test]
fn the_documented_edits_are_what_is_written() {
    let (before, after) = levels();
    assert_eq!(whole(&before), documented(0));
    let refs: LevelRefs = count(&before);
    assert_eq!(encode(&after, 2, Some(&refs)), documented(1));
    // Other options change no table.
    assert_eq!(encode(&before, 2, Some(&refs)), [1, 0, 0, 0, 1]);
}

#[test]
fn the_documented_edits_are_read() {
    let (before, after) = levels();
    assert_eq!(rewrite(&[&documented(0)]).unwrap(), whole(&before));
    assert_eq!(rewrite(&[&documented(0), &documented(1)]).unwrap(), whole(&after));
}

#[test]
fn cut_and_lengthened_edits_are_corruption() {
    refuses_other_lengths::<Recovered<Body>>(&documented(0));
}

#[test]
fn no_changed_byte_does_harm() {
    // One without tables, which is built also without files.
    bears_changed_bytes::<Recovered<Body>>(&whole(&level(&[], 1, &[])));
}

#[test]
fn a_later_version_is_refused() {
    refuses_later_versions::<Recovered<Body>>(&documented(0), EDIT_VERSION);
}

/// An edit is of the level before it.
#[test]
fn a_table_goes_only_if_it_is_there() {
    assert!(rewrite(&[&documented(1)]).unwrap_err().is_corruption());
    let edits = [documented(0), documented(1), documented(1)];
    assert!(rewrite(&[&edits[0], &edits[1], &edits[2]]).unwrap_err().is_corruption());
}

/// Two tables of one number are two meanings of one location.
#[test]
fn tables_of_one_file_or_of_one_number_are_corruption() {
    let mut edit = documented(0);
    let (number, file) = (9, 10);
    assert_eq!(edit[number..number + 3], [3, 8, 0]);
    edit[number] = 2;
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
    (edit[number], edit[file]) = (3, 7);
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
    edit[file] = 8;
    assert!(rewrite(&[&edit]).is_ok());
}
