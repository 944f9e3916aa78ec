//! `spinney bench`: YCSB and a few more workloads against a store of its own.
//!
//! Invariants:
//! 1. Keys and values follow from the seed, so any run can check what any other wrote, and no copy of
//!    the data is held in memory.
//! 2. A wrong or missing value makes the run fail, however fast it was.

pub(crate) mod report;
mod runner;
mod worker;
mod workload;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use clap::Args;

use crate::commands::StorePath;
use crate::failure::{Failure, Outcome};
use crate::store::{CreationOptions, DurabilityChoice, StoreOptions};
use runner::Bench;
use spinney_bench::data::distribution::Distribution;
use spinney_bench::data::keys::KeyMaker;
use spinney_bench::data::values::{ValueMaker, Verify};
use spinney_bench::quantity::{parse_bytes, parse_count};
use workload::{NAMES, Workload};

/// The keyspace that workloads use unless another is named.
pub(crate) const KEYSPACE: &str = "spinney-bench";

/// Measure a store with YCSB and other workloads
///
/// The records are in the keyspace `spinney-bench`, or where --keyspace says. A store that holds anything else is
/// refused unless --beside-data is given: its data would be measured too, and background work would touch it.
///
/// Keys are `user` and a number, values can be checked from their keys, and every value read is. A
/// store that was loaded in one run can be measured in another with the same --records, --key-bytes,
/// --value-bytes, --sequential-percent and --seed.
#[derive(Debug, Args)]
#[command(after_help = "\
Workloads:
  load       insert --records records, in random order
  a          50% read, 50% update, zipfian          b  95% read, 5% update, zipfian
  c          read, zipfian                          d  95% read of the latest, 5% insert
  e          95% scan of 1 to 100, 5% insert        f  50% read, 50% read-modify-write
  get        read, uniform                          getabsent  read keys that are not there
  multiget   reads of --batch keys at once          scan       --scan-length pairs
  fullscan   every pair (each thread)               overwrite  update, uniform

Examples:
  spinney bench my.bench --workload load,a,b,c,d,e,f --records 10M --operations 1M --threads 2
  spinney bench my.bench --workload c --records 10M --seconds 30 --memory 128MiB
  spinney bench my.bench --workload load --sequential-percent 50 --json results.json")]
pub(crate) struct BenchOptions {
    #[command(flatten)]
    store: StorePath,
    /// Workloads to run one after another
    #[arg(
        long,
        short,
        value_delimiter = ',',
        default_value = "load,a,b,c,d,e,f",
        value_name = "NAMES"
    )]
    workload: Vec<String>,
    /// Records that load inserts, and that the store is taken to hold if load is not run
    #[arg(long, default_value = "1M", value_parser = parse_count)]
    records: u64,
    /// Operations of each other workload, of all threads together; a batched get counts its keys
    #[arg(long, default_value = "1M", value_parser = parse_count)]
    operations: u64,
    /// Stop a workload after so many seconds
    #[arg(long, value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Bytes of a key
    #[arg(long, default_value = "24", value_parser = parse_bytes)]
    key_bytes: u64,
    /// Bytes of a value
    #[arg(long, default_value = "100", value_parser = parse_bytes)]
    value_bytes: u64,
    /// Percent of a value that does not compress
    #[arg(long, default_value_t = 100, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    value_entropy: u8,
    /// Threads that do operations
    #[arg(long, short, default_value_t = 1)]
    threads: usize,
    /// Which records operations are about (load, d and fullscan keep their own)
    #[arg(long)]
    distribution: Option<Distribution>,
    /// Percent of the keys that are inserted in ascending order
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    sequential_percent: u8,
    /// When a write counts as done
    #[arg(long, default_value = "buffered")]
    durability: DurabilityChoice,
    /// Pairs of a scan (workload scan)
    #[arg(long, default_value = "50", value_parser = parse_count)]
    scan_length: u64,
    /// Keys of a batched get (workload multiget)
    #[arg(long, default_value = "64", value_parser = parse_count)]
    batch: u64,
    /// Records of a commit (workload load)
    #[arg(long, default_value = "1", value_parser = parse_count)]
    load_batch: u64,
    /// How much of each value read is checked
    #[arg(long, default_value = "head")]
    verify: Verify,
    /// Time one in so many operations
    #[arg(long, default_value = "1", value_parser = parse_count)]
    latency_every: u64,
    /// Run in a store that holds other keyspaces too
    #[arg(long)]
    beside_data: bool,
    /// Do not wait for background work behind workloads that write
    #[arg(long)]
    no_settle: bool,
    /// Keys, values and choices follow from this number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the results as JSON; `-` is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    creation: CreationOptions,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(seconds),
        _ => Err(format!("{text:?} is not a number of seconds")),
    }
}

