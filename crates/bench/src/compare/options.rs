//! The options of `compare`, the presets, and the runs that follow from them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::data::values::Verify;
use crate::engine::{Compression, EngineName};
use crate::workload::store::Plan;
use crate::workload::{HELP, Workload};
use spinney_quantity::{parse_bytes, parse_count};

/// Run the same work on several engines, in turns, and compare them
///
/// Each engine runs in a process of its own under the same memory limit. Every value read is checked.
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{HELP}\n\n{EXAMPLES}"))]
pub struct CompareOptions {
    /// Engines, with `:CONFIGURATION` where there are several (`spinney-bench engines` lists them)
    #[arg(long, short, value_delimiter = ',', value_name = "NAMES")]
    pub engines: Vec<EngineName>,
    /// Workloads, one after another; `load` is added in front unless the first one is a load
    #[arg(long, short, value_delimiter = ',', value_name = "NAMES")]
    pub workloads: Vec<Workload>,
    /// Workloads and sizes of a well-known experiment; other options override it
    #[arg(long, value_name = "NAME")]
    pub preset: Option<Preset>,
    /// A small comparison of less than a minute; short for --preset quick
    #[arg(long, conflicts_with = "preset")]
    pub quick: bool,
    /// Records of a load [default: 8M]
    #[arg(long, value_parser = parse_count)]
    pub records: Option<u64>,
    /// Bytes of a key [default: 24]
    #[arg(long, value_parser = parse_bytes)]
    pub key_bytes: Option<u64>,
    /// Bytes of a value [default: 100]
    #[arg(long, value_parser = parse_bytes)]
    pub value_bytes: Option<u64>,
    /// Percent of a value that does not compress
    #[arg(long, default_value_t = 100, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    pub value_entropy: u8,
    /// How engines compress their data
    #[arg(long, default_value = "none", value_name = "METHOD")]
    pub compression: Compression,
    /// Memory an engine is told to use [default: 128MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Size of a memtable, for engines that have one (Spinney, RocksDB, LevelDB); RocksDB's first level is
    /// then ten of them, as LevelDB's is of 1 MiB [default: each engine's share of --memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memtable: Option<u64>,
    /// Memory an engine's process can use, page cache included; `none` for no limit [default: --memory
    /// × 1.1 + 32 MiB]
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Threads of a workload whose name does not set them (`get@16`)
    #[arg(long, short, default_value_t = 1, value_parser = parse_threads)]
    pub threads: usize,
    /// Operations of a workload over all threads [default: --records]
    #[arg(long, value_parser = parse_count)]
    pub operations: Option<u64>,
    /// The maximum duration of a workload in seconds [default: 60]
    #[arg(long, value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// The maximum duration of a load or a full scan in seconds; later workloads use the records loaded until
    /// then [default: 1800]
    #[arg(long, value_parser = parse_seconds)]
    pub load_seconds: Option<f64>,
    /// Writes per second of each thread, at most, outside loads: latencies of engines at the same rate. A thread that
    /// is behind catches up
    #[arg(long, value_name = "RATE", value_parser = parse_count)]
    pub write_rate: Option<u64>,
    /// Let each engine do all its work of a round before the next engine begins, and remove its store then.
    /// Needed where the disk is a file of a host, which keeps recently written data in memory: reads of an
    /// engine after which others have written are up to three times slower. paper-flsm does so
    #[arg(long)]
    pub apart: bool,
    /// The number of rounds [default: 3; with --quick 1]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u64>,
    /// How much of each value read is checked
    #[arg(long, default_value = "head")]
    pub verify: Verify,
    /// The seed of keys, values and choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where stores are made, in a directory that is removed afterwards
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub dir: PathBuf,
    /// The size of the file with which the device is measured; 0 skips the measurement [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub device_file: Option<u64>,
    /// Write the results as JSON; `-` is standard output, in place of the tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write figures (SVG) and a page with all of them (report.html) into this directory
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  spinney-bench compare --quick
  spinney-bench compare -e spinney:stb,rocksdb -w load,c,scan50 --records 8M --memory 128MiB \\
      --threads 2 --rounds 3 --json results.json --plot figures
  spinney-bench compare -e spinney:stb,rocksdb,rocksdb:universal,lmdb --preset paper-ycsb
  spinney-bench compare --preset paper-flsm --records 8M
  spinney-bench compare -e spinney:stb,rocksdb -w load,get@1,get@2,get@16,sync@1,sync@16";

/// `--preset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Less than a minute
    Quick,
    /// YCSB's load and A to F with 8 threads
    PaperYcsb,
    /// Loads of which 0 to 100 percent of the keys ascend
    PaperLocal,
    /// Scans of 1 to 100,000 pairs
    PaperScan,
    /// Latencies of inserts, reads and both together while the store is written without pause
    PaperLatency,
    /// Memory of 5, 10, 25, 50 and 100 percent of the data
    PaperMemory,
    /// An eighth, a quarter, a half of the records and all of them, with the same memory
    PaperSize,
    /// PebblesDB's setting: memtables of 1 MiB, 20 million pairs of 16 + 128 bytes; loads, reads, scans, YCSB
    PaperFlsm,
    /// CompassDB's setting: RocksDB and PebblesDB with a cache as small against the data as there; 4 million pairs of
    /// 20 + 1024 bytes; YCSB, random reads, and reads while the store is written, with 16 threads
    PaperTph,
    /// The same with values of 50 to 51,200 bytes, up to 2 GiB in all: loads and YCSB C
    PaperTphValues,
    /// SLM-DB's setting: its index in a file and in emulated persistent memory, beside LevelDB and RocksDB; 4 million pairs of
    /// 20 + 1024 bytes with half as much memory; loads, reads, scans, YCSB
    PaperSlm,
    /// The same with values of 1 to 64 KiB, up to 4 GiB in all: loads, reads and scans
    PaperSlmValues,
}

