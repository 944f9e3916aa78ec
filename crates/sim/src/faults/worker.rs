//! Runs the steps on a failing disk, and checks the store's promises meanwhile.
//!
//! Invariants:
//! 1. The model is always exact: reads determine whether a failed commit happened before the next
//!    one is tried.
//! 2. An error of a worker's method is a breach of the contract. `met` handles the store's errors.

use std::ops::Bound;

use spinney::{CheckLevel, Database, Durability, Error, Keyspace, KeyspaceOptions, Slice};

use super::Case;
use super::step::{KEYSPACES, Shape, Step, options, other_options};
use crate::action::{KeyspaceNumber, keyspace_name};
use crate::fault::{Class, Fault};
use crate::model::{Checkpoint, Effect, History, Incarnation, Pairs, Span, Write};
use crate::sizes::Sizes;
use crate::vfs::CrashVfs;
use crate::workload::STORE;

/// Never: the moment at which something ended of which nobody knows whether it happened.
const UNKNOWN: usize = usize::MAX;

pub(super) type Verdict<T = ()> = Result<T, String>;

/// A keyspace of a name.
enum There {
    No,
    Yes(usize, Keyspace),
    /// It was being created or dropped when something failed.
    Uncertain,
}

/// A commit that failed and may have happened.
struct Doubt {
    writes: Vec<Write>,
    issued: usize,
    /// Whether the error said that nothing had been stored.
    refused: bool,
    error: String,
}

pub(super) struct Worker {
    pub(super) sizes: Sizes,
    pub(super) vfs: CrashVfs,
    pub(super) history: History,
    /// Whether the store holds what a crash may have made of it, or the disk's lies.
    pub(super) relaxed: bool,
    /// Whether more orphans than none are in order.
    pub(super) may_leave_files: bool,
    /// What was done when.
    trace: Vec<(usize, String)>,
    shape: Shape,
    case: Option<Case>,
    db: Option<Database>,
    keyspaces: Vec<There>,
    doubt: Option<Doubt>,
    /// A failed commit that is not seen, but may be found by the next open.
    unseen: Option<(Vec<Write>, usize)>,
    poisoned: bool,
    /// A write or sync of the journal has failed.
    must_refuse: bool,
    read_errors: u64,
    /// Whether the store is being opened or closed.
    passing: bool,
    strikes_seen: usize,
}

impl Worker {
    pub(super) fn new(sizes: Sizes, shape: Shape, vfs: CrashVfs, case: Option<Case>) -> Worker {
        Worker {
            sizes,
            vfs,
            history: History::default(),
            relaxed: false,
            may_leave_files: false,
            trace: Vec::new(),
            shape,
            case,
            db: None,
            keyspaces: Vec::new(),
            doubt: None,
            unseen: None,
            poisoned: false,
            must_refuse: false,
            read_errors: 0,
            passing: false,
            strikes_seen: 0,
        }
    }

    fn fault(&self) -> Option<Fault> {
        match self.case {
            Some(Case::Struck(plan)) => Some(plan.fault),
            Some(Case::SmallDisk(_)) => Some(Fault::Full),
            None => None,
        }
    }

    fn lies_when_written(&self) -> bool {
        self.fault().is_some_and(Fault::lies_when_written)
    }

    /// Whether anything has gone wrong yet.
    fn is_struck(&self) -> bool {
        match self.case {
            Some(Case::Struck(_)) => !self.vfs.strikes().is_empty(),
            Some(Case::SmallDisk(_)) => true,
            None => false,
        }
    }

    /// The last things that were done before a moment.
    pub(super) fn trace_before(&self, at: usize) -> String {
        let end = self.trace.partition_point(|(from, _)| *from <= at);
        let lines = self.trace[end.saturating_sub(12)..end].iter();
        lines.map(|(from, what)| format!("  op {from}: {what}\n")).collect()
    }

    fn options(&self, number: usize) -> KeyspaceOptions {
        options(number).keyspace_options(self.sizes.kinds.of(number))
    }

