//! Damage is named, never guessed past.

use super::*;

/// 12 records in one shard over two segments, a sync after the 9th; the 12th knows about it.
fn damaged_store() -> (Arc<TestVfs>, Vec<Batch>) {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(1, 4096, 1));
    let mut random = Random::new(5);
    let mut log = Vec::new();
    for first in 1..=12 {
        let payload = random_payload(&mut random, 2, 400);
        append_to(&journal, 0, 2 * first - 1, 2, &payload);
        log.push(Batch { first: 2 * first - 1, count: 2, payload });
        if first == 9 {
            journal.sync_all().unwrap();
        }
    }
    assert!(journal.statistics().segments_created >= 2);
    (vfs, log)
}

/// Offset of each record of a segment, and the end of the last.
fn offsets(vfs: &TestVfs, path: &Path) -> Vec<usize> {
    let bytes = vfs.contents(path);
    let mut offsets = vec![64];
    loop {
        let at = *offsets.last().unwrap();
        let len = bytes.get(at + 4..at + 8).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        match len {
            Some(len) if bytes[at..at + 8] != [0; 8] => {
                offsets.push(at + (40 + len as usize).next_multiple_of(8));
            }
            _ => return offsets,
        }
    }
}

#[test]
fn any_flipped_byte_in_what_was_synced_is_corruption_at_its_place() {
    let (vfs, _) = damaged_store();
    let path = segment(1, 0, 1);
    let offsets = offsets(&vfs, &path);
    let end = *offsets.last().unwrap();
    let mut random = Random::new(3);
    let bytes = vfs.contents(&path);
    for at in 0..end {
        let flip = 1u8 << random.below(8);
        vfs.damage(&path, |bytes| bytes[at] ^= flip);
        let error = collect(&vfs, &plan(1)).unwrap_err();
        let Error::Corruption { file, offset, .. } = error else { panic!("{error} at {at}") };
        assert_eq!(file, path);
        if at >= 64 {
            let record = offsets.iter().rfind(|&&offset| offset <= at).unwrap();
            assert_eq!(offset, *record as u64, "byte {at}");
        }
        vfs.damage(&path, |current| current.copy_from_slice(&bytes));
    }
    collect(&vfs, &plan(1)).unwrap();
}

#[test]
fn a_zeroed_sector_in_what_was_synced_is_corruption() {
    let (vfs, _) = damaged_store();
    let path = segment(1, 0, 1);
    let end = *offsets(&vfs, &path).last().unwrap();
    for sector in 0..=(end - 1) / 512 {
        let crashed = vfs.after_process_death();
        crashed.damage(&path, |bytes| bytes[sector * 512..(sector + 1) * 512].fill(0));
        assert!(collect(&crashed, &plan(1)).unwrap_err().is_corruption(), "sector {sector}");
    }
}

#[test]
fn salvage_stops_at_the_damage_and_says_so() {
    let (vfs, log) = damaged_store();
    let path = segment(1, 0, 1);
    let third = offsets(&vfs, &path)[2];
    vfs.damage(&path, |bytes| bytes[third + 50] ^= 1);
    let salvage = ReplayPlan { salvage: true, ..plan(1) };
    let (found, report) = collect(&vfs, &salvage).unwrap();
    assert_eq!((found.as_slice(), report.last), (&log[..2], Seqno(4)));
    assert!(!report.damage_salvaged.is_empty());
    // The next recovery does not stumble over it again.
    let second = journal(&vfs, options(1, 4096, 2));
    append_to(&second, 0, 5, 1, &solid_payload(5));
    let plan = ReplayPlan { limits: report.limits, ..plan(2) };
    let (found, report) = collect(&vfs, &plan).unwrap();
    assert_eq!((found.len(), report.last), (3, Seqno(5)));
}

#[test]
fn damage_wholly_below_the_floor_is_skipped_and_reported() {
    let (vfs, log) = damaged_store();
    let path = segment(1, 0, 1);
    let third = offsets(&vfs, &path)[2];
    vfs.damage(&path, |bytes| bytes[third + 50] ^= 1);
    for (floor, fine) in [(4, false), (5, false), (6, true), (9, true)] {
        let plan = ReplayPlan { floor: Seqno(floor), ..plan(1) };
        match collect(&vfs, &plan) {
            Ok((found, report)) if fine => {
                assert_eq!(found, log[floor as usize / 2..]);
                assert_eq!(report.damage_skipped.len(), 1);
            }
            Err(error) if !fine => assert!(error.is_corruption()),
            other => panic!("floor {floor}: {other:?}"),
        }
    }
}

#[test]
fn a_bad_last_record_is_a_torn_tail_unless_something_knows_it_was_durable() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(2, 4096, 1));
    append_to(&journal, 0, 1, 1, &solid_payload(100));
    append_to(&journal, 1, 2, 1, &solid_payload(100));
    let flip = |vfs: &TestVfs| vfs.damage(&segment(1, 1, 1), |bytes| bytes[64 + 60] ^= 4);
    let crashed = vfs.after_process_death();
    flip(&crashed);
    let (found, report) = collect(&crashed, &plan(1)).unwrap();
    assert_eq!((found.len(), report.torn.len()), (1, 1));

    // A record of another shard knows.
    journal.sync_upto(Seqno(2)).unwrap();
    append_to(&journal, 0, 3, 1, &solid_payload(100));
    let crashed = vfs.after_process_death();
    flip(&crashed);
    let error = collect(&crashed, &plan(1)).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("-01-"), "{error}");
    // So it does if the shard is missing altogether.
    let crashed = vfs.after_process_death();
    crashed.remove(&segment(1, 1, 1)).unwrap();
    assert!(collect(&crashed, &plan(1)).unwrap_err().is_corruption());
}

