//! Gaps against a set of keys.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

/// Keys are single bytes; the model has the visible ones.
fn key(number: u8) -> Vec<u8> {
    vec![number]
}

#[derive(Debug, Clone)]
enum Step {
    /// A scan that begins at the key, records what it finds, and is overtaken by puts.
    Scan {
        from: u8,
        forward: bool,
        puts: Vec<u8>,
    },
    Put(u8),
    Delete(u8, u8),
    Look(u8),
    /// Keeps what is visible now, or releases the oldest that is kept.
    Snapshot(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (any::<u8>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..3))
            .prop_map(|(from, forward, puts)| Step::Scan { from, forward, puts }),
        any::<u8>().prop_map(Step::Put),
        (any::<u8>(), any::<u8>()).prop_map(|(from, len)| Step::Delete(from, len)),
        any::<u8>().prop_map(Step::Look),
        any::<bool>().prop_map(Step::Snapshot),
    ];
    prop::collection::vec(step, 1..120)
}

/// Watches the keys from `from` on, for the newest of all readers, whatever it is worth.
fn watch(gaps: &Arc<Gaps>, direction: Direction, from: Option<&[u8]>) -> Option<Watch> {
    gaps.watch(direction, (from, None), Seqno(u64::MAX), u64::MAX)
}

fn above(gaps: &Gaps, key: &[u8], seqno: u64) -> Option<Option<Vec<u8>>> {
    gaps.above(key, Seqno(seqno), 0)
}

fn below(gaps: &Gaps, key: Option<&[u8]>, seqno: u64) -> Option<Vec<u8>> {
    gaps.below(key, Seqno(seqno), 0)
}

/// No key of the model is in a gap, whichever way it is looked up.
fn check(gaps: &Gaps, seqno: u64, model: &BTreeSet<u8>, at: u8) -> Result<(), TestCaseError> {
    if let Some(bound) = above(gaps, &key(at), seqno) {
        let found = model.range(at..).find(|n| bound.as_ref().is_none_or(|b| key(**n) < *b));
        prop_assert_eq!(found, None, "in the gap from {} to {:?}", at, bound);
    }
    if let Some(bound) = below(gaps, Some(&key(at)), seqno) {
        let found = model.range(..at).find(|n| key(**n) >= bound);
        prop_assert_eq!(found, None, "in the gap from {:?} to {}", bound, at);
    }
    if let Some(bound) = below(gaps, None, seqno) {
        prop_assert!(model.iter().all(|n| key(*n) < bound), "in the gap from {:?}", bound);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 500 }))]
    #[test]
    fn no_visible_key_is_in_a_gap(steps in steps()) {
        let gaps = Arc::new(Gaps::default());
        let mut model: BTreeSet<u8> = BTreeSet::new();
        let mut seqno = 1;
        let mut snapshots: VecDeque<(u64, BTreeSet<u8>)> = VecDeque::new();
        for (number, step) in steps.into_iter().enumerate() {
            let oldest = Seqno(snapshots.front().map_or(seqno, |(seqno, _)| *seqno));
            match step {
                Step::Scan { from, forward, puts } => {
                    let direction =
                        if forward { Direction::Forward } else { Direction::Backward };
                    // One reader is refused a run that it has passed in vain, so each scan has a reader of its own.
                    let (from_key, reader) = (key(from), Seqno(u64::MAX - number as u64));
                    let at = (Some(&from_key[..]), None);
                    let watched = gaps.watch(direction, at, reader, u64::MAX).unwrap();
                    let reached = match forward {
                        true => model.range(from..).next().map(|n| key(*n)),
                        false => {
                            let last = model.range(..from).next_back();
                            Some(last.map(|n| after(&key(*n))).unwrap_or_default())
                        }
                    };
                    let since = Seqno(seqno);
                    for put in puts {
                        seqno += 1;
                        gaps.note(&key(put));
                        model.insert(put);
                    }
                    watched.record(reached.as_deref(), None, (since, oldest), 1000);
                }
                Step::Put(number) => {
                    seqno += 1;
                    gaps.note(&key(number));
                    model.insert(number);
                }
                Step::Delete(from, len) => {
                    seqno += 1;
                    model.retain(|n| *n < from || *n - from > len);
                }
                Step::Look(at) => check(&gaps, seqno, &model, at)?,
                Step::Snapshot(true) => snapshots.push_back((seqno, model.clone())),
                Step::Snapshot(false) => drop(snapshots.pop_front()),
            }
            for (seqno, model) in &snapshots {
                for at in 0..=u8::MAX {
                    check(&gaps, *seqno, model, at)?;
                }
            }
            let state = gaps.state.lock();
            let ends_before = |one: &Gap, next: &Gap| {
                one.upper.as_ref().is_some_and(|upper| *upper <= next.lower)
            };
            prop_assert!(state.gaps.is_sorted_by(ends_before), "{:?}", state.gaps);
            prop_assert!(state.gaps.iter().all(|gap| !gap.is_empty() && gap.dead > 0));
            prop_assert!(state.gaps.len() <= GAPS_MAX && state.watches.is_empty());
            prop_assert_eq!(gaps.is_watched(), !state.gaps.is_empty());
        }
        for at in 0..=u8::MAX {
            check(&gaps, u64::MAX, &model, at)?;
        }
    }
}

