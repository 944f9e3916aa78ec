//! [`Database`], the handle to an open store.

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
    /// Opens the store and recovers from a crash by replaying the journal. If the directory is missing
    /// or empty, creates a store, unless [`Builder::create_if_missing`] is off.
    ///
    /// A keyspace whose merge operator is not registered opens without an error. In that keyspace,
    /// merges fail, and so do reads of keys with unfolded operands; everything else works.
    ///
    /// # Errors
    /// - `NotAStore` if the directory holds other files, or nothing and no store may be created.
    /// - `Locked` if another process has the store open.
    /// - `Corruption` if the manifest is damaged, or the journal is damaged before later valid records.
    /// - `UnsupportedVersion` if a newer version of Spinney wrote the store.
    /// - `Io` or `Full` if the file system fails.
    pub fn open(self) -> Result<Database> {
        Database::open(self)
    }

    /// Opens the store for reading only. Writes nothing to disk and starts no background threads. The
    /// directory and its files may be read-only or owned by another user. Checkpoints can be opened
    /// this way too.
    ///
    /// The journal is replayed into memtables, which may use half of the memory budget. The journal of
    /// a writer with the same budget always fits. A torn end of the journal or manifest is ignored, as
    /// in [`Builder::open`], but stays on disk.
    ///
    /// Any number of handles and processes may have a store open for reading at the same time. A
    /// shared lock excludes writers if the file system supports locks. Every call that would write
    /// returns [`Error::ReadOnly`](crate::Error::ReadOnly).
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
    /// - `NotAStore` if there is no store.
    /// - `Locked` if the store is open for writing.
    /// - `JournalOverBudget` if the journal does not fit into memory. The error names a sufficient
    ///   budget.
    /// - `Corruption`, `UnsupportedVersion` and `Io` as in [`Builder::open`].
    pub fn open_read_only(self) -> Result<Database> {
        Database::open_for_reading(self)
    }
}