    fn note(&mut self, what: impl FnOnce() -> String) -> usize {
        let at = self.vfs.ops();
        self.trace.push((at, what()));
        at
    }

    /// Whether the store may fail like that.
    fn met(&mut self, doing: &str, error: &Error) -> Verdict {
        let at = self.note(|| format!("  {doing}: {error}"));
        let wrong = |what: &str| Err(format!("{doing} at op {at}: {what}: {error} ({error:?})"));
        let Some(fault) = self.fault().filter(|_| self.is_struck()) else {
            return wrong("failed though nothing had gone wrong");
        };
        if !error.to_string().contains("/data") {
            return wrong("the error names no file");
        }
        let strikes = self.vfs.strikes();
        match error {
            Error::Io { op, offset, source, .. } => {
                let full = source.kind() == std::io::ErrorKind::StorageFull;
                if matches!(*op, "read" | "write") && offset.is_none() && !full {
                    return wrong("the error has no offset");
                }
                let injected =
                    error.to_string().contains("the disk failed") || fault.is_full() && full;
                if !injected && !fault.lies() {
                    return wrong("failed otherwise than the disk");
                }
            }
            Error::Full { .. } if fault.is_full() => {}
            Error::Corruption { .. } if fault.lies() => {}
            Error::Poisoned { .. } => {
                let harmless = |class| matches!(class, Class::Read | Class::Lookup);
                if strikes.iter().all(|s| harmless(s.class)) && !self.is_small_disk() {
                    return wrong("refuses writes because of a read");
                }
                let room = |class| matches!(class, Class::Write | Class::Name | Class::Reserve);
                if fault.is_full() && strikes.iter().all(|s| room(s.class)) {
                    return wrong("refuses writes indefinitely because the disk was full");
                }
                self.poisoned = true;
            }
            _ => return wrong("failed otherwise than the disk"),
        }
        Ok(())
    }

    fn is_small_disk(&self) -> bool {
        matches!(self.case, Some(Case::SmallDisk(_)))
    }

    fn met_reading(&mut self, doing: &str, error: &Error) -> Verdict {
        self.met(doing, error)?;
        self.read_errors += 1;
        if let (Some(Case::Struck(plan)), Some(strike)) = (self.case, self.vfs.strikes().first()) {
            let most = u64::from(matches!(strike.class, Class::Read | Class::Lookup));
            if plan.times == 1 && !self.lies_when_written() && self.read_errors > most {
                return Err(format!("{doing}: a read failed that the disk did not: {error}"));
            }
        }
        Ok(())
    }

    /// Opens the store. False if that failed, as it may.
    pub(super) fn open(&mut self, create: bool) -> Verdict<bool> {
        self.note(|| "open".to_string());
        self.passing = true;
        let opened = self.sizes.builder(&self.vfs, STORE).create_if_missing(create).open();
        let db = match opened {
            Ok(db) => db,
            Err(error) => {
                self.met("open", &error)?;
                return Ok(false);
            }
        };
        // A store of which a keyspace could not be opened is taken for one that could not.
        for name in db.recovery().keyspaces_not_opened {
            if let Err(error) = db.existing_keyspace(&name) {
                self.met("open", &error)?;
                return Ok(false);
            }
        }
        self.passing = false;
        self.keyspaces = (0..KEYSPACES).map(|_| There::No).collect();
        for (place, incarnation) in self.history.keyspaces.iter().enumerate() {
            let number = usize::from(incarnation.number);
            if incarnation.dropped.is_some() || incarnation.created.returned == UNKNOWN {
                continue;
            }
            let name = &incarnation.name;
            let options = incarnation.options.keyspace_options(self.sizes.kinds.of(number));
            match db.keyspace(name, options) {
                Ok(keyspace) => self.keyspaces[number] = There::Yes(place, keyspace),
                Err(_) if self.relaxed || self.lies_when_written() => {}
                Err(error) => return Err(format!("keyspace {name} after opening: {error}")),
            }
        }
        self.db = Some(db);
        self.poisoned = false;
        self.must_refuse = false;
        Ok(true)
    }