fn record(gaps: &Arc<Gaps>, from: &[u8], to: Option<&[u8]>, since: u64, dead: u64) {
    let watched = watch(gaps, Direction::Forward, Some(from)).unwrap();
    watched.record(to, None, (Seqno(since), Seqno(u64::MAX)), dead);
}

#[test]
fn a_gap_serves_readers_from_its_number_on() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"b", Some(b"d"), 7, 100);
    assert_eq!(above(&gaps, b"c", 6), None);
    assert_eq!(above(&gaps, b"c", 7), Some(Some(b"d".to_vec())));
    assert_eq!(above(&gaps, b"d", 9), None);
    assert_eq!(below(&gaps, Some(b"d"), 7), Some(b"b".to_vec()));
    assert_eq!(below(&gaps, Some(b"d\0"), 9), None);
    // United with a younger one, it serves younger readers alone.
    record(&gaps, b"d", None, 9, 100);
    assert_eq!(gaps.len(), 1);
    assert_eq!(above(&gaps, b"c", 8), None);
    assert_eq!(above(&gaps, b"c", 9), Some(None));
    assert_eq!(below(&gaps, None, 9), Some(b"b".to_vec()));
}

#[test]
fn a_put_behind_the_gap_does_not_prevent_it() {
    let gaps = Arc::new(Gaps::default());
    let watched = watch(&gaps, Direction::Forward, Some(b"")).unwrap();
    gaps.note(b"z");
    gaps.note(b"m");
    gaps.note(b"y");
    watched.record(Some(b"p"), None, (Seqno(1), Seqno(u64::MAX)), 100);
    assert_eq!(above(&gaps, b"", 1), Some(Some(b"m".to_vec())));
    let watched = watch(&gaps, Direction::Backward, None).unwrap();
    gaps.note(b"a");
    gaps.note(b"r");
    gaps.note(b"b");
    watched.record(Some(b"p"), None, (Seqno(1), Seqno(u64::MAX)), 100);
    assert_eq!(below(&gaps, None, 1), Some(b"r\0".to_vec()));
}

#[test]
fn the_memory_is_bounded_and_the_largest_gaps_stay() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"a", Some(b"b"), 1, 5_000);
    let oldest = [&b"c"[..], &[0; 4]].concat();
    for number in 0..1_000u32 {
        let from = [&b"c"[..], &number.to_be_bytes()].concat();
        record(&gaps, &from, Some(&after(&from)), 1, 64);
    }
    assert_eq!(gaps.len(), GAPS_MAX);
    assert_eq!(above(&gaps, b"a", 1), Some(Some(b"b".to_vec())));
    assert_eq!(above(&gaps, &oldest, 1), None);
    // What is not used goes in the end, however large.
    for number in 0..10_000u32 {
        let from = [&b"c"[..], &number.to_be_bytes()].concat();
        record(&gaps, &from, Some(&after(&from)), 1, 128);
    }
    assert_eq!(above(&gaps, b"a", 1), None);
    record(&gaps, b"a", Some(b"b"), 1, 5_000);
    let long = vec![b'x'; KEY_BYTES + 1];
    let ones = [u8::MAX; KEY_BYTES + 1];
    assert!(watch(&gaps, Direction::Forward, Some(&ones)).is_none(), "no short key is above it");
    record(&gaps, b"x", Some(&long), 1, 5_000);
    assert_eq!(above(&gaps, b"x", 1), Some(Some(long[..KEY_BYTES].to_vec())));
    // Of a gap that a long key is put into, the part below stays.
    let put = [b"a", &long[..]].concat();
    gaps.note(&put);
    assert_eq!(above(&gaps, b"a", 1), Some(Some(put[..KEY_BYTES].to_vec())));
    assert_eq!(above(&gaps, &after(&put), 1), None);
    let watches: Vec<_> =
        (0..WATCHES_MAX).map(|_| watch(&gaps, Direction::Backward, None).unwrap()).collect();
    assert!(watch(&gaps, Direction::Backward, None).is_none());
    drop(watches);
    assert!(watch(&gaps, Direction::Backward, None).is_some());
}

