//! What the row cache promises.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{ROW_BYTES_MAX, RowCache};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::key_hash::hash_key;
use crate::base::random::SplitMix;
use crate::cache::Cache;
use crate::cache::page_cache::CacheOptions;

const SPACE: KeyspaceId = KeyspaceId(1);

fn put<'a>(key: &'a [u8], seqno: u64, value: &'a [u8]) -> EntryRef<'a> {
    EntryRef { key, seqno: Seqno(seqno), kind: EntryKind::Put, value }
}

fn offer(rows: &RowCache, entry: EntryRef<'_>) -> bool {
    rows.admit(SPACE, hash_key(entry.key), entry, || true)
}

/// Offers it as often as it takes.
fn admit(rows: &RowCache, entry: EntryRef<'_>) {
    offer(rows, entry);
    offer(rows, entry);
}

fn get(rows: &RowCache, key: &[u8]) -> Option<(u64, Vec<u8>)> {
    rows.get(SPACE, hash_key(key), key, |entry| {
        assert_eq!((entry.key, entry.kind), (key, EntryKind::Put));
        (entry.seqno.0, entry.value.to_vec())
    })
}

#[test]
fn a_record_is_kept_from_its_second_offer_on() {
    let rows = RowCache::new(64 << 10);
    assert!(rows.is_empty());
    offer(&rows, put(b"a", 7, b"one"));
    assert_eq!((get(&rows, b"a"), rows.is_empty()), (None, true));
    offer(&rows, put(b"a", 7, b"one"));
    assert_eq!(get(&rows, b"a"), Some((7, b"one".to_vec())));
    assert_eq!(rows.get(KeyspaceId(2), hash_key(b"a"), b"a", |_| ()), None);
    // Not what is no longer the newest, nor what is too long.
    let is_current = std::cell::Cell::new(true);
    for current in [true, false] {
        is_current.set(current);
        rows.admit(SPACE, hash_key(b"b"), put(b"b", 8, b"two"), || is_current.get());
    }
    assert_eq!(get(&rows, b"b"), None);
    admit(&rows, put(b"c", 9, &[1; ROW_BYTES_MAX]));
    assert_eq!(get(&rows, b"c"), None);
    admit(&rows, put(b"c", 9, &[1; ROW_BYTES_MAX - 1]));
    assert_eq!(get(&rows, b"c"), Some((9, vec![1; ROW_BYTES_MAX - 1])));
    admit(&rows, put(b"", 10, b""));
    assert_eq!(get(&rows, b""), Some((10, Vec::new())));
}

#[test]
fn without_room_there_are_no_records() {
    let rows = RowCache::new(1000);
    admit(&rows, put(b"a", 1, b"one"));
    assert_eq!((get(&rows, b"a"), rows.bytes()), (None, 0));
    rows.wait_for_admissions();
    rows.supersede(SPACE, hash_key(b"a"), put(b"a", 2, b"two"));
}

#[test]
fn what_is_superseded_is_replaced_or_forgotten() {
    let rows = RowCache::new(64 << 10);
    for kind in [EntryKind::Delete, EntryKind::Merge, EntryKind::PutBlob, EntryKind::MergeBlob] {
        admit(&rows, put(b"a", 1, b"one"));
        rows.supersede(SPACE, hash_key(b"a"), put(b"a", 2, b"a longer value than before"));
        assert_eq!(get(&rows, b"a"), Some((2, b"a longer value than before".to_vec())));
        let entry = EntryRef { key: b"a", seqno: Seqno(3), kind, value: b"" };
        rows.supersede(SPACE, hash_key(b"a"), entry);
        assert_eq!(get(&rows, b"a"), None);
    }
    admit(&rows, put(b"a", 1, b"one"));
    rows.supersede(SPACE, hash_key(b"a"), put(b"a", 2, &[0; ROW_BYTES_MAX]));
    assert_eq!(get(&rows, b"a"), None);
    // What is not here does not come by being superseded.
    rows.supersede(SPACE, hash_key(b"b"), put(b"b", 4, b"two"));
    assert_eq!(get(&rows, b"b"), None);
}

/// Random work, beside a map of what was last offered or superseded: what is found is that,
/// whatever has been evicted; memory stays within bounds and is counted.
#[test]
fn what_is_found_is_the_newest_and_memory_is_bounded() {
    let (rounds, sizes) =
        if cfg!(miri) { (300, [16 << 10, 20 << 10]) } else { (200_000, [16 << 10, 2 << 20]) };
    for bytes_max in sizes {
        let rows = RowCache::new(bytes_max);
        let mut random = SplitMix::new(bytes_max as u64);
        let mut newest: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
        let mut found = 0;
        for seqno in 1..rounds {
            // Few keys are asked for often, many seldom.
            let bits = random.below(14);
            let number = random.below(1 << bits);
            let key = number.to_be_bytes().repeat(1 + number as usize % 5);
            match random.below(8) {
                0 => {
                    let long = if random.below(10) == 0 { 1900 } else { 120 };
                    let value = vec![seqno as u8; random.below(long) as usize];
                    rows.supersede(SPACE, hash_key(&key), put(&key, seqno, &value));
                    newest.insert(number, (seqno, value));
                }
                _ => match get(&rows, &key) {
                    Some(row) => {
                        assert_eq!(Some(&row), newest.get(&number), "{number}");
                        found += 1;
                    }
                    None => {
                        if let Some((seqno, value)) = newest.get(&number) {
                            offer(&rows, put(&key, *seqno, value));
                        }
                    }
                },
            }
            if seqno % 64 == 0 {
                rows.check_bytes();
            }
            assert!(rows.bytes() <= bytes_max, "{} of {bytes_max}", rows.bytes());
        }
        assert!(found > rounds / 20, "{found}");
    }
}

