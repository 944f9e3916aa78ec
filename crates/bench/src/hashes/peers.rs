//! The perfect hash functions of other crates.

use std::time::Instant;

use ph::GetSize;
use ptr_hash::{CompactPtrHash, DefaultPtrHash, FastPtrHash, PtrHashParams};

use super::{Contestant, Found, asked};

/// They build on this thread alone.
pub(super) fn contestants() -> Vec<Contestant> {
    // It fails if that has been done already.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
    let _ = pool.build_global();
    assert_eq!(rayon::current_num_threads(), 1);
    vec![
        ("ptr_hash fast", |hashes| {
            let start = Instant::now();
            let built = <FastPtrHash>::new(hashes, PtrHashParams::default_fast());
            ptr_hash(hashes, start, built.bits_per_element(), built.max_index(), |hash| {
                built.index(&hash) as u64
            })
        }),
        ("ptr_hash default", |hashes| {
            let start = Instant::now();
            let built = <DefaultPtrHash>::new(hashes, PtrHashParams::default());
            ptr_hash(hashes, start, built.bits_per_element(), built.max_index(), |hash| {
                built.index(&hash) as u64
            })
        }),
        ("ptr_hash compact", |hashes| {
            let start = Instant::now();
            let built = <CompactPtrHash>::new(hashes, PtrHashParams::default_compact());
            ptr_hash(hashes, start, built.bits_per_element(), built.max_index(), |hash| {
                built.index(&hash) as u64
            })
        }),
        ("ph FMPH", |hashes| {
            let start = Instant::now();
            let built = ph::fmph::Function::from(hashes);
            let elapsed = start.elapsed().as_nanos() as f64;
            let bits = built.size_bytes() as f64 * 8.0;
            asked(hashes, elapsed, bits, hashes.len() as u64, |hash| {
                built.get(&hash).unwrap_or(u64::MAX)
            })
        }),
    ]
}

fn ptr_hash(
    hashes: &[u64],
    start: Instant,
    (pilots, remap): (f64, f64),
    slots: usize,
    slot: impl Fn(u64) -> u64,
) -> Found {
    let elapsed = start.elapsed().as_nanos() as f64;
    asked(hashes, elapsed, (pilots + remap) * hashes.len() as f64, slots as u64, slot)
}
