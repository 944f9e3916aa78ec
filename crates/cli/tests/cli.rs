//! The command against real stores. Each test has a store of its own.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use common::{Run, command, spinney};

/// A directory with a store in it.
struct Store {
    directory: tempfile::TempDir,
}

impl Store {
    fn new() -> Store {
        Store { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> String {
        self.directory.path().join("store").to_str().unwrap().to_string()
    }

    fn file(&self, name: &str, contents: &[u8]) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// Runs `spinney NAME STORE arguments…`.
    fn run_with(&self, name: &str, arguments: &[&str], input: &[u8]) -> Run {
        let path = self.path();
        let mut all = vec![name, path.as_str(), "--memory", "16MiB"];
        all.extend_from_slice(arguments);
        spinney(&all, input)
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Run {
        self.run_with(name, arguments, b"")
    }

    /// The same, which must succeed; gives standard output.
    fn ok(&self, name: &str, arguments: &[&str]) -> Vec<u8> {
        self.ok_with(name, arguments, b"")
    }

    fn ok_with(&self, name: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let run = self.run_with(name, arguments, input);
        assert_eq!(run.code, 0, "{name} {arguments:?}: {}", run.stderr_text());
        run.stdout
    }
}

fn sorted_records(text: &[u8], separator: &str) -> Vec<String> {
    let text = String::from_utf8(text.to_vec()).unwrap();
    let records = text.split(separator).map(|record| record.trim_matches('\n').to_string());
    let mut records: Vec<String> = records.filter(|record| !record.is_empty()).collect();
    records.sort();
    records
}

#[test]
fn put_get_delete() {
    let store = Store::new();
    store.ok("put", &["apple", "red"]);
    store.ok_with("put", &["blob", "-"], b"\x00\xffline\n");
    store.ok("put", &["a\\x00", "x\\ty", "--escape"]);
    assert_eq!(store.ok("get", &["apple"]), b"red\n");
    assert_eq!(store.ok("get", &["blob", "--no-newline"]), b"\x00\xffline\n");
    assert_eq!(store.ok("get", &["6100", "--hex"]), b"780979\n");
    store.ok("delete", &["apple", "never there"]);
    let run = store.run("get", &["apple"]);
    assert_eq!((run.code, run.stdout.len(), run.stderr.len()), (1, 0, 0));
}

#[test]
fn delete_takes_ranges() {
    let store = Store::new();
    let pairs: String = (0..100).map(|n| format!("k{n:02}\tv{n}\n")).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    store.ok("delete", &["--prefix", "k1"]);
    store.ok("delete", &["k05", "--from", "k22", "--to", "k98"]);
    assert_eq!(store.ok("count", &[]), b"13\n");
    store.ok("delete", &["--from", "k2", "--to", "k2"]);
    assert_eq!(store.run("delete", &["--from", "k3", "--to", "k2"]).code, 2);
    assert_eq!(
        store.ok("scan", &["--from", "k08", "--keys-only"]),
        b"k08\nk09\nk20\nk21\nk98\nk99\n"
    );
    store.ok("delete", &["--all"]);
    assert_eq!(store.ok("count", &[]), b"0\n");
    assert_eq!(store.run("delete", &[]).code, 2);
}

#[test]
fn scan_takes_ranges() {
    let store = Store::new();
    let pairs: String = (0..100).map(|n| format!("k{n:02}\tv{n}\n")).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    assert_eq!(store.ok("scan", &[]), pairs.as_bytes());
    assert_eq!(store.ok("scan", &["--prefix", "k1", "--limit", "1"]), b"k10\tv10\n");
    assert_eq!(store.ok("scan", &["--from", "k97", "--keys-only"]), b"k97\nk98\nk99\n");
    assert_eq!(store.ok("scan", &["--from", "k01", "--to", "k03"]), b"k01\tv1\nk02\tv2\n");
    assert_eq!(store.ok("scan", &["--reverse", "--limit", "2"]), b"k99\tv99\nk98\tv98\n");
    assert_eq!(
        store.ok("scan", &["--prefix", "6b39", "--to", "6b3931", "--hex"]),
        b"6b3930\t763930\n"
    );
    assert_eq!(store.run("scan", &["--prefix", "none"]).code, 1);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let store = Store::new();
    let pairs: String = (0..50_000).map(|n| format!("k{n:06}\tvalue {n}\n")).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    let mut child = command(&["scan", &store.path()]).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "k000000\tvalue 0\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

const PACKAGES: &str = "Package: b\nVersion: 1:2.0-1\nArchitecture: amd64\nDescription: two\n lines\n\n\
    Package: a\nArchitecture: all\nVersion: 7\n\n\
    Package: a\nVersion: 7\nArchitecture: i386\nDepends: b (>= 1)\n\n";

#[test]
fn what_goes_in_comes_out() {
    let cases: [(&str, &str, &str, &str); 4] = [
        ("tsv", "t.tsv", "b\t2\na\t1\tmore\nc\t\n", "\n"),
        ("csv", "t.csv", "id,text\n2,\"x, \"\"y\"\"\"\n1,plain\n", "\n"),
        ("jsonl", "t.jsonl", "{\"key\": \"b\", \"n\": 1.50}\n{\"key\":\"a\"}\n", "\n"),
        ("deb822", "Packages", PACKAGES, "\n\n"),
    ];
    for (format, name, text, separator) in cases {
        let store = Store::new();
        let file = store.file(name, text.as_bytes());
        let summary = String::from_utf8(store.ok("import", &[&file])).unwrap();
        assert!(summary.starts_with("imported "), "{summary}");
        let out = store.ok("export", &["--format", format]);
        assert_eq!(sorted_records(&out, separator), sorted_records(text.as_bytes(), separator));
    }
}

#[test]
fn numbered_lines_come_out_in_their_order_byte_for_byte() {
    let store = Store::new();
    let text: Vec<u8> = (0..3000_u32)
        .flat_map(|n| format!("line {}\r\n\n\tx", n.wrapping_mul(2_654_435_761)).into_bytes())
        .chain(*b"no newline at the end \xff")
        .collect();
    let file = store.file("any.bin", &text);
    store.ok("import", &[&file, "--format", "lines"]);
    assert_eq!(store.ok("export", &["--format", "raw"]), text);
    store.ok("import", &[&file, "--format", "tsv", "--key", "line", "--keyspace", "other"]);
    assert_eq!(store.ok("export", &["--format", "raw", "--keyspace", "other"]), text);
}

#[test]
fn lz4_files_and_composite_keys() {
    let store = Store::new();
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(PACKAGES.as_bytes()).unwrap();
    let file = store.file("main_Packages.lz4", &encoder.finish().unwrap());
    store.ok("import", &[&file]);
    let keys = store.ok("scan", &["--keys-only"]);
    assert_eq!(keys, b"a/7/all\na/7/i386\nb/1:2.0-1/amd64\n");
    let again = String::from_utf8(store.ok("import", &[&file])).unwrap();
    assert!(again.contains("3 keys overwritten"), "{again}");
}

#[test]
fn pairs_of_any_bytes_move_between_stores() {
    let (first, second) = (Store::new(), Store::new());
    for (key, value) in [("00", "ff00"), ("0a09", "0a"), ("c3a4", "e282ac")] {
        first.ok("put", &[key, value, "--hex"]);
    }
    let expected = first.ok("scan", &["--hex"]);
    for (keyspace, export, import) in [
        ("a", &["--format", "tsv", "--escape"][..], &["--format", "tsv", "--escape"][..]),
        ("b", &["--format", "jsonl", "--pairs"], &["--format", "jsonl", "--pairs"]),
        ("c", &["--format", "csv", "--pairs"], &["--format", "csv", "--pairs"]),
    ] {
        let text = first.ok("export", export);
        second.ok_with("import", &[&["-", "--keyspace", keyspace], import].concat(), &text);
        assert_eq!(second.ok("scan", &["--hex", "--keyspace", keyspace]), expected);
    }
    let run = first.run("export", &["--format", "tsv"]);
    assert_eq!(run.code, 4, "a newline in a key does not fit plain tsv");
}

#[test]
fn a_record_without_its_key_is_named() {
    let store = Store::new();
    let run = store.run_with("import", &["-", "--format", "jsonl"], b"{\"key\":1}\n{\"id\":2}\n");
    assert_eq!(run.code, 4);
    assert!(run.stderr_text().contains("record 2 of standard input"), "{}", run.stderr_text());
}

#[test]
fn acknowledged_records_survive_a_kill() {
    let store = Store::new();
    let ack = store.file("ack", b"");
    let path = store.path();
    let mut child = command(&[
        "import", &path, "-", "--format", "lines", "--batch", "10", "--ack", &ack, "--memory",
        "16MiB",
    ])
    .spawn()
    .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let line = |number: u64| format!("{number:08} {}\n", "x".repeat(150));
    for number in 1..=20_000 {
        stdin.write_all(line(number).as_bytes()).unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let acknowledged = std::fs::read_to_string(&ack).unwrap();
    let acknowledged: u64 = acknowledged.lines().last().unwrap_or("0").parse().unwrap();
    assert!(acknowledged > 0);
    let found = String::from_utf8(store.ok("export", &["--format", "raw"])).unwrap();
    let count = found.lines().count() as u64;
    assert!(count >= acknowledged && count.is_multiple_of(10), "{count} of {acknowledged}");
    let expected: String = (1..=count).map(line).collect();
    assert!(found == expected, "what is there is a prefix of what was written");
}

#[test]
fn maintenance() {
    let store = Store::new();
    let pairs: String = (0..5000).map(|n| format!("k{n:05}\t{}\n", "v".repeat(100))).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    store.ok_with("import", &["-", "--format", "tsv", "--blind"], pairs.as_bytes());
    store.ok("flush", &[]);
    store.ok("compact", &["--from", "k01000", "--to", "k02000"]);
    store.ok("compact", &[]);
    let copy = store.directory.path().join("copy");
    store.ok("checkpoint", &[copy.to_str().unwrap()]);
    assert_eq!(store.run("checkpoint", &[copy.to_str().unwrap()]).code, 2);
    store.ok("put", &["k00000", "changed"]);
    store.ok("put", &["x", "y", "--keyspace", "other"]);
    assert_eq!(store.ok("keyspaces", &[]), b"default\nother\n");
    store.ok("drop-keyspace", &["other", "--yes"]);
    assert_eq!(store.ok("keyspaces", &[]), b"default\n");
    let run = spinney(&["export", copy.to_str().unwrap(), "--format", "tsv"], b"");
    assert_eq!((run.code, run.stdout_text()), (0, pairs));
    for arguments in [&[][..], &["--full"]] {
        let report = String::from_utf8(store.ok("check", arguments)).unwrap();
        assert!(report.contains(": 0 problems"), "{report}");
    }
}

#[test]
fn statistics_are_for_people_and_programs() {
    let store = Store::new();
    store.ok("put", &["k", "v"]);
    assert!(String::from_utf8(store.ok("stats", &[])).unwrap().contains("keyspace default (stb)"));
    let json: serde_json::Value = serde_json::from_slice(&store.ok("stats", &["--json"])).unwrap();
    assert_eq!(json["keyspaces"][0]["name"], "default");
    let prometheus = String::from_utf8(store.ok("stats", &["--prometheus"])).unwrap();
    assert!(prometheus.contains("spinney_memory_budget_bytes 16777216"), "{prometheus}");
}

/// `--kind` on a keyspace of another kind printed the structure of its options; an option that the
/// tree does not have was passed over.
#[test]
fn options_that_a_keyspace_cannot_have_are_named() {
    let store = Store::new();
    let refused = |arguments: &[&str], words: &[&str]| {
        let run = store.run("put", &[&["a", "b"], arguments].concat());
        let message = run.stderr_text();
        assert_eq!(run.code, 2, "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert!(!message.contains("KeyspaceOptions"), "{message}");
    };
    let guards = ["--option", "tables_per_guard_max=4"];
    refused(&guards, &["--option", "tables_per_guard_max", "flsm", "stb"]);
    refused(&["--option", "fanout_max"], &["NAME=NUMBER"]);
    refused(&["--option", "fanout_max=many"], &["\"many\" is not a number"]);
    store.ok("put", &["a", "b"]);
    refused(&guards, &["stb has no option tables_per_guard_max"]);
    let words = ["exists with --option fanout_max", "not 4", "change it with `spinney alter`"];
    refused(&["--option", "fanout_max=4"], &words);
    refused(&["--kind", "flsm"], &["exists with --kind stb", "not flsm", "a new keyspace"]);
    refused(&["--compression", "lz4"], &["exists with --compression none", "not lz4"]);
    store.ok("put", &["a", "b", "--kind", "stb", "--compression", "none"]);
    let guards = ["--keyspace", "g", "--kind", "flsm", "--option"];
    store.ok("put", &[&["a", "b"], &guards[..], &["tables_per_guard_max=4"]].concat());
    let words = ["exists with --option tables_per_guard_max 4", "not 5"];
    refused(&[&guards[..], &["tables_per_guard_max=5"]].concat(), &words);
}

/// The options that the command prints, as lines.
fn options(store: &Store, keyspace: &[&str]) -> Vec<String> {
    let text = String::from_utf8(store.ok("options", keyspace)).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn options_are_shown_and_changed() {
    let store = Store::new();
    let pairs: String =
        (0..20_000).map(|n| format!("k{n:05}\t{}\n", "value ".repeat(10))).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    assert!(options(&store, &[]).contains(&"kind stb".to_string()));
    assert!(options(&store, &[]).contains(&"space_amplification_max 1.27".to_string()));
    let size = |store: &Store| {
        let files = data_files(Path::new(&store.path()));
        files.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum::<u64>()
    };
    store.ok("flush", &[]);
    let before = size(&store);
    let told = store.ok("alter", &["--compression", "lz4", "--space-amplification-max", "1.5"]);
    let told = String::from_utf8(told).unwrap();
    let lines = ["compression: none → lz4", "space_amplification_max: 1.27 → 1.5"];
    assert_eq!(told.lines().collect::<Vec<_>>(), lines);
    assert!(options(&store, &[]).contains(&"compression lz4".to_string()));
    assert!(options(&store, &[]).contains(&"space_amplification_max 1.5".to_string()));
    // Other processes write the next files so.
    store.ok("compact", &[]);
    assert!(size(&store) * 2 < before, "{} bytes, {before} before", size(&store));
    assert_eq!(store.ok("count", &[]), b"20000\n");
    let again = store.ok("alter", &["--compression", "lz4"]);
    assert!(String::from_utf8(again).unwrap().starts_with("nothing changed"));
    // Of a kind's own.
    store.ok("put", &["a", "b", "--keyspace", "guards", "--kind", "flsm"]);
    let guards = ["--keyspace", "guards"];
    store.ok("alter", &[&guards[..], &["--option", "tables_per_guard_max=4"]].concat());
    store.ok("alter", &[&guards[..], &["--blob-bytes-min", "1k"]].concat());
    assert!(options(&store, &guards).contains(&"tables_per_guard_max 4".to_string()));
    assert!(options(&store, &guards).contains(&"blob_bytes_min 1024".to_string()));
    let own = ["--kind", "flsm", "--option", "tables_per_guard_max=4"];
    store.ok("put", &[&["c", "d"], &guards[..], &own].concat());
}

#[test]
fn what_cannot_be_changed_is_named() {
    let store = Store::new();
    store.ok("put", &["a", "b"]);
    for (arguments, code, word) in [
        (&[][..], 2, "nothing to change"),
        (&["--option", "tables_per_guard_max=4"], 2, "stb has no option tables_per_guard_max"),
        (&["--space-amplification-max", "1.01"], 2, "from 1.1 to 100"),
        (&["--blob-bytes-min", "2MiB"], 2, "from 64 to 1MiB"),
        (&["--compression", "lz4", "--keyspace", "none"], 4, "no keyspace \"none\""),
        (&["--kind", "flsm"], 2, "--kind"),
    ] {
        let run = store.run("alter", arguments);
        let message = run.stderr_text();
        assert_eq!((run.code, message.lines().count()), (code, 1), "{arguments:?}: {message}");
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
    // `alter` creates no store.
    let nowhere = Store::new();
    assert_eq!(nowhere.run("alter", &["--compression", "lz4"]).code, 4);
    assert!(!Path::new(&nowhere.path()).exists());
}

#[test]
fn a_damaged_store_is_reported() {
    let store = Store::new();
    let pairs: String = (0..20_000).map(|n| format!("k{n:05}\tvalue {n}\n")).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    store.ok("compact", &[]);
    let damaged = data_files(Path::new(&store.path()));
    assert!(!damaged.is_empty());
    for path in damaged {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        std::fs::write(&path, bytes).unwrap();
    }
    let run = store.run("check", &["--full"]);
    assert_eq!(run.code, 3, "{} {}", run.stdout_text(), run.stderr_text());
    assert!(run.stderr_text().starts_with("spinney: "));
    assert_eq!(run.stderr_text().lines().count(), 1);
    let run = store.run("export", &["--format", "tsv"]);
    assert_eq!(run.code, 3, "{}", run.stderr_text());
}

/// Table files: those whose names end in `.table`.
fn data_files(store: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![store.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "table") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn errors_are_one_line_that_says_what_to_try() {
    let store = Store::new();
    let run = store.run("get", &["k"]);
    assert_eq!(run.code, 4, "a read does not create a store: {}", run.stderr_text());
    assert_eq!(run.stderr_text().lines().count(), 1);
    assert!(!Path::new(&store.path()).exists());
    store.ok("put", &["k", "v"]);
    let run = store.run("get", &["k", "--keyspace", "none"]);
    assert_eq!(run.code, 4);
    assert!(run.stderr_text().contains("spinney keyspaces"), "{}", run.stderr_text());
}

#[test]
fn a_store_in_use_is_named() {
    let store = Store::new();
    let ack = store.file("ack", b"");
    let path = store.path();
    let import = ["import", &path, "-", "--format", "lines", "--batch", "1", "--ack", &ack];
    let mut child = command(&import).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The head of the input is looked at before records are cut, so give it more than that.
    stdin.write_all("line\n".repeat(100_000).as_bytes()).unwrap();
    while std::fs::metadata(&ack).unwrap().len() == 0 {
        std::thread::yield_now();
    }
    let run = store.run("get", &["k"]);
    drop(stdin);
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success() && rest.starts_with("imported 100,000 records"));
    assert_eq!(run.code, 4);
    assert!(run.stderr_text().contains("already open"), "{}", run.stderr_text());
}

#[test]
fn inspect_draws_text_and_a_page() {
    let store = Store::new();
    let pairs: String = (0..20_000).map(|n| format!("k{n:05}\tvalue {n}\n")).collect();
    store.ok_with("import", &["-", "--format", "tsv"], pairs.as_bytes());
    store.ok("flush", &[]);
    let text = String::from_utf8(store.ok("inspect", &["--branches"])).unwrap();
    assert!(text.contains("node ") && text.contains("table "), "{text}");
    let page = store.directory.path().join("tree.html");
    store.ok("inspect", &["--html", page.to_str().unwrap()]);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.contains("class=\"branch\""));
}

#[test]
fn inspect_draws_levels_and_guards() {
    let store = Store::new();
    let pairs: String = (0..20_000).map(|n| format!("k{n:05}\tvalue {n}\n")).collect();
    let import = ["-", "--format", "tsv", "--kind", "flsm"];
    store.ok_with("import", &import, pairs.as_bytes());
    store.ok("flush", &[]);
    let text = String::from_utf8(store.ok("inspect", &[])).unwrap();
    assert!(text.contains("flsm") && text.contains("guard ") && text.contains("table "), "{text}");
    assert!(!text.contains("maplet"), "{text}");
    let page = store.directory.path().join("tree.html");
    store.ok("inspect", &["--html", page.to_str().unwrap()]);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("guards") && !html.contains("maplet of"));
    let picture = store.directory.path().join("tree.svg");
    store.ok("inspect", &["--svg", picture.to_str().unwrap()]);
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("class=\"frame\""));
}

#[test]
fn a_store_with_its_journal_elsewhere_is_found_by_every_command() {
    let store = Store::new();
    let memory = |name: &str| store.directory.path().join(name).to_str().unwrap().to_string();
    store.ok("put", &["a", "1", "--persistent-memory", &memory("memory")]);
    assert_eq!(store.ok("get", &["a"]), b"1\n");
    store.ok("put", &["b", "2"]);
    let names = std::fs::read_dir(memory("memory")).unwrap().map(|it| it.unwrap().file_name());
    assert!(names.into_iter().any(|name| name.to_string_lossy().starts_with("journal-")));
    std::fs::rename(memory("memory"), memory("moved")).unwrap();
    let run = store.run("get", &["a"]);
    assert_eq!(run.code, 4);
    assert!(run.stderr_text().contains("persistent memory in"), "{}", run.stderr_text());
    store.ok("put", &["c", "3", "--persistent-memory", &memory("moved")]);
    assert_eq!(store.ok("scan", &[]), b"a\t1\nb\t2\nc\t3\n");
    store.ok("check", &[]);
}
