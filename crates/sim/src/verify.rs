//! Opens the result of a crash and judges it.
//!
//! The contract: opening succeeds. The keyspaces are the expected ones, and together they have
//! their content after exactly *k* commits, for one allowed *k*. Each has the options that it was given last, or those that
//! it was being given at the moment of the crash. All ways of reading agree. A full
//! check finds nothing. Opening again gives the same content and finds nothing to clean up. A crash
//! during recovery does not change this, and a crash after recovery keeps *k*. Recovering the same
//! image twice gives the same result. After all work has ended, the directory has no file that the
//! trees do not name. Finished copies are complete.

use std::collections::{BTreeMap, BTreeSet};

use spinney::{Database, Durability, Error};

use crate::action::Options;
use crate::disk::{Disk, Op, Policy};
use crate::model::{Checkpoint, History, Promise};
use crate::random::{Random, fingerprint, mix};
use crate::reading::{Reading, read_all};
use crate::sizes::Sizes;
use crate::space;
use crate::vfs::CrashVfs;
use crate::workload::STORE;

/// What the store was found to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// After so many commits.
    pub commits: usize,
    /// The keyspaces' places in the history.
    pub keyspaces: Vec<usize>,
    /// Their options.
    pub options: Vec<Options>,
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

/// What a crash at each operation of a recovery has left, judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// How many states, by the policy of the crash in recovery.
    pub states: BTreeMap<Policy, u64>,
    /// How many more there were that another had been the same as.
    pub same: u64,
}

/// What happens to a store once it has been opened a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Nothing more.
    Closed,
    /// Something is committed, and it is opened once more.
    GoneOn,
    /// That, and before it everything is settled and the files are counted.
    Settled,
}

type Verdict<T> = Result<T, String>;

