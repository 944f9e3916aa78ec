//! Tests of the possible results of a crash.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;

fn names(path: &str, node: Option<Node>) -> Op {
    Op::Names { changes: vec![(PathBuf::from(path), node)] }
}

fn write(offset: u64, bytes: &[u8]) -> Op {
    Op::Write { file: 1, offset, bytes: Arc::from(bytes), mapped: false }
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
    outcomes_before(disk, policy, None)
}

fn outcomes_before(disk: &Disk, policy: Policy, next: Option<&Op>) -> Vec<Option<Vec<u8>>> {
    let mut found: Vec<_> = (0..800).map(|draw| read(&disk.crash(policy, draw, next))).collect();
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
    let left = disk(&ops).crash(Policy::PowerNothing, 1, None);
    assert_eq!(left.view().0.iter().count(), 0);
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
    let found = outcomes_before(&disk, Policy::KillInWrite, Some(&next));
    assert_eq!(found, [Some(b"x".to_vec()), Some(b"xy".to_vec())]);
    let Op::Write { file, offset, bytes, .. } = next else { unreachable!() };
    let copied = Op::Write { file, offset, bytes, mapped: true };
    let found = outcomes_before(&disk, Policy::KillInWrite, Some(&copied));
    let all: [&[u8]; 4] = [b"x", b"x\0z", b"xy", b"xyz"];
    assert_eq!(found, all.map(|bytes| Some(bytes.to_vec())));
    assert_eq!(outcomes_before(&disk, Policy::Kill, Some(&copied)), [Some(b"x".to_vec())]);
}

/// A file of one sector of ones, then a sector and a half of twos and its first byte a three.
fn grown() -> Disk {
    disk(&[
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        write(0, &[1; 512]),
        Op::Sync { file: 1 },
        write(256, &[2; 768]),
        write(0, &[3]),
    ])
}

fn summary(bytes: &Option<Vec<u8>>) -> (usize, u8, u8, u8, u8) {
    let bytes = bytes.as_ref().map_or(&[][..], Vec::as_slice);
    let at = |offset: usize| bytes.get(offset).copied().unwrap_or(9);
    (bytes.len(), at(0), at(255), at(256), at(512))
}

#[test]
fn lengths_come_without_bytes_and_bytes_without_lengths() {
    let lengths = outcomes(&grown(), Policy::PowerLengths);
    assert_eq!(lengths.iter().map(summary).collect::<Vec<_>>(), [(1024, 1, 1, 1, 0)]);
    let contents = outcomes(&grown(), Policy::PowerContents);
    assert_eq!(contents.iter().map(summary).collect::<Vec<_>>(), [(512, 3, 1, 2, 9)]);
    let everything = outcomes(&grown(), Policy::PowerEverything);
    assert_eq!(everything.iter().map(summary).collect::<Vec<_>>(), [(1024, 3, 1, 2, 2)]);
    // Nor need a cut have arrived with what was written after it.
    let cut = disk(&[
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        write(0, b"abcd"),
        Op::Sync { file: 1 },
        Op::SetLen { file: 1, len: 1 },
        write(0, b"x"),
    ]);
    assert_eq!(outcomes(&cut, Policy::PowerContents), [Some(b"xbcd".to_vec())]);
    assert_eq!(outcomes(&cut, Policy::PowerLengths), [Some(b"a".to_vec())]);
    let every = [&b"a"[..], b"abcd", b"x", b"xbcd"].map(|bytes| Some(bytes.to_vec()));
    assert_eq!(cut.subsets(), Some(4));
    assert_eq!(outcomes(&cut, Policy::PowerSubset), every);
    assert_eq!(outcomes(&cut, Policy::PowerSectors), every);
}

#[test]
fn every_subset_is_left_once_by_the_draws_below_their_number() {
    let disk = grown();
    // Two writes to the first sector, one to the second, and the length.
    assert_eq!(disk.subsets(), Some(3 * 2 * 2));
    let mut found: Vec<_> =
        (0..12).map(|draw| disk.crash(Policy::PowerSubset, draw, None).fingerprint()).collect();
    found.sort_unstable();
    found.dedup();
    // With the old length the second sector does not matter.
    assert_eq!(found.len(), 3 * 2 + 3);
    let by_sectors = outcomes(&disk, Policy::PowerSectors);
    assert_eq!(outcomes(&disk, Policy::PowerSubset), by_sectors);
}

