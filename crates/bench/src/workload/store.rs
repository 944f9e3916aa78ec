//! One engine's store and what is known of its contents: runs workloads on it.
//!
//! Invariants:
//! 1. Processor time and disk traffic of a workload that writes are counted until background work is
//!    done, its time is not: both are reported.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::aged::Aging;
use super::measured::{Clock, Measured};
use super::worker::{Shared, Worker};
use super::{Amount, Shape, Workload};
use crate::data::distribution::{Distribution, Picker};
use crate::data::division::share;
use crate::data::keys::KeyMaker;
use crate::data::random::{Random, mix};
use crate::data::values::{ValueMaker, Verify};
use crate::engine::{Compression, Engine, EngineName, Result, Settings};
use crate::measure::measurement::{Measurement, Readings};
use crate::measure::watch::Watch;

/// The settings of a store and of its workloads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The engine's name with its configuration.
    pub engine: String,
    /// A directory of its own.
    pub dir: std::path::PathBuf,
    /// The memory it may use.
    pub memory_bytes: u64,
    /// The size of a memtable, if it is not the engine's choice.
    #[serde(default)]
    pub memtable_bytes: Option<u64>,
    /// Records that loads insert.
    pub records: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Percent of a value that does not compress.
    pub value_entropy_percent: u8,
    /// Compression on the disk.
    pub compression: Compression,
    /// Threads, where a workload's name does not say.
    pub threads: usize,
    /// Operations of a workload, all threads together.
    pub operations: u64,
    /// The maximum duration of a workload other than a load.
    pub seconds_max: f64,
    /// The maximum duration of a load; missing records are reported.
    pub load_seconds_max: f64,
    /// Writes per second of each thread outside loads, at most.
    #[serde(default)]
    pub writes_per_second: Option<u64>,
    /// How much of each value read is checked.
    pub verify: Verify,
    /// Everything follows from it.
    pub seed: u64,
    /// The memory cgroup's file for the most memory used, where there is one.
    pub cgroup_peak: Option<std::path::PathBuf>,
    /// Whether progress is shown on standard error.
    pub progress: bool,
}

/// The contents of a store: enough to open it again in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The share of keys that ascend.
    pub sequential_percent: u8,
    /// Records below this index have been deleted.
    pub first_index: u64,
    /// Records from this index on have not been written.
    pub next_index: u64,
}

/// An open store.
pub struct Store {
    plan: Plan,
    name: EngineName,
    engine: Box<dyn Engine>,
    keys: KeyMaker,
    values: ValueMaker,
    sequential_percent: u8,
    first_index: AtomicU64,
    next_index: AtomicU64,
    aging: Aging,
    /// How long the engine took to open it.
    pub opened_in: Duration,
}

/// How many of the last records are looked for after a kill.
const LAST_RECORDS_CHECKED: u64 = 10_000;

impl Plan {
    pub(super) fn keys(&self, sequential_percent: u8) -> Result<KeyMaker> {
        let key_bytes = usize::try_from(self.key_bytes).map_err(|e| e.to_string())?;
        KeyMaker::new(key_bytes, u64::from(sequential_percent), self.seed)
    }

    /// Whether it can be done at all.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<()> {
        let most = self.keys(1)?.records_max();
        // Workloads that insert need room beyond the load.
        if self.records > most / 2 {
            return Err(format!("--key-bytes {} is too short for so many records", self.key_bytes));
        }
        Ok(())
    }
}

