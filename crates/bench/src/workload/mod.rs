//! Workloads by name: YCSB, those of `db_bench` and of the SplinterDB paper, and a few more.
//!
//! Invariants:
//! 1. A name says all about a workload that is not an option of the run. `NAME:DISTRIBUTION` sets which records
//!    its operations are about, `NAME@THREADS` its threads.
//! 2. Each engine is given the same operations with the same keys in the same order, thread by thread, as
//!    far as the time allowed reaches.

mod aged;
pub mod measured;
pub mod overhead;
pub mod store;
mod worker;

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

use crate::data::distribution::Distribution;
use crate::data::division::by_percent;
use crate::engine::{Durability, Need};

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Reads a key that is there.
    Read,
    /// Reads a key that is not.
    ReadAbsent,
    /// Writes a key that is there.
    Update,
    /// Writes a new key.
    Insert,
    /// Writes a key if it is not there, as every other one is.
    InsertIfAbsent,
    /// Reads pairs in key order from a key that is there.
    Scan,
    /// Reads a key and writes it.
    ReadModifyWrite,
    /// Reads many keys at once.
    MultiGet,
    /// Deletes a key that is there.
    Delete,
    /// Deletes a range of keys that are there.
    DeleteRange,
    /// A fixed number of pairs of a full scan.
    Step,
}

impl Operation {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::ReadAbsent => "read_absent",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::InsertIfAbsent => "insert_if_absent",
            Operation::Scan => "scan",
            Operation::ReadModifyWrite => "read_modify_write",
            Operation::MultiGet => "multiget",
            Operation::Delete => "delete",
            Operation::DeleteRange => "delete_range",
            Operation::Step => "step",
        }
    }

    fn writes(self) -> bool {
        use Operation::{Delete, DeleteRange, Insert, InsertIfAbsent, ReadModifyWrite, Update};
        matches!(self, Update | Insert | InsertIfAbsent | ReadModifyWrite | Delete | DeleteRange)
    }
}

/// How long a scan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanLength {
    /// Uniform over 1..=100, as YCSB has it.
    UniformTo100,
    /// This number of pairs.
    Pairs(u64),
}

/// The amount of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// As the options say, and no longer than they say.
    Chosen,
    /// All records once.
    Records,
    /// This many times the number of records, however long it takes.
    TimesRecords(u64),
    /// As long as the options say, however many operations that is.
    Seconds,
    /// All of it, however long it takes.
    All,
}

/// The shape of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Fills an empty store; a share of the keys ascends.
    Load {
        /// The share of keys in ascending order.
        sequential_percent: u8,
    },
    /// Operations drawn from the mix.
    Mixed,
    /// Every pair in key order, by each thread.
    FullScan,
    /// So many records apart, the first pair from there on, by one iterator for each thread.
    Skip {
        /// From one to the next.
        records: u64,
    },
    /// Inserts, death of the process, and a new one that opens the store.
    Reopen {
        /// Files that can be made from others are gone: a power loss makes them useless.
        rebuilds: bool,
    },
    /// Deletes and overwrites, each record at most once; then every key is read.
    Aged,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    name: String,
    /// The threads its name asks for.
    pub threads: Option<usize>,
    /// Its shape.
    pub shape: Shape,
    /// Each operation's share in percent; they sum to 100.
    pub mix: Vec<(Operation, u64)>,
    /// Which records operations are about.
    pub distribution: Distribution,
    /// The length of its scans.
    pub scan_length: ScanLength,
    /// Keys of a batched read, or of a range that is deleted.
    pub batch: u64,
    /// When its writes are done.
    pub durability: Durability,
    /// The amount of work.
    pub amount: Amount,
    /// One more thread writes as fast as it can meanwhile; its writes are not counted as operations.
    pub writer: bool,
    /// Every record is read once before anything is measured.
    pub warm: bool,
}

