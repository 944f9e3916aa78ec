//! The history of a store: the operations of threads, with their times.
//!
//! Invariants:
//! 1. Times are drawn from one counter of the process. All are different, and an operation that
//!    ended before another began has the smaller time.
//! 2. Each put and each merge operand has its own [`Id`], so that a value identifies its writer.
//! 3. A history is written as text, one operation per line, and reads back as the same history.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The moments of a history.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// The next moment.
    pub fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Who wrote something: the thread, and how many things it had written before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The thread.
    pub thread: u32,
    /// Which of its writes.
    pub count: u32,
}

/// What a key was seen to hold: the last put and the operands merged into it since; nothing if the
/// key was not there.
pub type Seen = Vec<Id>;

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The key holds this alone.
    Put(Id),
    /// It is gone.
    Delete,
    /// It holds this as well.
    Merge(Id),
}

/// A change of a key of a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The keyspace: how many were created before it.
    pub space: u32,
    /// The key's number; keys are ordered as their numbers are.
    pub key: u32,
    /// What happens to it.
    pub change: Change,
}

/// Keys and what they held.
pub type Found = Vec<(u32, Seen)>;

/// What a key of a keyspace held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saw {
    /// The keyspace.
    pub space: u32,
    /// The key's number.
    pub key: u32,
    /// What it held.
    pub seen: Seen,
}

/// A pass over the keys of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The view that was read; `None` if the iterator is its own.
    pub view: Option<u32>,
    /// The keyspace.
    pub space: u32,
    /// The first key's number.
    pub lower: u32,
    /// The number after the last key's.
    pub upper: u32,
    /// What came from the front, in this order.
    pub front: Found,
    /// What came from the back, in this order.
    pub back: Found,
    /// Whether the iterator said that there is no more.
    pub exhausted: bool,
    /// When the last item had come; the iterator itself was made when the operation ended.
    pub done: u64,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Writes that happen as one; not `accepted` if the store refused them.
    Commit {
        /// The writes.
        writes: Vec<Write>,
        /// Whether they were accepted.
        accepted: bool,
    },
    /// Writes that happened as one because keys held this, and while they did.
    Exchange {
        /// What they held.
        saw: Vec<Saw>,
        /// The writes.
        writes: Vec<Write>,
    },
    /// A snapshot was taken, or a copy of the store made.
    View {
        /// Its number.
        view: u32,
    },
    /// Keys were read as of one moment.
    Read {
        /// The view that was read; `None` for the present.
        view: Option<u32>,
        /// The keyspace.
        space: u32,
        /// What they held; `None` if the keyspace was said to be closed.
        found: Option<Found>,
    },
    /// An iterator.
    Scan(Scan),
    /// A keyspace was created.
    Create {
        /// It.
        space: u32,
        /// Its name.
        name: String,
    },
    /// A keyspace was dropped.
    Drop {
        /// It.
        space: u32,
    },
    /// Something that tells the reader what else went on.
    Note(String),
    /// Something that must not happen by itself, whatever else does.
    Odd(String),
}

/// What one thread did in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The thread.
    pub thread: u32,
    /// The moment before it began.
    pub begun: u64,
    /// The moment after it ended.
    pub ended: u64,
    /// What it was.
    pub action: Action,
}

/// All that was done to a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// In any order.
    pub operations: Vec<Operation>,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.thread, self.count)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Id, String> {
        let (thread, count) = split(text, '.')?;
        Ok(Id { thread: number(thread)?, count: number(count)? })
    }
}

/// What a key held, as text.
pub(super) fn seen_text(seen: &[Id]) -> String {
    if seen.is_empty() {
        return "-".to_string();
    }
    let ids: Vec<String> = seen.iter().map(Id::to_string).collect();
    ids.join("+")
}

fn seen_from(text: &str) -> Result<Seen, String> {
    if text == "-" { Ok(Seen::new()) } else { text.split('+').map(Id::from_str).collect() }
}

fn found_text(found: &Found) -> String {
    found.iter().fold(String::new(), |mut text, (key, seen)| {
        let _ = write!(text, " {key}={}", seen_text(seen));
        text
    })
}

fn found_from<'a>(words: impl Iterator<Item = &'a str>) -> Result<Found, String> {
    words.map(|word| split(word, '=').and_then(|(k, v)| Ok((number(k)?, seen_from(v)?)))).collect()
}

fn view_text(view: Option<u32>) -> String {
    view.map_or_else(|| "now".to_string(), |view| format!("view:{view}"))
}

fn view_from(text: &str) -> Result<Option<u32>, String> {
    match text.strip_prefix("view:") {
        Some(view) => number(view).map(Some),
        None if text == "now" => Ok(None),
        None => Err(format!("{text:?} is neither now nor a view")),
    }
}

fn split(text: &str, at: char) -> Result<(&str, &str), String> {
    text.split_once(at).ok_or_else(|| format!("{text:?} has no {at:?}"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}=", self.space, self.key)?;
        match self.change {
            Change::Put(id) => write!(f, "put:{id}"),
            Change::Delete => f.write_str("delete"),
            Change::Merge(id) => write!(f, "merge:{id}"),
        }
    }
}

impl FromStr for Write {
    type Err = String;

    fn from_str(text: &str) -> Result<Write, String> {
        let (place, change) = split(text, '=')?;
        let (space, key) = split(place, '/')?;
        let change = match change.split_once(':') {
            Some(("put", id)) => Change::Put(id.parse()?),
            Some(("merge", id)) => Change::Merge(id.parse()?),
            None if change == "delete" => Change::Delete,
            _ => return Err(format!("{change:?} is no change")),
        };
        Ok(Write { space: number(space)?, key: number(key)?, change })
    }
}

