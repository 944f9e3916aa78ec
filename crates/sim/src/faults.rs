//! The fault regime: repeats the same work, each time with another fault in another operation, and
//! judges the store.
//!
//! The contract:
//! 1. Nothing panics or hangs, and each read is right or fails. An error names its file.
//! 2. A failed commit happened completely or not at all; not at all if it was refused (`Full`,
//!    `Poisoned`). A commit that returned exists, also after the next open. A change of options that
//!    failed is not followed: the keyspace has the old ones until the store is opened again.
//! 3. After a failed write or sync of the journal, commits are refused and no sync is acknowledged;
//!    reads continue. A crash then leaves a legal prefix with everything that was synced before.
//! 4. A full disk and a failed read refuse nothing after they end: then background work completes,
//!    commits are accepted, and no superfluous files remain.
//! 5. If the disk itself lied, reads are right or fail. After an open the store has some prefix of
//!    the commits, or the open or the read fails. If only data files were affected, the prefix is
//!    everything.
//!
//! Invariants:
//! 1. A case is identified by the run's seed, the fault and its position. It does not depend on
//!    other cases.

use std::panic::{AssertUnwindSafe, catch_unwind};

use std::time::{Duration, Instant};

use crate::disk::{Disk, Policy};
use crate::fault::{Fault, Plan, Strike};
use crate::keep::Keep;
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::random::Random;
use crate::sizes::Sizes;
use crate::verify::Judge;
use crate::vfs::CrashVfs;

mod liar;
mod short;
mod step;
mod worker;

use short::Short;
use step::{Shape, Step};
use worker::{Verdict, Worker};

/// How much a run does.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Steps of work.
    pub steps: usize,
    /// Each so many-th operation is struck.
    pub every: u64,
    /// Crashes judged after each strike.
    pub crashes: usize,
    /// Only this fault, instead of all.
    pub fault: Option<Fault>,
    /// For how long the first violation of a run is cut down.
    pub shrink: Duration,
}

impl Default for Extent {
    fn default() -> Extent {
        let shrink = Duration::from_secs(60);
        Extent { steps: 60, every: 10, crashes: 2, fault: None, shrink }
    }
}

/// What goes wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Operations are struck.
    Struck(Plan),
    /// The disk has room for so many bytes.
    SmallDisk(u64),
}

impl Case {
    /// What cases of its sort are counted as.
    pub fn name(self) -> String {
        match self {
            Case::Struck(Plan { fault, times: u64::MAX, .. }) => format!("{fault}-on"),
            Case::Struck(plan) => plan.fault.to_string(),
            Case::SmallDisk(_) => "small-disk".to_string(),
        }
    }
}

/// Operations after which a case counts as hanging: so many times those of the run without faults.
const PATIENCE: u64 = 40;
/// Sizes of small disks that are tried in each run.
const SMALL_DISKS: u64 = 24;

/// The command that shows a case again.
fn command(
    seed: u64,
    kinds: Kinds,
    extent: Extent,
    case: Option<Case>,
    keep: Option<&Keep>,
) -> String {
    let mut command = format!("spinney-sim faults --kind {kinds} --seed {seed} --runs 1");
    let default = Extent::default();
    if extent.steps != default.steps {
        command += &format!(" --steps {}", extent.steps);
    }
    if extent.crashes != default.crashes {
        command += &format!(" --crashes {}", extent.crashes);
    }
    if let Some(keep) = keep {
        command += &format!(" --keep {keep}");
    }
    match case {
        Some(Case::Struck(plan)) => {
            command += &format!(" --fault {} --at {}", plan.fault, plan.first);
            if plan.times == u64::MAX {
                command += " --from-then-on";
            }
        }
        Some(Case::SmallDisk(bytes)) => command += &format!(" --disk-bytes {bytes}"),
        None => {}
    }
    command
}

/// What a run is made of.
struct Run {
    seed: u64,
    sizes: Sizes,
    shape: Shape,
    steps: Vec<Step>,
    crashes: usize,
}

impl Run {
    /// The same with these steps alone.
    fn keeping(&self, keep: &Keep) -> Run {
        Run { steps: keep.of(&self.steps), ..*self }
    }

    /// Does the work with all going well, and says how many operations a case may take.
    fn begin(&self) -> Verdict<(CrashVfs, u64)> {
        let clean = catch_unwind(AssertUnwindSafe(|| self.clean()));
        let clean = clean.unwrap_or_else(|panic| Err(panic_text(&*panic)))?;
        let patience = clean.count(Fault::Eio) * PATIENCE;
        Ok((clean, patience))
    }

