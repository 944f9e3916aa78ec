//! The command on damaged stores: what can be read comes out, and what cannot is listed.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::spinney;

const PAIRS: usize = 60_000;

/// A store of `PAIRS` pairs in tables.
fn store(dir: &Path) -> String {
    let path = dir.join("store").to_str().unwrap().to_string();
    let lines: String = (0..PAIRS).map(|i| format!("key-{i:06}\tvalue {i:050}\n")).collect();
    let run = spinney(&["import", &path, "--format", "tsv", "-"], lines.as_bytes());
    assert_eq!(run.code, 0, "{}", run.stderr_text());
    assert_eq!(spinney(&["compact", &path], b"").code, 0);
    path
}

/// The largest table.
fn table(path: &str) -> PathBuf {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let tables = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "table"));
    tables.max_by_key(|entry| entry.metadata().unwrap().len()).unwrap().path()
}

fn damage(file: &Path, offset: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[offset] ^= 0xff;
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_store_is_repaired_and_the_report_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path());
    let table = table(&path);
    damage(&table, 10 * 4096 + 99);
    let run = spinney(&["check", &path, "--full"], b"");
    assert_eq!(run.code, 3);
    // The same damage once, and no advice to do what has just been done.
    assert_eq!(run.stdout_text().matches("at byte 40960").count(), 1, "{}", run.stdout_text());
    assert!(!run.stdout_text().contains("spinney check") && run.stderr_text().contains("repair"));
    let target = dir.path().join("repaired").to_str().unwrap().to_string();
    let run = spinney(&["repair", &path, &target], b"");
    assert_eq!(run.code, 3, "{}", run.stderr_text());
    let said = run.stdout_text();
    assert!(said.contains("keys from \"key-") && said.contains("at byte 40960"), "{said}");
    assert_eq!(spinney(&["check", &target, "--full"], b"").code, 0);
    let count = spinney(&["count", &target], b"").stdout_text();
    let count: usize =
        count.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
    assert!(count < PAIRS && count > PAIRS - 200, "{count}");
    // Without a manifest, in place.
    for name in ["SPINNEY", "manifest-00000001"] {
        fs::remove_file(Path::new(&target).join(name)).unwrap();
    }
    let run = spinney(&["repair", &target, "--in-place"], b"");
    assert_eq!(run.code, 3, "{}", run.stderr_text());
    assert!(run.stdout_text().contains("the manifest is lost or damaged"), "{}", run.stdout_text());
    assert!(Path::new(&format!("{target}.damaged")).exists());
    let again = spinney(&["count", &target], b"").stdout_text();
    assert!(
        again.contains(&count.to_string()) || again.replace(',', "").contains(&count.to_string())
    );
}

/// `export` and `scan` ended at the first page that could not be read: 870 KB of 52 MB came out.
#[test]
fn what_can_be_read_is_exported_and_what_cannot_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path());
    let table = table(&path);
    damage(&table, 10 * 4096 + 99);
    damage(&table, 30 * 4096 + 99);
    let run = spinney(&["export", &path, "--format", "tsv"], b"");
    assert_eq!(run.code, 3);
    let said = run.stderr_text();
    assert!(said.contains("keys from \"key-") && said.contains("--skip-damaged"), "{said}");
    for command in [
        vec!["export", &path, "--format", "tsv"],
        vec!["scan", &path],
        vec!["scan", &path, "--reverse"],
    ] {
        let run = spinney(&[&command[..], &["--skip-damaged"]].concat(), b"");
        assert_eq!(run.code, 3, "{}", run.stderr_text());
        let said = run.stderr_text();
        assert_eq!(said.matches("missing: keys from \"key-").count(), 2, "{said}");
        assert!(said.contains("at byte 40960") && said.contains("2 ranges of keys"), "{said}");
        let count = run.stdout_text().lines().count();
        assert!(count < PAIRS && count > PAIRS - 400, "{count}");
    }
    // What is not asked for is not missing.
    let run = spinney(&["scan", &path, "--skip-damaged", "--from", "key-050000"], b"");
    assert_eq!((run.code, run.stdout_text().lines().count()), (0, 10_000), "{}", run.stderr_text());
}

