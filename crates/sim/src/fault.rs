//! Faults of a disk that continues to work: which operation is affected, and how.
//!
//! Invariants:
//! 1. A fault is placed by its number among the operations that it can affect, counted from when it
//!    was planned. The same run has it at the same operation.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use spinney::Error;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Reads bytes.
    Read,
    /// Opens a file or looks at a directory.
    Lookup,
    /// Writes bytes, or sets a length.
    Write,
    /// Stores bytes in a mapped file. It cannot fail at once.
    Store,
    /// Makes a file or a directory durable.
    Sync,
    /// Makes or changes a name.
    Name,
    /// Removes a name.
    Remove,
    /// Makes a file with room of its own.
    Reserve,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 8] = [
        Class::Read,
        Class::Lookup,
        Class::Write,
        Class::Store,
        Class::Sync,
        Class::Name,
        Class::Remove,
        Class::Reserve,
    ];
}

/// What happens to the operation that is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It fails and does nothing. What a failed sync should have made durable is still on its way.
    Eio,
    /// It fails for want of room.
    Full,
    /// Some of the bytes are read, then it fails.
    ShortRead,
    /// Some of the bytes are written, then it fails.
    ShortWrite,
    /// Some of the bytes are written, then there is no more room.
    ShortFull,
    /// A sync fails, and what was on its way is taken for stored from then on: later syncs succeed,
    /// everything is there until power fails, and then it is gone.
    SyncForgets,
    /// The same, but what was on its way is gone at once.
    SyncDrops,
    /// One bit is read turned over. The next read is right.
    FlippedRead,
    /// Bytes from another place of the file are read.
    MisplacedRead,
    /// What was there before the file's last write is read.
    StaleRead,
    /// One bit is stored turned over.
    FlippedWrite,
    /// The bytes are stored elsewhere in the file.
    MisplacedWrite,
    /// The bytes are stored in another file.
    StrayWrite,
    /// Nothing is stored, though it is said to be.
    LostWrite,
    /// The same, but the file is as long as if it were: its old bytes, or zeros, stay.
    StaleWrite,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 15] = [
        Fault::Eio,
        Fault::Full,
        Fault::ShortRead,
        Fault::ShortWrite,
        Fault::ShortFull,
        Fault::SyncForgets,
        Fault::SyncDrops,
        Fault::FlippedRead,
        Fault::MisplacedRead,
        Fault::StaleRead,
        Fault::FlippedWrite,
        Fault::MisplacedWrite,
        Fault::StrayWrite,
        Fault::LostWrite,
        Fault::StaleWrite,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Eio => "eio",
            Fault::Full => "full",
            Fault::ShortRead => "short-read",
            Fault::ShortWrite => "short-write",
            Fault::ShortFull => "short-full",
            Fault::SyncForgets => "sync-forgets",
            Fault::SyncDrops => "sync-drops",
            Fault::FlippedRead => "flipped-read",
            Fault::MisplacedRead => "misplaced-read",
            Fault::StaleRead => "stale-read",
            Fault::FlippedWrite => "flipped-write",
            Fault::MisplacedWrite => "misplaced-write",
            Fault::StrayWrite => "stray-write",
            Fault::LostWrite => "lost-write",
            Fault::StaleWrite => "stale-write",
        }
    }

    /// What it can strike.
    pub fn classes(self) -> &'static [Class] {
        match self {
            Fault::Eio => &Class::ALL,
            // Room for what is stored in mapped files was reserved; `ShortFull` says otherwise.
            Fault::Full => &[Class::Write, Class::Sync, Class::Name, Class::Reserve],
            Fault::ShortRead | Fault::FlippedRead | Fault::MisplacedRead | Fault::StaleRead => {
                &[Class::Read]
            }
            Fault::SyncForgets | Fault::SyncDrops => &[Class::Sync],
            Fault::ShortWrite
            | Fault::ShortFull
            | Fault::FlippedWrite
            | Fault::MisplacedWrite
            | Fault::StrayWrite
            | Fault::LostWrite
            | Fault::StaleWrite => &[Class::Write, Class::Store],
        }
    }

    /// Whether the disk says that all is well.
    pub fn lies(self) -> bool {
        self.lies_when_read() || self.lies_when_written()
    }

    /// Whether a read gives wrong bytes and says that all is well; what is stored is right.
    pub fn lies_when_read(self) -> bool {
        matches!(self, Fault::FlippedRead | Fault::MisplacedRead | Fault::StaleRead)
    }

    /// Whether something else is stored than the disk says.
    pub fn lies_when_written(self) -> bool {
        matches!(
            self,
            Fault::FlippedWrite
                | Fault::MisplacedWrite
                | Fault::StrayWrite
                | Fault::LostWrite
                | Fault::StaleWrite
        )
    }

    /// Whether it says that there is no room.
    pub fn is_full(self) -> bool {
        matches!(self, Fault::Full | Fault::ShortFull)
    }

    /// What the operation returns.
    pub fn error(self, op: &'static str, path: &Path, offset: Option<u64>, needed: u64) -> Error {
        if self.is_full() {
            return Error::Full { path: path.to_path_buf(), needed };
        }
        let kind = match self {
            Fault::ShortRead => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::Other,
        };
        Error::io(op, path, offset, io::Error::new(kind, format!("the disk failed ({self})")))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let found = Fault::ALL.into_iter().find(|fault| fault.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
            format!("no fault {text:?}: try {}", names.join(", "))
        })
    }
}

