//! The lives of one store: children that work on it are watched and killed, and the next child
//! reads their result, which is judged.
//!
//! Invariants:
//! 1. The result of a child is kept by hard links before anything opens it, together with the
//!    ledger of that moment: a violation can be reproduced.
//! 2. No child outlives its life.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use spinney_bench::measure::cgroup::Cgroup;

use super::child::{COPIES, STORE};
use super::evidence::{LEFT, link_dir};
use super::frames::{COUNTS, Told};
use super::fresh::{Fresh, data_bytes};
use super::ledger::{Ledger, Verdict};
use super::look::{plausible, seen};
use super::plan::Plan;
use super::process::program_bytes;
use super::promise;
use super::script::{Script, VALUE_BYTES_MAX};
use super::watch::{Moment, PATIENCE, Signals, kill};
use crate::outcome::Outcome;
use crate::random::Random;

/// How often the directory is.
const SPACE_GLANCE: Duration = Duration::from_millis(250);
/// What a process takes without a store, in its cgroup: the pages of its program are its parent's.
const OWN_BYTES: u64 = 24 << 20;

/// The worst that was seen, for the figures.
#[derive(Debug, Clone, Copy, Default)]
pub struct Worst {
    /// Resident memory, as a share of what is promised.
    pub memory: f64,
    /// Data files as a multiple of the truth, allowances left out of account, once the store is
    /// full.
    pub space: f64,
    /// The same when idle.
    pub space_idle: f64,
    /// How far live bytes as shown were from the truth.
    pub live_error: f64,
    /// Descriptors.
    pub descriptors: u64,
    /// The longest write.
    pub stall: Duration,
    /// The longest, without what threads waited for cores.
    pub stall_net: Duration,
    /// Processor time to open, as a share of what is promised.
    pub opening: f64,
}

/// The lives of one store.
pub struct Lives {
    dir: PathBuf,
    /// What is known.
    pub ledger: Ledger,
    before: Ledger,
    fresh: Fresh,
    random: Random,
    life: u64,
    opening: Duration,
    /// What pins have kept from being given back, as bytes written since the first of them.
    carried: u64,
    /// What was judged.
    pub outcome: Outcome,
    /// The worst.
    pub worst: Worst,
    /// Why there is no cgroup.
    pub no_cgroup: Option<String>,
    /// Go on with the store when more memory, space or time is taken than is promised.
    pub keep_going: bool,
    /// What was found so, as far as nobody has taken it out.
    pub excesses: Vec<String>,
    copies: Vec<Copy>,
}

/// A copy that was begun.
#[derive(Debug, Clone)]
struct Copy {
    number: u64,
    /// Of each writer, the steps it must hold.
    least: Vec<u32>,
    /// Those it may hold; none while it is being made.
    most: Option<Vec<u32>>,
}

/// What is known of the child that runs.
struct Running {
    plan: Plan,
    process: u32,
    started: Instant,
    working: bool,
    idle: Option<Instant>,
    own: u64,
    pinned_at: Option<u64>,
    space_seen: Instant,
    live: BTreeMap<usize, u64>,
    exceeded: bool,
}

impl Lives {
    /// A store's lives in the directory `dir`, which is made.
    ///
    /// # Errors
    /// What fails.
    pub fn new(dir: &Path, script: Script) -> Result<Lives, String> {
        let failed = |error: io::Error| format!("{}: {error}", dir.display());
        fs::create_dir_all(dir.join(COPIES)).map_err(failed)?;
        let fresh = Fresh::measure(&script, &dir.join("fresh"))?;
        Ok(Lives {
            dir: dir.to_path_buf(),
            random: Random::new(&[script.seed, 36]),
            before: Ledger::new(script.clone()),
            ledger: Ledger::new(script),
            fresh,
            life: 0,
            opening: Duration::from_millis(100),
            carried: 0,
            outcome: Outcome::default(),
            worst: Worst::default(),
            no_cgroup: None,
            keep_going: false,
            excesses: Vec::new(),
            copies: Vec::new(),
        })
    }

