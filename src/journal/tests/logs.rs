//! Logs that trees keep, beside the shards: what replay makes of both.

use super::*;
use crate::base::sync::Mutex;
use crate::tree::{BadBatch, Logged, LoggedBatch, OperationLog, OperationSource};

/// A log in memory, as its tree and as recovery sees it.
#[derive(Debug, Default)]
struct Log {
    epoch: Mutex<u32>,
    batches: Mutex<Vec<(u32, LoggedBatch)>>,
    synced: Mutex<usize>,
    bad: Option<BadBatch>,
    fails: bool,
    unreadable: bool,
}

impl OperationLog for Log {
    fn begin(&self, epoch: u32, _last: Seqno) {
        *self.epoch.lock() = epoch;
    }

    fn reserve(&self, payload_bytes: usize) -> bool {
        payload_bytes < 1000
    }

    fn append(&self, first: Seqno, count: u32, durable: Seqno, payload: &[u8]) {
        let payload = payload.to_vec();
        let batch = LoggedBatch { first, count, durable, payload, offset: first.0 * 100 };
        self.batches.lock().push((*self.epoch.lock(), batch));
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<u64> {
        if self.fails {
            return Err(Error::invalid("the log's sync"));
        }
        *self.synced.lock() = self.batches.lock().len();
        Ok(1)
    }

    fn retire(&self, _floor: Seqno) {}
}

/// Where a log says that it is: a file that exists, since a replay stores it again.
fn log_path() -> PathBuf {
    dir().join("log")
}

#[derive(Debug)]
struct Source(Arc<Log>, PathBuf, u32);

impl OperationSource for Source {
    fn path(&self) -> &Path {
        &self.1
    }

    fn epoch(&self) -> u32 {
        self.2
    }

