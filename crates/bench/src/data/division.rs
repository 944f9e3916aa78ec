//! How operations are divided: among kinds, by percent, and among threads.

/// What a roll in `0..100` falls to. Shares are in percent and sum to 100.
pub fn by_percent<T: Copy>(shares: &[(T, u64)], roll: u64) -> T {
    let mut upper = 0;
    for &(what, percent) in shares {
        upper += percent;
        if roll < upper {
            return what;
        }
    }
    shares[0].0
}

/// One thread's share of the operations; all shares sum to the whole.
pub fn share(operations: u64, thread: u64, threads: u64) -> u64 {
    operations / threads + u64::from(thread < operations % threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolls_fall_by_their_shares() {
        let shares = [('a', 50), ('b', 0), ('c', 45), ('d', 5)];
        let count = |what| (0..100).filter(|&roll| by_percent(&shares, roll) == what).count();
        assert_eq!(['a', 'b', 'c', 'd'].map(count), [50, 0, 45, 5]);
    }

    #[test]
    fn shares_sum_to_the_whole() {
        for (operations, threads) in [(10, 3), (2, 5), (0, 1), (1000, 7), (u64::MAX, 2)] {
            let sum: u64 = (0..threads).map(|thread| share(operations, thread, threads)).sum();
            assert_eq!(sum, operations);
        }
    }
}
