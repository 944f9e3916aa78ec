//! The life of one store: children that work on it are killed, and their result is judged, here or
//! by the next child.
//!
//! Invariants:
//! 1. The result of a child is copied before anything opens it, so that a violation can be
//!    reproduced.
//! 2. No child outlives its round.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spinney::Error;

use super::child::{COPIES, LEDGER, STORE};
use super::faults::Fault;
use super::frames::Frame;
use super::judge::{judge_copy, judge_store};
use super::ledger::Ledger;
use super::script::{Script, WriterState};
use crate::outcome::{Outcome, Violation};
use crate::random::Random;

/// What a child has left, before anybody opened it.
pub const LEFT: &str = "left";
/// A child that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// When a child is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So long after its start: while it opens the store, mostly.
    AfterStart(Duration),
    /// So many acknowledgements after it began to work, and so long after that.
    AfterSteps(u64, Duration),
}

/// One store's life.
pub struct Rounds {
    dir: PathBuf,
    pub(super) script: Script,
    pub(super) ledger: Ledger,
    states: Vec<WriterState>,
    pub(super) random: Random,
    /// What was judged.
    pub outcome: Outcome,
    /// What else there was to see, and how often.
    pub notes: BTreeMap<&'static str, u64>,
    /// Which calls a tracer is to fail.
    pub faults: bool,
    /// Whether errors of files are to be expected.
    pub faulty: bool,
}

/// A child that runs, and what it says.
pub(super) struct Running {
    child: Child,
    pid: Option<u32>,
    reaped: bool,
    pub(super) frames: Receiver<Frame>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = self.pid.unwrap_or_else(|| self.child.id());
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may be dead already.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Rounds {
    /// A life in the directory `dir`, which is made.
    ///
    /// # Errors
    /// As the file system says.
    pub fn new(dir: &Path, script: Script) -> io::Result<Rounds> {
        fs::create_dir_all(dir.join(COPIES))?;
        Ok(Rounds {
            dir: dir.to_path_buf(),
            ledger: Ledger::new(&script),
            states: (0..script.writers).map(WriterState::new).collect(),
            random: Random::new(&[script.seed, 15]),
            script,
            outcome: Outcome::default(),
            notes: BTreeMap::new(),
            faults: false,
            faulty: false,
        })
    }

    /// Counts something that is no kill.
    pub(super) fn note(&mut self, what: &'static str) {
        *self.notes.entry(what).or_default() += 1;
    }

    /// Where the store is.
    pub fn store(&self) -> PathBuf {
        self.dir.join(STORE)
    }

    /// Starts a child, kills it and judges what it has left.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn round(&mut self) -> Result<(), String> {
        let fault = self.faults.then(|| Fault::random(&mut self.random));
        let mut running = self.start(fault.as_ref())?;
        let made_by = self.live(&mut running, fault.as_ref())?;
        drop(running);
        self.keep_what_is_left().map_err(|error| format!("copying what is left: {error}"))?;
        for copy in self.ledger.copies.clone() {
            let dir = self.dir.join(COPIES).join(copy.number.to_string());
            judge_copy(&dir, &copy, &self.ledger)?;
            self.note(if copy.most.is_some() { "copies" } else { "copies begun" });
            let _ = fs::remove_dir_all(dir);
        }
        self.ledger.copies.clear();
        if self.random.one_in(2) {
            self.judge()?;
        }
        self.outcome.count(made_by);
        Ok(())
    }

