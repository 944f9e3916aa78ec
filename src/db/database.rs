//! The handle on an open store.

use std::path::Path;
use std::sync::Arc;

use super::batch::Batch;
use super::check::{self, CheckReport};
use super::keyspace::Keyspace;
use super::snapshot::Snapshot;
use super::statistics::Statistics;
use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::base::panics::watched;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::base::sync::thread;
use crate::manifest::{Edit, KeyspaceChange, KeyspaceEdit};
use crate::merge::Contained;
use crate::store::checkpoint::CheckpointProgress;
use crate::store::open::{self, KeyspaceSeed};
use crate::store::options::{Builder, CheckLevel};
use crate::store::quarantine::Quarantined;
use crate::store::recovery::RecoveryReport;
use crate::store::state::KeyspaceState;
use crate::store::store::{Closing, OpenStore, Store};
use crate::tree::options::KeyspaceOptions;

/// Longest keyspace name, in bytes.
const NAME_BYTES_MAX: usize = 255;

impl Builder {
    /// Opens the store, recovering what a crash left behind.
    ///
    /// # Errors
    /// `NotAStore` if the directory holds something else, `Locked` if another process has it open,
    /// `Corruption` for damage in the manifest or in the journal before valid later records,
    /// `UnsupportedVersion` for a store of a newer Spinney, `Io` and `Full` as the file system says. A merge
    /// operator that a keyspace names and nobody registered is no error here: everything but merges, and reads
    /// of keys that have been merged into, can be done in that keyspace.
    pub fn open(self) -> Result<Database> {
        Database::open(self)
    }

    /// Opens the store for reading. Nothing is written: no lock file, no recovery, no background work; the
    /// directory and its files may be read-only or belong to somebody else. Checkpoints can be opened so too.
    ///
    /// The journal is replayed into memory, of which memtables may take half the budget. What a writer with
    /// the same budget leaves behind fits. Background threads are not started, so what a crash left to
    /// compact stays as it is. A torn end of the journal or manifest is passed over as in
    /// [`Builder::open`], and passed over again at the next opening.
    ///
    /// Any number of handles and processes may have a store open for reading at once. A shared lock keeps
    /// writers out meanwhile, wherever the file system has locks. Every call that would write gives
    /// [`Error::ReadOnly`](crate::Error::ReadOnly).
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use spinney::{Database, Error, KeyspaceOptions};
    /// let db = Database::builder(dir.path()).open()?;
    /// db.keyspace("items", KeyspaceOptions::stb())?.put("a", "1")?;
    /// db.close()?;
    /// let db = Database::builder(dir.path()).open_read_only()?;
    /// let items = db.existing_keyspace("items")?;
    /// assert_eq!(items.get("a")?.as_deref(), Some(&b"1"[..]));
    /// assert!(matches!(items.put("b", "2"), Err(Error::ReadOnly { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `NotAStore` if there is no store, `Locked` if somebody has it open for writing, `JournalOverBudget`
    /// (which names a budget that suffices) if the journal does not fit, and otherwise as
    /// [`Builder::open`] but for `Full`.
    pub fn open_read_only(self) -> Result<Database> {
        Database::open_for_reading(self)
    }
}

/// An open store. Clones share it; it is closed by [`Database::close`] or when the last handle of any
/// kind (keyspace, batch, snapshot, iterator) is dropped.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// use spinney::{Database, Durability, KeyspaceOptions};
/// let db = Database::builder_in_memory().open()?;
/// let users = db.keyspace("users", KeyspaceOptions::stb())?;
/// let names = db.keyspace("names", KeyspaceOptions::stb())?;
/// let mut batch = db.batch().durability(Durability::Sync);
/// batch.put(&users, "1", "Ada");
/// batch.put(&names, "Ada", "1");
/// batch.commit()?;
/// assert_eq!(users.get("1")?.as_deref(), Some(&b"Ada"[..]));
/// db.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Database {
    store: Arc<OpenStore>,
}