/// Runs the workloads.
pub(crate) fn run(store: &StoreOptions, options: &BenchOptions) -> Outcome {
    let workloads: Result<Vec<Workload>, String> =
        options.workload.iter().map(|name| Workload::named(name.trim())).collect();
    let workloads = workloads.map_err(Failure::usage)?;
    if workloads.is_empty() {
        return Err(Failure::usage(format!("no workload; there are {NAMES}")));
    }
    let size = |bytes: u64| {
        usize::try_from(bytes).map_err(|_| Failure::usage("keys and values must fit in memory"))
    };
    let keys = KeyMaker::new(
        size(options.key_bytes)?,
        u64::from(options.sequential_percent),
        options.seed,
    )
    .map_err(Failure::usage)?;
    if options.records > keys.records_max() {
        return Err(Failure::usage(format!(
            "keys of {} bytes are enough for {} records; raise --key-bytes",
            options.key_bytes,
            keys.records_max()
        )));
    }
    let database = store.open(&options.store.path, true)?;
    let name = store.keyspace_chosen.as_deref().unwrap_or(KEYSPACE);
    let others: Vec<String> =
        database.keyspaces().into_iter().filter(|other| other != name).collect();
    if !others.is_empty() && !options.beside_data {
        return Err(Failure::usage(format!(
            "{} holds other data (keyspaces {others:?}); name a store of its own, or say --beside-data",
            options.store.path.display()
        )));
    }
    let store = &StoreOptions { keyspace_chosen: Some(name.to_string()), ..store.clone() };
    let keyspace = store.existing_or_new(&database, &options.creation)?;
    let bench = Bench {
        options,
        database: &database,
        keyspace: &keyspace,
        keys,
        values: ValueMaker {
            value_bytes: size(options.value_bytes)?,
            entropy_percent: usize::from(options.value_entropy),
        },
        next_index: AtomicU64::new(options.records),
    };
    let table_shown = options.json.as_deref() != Some(Path::new("-"));
    let (mut results, mut bad) = (Vec::new(), 0);
    for workload in &workloads {
        let result = bench.run(workload)?;
        bad += result.measured.missing + result.measured.wrong;
        if table_shown {
            // Each line as soon as it is known: a run may take hours.
            let mut out = io::stdout().lock();
            if results.is_empty() {
                writeln!(out, "{}", report::table_head())?;
            }
            writeln!(out, "{}", report::table_lines(&result))?;
            out.flush()?;
        }
        results.push(result);
    }
    if table_shown {
        write!(io::stdout(), "{}", report::details(&results))?;
    }
    if let Some(path) = &options.json {
        let json = format!("{:#}\n", report::json(store, options, &results));
        if table_shown {
            fs::write(path, json)
                .map_err(|e| Failure::other(format!("cannot write {}: {e}", path.display())))?;
        } else {
            io::stdout().write_all(json.as_bytes())?;
        }
    }
    database.close()?;
    if bad > 0 {
        return Err(Failure::other(format!(
            "{bad} reads gave a wrong or no value; if the store was loaded in another run, use its \
             --records, --key-bytes, --value-bytes, --sequential-percent and --seed"
        )));
    }
    Ok(())
}
