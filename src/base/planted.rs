//! Planted bugs measure the test regimes. Each is a bug of a kind that storage engines have had,
//! placed where it would occur and activated by name. `spinney-sim planted` verifies that the
//! regimes find every one.
//!
//! Invariants:
//! 1. Without `--cfg planted`, [`planted`] is a constant `false`: no bug is compiled in.
//! 2. With it, at most one bug is active at a time in the whole process.
#![cfg_attr(not(planted), allow(unreachable_pub, reason = "public in builds for the score alone"))]

#[cfg(planted)]
use crate::base::sync::plain::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

macro_rules! bugs {
    ($($(#[cfg($($unfinished:tt)*)])? $bug:ident, $name:literal, $module:literal, $what:literal;)*) => {
        /// A planted bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $(#[doc = $what] $(#[cfg($($unfinished)*)])? $bug,)*
        }

        #[cfg(planted)]
        impl Bug {
            /// All bugs.
            pub const ALL: &'static [Bug] = &[$($(#[cfg($($unfinished)*)])? Bug::$bug,)*];

            /// The bug's name.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[cfg($($unfinished)*)])? Bug::$bug => $name,)*
                }
            }

            /// The engine module that has the bug.
            pub fn module(self) -> &'static str {
                match self {
                    $($(#[cfg($($unfinished)*)])? Bug::$bug => $module,)*
                }
            }

            /// The effect of the bug.
            pub fn what(self) -> &'static str {
                match self {
                    $($(#[cfg($($unfinished)*)])? Bug::$bug => $what,)*
                }
            }
        }
    };
}

/// Sometimes yields the core in builds with planted bugs. Does nothing in other builds. For code
/// positions where a thread would otherwise lose its core only on a busy machine.
#[inline(always)]
pub(crate) fn linger() {
    #[cfg(all(planted, not(shuttle)))]
    {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        if TURN.fetch_add(1, Ordering::Relaxed).is_multiple_of(16) {
            crate::base::sync::yield_now();
        }
    }
}

/// Keeps the window of a bug open for a while, once per `one_in` calls, so that other threads can
/// run in it on any machine. The score then measures the regimes instead of thread scheduling. Only
/// active while a regime requests it with [`leave_windows_open`]: most regimes have no other
/// threads.
#[inline(always)]
pub(crate) fn hold_open(bug: Bug, one_in: usize) {
    #[cfg(all(planted, not(shuttle)))]
    if planted(bug) && HOLDS.load(Ordering::Relaxed) {
        use crate::base::sync::{Condvar, Mutex};

        static TURN: AtomicUsize = AtomicUsize::new(0);
        if TURN.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in) {
            let nobody_tells = Mutex::new(());
            Condvar::new().wait_for(&mut nobody_tells.lock(), WINDOW);
        }
    }
    #[cfg(not(all(planted, not(shuttle))))]
    let _ = (bug, one_in);
}

#[cfg(all(planted, not(shuttle)))]
const WINDOW: std::time::Duration = std::time::Duration::from_millis(3);
#[cfg(planted)]
static HOLDS: AtomicBool = AtomicBool::new(false);

/// Sets whether bugs keep their windows open from now on.
#[cfg(planted)]
pub fn leave_windows_open(holds: bool) {
    HOLDS.store(holds, Ordering::Relaxed);
}

/// Effects of kernels and file systems that a test cannot cause on the machine itself. They apply
/// to files opened afterwards, in builds with planted bugs; unit tests set them for one file.
#[cfg(any(test, planted))]
pub mod quirks {
    use crate::base::sync::plain::{AtomicBool, Ordering};

    static REFUSES_DIRECT: AtomicBool = AtomicBool::new(false);
    static LOSES: AtomicBool = AtomicBool::new(false);

    /// Sets both.
    #[cfg(planted)]
    pub fn set(refuses_direct: bool, loses_what_is_written_back: bool) {
        REFUSES_DIRECT.store(refuses_direct, Ordering::SeqCst);
        LOSES.store(loses_what_is_written_back, Ordering::SeqCst);
    }

    /// `O_DIRECT` is accepted, but reads and writes with it are refused.
    pub(crate) fn refuses_direct() -> bool {
        REFUSES_DIRECT.load(Ordering::SeqCst)
    }

    /// The first sync of each mapped file reports lost bytes; later syncs do not.
    pub(crate) fn loses_what_is_written_back() -> bool {
        LOSES.load(Ordering::SeqCst)
    }
}

