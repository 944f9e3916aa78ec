//! The process that is killed: opens the store, reports its content, and runs several writers on it
//! until it dies.

use std::io::Stdout;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spinney::{Database, Durability, Error, Keyspace};

use super::frames::{Frame, Pipe};
use super::judge::judge;
use super::ledger::Ledger;
use super::script::{Change, PASSING, SHARED, Script, Step, WriterState, passing_name, shared_key};
use crate::random::Random;

/// The ledger's name in a run's directory.
pub const LEDGER: &str = "ledger.json";
/// The store's name there.
pub const STORE: &str = "store";
/// Where copies are, there.
pub const COPIES: &str = "copies";

/// Lives of one child at most.
pub const LIVES: u32 = 10_000;

struct Shared {
    dir: PathBuf,
    script: Script,
    ledger: Ledger,
    db: Database,
    keyspaces: Vec<Keyspace>,
    pipe: Arc<Pipe<Stdout>>,
    /// Whether errors of files are to be expected.
    faulty: bool,
    lives: AtomicU32,
    stopped: AtomicBool,
}

/// Whether a fault of the disk explains an error. Damage, or the loss of the store, it does not.
fn is_explained(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::Full { .. } | Error::Poisoned { .. })
}

/// Works until it is killed, or, if everything has failed that can, returns.
pub fn run(dir: &Path, faulty: bool) {
    let pipe = Arc::new(Pipe::new(std::io::stdout()));
    pipe.send(&Frame::Started(std::process::id()));
    let panicked = Arc::clone(&pipe);
    std::panic::set_hook(Box::new(move |panic| {
        panicked.send(&Frame::Violation(format!("a panic in the child: {panic}")));
    }));
    let told = Arc::clone(&pipe);
    if let Err(what) = open_and_work(dir, faulty, pipe) {
        told.send(&what);
    }
}

fn open_and_work(dir: &Path, faulty: bool, pipe: Arc<Pipe<Stdout>>) -> Result<(), Frame> {
    let ledger = Ledger::load(&dir.join(LEDGER))
        .map_err(|error| Frame::Violation(format!("the ledger: {error}")))?;
    let script = ledger.script();
    let not_opened = |what: &str, error: Error| match faulty && is_explained(&error) {
        true => Frame::NotOpened(format!("{what}: {error}")),
        false => Frame::Violation(format!("{what}: {error}")),
    };
    let builder = script.builder(&dir.join(STORE)).create_if_missing(!ledger.opened);
    let db = builder.open().map_err(|error| not_opened("open", error))?;
    let findings = judge(&db, &ledger)
        .map_err(|what| Frame::Violation(format!("found by the next child: {what}")))?;
    for (writer, &steps) in findings.steps.iter().enumerate() {
        pipe.send(&Frame::Found { writer, steps });
    }
    for &(key, writer, step) in &findings.shared {
        pipe.send(&Frame::SharedFound { key, writer, step });
    }
    let mut keyspaces = Vec::new();
    for name in SHARED {
        let opened = db.keyspace(name, script.options(name));
        keyspaces.push(opened.map_err(|error| not_opened("creating keyspaces", error))?);
    }
    pipe.send(&Frame::Ready);
    let shared = Shared {
        dir: dir.to_path_buf(),
        script,
        lives: AtomicU32::new(ledger.round * LIVES),
        ledger,
        db,
        keyspaces,
        pipe,
        faulty,
        stopped: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let upkeep = scope.spawn(|| upkeep(&shared));
        let writers: Vec<_> = findings
            .steps
            .iter()
            .enumerate()
            .map(|(writer, &steps)| {
                let shared = &shared;
                scope.spawn(move || Writer::new(shared, writer, steps).work())
            })
            .collect();
        writers.into_iter().for_each(|writer| drop(writer.join()));
        shared.stopped.store(true, Ordering::Relaxed);
        drop(upkeep.join());
    });
    shared.pipe.send(&Frame::Stopped);
    Ok(())
}

struct Writer<'a> {
    shared: &'a Shared,
    state: WriterState,
    life: u32,
    passing: Option<Keyspace>,
}

