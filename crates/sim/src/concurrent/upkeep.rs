//! The thread for occasional work: flushes, compactions, copies, changes of options, creating and dropping keyspaces.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spinney::{Compression, Database, Error, KeyspaceOptions};

use super::history::{Action, Found, Operation, Scan};
use super::value::key_bytes;
use super::worker::take;
use super::workload::{PASSING, Recorder, Shared, Space, Theme, locked, remove_all};
use crate::kinds::{with_fanout, with_own};
use crate::random::Random;

/// The thread.
pub(super) struct Upkeep {
    pub(super) recorder: Recorder,
    /// How many copies it has made.
    pub(super) copies: u32,
    db: Database,
    random: Random,
}

impl Upkeep {
    pub(super) fn new(
        shared: &Arc<Shared>,
        thread: u32,
        db: &Database,
        random: Random,
        copies: u32,
    ) -> Upkeep {
        let shared = Arc::clone(shared);
        let recorder = Recorder { shared, thread, operations: Vec::new() };
        Upkeep { recorder, copies, db: db.clone(), random }
    }

    /// Until the workers have done their work.
    pub(super) fn work(&mut self) {
        while self.recorder.shared.working.load(Ordering::SeqCst) > 0 {
            self.step();
            let odd = self.recorder.operations.iter().rev().take(4);
            if odd.into_iter().any(|operation| matches!(operation.action, Action::Odd(_))) {
                self.recorder.shared.stop.store(true, Ordering::Relaxed);
                return;
            }
            let micros = self.random.below(1500) as u64;
            std::thread::sleep(Duration::from_micros(micros));
        }
    }

    fn any_space(&mut self) -> Option<Space> {
        let shared = &self.recorder.shared;
        let alive = *locked(&shared.passing);
        let mut spaces = shared.spaces();
        spaces.retain(|space| space.keyspace.name() != PASSING || Some(space.number) == alive);
        spaces.get(self.random.below(spaces.len())).cloned()
    }

    fn step(&mut self) {
        let db = self.db.clone();
        if self.recorder.shared.sizes.theme == Theme::Rolls && self.random.one_in(2) {
            return self.change_passing();
        }
        match self.random.below(22) {
            0..6 => {
                if let Some(space) = self.any_space() {
                    let what = format!("flush {}", space.number);
                    self.recorder.must(&what, || space.keyspace.flush());
                }
            }
            6..11 => self.compact(),
            11..12 => drop(self.recorder.must("sync", || db.sync())),
            12..13 => drop(self.recorder.must("wait until idle", || db.wait_idle())),
            13..16 => self.copy(),
            16..19 => self.change_passing(),
            19..21 => self.alter(),
            _ => {
                let stats = db.stats();
                drop(stats);
            }
        }
    }

    fn compact(&mut self) {
        let Some(space) = self.any_space() else { return };
        let keys = self.recorder.shared.sizes.keys as usize;
        let (from, to) = (self.random.below(keys) as u32, self.random.below(keys) as u32);
        let whole = self.random.one_in(2);
        let what = format!("compact {}", space.number);
        self.recorder.must(&what, || match whole {
            true => space.keyspace.compact(..),
            false => space.keyspace.compact(key_bytes(from.min(to))..key_bytes(from.max(to))),
        });
    }

    /// Gives one of the keyspaces that stay other options. It has to have them when the store is opened again.
    fn alter(&mut self) {
        let Some(Space { keyspace, number }) = self.any_space() else { return };
        if keyspace.name() == PASSING {
            return;
        }
        let compression = [Compression::None, Compression::Lz4][self.random.below(2)];
        let blobs = [64, 100, 1000, 4096, 1 << 20][self.random.below(5)];
        let times = [1.1, 1.3, 3.0][self.random.below(3)];
        let fanout = 2 + self.random.below(4) as u32;
        let (tables, filters) = (self.random.below(6) as u32, self.random.below(2) as u32);
        let change = |options: KeyspaceOptions| {
            let options = with_fanout(options, fanout).compression(compression);
            let options = with_own(options, "tables_per_guard_max", tables);
            let options = with_own(options, "pieces_max", tables);
            let options = with_own(options, "displacement", filters);
            let options = with_own(options, "one_level", tables % 2);
            let options = with_own(options, "key_list_percent_max", filters * 100);
            let options = with_own(options, "without_filters", filters);
            options.blob_bytes_min(blobs).space_amplification_max(times)
        };
        self.recorder.must(&format!("alter {number}"), || keyspace.alter(change));
        let altered = &self.recorder.shared.altered;
        locked(altered).insert(keyspace.name().to_string(), keyspace.options());
    }