#[test]
fn unsynced_damage_before_valid_records_needs_a_blank_word_to_be_excused() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(1, 4096, 1));
    for first in 1..=3 {
        append_to(&journal, 0, first, 1, &solid_payload(150));
    }
    let second = 64 + 200;
    for at in second..second + 184 {
        // One bit wrong, no word blank: not what losing power does.
        let crashed = vfs.after_process_death();
        crashed.damage(&segment(1, 0, 1), |bytes| bytes[at] ^= 0x80);
        let error = collect(&crashed, &plan(1)).unwrap_err();
        assert!(error.is_corruption(), "{error} at {at}");
    }
}

#[test]
fn in_a_journal_that_was_closed_nothing_may_be_missing() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(2, 4096, 1));
    for first in 1..=10 {
        append_to(&journal, first as usize % 2, first, 1, &solid_payload(900));
    }
    journal.close().unwrap();
    assert!(collect(&vfs, &plan(1)).unwrap().1.clean);
    let names: Vec<PathBuf> = vfs.unsynced_sectors().into_iter().map(|(path, _)| path).collect();
    assert_eq!(names.len(), 4);
    for name in names {
        let crashed = vfs.after_process_death();
        crashed.remove(&name).unwrap();
        assert!(collect(&crashed, &plan(1)).unwrap_err().is_corruption(), "{name:?}");
        let crashed = vfs.after_process_death();
        crashed.damage(&name, |bytes| bytes[64..].fill(0));
        assert!(collect(&crashed, &plan(1)).unwrap_err().is_corruption(), "{name:?}");
        let crashed = vfs.after_process_death();
        crashed.damage(&name, |bytes| bytes.truncate(2000));
        assert!(collect(&crashed, &plan(1)).unwrap_err().is_corruption(), "{name:?}");
    }
}

#[test]
fn an_older_epoch_must_reach_its_limit() {
    let vfs = TestVfs::new();
    let first = journal(&vfs, options(1, 4096, 1));
    for seqno in 1..=3 {
        append_to(&first, 0, seqno, 1, &solid_payload(100));
    }
    let limits = vec![EpochLimit { epoch: 1, last: Seqno(3) }];
    let plan = ReplayPlan { limits: limits.clone(), ..plan(2) };
    assert_eq!(collect(&vfs, &plan).unwrap().1.last, Seqno(3));
    // A tail that would pass as torn in the newest epoch is damage here, and so is no file at all.
    vfs.damage(&segment(1, 0, 1), |bytes| bytes[64 + 2 * 152 + 45..].fill(0));
    assert!(collect(&vfs, &plan).unwrap_err().is_corruption());
    vfs.remove(&segment(1, 0, 1)).unwrap();
    assert!(collect(&vfs, &plan).unwrap_err().is_corruption());
    // Unless the floor has passed it.
    let plan = ReplayPlan { floor: Seqno(3), ..plan };
    assert_eq!(collect(&vfs, &plan).unwrap().1.last, Seqno(3));
}

#[test]
fn a_missing_segment_in_between_is_corruption() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(1, 4096, 1));
    for first in 1..=9 {
        append_to(&journal, 0, first, 1, &solid_payload(1800));
    }
    vfs.remove(&segment(1, 0, 3)).unwrap();
    let error = collect(&vfs, &plan(1)).unwrap_err();
    assert!(error.to_string().contains("journal-00000001-00-00000003.log after this"), "{error}");
}

#[test]
fn files_of_other_stores_and_later_epochs_are_refused() {
    let vfs = TestVfs::new();
    let stray = JournalOptions { store_id: 1, ..options(1, 4096, 1) };
    append_to(&journal(&vfs, stray), 0, 1, 1, &solid_payload(100));
    let error = collect(&vfs, &plan(1)).unwrap_err();
    assert!(error.to_string().contains("store id"), "{error}");
    let error = collect(&vfs, &plan(0)).unwrap_err();
    assert!(error.to_string().contains("epoch"), "{error}");
}

#[test]
fn a_segment_whose_creation_was_interrupted_is_empty() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(1, 4096, 1));
    append_to(&journal, 0, 1, 1, &solid_payload(100));
    for len in [0, 10, 4096] {
        let crashed = vfs.after_process_death();
        crashed.create_mapped(&segment(1, 0, 2), len).unwrap();
        crashed.create_mapped(&segment(1, 1, 1), len).unwrap();
        let (found, report) = collect(&crashed, &plan(1)).unwrap();
        assert_eq!((found.len(), report.torn.len(), report.segments.len()), (1, 0, 3));
    }
}

#[test]
fn random_damage_never_panics_and_never_delivers_what_was_not_written() {
    let (vfs, log) = damaged_store();
    let mut random = Random::new(11);
    for round in 0..400 {
        let crashed = vfs.after_process_death();
        for _ in 0..=random.below(3) {
            let path = segment(1, 0, 1 + random.below(2) as u32);
            let (at, n) = (random.below(4000) as usize, random.below(90) as usize);
            let junk = random.bytes(n as u64);
            crashed.damage(&path, |bytes| bytes[at..at + n].copy_from_slice(&junk));
        }
        let plan = ReplayPlan { salvage: round % 2 == 0, ..plan(1) };
        match collect(&crashed, &plan) {
            Ok((found, _)) => assert!(log.starts_with(&found)),
            Err(error) => assert!(error.is_corruption(), "{error}"),
        }
    }
}
