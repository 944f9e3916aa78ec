//! The process that is killed: opens the store, reports its content, and works on it until it dies.
//!
//! It does not know the expected content. The parent has it, in another process, whose memory is
//! not judged.

use std::io::Stdout;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spinney::{CheckLevel, Database, Durability, Error, Iter, Keyspace, Snapshot};
use spinney_bench::measure::meter::Reading;

use super::frames::Told;
use super::ledger::Verdict;
use super::look::{look, plausible, seen};
use super::plan::Plan;
use super::process::Memory;
use super::script::{Change, Op, Script, digest};
use crate::kill::frames::Pipe;
use crate::random::{Random, mix};

/// The store's name in a run's directory.
pub const STORE: &str = "store";
/// Where copies are, there.
pub const COPIES: &str = "copies";

/// A write that takes longer is told.
const STALL: Duration = Duration::from_millis(100);
/// Pairs of a view that is read again later.
const VIEW_PAIRS: usize = 200;

struct Shared {
    dir: PathBuf,
    plan: Plan,
    script: Script,
    db: Database,
    spaces: Vec<Keyspace>,
    pipe: Arc<Pipe<Stdout>>,
    stopped: AtomicBool,
    pins: AtomicU64,
}

/// Works until it is killed.
pub fn run(dir: &Path) {
    let pipe = Arc::new(Pipe::new(std::io::stdout()));
    let panicked = Arc::clone(&pipe);
    std::panic::set_hook(Box::new(move |panic| {
        panicked.send(&Told::Violation(format!("a panic in the child: {panic}")));
    }));
    if let Err(what) = open_and_work(dir, &pipe) {
        pipe.send(&Told::Violation(what));
    }
}

fn open_and_work(dir: &Path, pipe: &Arc<Pipe<Stdout>>) -> Verdict<()> {
    let plan = Plan::load(dir).map_err(|error| format!("the plan: {error}"))?;
    let script = plan.script().ok_or("the plan has no script")?;
    if let Some(cgroup) = &plan.cgroup {
        let entered = std::fs::write(cgroup, std::process::id().to_string());
        entered.map_err(|error| format!("{}: {error}", cgroup.display()))?;
    }
    // Makes the bytes that values are cut from.
    script.write(0, 0, 1, &mut Vec::new());
    let own = Memory::of(std::process::id()).map_or(0, |memory| memory.anonymous);
    pipe.send(&Told::Opening { bytes: own });
    let before = Reading::now();
    let opened = script.builder(&dir.join(STORE), plan.budget).open();
    let db = opened.map_err(|error| format!("open: {error}"))?;
    let processor = Reading::now().processor.saturating_sub(before.processor);
    pipe.send(&Told::Opened {
        processor_micros: processor.as_micros() as u64,
        replayed_bytes: db.recovery().bytes_replayed,
    });
    let spaces = look(&db, &script, &plan.extent, &mut |told| {
        pipe.send(&told);
        Ok(())
    })?;
    pipe.send(&Told::Working);
    let shared = Shared {
        dir: dir.to_path_buf(),
        plan,
        script,
        db,
        spaces,
        pipe: Arc::clone(pipe),
        stopped: AtomicBool::new(false),
        pins: AtomicU64::new(0),
    };
    shared.work();
    shared.pipe.send(&Told::Idle);
    let Shared { plan, script, db, spaces, pipe, .. } = shared;
    if plan.closes {
        drop(spaces);
        return db.close().map_err(|error| format!("close: {error}"));
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
        for told in db.stats().keyspaces {
            let space = script.spaces.iter().position(|space| space.name == told.name);
            let (live_bytes, disk_bytes) = (told.live_bytes, told.disk_bytes);
            space.into_iter().for_each(|space| {
                pipe.send(&Told::Live { space, live_bytes, disk_bytes });
            });
        }
    }
}

impl Shared {
    fn work(&self) {
        std::thread::scope(|scope| {
            for writer in 0..self.script.writers {
                scope.spawn(move || self.tell(Writer::new(self, writer).work()));
            }
            for number in 0..self.plan.scanners {
                scope.spawn(move || self.tell(self.scan(number)));
            }
            if self.plan.upkeep || self.plan.copies {
                scope.spawn(|| self.tell(self.upkeep()));
            }
            if self.plan.snapshots || self.plan.iterators > 0 {
                scope.spawn(|| self.tell(self.hold()));
            }
            if self.plan.work_millis > 0 {
                std::thread::sleep(Duration::from_millis(self.plan.work_millis));
                self.stopped.store(true, Ordering::Relaxed);
            }
        });
    }

    fn tell(&self, verdict: Verdict<()>) {
        if let Err(what) = verdict {
            self.pipe.send(&Told::Violation(what));
        }
    }