    /// The fewest steps that show a violation as this case does.
    fn shortest(&self, case: Case, time: Duration) -> Option<Short> {
        if time.is_zero() {
            return None;
        }
        let until = Instant::now() + time;
        short::shortest(self.steps.len(), case, until, |keep| {
            let run = self.keeping(keep);
            let (clean, patience) = run.begin().ok()?;
            let operations = match case {
                Case::Struck(plan) => clean.count(plan.fault),
                Case::SmallDisk(_) => 0,
            };
            Some((operations, move |case| run.judge(case, patience).err()))
        })
    }

    fn worker(&self, case: Option<Case>) -> Worker {
        let vfs = CrashVfs::new(&Disk::with_a_directory());
        match case {
            Some(Case::Struck(plan)) => vfs.plan(Some(plan)),
            Some(Case::SmallDisk(bytes)) => vfs.set_capacity(Some(bytes)),
            None => {}
        }
        Worker::new(self.sizes, self.shape, vfs, case)
    }

    /// Does the work with all going well.
    fn clean(&self) -> Verdict<CrashVfs> {
        let mut worker = self.worker(None);
        let done = worker.work(&self.steps);
        let trace = worker.trace_before(worker.vfs.ops());
        done.map_err(|what| format!("without a fault: {what}\n{trace}"))?;
        Ok(worker.vfs)
    }

    /// Does it with something going wrong; how many crashes have been judged.
    fn judge(&self, case: Case, patience: u64) -> Verdict<u64> {
        let mut worker = self.worker(Some(case));
        worker.vfs.set_patience(Some(patience));
        let done = catch_unwind(AssertUnwindSafe(|| {
            worker.work(&self.steps)?;
            self.judge_end(&mut worker, case)
        }));
        let done = done.unwrap_or_else(|panic| Err(panic_text(&*panic)));
        let ops = worker.vfs.ops();
        let strike = match worker.vfs.strikes().first() {
            Some(Strike { at, op, path, .. }) => {
                format!("{} struck: {op} {} at op {at}", case.name(), path.display())
            }
            None => format!("{case:?}"),
        };
        done.map_err(|what| {
            let told = match worker.vfs.strikes().first() {
                Some(strike) => format!(
                    "{}  …\n{}",
                    worker.trace_before(strike.at + 1),
                    worker.trace_before(ops)
                ),
                None => worker.trace_before(ops),
            };
            format!("{strike}: {what}\n{told}")
        })
    }

    fn judge_end(&self, worker: &mut Worker, case: Case) -> Verdict<u64> {
        let strikes = worker.vfs.strikes();
        let first = match (case, strikes.first()) {
            (Case::Struck(_), None) => return Ok(0),
            (_, Some(strike)) => strike.at,
            (Case::SmallDisk(_), None) => 0,
        };
        worker.add_unseen();
        let fault = match case {
            Case::Struck(plan) => plan.fault,
            Case::SmallDisk(_) => Fault::Full,
        };
        let log = worker.vfs.log();
        let seeds = [self.seed, 23, first as u64, fault as u64];
        let mut random = Random::new(&seeds);
        let mut crashes = vec![(log.len(), Policy::Kill)];
        for number in 0..self.crashes {
            let reach = [2, 8, 40, log.len()][random.below(4)];
            let at = first + 1 + random.below(reach);
            let policy = match number % 2 {
                0 => Policy::random(&mut random),
                _ => [Policy::PowerNothing, Policy::PowerPrefix, Policy::PowerSectors]
                    [random.below(3)],
            };
            crashes.push((at.min(log.len()), policy));
        }
        if !(fault.lies_when_written() || worker.relaxed || worker.may_leave_files) {
            self.judge_files(worker)?;
        }
        crashes[1..].sort_by_key(|(at, _)| *at);
        let relaxed = fault.lies_when_written() || worker.relaxed;
        let mut replayed = (Disk::with_a_directory(), 0);
        let judged = crashes.len() as u64;
        // The last of all first in the list, but last in time.
        crashes.rotate_left(1);
        for (at, policy) in crashes {
            log[replayed.1..at].iter().for_each(|op| replayed.0.apply(op));
            replayed.1 = at;
            let left = replayed.0.crash(policy, random.draw(), log.get(at));
            let told =
                |what| format!("after a crash at op {at} of {}, {policy:?}: {what}", log.len());
            let may_be_missing = worker.history.opened == 0 || at < worker.history.opened;
            if relaxed {
                let liar = liar::Judge {
                    sizes: self.sizes,
                    history: &worker.history,
                    strikes: &strikes,
                    fault,
                    at,
                    may_be_missing,
                };
                liar.judge(&left, policy).map_err(told)?;
            } else {
                let dropped = fault == Fault::SyncDrops && first < at;
                let judge =
                    Judge { sizes: self.sizes, history: &worker.history, may_be_missing, at };
                let nested = usize::from(random.one_in(4));
                let survives = policy.keeps_unsynced() && !dropped;
                judge.judge(&left, survives, &mut random, nested).map_err(told)?;
            }
        }
        Ok(judged)
    }

