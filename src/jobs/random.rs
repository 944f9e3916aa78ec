//! Random numbers of the operating system, for secrets.

use crate::base::error::{Error, Result};
use crate::base::random::SplitMix;

/// Unpredictable numbers from the operating system.
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
