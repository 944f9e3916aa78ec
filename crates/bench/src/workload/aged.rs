//! `aged`: of the records that are there, four in ten are deleted and four in ten overwritten, both in an
//! order that has nothing to do with their keys' and mixed with each other. Then every key is read.
//!
//! Invariants:
//! 1. Each record is deleted, overwritten or left alone; which, its index says. So every later read knows
//!    what it must find.
//! 2. The new value of an overwritten record differs from the old one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::measured::Measured;
use super::worker::Worker;
use super::{Operation, Shape, Workload};
use crate::data::random::mix;
use crate::engine::Result;

/// The number of deleted and of overwritten records among ten.
const TENTHS: u64 = 4;

/// Which records are deleted and which overwritten. Those deleted come first.
#[derive(Debug, Default)]
pub(super) struct Aging {
    first_index: u64,
    /// The next to be deleted is the store's first; here deleting ends.
    deletes_end: u64,
    /// The next to be overwritten.
    update: AtomicU64,
    updates_end: u64,
    next_index: u64,
}

impl Aging {
    /// Of the records from `first_index` to before `next_index`.
    pub(super) fn new(first_index: u64, next_index: u64) -> Aging {
        let part = (next_index - first_index) * TENTHS / 10;
        let deletes_end = first_index + part;
        let update = AtomicU64::new(deletes_end);
        Aging { first_index, deletes_end, update, updates_end: deletes_end + part, next_index }
    }

    /// So that an overwritten value is another than before, and known.
    fn nonce(&self, number: u64) -> u64 {
        mix(number ^ mix(self.first_index ^ 0xa9ed))
    }
}

impl Workload {
    pub(super) fn ages(&self) -> bool {
        self.shape == Shape::Aged
    }
}

fn take(next: &AtomicU64, end: u64) -> Option<u64> {
    let below = |next: u64| (next < end).then_some(next + 1);
    next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below).ok()
}

impl Worker<'_> {
    /// Does the next deletion or overwrite, whichever is asked for while there are both; false once it is
    /// time to stop or all is done.
    pub(super) fn age(&mut self, operation: Operation) -> Result<bool> {
        let shared = self.shared;
        let delete = || take(shared.first_index, shared.aging.deletes_end);
        let update = || take(&shared.aging.update, shared.aging.updates_end);
        let (operation, index) = match operation {
            Operation::Delete => match delete() {
                Some(index) => (Operation::Delete, Some(index)),
                None => (Operation::Update, update()),
            },
            _ => match update() {
                Some(index) => (Operation::Update, Some(index)),
                None => (Operation::Delete, delete()),
            },
        };
        let Some(index) = index else { return Ok(false) };
        let number = self.set_key(index);
        let start;
        if operation == Operation::Delete {
            start = Instant::now();
            self.session.delete(&self.key)?;
            self.measured.user_bytes_written += self.key.len() as u64;
        } else {
            shared.values.fill(number, shared.aging.nonce(number), &mut self.value);
            start = Instant::now();
            self.session.put(&self.key, &self.value, shared.workload.durability)?;
            self.measured.user_bytes_written += (self.key.len() + self.value.len()) as u64;
        }
        Ok(self.finish(operation, start, 1))
    }

    /// Reads every `threads`th of the records that there were before, deleted ones too, and counts what is
    /// not as it should be.
    pub(super) fn check_aged(mut self, threads: usize) -> Result<Measured> {
        let aging = self.shared.aging;
        let deleted_end = self.shared.first_index.load(Ordering::SeqCst);
        let updated_end = aging.update.load(Ordering::SeqCst);
        for index in (aging.first_index..aging.next_index).skip(self.thread).step_by(threads) {
            let number = self.set_key(index);
            let there = self.session.get_copy(&self.key, &mut self.value)?;
            if index < deleted_end {
                self.measured.missing += u64::from(there);
                continue;
            }
            self.check_value(number, there);
            let overwritten = (aging.deletes_end..updated_end).contains(&index);
            if there && overwritten {
                let nonce = self.shared.values.nonce(&self.value);
                self.measured.wrong += u64::from(nonce.is_some_and(|n| n != aging.nonce(number)));
            }
        }
        Ok(self.measured)
    }
}