/// `paper-memory`, in percent of the data.
const MEMORY_PERCENTS: [u64; 5] = [5, 10, 25, 50, 100];
/// `paper-size`, as parts of the records.
const RECORD_PARTS: [u64; 4] = [8, 4, 2, 1];
/// `paper-tph-values` and `paper-slm-values`, in bytes.
const TPH_VALUE_BYTES: [u64; 6] = [50, 200, 1024, 4096, 16_384, 51_200];
const SLM_VALUE_BYTES: [u64; 4] = [1024, 4096, 16_384, 65_536];
/// The data of each of their runs; `--records` is the most.
const TPH_VALUES_DATA_BYTES: u64 = 2 << 30;
const SLM_VALUES_DATA_BYTES: u64 = 4 << 30;
/// SLM-DB's evaluation has as much memory for the data (section 6.1).
const SLM_MEMORY_PART: u64 = 2;

/// The settings of a preset.
struct Defaults {
    engines: &'static str,
    workloads: &'static str,
    records: u64,
    key_bytes: u64,
    value_bytes: u64,
    memory: u64,
    memtable: Option<u64>,
    operations: Option<u64>,
    seconds: f64,
    load_seconds: f64,
    apart: bool,
    rounds: u64,
    device_file: u64,
    device_seconds: f64,
}

