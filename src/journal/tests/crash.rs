//! Crashes: whatever reaches the disk, the replay is a prefix and holds all that was synced.

use super::*;

/// A store's life over several epochs: the journal, and what must come back.
struct Life {
    vfs: Arc<TestVfs>,
    journal: Journal,
    random: Random,
    shards: usize,
    epoch: u32,
    log: Vec<Batch>,
    next: u64,
    /// Everything up to here has been promised to survive power loss.
    promised: u64,
    floor: u64,
    limits: Vec<EpochLimit>,
}

impl Life {
    fn new(seed: u64) -> Life {
        let (vfs, mut random) = (TestVfs::new(), Random::new(seed));
        let shards = 1 + random.below(4) as usize;
        let journal = journal(&vfs, options(shards, 4096, 1));
        let (log, limits) = (Vec::new(), Vec::new());
        let (next, promised, floor) = (1, 0, 0);
        Life { vfs, journal, random, shards, epoch: 1, log, next, promised, floor, limits }
    }

    fn take(&mut self) -> Batch {
        let count = 1 + self.random.below(3) as u32;
        let most = if self.random.chance(30) { 9000 } else { 300 };
        let payload = random_payload(&mut self.random, count, most);
        let batch = Batch { first: self.next, count, payload };
        self.next += u64::from(count);
        batch
    }

    fn append(&mut self, batch: Batch, shard: usize) {
        append_to(&self.journal, shard, batch.first, batch.count, &batch.payload);
        self.log.push(batch);
    }

    fn step(&mut self) {
        let shard = self.random.below(self.shards as u64) as usize;
        match self.random.below(20) {
            0 => {
                self.journal.sync_all().unwrap();
                self.promised = self.next - 1;
            }
            1 => {
                self.journal.sync_upto(Seqno(self.next - 1)).unwrap();
                self.promised = self.next - 1;
                assert_eq!(
                    self.journal.durable(),
                    Seqno(self.promised).max(self.journal.durable())
                );
            }
            2 => self.journal.maintain().unwrap(),
            3 if self.random.chance(3) => {
                // The manifest holds durably what lies at or below the floor.
                let upto = self.random.below(self.promised.max(1));
                let whole = self.log.iter().map(|b| b.first - 1).rfind(|&last| last <= upto);
                self.floor = self.floor.max(whole.unwrap_or(0));
                self.journal.retire(Seqno(self.floor)).unwrap();
            }
            4 if self.shards > 1 => {
                // Two writers take their numbers in one order and append in the other; a sync may
                // come in between, with nobody vouching for either.
                let (a, b) = (self.take(), self.take());
                self.append(b, shard);
                if self.random.chance(2) {
                    self.journal.sync_all().unwrap();
                    self.promised = a.first - 1;
                }
                self.append(a, (shard + 1) % self.shards);
                self.log.sort_by_key(|batch| batch.first);
            }
            _ => {
                let batch = self.take();
                self.append(batch, shard);
            }
        }
    }

    /// Crashes, replays, checks, and starts the next epoch.
    fn crash(&mut self) {
        let power_loss = self.random.chance(2);
        if self.random.chance(3) && self.shards > 1 {
            // A writer dies between taking its numbers and the append; others went on.
            let (_never, batch) = (self.take(), self.take());
            self.append(batch, 0);
        }
        let clean = !power_loss && self.random.chance(4);
        let complete = self.log.iter().try_fold(1, |next, batch| {
            if batch.first == next { Ok(next + u64::from(batch.count)) } else { Err(next - 1) }
        });
        let complete = complete.map_or_else(|last| last, |next| next - 1);
        if clean && complete == self.next - 1 {
            self.journal.close().unwrap();
        }
        self.vfs = if power_loss {
            self.vfs.after_random_power_loss(&mut self.random)
        } else {
            self.promised = complete;
            self.vfs.after_process_death()
        };
        let plan = ReplayPlan {
            floor: Seqno(self.floor),
            limits: self.limits.clone(),
            ..plan(self.epoch)
        };
        let (found, report) = collect(&self.vfs, &plan).unwrap();
        assert!(report.last.0 >= self.promised, "{report:?} promised {}", self.promised);
        assert!(report.last.0 <= complete);
        assert!(report.damage_skipped.is_empty());
        self.log.retain(|batch| batch.first <= report.last.0);
        let wanted: Vec<_> = self.log.iter().filter(|b| b.first > self.floor).cloned().collect();
        assert!(found == wanted, "{report:?}");

        // What was delivered must survive power loss from now on.
        self.promised = report.last.0;
        self.next = report.last.0 + 1;
        self.limits = report.limits;
        self.epoch += 1;
        self.shards = 1 + self.random.below(4) as usize;
        let vfs: Arc<dyn Vfs> = Arc::<TestVfs>::clone(&self.vfs);
        let options = options(self.shards, 4096, self.epoch);
        self.journal =
            Journal::create(vfs, dir(), options, report.segments, Arc::default()).unwrap();
    }
}

