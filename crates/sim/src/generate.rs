//! Generates lists of actions from a seed: different mixtures of work on different sets of keys.
//!
//! Invariants:
//! 1. The same seed gives the same list.

use spinney::Compression;

use crate::action::{
    Action, Ask, Change, Conditional, Direction, KeyNumber, KeyspaceNumber, Operator, Options,
    Range, Requirement, Slot, Value, View, Write,
};
use crate::random::Random;

/// What a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Comparing: as many reads as writes.
    Compare,
    /// Crashing: what changes files, and little else.
    Crash,
}

/// What there is mostly to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Even,
    Write,
    /// Deletes and overwrites of few keys.
    Delete,
    /// Snapshots and iterators are held for long.
    Hold,
    /// Keys are written in their order.
    Append,
    /// The same, and the oldest are deleted: whole ranges become empty behind it.
    Window,
    /// Values are large.
    Large,
    /// There are many keyspaces.
    Spread,
    Scan,
}

const HABITS: [Habit; 9] = [
    Habit::Even,
    Habit::Write,
    Habit::Delete,
    Habit::Hold,
    Habit::Append,
    Habit::Window,
    Habit::Large,
    Habit::Spread,
    Habit::Scan,
];

/// A kind of action.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Write,
    Batch,
    WriteIf,
    BatchIf,
    Sync,
    Step,
    WaitIdle,
    Flush,
    Compact,
    TakeSnapshot,
    DropSnapshot,
    OpenIterator,
    AdvanceIterator,
    DropIterator,
    Get,
    MultiGet,
    Scan,
    CompareAll,
    Checkpoint,
    CreateKeyspace,
    Alter,
    DropKeyspace,
    Reopen,
}

/// How often each is done: to compare, to crash.
const WEIGHTS: [(Deed, usize, usize); 23] = [
    (Deed::Write, 4000, 5300),
    (Deed::Batch, 600, 1700),
    (Deed::WriteIf, 400, 400),
    (Deed::BatchIf, 60, 100),
    (Deed::Sync, 20, 200),
    (Deed::Step, 500, 1600),
    (Deed::WaitIdle, 10, 150),
    (Deed::Flush, 20, 300),
    (Deed::Compact, 10, 200),
    (Deed::TakeSnapshot, 40, 50),
    (Deed::DropSnapshot, 40, 60),
    (Deed::OpenIterator, 60, 20),
    (Deed::AdvanceIterator, 300, 40),
    (Deed::DropIterator, 40, 30),
    (Deed::Get, 3000, 60),
    (Deed::MultiGet, 200, 20),
    (Deed::Scan, 200, 20),
    (Deed::CompareAll, 4, 50),
    (Deed::Checkpoint, 3, 100),
    (Deed::CreateKeyspace, 12, 150),
    (Deed::Alter, 12, 150),
    (Deed::DropKeyspace, 8, 100),
    (Deed::Reopen, 8, 100),
];

/// Draws actions.
#[derive(Debug, Clone)]
pub struct Generator {
    random: Random,
    purpose: Purpose,
    habit: Habit,
    keys: usize,
    value_bytes: usize,
    keyspaces: usize,
    weights: Vec<(Deed, usize)>,
    weight: usize,
    values: u32,
    next_key: u32,
    /// `Habit::Window` has deleted the keys before it.
    oldest_key: u32,
    /// How many keys `Habit::Window` keeps.
    window: u32,
}