    /// Judges the store as it is now.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn judge(&mut self) -> Result<(), String> {
        if let Some(findings) = judge_store(&self.store(), &self.ledger)? {
            self.ledger.opened = true;
            self.ledger.settle(&findings);
        }
        Ok(())
    }

    /// Starts the next child.
    pub(super) fn start(&mut self, fault: Option<&Fault>) -> Result<Running, String> {
        self.ledger.round += 1;
        let failed = |error: io::Error| format!("starting a child: {error}");
        self.ledger.save(&self.dir.join(LEDGER)).map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = match fault {
            None => Command::new(&program),
            Some(fault) => fault.command(&program),
        };
        command.arg("kill-child").arg(&self.dir);
        if self.faulty {
            command.arg("--faulty");
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut pipe = io::BufReader::new(child.stdout.take().ok_or("the child has no pipe")?);
        let (sender, frames) = channel();
        // Ends with the pipe, which ends with the child.
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = Frame::read(&mut pipe) {
                if sender.send(frame).is_err() {
                    break;
                }
            }
        });
        Ok(Running { child, pid: None, reaped: false, frames })
    }

    fn moment(&mut self) -> Moment {
        let micros =
            |random: &mut Random, most: usize| Duration::from_micros(random.below(most) as u64);
        let random = &mut self.random;
        match random.below(10) {
            0..3 => Moment::AfterStart(micros(random, 25_000)),
            3..5 => Moment::AfterSteps(1 + random.below(30) as u64, micros(random, 300)),
            5..9 => Moment::AfterSteps(1 + random.below(2000) as u64, micros(random, 2000)),
            _ => Moment::AfterSteps(1 + random.below(12_000) as u64, micros(random, 2000)),
        }
    }

    /// Listens to a child until its moment has come, kills it, and hears what it had still to say.
    fn live(
        &mut self,
        running: &mut Running,
        fault: Option<&Fault>,
    ) -> Result<&'static str, String> {
        let moment = self.moment();
        let stopped_first = self.random.one_in(8);
        let started = Instant::now();
        let (mut acknowledged, mut due) = (0, None);
        if let (Moment::AfterStart(after), None) = (moment, fault) {
            due = Some(started + after);
        }
        let mut ended = false;
        let mut opened = false;
        while !ended && due.is_none_or(|due| Instant::now() < due) {
            let wait = due.map_or(PATIENCE, |due| due.saturating_duration_since(Instant::now()));
            match running.frames.recv_timeout(wait) {
                Ok(frame) => {
                    opened |= frame == Frame::Ready;
                    acknowledged += u64::from(matches!(frame, Frame::Acknowledged { .. }));
                    ended = frame == Frame::Stopped;
                    self.hear(&frame, running)?;
                }
                Err(RecvTimeoutError::Disconnected) => ended = true,
                Err(RecvTimeoutError::Timeout) if due.is_none() => {
                    return Err(format!("the child has said nothing for {PATIENCE:?}"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            match moment {
                Moment::AfterSteps(steps, after) if acknowledged >= steps => {
                    due.get_or_insert(Instant::now() + after);
                }
                // Under a tracer opening takes long: it is the tracer's to end it.
                Moment::AfterStart(after) if opened => {
                    due.get_or_insert(Instant::now() + after);
                }
                _ => {}
            }
        }
        if stopped_first && !ended && fault.is_none() {
            running.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(1));
            self.is_locked(opened)?;
        }
        let (status, last) = self.kill(running)?;
        opened |= last.contains(&Frame::Ready);
        Ok(match (ended, opened, fault) {
            (_, _, Some(fault)) => fault.name(),
            (true, _, None) if self.faulty => "stopped by errors",
            (true, _, None) => return Err(format!("the child ended by itself: {status}")),
            (false, true, None) => "killed at work",
            (false, false, None) => "killed while opening",
        })
    }

    /// Kills a child and hears what it had still to say.
    pub(super) fn kill(
        &mut self,
        running: &mut Running,
    ) -> Result<(ExitStatus, Vec<Frame>), String> {
        running.signal(Signal::KILL);
        let status = running.child.wait().map_err(|error| format!("waiting: {error}"))?;
        running.reaped = true;
        let mut last = Vec::new();
        while let Ok(frame) = running.frames.recv() {
            self.hear(&frame, running)?;
            last.push(frame);
        }
        Ok((status, last))
    }

    /// While a child lives, nobody else opens its store.
    fn is_locked(&self, opened: bool) -> Result<(), String> {
        if !opened {
            return Ok(());
        }
        match self.script.builder(&self.store()).create_if_missing(false).open() {
            Err(Error::Locked { .. }) => Ok(()),
            Err(error) => Err(format!("opening what a child has open: {error}")),
            Ok(_) => Err("a store was opened that a child has open".to_string()),
        }
    }

    pub(super) fn hear(&mut self, frame: &Frame, running: &mut Running) -> Result<(), String> {
        match frame {
            Frame::Started(pid) => running.pid = Some(*pid),
            Frame::Violation(what) => return Err(what.clone()),
            Frame::Explained(what) | Frame::NotOpened(what) => {
                self.note("errors explained by faults");
                if std::env::var_os("SPINNEY_KILL_SHOW").is_some() {
                    eprintln!("explained: {what}");
                }
            }
            Frame::Acknowledged { .. } => self.outcome.operations += 1,
            _ => {}
        }
        self.ledger.note(frame, &self.script, &mut self.states);
        Ok(())
    }

    pub(super) fn keep_what_is_left(&self) -> io::Result<()> {
        self.ledger.save(&self.dir.join(LEDGER))?;
        let left = self.dir.join(LEFT);
        if left.exists() {
            fs::remove_dir_all(&left)?;
        }
        copy_dir(&self.store(), &left)
    }
}

/// Copies a directory of files; one that does not exist has none.
///
/// # Errors
/// As the file system says.
pub fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Judges again what a child has left, as [`Rounds`] has kept it in `dir`.
///
/// # Errors
/// What was promised and is not so; or it cannot be read.
pub fn judge_again(dir: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", dir.display());
    let ledger = Ledger::load(&dir.join(LEDGER)).map_err(failed)?;
    let again = dir.join("again");
    if again.exists() {
        fs::remove_dir_all(&again).map_err(failed)?;
    }
    copy_dir(&dir.join(LEFT), &again).map_err(failed)?;
    judge_store(&again, &ledger).map(|_| ())
}

/// Makes a violation of what went wrong in `dir`, which is kept as `spinney-kill-<seed>` beside it.
pub fn violation(dir: &Path, script: &Script, what: String) -> Violation {
    let kept = dir.with_file_name(format!("spinney-kill-{}-{}", script.kinds, script.seed));
    let _ = fs::remove_dir_all(&kept);
    let kept = match fs::rename(dir, &kept) {
        Ok(()) => kept,
        Err(_) => dir.to_path_buf(),
    };
    Violation { what, command: format!("spinney-sim kill --judge {}", kept.display()) }
}