    fn store(&self) -> PathBuf {
        self.dir.join(STORE)
    }

    /// Whether all keys have been written once.
    pub fn is_full(&self) -> bool {
        let script = &self.ledger.script;
        let writers = self.ledger.writers.iter().enumerate();
        writers.into_iter().all(|(n, writer)| writer.acknowledged >= script.filling_steps(n))
    }

    /// Bytes of all live pairs.
    pub fn live_bytes(&self) -> u64 {
        self.ledger.spaces.iter().map(|space| space.live_bytes).sum()
    }

    /// One life: starts a child, watches it, kills it. The last one reads everything, is left idle,
    /// and is judged in the end.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn live(&mut self, last: bool) -> Verdict<()> {
        self.life += 1;
        let full = last || self.life % 6 == 5;
        let mut plan = Plan::random(&self.ledger.script, self.life, &mut self.random, full);
        if last {
            (plan.iterators, plan.snapshots, plan.scanners) = (0, false, 0);
            (plan.copies, plan.upkeep, plan.closes, plan.work_millis) = (false, false, false, 2000);
        }
        let writers = &self.ledger.writers;
        plan.extent.under_way = writers.iter().map(|writer| writer.under_way()).collect();
        plan.extent.created = self.ledger.created;
        plan.steps = writers.iter().map(|writer| writer.issued).collect();
        let moment = self.moment(&plan);
        let cgroup = self.cgroup(&plan);
        plan.cgroup = cgroup.as_ref().map(Cgroup::processes);
        let (made_by, verdict) = self.run(plan, moment, cgroup.as_ref());
        verdict?;
        self.judge_copies()?;
        self.outcome.count(made_by);
        self.keep().map_err(|error| format!("keeping what is left: {error}"))
    }

    fn moment(&mut self, plan: &Plan) -> Moment {
        let opening = self.opening.as_micros() as usize;
        let is_filling = !self.is_full();
        let random = &mut self.random;
        let micros = |micros: usize| Duration::from_micros(micros as u64);
        match (plan.closes, plan.work_millis) {
            (true, _) => Moment::Never,
            (_, 1..) => Moment::Idle,
            // Gigabytes want to be written first.
            _ if is_filling && !random.one_in(4) => {
                Moment::AfterWorking(micros(10_000_000 + random.below(30_000_000)))
            }
            _ if random.one_in(4) => Moment::AfterStart(micros(random.below(opening * 5 / 4 + 1))),
            _ if random.one_in(4) => Moment::AfterWorking(micros(random.below(400_000))),
            _ => Moment::AfterWorking(micros(random.below(8_000_000))),
        }
    }

    fn cgroup(&mut self, plan: &Plan) -> Option<Cgroup> {
        if self.no_cgroup.is_some() {
            return None;
        }
        let bytes = promise::memory(plan.budget) + OWN_BYTES + self.held_bytes(plan);
        let name = format!("spinney-torture-{}-{}", std::process::id(), self.life);
        match Cgroup::new(&name, bytes) {
            Ok(cgroup) => Some(cgroup),
            Err(why) => {
                eprintln!("no memory cgroup: {why}; resident memory is sampled all the same");
                self.no_cgroup = Some(why);
                None
            }
        }
    }

    /// What the child itself may hold: of each writer a batch and its copy, of each thread that
    /// scans a value.
    fn held_bytes(&self, plan: &Plan) -> u64 {
        let script = &self.ledger.script;
        let writers = 2 * script.writers as u64 * script.step_bytes_max();
        writers + plan.scanners as u64 * VALUE_BYTES_MAX
    }

    fn spawn(&self, plan: &Plan) -> io::Result<Child> {
        plan.save(&self.dir)?;
        Command::new(std::env::current_exe()?)
            .arg("torture-child")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    }

    fn run(
        &mut self,
        plan: Plan,
        moment: Moment,
        cgroup: Option<&Cgroup>,
    ) -> (&'static str, Verdict<()>) {
        let mut child = match self.spawn(&plan) {
            Ok(child) => child,
            Err(error) => return ("", Err(format!("starting a child: {error}"))),
        };
        let Some(pipe) = child.stdout.take() else {
            return ("", Err("the child has no pipe".to_string()));
        };
        let mut running = Running {
            plan,
            process: child.id(),
            started: Instant::now(),
            working: false,
            idle: None,
            own: 0,
            pinned_at: None,
            space_seen: Instant::now(),
            live: BTreeMap::new(),
            exceeded: false,
        };
        let signals = Signals::default();
        let (process, started) = (running.process, running.started);
        let mut verdict = std::thread::scope(|scope| {
            scope.spawn(|| signals.watch(process, moment, started));
            let verdict = self.listen(pipe, &mut running, &signals);
            signals.ended.store(true, Ordering::Relaxed);
            verdict
        });
        kill(process);
        let status = child.wait();
        let killed = signals.kill.load(Ordering::Relaxed) || cgroup.is_some_and(Cgroup::has_killed);
        if verdict.is_ok() {
            verdict = self.judge_process(&mut running, &signals, cgroup);
        }
        if verdict.is_ok() && !killed && (moment != Moment::Never || running.idle.is_none()) {
            verdict = Err(format!("the child ended by itself: {status:?}"));
        }
        if let Some(pinned_at) = running.pinned_at {
            self.carried += self.ledger.written_bytes - pinned_at;
        }
        if let Err(what) = verdict {
            let kept = self.keep_evidence(running.working);
            let kept = kept.err().map(|error| format!(" (not all is kept: {error})"));
            let what = format!("{}{what}{}", self.setting(&running.plan), kept.unwrap_or_default());
            return ("", Err(what));
        }
        let made_by = match (running.idle.is_some(), running.working, moment) {
            (true, _, Moment::Never) => "closed",
            (true, ..) => "killed when idle",
            (_, true, _) if self.is_full() => "killed at work",
            (_, true, _) => "killed while filling",
            _ => "killed while opening",
        };
        (made_by, Ok(()))
    }

    /// In which life something was found.
    fn setting(&self, plan: &Plan) -> String {
        format!(
            "life {} ({} keyspaces, {} MiB live, budget {} MiB, {} iterators, {} scanners{}{}): ",
            self.life,
            self.ledger.spaces.len(),
            self.live_bytes() >> 20,
            plan.budget >> 20,
            plan.iterators,
            plan.scanners,
            if plan.snapshots { ", snapshots" } else { "" },
            if plan.copies { ", copies" } else { "" },
        )
    }

    /// More was taken than is promised: that ends the store's lives, unless it is to go on. Once a
    /// life is enough.
    fn exceeds(&mut self, running: &mut Running, what: String) -> Verdict<()> {
        if !self.keep_going {
            return Err(what);
        }
        if !std::mem::replace(&mut running.exceeded, true) {
            let setting = self.setting(&running.plan);
            self.excesses.push(format!("{setting}{what}"));
        }
        Ok(())
    }

    /// Hears a child out, and has it killed at the first violation.
    fn listen(
        &mut self,
        pipe: impl io::Read,
        running: &mut Running,
        signals: &Signals,
    ) -> Verdict<()> {
        let mut pipe = BufReader::with_capacity(1 << 16, pipe);
        let mut verdict = Ok(());
        loop {
            let told = match Told::read(&mut pipe) {
                Ok(Some(told)) => told,
                Ok(None) => return verdict,
                // Cut off in the middle of a frame, by its death.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return verdict,
                Err(error) => return verdict.and(Err(format!("the pipe: {error}"))),
            };
            let heard = running.started.elapsed();
            signals.heard.store(heard.as_millis() as u64, Ordering::Relaxed);
            if verdict.is_ok() {
                verdict = self.hear(&told, running, signals);
                if verdict.is_ok() && running.space_seen.elapsed() > SPACE_GLANCE {
                    running.space_seen = Instant::now();
                    verdict = self.judge_space(running);
                }
                if verdict.is_err() {
                    signals.kill.store(true, Ordering::Relaxed);
                    kill(running.process);
                }
            }
        }
    }

    fn hear(&mut self, told: &Told, running: &mut Running, signals: &Signals) -> Verdict<()> {
        match *told {
            Told::Opening { bytes } => {
                running.own =
                    bytes + program_bytes(running.process) + self.held_bytes(&running.plan);
            }
            Told::Opened { processor_micros, replayed_bytes } => {
                self.opening = running.started.elapsed();
                let processor = Duration::from_micros(processor_micros);
                return self.judge_opening(running, processor, replayed_bytes);
            }
            Told::Read { space, index, seen } => return self.ledger.read(space, index, seen),
            Told::Settled { writer } => self.ledger.settle(writer),
            Told::ScanBegun { space } => self.ledger.scan_begun(space),
            Told::ScanEnded { space } => return self.ledger.scan_ended(space),
            Told::Working => {
                self.ledger.created = true;
                running.working = true;
                signals.working.store(true, Ordering::Relaxed);
            }
            Told::Issued { writer, step } => self.ledger.issued(writer, step),
            Told::Acknowledged { writer, step } => {
                self.ledger.apply(writer, step);
                self.outcome.operations += 1;
            }
            Told::Stalled { micros, .. } => {
                return self.judge_stall(Duration::from_micros(micros), running, signals);
            }
            Told::Pinned(_) => {
                running.pinned_at.get_or_insert(self.ledger.written_bytes);
            }
            Told::Unpinned(_) => {}
            Told::CopyIssued(number) => {
                let least = self.ledger.writers.iter().map(|w| w.acknowledged).collect();
                self.copies.push(Copy { number, least, most: None });
            }
            Told::CopyDone(number) => {
                let most: Vec<u32> = self.ledger.writers.iter().map(|w| w.issued).collect();
                if let Some(copy) = self.copies.iter_mut().find(|copy| copy.number == number) {
                    copy.most = Some(most);
                }
            }
            Told::Counted { what, count } => {
                let what = COUNTS.get(what).copied().unwrap_or("others");
                *self.outcome.counts.entry(what.to_string()).or_default() += count;
            }
            Told::Idle => {
                running.idle = Some(Instant::now());
                if let Some(pinned_at) = running.pinned_at.take() {
                    self.carried += self.ledger.written_bytes - pinned_at;
                }
            }
            Told::Live { space, live_bytes, .. } => {
                running.live.insert(space, live_bytes);
                return self.judge_idle(running, signals);
            }
            Told::Violation(ref what) => return Err(what.clone()),
        }
        Ok(())
    }

    fn judge_opening(
        &mut self,
        running: &mut Running,
        processor: Duration,
        replayed_bytes: u64,
    ) -> Verdict<()> {
        let keyspaces = self.ledger.spaces.len() as u64;
        let most = promise::opening(replayed_bytes, keyspaces);
        let share = processor.as_secs_f64() / most.as_secs_f64();
        self.worst.opening = self.worst.opening.max(share);
        match processor <= most {
            true => Ok(()),
            false => self.exceeds(running, format!(
                "opening took {processor:.2?} of processor time for {:.1} MB of journal and {keyspaces} \
                 keyspaces; {most:.2?} are promised",
                replayed_bytes as f64 / 1e6
            )),
        }
    }

    fn judge_stall(
        &mut self,
        took: Duration,
        running: &mut Running,
        signals: &Signals,
    ) -> Verdict<()> {
        let mut delays = signals.delays.lock().unwrap_or_else(|held| held.into_inner());
        delays.read(running.process);
        let begun = Instant::now().checked_sub(took).unwrap_or(running.started);
        let net = took.saturating_sub(delays.since(begun));
        self.worst.stall = self.worst.stall.max(took);
        self.worst.stall_net = self.worst.stall_net.max(net);
        match net <= promise::STALL_MAX {
            true => Ok(()),
            false => self.exceeds(running, format!(
                "a write took {took:.2?}, {net:.2?} of it not for lack of a core; {:.2?} are promised",
                promise::STALL_MAX
            )),
        }
    }

    /// Data files against the truth, at any moment.
    fn judge_space(&mut self, running: &mut Running) -> Verdict<()> {
        if !running.working {
            return Ok(());
        }
        let files = data_bytes(&self.store()).unwrap_or(0);
        let fresh = self.fresh.bytes(&self.ledger);
        let pinned = running.pinned_at.map_or(0, |at| self.ledger.written_bytes - at);
        let keyspaces = self.ledger.spaces.len() as u64;
        let allowed = promise::space_allowance(running.plan.budget, keyspaces);
        let most = (fresh as f64 * promise::SPACE_BUSY) as u64 + allowed + pinned + self.carried;
        if pinned + self.carried == 0 && self.is_full() {
            self.worst.space = self.worst.space.max(files as f64 / fresh as f64);
        }
        match files <= most {
            true => Ok(()),
            false => self.exceeds(running, format!(
                "data files take {:.1} MB for pairs that freshly loaded take {:.1} (× {:.2}); promised \
                 are × {} and {:.1} MB, and {:.1} MB for what is or was held",
                files as f64 / 1e6,
                fresh as f64 / 1e6,
                files as f64 / fresh as f64,
                promise::SPACE_BUSY,
                allowed as f64 / 1e6,
                (pinned + self.carried) as f64 / 1e6
            )),
        }
    }

    /// Data files and what the store says is live, after it has been idle for long enough; then the
    /// child's time is up.
    fn judge_idle(&mut self, running: &mut Running, signals: &Signals) -> Verdict<()> {
        let Some(idle) = running.idle else { return Ok(()) };
        let waited = {
            let mut delays = signals.delays.lock().unwrap_or_else(|held| held.into_inner());
            delays.read(running.process);
            delays.since(idle)
        };
        if idle.elapsed().saturating_sub(waited) < promise::IDLE
            || running.live.len() < self.ledger.spaces.len()
        {
            return Ok(());
        }
        signals.idle.store(true, Ordering::Relaxed);
        self.carried = 0;
        let files = data_bytes(&self.store()).unwrap_or(0);
        let fresh = self.fresh.bytes(&self.ledger);
        let keyspaces = self.ledger.spaces.len() as u64;
        let allowed = promise::space_allowance(running.plan.budget, keyspaces);
        let shown: u64 = running.live.values().sum();
        let error = shown.abs_diff(fresh) as f64 / fresh as f64;
        if self.is_full() {
            let times = files as f64 / fresh as f64;
            self.worst.space_idle = self.worst.space_idle.max(times);
            self.worst.live_error = self.worst.live_error.max(error);
        }
        if files > (fresh as f64 * promise::SPACE_IDLE) as u64 + allowed {
            return self.exceeds(running, format!(
                "after {:.1?} of rest data files take {:.1} MB for pairs that freshly loaded take {:.1} \
                 (× {:.2}); promised are × {} and {:.1} MB; the store says {:.1} MB are live",
                idle.elapsed(),
                files as f64 / 1e6,
                fresh as f64 / 1e6,
                files as f64 / fresh as f64,
                promise::SPACE_IDLE,
                allowed as f64 / 1e6,
                shown as f64 / 1e6,
            ));
        }
        if shown.abs_diff(fresh) > (fresh as f64 * promise::LIVE_ERROR) as u64 + allowed {
            return self.exceeds(
                running,
                format!(
                    "the store says that {:.1} MB are live where pairs freshly loaded take {:.1}",
                    shown as f64 / 1e6,
                    fresh as f64 / 1e6
                ),
            );
        }
        Ok(())
    }

    /// What the system says of a child that has ended.
    fn judge_process(
        &mut self,
        running: &mut Running,
        signals: &Signals,
        cgroup: Option<&Cgroup>,
    ) -> Verdict<()> {
        let (peak, most) = (
            signals.peak.load(Ordering::Relaxed),
            promise::memory(running.plan.budget) + running.own,
        );
        let descriptors = signals.descriptors.load(Ordering::Relaxed);
        self.worst.descriptors = self.worst.descriptors.max(descriptors);
        if running.own > 0 {
            self.worst.memory = self.worst.memory.max(peak as f64 / most as f64);
        }
        if signals.hung.load(Ordering::Relaxed) {
            return Err(format!("the child has said nothing for {PATIENCE:?}"));
        }
        if cgroup.is_some_and(Cgroup::has_killed) {
            return self.exceeds(
                running,
                format!(
                    "the system killed the child for its memory: {} MiB were resident, {} MiB are \
                     promised, and {} MiB its own",
                    peak >> 20,
                    promise::memory(running.plan.budget) >> 20,
                    running.own >> 20
                ),
            );
        }
        if running.own > 0 && peak > most {
            return self.exceeds(
                running,
                format!(
                    "{} MiB were resident; {} MiB are promised, and {} MiB are the child's own",
                    peak >> 20,
                    promise::memory(running.plan.budget) >> 20,
                    running.own >> 20
                ),
            );
        }
        match descriptors <= promise::DESCRIPTORS_MAX {
            true => Ok(()),
            false => self.exceeds(
                running,
                format!(
                    "{descriptors} descriptors were open; {} are promised",
                    promise::DESCRIPTORS_MAX
                ),
            ),
        }
    }

    /// Copies hold what had been acknowledged when they were begun, and nothing that was issued
    /// after they were done; one under way is no store, or whole.
    fn judge_copies(&mut self) -> Verdict<()> {
        for copy in std::mem::take(&mut self.copies) {
            let dir = self.dir.join(COPIES).join(copy.number.to_string());
            let judged = self.judge_copy(&dir, &copy);
            judged.map_err(|what| format!("copy {}: {what}", copy.number))?;
            let _ = fs::remove_dir_all(dir);
        }
        Ok(())
    }

    fn judge_copy(&mut self, dir: &Path, copy: &Copy) -> Verdict<()> {
        let script = &self.ledger.script;
        let db = match script.builder(dir, 32 << 20).create_if_missing(false).open() {
            Err(spinney::Error::NotAStore { .. }) if copy.most.is_none() => return Ok(()),
            opened => opened.map_err(|error| format!("open: {error}"))?,
        };
        let level = match self.random.one_in(4) {
            true => spinney::CheckLevel::Full,
            false => spinney::CheckLevel::Structure,
        };
        let report = db.check(level).map_err(|error| format!("check: {error}"))?;
        if !report.problems.is_empty() {
            return Err(format!("check: {:?}", report.problems));
        }
        let failed = |error: spinney::Error| format!("reading: {error}");
        let mut judged = 0;
        for _ in 0..3000 {
            let space = self.random.below(script.spaces.len());
            let index = self.random.below(script.spaces[space].keys as usize) as u32;
            let keyspace = db.existing_keyspace(&script.spaces[space].name).map_err(failed)?;
            let key = script.key(space, index);
            let value = keyspace.get(&key).map_err(failed)?;
            if let Some(value) = &value {
                plausible(script, space, &key, value)?;
            }
            // What has been overwritten since cannot be told any more.
            let least = copy.least[script.owner(index)];
            if self.ledger.last_step(space, index).is_some_and(|step| step <= least) {
                self.ledger.is_as_known(space, index, seen(value.as_ref()))?;
                judged += 1;
            }
        }
        *self.outcome.counts.entry("keys of copies".to_string()).or_default() += judged;
        let what = if copy.most.is_some() { "copies" } else { "copies begun" };
        *self.outcome.counts.entry(what.to_string()).or_default() += 1;
        db.close().map_err(|error| format!("close: {error}"))
    }

    /// Keeps what a child has left.
    fn keep(&mut self) -> io::Result<()> {
        self.before = self.ledger.clone();
        link_dir(&self.store(), &self.dir.join(LEFT))
    }

    /// Keeps what shows the violation: what there was before this life opened it, or, if it was
    /// found at work, what there is now.
    fn keep_evidence(&mut self, working: bool) -> io::Result<()> {
        match working {
            true => {
                self.ledger.save(&self.dir)?;
                link_dir(&self.store(), &self.dir.join(LEFT))
            }
            false => self.before.save(&self.dir),
        }
    }
}
