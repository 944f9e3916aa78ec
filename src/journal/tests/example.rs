//! The worked example of `docs/format/journal.md` is what this code writes and reads.

use super::*;

fn bytes_of_example() -> Vec<u8> {
    let page = include_str!("../../../docs/format/journal.md");
    let (_, rest) = page.split_once("```hex\n").unwrap();
    let (hex, _) = rest.split_once("```").unwrap();
    let mut bytes = Vec::new();
    for line in hex.lines() {
        let line = line.split('|').next().unwrap();
        let (offset, digits) = line.split_once(':').unwrap();
        assert_eq!(usize::from_str_radix(offset, 16).unwrap(), bytes.len());
        bytes.extend(digits.split_whitespace().map(|d| u8::from_str_radix(d, 16).unwrap()));
    }
    bytes
}

fn example_payload() -> Vec<u8> {
    let mut payload = Vec::new();
    encode_operation(&mut payload, KeyspaceId(1), EntryKind::Put, b"oak", b"acorn");
    encode_operation(&mut payload, KeyspaceId(300), EntryKind::Delete, b"elm", b"");
    payload
}

fn example_single() -> Vec<u8> {
    let mut payload = Vec::new();
    encode_operation(&mut payload, KeyspaceId(1), EntryKind::Put, b"ash", b"samara");
    payload
}

#[test]
fn the_example_is_what_is_written() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, JournalOptions { store_id: 42, ..options(1, 4096, 3) });
    append_to(&journal, 0, 17, 2, &example_payload());
    append_to(&journal, 0, 19, 1, &example_single());
    journal.close().unwrap();
    let written = vfs.contents(&segment(3, 0, 1));
    let example = bytes_of_example();
    let hex: Vec<String> = (written.chunks(8).take(example.len() / 8 + 32))
        .map(|word| word.iter().map(|byte| format!("{byte:02x} ")).collect())
        .collect();
    assert_eq!(written[..example.len()], example, "{hex:#?}");
    assert!(written[example.len()..].iter().all(|&byte| byte == 0), "{hex:#?}");
}

#[test]
fn the_example_can_be_read() {
    let vfs = TestVfs::new();
    let path = segment(3, 0, 1);
    vfs.create_mapped(&path, 4096).unwrap();
    let example = bytes_of_example();
    vfs.damage(&path, |bytes| bytes[..example.len()].copy_from_slice(&example));
    let plan = ReplayPlan { store_id: 42, floor: Seqno(16), ..plan(3) };
    let (found, report) = collect(&vfs, &plan).unwrap();
    let single = Batch { first: 19, count: 1, payload: example_single() };
    assert_eq!(found, [Batch { first: 17, count: 2, payload: example_payload() }, single]);
    assert!(report.clean);
}
