//! What the command says before it touches a store.

mod common;

use common::spinney;

#[test]
fn help_lists_every_command_and_the_exit_codes() {
    let run = spinney(&["--help"], b"");
    assert_eq!(run.code, 0);
    for command in ["import", "export", "get", "scan", "check", "inspect", "checkpoint"] {
        assert!(run.stdout_text().contains(command), "{command}");
    }
    assert!(run.stdout_text().contains("3 the store is damaged"));
}

#[test]
fn every_commands_help_has_examples() {
    for command in [
        "import",
        "export",
        "get",
        "put",
        "delete",
        "scan",
        "count",
        "stats",
        "check",
        "compact",
        "flush",
        "options",
        "alter",
        "keyspaces",
        "drop-keyspace",
        "checkpoint",
        "inspect",
        "bench",
    ] {
        let run = spinney(&[command, "--help"], b"");
        assert!(run.stdout_text().contains(&format!("spinney {command} my.")), "{command}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &["fly", "s"][..],
        &["get", "s"],
        &["get", "s", "k", "--memory", "lots"],
        &["get", "s", "0g", "--hex"],
        &["put", "s", "k", "\\q", "--escape"],
        &["scan", "s", "--from", "b", "--to", "a"],
        &["export", "s", "--format", "tsv", "--pairs"],
        &["drop-keyspace", "s", "k"],
        &["import", "s", "--kind", "lsm"],
        &["get", "s", "k", "--memry", "1GiB"],
        // Was accepted and ignored. Without the repair, the benchmark runs.
        &["bench", "s", "--persistent-memory", "d"],
    ] {
        let run = spinney(arguments, b"");
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.stderr_text());
        assert!(run.stdout.is_empty(), "{arguments:?}");
        let stderr = run.stderr_text();
        assert!(
            stderr.lines().count() == 1 && stderr.starts_with("spinney: "),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn the_kinds_of_trees_are_in_the_help() {
    for command in ["import", "put"] {
        let run = spinney(&[command, "--help"], b"");
        let help = run.stdout_text();
        assert!(spinney::TreeKind::ALL.iter().all(|kind| help.contains(kind.name())), "{help}");
    }
}

#[test]
fn each_kind_is_measured_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bench");
    let path = path.to_str().unwrap();
    let short = ["--records", "2000", "--seconds", "0.01"];
    let run = spinney(&[&["bench", path][..], &short].concat(), b"");
    assert_eq!(run.code, 0, "{}", run.stderr_text());
    let text = run.stdout_text();
    for kind in spinney::TreeKind::ALL {
        assert!(text.contains(kind.name()), "{text}");
    }
    assert_eq!(text.lines().filter(|line| line.contains('*')).count(), 12, "{text}");
    let run = spinney(&[&["bench", path, "--kind", "flsm", "--json"][..], &short].concat(), b"");
    let value: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(value["rows"].as_array().unwrap().len(), 12);
    assert!(value["rows"][1]["operations_per_second"]["flsm"].as_f64().unwrap() > 0.0);
    assert!(!std::path::Path::new(path).exists());
    std::fs::create_dir(path).unwrap();
    std::fs::write(format!("{path}/stb"), "of the user").unwrap();
    let run = spinney(&[&["bench", path][..], &short].concat(), b"");
    assert_eq!(run.code, 4);
    assert_eq!(std::fs::read(format!("{path}/stb")).unwrap(), b"of the user");
}

#[test]
fn an_input_that_cannot_be_read_creates_no_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s");
    let run = spinney(&["import", store.to_str().unwrap(), "/no/such/file.tsv"], b"");
    assert_eq!(run.code, 4);
    assert_eq!(run.stderr_text().lines().count(), 1);
    assert!(run.stderr_text().starts_with("spinney: cannot read /no/such/file.tsv"));
    assert!(!store.exists());
}
