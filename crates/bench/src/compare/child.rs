//! The process in which one engine works, and the conversation with it: a JSON line each way.
//!
//! Invariants:
//! 1. The child enters its memory cgroup before it opens the engine, so the limit holds from the first
//!    byte on.
//! 2. A child that is gone is an answer too: that of the kernel or of the engine, told apart by the
//!    cgroup's own count of kills.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::engine::EngineName;
use crate::measure::cgroup::Cgroup;
use crate::measure::measurement::Measurement;
use crate::workload::store::{Contents, Plan, Store};

/// The first message to a child.
#[derive(Debug, Serialize, Deserialize)]
struct Beginning {
    plan: Plan,
    contents: Contents,
    /// Where it writes its id.
    cgroup_processes: Option<PathBuf>,
}

/// The further requests.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Run the workload of that name.
    Run(String),
    /// Read the records written last.
    CheckLast,
    /// Close the store and end.
    Close,
}

/// The answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The store is open.
    Opened { seconds: f64 },
    /// The workload is done.
    Done { measurement: Box<Measurement>, contents: Contents },
    /// The number of the last records that were not as written.
    Checked { bad: u64 },
    /// The store is closed.
    Closed,
    /// The engine's error.
    Failed { what: String },
}

/// The child's side: serves the requests on standard input until its end.
///
/// # Errors
/// Errors of the protocol only; failures of the engine are answers.
pub fn serve() -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut lines = std::io::stdin().lock().lines();
    let mut next = || lines.next().transpose().map_err(text);
    let beginning = next()?.ok_or("this command is for the comparison's own use")?;
    let beginning: Beginning = serde_json::from_str(&beginning).map_err(|e| e.to_string())?;
    if let Some(file) = &beginning.cgroup_processes {
        fs::write(file, std::process::id().to_string())
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let say = |answer: &Answer| -> Result<(), String> {
        let line = serde_json::to_string(answer).map_err(|e| e.to_string())?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(text)
    };
    let failed = |what| Answer::Failed { what };
    let mut store = match Store::open(beginning.plan, beginning.contents) {
        Ok(store) => store,
        Err(what) => return say(&failed(what)),
    };
    say(&Answer::Opened { seconds: store.opened_in.as_secs_f64() })?;
    while let Some(line) = next()? {
        match serde_json::from_str(&line).map_err(|e| e.to_string())? {
            Request::Run(workload) => {
                let answer = match workload.parse().and_then(|workload| store.run(&workload)) {
                    Ok(measurement) => Answer::Done {
                        measurement: Box::new(measurement),
                        contents: store.contents(),
                    },
                    Err(what) => failed(what),
                };
                say(&answer)?;
            }
            Request::CheckLast => say(&match store.check_last() {
                Ok(bad) => Answer::Checked { bad },
                Err(what) => failed(what),
            })?,
            Request::Close => {
                return say(&store.close().map_or_else(failed, |()| Answer::Closed));
            }
        }
    }
    Ok(())
}

/// An engine at work in a child, from the side of the parent.
pub(super) struct Running {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    cgroup: Option<Cgroup>,
    pub(super) contents: Contents,
    pub(super) open_seconds: f64,
}

impl Running {
    /// Starts a child that opens the store.
    pub(super) fn start(
        plan: &Plan,
        contents: Contents,
        cgroup: Option<Cgroup>,
    ) -> Result<Running, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let engine: EngineName = plan.engine.parse()?;
        let mut child = Command::new(program)
            .arg("child")
            .envs(engine.environment().iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a process: {error}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process without its pipes".to_string());
        };
        let answers = BufReader::new(answers);
        let mut running = Running { child, requests, answers, cgroup, contents, open_seconds: 0.0 };
        let mut plan = plan.clone();
        plan.cgroup_peak = running.cgroup.as_ref().map(Cgroup::peak);
        let cgroup_processes = running.cgroup.as_ref().map(Cgroup::processes);
        let beginning = Beginning { plan, contents, cgroup_processes };
        let line = serde_json::to_string(&beginning).map_err(|error| error.to_string())?;
        match running.converse(&line)? {
            Answer::Opened { seconds } => running.open_seconds = seconds,
            other => return Err(format!("an answer out of place: {other:?}")),
        }
        Ok(running)
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        let line = serde_json::to_string(request).map_err(|error| error.to_string())?;
        self.converse(&line)
    }

    fn converse(&mut self, line: &str) -> Result<Answer, String> {
        let mut answer = String::new();
        let sent = writeln!(self.requests, "{line}").and_then(|()| self.requests.flush());
        let read = sent.and_then(|()| self.answers.read_line(&mut answer));
        match read {
            Ok(bytes) if bytes > 0 => match serde_json::from_str(&answer) {
                Ok(Answer::Failed { what }) => Err(what),
                Ok(answer) => Ok(answer),
                Err(error) => Err(format!("not an answer: {error}")),
            },
            _ => Err(self.died()),
        }
    }

    /// Why it is gone.
    fn died(&mut self) -> String {
        let status = self.child.wait();
        if self.cgroup.as_ref().is_some_and(Cgroup::has_killed) {
            return "killed by the kernel: it needed more memory than the limit".to_string();
        }
        match status {
            Ok(status) => format!("its process ended: {status}"),
            Err(error) => format!("its process is gone: {error}"),
        }
    }

    /// Runs a workload.
    pub(super) fn run(&mut self, workload: &str) -> Result<Measurement, String> {
        match self.ask(&Request::Run(workload.to_string()))? {
            Answer::Done { measurement, contents } => {
                self.contents = contents;
                Ok(*measurement)
            }
            other => Err(format!("an answer out of place: {other:?}")),
        }
    }

    /// How many of the last records are not as written.
    pub(super) fn check_last(&mut self) -> Result<u64, String> {
        match self.ask(&Request::CheckLast)? {
            Answer::Checked { bad } => Ok(bad),
            other => Err(format!("an answer out of place: {other:?}")),
        }
    }

    /// Closes the store and ends the child.
    pub(super) fn close(mut self) -> Result<(), String> {
        let result = self.ask(&Request::Close).map(|_| ());
        let _ = self.child.wait();
        result
    }

    /// Ends the child as a crash would. (Dropping does the same.)
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already. The cgroup can be removed only once it has.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
