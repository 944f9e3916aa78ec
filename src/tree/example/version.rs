//! One immutable state of the tree: all entries, in memory.
//!
//! Invariants:
//! 1. The blob files that the entries point to are open, and so not deleted, while the version exists.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::edit::Named;
use super::log::{self, LogFile};
use super::pool::{self, Pool};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::slice::Slice;
use crate::cache::ReadContext;
use crate::table::{BlobFile, BlobFiles, BlobPointer};
use crate::tree::description::{
    FileDescription, GroupDescription, NodeDescription, TreeDescription, named,
};
use crate::tree::run::Run;
use crate::tree::sorted::Sorted;
use crate::tree::{
    CheckCounts, CheckScope, CheckpointFiles, RangeAt, RangeRuns, TreeState, TreeVersion,
};

/// The file that holds a version, and the root by which it does.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) pool: Arc<Pool>,
    pub(super) named: Named,
    /// The files of the log that it names. They are not deleted while the version exists.
    pub(super) logs: Vec<Arc<LogFile>>,
}

/// A version.
pub(super) struct Version {
    pub(super) entries: Arc<Sorted>,
    pub(super) flushed: Seqno,
    /// `None` while nothing has been incorporated.
    pub(super) place: Option<Place>,
    blobs: Vec<Arc<BlobFile>>,
    pub(super) state: TreeState,
}

impl Version {
    /// A version of these entries, which is in no file yet. Opens the blob files.
    pub(super) fn new(
        entries: Arc<Sorted>,
        flushed: Seqno,
        blob_files: &BlobFiles,
    ) -> Result<Version> {
        let mut ids = BTreeSet::new();
        let mut state = TreeState { entries: entries.len() as u64, ..TreeState::default() };
        let mut last_key = None;
        for entry in entries.iter() {
            let mut bytes = (entry.key.len() + entry.value.len()) as u64;
            state.memory_bytes += bytes + 64;
            if entry.kind.is_blob() {
                let pointer = BlobPointer::of_entry(entry.value)?;
                ids.insert(pointer.file);
                bytes += u64::from(pointer.length);
            }
            let is_newest = last_key.replace(entry.key) != Some(entry.key);
            if is_newest && entry.kind != EntryKind::Delete {
                state.live_bytes += bytes;
                state.live_keys += 1;
            }
        }
        let blobs = ids.into_iter().map(|id| blob_files.open(id)).collect::<Result<Vec<_>>>()?;
        state.disk_bytes = blobs.iter().map(|blob| blob.bytes()).sum();
        Ok(Version { entries, flushed, place: None, blobs, state })
    }

    /// The version, in its file.
    pub(super) fn at(mut self, place: Place) -> Version {
        self.state.disk_bytes +=
            place.pool.bytes() + place.named.logs.len() as u64 * log::FILE_BYTES;
        self.place = Some(place);
        self
    }
}

impl TreeVersion for Version {
    fn flushed(&self) -> Seqno {
        self.flushed
    }

    fn get(
        &self,
        key: &[u8],
        _hash: u64,
        snapshot: Seqno,
        _context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = self.entries.versions(key, snapshot).try_for_each(f);
        Ok(())
    }

    fn runs_at(&self, _at: RangeAt<'_>, _snapshot: Seqno) -> RangeRuns {
        let run = (!self.entries.is_empty()).then(|| Run::Sorted(Arc::clone(&self.entries)));
        RangeRuns { lower: Arc::default(), upper: None, runs: run.into_iter().collect() }
    }

    fn files(&self) -> Vec<PathBuf> {
        let pool = self.place.iter().map(|place| place.pool.path());
        let logs = self.place.iter().flat_map(|place| &place.logs);
        pool.chain(logs.map(|log| log.path()))
            .chain(self.blobs.iter().map(|blob| blob.path()))
            .collect()
    }

    fn write_down(&self, copy: &mut dyn CheckpointFiles) -> Result<()> {
        if let Some(Place { pool, named, logs }) = &self.place {
            // The copy has everything in the tree.
            for log in logs {
                copy.write(&log.path(), &log::header(log.named))?;
            }
            // The file may have a newer root by now.
            let contents = pool::file_of(&self.entries, self.flushed, named.generation);
            copy.write(&pool.path(), &contents)?;
        }
        self.blobs.iter().try_for_each(|blob| copy.link(&blob.path()))
    }

    fn describe(&self) -> Result<TreeDescription> {
        let groups = self.place.iter().map(|Place { pool, named: root, .. }| {
            let seqnos = || self.entries.iter().map(|entry| entry.seqno.0);
            let deletes = self.entries.iter().filter(|entry| entry.kind == EntryKind::Delete);
            let file = FileDescription {
                label: "pool".to_string(),
                id: pool.id().0,
                bytes: pool.bytes(),
                entries: self.state.entries,
                seqno_min: seqnos().min().unwrap_or_default(),
                seqno_max: seqnos().max().unwrap_or_default(),
                live_bytes: self.state.live_bytes,
                counts: named([("tombstones", deletes.count() as u64)]),
            };
            let (label, id) = ("root".to_string(), root.generation);
            let counts = named([("logs", root.logs.len() as u64)]);
            GroupDescription { label, id, files: vec![file], counts }
        });
        let node = NodeDescription {
            label: "set".to_string(),
            id: 1,
            lower: Slice::default(),
            groups: groups.collect(),
            ..NodeDescription::default()
        };
        Ok(TreeDescription {
            kind: super::KIND.name.to_string(),
            nodes: vec![node],
            disk_bytes: self.state.disk_bytes,
            live_bytes: self.state.live_bytes,
            parameters: Vec::new(),
        })
    }

    fn check(&self, scope: CheckScope<'_>, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        let mut counts = CheckCounts::default();
        if let Some(place @ Place { pool, .. }) = &self.place {
            counts.files += 1 + place.named.logs.len() as u64;
            counts.pages += pool.bytes() / UNIT_BYTES as u64;
            if scope.full {
                match pool.check() {
                    Ok(entries) => counts.entries += entries,
                    Err(error) => problem(error),
                }
                // Batches are being appended to the last one; recovery verifies them.
                let heads = place.logs.iter().map(|log| log.check());
                heads.filter_map(Result::err).for_each(&mut *problem);
            }
        }
        for blob in &self.blobs {
            counts.files += 1;
            counts.pages += blob.bytes() / UNIT_BYTES as u64;
            if scope.full
                && let Err(error) = blob.check()
            {
                problem(error);
            }
        }
        counts
    }
}