/// The names with descriptions, for `--help`.
pub const HELP: &str = "\
Workloads (NAME@THREADS sets the threads of one, NAME:DISTRIBUTION the records that it reads or
updates: zipfian, uniform, latest or sequential, as in get:zipfian@8):
  load (fillrandom)       all records once, in random order, into an empty store
  reload                  the same again, into a new store
  fillseq; local0..100    the same in key order; with so many percent of the keys in order
  a b c d e f             YCSB's (zipfian 0.99 scrambled, latest for d, scans of 1 to 100 in e)
  get (readrandom)        reads, uniform           getabsent (readmissing)  reads of absent keys
  scanN (scan50, ...)     N pairs from a key       seekrandom               scan1
  fullscan (readseq)      every pair, each thread  multiget (multireadrandom), multigetN
  skipN (skip100, ...)    every Nth record by one iterator that seeks it; in key order after local100
  overwrite               updates, uniform         deleterandom             deletes, random order
  deleterangeN            deletes of N records by their range, up to the middle; after local100
  trim                    one delete of the first nine tenths of the records; after local100
  insertifabsent          inserts of keys of which half are there (engines without that read, then write)
  readwhilewriting        reads while one more thread updates without pause
  space                   overwrites 3 times the data and watches the disk
  aged                    deletes 40% of the records, overwrites 40%, in random order; reads every key
  sustained               inserts for --seconds; watch latency and timeline
  sync                    inserts, each surviving power loss (sync@1,sync@4,sync@16)
  cached                  reads every record once, then measures reads
  reopen                  inserts, kill -9, and the time to open the store again
  rebuild                 the same without the index of slm, as after a power loss";

impl Workload {
    /// Its name, threads included if they were given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it begins with an empty store.
    pub fn is_load(&self) -> bool {
        matches!(self.shape, Shape::Load { .. })
    }

    /// Whether it changes the store.
    pub fn writes(&self) -> bool {
        self.writer || self.mix.iter().any(|(operation, _)| operation.writes())
    }

    /// The property that it needs and not every engine has.
    pub fn needs(&self) -> Option<Need> {
        match (self.shape, self.durability) {
            (Shape::Reopen { .. }, _) => Some(Need::Recovery),
            (_, Durability::Sync) => Some(Need::Sync),
            _ => None,
        }
    }