    /// The first open, which creates the store and what is always there.
    fn begin(&mut self) -> Verdict<bool> {
        let once = matches!(self.case, Some(Case::Struck(plan)) if plan.times == 1);
        let mut opened = self.open(true)?;
        if !opened && once && !self.lies_when_written() {
            opened = self.open(true)?;
            if !opened {
                return Err("a second attempt to create the store failed too".to_string());
            }
        }
        if !opened {
            return Ok(false);
        }
        self.history.opened = self.vfs.ops();
        for number in 0..self.shape.keyspaces {
            self.create(number)?;
        }
        Ok(true)
    }

    /// Does the steps, then makes the disk work again, and checks that everything is right.
    pub(super) fn work(&mut self, steps: &[Step]) -> Verdict {
        let mut going = self.begin()?;
        for step in steps {
            if !going {
                break;
            }
            going = self.resolve()? && self.step(step)?;
            self.look_at_strikes(step);
        }
        self.vfs.plan(None);
        self.vfs.set_capacity(None);
        self.finish()
    }

    /// What has been struck since the last time, and what must follow from that.
    fn look_at_strikes(&mut self, step: &Step) {
        let strikes = self.vfs.strikes();
        for strike in &strikes[self.strikes_seen..] {
            // What cannot be removed stays for the next open.
            self.may_leave_files |= strike.class == Class::Remove;
            let name = strike.path.file_name().unwrap_or_default().to_string_lossy();
            let fault = self.fault();
            let fails = fault.is_some_and(|fault| !fault.lies() && !fault.is_full());
            if fails
                && name.starts_with("journal-")
                && matches!(strike.class, Class::Sync | Class::Store)
                && !matches!(step, Step::Reopen)
            {
                self.must_refuse = true;
            }
        }
        self.strikes_seen = strikes.len();
    }

    /// Mends, settles, compares and closes.
    fn finish(&mut self) -> Verdict {
        if self.db.is_none() {
            return Ok(());
        }
        let resolved = self.resolve()?;
        if !self.poisoned && !self.must_refuse {
            self.settle()?;
        }
        self.compare()?;
        if resolved {
            self.last_commit()?;
        }
        let Some(db) = &self.db else { return Ok(()) };
        if (self.poisoned || self.must_refuse) && db.sync().is_ok() {
            return Err("a sync is acknowledged after the journal or manifest failed".to_string());
        }
        let report = db.check(CheckLevel::Full).map_err(|error| format!("check: {error}"))?;
        if !report.problems.is_empty() && !self.lies_when_written() {
            return Err(format!("check: {:?}", report.problems));
        }
        self.close().map(|_| ())
    }

