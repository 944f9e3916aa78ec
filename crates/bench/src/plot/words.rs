//! Engines, workloads and whole runs in words, for tables, pictures and captions.

use std::fmt::Write as _;

use serde_json::Value;
use spinney_quantity::{bytes, grouped, nanoseconds};

use super::unit::{Unit, short};

/// An engine as people call it: `Spinney flsm`, `RocksDB leveled`.
pub fn engine(name: &str) -> String {
    let (engine, configuration) = name.split_once(':').unwrap_or((name, ""));
    let engine = match engine {
        "spinney" => "Spinney",
        "rocksdb" => "RocksDB",
        "leveldb" => "LevelDB",
        "pebblesdb" => "PebblesDB",
        "lmdb" => "LMDB",
        "splinterdb" => "SplinterDB",
        other => other,
    };
    match (engine, configuration) {
        (_, "") | ("Spinney", "stb") => engine.to_string(),
        (_, configuration) => format!("{engine} {configuration}"),
    }
}

/// A workload as people call it: `get@2` is `random get, two threads`.
pub fn workload(name: &str) -> String {
    let (rest, threads) = name.split_once('@').unwrap_or((name, ""));
    let (base, distribution) = rest.split_once(':').unwrap_or((rest, ""));
    let number = |prefix: &str| base.strip_prefix(prefix)?.parse::<u64>().ok();
    let mut words = match base {
        "load" => "random insert".to_string(),
        "reload" => "random insert, again".to_string(),
        "a" | "b" | "c" | "d" | "e" | "f" => format!("YCSB {}", base.to_ascii_uppercase()),
        "get" => "random get".to_string(),
        "getabsent" => "get of an absent key".to_string(),
        "multiget" => "multi_get of 64 keys".to_string(),
        "fullscan" => "full scan".to_string(),
        "overwrite" => "random overwrite".to_string(),
        "deleterandom" => "random delete".to_string(),
        "trim" => "delete of the first nine tenths".to_string(),
        "insertifabsent" => "conditional insert".to_string(),
        "readwhilewriting" => "random get beside a writer".to_string(),
        "space" => "overwrites of three times the data".to_string(),
        "aged" => "deletes and overwrites of four fifths".to_string(),
        "sustained" => "random insert without pause".to_string(),
        "sync" => "durable insert".to_string(),
        "cached" => "random get, all data read before".to_string(),
        "reopen" => "insert before a kill".to_string(),
        "rebuild" => "insert before a power loss".to_string(),
        _ if number("skip").is_some() => match number("skip").unwrap_or_default() {
            1 => "seek of every pair".to_string(),
            records => format!("seek of every {}th pair", grouped(records)),
        },
        _ if number("deleterange").is_some() => {
            format!("delete of a range of {} keys", grouped(number("deleterange").unwrap_or(0)))
        }
        _ => match (number("scan"), number("multiget"), number("local")) {
            (Some(1), ..) => "scan of 1 pair".to_string(),
            (Some(pairs), ..) => format!("scan of {} pairs", grouped(pairs)),
            (_, Some(keys), _) => format!("multi_get of {} keys", grouped(keys)),
            (.., Some(100)) => "insert in key order".to_string(),
            (.., Some(percent)) => format!("insert, {percent}% of the keys in order"),
            _ => base.to_string(),
        },
    };
    if !distribution.is_empty() {
        let _ = write!(words, ", {distribution}");
    }
    match threads {
        "" => {}
        "1" => words += ", one thread",
        "2" => words += ", two threads",
        threads => {
            let _ = write!(words, ", {threads} threads");
        }
    }
    words
}

/// The unit of a workload's rate: `gets per second`.
pub fn rate_unit(workload: &str) -> &'static str {
    let base = workload.split(['@', ':']).next().unwrap_or_default();
    match base.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "load" | "reload" | "local" | "sustained" | "sync" | "reopen" | "rebuild" => {
            "inserts per second"
        }
        "get" | "getabsent" | "cached" | "readwhilewriting" => "gets per second",
        "multiget" => "keys per second",
        "scan" => "scans per second",
        "fullscan" => "pairs per second",
        "skip" => "seeks per second",
        "deleterange" | "trim" => "ranges per second",
        _ => "operations per second",
    }
}

/// Numbers of people's size as words.
fn few(number: u64) -> String {
    match number {
        1 => "one".to_string(),
        2 => "two".to_string(),
        3 => "three".to_string(),
        4 => "four".to_string(),
        more => grouped(more),
    }
}