impl Database {
    /// A builder for the store in the directory `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::posix(path.as_ref())
    }

    /// A builder for a store in memory, for tests. It is gone when it is closed.
    pub fn builder_in_memory() -> Builder {
        Builder::in_memory()
    }

    pub(crate) fn open(builder: Builder) -> Result<Database> {
        Ok(Database { store: Arc::new(OpenStore(open::open(builder)?)) })
    }

    /// Opens the store in the directory `path` for reading, with default options otherwise; see
    /// [`Builder::open_read_only`].
    ///
    /// # Errors
    /// As [`Builder::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Database> {
        Database::builder(path).open_read_only()
    }

    pub(crate) fn open_for_reading(builder: Builder) -> Result<Database> {
        Ok(Database { store: Arc::new(OpenStore(open::open_read_only(builder)?)) })
    }

    /// Opens the keyspace `name`, creating it if there is none. Creation is durable at once.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that the kind does not have; `Conflict` if it exists with other options, or its merge operator is not registered; what opening it failed
    /// with, if the store was opened without it ([`RecoveryReport::keyspaces_not_opened`]).
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.keyspace_while(name, options, || ())
    }

    /// The same; calls `meanwhile` when a new keyspace is in the manifest, and nobody can find it yet.
    pub(super) fn keyspace_while(
        &self,
        name: &str,
        options: KeyspaceOptions,
        meanwhile: impl FnOnce(),
    ) -> Result<Keyspace> {
        let store = &self.store;
        store.check_open()?;
        options.check()?;
        if let Some(operator) = &options.merge_operator
            && !store.merge_operators.contains_key(operator)
        {
            return Err(Error::Conflict {
                what: format!(
                    "keyspace {name:?} needs the merge operator {operator:?}; register it with \
                     Builder::merge_operator before opening, or open the keyspace without it \
                     (Database::existing_keyspace): what has not been merged into can be read"
                ),
            });
        }
        store.changing("creating a keyspace", || {
            self.keyspace_there_or_new(name, options, meanwhile)
        })
    }

    fn keyspace_there_or_new(
        &self,
        name: &str,
        options: KeyspaceOptions,
        meanwhile: impl FnOnce(),
    ) -> Result<Keyspace> {
        let store = &self.store;
        let _registry = store.registry.lock();
        self.check_opened(name)?;
        if let Some(keyspace) = self.find(name) {
            if let Some((option, has, wanted)) = keyspace.options.difference(&options) {
                return Err(Error::Conflict {
                    what: format!(
                        "keyspace {name:?} exists with {option} {has}, not {wanted}; open it with the \
                         options it was created with, or with Database::existing_keyspace"
                    ),
                });
            }
            return Ok(Keyspace::new(store, keyspace));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a keyspace name has 1 to {NAME_BYTES_MAX} bytes, not {}",
                name.len()
            )));
        }
        store.check_writable()?;
        let id = KeyspaceId(store.next_keyspace_id.fetch_add(1, Ordering::Relaxed));
        let seed = KeyspaceSeed {
            id,
            name: name.to_string(),
            options: options.clone(),
            flushed: store.committer.visible(),
        };
        let flushed = seed.flushed;
        let keyspace = store.make_keyspace(seed, &[])?;
        let meta = options.meta(name);
        let edit = Edit {
            keyspaces: vec![
                KeyspaceEdit { id, change: KeyspaceChange::Create(meta) },
                KeyspaceEdit { id, change: KeyspaceChange::Flushed(flushed) },
            ],
            ..Edit::default()
        };
        store.commit_edit(&edit)?;
        if let Some(log) = &keyspace.log {
            store.journal.attach(log, flushed);
        }
        meanwhile();
        store.keyspaces.write().insert(name.to_string(), Arc::clone(&keyspace));
        Ok(Keyspace::new(store, keyspace))
    }

    /// Opens the keyspace `name` with the options it has.
    ///
    /// # Errors
    /// `NotFound` if there is none; what opening it failed with, if the store was opened without it.
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        self.store.check_open()?;
        self.check_opened(name)?;
        let found = self.find(name).ok_or_else(|| Error::NotFound {
            what: format!("keyspace {name:?}; the store has {:?}", self.keyspaces()),
        })?;
        Ok(Keyspace::new(&self.store, found))
    }

    fn find(&self, name: &str) -> Option<Arc<KeyspaceState>> {
        self.store.keyspaces.read().get(name).cloned()
    }

    /// Refuses a keyspace that could not be opened.
    fn check_opened(&self, name: &str) -> Result<()> {
        self.store.quarantine.get(name).map_or(Ok(()), |quarantined| Err(quarantined.error))
    }

    /// The names of all keyspaces, sorted; also of those that could not be opened.
    pub fn keyspaces(&self) -> Vec<String> {
        let mut names = self.store.quarantine.names();
        names.extend(self.store.keyspaces.read().keys().cloned());
        names.sort();
        names
    }

    /// Drops a keyspace and everything in it, durably. Handles on it give `Closed` from then on;
    /// iterators that are open go on.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Full`, and then it is there as before, though other threads may
    /// have met `Closed` meanwhile.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        Contained::refuse_inside("drop_keyspace")?;
        let dropped = self.store.changing("dropping a keyspace", || self.drop_keyspace_whole(name));
        self.store.deliver_events();
        dropped
    }

    fn drop_keyspace_whole(&self, name: &str) -> Result<()> {
        let store = &self.store;
        store.check_writable()?;
        let _registry = store.registry.lock();
        if let Some(Quarantined { id, has_log, .. }) = store.quarantine.get(name) {
            let journal_floor = match has_log {
                true => Some(store.while_incorporating_alone(|| {
                    let cut = store.committer.barrier(|last| last);
                    store.persist_all_but(name, cut).map(|()| cut)
                })?),
                false => None,
            };
            let keyspaces = vec![KeyspaceEdit { id, change: KeyspaceChange::Drop }];
            let edit =
                Edit { keyspaces, journal_floor, last_seqno: journal_floor, ..Edit::default() };
            store.commit_edit(&edit)?;
            // Its files are orphans of the next open that opens all keyspaces.
            store.quarantine.remove(name);
            if store.quarantine.is_empty() {
                store.files.retain_no_longer();
            }
            return Ok(());
        }
        let keyspace = self.find(name).ok_or_else(|| Error::NotFound {
            what: format!("keyspace {name:?}; the store has {:?}", self.keyspaces()),
        })?;
        if keyspace.iterators.load(Ordering::SeqCst) > 0 {
            // They go on, and are to keep files rather than memtables. If it fails, they keep memtables.
            let cut = store.freeze(std::slice::from_ref(&keyspace), |_| true);
            let _ = store.flush_frozen(&keyspace, cut);
        }
        // Whether it is dropped is decided before a memtable is taken to have nowhere to go.
        store.while_incorporating_alone(|| self.drop_alone(name, &keyspace))
    }

    fn drop_alone(&self, name: &str, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let store = &self.store;
        keyspace.dropped.store(true, Ordering::SeqCst);
        store.keyspaces_dropped.fetch_add(1, Ordering::SeqCst);
        // Behind the barrier no commit follows that has not seen it.
        let last = store.committer.barrier(|last| last);
        // What was committed before must not get lost behind the drop.
        if !planted(Bug::KeyspaceDropBeforeSync) {
            let synced = store.journal.sync_upto(last);
            synced.inspect_err(|_| keyspace.dropped.store(false, Ordering::Release))?;
        }
        let mut journal_floor = None;
        if keyspace.log.is_some() && !planted(Bug::OperationLogGoesWithKeyspace) {
            // The tree's log goes, and what other keyspaces have in memtables alone needs its numbers.
            let persisted = store.persist_all_but(name, last);
            persisted.inspect_err(|_| keyspace.dropped.store(false, Ordering::Release))?;
            journal_floor = Some(last);
        }
        let changes = keyspace.tree.lock_changes();
        let keyspaces = vec![KeyspaceEdit { id: keyspace.id, change: KeyspaceChange::Drop }];
        let edit = Edit { keyspaces, journal_floor, last_seqno: journal_floor, ..Edit::default() };
        let result = store.commit_edit(&edit);
        drop(changes);
        if result.as_ref().is_err_and(Error::is_refusal) {
            keyspace.dropped.store(false, Ordering::Release);
        } else {
            store.keyspaces.write().remove(name);
            keyspace.leave_for_good();
            keyspace.log.iter().for_each(|log| store.journal.detach(log));
            keyspace.forget_memtables();
            store.update_backlog();
        }
        result
    }

    /// An empty batch of this store.
    pub fn batch(&self) -> Batch {
        Batch::of(&self.store)
    }

    /// Carries a batch out, all at once, and leaves it as it is: it can be written again, or cleared and
    /// filled anew.
    ///
    /// # Errors
    /// As [`Batch::commit`].
    pub fn write(&self, batch: &Batch) -> Result<()> {
        batch.write_to(&self.store)
    }

    /// A snapshot of everything committed so far, over all keyspaces.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.store)
    }

    /// Makes everything committed so far survive power loss.
    ///
    /// # Errors
    /// `Poisoned`, or the failure that poisons the store.
    pub fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    /// Waits until no background work is left to do. What failed is tried once more; on a full disk, for as long as
    /// other work is done, which may make room. (No time passes in a deterministic store: it returns the first error.)
    ///
    /// # Errors
    /// What the background work failed with: `Full` if there was no room for some of it; `Poisoned` if it panicked;
    /// `Merge`, once, if a merge operator panicked in it (the operands are kept as they are).
    pub fn wait_idle(&self) -> Result<()> {
        Contained::refuse_inside("wait_idle")?;
        let idle = self.store.wait_idle();
        self.store.deliver_events();
        idle
    }

    /// Makes a consistent, openable copy of the store in the new directory `dir`. It holds everything committed
    /// before the call; writes go on meanwhile. Data files are hard links, which take no time and no room; on
    /// another file system, or one without hard links, they are copied.
    ///
    /// # Errors
    /// `Conflict` if `dir` exists and is not empty; `InvalidArgument` if it is inside the store; `Full`; what opening
    /// a keyspace failed with, if one could not be opened.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(dir, |_| {})
    }

    /// [`Database::checkpoint`], which tells `progress` of each file, and of each mebibyte that it copies.
    ///
    /// # Errors
    /// As [`Database::checkpoint`].
    pub fn checkpoint_with(
        &self,
        dir: impl AsRef<Path>,
        mut progress: impl FnMut(CheckpointProgress),
    ) -> Result<()> {
        Contained::refuse_inside("checkpoint")?;
        let copied = self.store.changing("a checkpoint", || {
            crate::store::checkpoint::checkpoint(&self.store, dir.as_ref(), &mut progress)
        });
        self.store.deliver_events();
        copied
    }

    /// Verifies the store as it is now. Damage is in the report, not an error.
    ///
    /// # Errors
    /// `Closed`.
    pub fn check(&self, level: CheckLevel) -> Result<CheckReport> {
        self.store.check_open()?;
        Ok(check::check(&self.store, level))
    }

    /// Everything the store counts.
    pub fn stats(&self) -> Statistics {
        self.store.statistics()
    }

    /// What opening the store had to repair.
    pub fn recovery(&self) -> RecoveryReport {
        self.store.recovery.clone()
    }

    /// Closes the store for all handles: ends background work, makes the journal durable and releases
    /// the lock once the last handle is gone. What is in memtables stays in the journal. Of several calls
    /// each returns when the store is closed, with the same result.
    ///
    /// # Errors
    /// `Closed` if it is called by an event listener while another thread closes the store, or twice from
    /// within itself: that call cannot wait.
    /// What the journal's last sync fails with; `Poisoned` if the store was: what had not been synced
    /// before may be lost with the next power loss.
    pub fn close(self) -> Result<()> {
        Contained::refuse_inside("close")?;
        self.store.close()
    }

    /// Does one step of background work in [`Builder::deterministic`] mode; false if there was none.
    ///
    /// # Errors
    /// What the step failed with.
    pub fn step(&self) -> Result<bool> {
        self.store.check_open()?;
        let stepped = self.store.executor.step();
        self.store.deliver_events();
        stepped
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("path", &self.store.path).finish_non_exhaustive()
    }
}

