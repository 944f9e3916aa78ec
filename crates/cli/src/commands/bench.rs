//! `spinney bench`: what each kind of tree is good at, on the machine that it is to run on.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use spinney::{Database, Keyspace, KeyspaceOptions, TreeKind};

use crate::failure::{Failure, Outcome};
use crate::store::StoreOptions;
use spinney_quantity::{bytes, grouped, parse_count};

/// `--kind` for every kind.
const ALL: &str = "all";
/// A store may use a quarter of its data as memory, or this.
const MEMORY_MIN: u64 = 8 << 20;
const KEY_BYTES: usize = 16;
const LARGE_VALUE_BYTES: usize = 16 << 10;
/// The clock is looked at after so many operations.
const OPERATIONS_AT_ONCE: u64 = 8;

/// Measure each kind of tree on this machine
///
/// Each kind has a store of its own below DIRECTORY, which is removed again. A number is how many operations one thread
/// does in a second. Inserts and overwrites count with the background work that they cause. Memory is a quarter of the data,
/// or --memory if that is less, so most gets read from the disk, or from the system's cache of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney bench my.bench                       every kind
  spinney bench my.bench --kind stb --json     one of them, for a program
  spinney bench my.bench --records 10M --seconds 10
  spinney bench my.bench --value-bytes 1000")]
pub(crate) struct BenchOptions {
    /// A directory for the stores; it must not exist, or be empty
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// The kind of tree
    #[arg(long, default_value = ALL, value_parser = kinds_and_all())]
    kind: String,
    /// How many pairs a store has
    #[arg(long, default_value = "1M", value_name = "NUMBER", value_parser = parse_count)]
    records: u64,
    /// The size of a value
    #[arg(long, default_value_t = 100, value_name = "BYTES")]
    value_bytes: usize,
    /// How long a workload is measured; all records are inserted however long that takes
    #[arg(long, default_value_t = 1.5, value_name = "NUMBER")]
    seconds: f64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn kinds_and_all() -> PossibleValuesParser {
    PossibleValuesParser::new(TreeKind::ALL.iter().map(|kind| kind.name()).chain([ALL]))
}

/// Measures a workload: operations a second.
type Measure = fn(&mut Bench) -> Outcome<f64>;

/// In this order: what follows finds the store as it is then.
const WORKLOADS: [(&str, Measure); 12] = [
    ("insert, random order", Bench::insert),
    ("get", Bench::get),
    ("get of an absent key", Bench::get_absent),
    ("get, one key in a hundred", Bench::get_hot),
    ("scan of 10 pairs", |bench| bench.scan(10)),
    ("scan of 1,000 pairs", |bench| bench.scan(1000)),
    ("overwrite", |bench| bench.overwrite(1)),
    ("overwrite, few keys often", |bench| bench.overwrite(4)),
    ("insert if absent, half are not", Bench::insert_if_absent),
    ("delete", Bench::delete),
    ("insert, key order", Bench::insert_in_order),
    ("insert, values of 16 KiB", Bench::insert_large),
];

pub(super) fn run(store: &StoreOptions, options: &BenchOptions) -> Outcome {
    if !(options.seconds > 0.0 && options.seconds < 1e6) || options.records == 0 {
        return Err(Failure::usage("--seconds and --records must be more than 0"));
    }
    if store.persistent_memory.is_some() {
        let what = "bench has its own stores, without --persistent-memory; leave that out";
        return Err(Failure::usage(what));
    }
    let kinds = match TreeKind::from_name(&options.kind) {
        Some(kind) => vec![kind],
        None => TreeKind::ALL.to_vec(),
    };
    let data_bytes = options.records.saturating_mul((KEY_BYTES + options.value_bytes) as u64);
    let memory_bytes = store.memory.min((data_bytes / 4).max(MEMORY_MIN));
    let made = Made::new(&options.directory)?;
    let bar = ProgressBar::new((kinds.len() * WORKLOADS.len()) as u64);
    let style = ProgressStyle::with_template("{bar:32.green} {pos} of {len}  {msg}");
    bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
    let mut rates: Vec<Vec<f64>> = Vec::new();
    for kind in &kinds {
        let path = options.directory.join(kind.name());
        let mut bench = Bench::open(&path, *kind, memory_bytes, options)?;
        let mut of_kind = Vec::new();
        for (name, measure) in WORKLOADS {
            bar.set_message(format!("{kind}: {name}"));
            of_kind.push(measure(&mut bench)?);
            bar.inc(1);
        }
        rates.push(of_kind);
        bench.close()?;
        // The next one has the disk as this one had it.
        fs::remove_dir_all(&path)?;
    }
    bar.finish_and_clear();
    drop(made);
    let mut out = super::output();
    if options.json {
        writeln!(out, "{:#}", as_json(&kinds, &rates, options, memory_bytes))?;
        return Ok(());
    }
    let (records, value_bytes) = (grouped(options.records), options.value_bytes);
    let memory = bytes(memory_bytes);
    writeln!(
        out,
        "operations a second, one thread; {records} pairs of {KEY_BYTES} and {value_bytes} bytes, {memory} of memory\n"
    )?;
    write!(out, "{}", table(&kinds, &rates))?;
    out.flush()?;
    Ok(())
}

/// A row for each workload, a column for each kind. The best of a row has a star, if there are others.
fn table(kinds: &[TreeKind], rates: &[Vec<f64>]) -> String {
    let width = WORKLOADS.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut text = format!("{:width$}", "");
    kinds.iter().for_each(|kind| text += &format!("  {:>12} ", kind.name()));
    text = format!("{}\n", text.trim_end());
    for (at, (name, _)) in WORKLOADS.iter().enumerate() {
        let row: Vec<f64> = rates.iter().map(|of_kind| of_kind[at]).collect();
        let best = row.iter().copied().fold(0.0, f64::max);
        text += &format!("{name:width$}");
        let mut cells = String::new();
        for rate in &row {
            let star = if *rate == best && row.len() > 1 { '*' } else { ' ' };
            cells += &format!("  {:>12}{star}", grouped(rate.round() as u64));
        }
        text += &format!("{}\n", cells.trim_end());
    }
    text
}

fn as_json(kinds: &[TreeKind], rates: &[Vec<f64>], options: &BenchOptions, memory: u64) -> Value {
    let row = |(at, (name, _)): (usize, &(&str, Measure))| {
        let cell =
            |(kind, of_kind): (&TreeKind, &Vec<f64>)| (kind.name().to_string(), of_kind[at].into());
        let cells: Map<String, Value> = kinds.iter().zip(rates).map(cell).collect();
        json!({ "workload": name, "operations_per_second": cells })
    };
    let rows: Vec<Value> = WORKLOADS.iter().enumerate().map(row).collect();
    json!({
        "records": options.records,
        "key_bytes": KEY_BYTES,
        "value_bytes": options.value_bytes,
        "memory_bytes": memory,
        "rows": rows,
    })
}

/// The directory of the stores. What was made in it is removed, whatever happens.
struct Made<'a> {
    directory: &'a Path,
    existed: bool,
}