bugs! {
    JournalSyncSkipped, "journal-sync-skipped", "journal",
        "A round of group sync syncs no file.";
    JournalSyncFirstShardOnly, "journal-sync-first-shard-only", "journal",
        "A round of group sync leaves out all shards but the first.";
    JournalRolledNotSynced, "journal-rolled-not-synced", "journal",
        "A segment that was filled is forgotten by the syncs that follow.";
    JournalRollMarkForgotten, "journal-roll-mark-forgotten", "journal",
        "A filled segment does not say that the shard goes on in the next.";
    JournalNameNotSynced, "journal-name-not-synced", "journal",
        "A new segment is used before its name is durable.";
    JournalDurableClaimedEarly, "journal-durable-claimed-early", "journal",
        "A record says that all before it is durable, which it need not be.";
    JournalCleanBeforeData, "journal-clean-before-data", "journal",
        "Closing marks the journal as clean before its records are durable.";
    JournalRetiredEarly, "journal-retired-early", "journal",
        "With the oldest segments go those whose records no tree holds yet.";
    MemoryNamesNotSynced, "memory-names-not-synced", "pmem",
        "Names of files on persistent memory are used before they are durable.";
    MemoryFileNotSynced, "memory-file-not-synced", "store",
        "What says where the persistent memory is gets its name before it is durable.";
    MemoryNotClaimed, "memory-not-claimed", "store",
        "A directory of persistent memory does not say whose it is.";
    RowCacheNotSuperseded, "row-cache-not-superseded", "db",
        "A memtable becomes part of the tree, and records of its keys stay in the row cache.";
    FreezeAnnouncedEarly, "freeze-announced-early", "db",
        "A memtable can get into the tree before the read state shows it as frozen.";
    ReadBeyondCut, "read-beyond-cut", "db",
        "A read without a snapshot reads at a number beyond what its state has.";
    ReadChecksEarly, "read-checks-early", "db",
        "A read looks whether its keyspace is there, and loads the state after that.";
    CommitChecksBeforeWait, "commit-checks-before-wait", "commit",
        "A commit looks whether its keyspaces are there, and waits for a segment after that.";
    RowCacheLookedUpUnlocked, "row-cache-looked-up-unlocked", "cache",
        "A record that is being written once more is not there for what supersedes it.";
    RowCacheMemoryForgotten, "row-cache-memory-forgotten", "cache",
        "What the row cache grows by while records are superseded is not counted.";
    RowCacheOfAnyGeneration, "row-cache-of-any-generation", "db",
        "A read that began before a memtable became part of the tree makes a record of what it found.";
    RowCacheOfAnyNumber, "row-cache-of-any-number", "db",
        "A snapshot is shown a record that is younger than it.";
    RowCacheOfOldSnapshots, "row-cache-of-old-snapshots", "db",
        "A record is made of what an old snapshot sees of a key that has a newer version.";
    OperationLogNotSynced, "operation-log-not-synced", "journal",
        "A round of group commit leaves out the logs that trees keep.";
    OperationLogRetiredEarly, "operation-log-retired-early", "journal",
        "A tree is told to remove batches of its log that are still needed.";
    OperationLogGoesWithKeyspace, "operation-log-goes-with-keyspace", "db",
        "A keyspace is dropped with the numbers in its log, which others still need.";
    ReplayPastGap, "replay-past-gap", "journal",
        "Replay goes on behind a number that is missing.";
    ReplayPayloadUnchecked, "replay-payload-unchecked", "journal",
        "Replay trusts a record whose header is whole.";
    ReplayNotSynced, "replay-not-synced", "journal",
        "What replay delivers need not be durable.";
    ReplayForgetsLimits, "replay-forgets-limits", "journal",
        "Opening forgets the older epochs, whose records are still needed.";
    JournalLeaderLost, "journal-leader-lost", "journal",
        "A leader whose sync fails leaves the others waiting for it.";
    WorkerDies, "worker-dies", "jobs",
        "A panic ends the background thread that it happens on.";
    ClaimKept, "claim-kept", "tree",
        "A compaction that is dropped half-way keeps its claim.";
    ListenerUncaught, "listener-uncaught", "jobs",
        "A panic of a listener ends the thread that calls it.";
    OperatorUncaught, "operator-uncaught", "merge",
        "A panic of a merge operator goes on into the engine.";
    GapSurvivesPut, "gap-survives-put", "db",
        "A put into a range that iterators know to be empty does not end it.";
    GapSurvivesMerge, "gap-survives-merge", "db",
        "A merge into a range that iterators know to be empty does not end it.";
    GapOfOlderSnapshot, "gap-of-older-snapshot", "db",
        "A snapshot is not shown a range that was emptied after it.";
    GapRecordedDespitePut, "gap-recorded-despite-put", "db",
        "A range is recorded as empty although a put into it was noted meanwhile.";
    GapIgnoresNewer, "gap-ignores-newer", "db",
        "A range is recorded as empty although a put above the iterator's number was found in it.";
    ConditionNotVerified, "condition-not-verified", "db",
        "A conditional write does not look whether its key was written to since it was read.";
    ConditionSeesActiveOnly, "condition-sees-active-only", "db",
        "A conditional write does not find what was written before its memtable was frozen.";
    ConditionIgnoresFlush, "condition-ignores-flush", "db",
        "A conditional write does not find what has reached the tree since its key was read.";
    ConditionKeysUnlocked, "condition-keys-unlocked", "db",
        "A batch does not lock the keys of conditions that it does not write.";
    WatchWithoutBarrier, "watch-without-barrier", "db",
        "A transaction that has read ranges does not wait for commits that have not seen its watch.";
    WatchNotTold, "watch-not-told", "db",
        "A commit does not tell watches of its keys.";
    RangeDeleteNotInManifest, "range-delete-not-in-manifest", "db",
        "The manifest does not get the range deletes of a memtable.";
    RangeDeleteForgottenEarly, "range-delete-forgotten-early", "db",
        "A range delete is forgotten while tables have what it deletes.";
    RangeDeleteRowsKept, "range-delete-rows-kept", "db",
        "The row cache keeps rows of a range that was deleted.";
    RangeDeleteIgnoresSnapshots, "range-delete-ignores-snapshots", "merge",
        "A compaction drops what a range delete deletes though a snapshot sees it.";
    RangeDeleteNotForOperands, "range-delete-not-for-operands", "merge",
        "An iterator folds operands over a value that a range delete has deleted.";
    WatchedKeyspaceShared, "watched-keyspace-shared", "db",
        "A transaction that has read ranges commits beside others that write to the keyspace.";
    LockedKeyWritten, "locked-key-written", "db",
        "A put writes to a key that a transaction has locked.";
    LockTakenBesideCommit, "lock-taken-beside-commit", "db",
        "A transaction locks a key while a commit to it is under way.";
    DeadlockNotSeen, "deadlock-not-seen", "db",
        "Transactions that wait for one another do so until their time is up.";
    TransactionReadsNotKept, "transaction-reads-not-kept", "db",
        "A transaction commits though a key that it has read was written to.";
    TransactionRangesNotKept, "transaction-ranges-not-kept", "db",
        "A transaction commits though a key came into a range that it has read.";
    TransactionRangeEndsEarly, "transaction-range-ends-early", "db",
        "A transaction that has read a range to its end keeps it up to its last key.";
    TransactionAbsentNotKept, "transaction-absent-not-kept", "db",
        "A transaction does not keep keys that it has found absent.";
    TransactionFlushMissed, "transaction-flush-missed", "db",
        "A transaction that has read ranges does not find what has reached the tree since.";
    TransactionOwnDeletesUnseen, "transaction-own-deletes-unseen", "db",
        "An iterator of a transaction yields keys that it has deleted.";
    TransactionReadsNewest, "transaction-reads-newest", "db",
        "A transaction reads the newest state instead of its snapshot.";
    TransactionRollbackKeepsLast, "transaction-rollback-keeps-last", "db",
        "Going back to a savepoint keeps the first write after it.";
    TransactionSnapshotMoves, "transaction-snapshot-moves", "db",
        "A transaction that locks a key moves its snapshot without looking at what it has read.";
    TransactionWritesNotKept, "transaction-writes-not-kept", "db",
        "With snapshot isolation, the second of two that write to a key commits too.";
    GuardWithoutBarrier, "guard-without-barrier", "db",
        "Commits lock keys only while a conditional write is under way, which waits for none that has begun.";
    GuardedWriteUnlocked, "guarded-write-unlocked", "db",
        "A put to a keyspace with conditional writes does not lock its key.";
    GapNotCaughtUp, "gap-not-caught-up", "commit",
        "A range is recorded as empty that a commit in flight has put a key into.";
    GapEndedBeforeNumber, "gap-ended-before-number", "db",
        "A commit ends empty ranges before it takes its number.";
    CommitVisibleEarly, "commit-visible-early", "commit",
        "A commit is visible before one with lower numbers has been applied.";
    CommitAppliedEarly, "commit-applied-early", "commit",
        "A commit counts as applied while its entries are still being inserted.";
    CommitMarkOverwritten, "commit-mark-overwritten", "commit",
        "A commit marks itself as applied in the place of one that is not visible yet.";
    CommitBarrierEarly, "commit-barrier-early", "commit",
        "The barrier does not wait for commits that have appended and not applied.";
    CommitOneNumberABatch, "commit-one-number-a-batch", "commit",
        "All operations of a batch are applied with the same number.";
    CommitBarrierLeaky, "commit-barrier-leaky", "commit",
        "The barrier does not wait for commits of the last shard.";
    CommitFailedAppend, "commit-failed-append", "commit",
        "A commit whose record did not reach the file is acknowledged.";
    CommitBeforeSync, "commit-before-sync", "db",
        "A commit that asked for it is acknowledged before it is durable.";
    CommitFullSwallowed, "commit-full-swallowed", "db",
        "A commit for which the disk has no room is acknowledged.";
    BatchInHalves, "batch-in-halves", "db",
        "A batch is committed in two halves.";
    BatchByKeyspace, "batch-by-keyspace", "db",
        "A batch over several keyspaces is committed one keyspace after the other.";
    PoisonForgotten, "poison-forgotten", "db",
        "After a failed sync the store goes on as if nothing had happened.";
    CorruptionIsAbsence, "corruption-is-absence", "db",
        "A point read that meets a damaged page finds nothing.";
    MultiGetGivesUp, "multi-get-gives-up", "db",
        "A batched read gives up on keys that need more than two rounds of reads.";
    MemtableGetNewest, "memtable-get-newest", "db",
        "A point read of the memtable looks past its snapshot.";
    SnapshotGetNewest, "snapshot-get-newest", "db",
        "A snapshot's point read reads the newest state.";
    SnapshotReleasedEarly, "snapshot-released-early", "db",
        "Of two snapshots at one number, the end of the first releases both.";
    SnapshotOldestForgotten, "snapshot-oldest-forgotten", "db",
        "Compactions are not told of the oldest snapshot.";
    IteratorReadsNewest, "iterator-reads-newest", "db",
        "An iterator shows what is written after it was made.";
    IteratorNotRegistered, "iterator-not-registered", "db",
        "Compactions drop what an iterator sees that has closed its cursors.";
    IteratorResumesAtKey, "iterator-resumes-at-key", "db",
        "An iterator that has closed its cursors goes on with the key that it showed last.";
    DamageHidesBefore, "damage-hides-before", "db",
        "An iterator that goes past damage leaves out what other tables hold before it.";
    DamageHidesBehind, "damage-hides-behind", "db",
        "An iterator that goes past damage leaves out the next keys behind it.";
    IteratorResumesLater, "iterator-resumes-later", "db",
        "An iterator that has closed its cursors goes on in the newest state.";
    ChunksStayCounted, "chunks-stay-counted", "memtable",
        "Small chunks of a memtable that is gone still count against the memory of memtables.";
    PressureFreezesOwn, "pressure-freezes-own", "db",
        "Where memtables take too much, only the writer's own is frozen.";
    IteratorKeepsState, "iterator-keeps-state", "db",
        "Idle iterators keep memtables and versions that have been replaced.";
    RangeEndInclusive, "range-end-inclusive", "db",
        "A range includes its excluded end.";
    IteratorEndsOverlap, "iterator-ends-overlap", "db",
        "The front of an iterator yields again what its back has yielded.";
    CheckSilent, "check-silent", "db",
        "A check reports no problem, whatever it finds.";
    FreezeCutTooHigh, "freeze-cut-too-high", "db",
        "A frozen memtable claims one commit more than it holds.";
    FrozenForgotten, "frozen-forgotten", "db",
        "A new version of a tree takes memtables away that it does not hold.";
    FrozenNotCounted, "frozen-not-counted", "db",
        "The journal's floor takes frozen memtables for part of the tree.";
    IncorporateOutOfOrder, "incorporate-out-of-order", "db",
        "Memtables become part of the tree in the order in which they were packed.";
    IncorporateBeforeSync, "incorporate-before-sync", "db",
        "A tree holds durably what follows commits of other keyspaces that may get lost.";
    RetireBeforeEdit, "retire-before-edit", "db",
        "Journal segments go before the manifest says that they are not needed.";
    LargeValueNameNotSynced, "large-value-name-not-synced", "db",
        "A record points into a blob file whose name is not durable.";
    KeyspaceDropBeforeSync, "keyspace-drop-before-sync", "db",
        "A keyspace is dropped durably while commits before that are not durable.";
    IncorporationStops, "incorporation-stops", "db",
        "A memtable that does not get into its tree keeps those of other keyspaces waiting.";
    CloseDoesNotWait, "close-does-not-wait", "db",
        "Closing a store that another thread is closing returns before it is closed.";
    CloseWithoutSync, "close-without-sync", "db",
        "Closing leaves the journal as it is.";
    CheckpointMissesNewest, "checkpoint-misses-newest", "db",
        "A checkpoint lacks what was in memtables.";
    CheckpointMissesBlobs, "checkpoint-misses-blobs", "db",
        "A checkpoint lacks the blob files.";
    CheckpointOtherSecret, "checkpoint-other-secret", "db",
        "A checkpoint hashes keys with a secret that its files were not made with.";
    OpenWeighsEachRecord, "open-weighs-each-record", "db",
        "A replay weighs the memtables of all keyspaces after each record.";
    OpenReplaysFlushed, "open-replays-flushed", "db",
        "Replay brings back what the trees hold already.";
    OpenReplaysDropped, "open-replays-dropped", "db",
        "Replay puts a dropped keyspace's records into another.";
    OpenRemovesBlobs, "open-removes-blobs", "db",
        "Blob files that only memtables point to are taken for orphans.";
    OpenKeepsOrphans, "open-keeps-orphans", "db",
        "Orphans stay where they are.";
    OpenNumbersTooLow, "open-numbers-too-low", "db",
        "New commits get numbers that the trees hold already.";
    OpenFloorNotRaised, "open-floor-not-raised", "db",
        "New commits start behind a gap in the journal.";
    PackLosesLast, "pack-loses-last", "tree",
        "The last entry of a memtable does not get into its table.";
    PackSkipsTombstones, "pack-skips-tombstones", "tree",
        "The tombstones of a memtable do not get into its table.";
    DataNamesNotSynced, "data-names-not-synced", "tree",
        "The manifest names data files whose names are not durable.";
    FilesGoBeforeEdit, "files-go-before-edit", "tree",
        "A compaction's inputs go before the manifest has its output.";
    FilesGoInDoubt, "files-go-in-doubt", "db",
        "Files go although a failed commit of the manifest may name them.";
    PivotBoundOffByOne, "pivot-bound-off-by-one", "tree",
        "The key at a pivot's lower bound is sought in the pivot before.";
    FlushToWrongChild, "flush-to-wrong-child", "tree",
        "A flush hands bundles to the neighbour of the child they are for.";
    FlushLosesYoungest, "flush-loses-youngest", "tree",
        "A flush of several bundles loses the youngest.";
    FlushStartStays, "flush-start-stays", "tree",
        "A flush leaves the bundles live in the node they came from.";
    DeadTooEarly, "dead-too-early", "tree",
        "A bundle is dropped for a pivot for which it has little.";
    SplitRightEmpty, "split-right-empty", "tree",
        "The right part of a split node loses its bundles.";
    SplitBoundWrong, "split-bound-wrong", "tree",
        "The right part of a split leaf starts behind its first key.";
    JoinRevivesMoved, "join-revives-moved", "tree",
        "A leaf is joined to one whose table reaches into it, and what it had merged of that comes to life again.";
    JoinForgetsBundles, "join-forgets-bundles", "tree",
        "Of two index nodes that are joined, the one with fewer pivots does not flush its bundles before.";
    JoinStartTooLow, "join-start-too-low", "tree",
        "A joined child sees bundles of the node above that one of its parts had been given already.";
    ReplaceSkipsOutput, "replace-skips-output", "tree",
        "A pivot that took in a part of a compaction's inputs skips all of its output.";
    CompactReadsMoved, "compact-reads-moved", "tree",
        "A compaction takes in what has moved on to a child.";
    CompactDropsTombstones, "compact-drops-tombstones", "tree",
        "A compaction drops tombstones although older entries exist below.";
    CompactIgnoresSnapshots, "compact-ignores-snapshots", "tree",
        "A compaction keeps the newest version of each key only.";
    AdoptAnything, "adopt-anything", "tree",
        "A compaction adopts tables of which a pivot must not see all.";
    AdoptUnfiltered, "adopt-unfiltered", "tree",
        "The maplet of a compaction's output lacks what it adopted.";
    GuardBoundOffByOne, "guard-bound-off-by-one", "tree",
        "The key of a guard is sought in the guard before.";
    GuardOrderByNumber, "guard-order-by-number", "tree",
        "A guard's tables stand in the order of their file numbers.";
    GuardAppendsAsOldest, "guard-appends-as-oldest", "tree",
        "What comes from above goes in front of what a guard holds.";
    GuardTombstonesEarly, "guard-tombstones-early", "tree",
        "A compaction above the last level drops tombstones.";
    GuardTombstonesBeside, "guard-tombstones-beside", "tree",
        "A merge of young tables drops tombstones above older ones in the same guard.";
    GuardFragmentLost, "guard-fragment-lost", "tree",
        "The last of the guards below loses its part of a compaction's output.";
    GuardStraddlingMissed, "guard-straddling-missed", "tree",
        "A guard does not see a table that begins before it.";
    GuardTakesArrived, "guard-takes-arrived", "tree",
        "A compaction takes out of its guard what has arrived meanwhile.";
    GuardReplacedAsYoungest, "guard-replaced-as-youngest", "tree",
        "The merge of some of a guard's tables becomes the youngest.";
    GuardPartEmpty, "guard-part-empty", "tree",
        "The right part of a divided guard loses its tables.";
    GuardPassedOver, "guard-passed-over", "tree",
        "Young tables go past a guard that holds older ones.";
    GuardRegionStraddling, "guard-region-straddling", "tree",
        "An iterator leaves out tables of the levels above that reach over a guard's end.";
    GuardCutsVersions, "guard-cuts-versions", "tree",
        "A compaction drops the older versions of a key behind which its output may be cut.";
    CompactKeepsOldest, "compact-keeps-oldest", "merge",
        "A compaction keeps the oldest version of a key instead of the newest.";
    CompactLosesOperand, "compact-loses-operand", "merge",
        "A compaction loses the oldest operand that it folds.";
    MergeBaseIgnored, "merge-base-ignored", "merge",
        "A compaction folds operands as if there were nothing beneath.";
    MergeBlobOperandRaw, "merge-blob-operand-raw", "merge",
        "A fold takes the pointer of an operand in a blob file for the operand.";
    MergeBlobNotHeld, "merge-blob-not-held", "db",
        "A memtable does not keep the blob files of its large operands.";
    MergeBlobNotReplayed, "merge-blob-not-replayed", "db",
        "Opening does not keep the blob files of large operands in the journal.";
    QuarantineNotCounted, "quarantine-not-counted", "db",
        "The journal of a keyspace that could not be opened is given up.";
    QuarantineOrphans, "quarantine-orphans", "db",
        "Files of a keyspace that could not be opened are taken for orphans.";
    MergeBlobNotReferred, "merge-blob-not-referred", "table",
        "A table does not count its operands in blob files among what it refers to.";
    MergeBlobBaseIgnored, "merge-blob-base-ignored", "merge",
        "A read folds operands over a value in a blob file as if it were not there.";
    MergeOperandsReversed, "merge-operands-reversed", "merge",
        "A read folds operands from the newest to the oldest.";
    MergePartialSwapped, "merge-partial-swapped", "merge",
        "Two operands are folded into one in the wrong order.";
    ReverseReadsNewest, "reverse-reads-newest", "merge",
        "An iterator that goes back looks past its snapshot.";
    SeparatorTooShort, "separator-too-short", "table",
        "A leaf's separator is not above the last key of the leaf before.";
    TableLastKeyShort, "table-last-key-short", "table",
        "A table's last key is below the keys that it has.";
    TableDeletesUncounted, "table-deletes-uncounted", "table",
        "A table's properties leave out its tombstones.";
    LeafLastMissed, "leaf-last-missed", "table",
        "A point read misses the last entry of a leaf.";
    CursorBackSkips, "cursor-back-skips", "table",
        "A cursor that goes back skips a key at each leaf's end.";
    SplitValueCut, "split-value-cut", "table",
        "A value that goes on in the next leaf is returned without the part there.";
    CursorForwardSkips, "cursor-forward-skips", "table",
        "A cursor that goes forward skips a key at each leaf's start.";
    ScanSkips, "scan-skips", "table",
        "A compaction skips an entry at each leaf's start.";
    ScanStartExclusive, "scan-start-exclusive", "table",
        "A compaction leaves out the key at which its range starts.";
    BlobPointerOff, "blob-pointer-off", "table",
        "The pointer to a blob file's later values is off by one.";
    TableNotSynced, "table-not-synced", "cache",
        "A table is in use before it is durable.";
    MapletNotSynced, "maplet-not-synced", "cache",
        "A maplet is in use before it is durable.";
    BlobBatchMixedUp, "blob-batch-mixed-up", "table",
        "Values that are read from blob files together are returned in the order of their places.";
    BlobNotSynced, "blob-not-synced", "cache",
        "A blob file is in use before it is durable.";
    FailedWriteIgnored, "failed-write-ignored", "cache",
        "A data file is finished although one of its writes failed.";
    FailedSyncIgnored, "failed-sync-ignored", "cache",
        "A data file is finished although its sync failed.";
    RefusalByFlag, "refusal-by-flag", "vfs",
        "A direct read that is refused fails if another has turned the file to buffered reads meanwhile.";
    SyncsAtOnce, "syncs-at-once", "vfs",
        "Of two syncs of a journal segment one is not told that bytes were lost.";
    PageChecksumIgnored, "page-checksum-ignored", "cache",
        "A page is not checked when it is read.";
    PageMisplaced, "page-misplaced", "cache",
        "A page is cached in its neighbour's place.";
    StalePages, "stale-pages", "cache",
        "A file's number is used again while the cache has pages of its predecessor.";
    FetchMixedUp, "fetch-mixed-up", "cache",
        "Of pages read at once, each gets the bytes of another.";
    CacheStripesUndivided, "cache-stripes-undivided", "cache",
        "Each stripe of the page cache may use the memory of all.";
    FrameReusedEarly, "frame-reused-early", "cache",
        "An evicted page's memory is used again while a reader looks at it.";
    LentMemoryStays, "lent-memory-stays", "store",
        "The page cache does not give back what memtables have lent to it.";
    KeptValueReused, "kept-value-reused", "cache",
        "An evicted value's memory is used again while a slice keeps it.";
    MapletDropsKey, "maplet-drops-key", "filter",
        "A new maplet lacks a key.";
    MapletOldestFirst, "maplet-oldest-first", "filter",
        "A probe's branches are asked oldest first.";
    MapletFoldsBranches, "maplet-folds-branches", "filter",
        "Of a key in two branches, a merged maplet names one.";
    SignatureOfNextSlot, "signature-of-next-slot", "perfect_hash",
        "A slot of a hash index has the signature of the slot before.";
    HeadForgetsOlder, "head-forgets-older", "perfect_hash",
        "A head names the youngest piece that has a hash, and not that older ones have it too.";
    HeadNotSynced, "head-not-synced", "cache",
        "A head's file is not synced before the manifest names it.";
    HeadKeepsOldest, "head-keeps-oldest", "perfect_hash",
        "Of the pieces that have a hash, a new head names the oldest.";
    HashListShort, "hash-list-short", "perfect_hash",
        "A piece's list of hashes lacks the last one.";
    HeadLeftOut, "head-left-out", "tree",
        "A bundle of several pieces has no index but that of the oldest.";
    HeadForgetsNew, "head-forgets-new", "tree",
        "A new head lacks the keys of the piece that its compaction has merged.";
    CheckpointWithoutHeads, "checkpoint-without-heads", "tree",
        "A checkpoint does not have the heads.";
    DeadPieceDropped, "dead-piece-dropped", "tree",
        "A piece of which younger ones have most keys goes without being merged.";
    LaterSegmentIsBottom, "later-segment-is-bottom", "tree",
        "A leaf's merge drops deletes although an older piece stays.";
    HeadRangeShort, "head-range-short", "table",
        "A head leaves out what a shared piece has in the first leaf of the head's range.";
    PieceUnitsShort, "piece-units-short", "perfect_hash",
        "A piece's index takes each leaf for one unit.";
    PieceForAnySnapshot, "piece-for-any-snapshot", "table",
        "A snapshot older than a table goes by the leaf of a key's newest version.";
    PieceLeafBefore, "piece-leaf-before", "table",
        "A piece's index leads to the leaf before the key's.";
    MapletMaskShort, "maplet-mask-short", "filter",
        "A probe's answer has no room for more than four branches.";
    MapletUntranslated, "maplet-untranslated", "filter",
        "A merged maplet's entries keep the numbers that their branches had.";
    BloomFilterLosesKey, "bloom-filter-loses-key", "filter",
        "A young bundle's Bloom filter is made without its first key.";
    DescriptorLeak, "descriptor-leak", "vfs",
        "A file that is closed for another keeps its descriptor.";
    ManifestNotSynced, "manifest-not-synced", "manifest",
        "An edit is acknowledged before it is durable.";
    ManifestTornAccepted, "manifest-torn-accepted", "manifest",
        "A torn record at the manifest's end is taken for whole.";
    ManifestNewNotSynced, "manifest-new-not-synced", "manifest",
        "A new manifest is in use before it is durable.";
    ManifestNameNotSynced, "manifest-name-not-synced", "manifest",
        "A new manifest is in use before its name is durable.";
    ManifestOldGoesFirst, "manifest-old-goes-first", "manifest",
        "The old manifest goes before the new one has been written.";
    ManifestReadNotSynced, "manifest-read-not-synced", "manifest",
        "An open builds on a manifest that need not be durable.";
    ManifestRewriteKeyspace, "manifest-rewrite-keyspace", "manifest",
        "A rewrite of the manifest loses the last keyspace.";
    ManifestRewriteFloor, "manifest-rewrite-floor", "manifest",
        "A rewrite of the manifest loses the journal's floor.";
    SuperblockNotSynced, "superblock-not-synced", "manifest",
        "The superblock is put in place before it is durable.";
    SuperblockFirst, "superblock-first", "manifest",
        "The superblock is put in place before there is a manifest.";
    LiveForgetsOverwrites, "live-forgets-overwrites", "tree",
        "What is overwritten still counts as live.";
    LiveForgetsDeletes, "live-forgets-deletes", "tree",
        "What is deleted still counts as live.";
    DeletedLeftBehind, "deleted-left-behind", "tree",
        "What has been deleted in a part of a tree stays there while the whole does not take too much space.";
    BundleKnownByNumber, "bundle-known-by-number", "tree",
        "A bundle with a lower number than one of the trunk's is taken for one that the manifest has.";
    ChangeOfOldVersion, "change-of-old-version", "tree",
        "A change is committed although another has come since the version that it was made of.";
    VersionShownBeforeDurable, "version-shown-before-durable", "tree",
        "A version is shown when its change has been submitted, before the manifest has it.";
    RefusedChangeKept, "refused-change-kept", "tree",
        "A change that the manifest has refused stays in the tree that the next one builds on.";
    RefsOfGoneNodes, "refs-of-gone-nodes", "tree",
        "A change counts what it adds to a tree, and not what it takes away.";
    RetainedForever, "retained-forever", "tree",
        "What was kept for a snapshot is not looked at again once the snapshot has gone.";
    KeyspaceCreateLazy, "keyspace-create-lazy", "manifest",
        "Creating a keyspace returns before it is durable.";
    OptionsNotStored, "options-not-stored", "db",
        "Changed options are not written to the manifest.";
    OptionsBeforeDurable, "options-before-durable", "db",
        "Changed options are followed before the manifest has them.";
    OptionsLostInRewrite, "options-lost-in-rewrite", "manifest",
        "A rewritten manifest has the options with which its keyspaces were created.";
    OptionsLazy, "options-lazy", "manifest",
        "A change of options returns before its record is durable.";
    KeyspaceDropLazy, "keyspace-drop-lazy", "manifest",
        "Dropping a keyspace returns before it is durable.";
    SlmPendingNotAsked, "slm-pending-not-asked", "tree",
        "Point reads do not ask for memtables that are part of the tree and not in the index yet.";
    SlmOldestPendingFirst, "slm-oldest-pending-first", "tree",
        "Of several memtables that are not in the index yet, the oldest is asked first.";
    SlmPendingLeftOutOfRanges, "slm-pending-left-out-of-ranges", "tree",
        "Iterators do not see memtables that are part of the tree and not in the index yet.";
    SlmReceivedEarly, "slm-received-early", "tree",
        "A memtable counts as put into the index before its last keys are.";
    SlmSnapshotsForgotten, "slm-snapshots-forgotten", "tree",
        "What a memtable supersedes leaves the index, whatever snapshots need.";
    SlmPrunesTooMuch, "slm-prunes-too-much", "tree",
        "When a snapshot goes, what the others need leaves the index too.";
    SlmCoversAny, "slm-covers-any", "tree",
        "The index is asked for snapshots for which changes have kept nothing.";
    SlmMarkIgnored, "slm-mark-ignored", "tree",
        "A reader below the number that supersedes a version is shown younger ones in its table.";
    SlmOutputNotSuperseded, "slm-output-not-superseded", "tree",
        "A compaction puts an old version into the index as if nothing superseded it.";
    SlmDeadCountedTwice, "slm-dead-counted-twice", "tree",
        "A version that leaves the index is counted out twice, and a table is dropped that is half alive.";
    SlmTombstonesDropped, "slm-tombstones-dropped", "tree",
        "A compaction drops tombstones that hide entries in tables beside its inputs.";
    SlmNeededTombstonesDropped, "slm-needed-tombstones-dropped", "tree",
        "A table of tombstones alone is dropped while others have what they hide.";
    SlmSettledEarly, "slm-settled-early", "tree",
        "An output of a compaction is said to be hidden by no tombstone that comes later.";
    SlmOthersLeftOut, "slm-others-left-out", "tree",
        "A compaction leaves out the versions of its keys in tables that are no inputs.";
    SlmManyForgotten, "slm-many-forgotten", "tree",
        "Of a key with more versions than a leaf of the index holds, the oldest are forgotten.";
    SlmBelowIsAt, "slm-below-is-at", "location_index",
        "An iterator that goes backwards from the first key of a leaf of the index passes over the leaf before.";
    KeyListOperandsForgotten, "key-list-operands-forgotten", "table",
        "A table's list of keys does not say that all versions of a key are merge operands.";
    KeyListLastKeyLost, "key-list-last-key-lost", "table",
        "A table's list of keys ends before its last key.";
    SlmLaterLeafLeftOut, "slm-later-leaf-left-out", "tree",
        "Of the leaves of the index that a range query reads at once, the second one's keys are left out.";
}

