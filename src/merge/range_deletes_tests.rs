//! Maps of range deletes against lists of them.

use proptest::prelude::*;

use super::*;

fn bound(key: u8) -> Bound {
    Bound::from([key].as_slice())
}

fn delete(seqno: u64, lower: u8, upper: Option<u8>) -> RangeDelete {
    RangeDelete { seqno: Seqno(seqno), lower: bound(lower), upper: upper.map(bound) }
}

/// The numbers that delete a key, by the list.
fn expected(deletes: &[RangeDelete], key: &[u8], snapshot: Seqno) -> Vec<Seqno> {
    let has = |delete: &&RangeDelete| {
        *delete.lower <= *key && delete.upper.as_ref().is_none_or(|upper| *key < **upper)
    };
    let of_key = deletes.iter().filter(has).map(|delete| delete.seqno);
    let mut seqnos: Vec<Seqno> = of_key.filter(|seqno| *seqno <= snapshot).collect();
    seqnos.sort_unstable_by(|a, b| b.cmp(a));
    seqnos.dedup();
    seqnos
}

fn arb_deletes(most: usize) -> impl Strategy<Value = Vec<RangeDelete>> {
    let one = (1u64..40, 0u8..250, 1u8..30, 0u8..20).prop_map(|(seqno, lower, length, open)| {
        let upper = (open > 0).then(|| lower.saturating_add(length));
        delete(seqno, lower, upper)
    });
    prop::collection::vec(one, 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]
    #[test]
    fn a_map_says_what_its_list_says(
        deletes in arb_deletes(if cfg!(miri) { 10 } else { 200 }),
        others in arb_deletes(5),
        snapshot in 0u64..45,
        steps in prop::collection::vec(0u8..255, 1..40),
    ) {
        let snapshot = Seqno(snapshot);
        let map = RangeDeletes::of(&deletes);
        prop_assert!(map.is_in_order());
        let sizes = map.chunks.iter().map(|(_, chunk)| chunk.fragments.len());
        prop_assert!(sizes.max().unwrap_or(1) <= CHUNK_FRAGMENTS_MAX);
        // Where no reader is between them, the newest is enough.
        let newest = deletes.iter().fold(RangeDeletes::default(), |it, one| it.with(one, Seqno(20)));
        prop_assert!(newest.is_in_order());
        for key in 0..=255u8 {
            let mut wanted = expected(&deletes, &[key], Seqno::MAX);
            let many = wanted.partition_point(|seqno| *seqno >= Seqno(20)).max(1);
            wanted.drain(1.min(wanted.len())..many.min(wanted.len()));
            prop_assert_eq!(newest.span(&[key]).seqnos, &wanted[..]);
        }
        for key in 0..=255u8 {
            let found = expected(&deletes, &[key], Seqno::MAX);
            let span = map.span(&[key]);
            prop_assert_eq!(span.seqnos, &found[..]);
            prop_assert!(span.lower.is_none_or(|lower| **lower <= [key][..]));
            prop_assert!(span.upper.is_none_or(|upper| [key][..] < **upper));
            let newest = expected(&deletes, &[key], snapshot).first().copied();
            prop_assert_eq!(map.newest(&[key], snapshot), newest);
        }
        // Several maps together, asked here and there.
        let all = [deletes, others.clone()].concat();
        let maps = [Arc::new(map.clone()), Arc::new(RangeDeletes::of(&others))];
        match Cover::new(maps, snapshot) {
            None => prop_assert!(all.is_empty()),
            Some(mut cover) => {
                for key in steps.iter().flat_map(|key| [*key, key.saturating_add(1)]) {
                    let found = expected(&all, &[key], snapshot);
                    prop_assert_eq!(cover.of(&[key]), &found[..]);
                    let newest = found.first().copied().unwrap_or_default();
                    prop_assert_eq!(cover.deletes(&[key], Seqno(7)), Seqno(7) < newest);
                }
            }
        }
        // Which fragments a range meets.
        for pair in steps.windows(2) {
            let (lower, upper) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
            let (lower, upper) = ([lower], [upper]);
            let met: Vec<_> = map.overlapping(&lower, Some(&upper)).collect();
            let all = map.fragments().filter(|it| {
                *it.lower < upper[..] && it.upper.as_ref().is_none_or(|it| **it > lower[..])
            });
            prop_assert_eq!(met, all.collect::<Vec<_>>());
        }
    }
}

