//! The workloads by name: YCSB's load and A to F, and a few more.

use spinney_bench::data::distribution::Distribution;
use spinney_bench::data::division::by_percent;

/// What one operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
    ReadAbsent,
    MultiGet,
    /// One pair of a scan of everything.
    Step,
}

impl Operation {
    pub(crate) const ALL: [Operation; 8] = [
        Operation::Read,
        Operation::Update,
        Operation::Insert,
        Operation::Scan,
        Operation::ReadModifyWrite,
        Operation::ReadAbsent,
        Operation::MultiGet,
        Operation::Step,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::Scan => "scan",
            Operation::ReadModifyWrite => "read-modify-write",
            Operation::ReadAbsent => "read-absent",
            Operation::MultiGet => "multiget",
            Operation::Step => "step",
        }
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Operation::Update | Operation::Insert | Operation::ReadModifyWrite)
    }
}

/// How long a scan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanLength {
    /// Uniform over 1..=100, as YCSB has it.
    UniformTo100,
    /// As `--scan-length` says.
    Chosen,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Each operation's share in percent; they sum to 100.
    pub(crate) mix: Vec<(Operation, u64)>,
    pub(crate) distribution: Distribution,
    /// Whether `--distribution` may replace it: YCSB D is about the latest records or it is not D.
    pub(crate) distribution_fixed: bool,
    pub(crate) scan_length: ScanLength,
}

/// The names, for messages.
pub(crate) const NAMES: &str =
    "load, a, b, c, d, e, f, get, getabsent, multiget, scan, fullscan, overwrite";

impl Workload {
    pub(crate) fn named(name: &str) -> Result<Workload, String> {
        use Distribution::{Latest, Sequential, Uniform, Zipfian};
        use Operation::{Insert, MultiGet, Read, ReadAbsent, ReadModifyWrite, Scan, Step, Update};
        let (name, mix, distribution) = match name.to_ascii_lowercase().as_str() {
            "load" => ("load", vec![(Insert, 100)], Sequential),
            "a" => ("a", vec![(Read, 50), (Update, 50)], Zipfian),
            "b" => ("b", vec![(Read, 95), (Update, 5)], Zipfian),
            "c" => ("c", vec![(Read, 100)], Zipfian),
            "d" => ("d", vec![(Read, 95), (Insert, 5)], Latest),
            "e" => ("e", vec![(Scan, 95), (Insert, 5)], Zipfian),
            "f" => ("f", vec![(Read, 50), (ReadModifyWrite, 50)], Zipfian),
            "get" => ("get", vec![(Read, 100)], Uniform),
            "getabsent" => ("getabsent", vec![(ReadAbsent, 100)], Uniform),
            "multiget" => ("multiget", vec![(MultiGet, 100)], Uniform),
            "scan" => ("scan", vec![(Scan, 100)], Uniform),
            "fullscan" => ("fullscan", vec![(Step, 100)], Sequential),
            "overwrite" => ("overwrite", vec![(Update, 100)], Uniform),
            other => return Err(format!("no workload {other:?}; there are {NAMES}")),
        };
        Ok(Workload {
            name,
            mix,
            distribution,
            distribution_fixed: matches!(name, "load" | "d" | "fullscan"),
            scan_length: if name == "e" { ScanLength::UniformTo100 } else { ScanLength::Chosen },
        })
    }

    pub(crate) fn is_load(&self) -> bool {
        self.name == "load"
    }

    pub(crate) fn is_full_scan(&self) -> bool {
        self.name == "fullscan"
    }

    pub(crate) fn writes(&self) -> bool {
        self.mix.iter().any(|(operation, _)| operation.writes())
    }

    /// The operation for a roll in `0..100`.
    pub(crate) fn operation(&self, roll: u64) -> Operation {
        by_percent(&self.mix, roll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_workload_is_there_and_whole() {
        for name in NAMES.split(", ") {
            let workload = Workload::named(name).unwrap();
            assert_eq!(workload.name, name);
            assert_eq!(workload.mix.iter().map(|(_, percent)| percent).sum::<u64>(), 100, "{name}");
        }
        assert_eq!(Workload::named("A").unwrap().name, "a");
        assert!(Workload::named("g").is_err());
    }

    #[test]
    fn rolls_follow_the_mix() {
        let b = Workload::named("b").unwrap();
        let updates = (0..100).filter(|&roll| b.operation(roll) == Operation::Update).count();
        assert_eq!(updates, 5);
        assert!(b.writes() && !Workload::named("c").unwrap().writes());
    }
}
