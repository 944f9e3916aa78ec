//! Tells the command which compiler built it: instruction counts are the compiler's as much as ours.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("--version").output().ok();
    let version = said.and_then(|said| String::from_utf8(said.stdout).ok()).unwrap_or_default();
    let version = if version.trim().is_empty() { "an unknown rustc" } else { version.trim() };
    println!("cargo:rustc-env=SPINNEY_BENCH_RUSTC={version}");
}