/// A keyspace that was emptied, read to its end and filled again in order split its gap at each put without end, and the list
/// filled with gaps between two neighbours that had never held anything.
#[test]
fn a_range_that_is_filled_again_is_no_gap_any_more() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"", None, 1, 10_000);
    for number in 0..SPLITS_MAX {
        assert!(gaps.is_watched(), "{number}");
        gaps.note(&number.to_be_bytes());
        assert_eq!(gaps.len(), 1, "{number}");
    }
    gaps.note(&SPLITS_MAX.to_be_bytes());
    assert!(!gaps.is_watched() && gaps.memory_bytes() == 0);
    // In a stack, each put splits the gap above, and each look uses it.
    record(&gaps, b"", None, 1, 10_000);
    for number in 0..10 * SPLITS_MAX {
        gaps.note(&number.to_be_bytes());
        let bound = below(&gaps, None, 1);
        assert_eq!(bound, Some(after(&number.to_be_bytes())));
    }
}

/// With more runs of dead entries than gaps, each was stepped over twice, recorded, and lost its place to the next.
#[test]
fn runs_that_save_no_more_than_the_gaps_that_there_are_wait() {
    let gaps = Arc::new(Gaps::default());
    let range = |number: u32| (number.to_be_bytes(), after(&number.to_be_bytes()));
    for number in 0..GAPS_MAX as u32 {
        let (from, upper) = range(number);
        record(&gaps, &from, Some(&upper), 1, 512);
    }
    let newcomer = |number: u32, dead| {
        let (from, _) = range(number);
        gaps.watch(Direction::Forward, (Some(&from), Some(&from)), Seqno(1), dead)
    };
    assert!(newcomer(1_000, 512).is_none());
    assert!(newcomer(1_000, 2_000).is_some(), "longer");
    // What is never used gives way in the end.
    let tries = (0..100_000).find(|number| newcomer(1_000 + number, 512).is_some());
    assert!(tries.is_some_and(|tries| (1_000..3_000).contains(&tries)), "{tries:?}");
    // A gap that is there grows, however little.
    let (from, _) = range(5);
    assert!(gaps.watch(Direction::Forward, (Some(b""), Some(&from)), Seqno(1), 1).is_some());
}

/// A snapshot that is older than a gap stepped over its range twice at each look, and made the gap younger.
#[test]
fn readers_that_are_older_than_a_gap_do_not_record_it_again() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"b", Some(b"d"), 7, 1_000);
    let watch = |direction, at: &[u8], seqno| {
        gaps.watch(direction, (Some(at), Some(at)), Seqno(seqno), 1_000)
    };
    assert!(watch(Direction::Forward, b"c", 6).is_none());
    assert!(watch(Direction::Backward, b"d", 6).is_none());
    assert!(watch(Direction::Forward, b"d", 6).is_some());
    assert!(watch(Direction::Forward, b"c", 7).is_some());
}

/// A part of a range that is cut off took the worth of the whole with it.
#[test]
fn dead_entries_count_where_they_are() {
    let gaps = Arc::new(Gaps::default());
    let watched = watch(&gaps, Direction::Forward, Some(b"\x10")).unwrap();
    gaps.note(b"\x20");
    watched.record(Some(b"\x50"), None, (Seqno(1), Seqno(u64::MAX)), 1_000);
    assert_eq!(gaps.state.lock().gaps[0].dead, 250);
    let watched = watch(&gaps, Direction::Backward, Some(b"\x90")).unwrap();
    watched.record(Some(b"\x50"), Some(b"\x6f\xff\xff"), (Seqno(1), Seqno(u64::MAX)), 1_000);
    let dead = gaps.state.lock().gaps[1].dead;
    assert!((490..=510).contains(&dead), "{dead}");
    // Nothing to speak of is left.
    let watched = watch(&gaps, Direction::Forward, Some(b"\xa0")).unwrap();
    gaps.note(b"\xa0\x01");
    watched.record(Some(b"\xb0"), None, (Seqno(1), Seqno(u64::MAX)), 1_000);
    assert_eq!(gaps.len(), 2);
}

