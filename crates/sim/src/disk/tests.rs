//! Tests of what a crash may leave.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;

fn names(path: &str, node: Option<Node>) -> Op {
    Op::Names { changes: vec![(PathBuf::from(path), node)] }
}

fn write(offset: u64, bytes: &[u8]) -> Op {
    Op::Write { file: 1, offset, bytes: Arc::from(bytes) }
}

fn disk(ops: &[Op]) -> Disk {
    let mut disk = Disk::default();
    ops.iter().for_each(|op| disk.apply(op));
    disk
}

fn read(disk: &Disk) -> Option<Vec<u8>> {
    let (names, files) = disk.view();
    names.get(Path::new("a"))?;
    let content = files.get(&1).cloned().unwrap_or_default();
    let mut bytes = vec![0; content.len() as usize];
    assert!(content.read(0, &mut bytes));
    Some(bytes)
}

/// What each policy may leave, over many crashes.
fn outcomes(disk: &Disk, policy: Policy) -> Vec<Option<Vec<u8>>> {
    let mut random = Random::new(&[7]);
    let mut found: Vec<_> =
        (0..400).map(|_| read(&disk.crash(policy, None, &mut random))).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn what_was_synced_survives_everything_and_what_was_not_may_go() {
    let synced = [
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        write(0, b"one"),
        Op::Sync { file: 1 },
    ];
    for policy in Policy::ALL {
        assert_eq!(outcomes(&disk(&synced), policy), [Some(b"one".to_vec())]);
    }
    let mut more = synced.to_vec();
    more.push(write(3, b"two"));
    let (short, long) = (Some(b"one".to_vec()), Some(b"onetwo".to_vec()));
    let more = disk(&more);
    assert_eq!(outcomes(&more, Policy::Kill), std::slice::from_ref(&long));
    assert_eq!(outcomes(&more, Policy::PowerNothing), std::slice::from_ref(&short));
    assert_eq!(outcomes(&more, Policy::PowerPrefix), [short, long]);
    assert_eq!(outcomes(&more, Policy::PowerTorn).len(), 4);
}

#[test]
fn names_last_once_their_directory_is_synced() {
    let created = disk(&[names("a", Some(Node::File(1))), Op::Sync { file: 1 }]);
    assert_eq!(outcomes(&created, Policy::PowerNothing), [None]);
    assert_eq!(outcomes(&created, Policy::PowerPrefix), [None, Some(vec![])]);
    let removed = disk(&[
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        names("a", None),
    ]);
    assert_eq!(outcomes(&removed, Policy::PowerNothing), [Some(vec![])]);
    assert_eq!(outcomes(&removed, Policy::PowerPrefix), [None, Some(vec![])]);
    assert_eq!(outcomes(&removed, Policy::Kill), [None]);
}

#[test]
fn a_file_is_lost_with_its_directory() {
    let ops = [
        names("d", Some(Node::Dir)),
        names("d/a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::from("d") },
    ];
    let left = disk(&ops).crash(Policy::PowerNothing, None, &mut Random::new(&[1]));
    assert_eq!(left.view().0.len(), 0);
}

#[test]
fn sectors_survive_one_by_one() {
    let ops = [
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        Op::SetLen { file: 1, len: 1024 },
        Op::Sync { file: 1 },
        write(0, &[1; 1024]),
        write(0, &[2; 512]),
    ];
    let found = outcomes(&disk(&ops), Policy::PowerSectors);
    let halves: Vec<(u8, u8)> = found
        .iter()
        .flatten()
        .map(|bytes| {
            assert!(bytes[..512].iter().all(|&byte| byte == bytes[0]));
            assert!(bytes[512..].iter().all(|&byte| byte == bytes[512]));
            (bytes[0], bytes[512])
        })
        .collect();
    assert_eq!(halves, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
}

#[test]
fn a_process_dies_amid_a_write() {
    let disk = disk(&[names("a", Some(Node::File(1))), write(0, b"x")]);
    let next = write(1, b"yz");
    let mut random = Random::new(&[3]);
    let mut found: Vec<_> =
        (0..50).map(|_| read(&disk.crash(Policy::KillInWrite, Some(&next), &mut random))).collect();
    found.sort();
    found.dedup();
    assert_eq!(found, [Some(b"x".to_vec()), Some(b"xy".to_vec())]);
}