    /// The disk is well again: background work ends and commits are taken.
    fn settle(&mut self) -> Verdict {
        let Some(db) = self.db.clone() else { return Ok(()) };
        let mut last = None;
        for _ in 0..4 {
            self.note(|| "wait_idle, the disk works again".to_string());
            match db.wait_idle() {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(Error::Poisoned { .. }) | None => self.poisoned = true,
            // The failure that poisons is told as it was.
            Some(_) if db.sync().is_err() => self.poisoned = true,
            Some(_) if self.lies_when_written() => {}
            Some(error) => return Err(format!("background work does not recover: {error}")),
        }
        Ok(())
    }

    fn last_commit(&mut self) -> Verdict {
        if !self.keyspaces[..self.shape.keyspaces].iter().any(|k| matches!(k, There::Yes(..))) {
            return Ok(());
        }
        let key = b"key/last".to_vec();
        let writes = (0..self.shape.keyspaces)
            .map(|number| (number, key.clone(), Effect::Put(b"value".to_vec())))
            .collect::<Vec<_>>();
        let refuses = self.poisoned || self.must_refuse;
        let done = self.commit(true, &writes)?;
        if done == refuses && !self.lies_when_written() {
            let what = if done { "is taken after the journal failed" } else { "is refused" };
            return Err(format!("a commit {what} once the disk works again"));
        }
        self.resolve().map(|_| ())
    }

    /// False if the store failed to close, or was poisoned: what it holds after the next open is
    /// not certain.
    fn close(&mut self) -> Verdict<bool> {
        self.note(|| "close".to_string());
        self.keyspaces.clear();
        let Some(db) = self.db.take() else { return Ok(true) };
        self.passing = true;
        let closed = db.close();
        self.passing = false;
        let certain = closed.is_ok() && !self.poisoned && !self.must_refuse;
        self.may_leave_files |= !certain;
        if let Err(error) = closed {
            self.met("close", &error)?;
        } else if certain {
            self.all_durable();
        }
        Ok(certain)
    }

    /// From now on all commits are durable.
    fn all_durable(&mut self) {
        self.history.durable.push((self.vfs.ops(), self.history.commits.len()));
    }

    /// Does one step; false if nothing more can be done that the model could follow.
    fn step(&mut self, step: &Step) -> Verdict<bool> {
        let Some(db) = self.db.clone() else { return Ok(false) };
        match step {
            Step::Commit { sync, writes } => {
                self.commit(*sync, writes)?;
            }
            Step::Get(number, key) => {
                if let There::Yes(place, keyspace) = &self.keyspaces[*number] {
                    let expected = self.value(*place, key);
                    match keyspace.get(key) {
                        Ok(found) if found.as_deref() == expected => {}
                        Ok(found) => return Err(wrong(*number, key, &found, expected)),
                        Err(error) => self.met_reading("get", &error)?,
                    }
                }
            }
            Step::MultiGet(number, keys) => {
                if let There::Yes(place, keyspace) = &self.keyspaces[*number] {
                    match keyspace.multi_get(keys) {
                        Ok(found) => {
                            for (key, found) in keys.iter().zip(found) {
                                let expected = self.value(*place, key);
                                if found.as_deref() != expected {
                                    return Err(wrong(*number, key, &found, expected));
                                }
                            }
                        }
                        Err(error) => self.met_reading("multi_get", &error)?,
                    }
                }
            }
            Step::Compare => self.compare()?,
            Step::Turn => {
                self.note(|| "step".to_string());
                if let Err(error) = db.step() {
                    self.met("step", &error)?;
                }
            }
            Step::Sync => {
                self.note(|| "sync".to_string());
                match db.sync() {
                    Ok(()) if self.poisoned || self.must_refuse => {
                        return Err("a sync is acknowledged after the journal failed".to_string());
                    }
                    Ok(()) => self.all_durable(),
                    Err(error) => self.met("sync", &error)?,
                }
            }
            Step::Flush(number) => {
                if let There::Yes(_, keyspace) = &self.keyspaces[*number] {
                    let keyspace = keyspace.clone();
                    self.note(|| format!("flush {}", keyspace.name()));
                    if let Err(error) = keyspace.flush() {
                        self.met("flush", &error)?;
                    }
                }
            }
            Step::Compact(number) => {
                if let There::Yes(_, keyspace) = &self.keyspaces[*number] {
                    let keyspace = keyspace.clone();
                    self.note(|| format!("compact {}", keyspace.name()));
                    if let Err(error) = keyspace.compact(..) {
                        self.met("compact", &error)?;
                    }
                }
            }
            Step::Alter(number, choice) => self.alter(*number, *choice)?,
            Step::Idle => {
                self.note(|| "wait_idle".to_string());
                if let Err(error) = db.wait_idle() {
                    self.met("wait_idle", &error)?;
                }
            }
            Step::Checkpoint => self.checkpoint(&db)?,
            Step::Toggle => {
                let last = KEYSPACES - 1;
                match &self.keyspaces[last] {
                    There::No => self.create(last)?,
                    There::Yes(..) => self.drop_one(last)?,
                    There::Uncertain => {}
                }
            }
            Step::Reopen => {
                drop(db);
                return self.reopen();
            }
        }
        Ok(true)
    }

    fn reopen(&mut self) -> Verdict<bool> {
        let struck_before = self.is_struck();
        let certain = self.close()?;
        let uncertain = self.unseen.is_some()
            || self.history.commits.last().is_some_and(|span| span.returned == UNKNOWN)
            || self.history.keyspaces.iter().any(|keyspace| {
                keyspace.created.returned == UNKNOWN
                    || keyspace.is_altered_by_chance()
                    || keyspace.dropped.is_some_and(|span| span.returned == UNKNOWN)
            });
        if !certain || uncertain || (struck_before && self.lies_when_written()) {
            return Ok(false);
        }
        let reads_lie = self.fault().is_some_and(Fault::lies_when_read);
        let strikes = self.vfs.strikes().len();
        let opened = self.open(false)?;
        if reads_lie && self.vfs.strikes().len() > strikes {
            // What was read wrongly may have been taken for what a crash had left.
            self.relaxed = true;
            self.keyspaces.clear();
            self.db = None;
            return Ok(false);
        }
        if opened {
            return Ok(true);
        }
        let once = matches!(self.case, Some(Case::Struck(plan)) if plan.times == 1);
        self.may_leave_files = true;
        match once && !self.lies_when_written() && !self.open(false)? {
            true => Err("a second attempt to open the store failed too".to_string()),
            false => Ok(self.db.is_some()),
        }
    }

    fn create(&mut self, number: usize) -> Verdict {
        let name = &*keyspace_name(number as KeyspaceNumber);
        let Some(db) = self.db.clone() else { return Ok(()) };
        let issued = self.note(|| format!("create {name}"));
        let commits = self.history.commits.len();
        let place = self.history.keyspaces.len();
        let there = match db.keyspace(name, self.options(number)) {
            Ok(keyspace) => There::Yes(place, keyspace),
            Err(error) => {
                self.met("create", &error)?;
                // Nothing has happened.
                if matches!(error, Error::Poisoned { .. } | Error::Full { .. }) {
                    return Ok(());
                }
                There::Uncertain
            }
        };
        let returned = match there {
            There::Yes(..) => self.vfs.ops(),
            _ => UNKNOWN,
        };
        let span = Span { issued, returned };
        let (options, base) = (options(number), Pairs::new());
        let made = Incarnation::new(number as KeyspaceNumber, options, base, commits, span);
        self.history.keyspaces.push(made);
        self.keyspaces[number] = there;
        Ok(())
    }

    /// Gives a keyspace other options. One that failed has not got them: neither can be told from the handle, nor followed,
    /// before they are durable.
    fn alter(&mut self, number: usize, choice: u8) -> Verdict {
        let There::Yes(place, keyspace) = &self.keyspaces[number] else { return Ok(()) };
        let (place, keyspace) = (*place, keyspace.clone());
        let options = other_options(number, choice);
        let wanted = options.keyspace_options(self.sizes.kinds.of(number));
        let before = keyspace.options();
        let issued = self.note(|| format!("alter {}: {options}", keyspace.name()));
        match keyspace.alter(|_| wanted.clone()) {
            Ok(()) if keyspace.options() == wanted => {
                self.history.keyspaces[place].alter(options, issued);
                self.history.keyspaces[place].altered(self.vfs.ops());
            }
            Ok(()) => return Err(format!("altered to {:?}", keyspace.options())),
            Err(error) => {
                self.met("alter", &error)?;
                if keyspace.options() != before {
                    return Err(format!("options that were refused are followed ({error})"));
                }
                if !matches!(error, Error::Full { .. } | Error::Poisoned { .. }) {
                    self.history.keyspaces[place].alter(options, issued);
                }
            }
        }
        Ok(())
    }

    fn drop_one(&mut self, number: usize) -> Verdict {
        let name = &*keyspace_name(number as KeyspaceNumber);
        let Some(db) = self.db.clone() else { return Ok(()) };
        let There::Yes(place, _) = self.keyspaces[number] else { return Ok(()) };
        let issued = self.note(|| format!("drop {name}"));
        let returned = match db.drop_keyspace(name) {
            Ok(()) => {
                self.keyspaces[number] = There::No;
                self.all_durable();
                self.vfs.ops()
            }
            Err(error) => {
                self.met("drop", &error)?;
                if matches!(error, Error::Full { .. }) {
                    return Ok(());
                }
                self.keyspaces[number] = There::Uncertain;
                UNKNOWN
            }
        };
        self.history.keyspaces[place].dropped = Some(Span { issued, returned });
        Ok(())
    }

    /// Commits; whether that succeeded.
    fn commit(&mut self, sync: bool, writes: &[(usize, Vec<u8>, Effect)]) -> Verdict<bool> {
        let Some(db) = self.db.clone() else { return Ok(false) };
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        let mut batch = db.batch().durability(durability);
        let mut model = Vec::new();
        for (number, key, change) in writes {
            let There::Yes(place, keyspace) = &self.keyspaces[*number] else { continue };
            match change {
                Effect::Put(value) => batch.put(keyspace, key, value),
                Effect::Delete => batch.delete(keyspace, key),
                Effect::Merge(value) => batch.merge(keyspace, key, value),
                Effect::DeleteRange(Some(to)) => batch.delete_range(keyspace, key..to),
                Effect::DeleteRange(None) => batch.delete_range(keyspace, key..),
            }
            model.push(Write { place: *place, key: key.clone(), effect: change.clone() });
        }
        if model.is_empty() {
            return Ok(false);
        }
        let number = self.history.commits.len() + 1;
        let how = if sync { ", sync" } else { "" };
        let issued = self.note(|| format!("commit {number}, {} writes{how}", model.len()));
        let refuses = self.poisoned || self.must_refuse;
        match batch.commit() {
            Ok(()) if refuses => Err(format!("commit {number} is taken after the journal failed")),
            Ok(()) => {
                // The order is one: what failed before this has happened for good, or never will.
                self.unseen = None;
                let returned = self.vfs.ops();
                for span in self.history.commits.iter_mut().rev() {
                    match span.returned {
                        UNKNOWN => span.returned = returned,
                        _ => break,
                    }
                }
                self.history.commit(&model, issued);
                self.history.returned(returned);
                if sync {
                    self.all_durable();
                }
                Ok(true)
            }
            Err(error) => {
                self.met("commit", &error)?;
                if refuses && !matches!(error, Error::Poisoned { .. }) {
                    return Err(format!("commit {number} was not refused as poisoned: {error}"));
                }
                let refused = matches!(error, Error::Full { .. } | Error::Poisoned { .. });
                let error = error.to_string();
                self.doubt = Some(Doubt { writes: model, issued, refused, error });
                self.resolve()?;
                Ok(false)
            }
        }
    }

    /// Finds out whether the commit that failed has happened; false if it cannot be read.
    fn resolve(&mut self) -> Verdict<bool> {
        let Some(doubt) = self.doubt.take() else { return Ok(true) };
        let mut after = self.history.clone();
        after.commit(&doubt.writes, doubt.issued);
        let (mut none, mut all) = (true, true);
        for write in &doubt.writes {
            let mut open = self.keyspaces.iter();
            let keyspace = open.find_map(|there| match there {
                There::Yes(place, keyspace) if *place == write.place => Some(keyspace.clone()),
                _ => None,
            });
            let Some(keyspace) = keyspace else { continue };
            match keyspace.get(&write.key) {
                Ok(found) => {
                    none &= found.as_deref() == self.value(write.place, &write.key);
                    let after = after.keyspaces[write.place].get(&write.key, after.issued());
                    all &= found.as_deref() == after;
                }
                Err(error) => {
                    self.met("get after a failed commit", &error)?;
                    self.doubt = Some(doubt);
                    return Ok(false);
                }
            }
        }
        match (none, all) {
            (false, false) => {
                return Err(format!("half of a commit that failed is there ({})", doubt.error));
            }
            (false, true) if doubt.refused => {
                return Err(format!("a commit that was refused is there ({})", doubt.error));
            }
            (true, _) if doubt.refused => {}
            (true, _) => {
                self.note(|| "  (it is not there)".to_string());
                self.unseen = Some((doubt.writes, doubt.issued));
            }
            (false, true) => {
                self.note(|| "  (it is there)".to_string());
                self.history = after;
            }
        }
        Ok(true)
    }

    fn checkpoint(&mut self, db: &Database) -> Verdict {
        let dir = format!("/data/copy-{}", self.trace.len());
        let issued = self.note(|| format!("checkpoint {dir}"));
        let alive = self.keyspaces.iter().filter_map(|there| match there {
            There::Yes(place, _) => Some(&self.history.keyspaces[*place]),
            _ => None,
        });
        let keyspaces = alive
            .map(|keyspace| (keyspace.name.clone(), keyspace.fingerprint(self.history.issued())))
            .collect();
        let strikes = self.vfs.strikes().len();
        match db.checkpoint(&dir) {
            Ok(()) => {
                let span = Span { issued, returned: self.vfs.ops() };
                self.history.checkpoints.push(Checkpoint { dir, span, keyspaces });
            }
            Err(error) => {
                self.met("checkpoint", &error)?;
                let span = Span { issued, returned: UNKNOWN };
                let left = self.vfs.names_below(&dir);
                let once = matches!(self.case, Some(Case::Struck(plan)) if plan.times == 1);
                if once && strikes < self.vfs.strikes().len() && left > 0 {
                    return Err(format!("a copy that failed ({error}) leaves {left} files behind"));
                }
                self.history.checkpoints.push(Checkpoint { dir, span, keyspaces });
            }
        }
        Ok(())
    }

    fn value(&self, place: usize, key: &[u8]) -> Option<&[u8]> {
        self.history.keyspaces[place].get(key, self.history.issued())
    }

    /// The running store agrees with the model.
    fn compare(&mut self) -> Verdict {
        self.note(|| "read everything".to_string());
        let mut failed = Vec::new();
        for there in &self.keyspaces {
            let There::Yes(place, keyspace) = there else { continue };
            let all = (Bound::Unbounded, Bound::Unbounded);
            let commits = self.history.issued();
            let mut expected = self.history.keyspaces[*place].range(all.0, all.1, commits);
            let mut ended = false;
            for pair in keyspace.iter() {
                match pair {
                    Ok((key, value)) => match expected.next() {
                        Some((k, v)) if *k == *key && *v == *value => {}
                        other => {
                            let other = other.map(|(key, _)| key.escape_ascii().to_string());
                            let key = key.escape_ascii();
                            let name = keyspace.name();
                            return Err(format!("{name} holds \"{key}\"; the model {other:?}"));
                        }
                    },
                    Err(error) => {
                        failed.push(error);
                        ended = true;
                        break;
                    }
                }
            }
            if !ended && let Some((key, _)) = expected.next() {
                let name = keyspace.name();
                return Err(format!("{name} does not hold \"{}\"", key.escape_ascii()));
            }
        }
        failed.iter().try_for_each(|error| self.met_reading("read everything", error))
    }

    /// A commit that failed and was not seen may turn up at the next open.
    pub(super) fn add_unseen(&mut self) {
        for (writes, issued) in
            self.doubt.take().map(|d| (d.writes, d.issued)).into_iter().chain(self.unseen.take())
        {
            self.history.commit(&writes, issued);
        }
    }
}

fn wrong(keyspace: usize, key: &[u8], found: &Option<Slice>, expected: Option<&[u8]>) -> String {
    let short = |value: Option<&[u8]>| {
        value.map(|value| format!("{} bytes {:x?}", value.len(), &value[..value.len().min(8)]))
    };
    format!(
        "keyspace {keyspace}: \"{}\" is {:?}, not {:?}",
        key.escape_ascii(),
        short(found.as_deref()),
        short(expected)
    )
}
