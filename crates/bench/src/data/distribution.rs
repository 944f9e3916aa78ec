//! Which of the records an operation is about, as YCSB defines it.
//!
//! Zipfian numbers are drawn by the method of Gray et al., "Quickly Generating Billion-Record Synthetic
//! Databases" (SIGMOD 1994), with YCSB's constant 0.99; "scrambled" hashes the rank, so that popular
//! records lie all over the key space.

use clap::ValueEnum;

use super::random::Random;

/// YCSB's Zipfian constant.
const THETA: f64 = 0.99;
/// YCSB's scrambled Zipfian draws from this many ranks, however many records there are …
const SCRAMBLED_RANKS: u64 = 10_000_000_000;
/// … whose zeta is known.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// `--distribution`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// A few records are popular, wherever they lie (YCSB's scrambled Zipfian, 0.99)
    Zipfian,
    /// Every record alike
    Uniform,
    /// The newest records are popular
    Latest,
    /// One after another, in the order they were loaded in
    Sequential,
}

impl Distribution {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Zipfian => "zipfian",
            Distribution::Uniform => "uniform",
            Distribution::Latest => "latest",
            Distribution::Sequential => "sequential",
        }
    }
}

/// Draws record indexes for one thread.
#[derive(Debug, Clone)]
pub enum Picker {
    /// Popular records lie all over.
    Scrambled(Zipfian),
    /// Every record alike.
    Uniform,
    /// The newest are popular.
    Latest(Zipfian),
    /// This one is next.
    Sequential(u64),
}

impl Picker {
    /// `thread` of `threads` starts its sequence elsewhere.
    pub fn new(distribution: Distribution, records: u64, thread: u64, threads: u64) -> Picker {
        match distribution {
            Distribution::Zipfian => {
                Picker::Scrambled(Zipfian::with_zeta(SCRAMBLED_RANKS, SCRAMBLED_ZETA))
            }
            Distribution::Uniform => Picker::Uniform,
            Distribution::Latest => Picker::Latest(Zipfian::new(records.max(1))),
            Distribution::Sequential => Picker::Sequential(
                (u128::from(records) * u128::from(thread) / u128::from(threads)) as u64,
            ),
        }
    }

    /// An index below `records`, which is not 0.
    #[inline]
    pub fn pick(&mut self, records: u64, random: &mut Random) -> u64 {
        match self {
            Picker::Scrambled(zipfian) => fnv(zipfian.next(random)) % records,
            Picker::Uniform => random.below(records),
            Picker::Latest(zipfian) => {
                zipfian.grow(records);
                records - 1 - zipfian.next(random).min(records - 1)
            }
            Picker::Sequential(next) => {
                let index = *next % records;
                *next = index + 1;
                index
            }
        }
    }
}

/// Ranks by a Zipf law: rank 0 is the most frequent.
#[derive(Debug, Clone)]
pub struct Zipfian {
    ranks: u64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    fn new(ranks: u64) -> Zipfian {
        Zipfian::with_zeta(ranks, zeta(0, ranks))
    }

    fn with_zeta(ranks: u64, zeta_ranks: f64) -> Zipfian {
        let zeta_2 = 1.0 + 0.5_f64.powf(THETA);
        let eta = (1.0 - (2.0 / ranks as f64).powf(1.0 - THETA)) / (1.0 - zeta_2 / zeta_ranks);
        Zipfian { ranks, zeta: zeta_ranks, eta }
    }

    fn grow(&mut self, ranks: u64) {
        if ranks > self.ranks {
            *self = Zipfian::with_zeta(ranks, self.zeta + zeta(self.ranks, ranks));
        }
    }

    #[inline]
    fn next(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 || self.ranks < 2 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(self.ranks - 1)
    }
}

