//! One search, as its parent sees it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use spinney::planted::Bug;

use super::regimes::REGIMES;

/// A regime that takes longer than this for its part of a round hangs.
const PART_SECONDS_MAX: u64 = 20;

/// A search for a bug, or for false alarms.
pub(super) struct Search {
    /// What is planted.
    pub(super) bug: Option<Bug>,
    /// The first round's seed.
    pub(super) seed: u64,
    rounds: u64,
    limit: Duration,
}

/// How a search ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended {
    /// The regime that told, and what.
    pub(super) found: Option<(String, String)>,
    /// Rounds begun.
    pub(super) rounds: u64,
    /// States judged.
    pub(super) states: u64,
    pub(super) seconds: f64,
}

impl Search {
    /// A search of at most so many rounds that take at most this time.
    pub(super) fn new(bug: Option<Bug>, seed: u64, rounds: u64, limit: Duration) -> Search {
        Search { bug, seed, rounds, limit }
    }

    /// Carries it out.
    pub(super) fn carry_out(&self) -> Ended {
        let started = Instant::now();
        let mut ended = Ended::default();
        let mut child = match self.start() {
            Ok(child) => child,
            Err(error) => {
                ended.found = Some(("start".to_string(), error.to_string()));
                return ended;
            }
        };
        let lines = lines_of(&mut child);
        self.follow(&lines, started, &mut ended);
        // Ended already, or to be ended; it is ours.
        let _ = child.kill();
        let status = child.wait();
        if let (Some((regime, what)), Ok(status)) = (&mut ended.found, status)
            && what.is_empty()
        {
            *what = format!("the process ended ({status}) in the regime {regime}");
        }
        ended.seconds = started.elapsed().as_secs_f64();
        ended
    }

    fn start(&self) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("planted").arg("--child").arg(self.bug.map_or("none", Bug::name));
        command.arg("--seed").arg(self.seed.to_string());
        command.arg("--rounds").arg(self.rounds.to_string());
        command.arg("--seconds").arg(self.limit.as_secs_f64().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    }

    /// Reads what the child tells until it has found something, is through, or its time is up.
    fn follow(&self, lines: &Receiver<String>, started: Instant, ended: &mut Ended) {
        let part_max = Duration::from_secs(PART_SECONDS_MAX);
        let mut parts = 0;
        loop {
            let left = self.limit.saturating_sub(started.elapsed());
            let line = lines.recv_timeout(left.min(part_max));
            let under_way = REGIMES[parts % REGIMES.len()].name.to_string();
            match line {
                Ok(line) => {
                    let told: Value = serde_json::from_str(&line).unwrap_or_default();
                    parts += 1;
                    ended.rounds = told["round"].as_u64().unwrap_or(0) + 1;
                    ended.states += told["states"].as_u64().unwrap_or(0);
                    if let Some(found) = told["found"].as_str() {
                        let command = told["command"].as_str().unwrap_or_default();
                        ended.found = Some((under_way, format!("{found}\n  {command}")));
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) if left > part_max => {
                    let what = format!("no end of a part of a round in {PART_SECONDS_MAX} s");
                    ended.rounds = (parts / REGIMES.len()) as u64 + 1;
                    ended.found = Some((under_way, what));
                    return;
                }
                Err(RecvTimeoutError::Timeout) => return,
                // It is through, or has aborted.
                Err(RecvTimeoutError::Disconnected) => {
                    if ended.rounds < self.rounds {
                        ended.rounds = (parts / REGIMES.len()) as u64 + 1;
                        ended.found = Some((under_way, String::new()));
                    }
                    return;
                }
            }
        }
    }
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
    }
    receiver
}
