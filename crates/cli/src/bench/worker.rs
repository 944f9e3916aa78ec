//! One benchmark thread: draws operations, does them, times them, checks what it reads.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use spinney::{Database, Durability, Keyspace};

use super::BenchOptions;
use super::workload::{Operation, ScanLength, Workload};
use crate::failure::{Failure, Outcome};
use spinney_bench::data::distribution::Picker;
use spinney_bench::data::keys::{KeyMaker, number_of};
use spinney_bench::data::random::{Random, mix};
use spinney_bench::data::values::{ValueMaker, Verify};

/// The longest latency that histograms tell apart.
const LATENCY_NANOSECONDS_MAX: u64 = 600_000_000_000;
/// How many operations go by between two looks at the clock's bigger hand and the progress bar.
const STRIDE: u64 = 64;

/// What all threads of a run share.
pub(crate) struct Shared<'a> {
    pub(crate) options: &'a BenchOptions,
    pub(crate) workload: &'a Workload,
    pub(crate) database: &'a Database,
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) keys: &'a KeyMaker,
    pub(crate) values: &'a ValueMaker,
    /// The index the next insert takes.
    pub(crate) next_index: &'a AtomicU64,
    /// For each thread a bound below its insert under way, or `u64::MAX`.
    pub(crate) inserting: Vec<AtomicU64>,
    pub(crate) stop: AtomicBool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) progress: &'a ProgressBar,
}

impl Shared<'_> {
    /// Every index below this has been written.
    fn records_written(&self) -> u64 {
        let next = self.next_index.load(Ordering::SeqCst);
        self.inserting.iter().map(|bound| bound.load(Ordering::SeqCst)).fold(next, u64::min)
    }
}

/// What a thread measured.
pub(crate) struct Measured {
    pub(crate) latencies: Vec<(Operation, Histogram<u64>)>,
    /// Operations done; a batched get counts its keys.
    pub(crate) operations: u64,
    /// Pairs that scans returned.
    pub(crate) pairs_scanned: u64,
    /// Keys that should have had a value and had none, or the other way round.
    pub(crate) missing: u64,
    /// Values that are not what was written.
    pub(crate) wrong: u64,
}

impl Measured {
    pub(crate) fn new() -> Measured {
        Measured { latencies: Vec::new(), operations: 0, pairs_scanned: 0, missing: 0, wrong: 0 }
    }

    pub(crate) fn merge(&mut self, other: Measured) {
        self.operations += other.operations;
        self.pairs_scanned += other.pairs_scanned;
        self.missing += other.missing;
        self.wrong += other.wrong;
        for (operation, histogram) in other.latencies {
            // The bounds are the same everywhere, so adding cannot fail.
            let _ = self.histogram(operation).add(histogram);
        }
    }

    fn histogram(&mut self, operation: Operation) -> &mut Histogram<u64> {
        let position = self.latencies.iter().position(|(known, _)| *known == operation);
        let position = position.unwrap_or_else(|| {
            let histogram = Histogram::new_with_bounds(1, LATENCY_NANOSECONDS_MAX, 3);
            self.latencies.push((operation, histogram.expect("the bounds are constants in range")));
            self.latencies.len() - 1
        });
        &mut self.latencies[position].1
    }
}

