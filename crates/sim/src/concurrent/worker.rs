//! A thread that writes and reads.

use std::sync::Arc;
use std::time::Duration;

use spinney::{Database, Durability, Error, Iter, Result, Slice, Snapshot, Swap, Update};

use super::history::{Action, Change, Found, Id, Operation, Saw, Scan, Seen, Write};
use super::value::{key_bytes, key_number, operand, operands};
use super::workload::{Recorder, Shared, Space, Theme, locked};
use crate::random::Random;

/// An iterator that is passed on over a while.
struct Held {
    iter: Iter,
    /// The operation, but for what is yet to come.
    operation: Operation,
}

/// A thread that writes and reads.
pub(super) struct Worker {
    pub(super) recorder: Recorder,
    /// How many things it has written, for their names.
    pub(super) written: u32,
    db: Database,
    random: Random,
    snapshots: Vec<(u32, Snapshot)>,
    held: Vec<Held>,
}

fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Closed { .. })
}

/// What a read has found, as an action.
fn as_read(
    view: Option<u32>,
    space: u32,
    keys: &[u32],
    values: Result<Vec<Option<Slice>>>,
) -> Action {
    let values = match values {
        Ok(values) => values,
        Err(error) if is_closed(&error) => return Action::Read { view, space, found: None },
        Err(error) => return Action::Odd(format!("read {space}/{keys:?}: {error}")),
    };
    if values.len() != keys.len() {
        return Action::Odd(format!("{} values for {} keys", values.len(), keys.len()));
    }
    let found: std::result::Result<Found, String> = keys
        .iter()
        .zip(values)
        .map(|(key, value)| Ok((*key, value.map_or(Ok(Vec::new()), |value| operands(&value))?)))
        .collect();
    match found {
        Ok(found) => Action::Read { view, space, found: Some(found) },
        Err(what) => Action::Odd(format!("read {space}/{keys:?}: {what}")),
    }
}

impl Worker {
    pub(super) fn new(
        shared: &Arc<Shared>,
        thread: u32,
        db: &Database,
        random: Random,
        written: u32,
    ) -> Worker {
        let shared = Arc::clone(shared);
        Worker {
            recorder: Recorder { shared, thread, operations: Vec::new() },
            written,
            db: db.clone(),
            random,
            snapshots: Vec::new(),
            held: Vec::new(),
        }
    }

    fn shared(&self) -> &Shared {
        &self.recorder.shared
    }

    /// Does so many things, unless another thread has met something odd.
    pub(super) fn work(&mut self, operations: usize) {
        for _ in 0..operations {
            if self.shared().stop.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
            self.step();
            let last = self.recorder.operations.last();
            if last.is_some_and(|last| matches!(last.action, Action::Odd(_))) {
                self.shared().stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            match self.random.below(600) {
                0..30 => std::thread::yield_now(),
                30..33 => {
                    let micros = self.random.below(300) as u64;
                    std::thread::sleep(Duration::from_micros(micros));
                }
                _ => {}
            }
        }
        while !self.held.is_empty() {
            self.go_on(usize::MAX);
        }
    }

    /// Lets go of everything that keeps the store open.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
        self.snapshots.clear();
    }

    fn step(&mut self) {
        let theme = self.shared().sizes.theme;
        match theme {
            // The same keys in one view again and again, by all ways of reading.
            Theme::Records if self.random.one_in(2) => {
                return match self.random.below(8) {
                    0..4 => self.read_now(),
                    4..7 => self.read_snapshot(),
                    _ => self.iterate(),
                };
            }
            // What meets a drop is a batch over several keyspaces.
            Theme::Rolls if self.random.one_in(3) => return self.write_batch(),
            _ => {}
        }
        match self.random.below(100) {
            0..8 => self.write_if(),
            8..10 => self.write_batch_if(),
            10..28 => self.write_one(),
            28..43 => self.write_batch(),
            43..62 => self.read_now(),
            62..66 => self.take_snapshot(),
            66..78 => self.read_snapshot(),
            78..81 => self.pass_snapshot(),
            81..87 => self.iterate(),
            _ => {
                let count = 1 + self.random.below(12);
                self.go_on(count);
            }
        }
    }

    fn any_space(&mut self) -> Option<Space> {
        let spaces = self.shared().spaces();
        spaces.get(self.random.below(spaces.len())).cloned()
    }

    fn key(&mut self) -> u32 {
        let keys = self.shared().sizes.keys as usize;
        // Some keys are met more often than others.
        let among = if self.random.one_in(3) { keys.min(3) } else { keys };
        self.random.below(among) as u32
    }

    fn id(&mut self) -> Id {
        self.written += 1;
        Id { thread: self.recorder.thread, count: self.written }
    }