impl Generator {
    /// The list of a run's part, which has the run's sizes, from `seeds`. Those of one run's parts
    /// are about the same keys and keyspaces.
    pub fn new(purpose: Purpose, run: u64, part: u64) -> Generator {
        let mut random = Random::new(&[run, 5]);
        let habit = HABITS[random.below(HABITS.len())];
        let keys = match (habit, purpose) {
            (Habit::Delete, _) => [4, 12, 40][random.below(3)],
            (Habit::Append | Habit::Window, _) => 100_000,
            (_, Purpose::Crash) => [8, 40, 200][random.below(3)],
            (_, Purpose::Compare) => [20, 200, 2000][random.below(3)],
        };
        let keyspaces = match habit {
            Habit::Spread => [4, 7][random.below(2)],
            // With one alone, its tree gets ahead of the journal.
            _ => [1, 1, 2, 3][random.below(4)],
        };
        let value_bytes = match habit {
            Habit::Large if purpose == Purpose::Crash => [600, 1500][random.below(2)],
            Habit::Large => [2000, 6000][random.below(2)],
            _ => [12, 60, 300][random.below(3)],
        };
        let weights: Vec<(Deed, usize)> = WEIGHTS
            .into_iter()
            .map(|(deed, compare, crash)| {
                let weight = if purpose == Purpose::Compare { compare } else { crash };
                (deed, habit.changed(deed, weight))
            })
            .collect();
        Generator {
            random: Random::new(&[run, 2, part]),
            purpose,
            habit,
            keys,
            value_bytes,
            keyspaces,
            weight: weights.iter().map(|(_, weight)| weight).sum(),
            weights,
            values: (part as u32) << 24,
            next_key: (part as u32) << 16,
            oldest_key: (part as u32) << 16,
            window: [10, 60, 400][random.below(3)],
        }
    }

    /// A list of so many actions, after those that create the keyspaces.
    pub fn list(mut self, count: usize) -> Vec<Action> {
        let mut list = Vec::with_capacity(count + self.keyspaces + 8);
        for number in 0..self.keyspaces as KeyspaceNumber {
            let options = self.options();
            list.push(Action::CreateKeyspace(number, options));
        }
        list.extend((0..count).map(|_| self.action()));
        list.push(Action::CompareAll);
        if self.purpose == Purpose::Compare {
            list.push(Action::Reopen { close: true });
            list.push(Action::CompareAll);
            list.push(Action::Compact(0, Range::ALL));
            list.push(Action::CompareAll);
        }
        list
    }

    fn action(&mut self) -> Action {
        let mut at = self.random.below(self.weight);
        let found = self.weights.iter().find(|(_, weight)| {
            let here = at < *weight;
            at = at.wrapping_sub(*weight);
            here
        });
        match found.map_or(Deed::Sync, |(deed, _)| *deed) {
            Deed::Write => {
                let keyspace = self.keyspace();
                Action::Write(self.write(keyspace))
            }
            Deed::Batch => self.batch(),
            Deed::WriteIf => Action::WriteIf(self.conditional()),
            Deed::BatchIf => {
                let requires = (0..1 + self.random.below(3)).map(|_| self.requirement()).collect();
                let writes = (0..self.random.below(5)).map(|_| {
                    let keyspace = self.keyspace();
                    self.write(keyspace)
                });
                Action::BatchIf { requires, writes: writes.collect() }
            }
            Deed::Sync => Action::Sync,
            Deed::Step => Action::Step(1 + self.random.below(3) as u8),
            Deed::WaitIdle => Action::WaitIdle,
            Deed::Flush => Action::Flush(self.keyspace()),
            Deed::Compact => Action::Compact(self.keyspace(), self.range()),
            Deed::TakeSnapshot => Action::TakeSnapshot(self.slot()),
            Deed::DropSnapshot => Action::DropSnapshot(self.slot()),
            Deed::OpenIterator => Action::OpenIterator {
                slot: self.slot(),
                keyspace: self.keyspace(),
                view: self.view(),
                range: self.range(),
            },
            Deed::AdvanceIterator => Action::AdvanceIterator {
                slot: self.slot(),
                direction: self.direction(),
                count: 1 + self.random.below(8) as u16,
            },
            Deed::DropIterator => Action::DropIterator(self.slot()),
            Deed::Get => {
                Action::Get { keyspace: self.keyspace(), key: self.key(), view: self.view() }
            }
            Deed::MultiGet => {
                let count = 1 + self.random.below(12);
                Action::MultiGet {
                    keyspace: self.keyspace(),
                    keys: (0..count).map(|_| self.key()).collect(),
                    view: self.view(),
                }
            }
            Deed::Scan => Action::Scan {
                keyspace: self.keyspace(),
                range: self.range(),
                view: self.view(),
                direction: self.direction(),
                count: [3, 10, 40][self.random.below(3)] * self.habit.scan_times(self.purpose),
            },
            Deed::CompareAll => Action::CompareAll,
            Deed::Checkpoint => Action::Checkpoint { compare: self.purpose == Purpose::Compare },
            Deed::CreateKeyspace => {
                let number = self.random.below(self.keyspaces + 1) as KeyspaceNumber;
                Action::CreateKeyspace(number, self.options())
            }
            Deed::Alter => Action::Alter(self.keyspace(), self.options()),
            Deed::DropKeyspace => {
                let number = match self.random.one_in(4) {
                    true => self.keyspace(),
                    // One that is mostly not there.
                    false => self.keyspaces as KeyspaceNumber,
                };
                Action::DropKeyspace(number)
            }
            Deed::Reopen => Action::Reopen { close: self.random.one_in(2) },
        }
    }