#[test]
fn after_any_crash_the_replay_is_a_prefix_with_all_that_was_synced() {
    for seed in 1..=150 {
        let mut life = Life::new(seed);
        for _ in 0..6 {
            for _ in 0..life.random.below(80) {
                life.step();
            }
            life.crash();
        }
    }
}

#[test]
fn every_subset_of_lost_sectors_gives_a_prefix_and_never_corruption() {
    for (seed, shards) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
        let vfs = TestVfs::new();
        let journal = journal(&vfs, options(shards, 4096, 1));
        let mut random = Random::new(seed);
        let mut log = Vec::new();
        for first in 1..=28 {
            // From eight or so in a sector to some over two sectors.
            let most = if first % 3 == 0 { 600 } else { 40 };
            let payload = random_payload(&mut random, 1, most);
            append_to(&journal, random.below(shards as u64) as usize, first, 1, &payload);
            log.push(Batch { first, count: 1, payload });
            if first == 8 {
                journal.sync_upto(Seqno(8)).unwrap();
            }
        }
        let sectors: Vec<(PathBuf, usize)> = (vfs.unsynced_sectors().into_iter())
            .flat_map(|(path, sectors)| sectors.into_iter().map(move |s| (path.clone(), s)))
            .collect();
        assert!((6..=11).contains(&sectors.len()), "{}", sectors.len());
        for subset in 0..1u32 << sectors.len() {
            let crashed = vfs.after_power_loss(|path, sector, writes| {
                let index = sectors.iter().position(|(p, s)| p == path && *s == sector).unwrap();
                if subset >> index & 1 == 1 { writes } else { 0 }
            });
            let (found, report) = collect(&crashed, &plan(1)).unwrap();
            assert!((8..=28).contains(&report.last.0));
            assert_eq!(found, log[..report.last.0 as usize]);
        }
    }
}

#[test]
fn a_record_caught_while_it_was_copied_is_a_torn_tail() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(1, 4096, 1));
    for first in 1..=3 {
        append_to(&journal, 0, first, 1, &solid_payload(150));
    }
    let path = segment(1, 0, 1);
    let bytes = vfs.contents(&path);
    // The second record, which is short: any one of its words not there yet, the third one whole.
    let (second, third) = (64 + 200, 64 + 200 + 184);
    for word in (second..third).step_by(8) {
        if bytes[word..word + 8] == [0; 8] {
            continue;
        }
        let crashed = vfs.after_process_death();
        crashed.damage(&path, |bytes| bytes[word..word + 8].fill(0));
        let (found, report) = collect(&crashed, &plan(1)).unwrap();
        assert_eq!((found.len(), report.torn.len(), report.records_dropped), (1, 1, 1));
        assert_eq!(report.torn[0].offset, second as u64);
        assert_eq!((report.torn[0].records_dropped, report.last), (1, Seqno(1)));
    }
}

#[test]
fn what_one_recovery_dropped_never_comes_back() {
    let vfs = TestVfs::new();
    let first = journal(&vfs, options(2, 4096, 1));
    append_to(&first, 0, 1, 1, &solid_payload(10));
    append_to(&first, 1, 3, 1, &solid_payload(30)); // 2 was never appended
    append_to(&first, 1, 4, 1, &solid_payload(40));
    let (found, report) = collect(&vfs, &plan(1)).unwrap();
    assert_eq!((found.len(), report.records_dropped), (1, 2));
    assert_eq!(
        report.gap,
        Some(crate::journal::replay::Gap { expected: Seqno(2), found: Seqno(3) })
    );

    let second = journal(&vfs, options(2, 4096, 2));
    append_to(&second, 0, 2, 1, &solid_payload(222));
    second.sync_upto(Seqno(2)).unwrap();
    let vfs = vfs.after_power_loss(|_, _, _| 0);
    let plan = ReplayPlan { limits: report.limits, ..plan(2) };
    let (found, report) = collect(&vfs, &plan).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found[1].payload, solid_payload(222));
    assert_eq!(report.last, Seqno(2));
    let limits: Vec<_> = report.limits.iter().map(|l| (l.epoch, l.last.0)).collect();
    assert_eq!(limits, [(1, 1), (2, 2)]);
}

#[test]
fn segments_of_forgotten_epochs_are_not_read_but_retired() {
    let vfs = TestVfs::new();
    append_to(&journal(&vfs, options(1, 4096, 1)), 0, 1, 1, &solid_payload(10));
    append_to(&journal(&vfs, options(1, 4096, 2)), 0, 9, 1, &solid_payload(10));
    let plan = ReplayPlan { floor: Seqno(8), ..plan(2) };
    let (found, report) = collect(&vfs, &plan).unwrap();
    assert_eq!((found.len(), report.last, report.segments.len()), (1, Seqno(9), 2));
    let clone: Arc<dyn Vfs> = Arc::<TestVfs>::clone(&vfs);
    let third = Journal::create(clone, dir(), options(1, 4096, 3), report.segments, Arc::default())
        .unwrap();
    assert_eq!(third.retire(Seqno(8)).unwrap(), 4096);
    assert_eq!(third.old_epochs(), [2]);
}