impl Store {
    /// Opens the store, empty or with the data of an earlier process.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn open(plan: Plan, contents: Contents) -> Result<Store> {
        let name: EngineName = plan.engine.parse()?;
        std::fs::create_dir_all(&plan.dir)
            .map_err(|error| format!("cannot create {}: {error}", plan.dir.display()))?;
        let settings = Settings {
            dir: plan.dir.clone(),
            memory_bytes: plan.memory_bytes,
            memtable_bytes: plan.memtable_bytes,
            threads: plan.threads,
            pairs: plan.records,
            pair_bytes: plan.key_bytes + plan.value_bytes,
            compression: plan.compression,
        };
        let start = Instant::now();
        let engine = name.open(&settings)?;
        let opened_in = start.elapsed();
        Ok(Store {
            name,
            engine,
            keys: plan.keys(contents.sequential_percent)?,
            values: ValueMaker {
                value_bytes: usize::try_from(plan.value_bytes).map_err(|e| e.to_string())?,
                entropy_percent: usize::from(plan.value_entropy_percent),
            },
            sequential_percent: contents.sequential_percent,
            first_index: AtomicU64::new(contents.first_index),
            next_index: AtomicU64::new(contents.next_index),
            aging: Aging::default(),
            opened_in,
            plan,
        })
    }

    /// Its contents.
    pub fn contents(&self) -> Contents {
        Contents {
            sequential_percent: self.sequential_percent,
            first_index: self.first_index.load(Ordering::SeqCst),
            next_index: self.next_index.load(Ordering::SeqCst),
        }
    }

    /// Closes it.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn close(self) -> Result<()> {
        self.engine.close().map_err(|what| format!("{}: {what}", self.name))
    }

    /// Reads the last records written; says how many are missing or wrong.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn check_last(&self) -> Result<u64> {
        let Contents { first_index, next_index, .. } = self.contents();
        let mut session = self.engine.session()?;
        let (mut key, mut value, mut room, mut bad) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for index in first_index.max(next_index.saturating_sub(LAST_RECORDS_CHECKED))..next_index {
            let number = self.keys.number(index);
            self.keys.key(number, &mut key);
            let there = session.get_copy(&key, &mut value)?;
            let right = there
                && value.len() == self.values.value_bytes
                && self.values.is_right(number, &value, Verify::Full, &mut room);
            bad += u64::from(!right);
        }
        Ok(bad)
    }

    /// Runs a workload on it. A load expects that it is empty.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn run(&mut self, workload: &Workload) -> Result<Measurement> {
        if let Shape::Load { sequential_percent } = workload.shape {
            self.sequential_percent = sequential_percent;
            self.keys = self.plan.keys(sequential_percent)?;
            self.first_index.store(0, Ordering::SeqCst);
            self.next_index.store(0, Ordering::SeqCst);
        }
        if workload.ages() {
            let Contents { first_index, next_index, .. } = self.contents();
            self.aging = Aging::new(first_index, next_index);
        }
        let threads = workload.threads.unwrap_or(self.plan.threads).max(1);
        let (operations, seconds) = self.amount(workload);
        let progress = AtomicU64::new(0);
        if workload.warm {
            self.each_thread(threads, workload, None, &progress, |worker, _| {
                worker.warm(threads).map(|()| Measured::default())
            })?;
        }
        let throttled_before = self.engine.throttled();
        let watch = Watch::new(&self.plan, workload, &progress);
        let (outcome, watched) = watch.during(|| -> Result<_> {
            let begun = Readings::now(&self.plan.dir);
            let (measured, writer) =
                self.each_thread(threads, workload, seconds, &progress, |worker, thread| {
                    worker.run(share(operations, thread as u64, threads as u64))
                })?;
            let worked = Readings::now(&self.plan.dir);
            if workload.writes() && !matches!(workload.shape, Shape::Reopen { .. }) {
                self.engine.settle()?;
            }
            Ok((measured, writer, begun, worked, Readings::now(&self.plan.dir)))
        });
        let (mut measured, writer, begun, worked, settled) = outcome?;
        if workload.ages() {
            let (checked, _) =
                self.each_thread(threads, workload, None, &progress, |worker, _| {
                    worker.check_aged(threads)
                })?;
            measured.missing += checked.missing;
            measured.wrong += checked.wrong;
        }
        let mut measurement =
            Measurement::new(&self.name.to_string(), workload.name(), threads, &measured);
        measurement.set_readings(&measured, writer.as_ref(), &begun, &worked, &settled);
        let Contents { first_index, next_index, .. } = self.contents();
        let pair_bytes = self.plan.key_bytes + self.plan.value_bytes;
        measurement.set_watched(&watched, next_index - first_index, pair_bytes);
        measurement.throttled_seconds = match (throttled_before, self.engine.throttled()) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before).as_secs_f64()),
            _ => None,
        };
        Ok(measurement)
    }

    /// How many operations, and for how long at most.
    fn amount(&self, workload: &Workload) -> (u64, Option<f64>) {
        let plan = &self.plan;
        match workload.amount {
            Amount::Chosen => (plan.operations, Some(plan.seconds_max)),
            Amount::Records => (plan.records, Some(plan.load_seconds_max)),
            Amount::TimesRecords(times) => (plan.records * times, None),
            Amount::Seconds => (u64::MAX, Some(plan.seconds_max)),
            Amount::All => (u64::MAX, None),
        }
    }

    /// Runs the threads, and the one that writes meanwhile if there is one.
    fn each_thread(
        &self,
        threads: usize,
        workload: &Workload,
        seconds: Option<f64>,
        progress: &AtomicU64,
        work: impl Fn(Worker<'_>, usize) -> Result<Measured> + Sync,
    ) -> Result<(Measured, Option<Measured>)> {
        let start = Instant::now();
        let Contents { first_index, next_index, .. } = self.contents();
        let shared = Shared {
            workload,
            keys: &self.keys,
            values: &self.values,
            verify: self.plan.verify,
            first_index: &self.first_index,
            next_index: &self.next_index,
            aging: &self.aging,
            writes_per_second: self.plan.writes_per_second.filter(|_| !workload.is_load()),
            index_max: if workload.is_load() { self.plan.records } else { self.keys.records_max() },
            inserting: (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect(),
            stop: AtomicBool::new(false),
            clock: Clock {
                start,
                deadline: seconds.map(|seconds| start + Duration::from_secs_f64(seconds)),
            },
            progress,
        };
        let (shared, work) = (&shared, &work);
        let worker = |thread: usize, distribution: Distribution| -> Result<Worker<'_>> {
            let records = next_index - first_index;
            let random = Random::new(
                mix(self.plan.seed) ^ mix(thread as u64 + 1) ^ mix(number_of_name(workload.name())),
            );
            let picker =
                Picker::new(distribution, records, thread as u64, threads.max(thread + 1) as u64);
            Ok(Worker::new(shared, self.engine.session()?, thread, random, picker))
        };
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let worker = &worker;
                    scope.spawn(move || work(worker(thread, workload.distribution)?, thread))
                })
                .collect();
            let writer = (workload.writer && seconds.is_some()).then(|| {
                let worker = &worker;
                scope.spawn(move || worker(threads, Distribution::Uniform)?.write_meanwhile())
            });
            let mut all = Measured::default();
            let mut failure = None;
            for thread in running {
                match thread.join() {
                    Ok(Ok(measured)) => all.merge(&measured),
                    Ok(Err(error)) => failure = failure.or(Some(error)),
                    Err(_) => failure = failure.or(Some("a thread panicked".to_string())),
                }
            }
            shared.stop.store(true, Ordering::Relaxed);
            let written = match writer.map(|writer| writer.join()) {
                None => None,
                Some(Ok(Ok(measured))) => Some(measured),
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(_)) => return Err("the writing thread panicked".to_string()),
            };
            failure.map_or(Ok((all, written)), Err)
        })
    }
}

/// So that each workload draws other records than the one before.
fn number_of_name(name: &str) -> u64 {
    name.bytes().fold(0, |number, byte| mix(number ^ u64::from(byte)))
}
