//! Actions on a store: lists that can be printed, shortened and replayed.
//!
//! Invariants:
//! 1. Any sublist of a list can be replayed. The keyspace, snapshot or iterator that an action
//!    names is looked up at replay; if it does not exist, the action does nothing.
//! 2. The effect of an action depends on the action and the state, never on its position in the
//!    list.

use std::fmt;

use spinney::{Compression, KeyspaceOptions, TreeKind, Update};

use crate::kinds::{with_fanout, with_own};

/// A keyspace's number. That of a keyspace which is not there stands for one that is.
pub type KeyspaceNumber = u8;

/// A key's number, see [`key_bytes`].
pub type KeyNumber = u32;

/// The number of a place for a snapshot or an iterator.
pub type Slot = u8;

/// A value, by number and length; see [`Value::bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// Which.
    pub number: u32,
    /// How long, in bytes.
    pub len: u32,
}

/// A change of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is this.
    Put(Value),
    /// There is none.
    Delete,
    /// The keyspace's operator folds this in; a put where there is no operator.
    Merge(Value),
    /// There is none of all keys between this one and another, or from this one on.
    DeleteRange(Option<KeyNumber>),
}

/// A change in a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub keyspace: KeyspaceNumber,
    /// Of which key.
    pub key: KeyNumber,
    /// What happens to it.
    pub change: Change,
}

/// What a conditional write asks of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// `insert_if_absent`.
    InsertIfAbsent,
    /// `update_if_present`.
    UpdateIfPresent,
    /// `get_or_insert`.
    GetOrInsert,
    /// `replace`.
    Replace,
    /// `take`.
    Take,
    /// `compare_and_swap`.
    Swap {
        /// The key is expected to hold what it holds, or something else.
        holds: bool,
        /// The new value is none.
        deletes: bool,
    },
    /// `fetch_update` by [`Ask::update`].
    FetchUpdate,
}

/// A write that depends on what its key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditional {
    /// Where.
    pub keyspace: KeyspaceNumber,
    /// Of which key.
    pub key: KeyNumber,
    /// What it asks.
    pub ask: Ask,
    /// What it writes, if it does.
    pub value: Value,
}

/// A condition of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// Where.
    pub keyspace: KeyspaceNumber,
    /// Of which key.
    pub key: KeyNumber,
    /// Whether it holds.
    pub holds: bool,
    /// Whether a value is compared, if there is one.
    pub compares: bool,
}

/// A moment to read at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// When the action is done.
    Now,
    /// When this snapshot was taken; now if there is none.
    Snapshot(Slot),
}

/// Keys from one to before another, whichever is smaller; `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// One end.
    pub from: Option<KeyNumber>,
    /// The other.
    pub to: Option<KeyNumber>,
}

/// From where an iterator is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the front.
    Forwards,
    /// From the back.
    Backwards,
    /// Two from the front, one from the back, until they meet.
    BothEnds,
}

/// The operator of a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// None: merges are puts.
    None,
    /// The operand at the end of the value.
    Append,
    /// The sum; values are numbers of 8 bytes.
    Add,
    /// The greater of both; operands cannot be folded without the value.
    Greatest,
}

/// What a keyspace is created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How its pages are compressed.
    pub compression: Compression,
    /// Its operator.
    pub operator: Operator,
    /// Values from this length on are kept apart.
    pub blob_bytes_min: u32,
    /// The most children of a trunk node.
    pub fanout_max: u32,
    /// The space it may take for each 100 bytes of live data.
    pub space_percent_max: u32,
    /// The most tables of a guard, or pieces of a TPH, for kinds that have them; 0: the kind's own choice.
    pub tables_per_guard_max: u32,
    /// Whether tables have filters, for kinds that can do without. Where there are none, hash indexes have the functions of
    /// CPHash.
    pub filters: bool,
}

