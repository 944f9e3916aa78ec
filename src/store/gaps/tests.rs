//! Gaps against a set of keys.

use std::collections::BTreeSet;

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
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (any::<u8>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..3))
            .prop_map(|(from, forward, puts)| Step::Scan { from, forward, puts }),
        any::<u8>().prop_map(Step::Put),
        (any::<u8>(), any::<u8>()).prop_map(|(from, len)| Step::Delete(from, len)),
        any::<u8>().prop_map(Step::Look),
    ];
    prop::collection::vec(step, 1..120)
}

/// No key of the model is in a gap, whichever way it is looked up.
fn check(gaps: &Gaps, model: &BTreeSet<u8>, at: u8) -> Result<(), TestCaseError> {
    if let Some(bound) = gaps.above(&key(at), Seqno(u64::MAX)) {
        let found = model.range(at..).find(|n| bound.as_ref().is_none_or(|b| key(**n) < *b));
        prop_assert_eq!(found, None, "in the gap from {} to {:?}", at, bound);
    }
    if let Some(bound) = gaps.below(Some(&key(at)), Seqno(u64::MAX)) {
        let found = model.range(..at).find(|n| key(**n) >= bound);
        prop_assert_eq!(found, None, "in the gap from {:?} to {}", bound, at);
    }
    if let Some(bound) = gaps.below(None, Seqno(u64::MAX)) {
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
        for step in steps {
            match step {
                Step::Scan { from, forward, puts } => {
                    let direction =
                        if forward { Direction::Forward } else { Direction::Backward };
                    let watch = gaps.watch(direction, Some(&key(from))).unwrap();
                    let reached = match forward {
                        true => model.range(from..).next().map(|n| key(*n)),
                        false => {
                            let last = model.range(..from).next_back();
                            Some(last.map(|n| after(&key(*n))).unwrap_or_default())
                        }
                    };
                    for put in puts {
                        gaps.note(&key(put));
                        model.insert(put);
                    }
                    watch.record(reached.as_deref(), Seqno(1), 1000);
                }
                Step::Put(number) => {
                    gaps.note(&key(number));
                    model.insert(number);
                }
                Step::Delete(from, len) => model.retain(|n| *n < from || *n - from > len),
                Step::Look(at) => check(&gaps, &model, at)?,
            }
            let state = gaps.state.lock();
            let ends_before = |one: &Gap, next: &Gap| {
                one.upper.as_ref().is_some_and(|upper| *upper < next.lower)
            };
            prop_assert!(state.gaps.is_sorted_by(ends_before), "{:?}", state.gaps);
            prop_assert!(state.gaps.iter().all(|gap| !gap.is_empty() && gap.dead > 0));
            prop_assert!(state.gaps.len() <= GAPS_MAX && state.watches.is_empty());
            prop_assert_eq!(gaps.is_watched(), !state.gaps.is_empty());
        }
        for at in 0..=u8::MAX {
            check(&gaps, &model, at)?;
        }
    }
}

fn record(gaps: &Arc<Gaps>, from: &[u8], to: Option<&[u8]>, since: u64, dead: u64) {
    let watch = gaps.watch(Direction::Forward, Some(from)).unwrap();
    watch.record(to, Seqno(since), dead);
}

#[test]
fn a_gap_serves_readers_from_its_number_on() {
    let gaps = Arc::new(Gaps::default());
    record(&gaps, b"b", Some(b"d"), 7, 100);
    assert_eq!(gaps.above(b"c", Seqno(6)), None);
    assert_eq!(gaps.above(b"c", Seqno(7)), Some(Some(b"d".to_vec())));
    assert_eq!(gaps.above(b"d", Seqno(9)), None);
    assert_eq!(gaps.below(Some(b"d"), Seqno(7)), Some(b"b".to_vec()));
    assert_eq!(gaps.below(Some(b"d\0"), Seqno(9)), None);
    // United with a younger one, it serves younger readers alone.
    record(&gaps, b"d", None, 9, 100);
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps.above(b"c", Seqno(8)), None);
    assert_eq!(gaps.above(b"c", Seqno(9)), Some(None));
    assert_eq!(gaps.below(None, Seqno(9)), Some(b"b".to_vec()));
}

#[test]
fn a_put_behind_the_gap_does_not_prevent_it() {
    let gaps = Arc::new(Gaps::default());
    let watch = gaps.watch(Direction::Forward, Some(b"")).unwrap();
    gaps.note(b"z");
    gaps.note(b"m");
    gaps.note(b"y");
    watch.record(Some(b"p"), Seqno(1), 100);
    assert_eq!(gaps.above(b"", Seqno(1)), Some(Some(b"m".to_vec())));
    let watch = gaps.watch(Direction::Backward, None).unwrap();
    gaps.note(b"a");
    gaps.note(b"r");
    gaps.note(b"b");
    watch.record(Some(b"p"), Seqno(1), 100);
    assert_eq!(gaps.below(None, Seqno(1)), Some(b"r\0".to_vec()));
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
    assert_eq!(gaps.above(b"a", Seqno(1)), Some(Some(b"b".to_vec())));
    assert_eq!(gaps.above(&oldest, Seqno(1)), None);
    // What is not used goes in the end, however large.
    for number in 0..10_000u32 {
        let from = [&b"c"[..], &number.to_be_bytes()].concat();
        record(&gaps, &from, Some(&after(&from)), 1, 128);
    }
    assert_eq!(gaps.above(b"a", Seqno(1)), None);
    record(&gaps, b"a", Some(b"b"), 1, 5_000);
    let long = vec![b'x'; KEY_BYTES + 1];
    assert!(gaps.watch(Direction::Forward, Some(&long)).is_none());
    record(&gaps, b"x", Some(&long), 1, 64);
    assert_eq!(gaps.above(b"x", Seqno(1)), None);
    // A put with a long key splits no gap in two that have it.
    gaps.note(&[b"a", &long[..]].concat());
    assert_eq!(gaps.above(b"a", Seqno(1)), None);
    let watches: Vec<_> =
        (0..WATCHES_MAX).map(|_| gaps.watch(Direction::Backward, None).unwrap()).collect();
    assert!(gaps.watch(Direction::Backward, None).is_none());
    drop(watches);
    assert!(gaps.watch(Direction::Backward, None).is_some());
}
