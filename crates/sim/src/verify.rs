//! Opens what a crash has left and judges it.
//!
//! The contract: opening succeeds; the keyspaces are those that were there; together they hold what
//! they held after exactly *k* commits, for one *k* that was promised; a full check finds nothing;
//! opening again gives the same and finds nothing to clear away; a crash during recovery changes
//! nothing of all this, and one after it keeps *k*; finished copies are whole.

use std::collections::BTreeMap;

use spinney::{CheckLevel, Database, Durability, Error};

use crate::disk::{Disk, Policy};
use crate::model::{Checkpoint, History, Promise};
use crate::random::{Random, fingerprint};
use crate::sizes::Sizes;
use crate::vfs::CrashVfs;
use crate::workload::STORE;

/// What the store was found to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// After so many commits.
    pub commits: usize,
    /// The keyspaces' places in the history.
    pub keyspaces: Vec<usize>,
    /// How many crashes have been judged to know this, those during recovery included.
    pub crashes: u64,
}

/// Judges the states a crash of one generation may leave.
#[derive(Debug, Clone, Copy)]
pub struct Judge<'a> {
    /// The store's sizes.
    pub sizes: Sizes,
    /// What was done to it.
    pub history: &'a History,
    /// Whether the store may be missing altogether.
    pub may_be_missing: bool,
    /// The moment of the crash.
    pub at: usize,
}

type Verdict<T> = Result<T, String>;