/// Each extension of a queue's gap took all of it away from the readers that had begun before: they stepped over every dead
/// entry of the queue at each look.
#[test]
fn readers_that_are_older_than_an_extension_keep_the_rest() {
    let gaps = Arc::new(Gaps::default());
    let extend = |from: u8, to: u8, since: u64, oldest: u64| {
        let watched = watch(&gaps, Direction::Forward, Some(&key(from))).unwrap();
        watched.record(Some(&key(to)), None, (Seqno(since), Seqno(oldest)), 1_000);
    };
    extend(10, 100, 5, 5);
    // A snapshot with the number 6 stays.
    for (to, since) in [(110, 7), (120, 8), (130, 9)] {
        extend(0, to, since, 6);
        assert_eq!(above(&gaps, &key(10), 6), Some(Some(key(100))));
        assert_eq!(below(&gaps, Some(&key(100)), 6), Some(key(10)));
        assert_eq!(above(&gaps, &key(0), since), Some(Some(key(to))));
        assert_eq!(above(&gaps, &key(105), since), Some(Some(key(to))));
        assert_eq!(below(&gaps, Some(&key(to)), since), Some(key(0)));
        assert_eq!(below(&gaps, Some(&key(50)), since), Some(key(0)));
        // Below, the old one, and above.
        assert_eq!(gaps.len(), 3);
    }
    // A put ends them all there.
    gaps.note(&key(50));
    assert_eq!(above(&gaps, &key(10), 6), Some(Some(key(50))));
    assert_eq!(above(&gaps, &key(0), 9), Some(Some(key(50))));
    assert_eq!(above(&gaps, &after(&key(50)), 9), Some(Some(key(130))));
    // The snapshot is gone.
    extend(0, 50, 20, 20);
    extend(51, 140, 21, 21);
    assert_eq!(gaps.len(), 2, "{:?}", gaps.state.lock().gaps);
    assert_eq!(below(&gaps, Some(&key(140)), 21), Some(after(&key(50))));
}

/// One put into an unused gap undid what thousands of refused runs had made the others lose.
#[test]
fn the_age_never_goes_back() {
    let gaps = Arc::new(Gaps::default());
    let far = |number: u8| [vec![number], vec![0; 9]].concat();
    record(&gaps, &far(0), Some(&far(1)), 1, 600);
    for number in 1..GAPS_MAX as u8 {
        record(&gaps, &far(2 * number), Some(&far(2 * number + 1)), 1, 40_000);
    }
    let refused = |gaps: &Arc<Gaps>| {
        let from = far(200);
        gaps.watch(Direction::Forward, (Some(&from), Some(&from)), Seqno(1), 2).is_none()
    };
    (0..4_000).for_each(|_| assert!(refused(&gaps)));
    let age = gaps.state.lock().age;
    assert!(age > 400, "{age}");
    gaps.note(&[far(0), vec![7]].concat());
    gaps.note(&[vec![0], vec![0x80; 9]].concat());
    assert!(gaps.state.lock().age >= age);
}

/// However much was once deleted in a gap, compactions drop it: old queues blocked the list for millions of looks.
#[test]
fn a_gap_is_worth_no_more_than_some_thousand_entries() {
    let gaps = Arc::new(Gaps::default());
    for number in 0..GAPS_MAX as u8 {
        record(&gaps, &key(2 * number), Some(&key(2 * number + 1)), 1, 1_000_000);
    }
    let from = key(201);
    let watch = |dead| gaps.watch(Direction::Forward, (Some(&from), Some(&from)), Seqno(1), dead);
    assert!(watch(2 * WORTH_MAX - 2).is_none());
    assert!(watch(2 * WORTH_MAX + 2).is_some());
}

/// Compactions dropped the entries between the two passes: the gap saved nothing, and cost its writers.
#[test]
fn a_range_without_dead_entries_is_no_gap() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"a", Some(b"b"), 1, 0);
    assert!(!gaps.is_watched());
}

/// A keyspace with a gap locked it for every put and every range that an iterator opened.
#[test]
fn keys_far_from_all_gaps_are_told_without_the_lock() {
    let gaps = Arc::new(Gaps::default());
    assert!(!gaps.may_have(b"") && !gaps.may_have(&[0xff; 9]));
    record(&gaps, b"queue 10", Some(b"queue 20"), 1, 100);
    record(&gaps, b"queue 40", Some(b"queue 50"), 1, 100);
    for (key, may) in [("", false), ("queue 0", false), ("queue 10", true), ("queue 30", true)] {
        assert_eq!(gaps.may_have(key.as_bytes()), may, "{key}");
    }
    assert!(gaps.may_have(b"queue 50") && !gaps.may_have(b"queue 51") && !gaps.may_have(b"r"));
    let watched = watch(&gaps, Direction::Forward, Some(b"z")).unwrap();
    assert!(gaps.may_have(b"") && gaps.may_have(&[0xff; 9]), "what is watched has no end");
    watched.record(None, None, (Seqno(1), Seqno(u64::MAX)), 100);
    assert!(gaps.may_have(&[0xff; 9]) && !gaps.may_have(b"a"));
}

