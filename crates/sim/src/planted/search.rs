//! One search, as seen by its parent process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use spinney::planted::Bug;

use super::regimes::parts;
use crate::torture::process::Used;

/// A regime that takes more processor time than this for its part of a round hangs.
const PART_PROCESSOR_MAX: Duration = Duration::from_secs(20);
/// So does one that neither runs nor waits for a core for so long.
const PART_ASLEEP_MAX: Duration = Duration::from_secs(30);
/// How often that is looked at.
const GLANCE: Duration = Duration::from_secs(1);

/// A search for a bug, or for false alarms.
pub(super) struct Search {
    /// What is planted.
    pub(super) bug: Option<Bug>,
    /// The first round's seed.
    pub(super) seed: u64,
    /// The number of the first round that it carries out.
    first_round: u64,
    rounds: u64,
    limit: Duration,
    /// The regimes of a round, by name; all if none is named.
    regimes: Vec<String>,
    /// Without a bug: the kinds of trees are those of a search for this one.
    as_for: Option<Bug>,
}

/// How a search ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended {
    /// The regime that told, and what.
    pub(super) found: Option<(String, String)>,
    /// Whether it was given up for the time it took, which says nothing.
    pub(super) is_undecided: bool,
    /// Rounds begun.
    pub(super) rounds: u64,
    /// States judged.
    pub(super) states: u64,
    pub(super) seconds: f64,
}

impl Search {
    /// A search of at most so many rounds that take at most this time.
    pub(super) fn new(bug: Option<Bug>, seed: u64, rounds: u64, limit: Duration) -> Search {
        Search { bug, seed, first_round: 0, rounds, limit, regimes: Vec::new(), as_for: None }
    }

    /// The same with these regimes alone, if any is named.
    pub(super) fn within(self, regimes: &[String]) -> Search {
        Search { regimes: regimes.to_vec(), ..self }
    }

    /// The same from another round on.
    pub(super) fn beginning_with(self, first_round: u64) -> Search {
        Search { first_round, ..self }
    }

    /// The same with the trees of a search for a bug, without that.
    pub(super) fn as_for(self, bug: Bug) -> Search {
        Search { as_for: Some(bug), ..self }
    }

    /// The number of its first round.
    pub(super) fn first_round(&self) -> u64 {
        self.first_round
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
        self.follow(child.id(), &lines, started, &mut ended);
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
        self.as_for.iter().for_each(|bug| {
            command.arg("--as-for").arg(bug.name());
        });
        command.arg("--seed").arg(self.seed.to_string());
        command.arg("--first-round").arg(self.first_round.to_string());
        command.arg("--rounds").arg(self.rounds.to_string());
        command.arg("--seconds").arg(self.limit.as_secs_f64().to_string());
        self.regimes.iter().for_each(|regime| {
            command.arg("--regime").arg(regime);
        });
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    }

    /// Reads what the child tells until it has found something, is through, or its time is up.
    fn follow(&self, process: u32, lines: &Receiver<String>, started: Instant, ended: &mut Ended) {
        let rounds = self.first_round..self.first_round + self.rounds;
        let mut parts = parts(self.bug, &self.regimes, rounds);
        let mut part = Part::begin(process);
        // One after another, as the child carries them out.
        let mut next = parts.next();
        loop {
            let line = lines.recv_timeout(GLANCE);
            let Some((round, regime)) = next else { return };
            let (begun, under_way) = (round + 1 - self.first_round, regime.name.to_string());
            match line {
                Ok(line) => {
                    let told: Value = serde_json::from_str(&line).unwrap_or_default();
                    next = parts.next();
                    part = Part::begin(process);
                    ended.rounds = begun;
                    ended.states += told["states"].as_u64().unwrap_or(0);
                    if let Some(found) = told["found"].as_str() {
                        let command = told["command"].as_str().unwrap_or_default();
                        ended.found = Some((under_way, format!("{found}\n  {command}")));
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(what) = part.hangs(process) {
                        ended.rounds = begun;
                        ended.found = Some((under_way, what));
                        return;
                    }
                    if started.elapsed() > self.limit {
                        ended.is_undecided = true;
                        return;
                    }
                }
                // It has aborted.
                Err(RecvTimeoutError::Disconnected) => {
                    ended.rounds = begun;
                    ended.found = Some((under_way, String::new()));
                    return;
                }
            }
        }
    }
}

/// A part of a round, and whether it gets anywhere. How long it takes says nothing on a machine
/// that has other things to do: what counts is the processor time it is given.
struct Part {
    begun: Used,
    last: Used,
    awake: Instant,
}

impl Part {
    fn begin(process: u32) -> Part {
        let now = Used::by(process);
        Part { begun: now, last: now, awake: Instant::now() }
    }

    /// Why it hangs, if it does.
    fn hangs(&mut self, process: u32) -> Option<String> {
        let now = Used::by(process);
        if now != self.last {
            (self.last, self.awake) = (now, Instant::now());
        }
        if now.processor.saturating_sub(self.begun.processor) > PART_PROCESSOR_MAX {
            return Some(format!("no end of a part of a round in {PART_PROCESSOR_MAX:?} of work"));
        }
        let asleep = self.awake.elapsed() > PART_ASLEEP_MAX;
        asleep.then(|| format!("nobody does anything for {PART_ASLEEP_MAX:?}"))
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
