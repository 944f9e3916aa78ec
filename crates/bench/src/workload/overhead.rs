//! The benchmark's own cost: making keys and values, checking them, reading the clock. It is part of
//! every figure of processor time, the same for every engine, so it makes ratios look smaller than they
//! are.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::measured::Measured;
use super::store::Plan;
use super::{Operation, Workload};
use crate::data::distribution::{Distribution, Picker};
use crate::data::random::Random;
use crate::data::values::ValueMaker;

const ROUNDS: u64 = 200_000;

/// Processor time of one operation with the engine left out.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Overhead {
    /// Of an insert.
    pub insert_processor_microseconds: f64,
    /// Of a read of a record drawn uniformly, its value checked as the options say.
    pub read_processor_microseconds: f64,
}

fn processor_now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Measures it, on this thread.
///
/// # Errors
/// If the plan makes no keys.
pub fn measure(plan: &Plan) -> Result<Overhead, String> {
    let load: Workload = "load".parse()?;
    let keys = plan.keys(0)?;
    let values = ValueMaker {
        value_bytes: usize::try_from(plan.value_bytes).map_err(|e| e.to_string())?,
        entropy_percent: usize::from(plan.value_entropy_percent),
    };
    let mut random = Random::new(plan.seed);
    let (mut key, mut value, mut room) = (Vec::new(), Vec::new(), Vec::new());
    let mut measured = Measured::default();
    let run = Instant::now();
    let start = processor_now();
    for index in 0..ROUNDS {
        let operation = load.operation(random.below(100));
        let number = keys.number(index);
        keys.key(number, &mut key);
        values.fill(number, random.next_u64(), &mut value);
        let begun = Instant::now();
        std::hint::black_box((&key, &value));
        let end = Instant::now();
        measured.record(operation, end - begun, end - run, 1);
    }
    let inserted = processor_now();
    let mut picker = Picker::new(Distribution::Uniform, plan.records, 0, 1);
    let (mut right, mut bytes) = (0_u64, 0);
    let number = keys.number(0);
    values.fill(number, 7, &mut value);
    for _ in 0..ROUNDS {
        random.below(100);
        let drawn = keys.number(picker.pick(plan.records.max(1), &mut random));
        keys.key(drawn, &mut key);
        let begun = Instant::now();
        std::hint::black_box((&key, &value));
        let end = Instant::now();
        measured.record(Operation::Read, end - begun, end - run, 1);
        right += u64::from(values.is_right(number, &value, plan.verify, &mut room));
        bytes += (key.len() + value.len()) as u64;
    }
    let read = processor_now();
    std::hint::black_box((right, bytes, measured.operations));
    let each = |time: Duration| time.as_secs_f64() * 1e6 / ROUNDS as f64;
    Ok(Overhead {
        insert_processor_microseconds: each(inserted.saturating_sub(start)),
        read_processor_microseconds: each(read.saturating_sub(inserted)),
    })
}