    /// Nothing has been left that the next open would have to clear away.
    fn judge_files(&self, worker: &Worker) -> Verdict {
        let builder = self.sizes.builder(&worker.vfs, crate::workload::STORE);
        let db = builder
            .open()
            .map_err(|error| format!("opening once the disk works again: {error}"))?;
        match db.recovery().orphans_removed {
            0 => Ok(()),
            files => Err(format!("{files} files are left that nothing refers to")),
        }
    }
}

/// The cases of a run without faults that did `clean`'s operations.
fn cases(seed: u64, clean: &CrashVfs, extent: Extent) -> Vec<Case> {
    let mut cases = Vec::new();
    let every = extent.every.max(1);
    for fault in Fault::ALL {
        if extent.fault.is_some_and(|only| only != fault) {
            continue;
        }
        let lasting = matches!(fault, Fault::Eio | Fault::Full | Fault::SyncForgets);
        for times in if lasting { vec![1, u64::MAX] } else { vec![1] } {
            // Other seeds strike other operations.
            let begin = 1 + (seed + fault as u64) % every;
            for first in (begin..=clean.count(fault)).step_by(every as usize) {
                cases.push(Case::Struck(Plan { fault, first, times }));
            }
        }
    }
    if extent.fault.is_none_or(|only| only == Fault::Full) {
        let used = clean.peak_bytes();
        let step = (used * every / (SMALL_DISKS * 10)).max(1);
        cases
            .extend((1..).map(|n| n * step).take_while(|bytes| *bytes < used).map(Case::SmallDisk));
    }
    cases
}

/// Judges the cases of the run `seed`, or only one of them.
pub fn run(seed: u64, kinds: Kinds, extent: Extent, only: Option<Case>) -> Outcome {
    run_while(seed, kinds, extent, only, None, || true)
}

/// The same, while `goes_on`, with the steps of `keep` alone if there is one.
pub fn run_while(
    seed: u64,
    kinds: Kinds,
    extent: Extent,
    only: Option<Case>,
    keep: Option<&Keep>,
    goes_on: impl Fn() -> bool,
) -> Outcome {
    let mut outcome = Outcome::default();
    let all = Run {
        seed,
        sizes: Sizes::new(seed, kinds),
        shape: Shape::new(seed),
        steps: step::steps(seed, extent.steps),
        crashes: extent.crashes,
    };
    let run = match keep {
        Some(keep) => all.keeping(keep),
        None => all,
    };
    let (clean, patience) = match run.begin() {
        Ok(begun) => begun,
        Err(what) => {
            let command = command(seed, kinds, extent, None, keep);
            outcome.violations.push(Violation { what, command });
            return outcome;
        }
    };
    let cases = only.map_or_else(|| cases(seed, &clean, extent), |case| vec![case]);
    for case in cases {
        if !goes_on() {
            break;
        }
        let judged = run.judge(case, patience);
        outcome.operations += run.steps.len() as u64;
        outcome.count(case.name());
        match judged {
            Ok(crashes) => *outcome.states.entry("crash".to_string()).or_default() += crashes,
            Err(what) => {
                // What is kept already is as short as it was asked for.
                let shrinks = outcome.violations.is_empty() && keep.is_none();
                let time = if shrinks { extent.shrink } else { Duration::ZERO };
                outcome.violations.push(match run.shortest(case, time) {
                    None => {
                        let command = command(seed, kinds, extent, Some(case), keep);
                        Violation { what, command }
                    }
                    Some(Short { keep, case, what: told, .. }) => Violation {
                        what: format!("{what}  in short:\n{told}"),
                        command: command(seed, kinds, extent, Some(case), Some(&keep)),
                    },
                });
            }
        }
    }
    outcome
}