    /// The operation for a roll in `0..100`.
    #[inline]
    pub(crate) fn operation(&self, roll: u64) -> Operation {
        by_percent(&self.mix, roll)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        use Distribution::{Latest, Sequential, Uniform, Zipfian};
        use Operation::{
            Delete, DeleteRange, Insert, InsertIfAbsent, MultiGet, Read, ReadAbsent,
            ReadModifyWrite, Scan, Step, Update,
        };
        let text = text.trim().to_ascii_lowercase();
        let (base, threads) = match text.split_once('@') {
            Some((base, threads)) => match threads.parse::<usize>() {
                Ok(threads @ 1..=1024) => (base, Some(threads)),
                _ => return Err(format!("{text:?}: {threads:?} is not a number of threads")),
            },
            None => (text.as_str(), None),
        };
        let (base, drawn) = match base.split_once(':') {
            Some((base, drawn)) => (base, Some(Distribution::from_str(drawn, true)?)),
            None => (base, None),
        };
        let base = match base {
            "fillrandom" => "load",
            "fillseq" => "local100",
            "readrandom" => "get",
            "readmissing" => "getabsent",
            "multireadrandom" => "multiget",
            "seekrandom" => "scan1",
            "readseq" => "fullscan",
            other => other,
        };
        let number = |prefix: &str| base.strip_prefix(prefix)?.parse::<u64>().ok();
        let (mut shape, mut amount) = (Shape::Mixed, Amount::Chosen);
        let (mut scan_length, mut batch) = (ScanLength::UniformTo100, 64);
        let (mix, distribution) = match base {
            "load" | "reload" => {
                (shape, amount) = (Shape::Load { sequential_percent: 0 }, Amount::Records);
                (vec![(Insert, 100)], Sequential)
            }
            "a" => (vec![(Read, 50), (Update, 50)], Zipfian),
            "b" => (vec![(Read, 95), (Update, 5)], Zipfian),
            "c" => (vec![(Read, 100)], Zipfian),
            "d" => (vec![(Read, 95), (Insert, 5)], Latest),
            "e" => (vec![(Scan, 95), (Insert, 5)], Zipfian),
            "f" => (vec![(Read, 50), (ReadModifyWrite, 50)], Zipfian),
            "get" | "cached" | "readwhilewriting" => (vec![(Read, 100)], Uniform),
            "getabsent" => (vec![(ReadAbsent, 100)], Uniform),
            "multiget" => (vec![(MultiGet, 100)], Uniform),
            "overwrite" => (vec![(Update, 100)], Uniform),
            "deleterandom" => (vec![(Delete, 100)], Sequential),
            "insertifabsent" => (vec![(InsertIfAbsent, 100)], Uniform),
            "sync" => (vec![(Insert, 100)], Sequential),
            "space" => {
                amount = Amount::TimesRecords(3);
                (vec![(Update, 100)], Uniform)
            }
            "aged" => {
                (shape, amount) = (Shape::Aged, Amount::All);
                (vec![(Delete, 50), (Update, 50)], Sequential)
            }
            "sustained" => {
                amount = Amount::Seconds;
                (vec![(Insert, 100)], Sequential)
            }
            "fullscan" => {
                (shape, amount) = (Shape::FullScan, Amount::Records);
                (vec![(Step, 100)], Sequential)
            }
            "reopen" | "rebuild" => {
                shape = Shape::Reopen { rebuilds: base == "rebuild" };
                (vec![(Insert, 100)], Sequential)
            }
            "trim" => {
                (batch, amount) = (u64::MAX, Amount::All);
                (vec![(DeleteRange, 100)], Sequential)
            }
            _ if number("deleterange").is_some_and(|keys| keys > 0) => {
                (batch, amount) = (number("deleterange").unwrap_or(1), Amount::All);
                (vec![(DeleteRange, 100)], Sequential)
            }
            _ if number("skip").is_some_and(|records| records > 0) => {
                shape = Shape::Skip { records: number("skip").unwrap_or(1) };
                amount = Amount::Records;
                (vec![(Step, 100)], Sequential)
            }
            _ => match (number("scan"), number("multiget"), number("local")) {
                (Some(pairs @ 1..), _, _) => {
                    scan_length = ScanLength::Pairs(pairs);
                    (vec![(Scan, 100)], Uniform)
                }
                (_, Some(keys @ 1..=65_536), _) => {
                    batch = keys;
                    (vec![(MultiGet, 100)], Uniform)
                }
                (_, _, Some(percent @ 0..=100)) => {
                    shape = Shape::Load { sequential_percent: percent as u8 };
                    amount = Amount::Records;
                    (vec![(Insert, 100)], Sequential)
                }
                _ => return Err(format!("no workload {text:?}; --help lists them")),
            },
        };
        let mut name = base.to_string();
        if let Some(drawn) = drawn {
            // The others would not be what their names say.
            if !matches!(distribution, Zipfian | Uniform) {
                return Err(format!("{text:?}: {base} has a distribution of its own"));
            }
            name = format!("{name}:{}", drawn.name());
        }
        if let Some(threads) = threads {
            name = format!("{name}@{threads}");
        }
        Ok(Workload {
            name,
            threads,
            shape,
            mix,
            distribution: drawn.unwrap_or(distribution),
            scan_length,
            batch,
            durability: if base == "sync" { Durability::Sync } else { Durability::Buffered },
            amount,
            writer: base == "readwhilewriting",
            warm: base == "cached",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Workload {
        name.parse().unwrap()
    }

    #[test]
    fn every_name_is_known_and_every_mix_is_whole() {
        let names = "load reload fillrandom fillseq local30 a b c d e f get readrandom getabsent readmissing \
                     scan1 scan100000 seekrandom skip1 skip100 fullscan readseq multiget multiget8 multireadrandom \
                     overwrite deleterandom deleterange100 trim insertifabsent readwhilewriting space aged sustained sync cached reopen rebuild \
                     get:zipfian c:uniform@8 scan50:latest@2";
        for name in names.split_whitespace() {
            let workload = named(name);
            assert_eq!(workload.mix.iter().map(|(_, percent)| percent).sum::<u64>(), 100, "{name}");
            assert_eq!(named(workload.name()), workload, "{name}");
        }
        let wrong = "g scan scan0 skip0 skip scanx local101 get@0 get@x multiget0 get:often load:uniform d:uniform";
        for name in wrong.split_whitespace().chain([""]) {
            assert!(name.parse::<Workload>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_name_may_carry_threads() {
        let workload = named("Sync@16");
        assert_eq!((workload.name(), workload.threads), ("sync@16", Some(16)));
        assert_eq!(workload.durability, Durability::Sync);
        assert_eq!(named("scan50@2").scan_length, ScanLength::Pairs(50));
        let drawn = named("readrandom:zipfian@8");
        assert_eq!((drawn.name(), drawn.distribution), ("get:zipfian@8", Distribution::Zipfian));
        assert_eq!(named("fillseq").shape, Shape::Load { sequential_percent: 100 });
    }

    #[test]
    fn rolls_follow_the_mix() {
        let b = named("b");
        let updates = (0..100).filter(|&roll| b.operation(roll) == Operation::Update).count();
        assert_eq!(updates, 5);
        assert!(b.writes() && !named("c").writes() && named("readwhilewriting").writes());
    }
}