impl Preset {
    fn defaults(preset: Option<Preset>) -> Defaults {
        let usual = Defaults {
            engines: "spinney:stb,rocksdb",
            workloads: "load,get,getabsent,scan50,fullscan,a,c",
            records: 8_000_000,
            key_bytes: 24,
            value_bytes: 100,
            memory: 128 << 20,
            memtable: None,
            operations: None,
            seconds: 60.0,
            load_seconds: 1800.0,
            apart: false,
            rounds: 3,
            device_file: 2 << 30,
            device_seconds: 2.0,
        };
        match preset {
            None => usual,
            Some(Preset::Quick) => Defaults {
                workloads: "load,get,getabsent,multiget,scan50,fullscan,a,c",
                // More than the limit leaves to the page cache.
                records: 1_000_000,
                memory: 32 << 20,
                operations: Some(100_000),
                seconds: 1.5,
                load_seconds: 8.0,
                rounds: 1,
                device_file: 128 << 20,
                device_seconds: 0.3,
                ..usual
            },
            // YCSB runs E on a store that has just been loaded, after the inserts of D.
            Some(Preset::PaperYcsb) => {
                Defaults { workloads: "load,a@8,b@8,c@8,f@8,d@8,reload,e@8", ..usual }
            }
            Some(Preset::PaperLocal) => Defaults {
                workloads: "local0,local20,local40,local60,local80,local90,local100",
                ..usual
            },
            Some(Preset::PaperScan) => Defaults {
                workloads: "load,scan1,scan10,scan50,scan100,scan1000,scan10000,scan100000",
                ..usual
            },
            Some(Preset::PaperLatency) => {
                Defaults { workloads: "load,sustained,overwrite,readwhilewriting,a@8", ..usual }
            }
            Some(Preset::PaperMemory) => {
                Defaults { workloads: "load,get,scan50,c@8", seconds: 30.0, ..usual }
            }
            Some(Preset::PaperSize) => Defaults {
                workloads: "load,get,getabsent,scan50",
                records: 32_000_000,
                seconds: 30.0,
                ..usual
            },
            // D inserts, and so does E, which has a store of its own.
            Some(Preset::PaperFlsm) => Defaults {
                engines: "spinney:flsm,spinney:stb,rocksdb",
                workloads: "load,get@2,scan50@2,getabsent@2,a@8,b@8,c@8,d@8,f@8,reload,e@8",
                records: 20_000_000,
                key_bytes: 16,
                value_bytes: 128,
                memtable: Some(1 << 20),
                apart: true,
                ..usual
            },
            Some(Preset::PaperTph) => Defaults {
                engines: "spinney:tph,rocksdb:smallcache,pebblesdb:smallcache",
                workloads: "load,a@16,b@16,c@16,f@16,d@16,get@16,readwhilewriting@16,reload,e@16",
                records: 4_000_000,
                key_bytes: 20,
                value_bytes: 1024,
                apart: true,
                ..usual
            },
            Some(Preset::PaperTphValues) => Defaults {
                engines: "spinney:tph,rocksdb:smallcache,pebblesdb:smallcache",
                workloads: "load,c@16",
                records: 12_000_000,
                key_bytes: 20,
                value_bytes: 1024,
                apart: true,
                seconds: 8.0,
                ..usual
            },
            Some(Preset::PaperSlm) => Defaults {
                engines: "spinney:slm,spinney:slm-pm500,leveldb,rocksdb",
                workloads: "load,get,scan5,scan10,scan50,scan100,fullscan,a,b,c,f,d,reload,e",
                records: 4_000_000,
                key_bytes: 20,
                value_bytes: 1024,
                memory: (4_000_000 * 1044) / SLM_MEMORY_PART,
                memtable: Some(64 << 20),
                apart: true,
                seconds: 10.0,
                ..usual
            },
            Some(Preset::PaperSlmValues) => Defaults {
                engines: "spinney:slm,spinney:slm-pm500,leveldb,rocksdb",
                workloads: "load,get,scan100,fullscan",
                records: 4_000_000,
                key_bytes: 20,
                value_bytes: 1024,
                memory: SLM_VALUES_DATA_BYTES / SLM_MEMORY_PART,
                memtable: Some(64 << 20),
                apart: true,
                seconds: 10.0,
                ..usual
            },
        }
    }
}

/// How much a run holds, and with which memory.
#[derive(Clone, Copy)]
struct Size {
    records: u64,
    value_bytes: u64,
    memory: u64,
}

/// A comparison with everything decided.
#[derive(Debug, Clone)]
pub struct Run {
    /// The engines, none twice.
    pub engines: Vec<EngineName>,
    /// The workloads, none twice, the first of them a load.
    pub workloads: Vec<Workload>,
    /// The plan of every engine, without its name and directory.
    pub plan: Plan,
    /// How much memory a process can use.
    pub limit_bytes: Option<u64>,
    /// Whether each engine does all its work of a round before the next begins.
    pub apart: bool,
    /// How often everything is done.
    pub rounds: u64,
    /// Where everything is made.
    pub dir: PathBuf,
    /// The size of the file with which the device is measured.
    pub device_file_bytes: u64,
    /// How long each of the device's measurements takes.
    pub device_seconds: f64,
}