    fn count(&self, what: usize, count: u64) {
        self.pipe.send(&Told::Counted { what, count });
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn random(&self, number: u64) -> Random {
        Random::new(&[self.script.seed, 34, self.plan.life, number])
    }

    fn pin(&self) -> u64 {
        let number = self.pins.fetch_add(1, Ordering::Relaxed);
        self.pipe.send(&Told::Pinned(number));
        number
    }

    fn somewhere(&self, random: &mut Random) -> (usize, Vec<u8>) {
        let space = random.below(self.spaces.len());
        let keys = self.script.spaces[space].keys as usize;
        (space, self.script.key(space, random.below(keys) as u32))
    }

    /// Scans stretches of keyspaces, in any direction.
    fn scan(&self, number: usize) -> Verdict<()> {
        let mut random = self.random(100 + number as u64);
        while !self.is_stopped() {
            let (space, start) = self.somewhere(&mut random);
            let backwards = random.one_in(3);
            let pin = self.pin();
            let mut pairs = self.spaces[space].range(start..);
            let mut count = 0;
            while count < 2000
                && !self.is_stopped()
                && let Some(pair) = if backwards { pairs.next_back() } else { pairs.next() }
            {
                let (key, value) = pair.map_err(|error| format!("scanning: {error}"))?;
                plausible(&self.script, space, &key, &value)?;
                count += 1;
            }
            drop(pairs);
            self.pipe.send(&Told::Unpinned(pin));
            self.count(0, count);
        }
        Ok(())
    }

    /// Flushes, compacts, checks and copies.
    fn upkeep(&self) -> Verdict<()> {
        let mut random = self.random(1);
        let mut copies = 0;
        while !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(50 + random.below(500) as u64));
            let (number, start) = self.somewhere(&mut random);
            let (_, end) = (number, self.somewhere(&mut random).1);
            let space = &self.spaces[number];
            let what = random.below(10);
            let done = match what {
                0..3 if self.plan.upkeep => space.flush(),
                3..5 if self.plan.upkeep && start < end => space.compact(start..end),
                5 if self.plan.upkeep => self.db.sync(),
                6 | 7 if self.plan.upkeep => {
                    let report = self.db.check(CheckLevel::Structure);
                    let report = report.map_err(|error| format!("check: {error}"))?;
                    self.count(5, 1);
                    match report.problems.is_empty() {
                        true => Ok(()),
                        false => {
                            return Err(format!("check while writing: {:?}", report.problems));
                        }
                    }
                }
                8 | 9 if self.plan.copies && copies < 2 => {
                    let number = self.plan.life * 10 + copies;
                    copies += 1;
                    self.pipe.send(&Told::CopyIssued(number));
                    let dir = self.dir.join(COPIES).join(number.to_string());
                    let done = self.db.checkpoint(dir);
                    if done.is_ok() {
                        self.pipe.send(&Told::CopyDone(number));
                    }
                    done
                }
                _ => Ok(()),
            };
            done.map_err(|error| format!("upkeep {what} of {}: {error}", space.name()))?;
            self.count(4, u64::from(what < 5));
        }
        Ok(())
    }

    /// Holds snapshots and iterators, and reads them again.
    fn hold(&self) -> Verdict<()> {
        let mut random = self.random(2);
        let mut views: Vec<View> = Vec::new();
        let mut iterators: Vec<(u64, usize, Iter)> = Vec::new();
        while !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(20));
            if self.plan.snapshots && views.len() < 6 && random.one_in(4) {
                views.push(View::new(self, &mut random)?);
                self.count(2, 1);
            }
            if !views.is_empty() && random.one_in(20) {
                let view = views.remove(random.below(views.len()));
                view.read_again(self)?;
                self.count(3, 1);
            }
            for _ in 0..self.plan.iterators.div_ceil(100) {
                if iterators.len() == self.plan.iterators {
                    // Reads on in one of them, however old it is.
                    let (_, space, held) = &mut iterators[random.below(self.plan.iterators)];
                    if let Some(pair) = held.next() {
                        let (key, value) = pair.map_err(|error| format!("held: {error}"))?;
                        plausible(&self.script, *space, &key, &value)?;
                    }
                    continue;
                }
                let (space, start) = self.somewhere(&mut random);
                let mut held = self.spaces[space].range(start..);
                if let Some(pair) = held.next() {
                    let (key, value) = pair.map_err(|error| format!("held: {error}"))?;
                    plausible(&self.script, space, &key, &value)?;
                }
                iterators.push((self.pin(), space, held));
                self.count(1, 1);
            }
        }
        for (pin, _, held) in iterators {
            drop(held);
            self.pipe.send(&Told::Unpinned(pin));
        }
        views.into_iter().try_for_each(|view| view.read_again(self))
    }
}

/// What a snapshot showed of a range when it was taken, and an iterator of it that has been begun.
struct View {
    pin: u64,
    snapshot: Snapshot,
    space: usize,
    start: Vec<u8>,
    digest: u64,
    held: Iter,
    held_digest: u64,
    held_pairs: usize,
}

/// A digest of the pairs that an iterator yields, and how many there are.
fn digest_of(pairs: &mut Iter, count: usize, from: u64) -> Verdict<(u64, usize)> {
    let (mut state, mut found) = (from, 0);
    while found < count
        && let Some(pair) = pairs.next()
    {
        let (key, value) = pair.map_err(|error| format!("a snapshot: {error}"))?;
        state = mix(mix(state ^ digest(&key)) ^ digest(&value));
        found += 1;
    }
    Ok((state, found))
}