/// Rows that are read again and again outlast a stream of others that are not.
#[test]
fn what_is_used_stays() {
    if cfg!(miri) {
        return;
    }
    let rows = RowCache::new(256 << 10);
    let value = [5; 100];
    let key = |number: u64| number.to_be_bytes();
    for number in 0..200 {
        admit(&rows, put(&key(number), 1, &value));
    }
    for stranger in 1000..51_000 {
        admit(&rows, put(&key(stranger), 1, &value));
        let _ = get(&rows, &key(stranger % 200));
    }
    let kept = (0..200).filter(|&number| get(&rows, &key(number)).is_some()).count();
    assert!(kept > 150, "{kept}");
}

/// A thread moves on what keys hold, others read and offer what they have read: nobody ever sees a
/// value that is older than what was shown before they looked.
#[test]
fn readers_never_see_what_was_superseded_before_they_looked() {
    const KEYS: u64 = 64;
    let rows = Arc::new(RowCache::new(16 << 10));
    // What the tree holds of each key, and the number of its state.
    let tree: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(1)).collect());
    let shown = Arc::new(AtomicU64::new(0));
    let newest = Arc::new(AtomicU64::new(0));
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let value = |seqno: u64| seqno.to_le_bytes().repeat(12);
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let (rows, tree, stop) = (Arc::clone(&rows), Arc::clone(&tree), Arc::clone(&stop));
            let (shown, newest) = (Arc::clone(&shown), Arc::clone(&newest));
            let turns = Arc::clone(&turns);
            std::thread::spawn(move || {
                let mut random = SplitMix::new(reader);
                let mut found = 0u64;
                while !stop.load(Ordering::Acquire) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    let number = random.below(KEYS);
                    let key = number.to_be_bytes();
                    let state = shown.load(Ordering::SeqCst);
                    let least = tree[number as usize].load(Ordering::SeqCst);
                    match get(&rows, &key) {
                        Some((seqno, bytes)) => {
                            assert!(seqno >= least, "{seqno} after {least}");
                            assert_eq!(bytes, value(seqno));
                            found += 1;
                        }
                        None => {
                            let is_current = || newest.load(Ordering::SeqCst) == state;
                            let bytes = value(least);
                            let entry = put(&key, least, &bytes);
                            rows.admit(SPACE, hash_key(&key), entry, is_current);
                        }
                    }
                }
                found
            })
        })
        .collect();
    for round in 2..if cfg!(miri) { 10 } else { 2000 } {
        newest.fetch_add(1, Ordering::SeqCst);
        rows.wait_for_admissions();
        let changed = (0..4).map(|i| (round * 5 + i * 7) % KEYS);
        if round % 16 == 0 {
            // All rows go, and the ring gets another length.
            rows.fit([10 << 10, 64 << 10][round as usize / 16 % 2]);
        }
        for number in changed.clone() {
            let key = number.to_be_bytes();
            rows.supersede(SPACE, hash_key(&key), put(&key, round, &value(round)));
        }
        for number in changed {
            tree[number as usize].store(round, Ordering::SeqCst);
        }
        shown.store(newest.load(Ordering::SeqCst), Ordering::SeqCst);
        let turn = turns.load(Ordering::Relaxed) + 100;
        while turns.load(Ordering::Relaxed) < turn {
            std::thread::yield_now();
        }
    }
    stop.store(true, Ordering::Release);
    let found: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(cfg!(miri) || found > 100, "{found}");
}

/// Writers that moved on what rows hold made the cache grow, and nobody counted it: it said 63,704
/// bytes, for good, where 262,144 were in use. "Counted next time" was a comment; next time counted
/// what came after.
#[test]
fn what_superseding_takes_is_counted() {
    let rows = RowCache::new(256 << 10);
    admit(&rows, put(b"a", 1, b"one"));
    let before = rows.bytes();
    let mut grown = 0;
    for seqno in 2..2000 {
        let entry = put(b"a", seqno, &[7; 200]);
        grown += u64::from(rows.supersede(SPACE, hash_key(b"a"), entry));
    }
    rows.check_bytes();
    assert!(grown > 0 && rows.bytes() > before * 2, "{before}, then {}", rows.bytes());
    assert!(rows.bytes() > 200 << 10, "the ring has gone round: {}", rows.bytes());
}