impl CompareOptions {
    /// Decides everything; presets with several sizes come to several runs.
    ///
    /// # Errors
    /// Invalid requests.
    pub fn resolve(&self) -> Result<Vec<Run>, String> {
        let defaults = Preset::defaults(if self.quick { Some(Preset::Quick) } else { self.preset });
        let mut engines = self.engines.clone();
        if engines.is_empty() {
            let names = defaults.engines.split(',').map(str::parse);
            engines = names.collect::<Result<_, _>>()?;
        }
        let mut workloads = self.workloads.clone();
        if workloads.is_empty() {
            let names = defaults.workloads.split(',').map(str::parse);
            workloads = names.collect::<Result<_, _>>()?;
        }
        if !workloads[0].is_load() {
            workloads.insert(0, "load".parse()?);
        }
        let twice = |names: Vec<String>| {
            let mut sorted = names;
            sorted.sort();
            sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone())
        };
        let names = engines.iter().map(ToString::to_string).collect();
        if let Some(name) =
            twice(names).or(twice(workloads.iter().map(ToString::to_string).collect()))
        {
            return Err(format!("{name} is named twice"));
        }
        let memory = self.memory.unwrap_or(defaults.memory);
        let records = self.records.unwrap_or(defaults.records);
        let key_bytes = self.key_bytes.unwrap_or(defaults.key_bytes);
        let value_bytes = self.value_bytes.unwrap_or(defaults.value_bytes);
        let data_bytes = records * (key_bytes + value_bytes);
        let size = Size { records, value_bytes, memory };
        let sizes = match self.preset {
            Some(Preset::PaperMemory) if self.memory.is_some() => {
                return Err("--preset paper-memory sets the memory; --records sets the data".into());
            }
            Some(Preset::PaperMemory) => {
                let of = |percent| Size { memory: data_bytes * percent / 100, ..size };
                MEMORY_PERCENTS.map(of).to_vec()
            }
            Some(Preset::PaperSize) => {
                RECORD_PARTS.map(|part| Size { records: records / part, ..size }).to_vec()
            }
            Some(Preset::PaperTphValues | Preset::PaperSlmValues) if self.value_bytes.is_some() => {
                return Err("paper-tph-values and paper-slm-values set the sizes of values".into());
            }
            Some(preset @ (Preset::PaperTphValues | Preset::PaperSlmValues)) => {
                let (values, data_bytes) = match preset {
                    Preset::PaperTphValues => (&TPH_VALUE_BYTES[..], TPH_VALUES_DATA_BYTES),
                    _ => (&SLM_VALUE_BYTES[..], SLM_VALUES_DATA_BYTES),
                };
                let of = |value_bytes: &u64| {
                    let most = data_bytes / (key_bytes + value_bytes);
                    Size { records: records.min(most), value_bytes: *value_bytes, ..size }
                };
                values.iter().map(of).collect()
            }
            _ => vec![size],
        };
        sizes.iter().map(|size| self.run(&defaults, &engines, &workloads, size)).collect()
    }

    /// The run of this size.
    fn run(
        &self,
        defaults: &Defaults,
        engines: &[EngineName],
        workloads: &[Workload],
        size: &Size,
    ) -> Result<Run, String> {
        let Size { records, value_bytes, memory: memory_bytes } = *size;
        let limit_bytes = match self.limit.as_deref() {
            None => Some(memory_bytes + memory_bytes / 10 + (32 << 20)),
            Some("none") => None,
            Some(size) => Some(parse_bytes(size).map_err(|why| format!("--limit: {why}"))?),
        };
        let plan = Plan {
            engine: String::new(),
            dir: PathBuf::new(),
            memory_bytes,
            memtable_bytes: self.memtable.or(defaults.memtable),
            records,
            key_bytes: self.key_bytes.unwrap_or(defaults.key_bytes),
            value_bytes,
            value_entropy_percent: self.value_entropy,
            compression: self.compression,
            threads: self.threads,
            operations: self.operations.or(defaults.operations).unwrap_or(records),
            seconds_max: self.seconds.unwrap_or(defaults.seconds),
            load_seconds_max: self.load_seconds.unwrap_or(defaults.load_seconds),
            writes_per_second: self.write_rate.filter(|rate| *rate > 0),
            verify: self.verify,
            seed: self.seed,
            cgroup_peak: None,
            progress: true,
        };
        plan.check()?;
        Ok(Run {
            engines: engines.to_vec(),
            workloads: workloads.to_vec(),
            plan,
            limit_bytes,
            apart: self.apart || defaults.apart,
            rounds: self.rounds.unwrap_or(defaults.rounds).max(1),
            dir: self.dir.clone(),
            device_file_bytes: self.device_file.unwrap_or(defaults.device_file),
            device_seconds: defaults.device_seconds,
        })
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(seconds),
        _ => Err(format!("{text:?} is not a number of seconds")),
    }
}

fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => Err(format!("{text:?} is not a number of threads")),
    }
}