/// Something done to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// One change, by the keyspace's own method.
    Write(Write),
    /// Several at once.
    Batch {
        /// The changes.
        writes: Vec<Write>,
        /// Whether they are durable when it returns.
        sync: bool,
    },
    /// One that depends on what its key holds.
    WriteIf(Conditional),
    /// Several at once, if what is required holds.
    BatchIf {
        /// What is required.
        requires: Vec<Requirement>,
        /// The changes.
        writes: Vec<Write>,
    },
    /// Everything committed is made durable.
    Sync,
    /// So many steps of background work.
    Step(u8),
    /// Background work until there is none.
    WaitIdle,
    /// Memtables go to trees.
    Flush(KeyspaceNumber),
    /// A range is compacted.
    Compact(KeyspaceNumber, Range),
    /// A snapshot is taken, in place of the one that is there.
    TakeSnapshot(Slot),
    /// A snapshot is dropped.
    DropSnapshot(Slot),
    /// An iterator is opened, in place of the one that is there.
    OpenIterator {
        /// Where it is kept.
        slot: Slot,
        /// What it reads.
        keyspace: KeyspaceNumber,
        /// As of when.
        view: View,
        /// Which keys.
        range: Range,
    },
    /// Some pairs are read from an iterator.
    AdvanceIterator {
        /// Which.
        slot: Slot,
        /// From where.
        direction: Direction,
        /// How many pairs.
        count: u16,
    },
    /// An iterator is dropped.
    DropIterator(Slot),
    /// A key is read.
    Get {
        /// Where.
        keyspace: KeyspaceNumber,
        /// Which.
        key: KeyNumber,
        /// As of when.
        view: View,
    },
    /// Several keys are read at once.
    MultiGet {
        /// Where.
        keyspace: KeyspaceNumber,
        /// Which.
        keys: Vec<KeyNumber>,
        /// As of when.
        view: View,
    },
    /// Pairs are read in order.
    Scan {
        /// Where.
        keyspace: KeyspaceNumber,
        /// Which keys.
        range: Range,
        /// As of when.
        view: View,
        /// From where.
        direction: Direction,
        /// How many pairs at most.
        count: u16,
    },
    /// Everything is read as of now and of each snapshot, both ways, and checked.
    CompareAll,
    /// A copy of the store is made.
    Checkpoint {
        /// Whether it is opened and compared at once.
        compare: bool,
    },
    /// A keyspace is created, if it is not there.
    CreateKeyspace(KeyspaceNumber, Options),
    /// A keyspace gets these options, but for its operator.
    Alter(KeyspaceNumber, Options),
    /// A keyspace is dropped.
    DropKeyspace(KeyspaceNumber),
    /// All handles are dropped and the store is opened again.
    Reopen {
        /// Whether it is closed before.
        close: bool,
    },
}

/// A keyspace's name.
pub fn keyspace_name(number: KeyspaceNumber) -> String {
    format!("k{number}")
}

/// A key's bytes: mostly in the order of the numbers, some long, some of other shapes.
pub fn key_bytes(number: KeyNumber) -> Vec<u8> {
    match number % 16 {
        5 => u64::from(number).to_be_bytes().to_vec(),
        9 => number.to_string().into_bytes(),
        13 => format!("key/{number:06}/{}", "long/".repeat(number as usize % 50)).into_bytes(),
        _ => format!("key/{number:06}").into_bytes(),
    }
}

impl Value {
    /// The bytes: those of odd numbers cannot be compressed.
    pub fn bytes(self) -> Vec<u8> {
        let mut state = u64::from(self.number).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut bytes = Vec::with_capacity(self.len as usize + 8);
        while bytes.len() < self.len as usize {
            bytes.extend_from_slice(&state.to_be_bytes());
            if self.number % 2 == 1 {
                state = state.rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            }
        }
        bytes.truncate(self.len as usize);
        bytes
    }
}

impl Range {
    /// All keys.
    pub const ALL: Range = Range { from: None, to: None };

    /// The bounds as bytes, the smaller first.
    pub fn bytes(self) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        match (self.from.map(key_bytes), self.to.map(key_bytes)) {
            (Some(from), Some(to)) if to < from => (Some(to), Some(from)),
            bounds => bounds,
        }
    }
}