/// A handle to an open store. Clones share the store. [`Database::close`] closes it, or dropping the
/// last handle of any kind (database, keyspace, batch, snapshot, iterator).
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
    /// Returns a builder for the store in the directory `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::posix(path.as_ref())
    }

    /// Returns a builder for a store in memory, for tests. The data is lost when the store is closed.
    pub fn builder_in_memory() -> Builder {
        Builder::in_memory()
    }

    pub(super) fn store(&self) -> &Arc<OpenStore> {
        &self.store
    }

    pub(crate) fn open(builder: Builder) -> Result<Database> {
        Ok(Database { store: Arc::new(OpenStore(open::open(builder)?)) })
    }

    /// Opens the store in the directory `path` for reading only, with default options. See
    /// [`Builder::open_read_only`].
    ///
    /// # Errors
    /// The errors of [`Builder::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Database> {
        Database::builder(path).open_read_only()
    }

    pub(crate) fn open_for_reading(builder: Builder) -> Result<Database> {
        Ok(Database { store: Arc::new(OpenStore(open::open_read_only(builder)?)) })
    }

    /// Opens the keyspace `name`, or creates it if it does not exist. A new keyspace is durable when
    /// this returns.
    ///
    /// An existing keyspace must have the given options now. [`Keyspace::alter`] may have changed them since the keyspace
    /// was created. To open a keyspace with the options that it has, use [`Database::existing_keyspace`]; to give
    /// it these options, call `alter(|_| options)` on that.
    ///
    /// # Errors
    /// - `InvalidArgument` if the tree kind does not support an option, or the name is empty or longer
    ///   than 255 bytes.
    /// - `Conflict` if the keyspace exists with other options, or its merge operator is not registered. The error
    ///   names the option, and says how to change it if that is possible.
    /// - The error that opening the keyspace failed with, if the store was opened without it
    ///   ([`RecoveryReport::keyspaces_not_opened`]).
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.keyspace_while(name, options, || ())
    }

    /// As [`Database::keyspace`]. Calls `meanwhile` when a new keyspace is in the manifest but not yet
    /// visible to other threads.
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
            if let Some((option, has, wanted)) = keyspace.options().difference(&options) {
                let what_to_do = match KeyspaceOptions::is_fixed(option) {
                    true => {
                        "open it with the options it was created with, or with \
                             Database::existing_keyspace"
                    }
                    false => {
                        "open it with Database::existing_keyspace, and change the option with \
                              Keyspace::alter"
                    }
                };
                return Err(Error::Conflict {
                    what: format!(
                        "keyspace {name:?} exists with {option} {has}, not {wanted}; {what_to_do}"
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
            range_deletes: Vec::new(),
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

    /// Opens the existing keyspace `name` with the options that it has.
    ///
    /// # Errors
    /// `NotFound` if there is no such keyspace; the error that opening it failed with, if the store was
    /// opened without it.
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

    /// Returns the error of a keyspace that could not be opened.
    fn check_opened(&self, name: &str) -> Result<()> {
        self.store.quarantine.get(name).map_or(Ok(()), |quarantined| Err(quarantined.error))
    }

    /// Returns the names of all keyspaces, sorted. Includes keyspaces that could not be opened. In a forked child, none.
    pub fn keyspaces(&self) -> Vec<String> {
        if !self.store.birthplace.is_here() {
            return Vec::new();
        }
        let mut names = self.store.quarantine.names();
        names.extend(self.store.keyspaces.read().keys().cloned());
        names.sort();
        names
    }

    /// Drops a keyspace and all its data. The drop is durable when this returns. Other handles to the
    /// keyspace return `Closed` from then on; open iterators remain valid.
    ///
    /// # Errors
    /// - `NotFound` if there is no such keyspace.
    /// - `Full` if the disk is full. The keyspace is then unchanged, but other threads may have got
    ///   `Closed` in the meantime.
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
            store.manifest.confirm_end();
            // The next open that opens all keyspaces removes its files as orphans.
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
            // Open iterators remain valid. After a flush they pin files instead of memtables; if the
            // flush fails, they pin the memtables.
            let cut = store.freeze(std::slice::from_ref(&keyspace), |_| true);
            let _ = store.flush_frozen(&keyspace, cut);
        }
        // No memtable is incorporated until the drop has succeeded or failed: the memtables of a
        // dropped keyspace are discarded.
        store.while_incorporating_alone(|| self.drop_alone(name, &keyspace))?;
        keyspace.tree.trim_index();
        // Without that record the keyspace would be back, and nothing else tells that it has gone.
        store.manifest.confirm_end();
        Ok(())
    }

    fn drop_alone(&self, name: &str, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let store = &self.store;
        keyspace.dropped.store(true, Ordering::SeqCst);
        store.keyspace_changes.fetch_add(1, Ordering::SeqCst);
        // Every commit after the barrier sees `dropped`.
        let last = store.committer.barrier(|last| last);
        // Earlier commits must be durable before the drop is.
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
        // Changes that did not see `dropped` have been submitted, and no other is.
        drop(keyspace.tree.lock_changes());
        let keyspaces = vec![KeyspaceEdit { id: keyspace.id, change: KeyspaceChange::Drop }];
        let edit = Edit { keyspaces, journal_floor, last_seqno: journal_floor, ..Edit::default() };
        let result = store.commit_edit(&edit);
        // Those changes are decided, and so they are shown before the keyspace is gone, or not at all.
        drop(keyspace.tree.lock_changes());
        if result.as_ref().is_err_and(Error::is_refusal) {
            keyspace.dropped.store(false, Ordering::Release);
        } else {
            store.keyspaces.write().remove(name);
            keyspace.leave_for_good();
            keyspace.log.iter().for_each(|log| store.journal.detach(log));
            keyspace.forget_memtables();
            // Whoever has a handle keeps the tree.
            keyspace.tree.set_index_memory(0);
            store.divide_memory();
            store.update_backlog();
        }
        result
    }

    /// Returns an empty batch for this store.
    pub fn batch(&self) -> Batch {
        Batch::of(&self.store)
    }

    /// Commits a batch atomically, with the batch's durability. The batch is unchanged and can be
    /// written again, or cleared and reused.
    ///
    /// # Errors
    /// The errors of [`Batch::commit`].
    pub fn write(&self, batch: &Batch) -> Result<()> {
        batch.write_to(&self.store)
    }

    /// Returns a snapshot of all keyspaces that contains every commit so far.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.store)
    }

    /// Makes every commit so far durable: it survives a power loss once this returns.
    ///
    /// # Errors
    /// `Poisoned`; or the error of the sync, which poisons the store.
    pub fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    /// Waits until there is no background work left. Failed work is retried once. On a full disk it is
    /// retried as long as other work succeeds, because that may free space. A deterministic store does
    /// not retry: it returns the first error.
    ///
    /// # Errors
    /// The error of the background work: `Full` if the disk had no room for some of it; `Poisoned` if it
    /// panicked; `Merge`, once, if a merge operator panicked (the operands are kept unfolded).
    pub fn wait_idle(&self) -> Result<()> {
        Contained::refuse_inside("wait_idle")?;
        let idle = self.store.wait_idle();
        self.store.deliver_events();
        idle
    }

    /// Creates a consistent copy of the store in the new directory `dir`, which can be opened as a store.
    /// The copy contains every commit made before the call. Writes continue in the meantime. Data files
    /// are hard-linked where possible, which uses no disk space; otherwise they are copied.
    ///
    /// # Errors
    /// - `Conflict` if `dir` exists and is not empty.
    /// - `InvalidArgument` if `dir` is inside the store.
    /// - `Full` if the disk is full.
    /// - The error that opening a keyspace failed with, if the store was opened without it.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(dir, |_| {})
    }

    /// Does the same as [`Database::checkpoint`], and reports progress: calls `progress` for each
    /// file, and for each MiB copied.
    ///
    /// # Errors
    /// The errors of [`Database::checkpoint`].
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

    /// Verifies the data of the open store. Damage is reported in the result, not as an error.
    ///
    /// # Errors
    /// `Closed`.
    pub fn check(&self, level: CheckLevel) -> Result<CheckReport> {
        self.store.check_open()?;
        Ok(check::check(&self.store, level))
    }

    /// Returns the counters and gauges of the store. In a forked child, all are zero.
    pub fn stats(&self) -> Statistics {
        if !self.store.birthplace.is_here() {
            return Statistics::default();
        }
        self.store.statistics()
    }

    /// Returns what the recovery at opening did, and what it could not open.
    pub fn recovery(&self) -> RecoveryReport {
        self.store.recovery.clone()
    }

    /// Closes the store for all handles: stops background work and makes the journal durable. The
    /// lock is released when the last handle is dropped. Memtables are not flushed; the next open
    /// replays the journal. Concurrent calls return when the store is closed, with the same result.
    ///
    /// # Errors
    /// - `Closed` if an event listener calls it while another thread closes the store, or a call
    ///   comes from within another call on the same thread: these calls cannot wait.
    /// - The error of the journal's last sync; `Poisoned` if the store is poisoned. Writes that
    ///   were not synced may then be lost in a power loss.
    pub fn close(self) -> Result<()> {
        Contained::refuse_inside("close")?;
        self.store.close()
    }

    /// Performs one step of background work in [`Builder::deterministic`] mode. Returns false if
    /// there was none.
    ///
    /// # Errors
    /// The error of the step.
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
    /// Closes the store once. Other callers wait until it is closed and get the same result.
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
                // The closing thread waits for the listener, so the listener must not wait for it.
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

    /// Returns true on the thread that delivers events.
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
        // A poisoned store cannot make anything durable. Closing it must not report success.
        self.poison.check()?;
        if !planted(Bug::CloseWithoutSync) {
            self.journal.close()?;
        }
        self.keyspaces.read().values().for_each(|keyspace| keyspace.tree.closing());
        // If the journal is missing at the next open, the manifest's last seqno shows that records
        // are lost.
        let last_seqno = Some(self.committer.visible());
        self.manifest.commit(&Edit { last_seqno, ..Edit::default() })?;
        self.manifest.confirm_end();
        Ok(())
    }
}
