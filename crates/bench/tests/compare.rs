//! The command as its users meet it: engines side by side, what the JSON holds, and what is said when
//! something is missing.

use std::process::{Command, Output};

use serde_json::Value;
use spinney_bench::data::values::Verify;
use spinney_bench::engine::{Compression, EngineName, Need};
use spinney_bench::workload::Workload;
use spinney_bench::workload::store::{Contents, Plan, Store};

fn bench(arguments: &[&str], dir: &std::path::Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spinney-bench"))
        .args(arguments)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a result must have whatever the engine and workload.
const FIELDS: [&str; 22] = [
    "threads",
    "operations",
    "seconds",
    "settle_seconds",
    "operations_per_second",
    "operations_per_second_settled",
    "processor_microseconds_per_operation",
    "processor_user_microseconds_per_operation",
    "processor_system_microseconds_per_operation",
    "disk_bytes_written",
    "disk_bytes_read",
    "disk_bytes_read_per_operation",
    "resident_bytes_peak",
    "records",
    "space_bytes",
    "space_amplification_max",
    "throttled_seconds",
    "latency_p50_nanoseconds",
    "latency_p99_nanoseconds",
    "latency_p999_nanoseconds",
    "latency_p9999_nanoseconds",
    "latency_max_nanoseconds",
];

#[test]
fn a_comparison_gives_every_figure_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = "compare --engines spinney:stb --records 20000 --operations 2000 --memory 8MiB \
                     --workloads load,a,get@2,getabsent,scan10,multiget,fullscan,deleterandom,get \
                     --device-file 1MiB --seconds 20 --rounds 2 --quick --json out.json --plot figures";
    let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 9);
    for result in results {
        for field in FIELDS {
            assert!(result[field].is_number(), "{} has no {field}", result["workload"]);
            assert!(result["spread"][field][1].is_number(), "{} {field}", result["workload"]);
        }
        assert_eq!(result["rounds"], 2);
        assert_eq!((&result["missing"], &result["wrong"]), (&0.0.into(), &0.0.into()));
        assert!(result["operations"].as_f64().unwrap() >= 2000.0, "{}", result["workload"]);
    }
    let load = &results[0];
    assert_eq!(load["user_bytes_written"], 20_000.0 * 124.0);
    assert!(load["bytes_written_per_user_byte"].is_number());
    // What was deleted is gone, and the reads behind that are of what is left.
    assert_eq!(results[8]["records"], 18_000.0);
    assert_eq!(json["rounds"].as_array().unwrap().len(), 18);
    assert!(json["rounds"][0]["timeline"][0]["operations"].is_u64());
    assert!(json["device"]["random_reads"][0]["reads_per_second"].as_f64().unwrap() > 0.0);
    assert!(results[2]["device_share"].is_number(), "get@2 is held against the device");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "only results and figures are left: {left:?}");
    assert!(json["harness"]["insert_processor_microseconds"].as_f64().unwrap() > 0.0);
    let page = std::fs::read_to_string(dir.path().join("figures/report.html")).unwrap();
    assert!(page.contains("spinney:stb") && page.contains("</svg>"));
}