impl<'a> Writer<'a> {
    fn new(shared: &'a Shared, writer: usize, steps: u64) -> Writer<'a> {
        let state = shared.ledger.writers[writer].after(&shared.script, writer, steps);
        let passing = shared.db.existing_keyspace(&passing_name(writer)).ok();
        let life = shared.lives.fetch_add(1, Ordering::Relaxed);
        Writer { shared, state, life, passing }
    }

    fn work(&mut self) {
        let pipe = &self.shared.pipe;
        let writer = self.state.writer;
        let mut refused = 0u32;
        loop {
            let (step, life) = (self.state.steps + 1, self.life);
            let next = self.state.next(&self.shared.script, life);
            pipe.send(&Frame::Issued { writer, life, step });
            match self.carry_out(&next, step) {
                Ok(()) => {
                    let sync = matches!(next, Step::Batch { sync: true, .. });
                    pipe.send(&Frame::Acknowledged { writer, sync, step });
                    self.state.apply(&next);
                    if step.is_multiple_of(64) {
                        self.compare(&self.state, None);
                    }
                }
                // Nothing has been written; of a keyspace that is not so sure.
                Err(Error::Full { .. })
                    if self.shared.faulty && matches!(next, Step::Batch { .. }) =>
                {
                    pipe.send(&Frame::Refused { writer, step });
                    self.life = self.shared.lives.fetch_add(1, Ordering::Relaxed);
                    refused += 1;
                    if refused <= 3 {
                        self.compare(&self.state, None);
                    }
                    std::thread::sleep(Duration::from_millis(2));
                    if refused > 300 {
                        return;
                    }
                }
                Err(error) => {
                    let explained = self.shared.faulty && is_explained(&error);
                    let what = format!("writer {writer}, step {step} ({next:.60?}): {error}");
                    pipe.send(&match explained {
                        true => Frame::Explained(what),
                        false => Frame::Violation(what),
                    });
                    pipe.send(&Frame::Failed { writer, step });
                    let mut with = self.state.clone();
                    with.apply(&next);
                    return self.compare(&self.state, Some(&with));
                }
            }
        }
    }

    fn carry_out(&mut self, next: &Step, step: u64) -> spinney::Result<()> {
        let (writer, db) = (self.state.writer, &self.shared.db);
        let name = passing_name(writer);
        match next {
            Step::Create => {
                self.passing = Some(db.keyspace(&name, self.shared.script.options(&name))?);
                Ok(())
            }
            Step::Drop => {
                self.passing = None;
                db.drop_keyspace(&name)
            }
            Step::Batch { writes, shared, sync } => {
                let mut batch = db.batch();
                if *sync {
                    batch = batch.durability(Durability::Sync);
                }
                for write in writes {
                    let Some(keyspace) = self.keyspace(write.keyspace) else { continue };
                    match &write.change {
                        Change::Put(value) => batch.put(keyspace, &write.key, value),
                        Change::Delete => batch.delete(keyspace, &write.key),
                        Change::Append(value) => batch.merge(keyspace, &write.key, value),
                    }
                }
                if let Some(key) = *shared {
                    let value = self.shared.script.shared_value(key, writer, step, self.life);
                    for keyspace in &self.shared.keyspaces[..2] {
                        batch.put(keyspace, shared_key(key), &value);
                    }
                }
                batch.commit()
            }
        }
    }

    fn keyspace(&self, place: usize) -> Option<&Keyspace> {
        match place {
            PASSING => self.passing.as_ref(),
            place => self.shared.keyspaces.get(place),
        }
    }

    /// The writer reads what it wrote: one of two states, if the second is possible.
    fn compare(&self, state: &WriterState, or: Option<&WriterState>) {
        for (place, pairs) in state.pairs.iter().enumerate() {
            // A keyspace that failed to be created or dropped need not be there.
            let Some(keyspace) = self.keyspace(place).filter(|_| place < PASSING || or.is_none())
            else {
                continue;
            };
            // All at once is what a small machine can bear; of many, the newest in order.
            let keys: Vec<&Vec<u8>> = pairs.keys().take(300).collect();
            let found = match keyspace.multi_get(&keys) {
                Ok(found) => found,
                Err(error) if self.shared.faulty && is_explained(&error) => continue,
                Err(error) => {
                    return self.shared.pipe.send(&Frame::Violation(format!("reading: {error}")));
                }
            };
            for (key, found) in keys.into_iter().zip(found) {
                let found = found.as_deref();
                let expected = pairs.get(key).map(Vec::as_slice);
                let other = or.map(|or| or.pairs[place].get(key).map(Vec::as_slice));
                if found != expected && other != Some(found) {
                    let what = format!(
                        "writer {} reads {:?} bytes at {} in {}, though it wrote {:?}",
                        state.writer,
                        found.map(<[u8]>::len),
                        key.escape_ascii(),
                        keyspace.name(),
                        expected.map(<[u8]>::len),
                    );
                    return self.shared.pipe.send(&Frame::Violation(what));
                }
            }
        }
    }
}

/// Flushes, compactions, copies and held snapshots, while the writers go on.
fn upkeep(shared: &Shared) {
    let mut random = Random::new(&[shared.script.seed, 14, u64::from(shared.ledger.round)]);
    let mut copies = 0;
    let snapshots = Mutex::new(Vec::new());
    while !shared.stopped.load(Ordering::Relaxed) {
        let keyspace = &shared.keyspaces[random.below(shared.keyspaces.len())];
        let done = match random.below(20) {
            0..4 => keyspace.flush(),
            4..7 => keyspace.compact(..),
            7 if copies < 2 && !shared.script.fills => {
                let number = u64::from(shared.ledger.round) * 10 + copies;
                copies += 1;
                shared.pipe.send(&Frame::CopyIssued(number));
                let dir = shared.dir.join(COPIES).join(number.to_string());
                shared.db.checkpoint(dir).map(|()| shared.pipe.send(&Frame::CopyDone(number)))
            }
            8 => shared.db.sync(),
            9 | 10 => {
                let mut snapshots = snapshots.lock().unwrap_or_else(|held| held.into_inner());
                snapshots.push(shared.db.snapshot());
                if snapshots.len() > 3 {
                    snapshots.remove(0);
                }
                Ok(())
            }
            _ => {
                std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
                Ok(())
            }
        };
        match done {
            Err(error) if shared.faulty && is_explained(&error) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => shared.pipe.send(&Frame::Violation(format!("upkeep: {error}"))),
            Ok(()) => {}
        }
    }
}