/// The file of a store whose name begins so.
fn file(path: &str, prefix: &str) -> PathBuf {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    entries.filter(named).max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

/// A check stopped at the first bad page of a table and said `1 problems`. Without `--full` it counted pages as
/// checked that it had not read.
#[test]
fn a_check_names_every_damaged_page_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path());
    let table = table(&path);
    for (pages, found) in [(vec![10], "1 problem"), (vec![30, 31, 200], "3 problems")] {
        for page in pages {
            damage(&table, page * 4096 + 99);
        }
        let run = spinney(&["check", &path, "--full"], b"");
        assert_eq!(run.code, 3);
        let said = run.stdout_text();
        assert!(said.contains(&format!(": {found}\n")), "{said}");
        assert!(run.stderr_text().contains(&format!("({found})")), "{}", run.stderr_text());
        assert_eq!(said.matches("at byte 40960").count(), 1, "{said}");
    }
    let run = spinney(&["check", &path], b"");
    let said = run.stdout_text();
    assert!(run.code == 0 && said.contains("structure") && said.contains("--full reads"), "{said}");
    // A keyspace that cannot be opened: what `check` says is no advice to ask `check`.
    let last = table.metadata().unwrap().len() as usize - 4000;
    damage(&table, last);
    let run = spinney(&["check", &path], b"");
    let said = run.stdout_text() + &run.stderr_text();
    assert!(run.code == 3 && !said.contains("says why"), "{said}");
    let run = spinney(&["stats", &path], b"");
    assert!(run.stderr_text().contains("`spinney check` says why"), "{}", run.stderr_text());
}

/// With a byte of the journal flipped, 1,346 of 2,000 records were lost without a word, with exit code 0. The
/// repair listed the one damage three times, and advised to do what it was doing.
#[test]
fn damage_of_the_journal_is_told_once_and_never_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store").to_str().unwrap().to_string();
    let db = spinney::Database::builder(&path).journal_shards(1).open().unwrap();
    let items = db.keyspace("default", spinney::KeyspaceOptions::stb()).unwrap();
    for i in 0..2000 {
        items.put(format!("key-{i:04}"), format!("value {i}")).unwrap();
    }
    drop(items);
    db.close().unwrap();
    let journal = file(&path, "journal-");
    let bytes = fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    damage(&journal, used / 3);
    let run = spinney(&["check", &path], b"");
    assert_eq!(run.code, 3, "{}", run.stdout_text());
    let run = spinney(&["check", &path, "--salvage-journal"], b"");
    let said = run.stdout_text();
    assert_eq!(run.code, 3, "{said}");
    assert!(said.contains("whole records behind the damage were dropped"), "{said}");
    let target = dir.path().join("repaired").to_str().unwrap().to_string();
    let run = spinney(&["repair", &path, &target], b"");
    let said = run.stdout_text();
    assert_eq!(run.code, 3, "{said}");
    assert_eq!(said.matches("damaged: ").count(), 1, "{said}");
    assert!(!said.contains("`spinney repair`"), "{said}");
    assert_eq!(spinney(&["count", &target], b"").stdout_text(), "1999\n");
    let run = spinney(&["put", &path, "a", "b", "--salvage-journal"], b"");
    let said = run.stderr_text();
    assert!(run.code == 0 && said.contains("note: the journal was damaged"), "{said}");
    assert!(said.contains("whole records behind the damage were dropped"), "{said}");
}