    fn change(&mut self) -> Change {
        match self.random.below(10) {
            0..2 => Change::Delete,
            2..5 => Change::Merge(self.id()),
            _ => Change::Put(self.id()),
        }
    }

    fn bytes(&mut self, change: Change) -> Vec<u8> {
        let len = match (self.random.below(300), change) {
            // Large enough to go past the journal.
            (0, Change::Put(_)) => 17_000,
            (1..12, Change::Put(_)) => self.random.below(3000),
            _ => self.random.below(self.recorder.shared.sizes.value_bytes),
        };
        match change {
            Change::Put(id) | Change::Merge(id) => operand(id, len as u16),
            Change::Delete => Vec::new(),
        }
    }

    fn write_one(&mut self) {
        let Some(Space { number, keyspace }) = self.any_space() else { return };
        let (key, change) = (self.key(), self.change());
        if change == Change::Delete && self.random.one_in(4) {
            return self.delete_range(number, &keyspace, key);
        }
        let bytes = self.bytes(change);
        let writes = vec![Write { space: number, key, change }];
        let key = key_bytes(key);
        self.recorder.record(
            || match change {
                Change::Put(_) => keyspace.put(&key, &bytes),
                Change::Delete => keyspace.delete(&key),
                Change::Merge(_) => keyspace.merge(&key, &bytes),
            },
            |result| as_commit(writes, result),
        );
    }

    /// As a batch of deletes of all keys of the range.
    fn delete_range(&mut self, space: u32, keyspace: &spinney::Keyspace, from: u32) {
        let to = from + 1 + self.random.below(6) as u32;
        let keys = from..to.min(self.shared().sizes.keys);
        let writes = keys.map(|key| Write { space, key, change: Change::Delete }).collect();
        self.recorder.record(
            || keyspace.delete_range(key_bytes(from)..key_bytes(to)),
            |result| as_commit(writes, result),
        );
    }

    fn write_batch(&mut self) {
        let mut batch = self.db.batch();
        let mut writes = Vec::new();
        let spaces = self.shared().spaces();
        for _ in 0..2 + self.random.below(6) {
            let Some(space) = spaces.get(self.random.below(spaces.len())) else { return };
            let (key, change) = (self.key(), self.change());
            let bytes = self.bytes(change);
            match change {
                Change::Put(_) => batch.put(&space.keyspace, key_bytes(key), bytes),
                Change::Delete => batch.delete(&space.keyspace, key_bytes(key)),
                Change::Merge(_) => batch.merge(&space.keyspace, key_bytes(key), bytes),
            }
            writes.push(Write { space: space.number, key, change });
        }
        if self.random.one_in(10) {
            batch = batch.durability(Durability::Sync);
        }
        self.recorder.record(|| batch.commit(), |result| as_commit(writes, result));
    }

    /// A write that depends on what its key holds.
    fn write_if(&mut self) {
        let Some(Space { number, keyspace }) = self.any_space() else { return };
        let (key, id) = (self.key(), self.id());
        let bytes = self.bytes(Change::Put(id));
        let name = key_bytes(key);
        let put = Write { space: number, key, change: Change::Put(id) };
        let delete = Write { change: Change::Delete, ..put };
        let recorder = &mut self.recorder;
        match self.random.below(7) {
            0 => recorder.record(
                || keyspace.get_or_insert(&name, &bytes),
                |found| as_exchange(put, found, |seen| seen.is_empty()),
            ),
            1 => recorder.record(
                || keyspace.replace(&name, &bytes),
                |found| as_exchange(put, found, |seen| !seen.is_empty()),
            ),
            2 => recorder.record(
                || keyspace.take(&name),
                |found| as_exchange(delete, found, |seen| !seen.is_empty()),
            ),
            3 => recorder.record(
                || keyspace.fetch_update(&name, |_| Update::Put(bytes.clone())),
                |found| as_exchange(put, found, |_| true),
            ),
            4 => recorder.record(
                || keyspace.insert_if_absent(&name, &bytes),
                |inserted| match inserted {
                    Ok(false) => Action::Note(format!("not inserted {number}/{key}")),
                    Ok(true) => as_exchange(put, Ok(None), |_| true),
                    Err(error) => as_exchange(put, Err(error), |_| true),
                },
            ),
            _ => {
                let mut expected = None;
                recorder.record(
                    || keyspace.get(&name).map(|value| vec![value]),
                    |values| {
                        expected = values.as_ref().ok().map(|values| values[0].clone());
                        as_read(None, number, &[key], values)
                    },
                );
                let Some(expected) = expected else { return };
                recorder.record(
                    || keyspace.compare_and_swap(&name, expected.as_deref(), Some(&bytes)),
                    |swap| match swap {
                        Ok(Swap::Done) => as_exchange(put, Ok(expected.clone()), |_| true),
                        Ok(Swap::Differs(found)) => as_exchange(put, Ok(found), |_| false),
                        Err(error) => as_exchange(put, Err(error), |_| true),
                    },
                );
            }
        }
    }