impl View {
    fn new(shared: &Shared, random: &mut Random) -> Verdict<View> {
        let (space, start) = shared.somewhere(random);
        let pin = shared.pin();
        let snapshot = shared.db.snapshot();
        let range = || snapshot.range(&shared.spaces[space], start.clone()..);
        let (digest, _) = digest_of(&mut range(), VIEW_PAIRS, 0)?;
        let mut held = range();
        let (held_digest, held_pairs) = digest_of(&mut held, random.below(VIEW_PAIRS), 0)?;
        Ok(View { pin, snapshot, space, start, digest, held, held_digest, held_pairs })
    }

    fn read_again(mut self, shared: &Shared) -> Verdict<()> {
        let space = &shared.spaces[self.space];
        let mut again = self.snapshot.range(space, self.start.clone()..);
        let (digest, _) = digest_of(&mut again, VIEW_PAIRS, 0)?;
        let rest = VIEW_PAIRS - self.held_pairs;
        let (held, _) = digest_of(&mut self.held, rest, self.held_digest)?;
        drop(again);
        let start = self.start.escape_ascii().to_string();
        if digest != self.digest {
            return Err(format!("a snapshot shows other pairs of {} from {start}", space.name()));
        }
        if held != self.digest {
            return Err(format!(
                "a held iterator shows other pairs of {} from {start}",
                space.name()
            ));
        }
        let pin = self.pin;
        drop(self);
        shared.pipe.send(&Told::Unpinned(pin));
        Ok(())
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    writer: usize,
    random: Random,
    value: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(shared: &'a Shared, writer: usize) -> Writer<'a> {
        let random = shared.random(10 + writer as u64);
        Writer { shared, writer, random, value: Vec::new() }
    }

    fn work(&mut self) -> Verdict<()> {
        let (shared, writer) = (self.shared, self.writer);
        let mut step = shared.plan.steps[writer];
        while !shared.is_stopped() {
            step += 1;
            shared.pipe.send(&Told::Issued { writer, step });
            let took = self.carry_out(step);
            let took = took.map_err(|error| format!("writer {writer}, step {step}: {error}"))?;
            if took > STALL {
                shared.pipe.send(&Told::Stalled { writer, micros: took.as_micros() as u64 });
            }
            shared.pipe.send(&Told::Acknowledged { writer, step });
            if step.is_multiple_of(16) {
                self.read_back()?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, step: u32) -> Result<Duration, Error> {
        let Writer { shared, writer, value, .. } = self;
        let script = &shared.script;
        let next = script.step(*writer, step);
        if let ([op], false) = (&next.ops[..], next.sync) {
            let (space, key) = (&shared.spaces[op.space], script.key(op.space, op.index));
            value_of(script, op, step, value);
            let begun = Instant::now();
            match op.change {
                Change::Put => space.put(key, &value[..])?,
                Change::Delete => space.delete(key)?,
                Change::Append => space.merge(key, &value[..])?,
            }
            return Ok(begun.elapsed());
        }
        let mut batch = shared.db.batch();
        if next.sync {
            batch = batch.durability(Durability::Sync);
        }
        for op in &next.ops {
            let (space, key) = (&shared.spaces[op.space], script.key(op.space, op.index));
            value_of(script, op, step, value);
            match op.change {
                Change::Put => batch.put(space, key, &value[..]),
                Change::Delete => batch.delete(space, key),
                Change::Append => batch.merge(space, key, &value[..]),
            }
        }
        let begun = Instant::now();
        batch.commit()?;
        Ok(begun.elapsed())
    }

    /// Reads some of the writer's own keys, which nobody else writes meanwhile.
    fn read_back(&mut self) -> Verdict<()> {
        let (shared, script) = (self.shared, &self.shared.script);
        let failed = |error: Error| format!("reading back: {error}");
        let space = self.random.below(script.spaces.len());
        let own = (script.spaces[space].keys as usize).saturating_sub(self.writer);
        let own = own.div_ceil(script.writers);
        let indices: Vec<u32> = (0..6)
            .map(|_| (self.random.below(own) * script.writers + self.writer) as u32)
            .collect();
        let keys: Vec<Vec<u8>> = indices.iter().map(|index| script.key(space, *index)).collect();
        let values = match self.random.one_in(2) {
            true => shared.spaces[space].multi_get(&keys).map_err(failed)?,
            false => {
                let get = |key: &Vec<u8>| shared.spaces[space].get(key);
                keys.iter().map(get).collect::<Result<_, _>>().map_err(failed)?
            }
        };
        for (index, value) in indices.into_iter().zip(&values) {
            shared.pipe.send(&Told::Read { space, index, seen: seen(value.as_ref()) });
        }
        Ok(())
    }
}

fn value_of(script: &Script, op: &Op, step: u32, value: &mut Vec<u8>) {
    value.clear();
    if op.change != Change::Delete {
        script.write(op.space, op.index, step, value);
    }
}
