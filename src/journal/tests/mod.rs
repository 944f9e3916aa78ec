//! The journal's promises, against a model and a file system that loses power.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::test_support::{Random, TestVfs};
use super::*;
use crate::base::entry::EntryKind;
use crate::base::ids::KeyspaceId;

mod append;
mod crash;
mod damage;
mod example;
mod logs;
mod threads;

const DIR: &str = "/store";
const STORE: u64 = 0x5049_4e4e_4559;

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn segment(epoch: u32, shard: u32, number: u32) -> PathBuf {
    dir().join(SegmentId { epoch, shard, number }.file_name())
}

fn options(shards: usize, segment_bytes: u64, epoch: u32) -> JournalOptions {
    JournalOptions { shards, segment_bytes, free_bytes_min: 0, store_id: STORE, epoch }
}

fn plan(newest_epoch: u32) -> ReplayPlan {
    ReplayPlan {
        store_id: STORE,
        floor: Seqno(0),
        limits: Vec::new(),
        newest_epoch,
        logs: Vec::new(),
        salvage: false,
        read_only: false,
    }
}

/// A batch as the model keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Batch {
    first: u64,
    count: u32,
    payload: Vec<u8>,
}

fn random_payload(random: &mut Random, count: u32, value_bytes_max: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..count {
        let (key, value) = (random.below(20), random.below(value_bytes_max));
        let (key, value) = (random.bytes(key), random.bytes(value));
        let keyspace = KeyspaceId(random.below(300) as u32);
        encode_operation(&mut payload, keyspace, EntryKind::Put, &key, &value);
    }
    payload
}

/// A payload of one operation without a zero byte.
fn solid_payload(value_bytes: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    let value = vec![0x55; value_bytes];
    encode_operation(&mut payload, KeyspaceId(7), EntryKind::Put, b"key", &value);
    payload
}

fn append_to(journal: &Journal, shard: usize, first: u64, count: u32, payload: &[u8]) {
    let mut guard = journal.lock_shard(shard);
    assert_eq!(guard.index(), shard);
    guard.reserve(payload.len()).unwrap();
    guard.append(Seqno(first), count, Payload::Whole(payload));
}

/// Replays and collects what is delivered; checks that it decodes.
fn collect(vfs: &TestVfs, plan: &ReplayPlan) -> Result<(Vec<Batch>, ReplayReport)> {
    let mut batches = Vec::new();
    let report = Journal::replay(vfs, dir(), plan, |first, count, operations| {
        let mut payload = Vec::new();
        for operation in operations {
            let Operation { keyspace, kind, key, value } = operation?;
            encode_operation(&mut payload, keyspace, kind, key, value);
        }
        batches.push(Batch { first: first.0, count, payload });
        Ok(())
    })?;
    Ok((batches, report))
}

fn journal(vfs: &Arc<TestVfs>, options: JournalOptions) -> Journal {
    let vfs: Arc<dyn Vfs> = Arc::<TestVfs>::clone(vfs);
    Journal::create(vfs, dir(), options, Vec::new(), Arc::default()).unwrap()
}
