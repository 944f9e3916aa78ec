//! Edits as the format's page shows them, and edits that cannot be.

use super::*;
use crate::base::documented::hex_block;
use crate::tree::edits::tests::{
    bears_changed_bytes, data_files, file, refuses_later_versions, refuses_other_lengths, table,
};

/// The bytes of the `nth` hex block of the format's page.
fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../../docs/format/slm-edit.md"), nth)
}

/// The tables of the example, numbered as there.
fn tables() -> Vec<Arc<Table>> {
    let files = data_files();
    (5..=9).map(|number| table(&files, number)).collect()
}

fn level(id: u64, tables_of: &[(u64, u64, u32)]) -> Arc<Level> {
    let known = tables();
    let table = |file: u64| known.iter().find(|table| table.id() == FileId(file)).cloned();
    let of_example = tables_of.iter().map(|(file, ..)| table(*file).expect("an example's table"));
    let placed = tables_of
        .iter()
        .map(|(_, settled, number)| Placed { settled: Seqno(*settled), number: *number });
    let mut level = Level::new(of_example.collect(), placed.collect(), FileId(4));
    level.id = NodeId(id);
    Arc::new(level)
}

/// The levels of the example.
fn levels() -> (Arc<Level>, Arc<Level>) {
    (level(1, &[(5, 0, 1), (7, 0, 2), (8, 0, 3)]), level(2, &[(8, 0, 3), (9, 300, 4)]))
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
    Ok(encode(&build(&recovered, file(), &mut open)?, 0))
}

#[test]
fn the_documented_edits_are_what_is_written() {
    let (before, after) = levels();
    assert_eq!(encode(&before, 0), documented(0));
    assert_eq!(encode(&after, 2), documented(1));
}

#[test]
fn the_documented_edits_are_read() {
    let (before, after) = levels();
    assert_eq!(rewrite(&[&documented(0)]).unwrap(), encode(&before, 0));
    assert_eq!(rewrite(&[&documented(0), &documented(1)]).unwrap(), encode(&after, 0));
}

#[test]
fn cut_and_lengthened_edits_are_corruption() {
    for nth in [0, 1] {
        refuses_other_lengths::<Recovered<Body>>(&documented(nth));
    }
}

#[test]
fn no_changed_byte_does_harm() {
    // One without tables, which is built also without files.
    bears_changed_bytes::<Recovered<Body>>(&encode(&level(1, &[]), 0));
}

#[test]
fn a_later_version_is_refused() {
    refuses_later_versions::<Recovered<Body>>(&documented(0), EDIT_VERSION);
}

/// Two tables of one number are two meanings of one location.
#[test]
fn tables_of_one_file_or_of_one_number_are_corruption() {
    let mut edit = documented(0);
    let (file, number) = (edit.len() - 4, edit.len() - 2);
    assert_eq!(edit[file..], [8, 0, 3, 1]);
    edit[number] = 2;
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
    (edit[file], edit[number]) = (7, 3);
    assert!(rewrite(&[&edit]).unwrap_err().is_corruption());
    edit[file] = 8;
    assert!(rewrite(&[&edit]).is_ok());
}