#[test]
fn engines_are_held_against_each_other() {
    let others: Vec<String> = EngineName::all()
        .into_iter()
        .filter(|engine| engine.check().is_ok() && engine.engine() != "spinney")
        .map(|engine| engine.to_string())
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let engines = format!("spinney:stb,{}", others.join(","));
    let engines = engines.trim_end_matches(',');
    let arguments = [
        &["compare", "--quick", "-e", engines, "-w", "load,f,scan5,multiget,fullscan"][..],
        &["--records", "5000", "--operations", "1000", "--memory", "8MiB", "--device-file", "0"],
        &["--seconds", "30", "--load-seconds", "60", "--verify", "full", "--json", "-"],
    ];
    let output = bench(&arguments.concat(), dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for result in json["results"].as_array().unwrap() {
        assert_eq!(result["ratios"].as_object().unwrap().len(), others.len());
        for (peer, ratios) in result["ratios"].as_object().unwrap() {
            assert!(ratios["operations_per_second"].as_f64().unwrap() > 0.0, "{peer}");
        }
        if result["workload"] == "fullscan" {
            assert_eq!(result["pairs_scanned"], 5000.0, "{}", result["engine"]);
        }
    }
}

/// Who works when: workload by workload, or engine by engine.
#[test]
fn apart_each_engine_does_all_its_work_before_the_next() {
    let in_turns = ["load stb", "load flsm", "get flsm", "get stb"];
    let apart = ["load stb", "get stb", "load flsm", "get flsm"];
    for (more, expected) in [("--rounds 1", in_turns), ("--rounds 1 --apart", apart)] {
        let dir = tempfile::tempdir().unwrap();
        let arguments = format!(
            "compare -e spinney:stb,spinney:flsm -w load,get --records 2000 --operations 200 --memory 8MiB \
             --device-file 0 --json out.json {more}"
        );
        let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let json = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        let name = |found: &Value| {
            let engine = found["engine"].as_str().unwrap().replace("spinney:", "");
            format!("{} {engine}", found["workload"].as_str().unwrap())
        };
        let order: Vec<String> = json["rounds"].as_array().unwrap().iter().map(name).collect();
        assert_eq!(order, expected, "{more}");
    }
}

#[test]
fn a_killed_store_is_opened_again_with_all_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = "compare --quick -e spinney -w load,reopen,sync@2,sustained,space --records 3000 \
                     --operations 500 --memory 8MiB --device-file 0 --seconds 0.3 --json -";
    let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = json["results"].as_array().unwrap();
    assert!(results[1]["open_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(results[4]["operations"], 9000.0, "space overwrites three times the records");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        ("compare -e nosuch", "no engine \"nosuch\""),
        ("compare -e spinney:flat", "spinney has no configuration"),
        ("compare -w load,sca", "no workload"),
        ("compare -e spinney,spinney:stb", "named twice"),
        ("compare -w get,get", "named twice"),
        ("compare --key-bytes 8 --records 1M", "too short"),
        ("compare --limit lots", "--limit"),
        ("compare --threads 0", "not a number of threads"),
    ] {
        let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(says), "{arguments}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_library_says_what_to_install() {
    let output = bench(&["engines"], std::path::Path::new("."));
    let listed = text(&output.stdout);
    for (engine, remedy) in [
        ("rocksdb:leveled", "apt-get install lib"),
        ("rocksdb:universal", "apt-get install lib"),
        ("leveldb", "apt-get install lib"),
        ("lmdb", "apt-get install lib"),
        ("pebblesdb", "SPINNEY_PEBBLESDB"),
        ("splinterdb", "SPINNEY_SPLINTERDB"),
    ] {
        let line = listed.lines().find(|line| line.starts_with(engine)).unwrap();
        assert!(line.contains("there") || line.contains(remedy), "{line}");
    }
}

#[test]
fn a_store_can_be_worked_on_in_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan("spinney:stb", dir.path().join("store"), 20_000);
    (plan.compression, plan.threads, plan.operations) = (Compression::Lz4, 2, 1000);
    let mut store = Store::open(plan.clone(), EMPTY).unwrap();
    for workload in ["local50", "d", "e", "readwhilewriting", "cached"] {
        let found = store.run(&workload.parse().unwrap()).unwrap();
        assert_eq!((found.missing, found.wrong), (0, 0), "{workload}");
        assert_eq!(found.writer_operations_per_second.is_some(), workload == "readwhilewriting");
    }
    let contents = store.contents();
    assert!(contents.next_index > 20_000 && contents.sequential_percent == 50, "{contents:?}");
    store.close().unwrap();
    let mut store = Store::open(plan, contents).unwrap();
    assert_eq!(store.check_last().unwrap(), 0);
    let scanned = store.run(&"fullscan@1".parse().unwrap()).unwrap();
    assert_eq!((scanned.pairs_scanned, scanned.missing), (contents.next_index, 0));
    store.close().unwrap();
}

/// Writes at a limited rate take their time; reads do not.
#[test]
fn writes_keep_to_a_rate() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan("spinney:stb", dir.path().join("store"), 2000);
    (plan.writes_per_second, plan.operations) = (Some(4000), 2000);
    let mut store = Store::open(plan, EMPTY).unwrap();
    store.run(&"load".parse().unwrap()).unwrap();
    let written = store.run(&"overwrite".parse().unwrap()).unwrap();
    assert_eq!(written.operations, 2000);
    assert!((0.4..30.0).contains(&written.seconds), "{} s", written.seconds);
    store.close().unwrap();
}