/// Which operations a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// What happens.
    pub fault: Fault,
    /// To which, 1 being the next, of the operations that it can strike.
    pub first: u64,
    /// To how many of them from there on.
    pub times: u64,
}

/// An operation that was struck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strike {
    /// How many operations had been recorded before.
    pub at: usize,
    /// What it was to do.
    pub class: Class,
    /// Its name, as errors have it.
    pub op: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// Counts operations and says which are struck.
#[derive(Debug, Default)]
pub struct Faults {
    counts: [u64; Class::ALL.len()],
    plan: Option<(Plan, u64)>,
    strikes: Vec<Strike>,
    /// Operations until the run counts as hanging.
    pub(crate) patience: Option<u64>,
}

impl Faults {
    /// How many operations of the classes there have been.
    pub fn count(&self, classes: &[Class]) -> u64 {
        classes.iter().map(|class| self.counts[*class as usize]).sum()
    }

    /// Replaces the plan; `None` lets the disk work again.
    pub fn plan(&mut self, plan: Option<Plan>) {
        self.plan = plan.map(|plan| (plan, self.count(plan.fault.classes())));
    }

    /// What has been struck.
    pub fn strikes(&self) -> &[Strike] {
        &self.strikes
    }

    /// Whether what a stale read needs has to be kept.
    pub(crate) fn planned(&self, fault: Fault) -> bool {
        self.plan.is_some_and(|(plan, _)| plan.fault == fault)
    }

    /// Counts an operation, and says what happens to it.
    pub(crate) fn meet(
        &mut self,
        class: Class,
        op: &'static str,
        path: &Path,
        at: usize,
    ) -> Option<Fault> {
        if let Some(patience) = self.patience {
            // Once is enough: what unwinds has to be able to close its files.
            self.patience = patience.checked_sub(1);
            assert!(patience > 0, "the store hangs: its last operation was to {op} {path:?}");
        }
        self.counts[class as usize] += 1;
        let (plan, before) = self.plan?;
        if !plan.fault.classes().contains(&class) {
            return None;
        }
        let number = self.count(plan.fault.classes()) - before;
        if number < plan.first || number - plan.first >= plan.times {
            return None;
        }
        self.strikes.push(Strike { at, class, op, path: path.to_path_buf() });
        Some(plan.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("fire".parse::<Fault>().unwrap_err().contains("eio"));
    }

    #[test]
    fn the_planned_operations_are_struck_and_no_others() {
        let mut faults = Faults::default();
        let meet = |faults: &mut Faults, class| faults.meet(class, "do", Path::new("/f"), 0);
        assert_eq!(meet(&mut faults, Class::Read), None);
        faults.plan(Some(Plan { fault: Fault::ShortRead, first: 2, times: 2 }));
        let classes =
            [Class::Read, Class::Sync, Class::Read, Class::Write, Class::Read, Class::Read];
        let met = classes.map(|class| meet(&mut faults, class).is_some());
        assert_eq!(met, [false, false, true, false, true, false]);
        assert_eq!((faults.count(&[Class::Read]), faults.strikes().len()), (5, 2));
        faults.plan(None);
        assert_eq!(meet(&mut faults, Class::Read), None);
    }
}
