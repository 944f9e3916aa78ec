//! A memtable as the store holds it, and how far it is on its way into the tree.
//!
//! ```text
//!           freeze            claim             built               take               incorporated
//!  Active ----------> Waiting ------> Building --------> Built ------------> Incorporating ------> InTree
//!                        ^               |                                         |
//!                        |  give_back    |                give_back                |
//!                        +---------------+-----------------------------------------+
//! ```
//!
//! A read state lists the frozen memtables of a keyspace, newest first. It is the only such list: a memtable is on it
//! from its freeze until the step that shows readers the tree with its entries. `flush` moves memtables along the
//! stages; a failure returns one to `Waiting`, and what was built of it is dropped.
//!
//! Invariants:
//! 1. A memtable has a `freeze_seqno` in every stage but `Active`, and holds all entries of its keyspace from that of
//!    the memtable before it (exclusive) to its own (inclusive).
//! 2. Only one thread builds a memtable, and only one incorporates it: the claims are made under the stage's lock.
//! 3. Of a keyspace that has been dropped for good nothing stays built: its files would stay too.

use std::sync::{Arc, OnceLock};

use super::new_range_deletes::NewRangeDeletes;
use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::base::range_delete::RangeDelete;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::memtable::{ChunkPool, Memtable};
use crate::table::BlobFile;
use crate::tree::Packed;

/// A memtable and what belongs to it.
pub(crate) struct MemtableState {
    pub(crate) memtable: Arc<Memtable>,
    /// Files of values too large for a memtable; its entries point into them.
    pub(crate) blobs: Mutex<Vec<Arc<BlobFile>>>,
    pub(crate) range_deletes: NewRangeDeletes,
    /// The last sequence number that had been assigned when it was frozen.
    pub(crate) freeze_seqno: OnceLock<Seqno>,
    /// When it was frozen.
    frozen_nanos: AtomicU64,
    stage: Mutex<Stage>,
}

/// See the module's drawing.
enum Stage {
    Active,
    Waiting,
    Building,
    Built(Box<dyn Packed>),
    Incorporating,
    InTree,
}

impl MemtableState {
    pub(crate) fn new(pool: &Arc<ChunkPool>) -> Arc<MemtableState> {
        Arc::new(MemtableState {
            memtable: Arc::new(Memtable::new(Arc::clone(pool))),
            blobs: Mutex::new(Vec::new()),
            range_deletes: NewRangeDeletes::default(),
            freeze_seqno: OnceLock::new(),
            frozen_nanos: AtomicU64::new(0),
            stage: Mutex::new(Stage::Active),
        })
    }

    /// The size that counts towards the one at which a memtable is frozen.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.memtable.bytes() as u64 + self.range_deletes.bytes()
    }

    /// The same without the unused rest of chunks, for sizes below a chunk's.
    pub(crate) fn exact_bytes(&self) -> u64 {
        let (entries, bytes) = self.memtable.totals();
        bytes as u64 + 32 * entries as u64 + self.range_deletes.bytes()
    }

    /// Takes in a range delete: with `value` as its upper bound, empty if there is none. No reader has a number from `since` on
    /// that is below its own.
    pub(super) fn delete_range(
        &self,
        (key, value): (&[u8], &[u8]),
        seqno: Seqno,
        since: Seqno,
        now_nanos: u64,
    ) {
        // An empty range deletes nothing, and is no operation.
        if let Some(delete) = RangeDelete::of_operation(seqno, key, value) {
            self.range_deletes.add(delete, since, now_nanos);
        }
        self.memtable.insert(key, seqno, EntryKind::Delete, b"");
    }

    /// Returns true if it was frozen at `seqno` or before.
    pub(crate) fn is_frozen_upto(&self, seqno: Seqno) -> bool {
        self.freeze_seqno.get().is_some_and(|frozen| *frozen <= seqno)
    }

    /// How long ago it was frozen.
    pub(super) fn nanos_since_freeze(&self, now: u64) -> u64 {
        now.saturating_sub(self.frozen_nanos.load(Ordering::Relaxed))
    }

    /// `Active` to `Waiting`, inside a commit barrier.
    pub(crate) fn freeze(&self, seqno: Seqno, nanos: u64) {
        self.memtable.freeze();
        self.frozen_nanos.store(nanos, Ordering::Relaxed);
        *self.stage.lock() = Stage::Waiting;
        // Set once: it was active until now.
        let _ = self.freeze_seqno.set(seqno);
    }

    /// `Waiting` to `Building`. Returns false in any other stage.
    pub(super) fn claim(&self) -> bool {
        let mut stage = self.stage.lock();
        let is_waiting = matches!(*stage, Stage::Waiting);
        if is_waiting {
            *stage = Stage::Building;
        }
        is_waiting
    }

    /// `Building` to `Built`; back to `Waiting` if `is_gone` says that its keyspace has been dropped for good.
    pub(super) fn built(&self, packed: Box<dyn Packed>, is_gone: impl FnOnce() -> bool) {
        let mut stage = self.stage.lock();
        // Asked under the lock: whoever drops the keyspace calls `discard` after it is gone.
        *stage = if is_gone() { Stage::Waiting } else { Stage::Built(packed) };
    }

    /// Whether its table is still to be written, or to be written again.
    pub(super) fn is_unbuilt(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Active | Stage::Waiting | Stage::Building)
    }

    pub(crate) fn is_built(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Built(_))
    }

    /// `Built` to `Incorporating`, with what has been built. `None` in any other stage.
    pub(super) fn take(&self) -> Option<Box<dyn Packed>> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Incorporating) {
            Stage::Built(packed) => Some(packed),
            other => {
                *stage = other;
                None
            }
        }
    }

    /// `Incorporating` to `InTree`.
    pub(super) fn incorporated(&self) {
        *self.stage.lock() = Stage::InTree;
    }

    /// `Building` or `Incorporating` back to `Waiting`, by the thread that has brought it there.
    pub(super) fn give_back(&self) {
        *self.stage.lock() = Stage::Waiting;
    }

    /// Drops what has been built: the keyspace is gone.
    pub(super) fn discard(&self) {
        if self.take().is_some() {
            self.give_back();
        }
    }
}