/// A library that is not what it is taken for is not called.
#[test]
fn a_library_of_another_kind_is_refused() {
    for (named, says) in
        [("no-such-library.so", "no-such-library.so"), ("libc.so.6", "has no splinterdb")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_spinney-bench"))
            .args(["compare", "-e", "splinterdb", "--records", "1000"])
            .env("SPINNEY_SPLINTERDB", named)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{named}");
        let stderr = text(&output.stderr);
        for word in [says, "github.com/vmware/splinterdb", "git checkout", "make libs"] {
            assert!(stderr.contains(word), "{named}: {stderr}");
        }
    }
}

#[test]
fn what_an_engine_cannot_do_is_known_beforehand() {
    let engine = |name: &str| name.parse::<EngineName>().unwrap();
    let needs = |name: &str| name.parse::<Workload>().unwrap().needs();
    assert_eq!((needs("sync@4"), needs("reopen")), (Some(Need::Sync), Some(Need::Recovery)));
    assert_eq!(needs("load"), None);
    for need in [Need::Sync, Need::Recovery] {
        assert!(engine("splinterdb:nolog").lacks(need).unwrap().contains("SplinterDB"));
        assert_eq!(engine("spinney").lacks(need), None);
    }
    assert!(engine("spinney").keeps_buffered() && !engine("splinterdb").keeps_buffered());
}

/// What it cannot do is said for that workload; the others are done. It needs the library to be there.
#[test]
fn what_an_engine_cannot_do_is_not_measured() {
    let dir = tempfile::tempdir().unwrap();
    let refuses =
        |engine: &EngineName| engine.lacks(Need::Sync).is_some() && engine.check().is_ok();
    for engine in EngineName::all().iter().filter(|engine| refuses(engine)) {
        let arguments = format!(
            "compare --quick -e {engine} -w load,sync@2,reopen,get --records 3000 --operations 500 \
             --memory 32MiB --device-file 0 --json -"
        );
        let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let failures = |at: usize| json["results"][at]["failures"][0].as_str();
        assert_eq!((failures(0), failures(3)), (None, None), "{engine}");
        for at in [1, 2] {
            assert!(failures(at).unwrap().contains("limitations.md"), "{engine}");
        }
        assert_eq!(json["results"][3]["operations"], 500.0, "{engine}");
    }
}

/// Every engine that is there finds what it had when it was closed.
#[test]
fn a_closed_store_can_be_opened_again() {
    for engine in EngineName::all().iter().filter(|engine| engine.check().is_ok()) {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&engine.to_string(), dir.path().join("store"), 3000);
        let mut store = Store::open(plan.clone(), EMPTY).unwrap();
        for workload in ["load", "deleterandom", "f"] {
            let found = store.run(&workload.parse().unwrap()).unwrap();
            assert_eq!((found.missing, found.wrong), (0, 0), "{engine} {workload}");
        }
        let contents = store.contents();
        assert_eq!((contents.first_index, contents.next_index), (500, 3000), "{engine}");
        store.close().unwrap();
        let mut store = Store::open(plan, contents).unwrap();
        assert_eq!(store.check_last().unwrap(), 0, "{engine}");
        let scanned = store.run(&"fullscan".parse().unwrap()).unwrap();
        assert_eq!((scanned.pairs_scanned, scanned.missing), (2500, 0), "{engine}");
        store.close().unwrap();
    }
}

/// Every engine that is there has nothing of what was deleted and all of what was overwritten.
#[test]
fn an_aged_store_has_what_it_should() {
    for engine in EngineName::all().iter().filter(|engine| engine.check().is_ok()) {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&engine.to_string(), dir.path().join("store"), 3000);
        let mut store = Store::open(plan, EMPTY).unwrap();
        store.run(&"load".parse().unwrap()).unwrap();
        for (threads, left) in [(1, 1800), (3, 1080)] {
            let found = store.run(&format!("aged@{threads}").parse().unwrap()).unwrap();
            assert_eq!((found.missing, found.wrong), (0, 0), "{engine}");
            let operations = |name: &str| {
                let of = found.latencies.iter().find(|latency| latency.operation == name);
                of.map_or(0, |latency| latency.count)
            };
            let part = (3000 - store.contents().first_index) * 4 / 6;
            assert_eq!((operations("delete"), operations("update")), (part, part), "{engine}");
            assert_eq!(found.records, left, "{engine}");
            assert!(found.space_amplification > 0.5, "{engine}");
            let scanned = store.run(&"fullscan".parse().unwrap()).unwrap();
            assert_eq!((scanned.pairs_scanned, scanned.missing, scanned.wrong), (left, 0, 0));
        }
        store.close().unwrap();
    }
}

