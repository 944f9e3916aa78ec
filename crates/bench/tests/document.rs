//! The documents of the repository are what `spinney-bench document` makes.

use std::path::Path;
use std::process::Command;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap();
}

#[test]
fn committed_documents_are_what_committed_results_make() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = spinney_bench::document::made(&root).unwrap();
    assert!(made.len() > 3, "three documents and a picture");
    for (path, text) in made {
        let committed = std::fs::read_to_string(&path).unwrap();
        assert!(committed == text, "{} is stale: run `spinney-bench document`", path.display());
    }
}

#[test]
fn new_results_replace_a_table_and_nothing_else() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("docs/benchmarks/loads.json");
    copy(&root.join("docs/benchmarks/loads.json"), &results);
    let marker = "<!-- table loads.json: spinney:stb, rocksdb:leveled\nload rate\n-->";
    let document = format!("Before.\n\n{marker}\nold\n<!-- end -->\n\nAfter.\n");
    std::fs::write(dir.path().join("README.md"), &document).unwrap();
    std::fs::write(dir.path().join("docs/benchmarks.md"), "Nothing.\n").unwrap();
    std::fs::write(dir.path().join("docs/choosing.md"), "Nothing.\n").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spinney-bench"));
        let output =
            command.current_dir(dir.path()).arg("document").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let mut json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&results).unwrap()).unwrap();
    // Whatever the results that are kept today.
    json["results"][0]["operations_per_second"] = 2_500_000.0.into();
    json["results"][1]["operations_per_second"] = 200_000.0.into();
    json["rounds"] = serde_json::json!([{"timeline": []}]);
    let new = dir.path().join("new");
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("loads.json"), json.to_string()).unwrap();
    run(&["--keep", "new/loads.json"]);
    let text = std::fs::read_to_string(dir.path().join("README.md")).unwrap();
    assert!(text.starts_with(&format!("Before.\n\n{marker}\n\n| workload |")), "{text}");
    assert!(text.ends_with("\n\n<!-- end -->\n\nAfter.\n") && !text.contains("old"), "{text}");
    assert!(
        text.contains("| random insert | inserts per second | 2.50 M | 200 k | 12.5 |"),
        "{text}"
    );
    let kept = std::fs::read_to_string(&results).unwrap();
    assert!(
        !kept.contains("timeline") && !kept.contains("\"runs\""),
        "fields left out, none added"
    );
    let commands = run(&["--commands"]);
    assert!(
        commands.starts_with("spinney-bench compare ")
            && commands.ends_with(" --json loads.json\n")
    );
}