    /// Drops the keyspace that comes and goes, or creates it again.
    fn change_passing(&mut self) {
        let shared = Arc::clone(&self.recorder.shared);
        let db = self.db.clone();
        let alive = *locked(&shared.passing);
        let begun = shared.clock.tick();
        if let Some(space) = alive {
            match db.drop_keyspace(PASSING) {
                Ok(()) => self.recorder.note(begun, Action::Drop { space }),
                Err(error) => self.odd(begun, &format!("drop {space}"), &error),
            }
            *locked(&shared.passing) = None;
            return;
        }
        let space = shared.next_space();
        // Of any kind, over time.
        let options = shared.options(PASSING, space as usize);
        match db.keyspace(PASSING, options) {
            Ok(keyspace) => {
                self.recorder.note(begun, Action::Create { space, name: PASSING.to_string() });
                *locked(&shared.passing) = Some(space);
                // The one before stays among them until now, so that it is met dropped.
                let mut spaces = shared.spaces();
                spaces.retain(|space| space.keyspace.name() != PASSING);
                spaces.push(Space { number: space, keyspace });
                shared.set_spaces(spaces);
            }
            Err(error) => self.odd(begun, &format!("create {space}"), &error),
        }
    }

    fn odd(&mut self, begun: u64, what: &str, error: &Error) {
        self.recorder.note(begun, Action::Odd(format!("{what}: {error}")));
    }

    /// Makes a copy and reads all of it.
    fn copy(&mut self) {
        let shared = Arc::clone(&self.recorder.shared);
        self.copies += 1;
        let dir = shared.dir.with_extension(format!("copy-{}", self.copies));
        let view = shared.next_view();
        let begun = shared.clock.tick();
        match self.db.checkpoint(&dir) {
            Ok(()) => self.recorder.note(begun, Action::View { view }),
            Err(error) => return self.odd(begun, "checkpoint", &error),
        }
        let begun = shared.clock.tick();
        if let Err(error) = self.read_copy(&dir, view) {
            self.odd(begun, "the copy", &error);
        }
        if let Err(error) = remove_all(&*shared.vfs, &dir) {
            self.odd(begun, "removing the copy", &error);
        }
    }

    fn read_copy(&mut self, dir: &Path, view: u32) -> spinney::Result<()> {
        let shared = Arc::clone(&self.recorder.shared);
        let copy = shared.builder(dir).create_if_missing(false).open()?;
        let alive = *locked(&shared.passing);
        let mut expected = Vec::new();
        for space in shared.spaces() {
            let name = space.keyspace.name().to_string();
            if name == PASSING && Some(space.number) != alive {
                continue;
            }
            expected.push(name.clone());
            let keyspace = copy.existing_keyspace(&name)?;
            let (begun, upper) = (shared.clock.tick(), shared.sizes.keys);
            let mut iter = keyspace.iter();
            let ended = shared.clock.tick();
            let scan = Scan {
                view: Some(view),
                space: space.number,
                lower: 0,
                upper,
                front: Found::new(),
                back: Found::new(),
                exhausted: false,
                done: ended,
            };
            let (thread, action) = (self.recorder.thread, Action::Scan(scan));
            let mut operation = Operation { thread, begun, ended, action };
            while !take(&mut operation, iter.next().transpose(), false) {}
            self.recorder.operations.push(operation);
        }
        expected.sort();
        if expected != copy.keyspaces() {
            let what = format!("a copy with {:?}, not {expected:?}", copy.keyspaces());
            let begun = shared.clock.tick();
            self.recorder.note(begun, Action::Odd(what));
        }
        copy.close()
    }
}