/// YCSB's D inserts; its E, which inserts too, runs on a store that has just been loaded.
#[test]
fn ycsb_loads_anew_before_e() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = "compare --preset paper-ycsb -e spinney --records 2000 --operations 400 --rounds 1 \
                     --memory 8MiB --device-file 0 --json -";
    let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = json["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|result| result["workload"].as_str().unwrap()).collect();
    assert_eq!(names, ["load", "a@8", "b@8", "c@8", "f@8", "d@8", "reload", "e@8"]);
    let records: Vec<f64> =
        results.iter().map(|found| found["records"].as_f64().unwrap()).collect();
    assert_eq!((records[4], records[6]), (2000.0, 2000.0));
    assert!(records[5] > 2000.0 && records[7] > 2000.0, "D and E insert: {records:?}");
    assert!(records[7] < 2100.0, "what D inserted is gone: {records:?}");
}

#[test]
fn a_preset_may_run_several_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = "compare --preset paper-size -e spinney -w load,get --records 8000 --operations 500 \
                     --rounds 1 --memory 8MiB --device-file 0 --json out.json --plot figures";
    let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let head = "1,000 records, values of 100 bytes, 8.00 MiB of memory";
    assert!(text(&output.stdout).contains(head));
    let json = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let runs = json["runs"].as_array().unwrap();
    let loads: Vec<&Value> = runs.iter().map(|run| &run["results"][0]).collect();
    for (load, records) in loads.iter().zip([1000.0, 2000.0, 4000.0, 8000.0]) {
        assert_eq!((&load["records"], &load["memory_bytes"]), (&records.into(), &(8 << 20).into()));
    }
    let page = std::fs::read_to_string(dir.path().join("figures/report.html")).unwrap();
    assert!(page.contains("get: operations per second by records") && page.contains(": 4 k pairs"));
    let refused = bench(&["compare", "--preset", "paper-memory", "--memory", "8MiB"], dir.path());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--records sets the data"));
    let arguments = "compare --preset paper-tph-values -e spinney:tph --records 200 --operations 100 --rounds 1 \
                     --memory 8MiB --device-file 0 --json out.json --plot figures";
    let output = bench(&arguments.split_whitespace().collect::<Vec<_>>(), dir.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let head = "200 records, values of 51,200 bytes, 8.00 MiB of memory";
    assert!(text(&output.stdout).contains(head));
    let page = std::fs::read_to_string(dir.path().join("figures/report.html")).unwrap();
    assert!(page.contains("c@16: operations per second by value size"));
}

const EMPTY: Contents = Contents { sequential_percent: 0, first_index: 0, next_index: 0 };

/// A small store in this process.
fn plan(engine: &str, dir: std::path::PathBuf, records: u64) -> Plan {
    Plan {
        engine: engine.to_string(),
        dir,
        memory_bytes: 8 << 20,
        memtable_bytes: None,
        records,
        key_bytes: 24,
        value_bytes: 100,
        value_entropy_percent: 100,
        compression: Compression::None,
        threads: 1,
        operations: 500,
        seconds_max: 60.0,
        load_seconds_max: 60.0,
        writes_per_second: None,
        verify: Verify::Full,
        seed: 7,
        cgroup_peak: None,
        progress: false,
    }
}

/// The checks must be able to fail: a store that holds other values than are asked for is found out.
#[test]
fn wrong_answers_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan("spinney:stb", dir.path().join("store"), 1000);
    plan.verify = Verify::Head;
    let mut contents = EMPTY;
    let mut store = Store::open(plan.clone(), contents).unwrap();
    store.run(&"load".parse().unwrap()).unwrap();
    store.close().unwrap();
    (plan.value_bytes, contents.next_index) = (101, 2000);
    let mut store = Store::open(plan, contents).unwrap();
    let found = store.run(&"get".parse().unwrap()).unwrap();
    assert!(found.wrong > 100 && found.missing > 100, "{} {}", found.wrong, found.missing);
    assert_eq!(found.wrong + found.missing, 500);
    assert_eq!(store.check_last().unwrap(), 2000);
    assert_eq!(store.run(&"fullscan".parse().unwrap()).unwrap().missing, 1000);
    store.close().unwrap();
}
