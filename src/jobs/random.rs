//! Randomness: pseudo-random numbers from a seed, so that a run can be repeated, and the system's, for
//! secrets.

use crate::base::error::{Error, Result};

/// Numbers that nobody can foresee, from the operating system.
///
/// # Errors
/// `Io` if the system has none to give.
pub(crate) fn unpredictable<const N: usize>() -> Result<[u64; N]> {
    // What a scenario does must depend on its schedule alone.
    if cfg!(shuttle) {
        let mut random = SplitMix::new(N as u64);
        return Ok(std::array::from_fn(|_| random.next()));
    }
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = system_number()?;
    }
    Ok(numbers)
}

#[cfg(all(target_os = "linux", not(miri)))]
fn system_number() -> Result<u64> {
    let failed = |error: rustix::io::Errno| {
        Error::io("draw a random number", std::path::Path::new("getrandom"), None, error.into())
    };
    let mut bytes = [0; 8];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(u64::from_le_bytes(bytes))
}

/// The standard library seeds its hash tables from the system.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn system_number() -> Result<u64> {
    use std::hash::{BuildHasher, Hasher};
    Ok(std::collections::hash_map::RandomState::new().build_hasher().finish())
}

/// SplitMix64: small, fast, and good enough to choose which job steps next.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    /// The sequence of `seed`.
    pub(crate) fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
