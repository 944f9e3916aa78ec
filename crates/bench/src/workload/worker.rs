//! One thread of a workload: draws operations, does them, times them, checks what it reads.
//!
//! Invariants:
//! 1. Only the engine's own call lies between the two looks at the clock; keys and values are made
//!    before and checked after.
//! 2. A record counts as written once every insert of a lower index has returned, so a read of it must
//!    find it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::aged::Aging;
use super::measured::{Clock, Measured};
use super::{Operation, ScanLength, Shape, Workload};
use crate::data::distribution::Picker;
use crate::data::keys::{KeyMaker, number_of};
use crate::data::random::Random;
use crate::data::values::{ValueMaker, Verify};
use crate::engine::{Result, Session};

/// Pairs of a scan of everything that count as one operation.
const STEP_PAIRS: u64 = 1000;

/// A thread that is ahead of its rate by less than this goes on: a sleep is no shorter in effect.
const AHEAD_MAX: Duration = Duration::from_micros(500);

/// The state that all threads of a workload share.
pub(super) struct Shared<'a> {
    pub(super) workload: &'a Workload,
    pub(super) keys: &'a KeyMaker,
    pub(super) values: &'a ValueMaker,
    pub(super) verify: Verify,
    /// Records below this index have been deleted.
    pub(super) first_index: &'a AtomicU64,
    /// The index of the next insert.
    pub(super) next_index: &'a AtomicU64,
    /// Which records `aged` deletes and overwrites.
    pub(super) aging: &'a Aging,
    /// Writes per second of each thread, at most.
    pub(super) writes_per_second: Option<u64>,
    /// Inserts end here.
    pub(super) index_max: u64,
    /// For each thread a bound below its insert under way, or `u64::MAX`.
    pub(super) inserting: Vec<AtomicU64>,
    pub(super) stop: AtomicBool,
    pub(super) clock: Clock,
    /// Operations done so far, now and then, for whoever shows progress.
    pub(super) progress: &'a AtomicU64,
}

impl Shared<'_> {
    /// The records that are there: every one of these has been written.
    fn records(&self) -> (u64, u64) {
        let next = self.next_index.load(Ordering::SeqCst);
        let next =
            self.inserting.iter().map(|bound| bound.load(Ordering::SeqCst)).fold(next, u64::min);
        (self.first_index.load(Ordering::SeqCst), next)
    }
}