    /// A batch of puts that depends on what two keys hold, of one keyspace or of two. Mostly it writes to one of them alone.
    fn write_batch_if(&mut self) {
        let mut batch = self.db.batch();
        let (mut saw, mut writes): (Vec<Saw>, Vec<Write>) = (Vec::new(), Vec::new());
        for is_first in [true, false] {
            let Some(Space { number: space, keyspace }) = self.any_space() else { return };
            let key = self.key();
            let name = key_bytes(key);
            let mut found = None;
            self.recorder.record(
                || keyspace.get(&name).map(|value| vec![value]),
                |values| {
                    found = values.as_ref().ok().map(|values| values[0].clone());
                    as_read(None, space, &[key], values)
                },
            );
            let Some(found) = found else { return };
            match &found {
                None => batch.require_absent(&keyspace, &name),
                Some(value) => batch.require_value(&keyspace, &name, value),
            }
            let Ok(seen) = found.map_or(Ok(Seen::new()), |value| operands(&value)) else { return };
            saw.push(Saw { space, key, seen });
            if is_first || self.random.one_in(3) {
                let id = self.id();
                batch.put(&keyspace, &name, self.bytes(Change::Put(id)));
                writes.push(Write { space, key, change: Change::Put(id) });
            }
        }
        self.recorder.record(
            || batch.commit(),
            |result| match result {
                Ok(()) => Action::Exchange { saw, writes },
                Err(Error::Conflict { .. }) => Action::Note("conflict".to_string()),
                result => {
                    // A keyspace of a condition may be the one that is closed.
                    let change = Change::Delete;
                    let seen =
                        saw.iter().map(|saw| Write { space: saw.space, key: saw.key, change });
                    writes.extend(seen);
                    as_commit(writes, result)
                }
            },
        );
    }

    fn keys(&mut self) -> Vec<u32> {
        let count = if self.random.one_in(2) { 1 } else { 2 + self.random.below(10) };
        (0..count).map(|_| self.key()).collect()
    }

    fn read_now(&mut self) {
        let Some(Space { number, keyspace }) = self.any_space() else { return };
        let keys = self.keys();
        let bytes: Vec<Vec<u8>> = keys.iter().map(|key| key_bytes(*key)).collect();
        self.recorder.record(
            || match &*bytes {
                [key] => keyspace.get(key).map(|value| vec![value]),
                keys => keyspace.multi_get(keys),
            },
            |values| as_read(None, number, &keys, values),
        );
    }

    fn take_snapshot(&mut self) {
        let view = self.shared().next_view();
        let db = &self.db;
        let mut taken = None;
        self.recorder.record(|| taken = Some(db.snapshot()), |()| Action::View { view });
        self.snapshots.extend(taken.map(|snapshot| (view, snapshot)));
        if self.snapshots.len() > 4 {
            self.snapshots.swap_remove(self.random.below(4));
        }
    }

    fn any_snapshot(&mut self) -> Option<(u32, Snapshot)> {
        if self.snapshots.is_empty() {
            self.take_snapshot();
        }
        self.snapshots.get(self.random.below(self.snapshots.len())).cloned()
    }

    fn read_snapshot(&mut self) {
        let Some((view, snapshot)) = self.any_snapshot() else { return };
        let Some(Space { number, keyspace }) = self.any_space() else { return };
        let keys = self.keys();
        let bytes: Vec<Vec<u8>> = keys.iter().map(|key| key_bytes(*key)).collect();
        self.recorder.record(
            || match &*bytes {
                [key] => snapshot.get(&keyspace, key).map(|value| vec![value]),
                keys => snapshot.multi_get(&keyspace, keys),
            },
            |values| as_read(Some(view), number, &keys, values),
        );
    }

    /// Gives a snapshot to the others, and takes one of theirs.
    fn pass_snapshot(&mut self) {
        let Some(mine) = self.any_snapshot() else { return };
        let at = self.random.below(6);
        let shared = Arc::clone(&self.recorder.shared);
        let mut pool = locked(&shared.pool);
        if pool.len() < 6 {
            pool.push(mine);
        } else {
            self.snapshots.push(std::mem::replace(&mut pool[at], mine));
        }
        drop(pool);
        self.snapshots.truncate(5);
    }

    fn iterate(&mut self) {
        let Some(space) = self.any_space() else { return };
        let view = if self.random.one_in(2) { self.any_snapshot() } else { None };
        let keys = self.shared().sizes.keys;
        let (mut lower, mut upper) = (0, keys);
        if !self.random.one_in(3) {
            (lower, upper) = (self.key(), self.key() + 1);
        }
        if lower > upper {
            std::mem::swap(&mut lower, &mut upper);
        }
        self.start(&space, view, lower, upper);
        if self.held.len() > 3 {
            self.go_on(usize::MAX);
        }
    }