/// Adding to ten thousand must not copy them all.
#[test]
fn one_more_shares_the_chunks_of_the_others() {
    let key = |n: u32| Bound::from(n.to_be_bytes().as_slice());
    let deletes: Vec<RangeDelete> = (0..4000u32)
        .map(|n| RangeDelete {
            seqno: Seqno(u64::from(n)),
            lower: key(10 * n),
            upper: Some(key(10 * n + 5)),
        })
        .collect();
    let map = RangeDeletes::of(&deletes);
    assert!(map.chunks.len() <= 4000 / (CHUNK_FRAGMENTS_MAX / 2));
    let one = RangeDelete { seqno: Seqno(9999), lower: key(20_002), upper: Some(key(20_003)) };
    let more = map.with(&one, Seqno::MAX);
    let shared =
        |chunk: &&(u64, Arc<Chunk>)| map.chunks.iter().any(|(_, old)| Arc::ptr_eq(old, &chunk.1));
    assert!(more.chunks.iter().filter(shared).count() + 2 >= map.chunks.len());
    assert_eq!(more.newest(&20_002u32.to_be_bytes(), Seqno::MAX), Some(Seqno(9999)));
    assert_eq!(more.fragments().count(), 4002);
}

/// Ranges of keys that begin alike, and keys around them.
#[test]
fn keys_that_begin_alike_are_told_apart() {
    let name = |text: &str| Bound::from(text.as_bytes());
    let delete = |seqno, lower: &str, upper: &str| RangeDelete {
        seqno: Seqno(seqno),
        lower: name(lower),
        upper: (!upper.is_empty()).then(|| name(upper)),
    };
    let mut deletes = Vec::new();
    for (seqno, (lower, upper)) in [
        ("a long beginning/5", "a long beginning/6"),
        ("a long beginning/55555555", "a long beginning/555555556"),
        ("a long beginning/", "a long beginning/0"),
        ("a longer one", "a longer two"),
        ("a", "a long"),
        ("b", ""),
    ]
    .into_iter()
    .enumerate()
    {
        deletes.push(delete(seqno as u64 + 1, lower, upper));
        let map = RangeDeletes::of(&deletes);
        for key in [
            "",
            "a",
            "a long",
            "a long beginning",
            "a long beginning/",
            "a long beginning/\0",
            "a long beginning/0",
            "a long beginning/5",
            "a long beginning/5555555",
            "a long beginning/55555555",
            "a long beginning/555555555",
            "a long beginning/555555556",
            "a long beginning/6",
            "a longer one",
            "a longer two",
            "b",
            "c",
            "\u{7f}",
        ] {
            let found = expected(&deletes, key.as_bytes(), Seqno::MAX);
            assert_eq!(map.span(key.as_bytes()).seqnos, &found[..], "{key:?} of {seqno}");
        }
    }
}

/// A batch that trims a queue twenty thousand times took hours, and more than a gigabyte.
#[test]
fn range_deletes_of_one_batch_that_lie_over_one_another_cost_one() {
    let mut map = RangeDeletes::default();
    for number in 0..20_000u32 {
        let upper = Some(Bound::from(number.to_be_bytes().as_slice()));
        let lower = Bound::from([].as_slice());
        map =
            map.with(&RangeDelete { seqno: Seqno(u64::from(number) + 5), lower, upper }, Seqno(5));
    }
    assert_eq!(map.fragments().count(), 1);
}