impl Store {
    /// Closes the store, once: whoever else closes it waits for that, and is told the same.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.birthplace.is_here() {
            return Err(Error::Forked { path: self.path.clone() });
        }
        let was_closed = self.closed.swap(true, Ordering::AcqRel);
        if was_closed && planted(Bug::CloseDoesNotWait) {
            return Ok(());
        }
        let me = thread::current().id();
        let mut closing = self.closing.lock();
        loop {
            match &*closing {
                Closing::Not => break,
                Closing::Done(result) => return result.clone(),
                // A listener, for which the one who closes waits.
                Closing::By(closer) if *closer == me || self.is_listening() => {
                    let path = self.path.display();
                    let what = format!("the store in {path} (it is being closed at this moment)");
                    return Err(Error::Closed { what });
                }
                Closing::By(_) => self.closed_by_one.wait(&mut closing),
            }
        }
        *closing = Closing::By(me);
        drop(closing);
        let done = |result| {
            *self.closing.lock() = Closing::Done(result);
            self.closed_by_one.notify_all();
        };
        let panicked = || Error::Poisoned { reason: "closing the store panicked".to_string() };
        let result = watched(|| self.close_alone(), || done(Err(panicked())));
        done(result.clone());
        result
    }

    /// Whether this is the thread that delivers events.
    fn is_listening(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.is_this_thread())
    }

    fn close_alone(&self) -> Result<()> {
        self.executor.stop();
        if let Some(events) = &self.events {
            events.close();
        }
        self.drop_unheld();
        self.files.retain_all();
        if self.read_only {
            return Ok(());
        }
        // Nothing more can be made durable, which whoever closes the store must not take for done.
        self.poison.check()?;
        if !planted(Bug::CloseWithoutSync) {
            self.journal.close()?;
        }
        // Should the journal be gone at the next open, the manifest knows that there was more.
        let last_seqno = Some(self.committer.visible());
        self.manifest.commit(&Edit { last_seqno, ..Edit::default() })?;
        self.manifest.close();
        Ok(())
    }
}