/// A run in one line: rounds, day, data, memory.
pub fn caption(document: &Value) -> String {
    let configuration = &document["configuration"];
    let number = |field: &str| configuration[field].as_u64().unwrap_or(0);
    let mut out = match number("rounds") {
        1 => "One round".to_string(),
        rounds => format!("Medians of {} rounds", few(rounds)),
    };
    if let Some(date) = document["date"].as_str() {
        let _ = write!(out, " on {date}");
    }
    let _ = write!(
        out,
        ": {} pairs of {} + {} bytes, memory {}",
        Unit::Plain.mark(number("records") as f64),
        number("key_bytes"),
        number("value_bytes"),
        bytes(number("memory_bytes")),
    );
    if let Some(memtable) = configuration["memtable_bytes"].as_u64() {
        let _ = write!(out, ", memtables {}", bytes(memtable));
    }
    if configuration["compression"].as_str().is_some_and(|method| method != "none") {
        let _ = write!(out, ", {}", configuration["compression"].as_str().unwrap_or_default());
    }
    out.push_str(if configuration["apart"] == true { ", each engine by itself." } else { "." });
    if let Some(note) = document["note"].as_str() {
        let _ = write!(out, " {note}");
    }
    out
}

/// How it was measured: machine, limits, device and the benchmark's own cost, one sentence each.
pub fn method(document: &Value) -> Vec<String> {
    let (machine, configuration) = (&document["machine"], &document["configuration"]);
    let mut out = vec![caption(document)];
    if let Some(cores) = machine["cores"].as_u64() {
        let mut text = format!("The machine has {} cores", few(cores));
        if let Some(processor) = machine["processor"].as_str() {
            let _ = write!(text, " ({processor})");
        }
        if let Some(memory) = machine["memory"].as_str() {
            let kib = memory.trim_end_matches(" kB").trim().parse::<u64>();
            let _ =
                write!(text, " and {} of memory", kib.map_or(memory.into(), |k| bytes(k << 10)));
        }
        if let Some(kernel) = machine["kernel"].as_str() {
            let _ = write!(text, "; it runs Linux {kernel}");
        }
        out.push(text + ".");
    }
    let memory = bytes(configuration["memory_bytes"].as_u64().unwrap_or(0));
    out.push(match (configuration["limit_bytes"].as_u64(), configuration["limit_missing"].as_str()) {
        (Some(limit), _) => format!(
            "Each engine was told to use {memory}, and its process could use {}, page cache included.",
            bytes(limit)
        ),
        (None, Some(why)) => format!(
            "Each engine was told to use {memory}. There was no memory limit ({why}), which flatters engines \
             that use the page cache."
        ),
        (None, None) => format!("Each engine was told to use {memory}. There was no memory limit."),
    });
    out.push(match configuration["apart"] == true {
        true => "In each round, each engine did all its work before the next began.".to_string(),
        false => "In each round, the engines took turns at each workload.".to_string(),
    });
    let device = &document["device"];
    if let Some(sequential) = device["sequential_read_bytes_per_second"].as_f64() {
        let mut text =
            format!("The device alone reads {} per second in order", bytes(sequential as u64));
        let reads = device["random_reads"].as_array();
        for reads in reads.into_iter().flatten() {
            let rate = reads["reads_per_second"].as_f64().unwrap_or(0.0);
            let threads = reads["threads"].as_u64().unwrap_or(0);
            let threads = format!("{} thread{}", few(threads), if threads == 1 { "" } else { "s" });
            let _ = write!(text, ", {} random pages per second with {threads}", short(rate));
        }
        if let Some(rate) = device["io_uring_depth_32_reads_per_second"].as_f64() {
            let _ = write!(text, ", {} through io_uring with 32 in flight", short(rate));
        }
        out.push(text + ".");
    }
    let harness = &document["harness"];
    if let (Some(insert), Some(read)) = (
        harness["insert_processor_microseconds"].as_f64(),
        harness["read_processor_microseconds"].as_f64(),
    ) {
        out.push(format!(
            "Processor times include the benchmark's own work: {} per insert and {} per read.",
            nanoseconds(insert * 1e3),
            nanoseconds(read * 1e3)
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        for (name, words, unit) in [
            ("get@2", "random get, two threads", "gets per second"),
            ("scan50", "scan of 50 pairs", "scans per second"),
            ("c:uniform@8", "YCSB C, uniform, 8 threads", "operations per second"),
            ("multiget8@1", "multi_get of 8 keys, one thread", "keys per second"),
            ("local100", "insert in key order", "inserts per second"),
            ("fullscan", "full scan", "pairs per second"),
            ("skip100", "seek of every 100th pair", "seeks per second"),
            ("deleterange100", "delete of a range of 100 keys", "ranges per second"),
        ] {
            assert_eq!((workload(name).as_str(), rate_unit(name)), (words, unit));
        }
        for (name, words) in [
            ("spinney:stb", "Spinney"),
            ("spinney:flsm", "Spinney flsm"),
            ("rocksdb:universal", "RocksDB universal"),
            ("lmdb", "LMDB"),
        ] {
            assert_eq!(engine(name), words);
        }
    }

    #[test]
    fn a_run_has_a_caption() {
        let document = serde_json::json!({"date": "2026-11-24", "configuration": {"rounds": 3,
            "records": 8_000_000, "key_bytes": 24, "value_bytes": 100, "memory_bytes": 128 << 20,
            "apart": true}});
        assert_eq!(
            caption(&document),
            "Medians of three rounds on 2026-11-24: 8 M pairs of 24 + 100 bytes, memory 128 MiB, each engine \
             by itself."
        );
    }
}
