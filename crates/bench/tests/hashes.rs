//! `spinney-bench hashes` checks what it measures.

use std::process::Command;

#[test]
fn perfect_hash_functions_are_compared() {
    let output = Command::new(env!("CARGO_BIN_EXE_spinney-bench"))
        .args(["hashes", "--keys", "1,1k", "--rounds", "1"])
        .output()
        .unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    for row in [
        "| 1 | Spinney displacement |",
        "| 1,000 | Spinney pilots |",
        "| 1,000 | pilots |",
        "| keys | hash index |",
    ] {
        assert!(said.contains(row), "{row}: {said}");
    }
}
