//! `spinney import` and `export` where something is wrong with the input, the store or the output.

mod common;

use std::io::Write;

use common::{Run, spinney};

/// A store in a directory of its own.
struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Store {
        Store(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }

    fn file(&self, name: &str, contents: &[u8]) -> String {
        std::fs::write(self.path(name), contents).unwrap();
        self.path(name)
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Run {
        let path = self.path("store");
        spinney(&[&[name, path.as_str(), "--memory", "16MiB"], arguments].concat(), b"")
    }

    /// What the command prints; it must succeed.
    fn ok(&self, name: &str, arguments: &[&str]) -> String {
        let run = self.run(name, arguments);
        assert_eq!(run.code, 0, "{name} {arguments:?}: {}", run.stderr_text());
        run.stdout_text()
    }

    /// The one line with which the command fails.
    fn fails(&self, code: i32, name: &str, arguments: &[&str]) -> String {
        let run = self.run(name, arguments);
        let message = run.stderr_text();
        assert_eq!(run.code, code, "{name} {arguments:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        message
    }
}

/// A quote that was never closed took the rest of the file as one field, and `import` said that all was well.
#[test]
fn a_csv_file_with_an_unclosed_quote_is_refused_and_goes_on_once_it_is_closed() {
    let store = Store::new();
    let text = "id,name\n1,one\n2,two\n3,\"three\n4,four\n5,five\n";
    let file = store.file("people.csv", text.as_bytes());
    let message = store.fails(4, "import", &[&file]);
    assert!(message.contains("record 4 of") && message.contains("people.csv"), "{message}");
    assert!(message.contains("never closed") && message.contains("3,\\\"three"), "{message}");
    assert!(
        message.contains(
            "2 records of this import are kept: remove the cause and continue with --skip 2"
        ),
        "{message}"
    );
    assert_eq!(store.ok("count", &[]), "2\n");
    let file = store.file("people.csv", text.replace("\"three", "\"three\"").as_bytes());
    let summary = store.ok("import", &[&file, "--skip", "2"]);
    assert!(
        summary.starts_with("imported 3 records") && summary.contains("2 skipped"),
        "{summary}"
    );
    assert_eq!(store.ok("count", &[]), "5\n");
}

/// The message named neither the file nor the record.
#[test]
fn a_key_that_is_too_long_is_named_by_file_and_record() {
    let store = Store::new();
    let long = format!("a\t1\n\nb\t2\n{}\t3\nc\t4\n", "x".repeat(70_000));
    let file = store.file("pairs.tsv", long.as_bytes());
    let message = store.fails(4, "import", &[&file]);
    assert!(message.contains("record 4 of") && message.contains("pairs.tsv"), "{message}");
    assert!(message.contains("70000 bytes") && message.contains("at most 65536"), "{message}");
    assert!(message.contains("--skip 2"), "{message}");
    // Empty lines are no records: --skip counts as the message does.
    let file = store.file("pairs.tsv", b"a\t1\n\nb\t2\nc\t4\n");
    let summary = store.ok("import", &[&file, "--skip", "2"]);
    assert!(summary.starts_with("imported 1 records"), "{summary}");
    assert_eq!(store.ok("scan", &[]), "a\t1\nb\t2\nc\t4\n");
}

#[test]
fn numbered_lines_keep_their_numbers_over_a_skip() {
    let store = Store::new();
    let (first, second) = (store.file("1", b"one\n\ntwo\n"), store.file("2", b"three\nfour\n"));
    store.ok("import", &[&first, "--format", "lines"]);
    store.ok("import", &[&first, &second, "--format", "lines", "--skip", "3"]);
    assert_eq!(store.ok("export", &["--format", "raw"]), "one\n\ntwo\nthree\nfour\n");
}

#[test]
fn a_cut_lz4_file_says_so_and_what_is_kept() {
    let store = Store::new();
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    for number in 0..200_000u32 {
        writeln!(encoder, "{number:08}\t{}", number.wrapping_mul(2_654_435_761)).unwrap();
    }
    let whole = encoder.finish().unwrap();
    let file = store.file("pairs.tsv.lz4", &whole[..whole.len() / 2]);
    let message = store.fails(4, "import", &[&file]);
    assert!(message.contains("the file is cut short"), "{message}");
    let kept: u64 = message
        .split("--skip ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(store.ok("count", &[]), format!("{kept}\n"));
    let file = store.file("pairs.tsv.lz4", &whole);
    store.ok("import", &[&file, "--skip", &kept.to_string()]);
    assert_eq!(store.ok("count", &[]), "200000\n");
}

/// `--kind` and `--compression` said nothing where they changed nothing.
#[test]
fn options_of_a_keyspace_that_exists_are_not_ignored() {
    let store = Store::new();
    let file = store.file("pairs.tsv", b"a\t1\n");
    store.ok("import", &[&file, "--kind", "flsm", "--compression", "lz4"]);
    for arguments in
        [["--kind", "stb"], ["--compression", "none"], ["--option", "tables_per_guard_max=3"]]
    {
        let message = store.fails(2, "import", &[&[file.as_str()], &arguments[..]].concat());
        assert!(message.contains(arguments[0]) && message.contains("\"default\""), "{message}");
    }
    store.ok("import", &[&file, "--kind", "flsm"]);
    store.ok("import", &[&file, "--compression", "lz4"]);
    store.ok("import", &[&file]);
}

#[test]
fn an_export_to_a_full_device_says_what_it_could_not_write() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let store = Store::new();
    let pairs: String = (0..20_000).map(|n| format!("k{n:05}\tvalue {n}\n")).collect();
    let file = store.file("pairs.tsv", pairs.as_bytes());
    store.ok("import", &[&file]);
    let message = store.fails(4, "export", &["--format", "tsv", "--output", "/dev/full"]);
    assert!(
        message.contains("cannot write /dev/full") && message.contains("incomplete"),
        "{message}"
    );
}