#[test]
fn few_large_changes_are_there_or_not_as_wholes() {
    let mut disk = grown();
    disk.apply(&write(4096, &[4; 4096]));
    disk.apply(&names("b", Some(Node::File(2))));
    assert_eq!(disk.subsets(), Some(1 << 4));
    let found = outcomes(&disk, Policy::PowerSubset);
    assert!(found.iter().flatten().all(|bytes| {
        let there = bytes.iter().filter(|byte| **byte == 4).count();
        there == 0 || there == 4096
    }));
    let named = (0..16).filter(|draw| {
        let left = disk.crash(Policy::PowerSubset, *draw, None);
        left.view().0.contains(Path::new("b"))
    });
    assert_eq!(named.count(), 8);
    // Too many: any subset, by draw.
    for sector in 0..9 {
        disk.apply(&write(8192 + sector * 512, &[5; 512]));
    }
    assert_eq!(disk.subsets(), None);
    assert!(outcomes(&disk, Policy::PowerSubset).len() > 200);
}

#[test]
fn torn_sectors_hold_the_beginning_of_one_state_and_the_end_of_another() {
    let ops = [
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        write(0, &[1; 512]),
        Op::Sync { file: 1 },
        write(0, &[2; 512]),
    ];
    let found = outcomes(&disk(&ops), Policy::PowerTornSectors);
    let torn: Vec<(u8, u8)> = found.iter().flatten().map(|bytes| (bytes[0], bytes[511])).collect();
    for ends in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        assert!(torn.contains(&ends), "{ends:?}");
    }
    let changes = |bytes: &Vec<u8>| bytes.windows(2).filter(|two| two[0] != two[1]).count();
    assert!(found.iter().flatten().all(|bytes| bytes.len() == 512 && changes(bytes) <= 1));
    // Whole sectors are not torn.
    assert_eq!(outcomes(&disk(&ops), Policy::PowerSectors).len(), 2);
}

#[test]
fn names_and_bytes_go_each_without_the_other() {
    let ops = [
        names("a", Some(Node::File(1))),
        Op::SyncDir { dir: PathBuf::new() },
        write(0, b"old"),
        Op::Sync { file: 1 },
        names("b", Some(Node::File(2))),
        Op::Write { file: 2, offset: 0, bytes: Arc::from(&b"new"[..]), mapped: false },
        Op::Names {
            changes: vec![(PathBuf::from("b"), None), (PathBuf::from("a"), Some(Node::File(2)))],
        },
    ];
    let read_two = |policy| {
        let mut found: Vec<_> = (0..400)
            .map(|draw| {
                let (names, files) = disk(&ops).crash(policy, draw, None).view();
                ["a", "b"].map(|name| {
                    let Some(Node::File(number)) = names.get(Path::new(name)) else {
                        return "none".to_string();
                    };
                    let mut bytes = vec![0; files[&number].len() as usize];
                    assert!(files[&number].read(0, &mut bytes));
                    String::from_utf8(bytes).unwrap()
                })
            })
            .collect();
        found.sort();
        found.dedup();
        found
    };
    let named = |pairs: &[[&str; 2]]| -> Vec<[String; 2]> {
        pairs.iter().map(|pair| pair.map(str::to_string)).collect()
    };
    assert_eq!(
        read_two(Policy::PowerNames),
        named(&[["new", "none"], ["old", "new"], ["old", "none"]])
    );
    assert_eq!(read_two(Policy::PowerNamesOnly), named(&[["", "none"]]));
    assert_eq!(read_two(Policy::PowerEverything), named(&[["new", "none"]]));
    assert_eq!(read_two(Policy::PowerNothing), named(&[["old", "none"]]));
}

#[test]
fn the_same_draw_leaves_the_same() {
    let mut disk = grown();
    disk.apply(&names("b", Some(Node::File(2))));
    let next = write(1024, b"next");
    for policy in Policy::ALL {
        for draw in 0..20 {
            let [a, b] = [0, 1].map(|_| disk.crash(policy, draw, Some(&next)).fingerprint());
            assert_eq!(a, b, "{policy}");
        }
        let first = disk.crash(policy, 0, Some(&next)).fingerprint();
        let same = (1..50).all(|d| disk.crash(policy, d, Some(&next)).fingerprint() == first);
        assert_eq!(same, !policy.is_drawn(), "{policy}");
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
}