    /// Makes an iterator.
    fn start(&mut self, space: &Space, view: Option<(u32, Snapshot)>, lower: u32, upper: u32) {
        let range = key_bytes(lower)..key_bytes(upper);
        let begun = self.shared().clock.tick();
        let iter = match &view {
            Some((_, snapshot)) => snapshot.range(&space.keyspace, range),
            None => space.keyspace.range(range),
        };
        let ended = self.shared().clock.tick();
        let scan = Scan {
            view: view.map(|(view, _)| view),
            space: space.number,
            lower,
            upper,
            front: Found::new(),
            back: Found::new(),
            exhausted: false,
            done: ended,
        };
        let thread = self.recorder.thread;
        let operation = Operation { thread, begun, ended, action: Action::Scan(scan) };
        self.held.push(Held { iter, operation });
    }

    /// Takes some more from an iterator; it may be left before its end.
    fn go_on(&mut self, count: usize) {
        if self.held.is_empty() {
            return self.iterate();
        }
        let mut held = self.held.swap_remove(self.random.below(self.held.len()));
        let direction = self.random.below(4);
        let mut ended = false;
        for _ in 0..count {
            let back = direction == 1 || (direction == 2 && self.random.one_in(2));
            let item = if back { held.iter.next_back() } else { held.iter.next() };
            let item = item.transpose();
            if take(&mut held.operation, item, back) {
                ended = true;
                break;
            }
        }
        let left = !ended && (count == usize::MAX || self.random.one_in(12));
        if ended || left {
            if let Action::Scan(scan) = &mut held.operation.action {
                scan.done = self.recorder.shared.clock.tick();
            }
            self.recorder.operations.push(held.operation);
        } else {
            self.held.push(held);
        }
    }

    /// Reads everything there is, in one view and out of it.
    pub(super) fn read_all(&mut self) {
        let spaces = self.shared().spaces();
        let keys = self.shared().sizes.keys;
        self.take_snapshot();
        for space in &spaces {
            let view = self.snapshots.last().cloned();
            self.start(space, view, 0, keys);
            self.start(space, None, 0, keys);
        }
        while !self.held.is_empty() {
            self.go_on(usize::MAX);
        }
    }
}

fn as_commit(writes: Vec<Write>, result: Result<()>) -> Action {
    match result {
        Ok(()) => Action::Commit { writes, accepted: true },
        Err(error) if is_closed(&error) => Action::Commit { writes, accepted: false },
        Err(error) => Action::Odd(format!("commit: {error}")),
    }
}

/// A conditional write, which found this in its key, and wrote if that `decides` so.
fn as_exchange(
    write: Write,
    found: Result<Option<Slice>>,
    decides: impl FnOnce(&Seen) -> bool,
) -> Action {
    let (space, key) = (write.space, write.key);
    let found = match found {
        Ok(found) => found,
        Err(error) => return as_commit(vec![write], Err(error)),
    };
    match found.map_or(Ok(Seen::new()), |value| operands(&value)) {
        Ok(seen) if decides(&seen) => {
            Action::Exchange { saw: vec![Saw { space, key, seen }], writes: vec![write] }
        }
        Ok(seen) => Action::Read { view: None, space, found: Some(vec![(key, seen)]) },
        Err(what) => Action::Odd(format!("a conditional write of {space}/{key}: {what}")),
    }
}

/// Notes an iterator's next item; true if there will be no other.
pub(super) fn take(
    operation: &mut Operation,
    item: Result<Option<(Slice, Slice)>>,
    back: bool,
) -> bool {
    let Action::Scan(scan) = &mut operation.action else { return true };
    let what = match item {
        Ok(Some((key, value))) => match (key_number(&key), operands(&value)) {
            (Some(key), Ok(seen)) => {
                if back { &mut scan.back } else { &mut scan.front }.push((key, seen));
                return false;
            }
            (None, _) => format!("an iterator over a key \"{}\"", key.escape_ascii()),
            (Some(key), Err(what)) => format!("an iterator at {}/{key}: {what}", scan.space),
        },
        Ok(None) => {
            scan.exhausted = true;
            return true;
        }
        Err(error) if is_closed(&error) && scan.front.is_empty() && scan.back.is_empty() => {
            let (view, space) = (scan.view, scan.space);
            operation.action = Action::Read { view, space, found: None };
            return true;
        }
        Err(error) => format!("an iterator over {}: {error}", scan.space),
    };
    operation.action = Action::Odd(what);
    true
}