impl fmt::Display for Saw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}={}", self.space, self.key, seen_text(&self.seen))
    }
}

impl FromStr for Saw {
    type Err = String;

    fn from_str(text: &str) -> Result<Saw, String> {
        let (place, seen) = split(text, '=')?;
        let (space, key) = split(place, '/')?;
        Ok(Saw { space: number(space)?, key: number(key)?, seen: seen_from(seen)? })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.thread, self.begun, self.ended)?;
        match &self.action {
            Action::Commit { writes, accepted } => {
                f.write_str(if *accepted { "commit" } else { "refused" })?;
                writes.iter().try_for_each(|write| write!(f, " {write}"))
            }
            Action::Exchange { saw, writes } => {
                f.write_str("exchange")?;
                saw.iter().try_for_each(|saw| write!(f, " {saw}"))?;
                f.write_str(" |")?;
                writes.iter().try_for_each(|write| write!(f, " {write}"))
            }
            Action::View { view } => write!(f, "view {view}"),
            Action::Read { view, space, found } => {
                let (verb, view) = (found.as_ref().map_or("closed", |_| "read"), view_text(*view));
                write!(f, "{verb} {view} {space}")?;
                f.write_str(&found.as_ref().map_or_else(String::new, found_text))
            }
            Action::Scan(scan) => {
                let (view, end) =
                    (view_text(scan.view), if scan.exhausted { "all" } else { "some" });
                write!(f, "scan {view} {} {} {} ", scan.space, scan.lower, scan.upper)?;
                write!(f, "{end} {}{} |", scan.done, found_text(&scan.front))?;
                f.write_str(&found_text(&scan.back))
            }
            Action::Create { space, name } => write!(f, "create {space} {name}"),
            Action::Drop { space } => write!(f, "drop {space}"),
            Action::Note(what) => write!(f, "note {what}"),
            Action::Odd(what) => write!(f, "odd {}", what.replace('\n', "; ")),
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(line: &str) -> Result<Operation, String> {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let mut next = || words.next().ok_or_else(|| format!("{line:?} ends too early"));
        let (thread, begun) = (number(next()?)?, number(next()?)?);
        let ended = number(next()?)?;
        let action = match next()? {
            verb @ ("commit" | "refused") => Action::Commit {
                writes: words.map(Write::from_str).collect::<Result<_, _>>()?,
                accepted: verb == "commit",
            },
            "exchange" => {
                let saw = words.by_ref().take_while(|word| *word != "|").map(Saw::from_str);
                let saw = saw.collect::<Result<_, _>>()?;
                let writes = words.map(Write::from_str).collect::<Result<_, _>>()?;
                Action::Exchange { saw, writes }
            }
            "view" => Action::View { view: number(next()?)? },
            verb @ ("read" | "closed") => {
                let (view, space) = (view_from(next()?)?, number(next()?)?);
                let found = (verb == "read").then(|| found_from(words)).transpose()?;
                Action::Read { view, space, found }
            }
            "scan" => {
                let (view, space) = (view_from(next()?)?, number(next()?)?);
                let (lower, upper) = (number(next()?)?, number(next()?)?);
                let (exhausted, done) = (next()? == "all", number(next()?)?);
                let front = found_from(words.by_ref().take_while(|word| *word != "|"))?;
                let back = found_from(words)?;
                Action::Scan(Scan { view, space, lower, upper, front, back, exhausted, done })
            }
            "create" => Action::Create { space: number(next()?)?, name: next()?.to_string() },
            "drop" => Action::Drop { space: number(next()?)? },
            "note" => Action::Note(words.collect::<Vec<_>>().join(" ")),
            "odd" => Action::Odd(words.collect::<Vec<_>>().join(" ")),
            other => return Err(format!("{other:?} is no action")),
        };
        Ok(Operation { thread, begun, ended, action })
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

impl FromStr for History {
    type Err = String;

    fn from_str(text: &str) -> Result<History, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(History { operations: lines.map(Operation::from_str).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let text = "0 0 1 create 0 plain\n\
                    1 2 5 commit 0/17=put:1.0 0/3=delete 0/4=merge:1.1\n\
                    2 3 4 refused 0/17=put:2.0\n\
                    2 4 5 exchange 0/17=1.0 1/4=- | 0/17=put:2.1 1/4=delete\n\
                    2 6 7 view 9\n\
                    2 8 9 read view:9 0 17=1.0 3=- 4=1.1+2.7\n\
                    2 10 11 closed now 0\n\
                    2 12 13 scan now 0 3 40 some 15 4=1.1 | 17=1.0\n\
                    2 16 17 scan view:9 0 0 40 all 18 |\n\
                    0 19 20 drop 0\n\
                    0 21 22 note flush plain\n\
                    0 23 24 odd something is closed\n";
        let history: History = text.parse().unwrap();
        assert_eq!(history.operations.len(), 12);
        assert_eq!(history.to_string(), text);
        let Action::Scan(scan) = &history.operations[7].action else { panic!("no scan") };
        assert_eq!((scan.front.len(), scan.back.len(), scan.done), (1, 1, 15));
        for bad in ["1 2", "1 2 3 jump", "1 2 3 commit 0/1", "1 2 3 read then 0", "x 2 3 view 1"] {
            assert!(bad.parse::<History>().is_err(), "{bad}");
        }
    }
}