impl Judge<'_> {
    /// Judges what the first crash has left. `unsynced_survives` if it was only a process's end.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn judge(
        &self,
        disk: &Disk,
        unsynced_survives: bool,
        random: &mut Random,
        nested: usize,
    ) -> Verdict<Found> {
        let vfs = CrashVfs::new(disk);
        let promise = self.history.promise(self.at, unsynced_survives);
        let (mut found, opened) = {
            let db = self.open(&vfs)?;
            let opened = vfs.ops();
            (self.read(&db, promise)?, opened)
        };
        let closed = vfs.ops();
        self.open_again(&vfs, &found)?;
        if nested > 0 {
            let log = vfs.take_log();
            let at = random.below(closed + 1);
            let mut after = disk.clone();
            log[..at].iter().for_each(|op| after.apply(op));
            let policy = Policy::random(random);
            let after = after.crash(policy, log.get(at), random);
            let survives = unsynced_survives && policy.keeps_unsynced();
            let again = self.judge(&after, survives, random, nested - 1).and_then(|again| {
                match at < opened || self.same(&again, &found) {
                    true => Ok(again.crashes),
                    false => Err(format!("holds {again:?}, though {found:?} had been read")),
                }
            });
            found.crashes += again.map_err(|what| {
                format!("after recovery crashed at op {at} (open at {opened}), {policy:?}: {what}")
            })?;
        }
        for checkpoint in &self.history.checkpoints {
            let under_way = checkpoint.span.returned > self.at;
            if checkpoint.span.issued < self.at && (under_way || random.one_in(3)) {
                self.judge_checkpoint(&vfs, checkpoint, under_way)
                    .map_err(|what| format!("copy {}: {what}", checkpoint.dir))?;
            }
        }
        Ok(found)
    }

    fn open(&self, vfs: &CrashVfs) -> Verdict<Database> {
        let builder = self.sizes.builder(vfs, STORE).create_if_missing(self.may_be_missing);
        builder.open().map_err(|error| format!("open: {error}"))
    }

    fn open_again(&self, vfs: &CrashVfs, found: &Found) -> Verdict<()> {
        let again = self.open(vfs).map_err(|what| format!("a second time: {what}"))?;
        let orphans = again.recovery().orphans_removed;
        if orphans > 0 {
            return Err(format!("{orphans} data files were left that nothing refers to"));
        }
        let only = Promise { least: found.commits, most: found.commits };
        match self.read(&again, only).map_err(|what| format!("opened a second time: {what}"))? {
            same if self.same(&same, found) => self.go_on(vfs, again),
            other => Err(format!("opened a second time: holds {other:?}, not {found:?}")),
        }
    }

    /// What is committed from now on is there at the next open.
    fn go_on(&self, vfs: &CrashVfs, db: Database) -> Verdict<()> {
        let failed = |error: Error| format!("going on: {error}");
        let mut batch = db.batch().durability(Durability::Sync);
        for name in db.keyspaces() {
            batch.put(&db.existing_keyspace(&name).map_err(failed)?, "later", "value");
        }
        batch.commit().map_err(failed)?;
        let expected = read_all(&db)?;
        db.close().map_err(failed)?;
        let found = read_all(&self.open(vfs).map_err(|what| format!("a third time: {what}"))?)?;
        match found == expected {
            true => Ok(()),
            false => Err(format!("opened a third time: holds {found:x?}, not {expected:x?}")),
        }
    }

    /// Whether two moments are the same in all that can be seen.
    fn same(&self, a: &Found, b: &Found) -> bool {
        let history = &self.history.keyspaces;
        let sum = |found: &Found, place: usize| history[place].fingerprint(found.commits);
        a.keyspaces == b.keyspaces
            && a.keyspaces.iter().all(|&place| sum(a, place) == sum(b, place))
    }

    fn read(&self, db: &Database, promise: Promise) -> Verdict<Found> {
        let mut keyspaces = Vec::new();
        let mut sums = Vec::new();
        for (name, sum) in read_all(db)? {
            let mut known = self.history.keyspaces.iter();
            let place = known.position(|k| k.name == name && k.may_exist(self.at));
            keyspaces.push(place.ok_or_else(|| format!("keyspace {name:?} should not be there"))?);
            sums.push(sum);
        }
        let mut least = promise.least;
        for (place, keyspace) in self.history.keyspaces.iter().enumerate() {
            let there = keyspaces.contains(&place);
            if !there && keyspace.must_exist(self.at) {
                return Err(format!("keyspace {:?} is missing", keyspace.name));
            }
            // Once a keyspace is gone, all that was committed before has to be there.
            if let Some(dropped) = keyspace.dropped
                && !there
                && dropped.issued < self.at
            {
                let before = |span: &crate::model::Span| span.returned <= dropped.issued;
                least = least.max(self.history.commits.partition_point(before));
            }
        }
        let whole = |commits: &usize| {
            let mut places = keyspaces.iter().zip(&sums);
            places.all(|(place, sum)| self.history.keyspaces[*place].fingerprint(*commits) == *sum)
        };
        if let Some(commits) = (least..=promise.most).rev().find(whole) {
            return Ok(Found { commits, keyspaces, crashes: 1 });
        }
        let elsewhere: Vec<usize> = (0..=self.history.commits.len()).filter(whole).collect();
        let alone: Vec<String> = keyspaces
            .iter()
            .zip(&sums)
            .map(|(place, sum)| {
                let keyspace = &self.history.keyspaces[*place];
                let at: Vec<usize> = (0..=self.history.commits.len())
                    .filter(|commits| keyspace.fingerprint(*commits) == *sum)
                    .collect();
                format!("{} as after {}", keyspace.name, ranges(&at))
            })
            .collect();
        Err(format!(
            "holds no state of {least} to {} commits but that of {}; {}; {:?}",
            promise.most,
            ranges(&elsewhere),
            alone.join(", "),
            db.recovery()
        ))
    }

    fn judge_checkpoint(
        &self,
        vfs: &CrashVfs,
        checkpoint: &Checkpoint,
        under_way: bool,
    ) -> Verdict<()> {
        let builder = self.sizes.builder(vfs, &checkpoint.dir).create_if_missing(false);
        let db = match builder.open() {
            Err(Error::NotAStore { .. }) if under_way => return Ok(()),
            opened => opened.map_err(|error| format!("open: {error}"))?,
        };
        let found = read_all(&db)?;
        match found == checkpoint.keyspaces {
            true => Ok(()),
            false => Err(format!("holds {found:x?}, not {:x?}", checkpoint.keyspaces)),
        }
    }
}

/// The keyspaces and the fingerprints of what they hold, after a check of everything.
fn read_all(db: &Database) -> Verdict<BTreeMap<String, u64>> {
    let failed = |error: Error| format!("read: {error}");
    let mut found = BTreeMap::new();
    for name in db.keyspaces() {
        let keyspace = db.existing_keyspace(&name).map_err(failed)?;
        let mut sum = 0u64;
        for pair in keyspace.iter() {
            let (key, value) = pair.map_err(failed)?;
            sum = sum.wrapping_add(fingerprint(&key, &value));
        }
        found.insert(name, sum);
    }
    let report = db.check(CheckLevel::Full).map_err(failed)?;
    match report.problems.is_empty() {
        true => Ok(found),
        false => Err(format!("check: {:?}", report.problems)),
    }
}

fn ranges(numbers: &[usize]) -> String {
    match numbers {
        [] => "none".to_string(),
        [one] => one.to_string(),
        [first, .., last] if last - first + 1 == numbers.len() => format!("{first} to {last}"),
        many => format!("{many:?}"),
    }
}