    fn batches(&self) -> Result<Box<dyn Iterator<Item = Result<Logged>>>> {
        if self.0.unreadable {
            return Err(Error::corruption(&self.1, 0, "log", "a header", "none"));
        }
        let (batches, epoch) = (self.0.batches.lock().clone(), self.2);
        let batches = batches.into_iter().filter(move |(of, _)| *of == epoch);
        let batches = batches.map(|(_, batch)| Ok(Logged::Batch(batch)));
        Ok(Box::new(batches.chain(self.0.bad.map(|bad| Ok(Logged::Bad(bad))))))
    }
}

fn plan_with(log: &Arc<Log>, newest_epoch: u32) -> ReplayPlan {
    let source = |epoch| -> Arc<dyn OperationSource> {
        Arc::new(Source(Arc::clone(log), log_path(), epoch))
    };
    ReplayPlan { logs: (1..=newest_epoch).map(source).collect(), ..plan(newest_epoch) }
}

fn new_vfs() -> Arc<TestVfs> {
    let vfs = TestVfs::new();
    vfs.create_mapped(&log_path(), 64).unwrap();
    vfs
}

fn append_in(journal: &Journal, log: &Log, first: u64, count: u32) {
    let payload = payload(count);
    let mut guard = journal.lock_shard_of(KeyspaceId(3));
    assert!(guard.reserve_in(log, &Payload::Whole(&payload)).unwrap());
    guard.append_to(log, Seqno(first), count, &Payload::Whole(&payload));
    guard.check_log(log).unwrap();
}

fn payload(count: u32) -> Vec<u8> {
    (0..count).flat_map(|_| solid_payload(20)).collect()
}

fn firsts(batches: &[Batch]) -> Vec<u64> {
    batches.iter().map(|batch| batch.first).collect()
}

#[test]
fn a_log_fills_the_gaps_of_the_shards() {
    let (vfs, log) = (new_vfs(), Arc::new(Log::default()));
    let as_log: Arc<dyn OperationLog> = Arc::<Log>::clone(&log);
    let journal = journal(&vfs, options(2, 4096, 1));
    journal.attach(&as_log, Seqno(0));
    append_to(&journal, 0, 1, 1, &payload(1));
    append_in(&journal, &log, 2, 3);
    append_to(&journal, 1, 5, 1, &payload(1));
    append_in(&journal, &log, 6, 1);
    assert!(!journal.lock_shard(0).reserve_in(&*log, &Payload::Whole(&[0; 1000])).unwrap());
    journal.sync_upto(Seqno(6)).unwrap();
    assert_eq!(*log.synced.lock(), 2);
    append_in(&journal, &log, 7, 1);
    let (batches, report) = collect(&vfs, &plan_with(&log, 1)).unwrap();
    assert_eq!((firsts(&batches), report.last), (vec![1, 2, 5, 6, 7], Seqno(7)));
    // A batch that straddles the floor is delivered whole.
    let floor = ReplayPlan { floor: Seqno(3), ..plan_with(&log, 1) };
    assert_eq!(firsts(&collect(&vfs, &floor).unwrap().0), [2, 5, 6, 7]);
    // Without the log the shards end at a gap. (No record of theirs says that more was durable.)
    let (batches, report) = collect(&vfs, &plan(1)).unwrap();
    assert_eq!((firsts(&batches), report.gap.map(|gap| gap.found)), (vec![1], Some(Seqno(5))));
    // Who lost what was durable is told: batch 7 knew it.
    log.batches.lock().remove(1);
    let error = collect(&vfs, &plan_with(&log, 1)).unwrap_err();
    assert!(error.is_corruption(), "{error}");
}

#[test]
fn what_a_recovery_dropped_of_a_log_stays_dropped() {
    let (vfs, log) = (new_vfs(), Arc::new(Log::default()));
    let as_log: Arc<dyn OperationLog> = Arc::<Log>::clone(&log);
    let first = journal(&vfs, options(1, 4096, 1));
    first.attach(&as_log, Seqno(0));
    append_in(&first, &log, 1, 1);
    // Number 2 got lost with its shard.
    append_in(&first, &log, 3, 2);
    let (batches, report) = collect(&vfs, &plan_with(&log, 1)).unwrap();
    assert_eq!((firsts(&batches), report.last, report.records_dropped), (vec![1], Seqno(1), 1));
    let limit = EpochLimit { epoch: 1, last: Seqno(1) };
    assert_eq!(report.limits, [limit], "the log alone has batches of the epoch");
    let second = journal(&vfs, options(1, 4096, 2));
    second.attach(&as_log, Seqno(1));
    append_in(&second, &log, 2, 1);
    let again = ReplayPlan { limits: vec![limit], ..plan_with(&log, 2) };
    let (batches, report) = collect(&vfs, &again).unwrap();
    assert_eq!((firsts(&batches), report.last), (vec![1, 2], Seqno(2)));
    let below = ReplayPlan { floor: Seqno(1), ..again };
    let limits = collect(&vfs, &below).unwrap().1.limits;
    assert_eq!(limits, [EpochLimit { epoch: 2, last: Seqno(2) }]);
}

#[test]
fn damage_in_a_log_is_told_by_what_lies_behind_it() {
    let vfs = new_vfs();
    let bad = |durable| BadBatch { offset: 777, batches: 2, durable: Seqno(durable) };
    let log = Arc::new(Log { bad: Some(bad(0)), ..Log::default() });
    let (batches, report) = collect(&vfs, &plan_with(&log, 1)).unwrap();
    assert!(batches.is_empty());
    assert_eq!((report.torn[0].offset, report.torn[0].records_dropped), (777, 2));
    let log = Arc::new(Log { bad: Some(bad(4)), ..Log::default() });
    match collect(&vfs, &plan_with(&log, 1)).unwrap_err() {
        Error::Corruption { file, offset, .. } => assert_eq!((file, offset), (log_path(), 777)),
        error => panic!("{error}"),
    }
    // A shard was torn by the loss of power, and the log is damaged. Either may have had what is missing:
    // the error named the shard alone.
    let mut two = plan_with(&log, 1);
    let torn = Arc::new(Log { bad: Some(bad(0)), ..Log::default() });
    let path = dir().join("torn");
    vfs.create_mapped(&path, 64).unwrap();
    two.logs.insert(0, Arc::new(Source(torn, path.clone(), 1)));
    let error = collect(&vfs, &two).unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == path), "{error}");
    let other = format!("(or damaged: {} at byte 777)", log_path().display());
    assert!(error.to_string().contains(&other), "{error}");
    let salvaged = ReplayPlan { salvage: true, ..plan_with(&log, 1) };
    assert_eq!(collect(&vfs, &salvaged).unwrap().1.damage_salvaged.len(), 1);
    let log = Arc::new(Log { unreadable: true, ..Log::default() });
    assert!(collect(&vfs, &plan_with(&log, 1)).is_err_and(|error| error.is_corruption()));
    let salvaged = ReplayPlan { salvage: true, ..plan_with(&log, 1) };
    assert_eq!(collect(&vfs, &salvaged).unwrap().1.damage_salvaged.len(), 1);
    // What that recovery could not read is beyond the limit that it set: once told is enough.
    let older = |last| EpochLimit { epoch: 1, last: Seqno(last) };
    let only_older = |last| {
        let mut plan = ReplayPlan { limits: vec![older(last)], ..plan_with(&log, 2) };
        plan.logs.pop();
        plan
    };
    assert!(collect(&vfs, &only_older(0)).is_ok());
    assert!(collect(&vfs, &only_older(1)).is_err_and(|error| error.is_corruption()));
}

#[test]
fn a_log_that_cannot_be_synced_poisons_the_journal() {
    let (vfs, log) = (new_vfs(), Arc::new(Log { fails: true, ..Log::default() }));
    let as_log: Arc<dyn OperationLog> = Arc::<Log>::clone(&log);
    let journal = journal(&vfs, options(2, 4096, 1));
    journal.attach(&as_log, Seqno(0));
    append_in(&journal, &log, 1, 1);
    assert!(journal.sync_upto(Seqno(1)).is_err());
    assert_eq!(journal.durable(), Seqno(0));
    let guard = journal.lock_shard(0);
    assert!(guard.reserve_in(&*log, &Payload::Whole(b"")).is_err());
    drop(guard);
    journal.detach(&as_log);
    assert!(journal.sync_all().is_err(), "it stays so");
}