pub(super) struct Worker<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) session: Box<dyn Session + 'a>,
    pub(super) thread: usize,
    random: Random,
    picker: Picker,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    room: Vec<u8>,
    pub(super) measured: Measured,
    shown: u64,
    /// Writes of a thread whose rate is limited.
    paced: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        session: Box<dyn Session + 'a>,
        thread: usize,
        random: Random,
        picker: Picker,
    ) -> Worker<'a> {
        Worker {
            shared,
            session,
            thread,
            random,
            picker,
            key: Vec::new(),
            value: Vec::new(),
            room: Vec::new(),
            measured: Measured::default(),
            shown: 0,
            paced: 0,
        }
    }

    /// Does `operations` operations, fewer if the time runs out, nothing is left or another thread fails.
    pub(super) fn run(mut self, operations: u64) -> Result<Measured> {
        let result = match self.shared.workload.shape {
            Shape::FullScan => self.full_scan(),
            Shape::Skip { records } => self.skip(records),
            _ => self.mixed(operations),
        };
        if result.is_err() {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        result.map(|()| self.measured)
    }

    /// Reads every `threads`th record once, to fill the cache.
    pub(super) fn warm(mut self, threads: usize) -> Result<()> {
        let (first, next) = self.shared.records();
        for index in (first..next).skip(self.thread).step_by(threads) {
            self.shared.keys.key(self.shared.keys.number(index), &mut self.key);
            self.session.get(&self.key, &mut |_| ())?;
        }
        Ok(())
    }

    /// Updates until it is told to stop.
    pub(super) fn write_meanwhile(mut self) -> Result<Measured> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.keep_pace();
            self.operation(Operation::Update)?;
        }
        Ok(self.measured)
    }

    fn mixed(&mut self, operations: u64) -> Result<()> {
        while self.measured.operations < operations {
            let operation = self.shared.workload.operation(self.random.below(100));
            if operation.writes() {
                self.keep_pace();
            }
            let more = match self.shared.workload.ages() {
                true => self.age(operation)?,
                false => self.operation(operation)?,
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Before a write: waits while the thread is ahead of the rate that it may have. One that is behind catches up.
    fn keep_pace(&mut self) {
        let Some(rate) = self.shared.writes_per_second else { return };
        let due = Duration::from_secs_f64(self.paced as f64 / rate as f64);
        self.paced += 1;
        let ahead = due.saturating_sub(self.shared.clock.start.elapsed());
        if ahead >= AHEAD_MAX {
            std::thread::sleep(ahead);
        }
    }

    /// Notes an operation that began at `start`; false once it is time to stop.
    pub(super) fn finish(&mut self, operation: Operation, start: Instant, count: u64) -> bool {
        let (end, clock) = (Instant::now(), self.shared.clock);
        self.measured.record(operation, end - start, end - clock.start, count);
        if self.measured.operations - self.shown >= 64 {
            let done = self.measured.operations - self.shown;
            self.shared.progress.fetch_add(done, Ordering::Relaxed);
            self.shown = self.measured.operations;
        }
        !self.shared.stop.load(Ordering::Relaxed)
            && clock.deadline.is_none_or(|deadline| end < deadline)
    }

    /// Makes the key of an index; gives its number.
    pub(super) fn set_key(&mut self, index: u64) -> u64 {
        let number = self.shared.keys.number(index);
        self.shared.keys.key(number, &mut self.key);
        number
    }

    /// Draws a record that is there, and makes its key.
    fn pick(&mut self) -> Result<(u64, u64)> {
        let (first, next) = self.shared.records();
        if first >= next {
            return Err("there are no records left to work on; put load first".to_string());
        }
        let index = first + self.picker.pick(next - first, &mut self.random);
        Ok((index, self.set_key(index)))
    }

    /// Makes a new value for the key with this number.
    fn set_value(&mut self, number: u64) {
        let nonce = self.random.next_u64();
        self.shared.values.fill(number, nonce, &mut self.value);
    }

    fn wrote(&mut self) {
        self.measured.user_bytes_written += (self.key.len() + self.value.len()) as u64;
    }

    /// Does one operation; false once it is time to stop.
    fn operation(&mut self, operation: Operation) -> Result<bool> {
        let durability = self.shared.workload.durability;
        let start;
        match operation {
            Operation::Read => {
                let (_, number) = self.pick()?;
                let mut checks = Checks::new(self.shared, &mut self.room);
                let key = &self.key;
                start = Instant::now();
                let mut answered = 0;
                self.session.get(key, &mut |found| {
                    answered += 1;
                    match found {
                        Some(value) => checks.pair(number, key, value),
                        None => checks.missing += 1,
                    }
                })?;
                checks.missing += 1u64.abs_diff(answered);
                checks.add_to(&mut self.measured);
            }
            Operation::ReadAbsent => {
                let (index, _) = self.pick()?;
                self.set_key(self.shared.keys.absent(index));
                start = Instant::now();
                let missing = &mut self.measured.missing;
                let mut found = |found: Option<&[u8]>| *missing += u64::from(found.is_some());
                self.session.get(&self.key, &mut found)?;
            }
            Operation::Update => {
                let (_, number) = self.pick()?;
                self.set_value(number);
                start = Instant::now();
                self.session.put(&self.key, &self.value, durability)?;
                self.wrote();
            }
            Operation::ReadModifyWrite => {
                let (_, number) = self.pick()?;
                let mut read = std::mem::take(&mut self.room);
                self.set_value(number);
                start = Instant::now();
                let there = self.session.get_copy(&self.key, &mut read)?;
                self.session.put(&self.key, &self.value, durability)?;
                let more = self.finish(operation, start, 1);
                self.wrote();
                std::mem::swap(&mut self.value, &mut read);
                self.room = read;
                self.check_value(number, there);
                return Ok(more);
            }
            Operation::Insert => {
                let Some(index) = self.begin_insert() else { return Ok(false) };
                let number = self.set_key(index);
                self.set_value(number);
                start = Instant::now();
                self.session.put(&self.key, &self.value, durability)?;
                self.shared.inserting[self.thread].store(u64::MAX, Ordering::SeqCst);
                self.wrote();
            }
            Operation::InsertIfAbsent => {
                let is_new = self.random.below(2) == 0;
                let number = match is_new {
                    true => match self.begin_insert() {
                        Some(index) => self.set_key(index),
                        None => return Ok(false),
                    },
                    false => self.pick()?.1,
                };
                self.set_value(number);
                start = Instant::now();
                let inserted = self.session.insert_if_absent(&self.key, &self.value, durability)?;
                if is_new {
                    self.shared.inserting[self.thread].store(u64::MAX, Ordering::SeqCst);
                    self.wrote();
                }
                self.measured.wrong += u64::from(inserted != is_new);
            }
            Operation::Delete => {
                let index = self.shared.first_index.fetch_add(1, Ordering::SeqCst);
                if index >= self.shared.next_index.load(Ordering::SeqCst) {
                    self.shared.first_index.fetch_sub(1, Ordering::SeqCst);
                    return Ok(false);
                }
                self.set_key(index);
                start = Instant::now();
                self.session.delete(&self.key)?;
                self.measured.user_bytes_written += self.key.len() as u64;
            }
            Operation::DeleteRange => {
                let Shared { first_index, next_index, keys, .. } = self.shared;
                let next = next_index.load(Ordering::SeqCst);
                let is_trim = self.shared.workload.batch == u64::MAX;
                let (count, end) = match is_trim {
                    true => (next / 10 * 9, next),
                    false => (self.shared.workload.batch, next / 2),
                };
                let index = first_index.fetch_add(count, Ordering::SeqCst);
                if count == 0 || index + count > end {
                    first_index.fetch_sub(count, Ordering::SeqCst);
                    return Ok(false);
                }
                if keys.number(index) >= keys.number(index + count) {
                    return Err("the keys are in no order; put local100 first".to_string());
                }
                let mut end = std::mem::take(&mut self.room);
                self.set_key(index);
                keys.key(keys.number(index + count), &mut end);
                start = Instant::now();
                self.session.delete_range(&self.key, &end)?;
                let more = self.finish(operation, start, 1);
                self.measured.user_bytes_written += (self.key.len() + end.len()) as u64;
                self.room = end;
                return Ok(more && !is_trim);
            }
            Operation::Scan => {
                let length = match self.shared.workload.scan_length {
                    ScanLength::UniformTo100 => 1 + self.random.below(100),
                    ScanLength::Pairs(pairs) => pairs,
                };
                let (_, number) = self.pick()?;
                start = Instant::now();
                self.scan(Some(number), length)?;
            }
            Operation::MultiGet => return self.multi_get(),
            Operation::Step => return Ok(false),
        }
        Ok(self.finish(operation, start, 1))
    }

    /// Takes an index. The bound is set before the index is taken, so that no other thread ever
    /// counts it among those written before it is.
    fn begin_insert(&self) -> Option<u64> {
        let next = self.shared.next_index.load(Ordering::SeqCst);
        let bound = &self.shared.inserting[self.thread];
        bound.store(next, Ordering::SeqCst);
        let index = self.shared.next_index.fetch_add(1, Ordering::SeqCst);
        if index < self.shared.index_max {
            return Some(index);
        }
        self.shared.next_index.fetch_sub(1, Ordering::SeqCst);
        bound.store(u64::MAX, Ordering::SeqCst);
        None
    }

    fn multi_get(&mut self) -> Result<bool> {
        let count = self.shared.workload.batch;
        let (mut numbers, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..count {
            numbers.push(self.pick()?.1);
            keys.push(self.key.clone());
        }
        let mut checks = Checks::new(self.shared, &mut self.room);
        let mut answered = 0;
        let start = Instant::now();
        self.session.multi_get(&keys, &mut |place, value| {
            answered += 1;
            match value {
                Some(value) => checks.pair(numbers[place], &keys[place], value),
                None => checks.missing += 1,
            }
        })?;
        checks.missing += count.abs_diff(answered);
        checks.add_to(&mut self.measured);
        Ok(self.finish(Operation::MultiGet, start, count))
    }

    /// Reads `length` pairs from the key on; the first must be `number`'s.
    fn scan(&mut self, number: Option<u64>, length: u64) -> Result<()> {
        let mut checks = Checks::new(self.shared, &mut self.room);
        let mut first = None;
        let seen = self.session.scan(&self.key, length, &mut |key, value| {
            let found = number_of(key);
            first = first.or(Some(found));
            match found {
                Some(number) => checks.pair(number, key, value),
                None => checks.wrong += 1,
            }
        })?;
        // The key the scan starts at is there, so it must come first.
        checks.missing += u64::from(number.is_some() && first.flatten() != number);
        checks.add_to(&mut self.measured);
        self.measured.pairs_scanned += seen;
        Ok(())
    }

    fn full_scan(&mut self) -> Result<()> {
        let (first, next) = self.shared.records();
        let mut checks = Checks::new(self.shared, &mut self.room);
        let (measured, clock) = (&mut self.measured, self.shared.clock);
        let (mut previous, mut in_step, mut start) = (Vec::new(), 0, Instant::now());
        let seen = self.session.scan(b"", u64::MAX, &mut |key, value| {
            checks.wrong += u64::from(previous.as_slice() >= key);
            previous.clear();
            previous.extend_from_slice(key);
            match number_of(key) {
                Some(number) => checks.pair(number, key, value),
                None => checks.wrong += 1,
            }
            in_step += 1;
            if in_step == STEP_PAIRS {
                let end = Instant::now();
                measured.record(Operation::Step, end - start, end - clock.start, in_step);
                self.shared.progress.fetch_add(in_step, Ordering::Relaxed);
                (start, in_step) = (end, 0);
            }
        })?;
        measured.operations += in_step;
        measured.pairs_scanned += seen;
        checks.missing += (next - first).abs_diff(seen);
        checks.add_to(measured);
        Ok(())
    }

    /// Seeks every so manyth record with one iterator. Its key is there, so it must be found.
    fn skip(&mut self, records: u64) -> Result<()> {
        let (first, next) = self.shared.records();
        let mut checks = Checks::new(self.shared, &mut self.room);
        let (measured, clock, keys) = (&mut self.measured, self.shared.clock, self.shared.keys);
        let (mut index, sought) = (first, std::cell::Cell::new(0));
        let (mut in_step, mut start, mut found) = (0, Instant::now(), 0);
        self.session.seek_each(
            &mut |key| {
                if index >= next {
                    return false;
                }
                sought.set(keys.number(index));
                keys.key(sought.get(), key);
                index += records;
                true
            },
            &mut |key, value| {
                match number_of(key) {
                    Some(number) if number == sought.get() => checks.pair(number, key, value),
                    _ => checks.wrong += 1,
                }
                (in_step, found) = (in_step + 1, found + 1);
                if in_step == STEP_PAIRS {
                    let end = Instant::now();
                    measured.record(Operation::Step, end - start, end - clock.start, in_step);
                    self.shared.progress.fetch_add(in_step, Ordering::Relaxed);
                    (start, in_step) = (end, 0);
                }
            },
        )?;
        measured.operations += in_step;
        measured.pairs_scanned += found;
        checks.missing += (next - first).div_ceil(records).abs_diff(found);
        checks.add_to(measured);
        Ok(())
    }

    /// Checks the `value` of a read.
    pub(super) fn check_value(&mut self, number: u64, there: bool) {
        let mut checks = Checks::new(self.shared, &mut self.room);
        match there {
            true => checks.pair(number, &self.key, &self.value),
            false => checks.missing += 1,
        }
        checks.add_to(&mut self.measured);
    }
}

/// The findings of the checks of one call.
struct Checks<'a> {
    values: &'a ValueMaker,
    verify: Verify,
    room: &'a mut Vec<u8>,
    missing: u64,
    wrong: u64,
    bytes: u64,
}

impl<'a> Checks<'a> {
    fn new(shared: &Shared<'a>, room: &'a mut Vec<u8>) -> Checks<'a> {
        let (values, verify) = (shared.values, shared.verify);
        Checks { values, verify, room, missing: 0, wrong: 0, bytes: 0 }
    }

    fn pair(&mut self, number: u64, key: &[u8], value: &[u8]) {
        self.bytes += (key.len() + value.len()) as u64;
        let right = value.len() == self.values.value_bytes
            && self.values.is_right(number, value, self.verify, self.room);
        self.wrong += u64::from(!right);
    }

    fn add_to(self, measured: &mut Measured) {
        measured.missing += self.missing;
        measured.wrong += self.wrong;
        measured.user_bytes_read += self.bytes;
    }
}