/// A row was outdated for good: it had been read, so the ring wrote it once more at its head, for
/// which it took it out of the table and put it back. In between its key was superseded by a thread
/// that looked whether there was such a row, without the lock, and found none.
#[test]
fn a_record_that_is_being_written_once_more_is_superseded() {
    // Most of what the ring has room for: nearly each row that comes has others written once more.
    const KEYS: u64 = 6;
    if cfg!(miri) {
        return;
    }
    let rows = Arc::new(RowCache::new(16 << 10));
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // Makes rows of keys of another keyspace, and reads those of this one.
    let crowd = {
        let (rows, stop, turns) = (Arc::clone(&rows), Arc::clone(&stop), Arc::clone(&turns));
        std::thread::spawn(move || {
            let value = [3; 1500];
            for stranger in 1000u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let key = (stranger % 4096).to_be_bytes();
                for _ in 0..2 {
                    let (space, entry) = (KeyspaceId(2), put(&key, 1, &value));
                    rows.admit(space, hash_key(&key), entry, || true);
                }
                for number in 0..KEYS {
                    let _ = get(&rows, &number.to_be_bytes());
                }
                turns.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let mut random = SplitMix::new(1);
    let (mut seqno, mut found) = (1, 0);
    let began = std::time::Instant::now();
    while began.elapsed().as_millis() < 1500 {
        seqno += 1;
        let key = random.below(KEYS).to_be_bytes();
        let value = [seqno as u8; 1500];
        rows.supersede(SPACE, hash_key(&key), put(&key, seqno, &value));
        // Whoever was at it has put back what it had taken out.
        rows.wait_for_admissions();
        match get(&rows, &key) {
            Some((newest, _)) => {
                assert_eq!(newest, seqno, "an outdated row");
                found += 1;
            }
            None => admit(&rows, put(&key, seqno, &value)),
        }
        // So that it is the oldest again.
        let turn = turns.load(Ordering::Relaxed) + random.below(12);
        while turns.load(Ordering::Relaxed) < turn {
            std::thread::yield_now();
        }
        for _ in 0..random.below(500) {
            std::hint::spin_loop();
        }
    }
    stop.store(true, Ordering::Relaxed);
    crowd.join().unwrap();
    assert!(found > 10, "{found} of {seqno}");
}

/// The rows of a small store took all memory of the page cache, once others took most of that: each page that was read was
/// gone before it was used.
#[test]
fn rows_leave_half_of_what_they_share_to_pages() {
    let rows = RowCache::new(256 << 10);
    rows.fit(768 << 10);
    let key = |n: u64| n.to_be_bytes();
    let fill = |range: std::ops::Range<u64>| {
        range.for_each(|n| admit(&rows, put(&key(n), n, &[7; 100])));
        rows.check_bytes();
    };
    fill(0..4000);
    let full = rows.bytes();
    assert!(full > 200 << 10, "{full}");
    // As long as it is not too much nothing is dropped.
    rows.fit(520 << 10);
    assert!(get(&rows, &key(3999)).is_some());
    rows.fit(300 << 10);
    assert!((3900..4000).all(|n| get(&rows, &key(n)).is_none()));
    assert!(rows.bytes() < 20 << 10, "{}", rows.bytes());
    fill(4000..8000);
    assert_eq!(get(&rows, &key(7999)), Some((7999, vec![7; 100])));
    assert!(rows.bytes() < 150 << 10 && rows.bytes() > 50 << 10, "{}", rows.bytes());
    // A little less drops nothing.
    rows.fit(280 << 10);
    assert!(get(&rows, &key(7999)).is_some());
    rows.fit(0);
    fill(8000..9000);
    assert!(rows.bytes() < 20 << 10 && get(&rows, &key(8999)).is_none(), "{}", rows.bytes());
    // There is much more again.
    rows.fit(1 << 20);
    fill(9000..13_000);
    assert_eq!((get(&rows, &key(12_999)).is_some(), rows.bytes()), (true, full));
}

/// Rows came after the memory had become less: nobody looked any more.
#[test]
fn rows_that_come_later_leave_half_to_pages_too() {
    let cache = Cache::with_options(
        768 << 10,
        CacheOptions { row_cache_bytes_max: 256 << 10, stripes: 1, deterministic: true },
    );
    cache.set_capacity(150 << 10);
    let key = |n: u64| n.to_be_bytes();
    for n in 0..8000 {
        let key = key(n);
        for _ in 0..2 {
            let entry = put(&key, n, &[7; 100]);
            if cache.row_cache().admit(SPACE, hash_key(entry.key), entry, || true) {
                cache.row_cache_has_grown();
            }
        }
        assert!(cache.row_cache().bytes() < 120 << 10, "{n}: {}", cache.row_cache().bytes());
    }
    let statistics = cache.statistics();
    assert!(statistics.row_cache_bytes < 76 << 10, "{statistics:?}");
    assert!(statistics.capacity_bytes - statistics.row_cache_bytes > 70 << 10, "{statistics:?}");
}