impl Made<'_> {
    fn new(directory: &Path) -> Outcome<Made<'_>> {
        let existed = directory.exists();
        if existed && fs::read_dir(directory)?.next().is_some() {
            return Err(Failure::other(format!(
                "{} is not empty; name a directory that does not exist",
                directory.display()
            )));
        }
        fs::create_dir_all(directory)?;
        Ok(Made { directory, existed })
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        for kind in TreeKind::ALL {
            let _ = fs::remove_dir_all(self.directory.join(kind.name()));
        }
        if !self.existed {
            let _ = fs::remove_dir(self.directory);
        }
    }
}

/// The key of a number; numbers that follow one another lie far apart.
fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A store of one kind that is measured.
struct Bench {
    db: Database,
    items: Keyspace,
    records: u64,
    /// The number of the next new key.
    next: u64,
    value: Vec<u8>,
    seconds: Duration,
    random: u64,
}

impl Bench {
    fn open(path: &Path, kind: TreeKind, memory: u64, options: &BenchOptions) -> Outcome<Bench> {
        let db = Database::builder(path).memory_budget(memory).open()?;
        let items = db.keyspace("items", KeyspaceOptions::new(kind))?;
        Ok(Bench {
            db,
            items,
            records: options.records,
            next: 0,
            value: vec![b'v'; options.value_bytes],
            seconds: Duration::from_secs_f64(options.seconds),
            random: 1,
        })
    }

    fn close(self) -> Outcome {
        drop(self.items);
        Ok(self.db.close()?)
    }

    /// A number below one.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The number of a record. The greater the power, the more often it is a small one.
    fn record(&mut self, power: i32) -> u64 {
        let drawn = self.draw().powi(power);
        ((drawn * self.records as f64) as u64).min(self.records - 1)
    }