/// An empty range, filled again and looked at after each put, kept its gap indefinitely, though nothing dead was in it.
#[test]
fn a_gap_that_is_used_and_never_grows_goes() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"", None, 1, 10_000);
    let puts = (0u32..).take_while(|number| {
        gaps.note(&number.to_be_bytes());
        below(&gaps, None, 1).is_some()
    });
    assert_eq!(puts.count(), SPLITS_ALL_MAX as usize);
}

/// A gap whose lower bound was long was not remembered, though its range was stepped over twice at each look.
#[test]
fn a_gap_between_long_keys_is_remembered_but_for_its_ends() {
    let gaps = Arc::new(Gaps::default());
    let long = |first: u8| [vec![first; KEY_BYTES], vec![first, 7]].concat();
    let watch = |direction, from: &[u8]| watch(&gaps, direction, Some(from)).unwrap();
    let (lower, upper) = (long(3), long(9));
    watch(Direction::Forward, &lower).record(Some(&upper), None, (Seqno(1), Seqno(u64::MAX)), 100);
    let above_all = [&[3; KEY_BYTES - 1][..], &[4]].concat();
    assert_eq!(above(&gaps, &lower, 1), None);
    assert_eq!(above(&gaps, &above_all, 1), Some(Some(vec![9; KEY_BYTES])));
    gaps.note(&[5]);
    let backward = watch(Direction::Backward, &long(20));
    backward.record(Some(&long(12)), None, (Seqno(1), Seqno(u64::MAX)), 100);
    let lower = [&[12; KEY_BYTES - 1][..], &[13]].concat();
    assert_eq!(below(&gaps, Some(&[20; KEY_BYTES]), 1), Some(lower));
}

/// A snapshot over a range that had been filled again stepped over it twice at each look.
#[test]
fn a_reader_whose_watch_was_in_vain_does_not_repeat_it() {
    let gaps = Arc::new(Gaps::default());
    let watch = |seqno| {
        let range = (Some(&b"b"[..]), Some(&b"c"[..]));
        gaps.watch(Direction::Forward, range, Seqno(seqno), 1_000)
    };
    let oldest = (Seqno(9), Seqno(u64::MAX));
    watch(5).unwrap().record(Some(b"d"), Some(b"b"), oldest, 1_000);
    assert!(!gaps.is_watched());
    assert!(watch(5).is_none());
    watch(9).unwrap().record(Some(b"d"), None, oldest, 1_000);
    assert_eq!(above(&gaps, b"b", 9), Some(Some(b"d".to_vec())));
}

/// A run whose first key is long was watched from a shortened bound on. A put before that bound was then the first newer
/// one, and the only one that the reader told of, and it ended nothing: the gap had later puts inside, and iterators
/// skipped them.
#[test]
fn a_put_before_a_shortened_bound_ends_the_run() {
    let long = |end: &[u8]| [&[3; KEY_BYTES], end].concat();
    let gaps = Arc::new(Gaps::default());
    let watched = watch(&gaps, Direction::Forward, Some(&long(&[1]))).unwrap();
    watched.record(Some(&[9]), Some(&long(&[1, 1])), (Seqno(9), Seqno(u64::MAX)), 1_000);
    assert_eq!(above(&gaps, &[5], 9), None);
    let watched = watch(&gaps, Direction::Backward, Some(&long(&[7]))).unwrap();
    watched.record(Some(&[1]), Some(&long(&[5])), (Seqno(9), Seqno(u64::MAX)), 1_000);
    assert_eq!(below(&gaps, Some(&[2]), 9), None);
}

/// Nothing is left of a run inside one beginning once its bounds are shortened: it is not stepped over twice for that.
#[test]
fn a_run_inside_one_long_beginning_is_not_watched() {
    let long = |end: &[u8]| [&[3; KEY_BYTES], end].concat();
    let gaps = Arc::new(Gaps::default());
    let (low, high) = (long(&[1]), long(&[7]));
    let seqno = Seqno(9);
    assert!(gaps.watch(Direction::Forward, (Some(&low), Some(&high)), seqno, 1_000).is_none());
    assert!(gaps.watch(Direction::Backward, (Some(&high), Some(&low)), seqno, 1_000).is_none());
    assert!(gaps.watch(Direction::Forward, (Some(&low), Some(&[4])), seqno, 1_000).is_some());
    assert!(gaps.watch(Direction::Backward, (Some(&high), Some(&[2])), seqno, 1_000).is_some());
}