pub(crate) struct Worker<'a> {
    shared: &'a Shared<'a>,
    thread: usize,
    random: Random,
    picker: Picker,
    key: Vec<u8>,
    value: Vec<u8>,
    room: Vec<u8>,
    measured: Measured,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, thread: usize, picker: Picker) -> Worker<'a> {
        let seed = mix(shared.options.seed) ^ mix(thread as u64 + 1);
        Worker {
            shared,
            thread,
            random: Random::new(seed),
            picker,
            key: Vec::new(),
            value: Vec::new(),
            room: Vec::new(),
            measured: Measured::new(),
        }
    }

    /// Does `operations` operations, fewer if the time runs out or another thread fails.
    pub(crate) fn run(mut self, operations: u64) -> Outcome<Measured> {
        let result = if self.shared.workload.is_full_scan() {
            self.full_scan()
        } else if self.shared.workload.is_load() {
            self.load()
        } else {
            self.mixed(operations)
        };
        if result.is_err() {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        result.map(|()| self.measured)
    }

    fn mixed(&mut self, operations: u64) -> Outcome {
        let latency_every = self.shared.options.latency_every.max(1);
        let mut done = 0;
        while done < operations {
            let operation = self.shared.workload.operation(self.random.below(100));
            let timed = done % latency_every == 0;
            let count = self.operation(operation, timed)?;
            self.measured.operations += count;
            done += count;
            if (done / count) % STRIDE == 0 && self.pause(STRIDE * count) {
                break;
            }
        }
        Ok(())
    }

    /// Shows progress; true once it is time to stop.
    fn pause(&self, operations: u64) -> bool {
        self.shared.progress.inc(operations);
        self.shared.stop.load(Ordering::Relaxed)
            || self.shared.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn record(&mut self, operation: Operation, start: Option<Instant>) {
        if let Some(start) = start {
            let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.measured.histogram(operation).saturating_record(nanoseconds.max(1));
        }
    }

    /// Makes the key of an index; gives its number.
    fn set_key(&mut self, index: u64) -> u64 {
        let number = self.shared.keys.number(index);
        self.shared.keys.key(number, &mut self.key);
        number
    }

    fn pick(&mut self) -> Outcome<u64> {
        let records = self.shared.records_written();
        if records == 0 {
            return Err(Failure::usage("there are no records; run the workload load first"));
        }
        Ok(self.picker.pick(records, &mut self.random))
    }

    /// Does one operation; gives how many it counts for.
    fn operation(&mut self, operation: Operation, timed: bool) -> Outcome<u64> {
        let shared = self.shared;
        let begin = || timed.then(Instant::now);
        let start;
        match operation {
            Operation::Read => {
                let index = self.pick()?;
                let number = self.set_key(index);
                start = begin();
                let value = shared.keyspace.get(&self.key)?;
                self.record(operation, start);
                self.check(number, value.as_deref());
            }
            Operation::ReadAbsent => {
                let index = self.pick()?;
                self.set_key(shared.keys.absent(index));
                start = begin();
                let value = shared.keyspace.get(&self.key)?;
                self.record(operation, start);
                self.measured.missing += u64::from(value.is_some());
            }
            Operation::Update => {
                let index = self.pick()?;
                self.set_pair(index);
                start = begin();
                self.put()?;
                self.record(operation, start);
            }
            Operation::ReadModifyWrite => {
                let index = self.pick()?;
                let number = self.set_pair(index);
                start = begin();
                let value = shared.keyspace.get(&self.key)?;
                self.put()?;
                self.record(operation, start);
                self.check(number, value.as_deref());
            }
            Operation::Insert => {
                let index = self.begin_insert();
                self.set_pair(index);
                start = begin();
                self.put()?;
                self.record(operation, start);
                self.end_insert();
            }
            Operation::Scan => {
                let length = match shared.workload.scan_length {
                    ScanLength::UniformTo100 => 1 + self.random.below(100),
                    ScanLength::Chosen => shared.options.scan_length,
                };
                let index = self.pick()?;
                let number = self.set_key(index);
                start = begin();
                self.scan(number, length)?;
                self.record(operation, start);
            }
            Operation::MultiGet => return self.multi_get(timed),
            Operation::Step => {}
        }
        Ok(1)
    }

    fn set_pair(&mut self, index: u64) -> u64 {
        let number = self.set_key(index);
        let nonce = self.random.next_u64();
        self.shared.values.fill(number, nonce, &mut self.value);
        number
    }

    fn put(&mut self) -> Outcome {
        let shared = self.shared;
        match Durability::from(shared.options.durability) {
            Durability::Buffered => shared.keyspace.put(&self.key, &self.value)?,
            durability => {
                let mut batch = shared.database.batch().durability(durability);
                batch.put(shared.keyspace, &self.key, &self.value);
                batch.commit()?;
            }
        }
        Ok(())
    }

    /// Takes an index. The bound is set before the index is taken, so that no other thread ever
    /// counts it among those written before it is.
    fn begin_insert(&self) -> u64 {
        let next = self.shared.next_index.load(Ordering::SeqCst);
        self.shared.inserting[self.thread].store(next, Ordering::SeqCst);
        self.shared.next_index.fetch_add(1, Ordering::SeqCst)
    }

    fn end_insert(&self) {
        self.shared.inserting[self.thread].store(u64::MAX, Ordering::SeqCst);
    }

    fn load(&mut self) -> Outcome {
        let shared = self.shared;
        let (options, records) = (shared.options, shared.options.records);
        let in_batch = options.load_batch.max(1);
        let latency_every = options.latency_every.max(1);
        let mut calls = 0;
        loop {
            let first = shared.next_index.fetch_add(in_batch, Ordering::SeqCst);
            if first >= records {
                return Ok(());
            }
            let count = in_batch.min(records - first);
            let timed = calls % latency_every == 0;
            let start;
            if count == 1 {
                self.set_pair(first);
                start = timed.then(Instant::now);
                self.put()?;
            } else {
                let mut batch = shared.database.batch().durability(options.durability.into());
                for index in first..first + count {
                    self.set_pair(index);
                    batch.put(shared.keyspace, &self.key, &self.value);
                }
                start = timed.then(Instant::now);
                batch.commit()?;
            }
            self.record(Operation::Insert, start);
            self.measured.operations += count;
            calls += 1;
            if calls % STRIDE == 0 && self.pause(STRIDE * in_batch) {
                return Ok(());
            }
        }
    }

    fn multi_get(&mut self, timed: bool) -> Outcome<u64> {
        let count = self.shared.options.batch.max(1);
        let mut numbers = Vec::with_capacity(count as usize);
        let mut keys = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let index = self.pick()?;
            numbers.push(self.set_key(index));
            keys.push(self.key.clone());
        }
        let start = timed.then(Instant::now);
        let values = self.shared.keyspace.multi_get(&keys)?;
        self.record(Operation::MultiGet, start);
        self.measured.missing += numbers.len().abs_diff(values.len()) as u64;
        for (number, value) in numbers.into_iter().zip(values) {
            self.check(number, value.as_deref());
        }
        Ok(count)
    }

    fn scan(&mut self, number: u64, length: u64) -> Outcome {
        let shared = self.shared;
        let range = (Bound::Included(self.key.as_slice()), Bound::Unbounded);
        let pairs = shared.keyspace.range(range);
        let mut first = None;
        for pair in pairs.take(usize::try_from(length).unwrap_or(usize::MAX)) {
            let (key, value) = pair?;
            first = first.or_else(|| number_of(&key));
            self.check_pair(&key, &value);
        }
        // The key the scan starts at is there, so it must come first.
        self.measured.missing += u64::from(first != Some(number));
        Ok(())
    }

    fn full_scan(&mut self) -> Outcome {
        let shared = self.shared;
        let expected = shared.records_written();
        let mut previous: Option<spinney::Slice> = None;
        let (mut count, mut start) = (0, Instant::now());
        for pair in shared.keyspace.iter() {
            let (key, value) = pair?;
            self.check_pair(&key, &value);
            self.measured.wrong += u64::from(previous.is_some_and(|previous| previous >= key));
            previous = Some(key);
            count += 1;
            self.measured.operations += 1;
            if count % STRIDE == 0 {
                self.record(Operation::Step, Some(start));
                if self.pause(STRIDE) {
                    return Ok(());
                }
                start = Instant::now();
            }
        }
        self.measured.missing += expected.saturating_sub(count);
        Ok(())
    }

    fn check_pair(&mut self, key: &[u8], value: &[u8]) {
        self.measured.pairs_scanned += 1;
        if self.shared.options.verify == Verify::None {
            return;
        }
        match number_of(key) {
            Some(number) => self.check(number, Some(value)),
            None => self.measured.wrong += 1,
        }
    }

    fn check(&mut self, number: u64, value: Option<&[u8]>) {
        let Some(value) = value else {
            self.measured.missing += 1;
            return;
        };
        let verify = self.shared.options.verify;
        let right = self.shared.values.is_right(number, value, verify, &mut self.room);
        self.measured.wrong += u64::from(!right);
    }
}