impl Operator {
    /// Its name in the store.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Operator::None => None,
            Operator::Append => Some("append"),
            Operator::Add => Some("u64_add"),
            Operator::Greatest => Some("greatest"),
        }
    }

    /// What a value becomes.
    pub fn merge(self, value: Option<&[u8]>, operand: &[u8]) -> Vec<u8> {
        match self {
            Operator::None => operand.to_vec(),
            Operator::Append => [value.unwrap_or_default(), operand].concat(),
            Operator::Add => {
                let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
                let sum = value.map_or(0, number).wrapping_add(number(operand));
                sum.to_le_bytes().to_vec()
            }
            Operator::Greatest => operand.max(value.unwrap_or_default()).to_vec(),
        }
    }

    /// The bytes of a value where this is the operator.
    pub fn value(self, value: Value) -> Vec<u8> {
        match self {
            Operator::Add => Value { len: 8, ..value }.bytes(),
            _ => value.bytes(),
        }
    }
}

impl Ask {
    /// What becomes of a key that holds `before`, if this writes; `None` if it does not.
    pub fn effect(self, before: Option<&[u8]>, value: &[u8]) -> Option<Option<Vec<u8>>> {
        let is_written = match self {
            Ask::InsertIfAbsent | Ask::GetOrInsert => before.is_none(),
            Ask::UpdateIfPresent | Ask::Replace => before.is_some(),
            Ask::Take => return before.map(|_| None),
            Ask::Swap { holds: false, .. } => false,
            Ask::Swap { deletes: true, .. } => return before.map(|_| None),
            Ask::Swap { .. } => true,
            Ask::FetchUpdate => {
                return match Ask::update(before, value) {
                    Update::Keep => None,
                    Update::Put(value) => Some(Some(value)),
                    Update::Delete => before.map(|_| None),
                };
            }
        };
        is_written.then(|| Some(value.to_vec()))
    }

    /// The function of `fetch_update`.
    pub fn update(before: Option<&[u8]>, value: &[u8]) -> Update {
        match value.last().map_or(1, |last| last % 4) {
            0 => Update::Delete,
            1 => Update::Keep,
            _ if before == Some(value) => Update::Keep,
            _ => Update::Put(value.to_vec()),
        }
    }
}

impl Options {
    /// The store's form.
    pub fn keyspace_options(self, kind: TreeKind) -> KeyspaceOptions {
        let options = with_fanout(KeyspaceOptions::new(kind), self.fanout_max);
        let options = with_own(options, "tables_per_guard_max", self.tables_per_guard_max);
        let options = with_own(options, "pieces_max", self.tables_per_guard_max);
        let options = with_own(options, "displacement", u32::from(!self.filters));
        let options = with_own(options, "one_level", self.tables_per_guard_max % 2);
        let options = with_own(options, "key_list_percent_max", u32::from(self.filters) * 100);
        let options = with_own(options, "without_filters", u32::from(!self.filters))
            .compression(self.compression)
            .blob_bytes_min(self.blob_bytes_min)
            .space_amplification_max(f64::from(self.space_percent_max) / 100.0);
        match self.operator.name() {
            Some(name) => options.merge_operator(name),
            None => options,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            compression: Compression::None,
            operator: Operator::None,
            blob_bytes_min: 4096,
            fanout_max: 2,
            space_percent_max: 130,
            tables_per_guard_max: 0,
            filters: true,
        }
    }
}

