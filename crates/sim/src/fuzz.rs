//! Fuzzing with stable Rust only. Each target gets inputs derived from valid encodings, and must
//! neither panic, nor take long, nor allocate out of proportion.
//!
//! Invariants:
//! 1. A case is identified by target, seed and number. It does not depend on other cases.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use spinney::fuzz::Target;

use crate::allocation;
use crate::mutate;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::random::Random;

/// What a case may hold at most, beside eight times its input.
const DECODER_BYTES_MAX: usize = 16 << 20;
/// The stores' memory budget of 1 MiB × 1.1, and 32 MiB.
const STORE_BYTES_MAX: usize = 34 << 20;
/// What a case may take, on a machine that has other things to do as well.
const TIME_MAX: Duration = Duration::from_secs(5);
const SHRINK_TRIALS: usize = 3000;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// All targets: the engine's decoders, and whole stores.
pub fn targets() -> Vec<Target> {
    let mut targets = spinney::fuzz::targets();
    targets.push(crate::mangle::TARGET);
    targets
}

/// From now on panics of this process are kept for the report, with their place, and not printed.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|panic| *panic.borrow_mut() = Some(info.to_string()));
    }));
}

/// Carries a case out; says what is wrong with it.
///
/// # Errors
/// What is wrong.
pub fn try_case(target: &Target, input: &[u8]) -> Result<(), String> {
    let started = Instant::now();
    let (done, bytes) =
        allocation::measure(|| catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
    if let Err(panic) = done {
        let kept = PANIC.with(|panic| panic.borrow_mut().take());
        return Err(kept.unwrap_or_else(|| panic_text(&*panic)));
    }
    let most = match target.name == crate::mangle::TARGET.name {
        true => STORE_BYTES_MAX,
        false => DECODER_BYTES_MAX + 8 * input.len(),
    };
    if bytes > most {
        return Err(format!("holds {bytes} bytes for {} of input, more than {most}", input.len()));
    }
    match started.elapsed() {
        took if took > TIME_MAX => Err(format!("takes {took:.1?}")),
        _ => Ok(()),
    }
}

/// The input of a case.
pub fn input(target: &Target, seeds: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    let name = target.name.bytes().fold(0, |sum: u64, byte| sum.rotate_left(7) ^ u64::from(byte));
    mutate::input(seeds, &mut Random::new(&[seed, 31, name, number]))
}

/// Which cases of a target to try.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The seed.
    pub seed: u64,
    /// The first case.
    pub first: u64,
    /// How many.
    pub cases: u64,
}

/// Tries the cases of a target until the first that is wrong, or until `goes_on`, which is told the
/// case that comes next, says no.
pub fn run(target: &Target, extent: Extent, mut goes_on: impl FnMut(u64) -> bool) -> Outcome {
    let Extent { seed, first, cases } = extent;
    let mut outcome = Outcome::default();
    let seeds = (target.seeds)();
    // Before anything is changed; what is made once is made.
    for seed in &seeds {
        if let Err(what) = try_case(target, seed) {
            outcome.violations.push(violation(target, seed, &what, None));
            return outcome;
        }
    }
    for number in first..first.saturating_add(cases) {
        if !goes_on(number) {
            break;
        }
        let input = input(target, &seeds, seed, number);
        outcome.count(target.name);
        outcome.operations += 1;
        if let Err(what) = try_case(target, &input) {
            let fails = |input: &[u8]| try_case(target, input).is_err();
            let smallest = mutate::shrink(&input, SHRINK_TRIALS, fails);
            let what = try_case(target, &smallest).err().unwrap_or(what);
            outcome.violations.push(violation(target, &smallest, &what, Some((seed, number))));
            break;
        }
    }
    outcome
}

fn violation(target: &Target, input: &[u8], what: &str, case: Option<(u64, u64)>) -> Violation {
    const SHOWN_BYTES_MAX: usize = 400;
    let name = target.name;
    let command = match case {
        Some((seed, number)) => format!("--seed {seed} --only {number}"),
        None => format!("--input {}", to_hex(input)),
    };
    let shown = match input.len() {
        0..=SHOWN_BYTES_MAX => format!("shrunk: --input {}", to_hex(input)),
        bytes => format!("shrunk to {bytes} bytes"),
    };
    Violation {
        what: format!("{name}: {what}\n  {shown}"),
        command: format!("spinney-sim fuzz --target {name} {command}"),
    }
}

/// Bytes as the command line takes them.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What [`to_hex`] has written.
///
/// # Errors
/// If it has not.
pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("{text:?} is not hexadecimal digits in pairs");
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(|pair| byte(pair).filter(|_| pair.len() == 2).ok_or_else(wrong)).collect()
}
