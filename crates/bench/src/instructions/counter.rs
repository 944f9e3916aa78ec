//! The counters: callgrind, or the processor through `perf`.
//!
//! Invariants:
//! 1. A counted process is given the same environment and the same name for itself whoever starts it and
//!    wherever it is: strings of other lengths shift the heap, and with it what some allocations cost.
//! 2. A process that failed, or whose count cannot be read, gives an error with what was said, never a
//!    number.

use std::env;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Advice where there is no counter.
const REMEDY: &str = "install valgrind (Debian: apt-get install valgrind), or perf on a machine whose \
                      processor lets its instructions be counted";
/// Environment variables that counted processes inherit: the path of programs, and valgrind's own.
const ENVIRONMENT: [&str; 2] = ["PATH", "VALGRIND_LIB"];
const CALLGRIND: [&str; 3] = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--"];
const PERF: [&str; 6] = ["stat", "-x", ",", "-e", "instructions:u", "--"];

/// A program that counts the instructions of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    tool: Tool,
    version: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Callgrind,
    Perf,
}

/// The result of a counted process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Of the whole process, in user space.
    pub instructions: u64,
    /// The work that it reports.
    pub operations: u64,
}

impl Counter {
    /// The one there is: callgrind before perf, since its counts are those of any machine.
    ///
    /// # Errors
    /// What to install if there is none.
    pub fn find() -> Result<Counter, String> {
        if let Ok(version) = first_line(Command::new("valgrind").arg("--version").output()) {
            return Ok(Counter { tool: Tool::Callgrind, version });
        }
        let tried = Command::new("perf").args(PERF).arg("true").output();
        let counts = |tried: &Output| perf_count(&String::from_utf8_lossy(&tried.stderr)).is_ok();
        if tried.is_ok_and(|tried| counts(&tried))
            && let Ok(version) = first_line(Command::new("perf").arg("--version").output())
        {
            return Ok(Counter { tool: Tool::Perf, version });
        }
        Err(format!("nothing here can count instructions: {REMEDY}"))
    }

    /// The counter and its version.
    pub fn describe(&self) -> String {
        match self.tool {
            Tool::Callgrind => format!("callgrind, {}", self.version),
            Tool::Perf => format!("perf, {}", self.version),
        }
    }

    /// Runs this program with these arguments and counts.
    ///
    /// # Errors
    /// The process's message, if it failed.
    pub fn count(&self, arguments: &[&str]) -> Result<Counted, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = match self.tool {
            Tool::Callgrind => Command::new("valgrind"),
            Tool::Perf => Command::new("perf"),
        };
        match self.tool {
            Tool::Callgrind => command.args(CALLGRIND),
            Tool::Perf => command.args(PERF),
        };
        let (dir, file) =
            program.parent().zip(program.file_name()).ok_or("a program without a name")?;
        command.env_clear().stdin(Stdio::null()).current_dir(dir);
        for name in ENVIRONMENT {
            if let Some(value) = env::var_os(name) {
                command.env(name, value);
            }
        }
        let output = command.arg(Path::new(".").join(file)).args(arguments).output();
        let output = output.map_err(|error| format!("cannot start {}: {error}", self.version))?;
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let failed = |why: &str| format!("{why}: {}", errors.trim());
        if !output.status.success() {
            return Err(failed(&output.status.to_string()));
        }
        let instructions = match self.tool {
            Tool::Callgrind => callgrind_count(&errors),
            Tool::Perf => perf_count(&errors),
        };
        let instructions = instructions.map_err(|why| failed(&why))?;
        let operations = said.trim().parse().map_err(|_| failed("no number of operations"))?;
        Ok(Counted { instructions, operations })
    }
}

/// The first line of output of a program that succeeded.
fn first_line(output: std::io::Result<Output>) -> Result<String, String> {
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().next().map(str::trim).filter(|line| !line.is_empty());
    line.filter(|_| output.status.success()).map(str::to_string).ok_or("it failed".to_string())
}

/// The count among what callgrind says: `==PID== Collected : COUNT`.
fn callgrind_count(said: &str) -> Result<u64, String> {
    let own = said.lines().filter_map(|line| line.strip_prefix("==")?.split_once("== "));
    let mut counts = own.filter_map(|(_, rest)| rest.trim().strip_prefix("Collected :"));
    let count = counts.next_back().ok_or("callgrind has not said how many it collected")?.trim();
    count.parse().map_err(|_| format!("callgrind collected {count:?}"))
}

/// The count in the output of `perf stat -x ,`: `COUNT,UNIT,EVENT,...`.
fn perf_count(said: &str) -> Result<u64, String> {
    let fields = said.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let mut events =
        fields.filter(|f| f.get(2).is_some_and(|event| event.contains("instructions")));
    let event = events.next().ok_or("perf has not counted instructions")?;
    event[0].trim().parse().map_err(|_| format!("perf counted {}", event[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_what_callgrind_says() {
        let said = "==71== Callgrind, a call-graph generating cache profiler\n\
                    ==71== Command: spinney-bench counted stb loaded get\n\
                    ==71== brk segment overflow in thread #1: can't grow to 0x485c000\n\
                    ==71== \n==71== Events    : Ir\n==71== Collected : 728435514\n==71== \n\
                    ==71== I   refs:      728,435,514\n";
        assert_eq!(callgrind_count(said), Ok(728_435_514));
        let crashed = "==71== Process terminating with default action of signal 4 (SIGILL)\n";
        assert!(callgrind_count(crashed).is_err());
        assert!(
            callgrind_count("Collected : 5\n").is_err(),
            "the process said that, not callgrind"
        );
        assert!(callgrind_count("==71== Collected : many\n").unwrap_err().contains("many"));
    }

    #[test]
    fn the_count_is_found_in_what_perf_says() {
        let said =
            "a line of the process, with commas,\n728435514,,instructions:u,98765,100.00,,\n";
        assert_eq!(perf_count(said), Ok(728_435_514));
        let guest = "<not supported>,,instructions:u,0,100.00,,\n";
        assert!(perf_count(guest).unwrap_err().contains("not supported"));
        assert!(perf_count("<not counted>,,instructions:u,0,0.00,,\n").is_err());
        assert!(perf_count("error: access is limited\n").is_err());
    }

    #[test]
    fn a_program_that_fails_is_not_there() {
        let run = |program: &str| first_line(Command::new(program).arg("--version").output());
        assert!(run("no-such-program-of-spinney").is_err());
        assert!(run("false").is_err());
    }
}
