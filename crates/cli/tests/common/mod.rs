//! Runs the command.
#![allow(dead_code)] // each test crate uses its own part

use std::io::Write;
use std::process::{Command, Stdio};

/// What a run of the command gave.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Run {
    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// The command, with small memory unless told otherwise.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spinney"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command to its end.
pub(crate) fn spinney(arguments: &[&str], input: &[u8]) -> Run {
    let mut child = command(arguments).spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    let input = input.to_vec();
    // A command may end before it has read everything; that shows in its exit code.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("the command ends");
    writer.join().expect("the writer ends");
    Run { code: output.status.code().unwrap_or(-1), stdout: output.stdout, stderr: output.stderr }
}