/// Returns true if the bug is active.
#[cfg(not(planted))]
#[inline(always)]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}

/// The number for the next file, for [`Bug::StalePages`]: the cache still has pages under it.
#[cfg(planted)]
static FREED: AtomicU64 = AtomicU64::new(0);

/// Keeps the number of a deleted file for the next one. Returns true if [`Bug::StalePages`] is
/// active.
#[inline(always)]
pub(crate) fn keep_number(number: u64) -> bool {
    let keeps = planted(Bug::StalePages);
    #[cfg(planted)]
    FREED.store(if keeps { number } else { 0 }, Ordering::Relaxed);
    #[cfg(not(planted))]
    let _ = number;
    keeps
}

/// Returns the number that was kept, if any.
#[inline(always)]
pub(crate) fn kept_number() -> Option<u64> {
    #[cfg(planted)]
    return Some(FREED.swap(0, Ordering::Relaxed)).filter(|number| *number > 0);
    #[cfg(not(planted))]
    None
}

/// The active bug's position in [`Bug::ALL`] plus one; 0 for none.
#[cfg(planted)]
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Returns true if the bug is active.
#[cfg(planted)]
#[inline]
pub(crate) fn planted(bug: Bug) -> bool {
    ACTIVE.load(Ordering::Relaxed) == bug as usize + 1
}

/// Activates this bug, or none.
#[cfg(planted)]
pub fn activate(bug: Option<Bug>) {
    ACTIVE.store(bug.map_or(0, |bug| bug as usize + 1), Ordering::Relaxed);
}

#[cfg(all(test, not(planted)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_planted_in_ordinary_builds() {
        const PLANTED: bool = planted(Bug::JournalSyncSkipped);
        assert!(!std::hint::black_box(PLANTED));
    }
}

#[cfg(all(test, planted))]
mod tests {
    use super::*;

    #[test]
    fn one_bug_is_active_at_a_time() {
        let active = || Bug::ALL.iter().copied().filter(|bug| planted(*bug)).collect::<Vec<_>>();
        assert_eq!(active(), []);
        for &bug in Bug::ALL {
            activate(Some(bug));
            assert_eq!(active(), [bug]);
        }
        activate(None);
        assert_eq!(active(), []);
    }
}