/// Header and first record of a manifest were told of as two damages, and of tables with advice to do what was
/// being done.
#[test]
fn a_damaged_manifest_and_what_else_is_wrong_are_told_once_without_advice() {
    let dir = tempfile::tempdir().unwrap();
    for at in [20, 50] {
        let path = store(&dir.path().join(at.to_string()));
        damage(&file(&path, "manifest-"), at);
        damage(&table(&path), 10 * 4096 + 99);
        let target = format!("{path}.new");
        let run = spinney(&["repair", &path, &target], b"");
        let said = run.stdout_text();
        assert_eq!(run.code, 3, "{said}");
        let damages = said.lines().filter(|line| line.starts_with("damaged: "));
        assert_eq!(damages.count(), 1, "{said}");
        assert!(!said.contains("`spinney repair`"), "{said}");
    }
    let file = dir.path().join("notes.txt");
    fs::write(&file, "mine").unwrap();
    let target = dir.path().join("new");
    let run = spinney(&["repair", file.to_str().unwrap(), target.to_str().unwrap()], b"");
    assert!(run.code == 4 && run.stderr_text().contains("it is a file"), "{}", run.stderr_text());
}

/// Keeps the last operand.
struct Last;

impl spinney::MergeOperator for Last {
    fn name(&self) -> &str {
        "last"
    }

    fn full_merge(&self, _: &[u8], _: Option<&[u8]>, all: &[&[u8]]) -> Result<Vec<u8>, String> {
        Ok(all.last().unwrap_or(&&b""[..]).to_vec())
    }
}

/// The command has no way to register an operator, and one keyspace that needed one kept all from being repaired.
#[test]
fn a_store_with_an_operator_of_its_own_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store").to_str().unwrap().to_string();
    let open = |path: &str| {
        let builder = spinney::Database::builder(path);
        builder.merge_operator(std::sync::Arc::new(Last)).open().unwrap()
    };
    let db = open(&path);
    let options = spinney::KeyspaceOptions::stb();
    let items = db.keyspace("items", options.clone().merge_operator("last")).unwrap();
    items.put("put", "1").unwrap();
    items.merge("merged", "2").unwrap();
    db.keyspace("other", options).unwrap().put("a", "b").unwrap();
    drop(items);
    db.close().unwrap();
    let run = spinney(&["repair", &path, "--in-place"], b"");
    let said = run.stdout_text();
    assert_eq!(run.code, 0, "{said} {}", run.stderr_text());
    assert!(said.contains("keyspace items: 1 pairs") && said.contains("1 more key has"), "{said}");
    assert!(said.contains("keyspace other: 1 pairs"), "{said}");
    let db = open(&path);
    let items = db.existing_keyspace("items").unwrap();
    assert_eq!(items.get("merged").unwrap().as_deref(), Some(&b"2"[..]));
}

/// A store whose manifest had been cut at the end of its first record was checked without a problem, opened as an
/// empty one, and repaired to an empty one.
#[test]
fn a_manifest_cut_short_is_damage_and_a_torn_one_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path());
    let manifest = Path::new(&path).join("manifest-00000001");
    let whole = fs::read(&manifest).unwrap();
    // What is left of an append that a crash has torn.
    fs::write(&manifest, [&*whole, &[7; 21]].concat()).unwrap();
    let run = spinney(&["check", &path], b"");
    assert_eq!(run.code, 0, "{}", run.stderr_text());
    let said = run.stdout_text();
    assert!(said.contains("0 problems") && said.contains("21 bytes at the end of"), "{said}");
    for cut in [100, 128, whole.len() / 2, whole.len() - 1] {
        fs::write(&manifest, &whole[..cut]).unwrap();
        for command in ["check", "count"] {
            let run = spinney(&[command, &path], b"");
            let said = run.stderr_text();
            assert_eq!(run.code, 3, "{command}, cut to {cut}: {said}");
            assert!(said.contains("manifest-00000001 at byte"), "{said}");
            assert!(said.contains("spinney repair"), "{said}");
        }
        let target = dir.path().join(format!("repaired-{cut}")).to_str().unwrap().to_string();
        assert_eq!(spinney(&["repair", &path, &target], b"").code, 3);
        let count = spinney(&["count", &target], b"").stdout_text();
        assert!(count.contains("60,000") || count.contains("60000"), "cut to {cut}: {count}");
    }
}