/// A recovery, and the store as it was found then.
struct Recovery {
    log: Vec<Op>,
    /// How many operations it took to open the store.
    opened: usize,
    found: Found,
}

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
        let reading = if random.one_in(4) { Reading::EveryWay } else { Reading::Checked };
        let (vfs, recovery) = self.recover(disk, unsynced_survives, reading)?;
        if random.one_in(8) {
            self.recovers_alike(disk, &recovery)?;
        }
        let mut found = recovery.found.clone();
        let after = [After::Closed, After::Closed, After::GoneOn, After::Settled][random.below(4)];
        self.open_again(&vfs, &found, after)?;
        if nested > 0 {
            let at = random.below(recovery.log.len() + 1);
            let mut after = disk.clone();
            recovery.log[..at].iter().for_each(|op| after.apply(op));
            let crash = (Policy::random(random), random.draw());
            let judged = self.judge_nested(
                &after,
                &recovery,
                at,
                crash,
                unsynced_survives,
                random,
                nested - 1,
            );
            found.crashes += judged?;
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

    /// Judges what a crash leaves at each operation of the recovery of what the first crash has
    /// left, under each policy, and all that [`Policy::PowerSubset`] may leave where it can be
    /// counted. Now and then those recoveries crash too.
    ///
    /// # Errors
    /// As [`Judge::judge`].
    pub fn sweep(
        &self,
        disk: &Disk,
        unsynced_survives: bool,
        random: &mut Random,
    ) -> Verdict<Sweep> {
        let (_, recovery) = self.recover(disk, unsynced_survives, Reading::EveryWay)?;
        let mut sweep = Sweep::default();
        let mut after = disk.clone();
        let mut seen = BTreeSet::new();
        for at in 0..=recovery.log.len() {
            for policy in Policy::ALL {
                let draw = random.draw();
                let draws = match (policy, after.subsets()) {
                    (Policy::PowerSubset, Some(subsets)) => 0..subsets,
                    _ => draw..draw.wrapping_add(1),
                };
                for draw in draws {
                    let image = after.crash(policy, draw, recovery.log.get(at)).fingerprint();
                    let survives = unsynced_survives && policy.keeps_unsynced();
                    if !seen.insert((image, survives, at >= recovery.opened)) {
                        sweep.same += 1;
                        continue;
                    }
                    let nested = usize::from(random.one_in(32));
                    let states = self.judge_nested(
                        &after,
                        &recovery,
                        at,
                        (policy, draw),
                        unsynced_survives,
                        random,
                        nested,
                    )?;
                    *sweep.states.entry(policy).or_default() += states;
                }
            }
            recovery.log[at..].iter().take(1).for_each(|op| after.apply(op));
        }
        Ok(sweep)
    }

    /// What a judgement depends on beside the image: equal for equal promises.
    pub fn promise_fingerprint(&self, unsynced_survives: bool) -> u64 {
        let promise = self.history.promise(self.at, unsynced_survives);
        let mut parts = vec![u64::from(self.may_be_missing)];
        for keyspace in &self.history.keyspaces {
            let (may, must) = (keyspace.may_exist(self.at), keyspace.must_exist(self.at));
            let dropping = keyspace.dropped.filter(|dropped| dropped.issued < self.at);
            let least = dropping.map(|dropped| self.least_before(dropped.issued));
            if may || least.is_some_and(|least| least > promise.least) {
                let name = fingerprint(keyspace.name.as_bytes(), &[]);
                let options = format!("{:?}", keyspace.options_at(self.at));
                parts.push(fingerprint(options.as_bytes(), &[]));
                let least = least.map_or(0, |least| least.saturating_sub(promise.least) + 1);
                parts.extend([name, u64::from(may), u64::from(must), least as u64]);
                parts.extend((promise.least..=promise.most).map(|k| keyspace.fingerprint(k)));
            }
        }
        for copy in self.history.checkpoints.iter().filter(|copy| copy.span.issued < self.at) {
            let under_way = copy.span.returned > self.at;
            parts.extend([fingerprint(copy.dir.as_bytes(), &[]), u64::from(under_way)]);
            parts.extend(copy.keyspaces.iter().map(|(name, sum)| mix(sum ^ name.len() as u64)));
        }
        parts.iter().fold(0, |state, part| mix(state ^ part))
    }

    /// How many commits had been issued and had returned at a moment.
    fn least_before(&self, moment: usize) -> usize {
        let before = |span: &crate::model::Span| span.returned <= moment;
        self.history.commits.partition_point(before)
    }

    /// Opens the store on `disk`, judges it, and closes it.
    fn recover(
        &self,
        disk: &Disk,
        unsynced_survives: bool,
        reading: Reading,
    ) -> Verdict<(CrashVfs, Recovery)> {
        let vfs = CrashVfs::new(disk);
        let promise = self.history.promise(self.at, unsynced_survives);
        let (found, opened) = {
            let db = self.open(&vfs)?;
            let opened = vfs.ops();
            (self.read(&db, promise, reading)?, opened)
        };
        Ok((vfs.clone(), Recovery { log: vfs.take_log(), opened, found }))
    }

    /// The same disk is recovered by the same operations.
    fn recovers_alike(&self, disk: &Disk, recovery: &Recovery) -> Verdict<()> {
        let vfs = CrashVfs::new(disk);
        drop(self.open(&vfs)?);
        let again = vfs.take_log();
        let pairs = again.iter().zip(&recovery.log);
        let differs = pairs.take_while(|(a, b)| a == b).count();
        match again.len() == differs && recovery.log.len() == differs {
            true => Ok(()),
            false => Err(format!(
                "recovered once more it does {:?} as operation {differs} of {}, not {:?} of {}",
                again.get(differs),
                again.len(),
                recovery.log.get(differs),
                recovery.log.len()
            )),
        }
    }

    /// Judges what a crash leaves before the operation `at` of a recovery, when the disk was
    /// `after`.
    #[allow(clippy::too_many_arguments)]
    fn judge_nested(
        &self,
        after: &Disk,
        recovery: &Recovery,
        at: usize,
        (policy, draw): (Policy, u64),
        unsynced_survives: bool,
        random: &mut Random,
        nested: usize,
    ) -> Verdict<u64> {
        let left = after.crash(policy, draw, recovery.log.get(at));
        let survives = unsynced_survives && policy.keeps_unsynced();
        let (opened, found) = (recovery.opened, &recovery.found);
        let again = self.judge(&left, survives, random, nested).and_then(|again| {
            match at < opened || self.same(&again, found) {
                true => Ok(again.crashes),
                false => Err(format!("holds {again:?}, though {found:?} had been read")),
            }
        });
        again.map_err(|what| {
            format!(
                "after recovery crashed at op {at} (open at {opened}), {policy} draw {draw}: {what}"
            )
        })
    }

    fn open(&self, vfs: &CrashVfs) -> Verdict<Database> {
        let builder = self.sizes.builder(vfs, STORE).create_if_missing(self.may_be_missing);
        let db = builder.open().map_err(|error| format!("open: {error}"))?;
        self.judge_cost(&db)?;
        Ok(db)
    }

    /// Opening costs the journal's bytes: memtables are weighed, to make room among them, once for
    /// so many bytes and not after each record.
    fn judge_cost(&self, db: &Database) -> Verdict<()> {
        let recovery = db.recovery();
        // An entry of a journal takes up to eight times as much in a memtable. Room is made each
        // time that a third of what memtables may then take has come, and a few times at the end.
        let share = self.sizes.memtable_bytes * 8 / 3;
        let times = 12 + recovery.bytes_replayed * 8 / share.max(1);
        match recovery.memtables_weighed <= times * db.keyspaces().len() as u64 {
            true => Ok(()),
            false => Err(format!(
                "opening weighed memtables far more often than {times} times: {recovery:?}"
            )),
        }
    }

    fn open_again(&self, vfs: &CrashVfs, found: &Found, after: After) -> Verdict<()> {
        let again = self.open(vfs).map_err(|what| format!("a second time: {what}"))?;
        let orphans = again.recovery().orphans_removed;
        if orphans > 0 {
            return Err(format!("{orphans} data files were left that nothing refers to"));
        }
        let only = Promise { least: found.commits, most: found.commits };
        let second = self.read(&again, only, Reading::Once);
        let second = second.map_err(|what| format!("opened a second time: {what}"))?;
        match after {
            _ if !self.same(&second, found) => {
                Err(format!("opened a second time: holds {second:?}, not {found:?}"))
            }
            After::Closed => Ok(()),
            After::GoneOn | After::Settled => self.go_on(vfs, again, after == After::Settled),
        }
    }

    /// What is committed from now on is there at the next open, and a snapshot does not see it.
    fn go_on(&self, vfs: &CrashVfs, db: Database, settled: bool) -> Verdict<()> {
        let failed = |error: Error| format!("going on: {error}");
        let before = db.snapshot();
        let mut batch = db.batch().durability(Durability::Sync);
        let mut keyspaces = Vec::new();
        for name in db.keyspaces() {
            let keyspace = db.existing_keyspace(&name).map_err(failed)?;
            batch.put(&keyspace, LATER, "value");
            keyspaces.push(keyspace);
        }
        batch.commit().map_err(failed)?;
        for keyspace in keyspaces {
            if before.contains_key(&keyspace, LATER).map_err(failed)? {
                let name = keyspace.name();
                return Err(format!("going on: a snapshot of {name} sees what came later"));
            }
        }
        drop(before);
        if settled {
            space::check_settled(vfs, STORE, &db)?;
        }
        let expected = read_all(&db, Reading::Once)?;
        db.close().map_err(failed)?;
        let again = self.open(vfs).map_err(|what| format!("a third time: {what}"))?;
        let found = read_all(&again, Reading::Checked)?;
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
            && a.options == b.options
            && a.keyspaces.iter().all(|&place| sum(a, place) == sum(b, place))
    }

    fn read(&self, db: &Database, promise: Promise, reading: Reading) -> Verdict<Found> {
        let mut keyspaces = Vec::new();
        let mut options = Vec::new();
        let mut sums = Vec::new();
        for (name, sum) in read_all(db, reading)? {
            let mut known = self.history.keyspaces.iter();
            let place = known.position(|k| k.name == name && k.may_exist(self.at));
            let place = place.ok_or_else(|| format!("keyspace {name:?} should not be there"))?;
            options.push(self.options_of(db, place)?);
            keyspaces.push(place);
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
                least = least.max(self.least_before(dropped.issued));
            }
        }
        let whole = |commits: &usize| {
            let mut places = keyspaces.iter().zip(&sums);
            places.all(|(place, sum)| self.history.keyspaces[*place].fingerprint(*commits) == *sum)
        };
        if let Some(commits) = (least..=promise.most).rev().find(whole) {
            return Ok(Found { commits, keyspaces, options, crashes: 1 });
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

    /// The options of a keyspace, which are among those that it may have.
    fn options_of(&self, db: &Database, place: usize) -> Verdict<Options> {
        let keyspace = &self.history.keyspaces[place];
        let kind = self.sizes.kinds.of(usize::from(keyspace.number));
        let failed = |error: Error| format!("options of {}: {error}", keyspace.name);
        let found = db.existing_keyspace(&keyspace.name).map_err(failed)?.options();
        let allowed = keyspace.options_at(self.at);
        let is_found = |options: &&Options| options.keyspace_options(kind) == found;
        allowed.iter().rev().find(is_found).copied().ok_or_else(|| {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            format!("{} has the options {found:?}, and may have {allowed:?}", keyspace.name)
        })
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
        let found = read_all(&db, Reading::EveryWay)?;
        match found == checkpoint.keyspaces {
            true => Ok(()),
            false => Err(format!("holds {found:x?}, not {:x?}", checkpoint.keyspaces)),
        }
    }
}

/// A key that no workload has.
const LATER: &str = "later";

fn ranges(numbers: &[usize]) -> String {
    match numbers {
        [] => "none".to_string(),
        [one] => one.to_string(),
        [first, .., last] if last - first + 1 == numbers.len() => format!("{first} to {last}"),
        many => format!("{many:?}"),
    }
}
