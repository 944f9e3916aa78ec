//! Commands that only read leave a directory as it is, byte for byte, and need no permission to write.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{command, spinney};

/// Every command that reads alone, on the store or file at `path`.
fn reading(path: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["get", path, "key-0007"],
        vec!["scan", path],
        vec!["export", path, "--format", "tsv"],
        vec!["stats", path],
        vec!["check", path, "--full"],
        vec!["inspect", path],
        vec!["keyspaces", path],
        vec!["count", path],
    ]
}

/// Names, modes, times of change and bytes of all that is in a directory, and of the directory.
fn state(dir: &Path) -> BTreeMap<String, (u32, std::time::SystemTime, Vec<u8>)> {
    let mut state = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        let bytes = if metadata.is_dir() { Vec::new() } else { fs::read(entry.path()).unwrap() };
        let name = entry.file_name().into_string().unwrap();
        let mode = metadata.permissions().mode();
        state.insert(name, (mode, metadata.modified().unwrap(), bytes));
    }
    let metadata = fs::metadata(dir).unwrap();
    let own = (metadata.permissions().mode(), metadata.modified().unwrap(), Vec::new());
    state.insert(".".to_string(), own);
    state
}

/// A store with tables and a journal, and no lock file.
fn store(dir: &Path) -> String {
    let path = dir.join("store").to_str().unwrap().to_string();
    let lines: String = (0..2000).map(|i| format!("key-{i:04}\tvalue {i}\n")).collect();
    let run = spinney(&["import", &path, "--format", "tsv", "-"], lines.as_bytes());
    assert_eq!(run.code, 0, "{}", run.stderr_text());
    assert_eq!(spinney(&["flush", &path], b"").code, 0);
    assert_eq!(spinney(&["put", &path, "late", "in the journal"], b"").code, 0);
    fs::remove_file(Path::new(&path).join("LOCK")).unwrap();
    path
}

#[test]
fn reading_commands_leave_the_directory_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path());
    let before = state(path.as_ref());
    for arguments in reading(&path) {
        let run = spinney(&arguments, b"");
        assert_eq!(run.code, 0, "{arguments:?}: {}", run.stderr_text());
        assert!(state(path.as_ref()) == before, "{arguments:?} changed the store");
    }
}

/// `spinney inspect` had left `LOCK` in any directory that it was pointed at.
#[test]
fn reading_commands_leave_what_is_no_store_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    fs::write(&file, "mine").unwrap();
    let before = state(dir.path());
    let missing = dir.path().join("missing");
    for path in [dir.path(), &file, &missing] {
        for arguments in reading(path.to_str().unwrap()) {
            let run = spinney(&arguments, b"");
            assert_eq!(run.code, 4, "{arguments:?}");
            let message = run.stderr_text();
            assert!(message.contains("is not a Spinney store"), "{message}");
        }
    }
    assert!(state(dir.path()) == before);
}

/// `flush`, `compact`, `checkpoint`, `delete`, `drop-keyspace`, `import` and `put` were refused, and left
/// `LOCK` in a directory of somebody else's.
#[test]
fn writing_commands_leave_what_is_no_store_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (full, empty) = (dir.path().join("full"), dir.path().join("empty"));
    fs::create_dir(&full).unwrap();
    fs::create_dir(&empty).unwrap();
    let file = full.join("notes.txt");
    fs::write(&file, "mine").unwrap();
    let copy = dir.path().join("copy").to_str().unwrap().to_string();
    for (path, others) in [(&full, true), (&file, true), (&empty, false)] {
        let path = path.to_str().unwrap();
        let mut commands = vec![
            vec!["flush", path],
            vec!["compact", path],
            vec!["checkpoint", path, &copy],
            vec!["delete", path, "a"],
            vec!["drop-keyspace", path, "default", "--yes"],
        ];
        if others {
            commands.push(vec!["import", path, "--format", "tsv", "-"]);
            commands.push(vec!["put", path, "a", "b"]);
        }
        for arguments in commands {
            let before = (state(&full), state(&empty));
            let run = spinney(&arguments, b"a\tb\n");
            let message = run.stderr_text();
            assert_eq!(run.code, 4, "{arguments:?}: {message}");
            assert!(message.contains("is not a Spinney store"), "{arguments:?}: {message}");
            assert!((state(&full), state(&empty)) == before, "{arguments:?}");
        }
    }
    assert_eq!(spinney(&["put", empty.to_str().unwrap(), "a", "b"], b"").code, 0);
}

/// Runs as another user, if this one may become another; else as itself.
fn as_nobody(arguments: &[&str]) -> std::process::Output {
    let program = env!("CARGO_BIN_EXE_spinney");
    let wrapped = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", program])
        .args(arguments)
        .output();
    match wrapped {
        Ok(output) if !String::from_utf8_lossy(&output.stderr).starts_with("setpriv:") => output,
        _ => command(arguments).output().unwrap(),
    }
}

#[test]
fn a_store_of_another_owner_in_a_directory_without_write_permission_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = store(dir.path());
    for entry in fs::read_dir(&path).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    let before = state(path.as_ref());
    for arguments in reading(&path) {
        let output = as_nobody(&arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {message}");
    }
    assert!(state(path.as_ref()) == before);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_living_writer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path());
    let db = spinney::Database::builder(&path).open().unwrap();
    let run = spinney(&["scan", &path], b"");
    let message = run.stderr_text();
    assert_eq!(run.code, 4, "{message}");
    assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
    drop(db);
    let reader = spinney::Database::open_read_only(&path).unwrap();
    assert_eq!(spinney(&["scan", &path, "--limit", "1"], b"").code, 0);
    let run = spinney(&["put", &path, "a", "b"], b"");
    assert!(run.code == 4 && run.stderr_text().contains("for reading"), "{}", run.stderr_text());
    drop(reader);
    assert_eq!(spinney(&["put", &path, "a", "b"], b"").code, 0);
}

#[test]
fn a_journal_that_does_not_fit_says_which_memory_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store").to_str().unwrap().to_string();
    let lines: String = (0..40_000).map(|i| format!("key-{i:06}\t{:0100}\n", i)).collect();
    let run = spinney(&["import", &path, "--format", "tsv", "-"], lines.as_bytes());
    assert_eq!(run.code, 0, "{}", run.stderr_text());
    let run = spinney(&["get", &path, "key-000001", "--memory", "1MiB"], b"");
    let message = run.stderr_text();
    assert_eq!(run.code, 4, "{message}");
    let memory = message.split("--memory ").nth(1).and_then(|rest| rest.split(',').next());
    let run = spinney(&["get", &path, "key-000001", "--memory", memory.unwrap()], b"");
    assert_eq!(run.code, 0, "{}", run.stderr_text());
}