    /// Mostly one that is always there.
    fn keyspace(&mut self) -> KeyspaceNumber {
        let others = usize::from(self.random.one_in(8));
        self.random.below(self.keyspaces + others) as KeyspaceNumber
    }

    fn slot(&mut self) -> Slot {
        self.random.below(4) as Slot
    }

    fn view(&mut self) -> View {
        match self.random.one_in(4) {
            true => View::Snapshot(self.slot()),
            false => View::Now,
        }
    }

    fn direction(&mut self) -> Direction {
        [Direction::Forwards, Direction::Backwards, Direction::BothEnds][self.random.below(3)]
    }

    /// A key that may have been written.
    fn key(&mut self) -> KeyNumber {
        match self.habit {
            Habit::Append | Habit::Window => {
                let back = self.random.below(500) as KeyNumber;
                (self.next_key + 2).saturating_sub(back) % self.keys as KeyNumber
            }
            _ => self.random.below(self.keys) as KeyNumber,
        }
    }

    fn range(&mut self) -> Range {
        let mut end = || match self.random.one_in(4) {
            true => None,
            false => Some(()),
        };
        let (from, to) = (end(), end());
        Range { from: from.map(|()| self.key()), to: to.map(|()| self.key()) }
    }

    fn write(&mut self, keyspace: KeyspaceNumber) -> Write {
        let key = match self.habit {
            Habit::Window
                if self.next_key - self.oldest_key > self.window && !self.random.one_in(10) =>
            {
                self.oldest_key += 1;
                let key = self.oldest_key % self.keys as u32;
                return Write { keyspace, key, change: Change::Delete };
            }
            Habit::Append | Habit::Window if !self.random.one_in(10) => {
                self.next_key += 1;
                self.next_key % self.keys as u32
            }
            _ => self.key(),
        };
        if self.random.one_in(50) {
            return Write { keyspace, key, change: self.delete_range(key) };
        }
        let deletes = if self.habit == Habit::Delete { 5 } else { 2 };
        let change = match self.random.below(10) {
            n if n < deletes => Change::Delete,
            n if n < deletes + 2 => Change::Merge(self.operand()),
            _ => Change::Put(self.value()),
        };
        Write { keyspace, key, change }
    }

    /// Mostly of few keys.
    fn delete_range(&mut self, key: KeyNumber) -> Change {
        let random = &mut self.random;
        Change::DeleteRange(match random.below(8) {
            0 => None,
            1 => Some(self.key()),
            2..5 => Some(key + 1 + random.below(100) as KeyNumber),
            _ => Some(key + 1 + random.below(8) as KeyNumber),
        })
    }

