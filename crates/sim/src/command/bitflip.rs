//! `spinney-sim bitflip`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Common, finish};
use crate::bitflip::{self, Extent, Flip};
use crate::image::Form;

/// Flips bits in all files of small stores. Each answer must be right, or an error that names the
/// damage.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim bitflip --seconds 60
  spinney-sim bitflip --kind mixed --states 50000 --seed 7
  spinney-sim bitflip --every 1 --all-bits --runs 6
  spinney-sim bitflip --seed 3 --runs 1 --form killed --only manifest-00000001:123:4")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Flip one bit of every Nth byte.
    #[arg(long, default_value_t = Extent::default().every)]
    every: u64,
    /// Flip all eight bits of a byte, one after the other, instead of one.
    #[arg(long)]
    all_bits: bool,
    /// The state of the store: closed, settled, killed, killed-again, power-lost or copy [default:
    /// the next one with each seed].
    #[arg(long)]
    form: Option<Form>,
    /// Judge only this flip, as `FILE:OFFSET:BIT`.
    #[arg(long, value_name = "FLIP")]
    only: Option<Flip>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let Arguments { common, every, all_bits, form, only } = arguments;
    let extent = Extent { every: *every, all_bits: *all_bits, form: *form };
    let seconds = common.seconds.unwrap_or(f64::INFINITY);
    let mut told = started;
    let total = common.repeat(|seed, kinds| {
        bitflip::run(seed, kinds, extent, only.as_ref(), &mut |flips| {
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                eprintln!("{kinds}: seed {seed}, {flips} flips");
            }
            started.elapsed().as_secs_f64() < seconds
        })
    });
    let more = json!({ "shown": bitflip::tally(&total) });
    finish("bitflip", common.seed, started, &total, more)
}