impl Action {
    /// How many keys it writes or reads by name; others count as one.
    pub fn operations(&self) -> u64 {
        match self {
            Action::Batch { writes, .. } => writes.len() as u64,
            Action::BatchIf { requires, writes } => (requires.len() + writes.len()) as u64,
            Action::MultiGet { keys, .. } => keys.len() as u64,
            _ => 1,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value {} of {} bytes", self.number, self.len)
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keyspace, key) = (self.keyspace, self.key);
        match self.change {
            Change::Put(value) => write!(f, "put k{keyspace}/{key} = {value}"),
            Change::Delete => write!(f, "delete k{keyspace}/{key}"),
            Change::Merge(value) => write!(f, "merge k{keyspace}/{key} with {value}"),
            Change::DeleteRange(to) => {
                write!(f, "delete k{keyspace}/{}", Range { from: Some(key), to })
            }
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            View::Now => Ok(()),
            View::Snapshot(slot) => write!(f, " at snapshot {slot}"),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |end: Option<KeyNumber>| end.map_or(String::new(), |key| key.to_string());
        write!(f, "{}..{}", end(self.from), end(self.to))
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Forwards => "forwards",
            Direction::Backwards => "backwards",
            Direction::BothEnds => "from both ends",
        })
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blobs, fanout, space) = (self.blob_bytes_min, self.fanout_max, self.space_percent_max);
        write!(f, "{:?}, blobs from {blobs}, fan-out {fanout}, space {space} %", self.compression)?;
        if self.tables_per_guard_max > 0 {
            write!(f, ", {} tables per guard", self.tables_per_guard_max)?;
        }
        if !self.filters {
            f.write_str(", without filters")?;
        }
        match self.operator.name() {
            Some(name) => write!(f, ", {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Write(write) => write!(f, "{write}"),
            Action::Batch { writes, sync } => {
                let writes: Vec<String> = writes.iter().map(ToString::to_string).collect();
                let sync = if *sync { "synced batch" } else { "batch" };
                write!(f, "{sync}: {}", writes.join("; "))
            }
            Action::WriteIf(Conditional { keyspace, key, ask, value }) => {
                write!(f, "{ask:?} k{keyspace}/{key} = {value}")
            }
            Action::BatchIf { requires, writes } => {
                let writes: Vec<String> = writes.iter().map(ToString::to_string).collect();
                let requires = requires.iter().map(|required| {
                    let Requirement { keyspace, key, holds, compares } = required;
                    let what = if *compares { "value" } else { "presence" };
                    let end = if *holds { "" } else { ", which does not hold" };
                    format!("{what} of k{keyspace}/{key}{end}")
                });
                let requires: Vec<String> = requires.collect();
                write!(f, "batch if {}: {}", requires.join("; "), writes.join("; "))
            }
            Action::Sync => f.write_str("sync"),
            Action::Step(count) => write!(f, "step ×{count}"),
            Action::WaitIdle => f.write_str("wait_idle"),
            Action::Flush(keyspace) => write!(f, "flush k{keyspace}"),
            Action::Compact(keyspace, range) => write!(f, "compact k{keyspace}/{range}"),
            Action::TakeSnapshot(slot) => write!(f, "take snapshot {slot}"),
            Action::DropSnapshot(slot) => write!(f, "drop snapshot {slot}"),
            Action::OpenIterator { slot, keyspace, view, range } => {
                write!(f, "open iterator {slot} on k{keyspace}/{range}{view}")
            }
            Action::AdvanceIterator { slot, direction, count } => {
                write!(f, "advance iterator {slot} {direction} by {count}")
            }
            Action::DropIterator(slot) => write!(f, "drop iterator {slot}"),
            Action::Get { keyspace, key, view } => write!(f, "get k{keyspace}/{key}{view}"),
            Action::MultiGet { keyspace, keys, view } => {
                write!(f, "multi_get k{keyspace}/{keys:?}{view}")
            }
            Action::Scan { keyspace, range, view, direction, count } => {
                write!(f, "scan k{keyspace}/{range}{view} {direction}, {count} at most")
            }
            Action::CompareAll => f.write_str("compare all"),
            Action::Checkpoint { compare: true } => f.write_str("checkpoint, opened"),
            Action::Checkpoint { compare: false } => f.write_str("checkpoint"),
            Action::CreateKeyspace(number, options) => write!(f, "create k{number}: {options}"),
            Action::Alter(number, options) => write!(f, "alter k{number}: {options}"),
            Action::DropKeyspace(number) => write!(f, "drop k{number}"),
            Action::Reopen { close: true } => f.write_str("close, open"),
            Action::Reopen { close: false } => f.write_str("drop, open"),
        }
    }
}