    fn conditional(&mut self) -> Conditional {
        let (keyspace, key) = (self.keyspace(), self.key());
        let ask = match self.random.below(9) {
            0 => Ask::InsertIfAbsent,
            1 => Ask::UpdateIfPresent,
            2 => Ask::GetOrInsert,
            3 => Ask::Replace,
            4 => Ask::Take,
            5..7 => Ask::FetchUpdate,
            _ => Ask::Swap { holds: !self.random.one_in(3), deletes: self.random.one_in(4) },
        };
        Conditional { keyspace, key, ask, value: self.value() }
    }

    fn requirement(&mut self) -> Requirement {
        Requirement {
            keyspace: self.keyspace(),
            key: self.key(),
            holds: !self.random.one_in(5),
            compares: self.random.one_in(2),
        }
    }

    /// As a value, but large ones are not so rare: they go through more than values do.
    fn operand(&mut self) -> Value {
        let value = self.value();
        match self.random.below(100) {
            0 => Value { len: 16_384 + self.random.below(600) as u32, ..value },
            _ => value,
        }
    }

    fn value(&mut self) -> Value {
        let len = match self.random.below(400) {
            // Past the journal and the memtable, unless the keyspace keeps all values in pages; and
            // just not. From a unit of a blob file on, values are cached as a whole.
            0 => [4_072, 9_000, 16_383, 16_384, 17_000, 40_000][self.random.below(6)],
            1..16 => self.random.below(3000),
            _ => self.random.below(self.value_bytes),
        };
        self.values += 1;
        Value { number: self.values, len: len as u32 }
    }

    fn batch(&mut self) -> Action {
        let count = 1 + self.random.below(8);
        let sync = self.random.one_in(6);
        // Mostly to one keyspace, so that the others stay behind.
        let favourite = self.keyspace();
        let writes = (0..count).map(|_| {
            let other = self.random.one_in(3);
            let keyspace = if other { self.keyspace() } else { favourite };
            self.write(keyspace)
        });
        Action::Batch { writes: writes.collect(), sync }
    }

    fn options(&mut self) -> Options {
        let random = &mut self.random;
        Options {
            compression: [Compression::None, Compression::None, Compression::Lz4][random.below(3)],
            operator: match random.below(5) {
                0 => Operator::Add,
                1 => Operator::Greatest,
                2..4 => Operator::Append,
                _ => Operator::None,
            },
            blob_bytes_min: [64, 200, 1000, 4096, u32::MAX][random.below(5)],
            fanout_max: [2, 2, 3, 5, 0][random.below(5)],
            space_percent_max: [110, 130, 200, 1000][random.below(4)],
            tables_per_guard_max: [0, 0, 1, 2, 4, 20][random.below(6)],
            filters: !random.one_in(4),
        }
    }
}

impl Habit {
    /// How many times as long scans are: where there are enough keys, some are so long that trees read differently.
    fn scan_times(self, purpose: Purpose) -> u16 {
        match (self, purpose) {
            (Habit::Append | Habit::Scan, Purpose::Compare) => 4,
            _ => 1,
        }
    }

    fn changed(self, deed: Deed, weight: usize) -> usize {
        let reads = matches!(deed, Deed::Get | Deed::MultiGet | Deed::Scan);
        match (self, deed) {
            (Habit::Write, _) if reads => weight / 10,
            (Habit::Hold, Deed::DropSnapshot | Deed::DropIterator | Deed::Reopen) => weight / 10,
            (Habit::Hold, Deed::TakeSnapshot | Deed::OpenIterator) => weight / 3,
            (Habit::Spread, Deed::CreateKeyspace | Deed::DropKeyspace) => weight * 2,
            (Habit::Scan, Deed::Scan | Deed::AdvanceIterator) => weight * 5,
            _ => weight,
        }
    }
}
