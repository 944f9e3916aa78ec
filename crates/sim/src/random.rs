//! Seeded pseudo-random numbers: the same seed gives the same run on every machine.

/// A generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on all the `seeds`.
    pub fn new(seeds: &[u64]) -> Random {
        Random(seeds.iter().fold(0, |state, seed| mix(state ^ seed).wrapping_add(1)))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % (bound as u64).max(1)) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Spreads every bit of `z` over the whole number.
pub fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A fingerprint of a pair; those of a set of pairs are summed.
pub fn fingerprint(key: &[u8], value: &[u8]) -> u64 {
    let mut state = mix(key.len() as u64);
    for bytes in [key, value] {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            state = (state.rotate_left(5) ^ u64::from_le_bytes(padded))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        state = mix(state ^ bytes.len() as u64);
    }
    state
}