    /// Repeats an operation until the time is over, and lets the work end that it has caused.
    fn repeat(&mut self, mut operation: impl FnMut(&mut Bench) -> Outcome) -> Outcome<f64> {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < self.seconds {
            for _ in 0..OPERATIONS_AT_ONCE {
                operation(self)?;
            }
            count += OPERATIONS_AT_ONCE;
        }
        self.db.wait_idle()?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    fn insert(&mut self) -> Outcome<f64> {
        let start = Instant::now();
        for number in 0..self.records {
            self.items.put(key_of(number), &self.value)?;
        }
        self.next = self.records;
        self.db.wait_idle()?;
        Ok(self.records as f64 / start.elapsed().as_secs_f64())
    }

    fn get_one(&self, number: u64) -> Outcome {
        match self.items.get(key_of(number))? {
            Some(value) if value.len() == self.value.len() => Ok(()),
            found => {
                Err(wrong(&format!("record {number} was read as {:?}", found.map(|it| it.len()))))
            }
        }
    }

    fn get(&mut self) -> Outcome<f64> {
        self.repeat(|bench| {
            let number = bench.record(1);
            bench.get_one(number)
        })
    }

    fn get_absent(&mut self) -> Outcome<f64> {
        self.repeat(|bench| {
            let number = bench.record(1) | 1 << 63;
            match bench.items.get(key_of(number))? {
                None => Ok(()),
                Some(_) => Err(wrong("a key was found that is not there")),
            }
        })
    }

    fn get_hot(&mut self) -> Outcome<f64> {
        self.repeat(|bench| {
            let number = bench.record(1) / 100;
            bench.get_one(number)
        })
    }

    fn scan(&mut self, pairs: usize) -> Outcome<f64> {
        self.repeat(|bench| {
            let first = key_of(bench.record(1));
            let mut before = None;
            for pair in bench.items.range(first..).take(pairs) {
                let (key, _) = pair?;
                let is_right = match &before {
                    None => *key == first[..],
                    Some(before) => *before < key,
                };
                if !is_right {
                    return Err(wrong("a scan does not show its pairs in order"));
                }
                before = Some(key);
            }
            Ok(())
        })
    }

    fn overwrite(&mut self, power: i32) -> Outcome<f64> {
        self.repeat(|bench| {
            let number = bench.record(power);
            Ok(bench.items.put(key_of(number), &bench.value)?)
        })
    }

    fn insert_if_absent(&mut self) -> Outcome<f64> {
        self.repeat(|bench| {
            let is_new = bench.draw() < 0.5;
            let number = if is_new { bench.next } else { bench.record(1) };
            bench.next += u64::from(is_new);
            match bench.items.insert_if_absent(key_of(number), &bench.value)? == is_new {
                true => Ok(()),
                false => Err(wrong("an insert did not see which keys are there")),
            }
        })
    }

    fn delete(&mut self) -> Outcome<f64> {
        self.repeat(|bench| {
            let number = bench.record(1);
            Ok(bench.items.delete(key_of(number))?)
        })
    }

    /// Inserts into a keyspace of its own.
    fn insert_apart(&mut self, name: &str, value: &[u8]) -> Outcome<f64> {
        let options = KeyspaceOptions::new(self.items.options().kind());
        let (apart, mut number) = (self.db.keyspace(name, options)?, 0u64);
        self.repeat(|_| {
            number += 1;
            Ok(apart.put(number.to_be_bytes(), value)?)
        })
    }

    fn insert_in_order(&mut self) -> Outcome<f64> {
        let value = self.value.clone();
        self.insert_apart("in order", &value)
    }

    fn insert_large(&mut self) -> Outcome<f64> {
        self.insert_apart("large", &vec![b'v'; LARGE_VALUE_BYTES])
    }
}

fn wrong(what: &str) -> Failure {
    Failure::other(format!("{what}: this is a bug in Spinney, please report it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_a_row_has_a_star() {
        let rates = vec![vec![1000.4; WORKLOADS.len()], vec![2000.0; WORKLOADS.len()]];
        let text = table(&[TreeKind::Stb, TreeKind::Flsm], &rates);
        let mut lines = text.lines();
        assert_eq!(
            lines.next().map(|it| it.split_whitespace().collect::<Vec<_>>()),
            Some(vec!["stb", "flsm"])
        );
        let row: Vec<&str> =
            lines.next().unwrap().split("  ").filter(|it| !it.is_empty()).collect();
        assert_eq!(row[0], "insert, random order");
        assert_eq!((row[row.len() - 2].trim(), row[row.len() - 1].trim()), ("1,000", "2,000*"));
        assert!(!table(&[TreeKind::Stb], &rates[..1]).contains('*'));
    }
}
