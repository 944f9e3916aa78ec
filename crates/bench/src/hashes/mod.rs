//! `spinney-bench hashes`: perfect hash functions, compared as in section 5.4 of the CompassDB paper.
//!
//! Invariants:
//! 1. Every function is built of the same hashes and asked for each of them; two that get one slot are a failure.
//! 2. One thread, one function after another, in one process.

mod chd;
#[cfg(feature = "peers")]
mod peers;
mod pthash;

use std::hint::black_box;
use std::time::Instant;

use clap::Args;
use spinney::hashes::{CONSTRUCTIONS, PerfectHash, index_bytes};
use spinney_quantity::{grouped, parse_count};

use crate::compare::Failure;
use crate::data::random::mix;

/// Compare perfect hash functions: bits per key, time to build, time of a query
///
/// Spinney's are *displacement* (CPHash of the CompassDB paper) and *pilots*. CHD is there if the library cmph is (Debian:
/// libcmph0), PTHash if `SPINNEY_PTHASH` names a library of it (crates/bench/src/hashes/pthash.rs). Builds with the feature `peers` have those of the crates ptr_hash and ph too. One thread.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  spinney-bench hashes
  spinney-bench hashes --keys 1M --rounds 5")]
pub struct HashesOptions {
    /// Numbers of keys
    #[arg(long, value_delimiter = ',', value_parser = parse_count, default_value = "10k,100k,1M,10M")]
    keys: Vec<u64>,
    /// How often everything is done; the medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// The seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Queries are timed over at least so many keys.
const PASS_KEYS_MIN: usize = 2_000_000;

/// One function, built and asked once.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    bits_per_key: f64,
    build_nanoseconds_per_key: f64,
    query_nanoseconds: f64,
    /// The range of its values.
    slots: u64,
    distinct: bool,
}

/// Builds a function of hashes, and asks it for each of them.
type Contestant = (&'static str, fn(&[u64]) -> Found);

fn contestants() -> Vec<Contestant> {
    let mut out: Vec<Contestant> = vec![
        ("Spinney displacement", |hashes| own(CONSTRUCTIONS[0], hashes)),
        ("Spinney pilots", |hashes| own(CONSTRUCTIONS[1], hashes)),
    ];
    out.extend(chd::contestant());
    out.extend(pthash::contestant());
    #[cfg(feature = "peers")]
    out.extend(peers::contestants());
    out
}

fn own(construction: &str, hashes: &[u64]) -> Found {
    let start = Instant::now();
    let built = PerfectHash::build(construction, hashes).expect("the hashes are distinct");
    let elapsed = start.elapsed().as_nanos() as f64;
    let (slot, slots) = built.open().expect("it has just been built");
    asked(hashes, elapsed, built.bytes() as f64 * 8.0, slots, |hash| slot(hash).unwrap_or(u64::MAX))
}

/// Asks a function for each hash, twice: to see that values differ, and for the time.
fn asked(
    hashes: &[u64],
    build_nanoseconds: f64,
    bits: f64,
    slots: u64,
    slot: impl Fn(u64) -> u64,
) -> Found {
    let mut taken = vec![0u64; slots.div_ceil(64) as usize];
    let distinct = hashes.iter().all(|&hash| {
        let slot = slot(hash);
        slot < slots && {
            let word = &mut taken[slot as usize / 64];
            let was = *word >> (slot % 64) & 1;
            *word |= 1 << (slot % 64);
            was == 0
        }
    });
    drop(taken);
    // Small sets several times: one pass would take microseconds.
    let passes = (PASS_KEYS_MIN / hashes.len().max(1)).max(1);
    let start = Instant::now();
    let mut sum = 0u64;
    for _ in 0..passes {
        for &hash in black_box(hashes) {
            sum = sum.wrapping_add(slot(hash));
        }
    }
    black_box(sum);
    let elapsed = start.elapsed().as_nanos() as f64;
    let count = hashes.len().max(1) as f64;
    Found {
        bits_per_key: bits / count,
        build_nanoseconds_per_key: build_nanoseconds / count,
        query_nanoseconds: elapsed / passes as f64 / count,
        slots,
        distinct,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the command.
///
/// # Errors
/// A function with two keys in one slot.
pub fn run(options: &HashesOptions) -> Result<(), Failure> {
    println!("| keys | function | bits per key | slots per key | build, ns per key | query, ns |");
    println!("|---:|---|---:|---:|---:|---:|");
    for &keys in &options.keys {
        let hashes = hashes(keys, options.seed);
        let contestants = contestants();
        let mut found: Vec<Vec<Found>> = vec![Vec::new(); contestants.len()];
        for round in 0..options.rounds as usize {
            for turn in 0..contestants.len() {
                // In another order each round.
                let place = (turn + round) % contestants.len();
                let (name, build) = contestants[place];
                let one = build(&hashes);
                if !one.distinct {
                    return Err(Failure::Other(format!(
                        "{name}: two of {keys} keys have one slot"
                    )));
                }
                found[place].push(one);
            }
        }
        for ((name, _), found) in contestants.iter().zip(&found) {
            let of = |value: fn(&Found) -> f64| median(found.iter().map(value).collect());
            println!(
                "| {} | {name} | {:.2} | {:.3} | {:.1} | {:.1} |",
                grouped(keys),
                of(|found| found.bits_per_key),
                of(|found| found.slots as f64) / keys.max(1) as f64,
                of(|found| found.build_nanoseconds_per_key),
                of(|found| found.query_nanoseconds),
            );
        }
    }
    indexes(options)
}

/// The memory of hash indexes: what section 4.3 of the CompassDB paper calls the global and the local hash table.
fn indexes(options: &HashesOptions) -> Result<(), Failure> {
    println!(
        "\n| keys | hash index | global: 8 + 4 bits, bytes per key | local: 16 bits, bytes per key |"
    );
    println!("|---:|---|---:|---:|");
    for &keys in &options.keys {
        let hashes = hashes(keys, options.seed);
        for construction in CONSTRUCTIONS {
            let bytes = |value_bits, signatures| {
                let bytes = index_bytes(construction, &hashes, value_bits, signatures);
                bytes.map(|bytes| bytes as f64 / keys.max(1) as f64)
            };
            let said = |error: spinney::Error| Failure::Other(error.to_string());
            let (global, local) = (bytes(4, true).map_err(said)?, bytes(16, false).map_err(said)?);
            println!("| {} | {construction} | {global:.2} | {local:.2} |", grouped(keys));
        }
    }
    Ok(())
}

/// Distinct: a bijection of the index.
fn hashes(keys: u64, seed: u64) -> Vec<u64> {
    (0..keys).map(|index| mix(index ^ mix(seed) << 32)).collect()
}