/// The sum of 1/k^theta for k in `from + 1 ..= to`; beyond a million terms by the Euler–Maclaurin
/// formula, which is then exact to a double's precision.
fn zeta(from: u64, to: u64) -> f64 {
    const EXACT_MAX: u64 = 1_000_000;
    let exact_to = to.min(EXACT_MAX.max(from));
    let sum: f64 = (from + 1..=exact_to).map(|k| (k as f64).powf(-THETA)).sum();
    if exact_to == to {
        return sum;
    }
    let (a, b) = (exact_to as f64, to as f64);
    let integral = (b.powf(1.0 - THETA) - a.powf(1.0 - THETA)) / (1.0 - THETA);
    sum + integral + (b.powf(-THETA) - a.powf(-THETA)) / 2.0
}

/// YCSB's 64-bit FNV hash of a number.
#[inline]
fn fnv(number: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipfian_ranks_have_their_frequencies() {
        let zipfian = Zipfian::new(1000);
        let mut random = Random::new(1);
        let mut counts = vec![0_u32; 1000];
        const DRAWS: u32 = 400_000;
        for _ in 0..DRAWS {
            counts[zipfian.next(&mut random) as usize] += 1;
        }
        let share = |ranks: std::ops::Range<usize>| {
            f64::from(counts[ranks].iter().sum::<u32>()) / f64::from(DRAWS)
        };
        let law = |ranks: std::ops::Range<u64>| zeta(ranks.start, ranks.end) / zeta(0, 1000);
        for (ranks, tolerance) in
            [(0..1, 0.03), (1..2, 0.03), (0..10, 0.05), (0..100, 0.03), (500..1000, 0.06)]
        {
            let (found, expected) =
                (share(ranks.start as usize..ranks.end as usize), law(ranks.clone()));
            assert!((found / expected - 1.0).abs() < tolerance, "{ranks:?}: {found} {expected}");
        }
    }

    #[test]
    fn the_long_sum_is_ycsbs() {
        assert!((zeta(0, SCRAMBLED_RANKS) - SCRAMBLED_ZETA).abs() < 1e-6);
        let parts = zeta(0, 1234) + zeta(1234, 3_000_000) + zeta(3_000_000, 5_000_000);
        assert!((zeta(0, 5_000_000) - parts).abs() < 1e-7);
    }

    #[test]
    fn scrambled_popularity_lies_all_over() {
        let mut random = Random::new(2);
        let mut picker = Picker::new(Distribution::Zipfian, 1000, 0, 1);
        let mut counts = vec![0_u32; 1000];
        for _ in 0..100_000 {
            counts[picker.pick(1000, &mut random) as usize] += 1;
        }
        let most = *counts.iter().max().unwrap();
        assert!((3_000..6_000).contains(&most), "rank 0 has 1/26.5 of the draws: {most}");
        let half: u32 = counts[..500].iter().sum();
        assert!((30_000..70_000).contains(&half), "{half}");
    }

    #[test]
    fn latest_prefers_the_newest_also_as_records_grow() {
        let mut random = Random::new(3);
        let mut picker = Picker::new(Distribution::Latest, 100, 0, 1);
        let mut newest = 0;
        for records in 100..10_100_u64 {
            let index = picker.pick(records, &mut random);
            assert!(index < records);
            newest += u32::from(index >= records - 10);
        }
        assert!((2_500..4_500).contains(&newest), "{newest}");
    }

    #[test]
    fn sequential_goes_round() {
        let mut random = Random::new(4);
        let mut picker = Picker::new(Distribution::Sequential, 4, 1, 2);
        let picked: Vec<u64> = (0..5).map(|_| picker.pick(4, &mut random)).collect();
        assert_eq!(picked, [2, 3, 0, 1, 2]);
    }

    #[test]
    fn one_record_is_always_the_one() {
        let mut random = Random::new(5);
        for distribution in Distribution::value_variants() {
            let mut picker = Picker::new(*distribution, 1, 0, 1);
            assert!((0..100).all(|_| picker.pick(1, &mut random) == 0));
        }
    }
}
