//! The open manifest: commits, and rewrites once most of the log is dead.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::durable::{DurableEnd, DurableFile};
use super::edit::{Edit, KeyspaceChange};
use super::record::{HEADER_BYTES, Identity, RecordKind};
use super::state::State;
use crate::base::codec::put_bytes;
use crate::base::error::{Error, Result};
use crate::base::group_commit::{GroupCommit, Rounds};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::panics::caught;
use crate::base::planted::{Bug, planted};
use crate::base::poison::Poison;
use crate::base::sync::Mutex;
use crate::vfs::{Access, File, Vfs};

/// The open manifest of a store.
pub(crate) struct Manifest {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    /// A leader alone touches the end of the file.
    inner: GroupCommit<Inner>,
    /// Says how far the log is durable.
    durable_file: Mutex<DurableFile>,
    /// The store's: the manifest is the first of its parts.
    poison: Arc<Poison>,
}

pub(crate) struct Inner {
    identity: Identity,
    file: Arc<dyn File>,
    /// Where the next record goes.
    end: u64,
    /// Whether what a torn append has left still lies there. An open that fails leaves it.
    torn: bool,
    /// What the first record took.
    snapshot_bytes: u64,
    /// Bytes written since the open.
    written_bytes: u64,
    /// Edits submitted are applied already; if they then fail, so does everything after them.
    state: State,
    /// The encoded edits that no leader has taken yet.
    waiting: Vec<u8>,
    /// Edits submitted since the open, and how many of them are durable or have been refused.
    submitted: u64,
    durable: u64,
    /// The state as it is on the disk.
    durable_state: State,
    /// Edits that were refused since the disk is full, and whose callers have not been told yet.
    refused: BTreeMap<u64, Error>,
    /// The journal is durable up to here, which the next edit says too.
    journal_durable: Option<Seqno>,
}

impl Manifest {
    /// A manifest whose file has been read (or written) up to `end`.
    pub(super) fn new(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        identity: Identity,
        file: Arc<dyn File>,
        (snapshot_bytes, end): (u64, u64),
        torn: bool,
        state: State,
    ) -> Manifest {
        Manifest {
            vfs,
            dir: dir.to_path_buf(),
            inner: GroupCommit::new(Inner {
                identity,
                file,
                end,
                torn,
                snapshot_bytes,
                written_bytes: 0,
                durable_state: state.clone(),
                state,
                waiting: Vec::new(),
                submitted: 0,
                durable: 0,
                refused: BTreeMap::new(),
                journal_durable: None,
            }),
            durable_file: Mutex::default(),
            poison: Arc::default(),
        }
    }

    /// Makes an edit durable. Edits that wait at the same time share one record and one sync; they
    /// take effect in the order of the calls.
    ///
    /// # Errors
    /// `Conflict` if the edit contradicts what is there, `Full` if the log cannot grow: nothing has
    /// happened. Anything else has poisoned the store: whether the edit will be there at the next
    /// open is unknown, and until then every commit returns `Poisoned`.
    pub(crate) fn commit(&self, edit: &Edit) -> Result<()> {
        let mut inner = self.inner.lock();
        self.poison.check()?;
        let mut edit = Cow::Borrowed(edit);
        if inner.journal_durable > edit.last_seqno {
            edit.to_mut().last_seqno = inner.journal_durable;
        }
        let mut encoded = Vec::new();
        edit.encode(&mut encoded);
        inner.state.check(&edit).map_err(|what| Error::Conflict { what })?;
        inner.state.apply(&edit);
        put_bytes(&mut inner.waiting, &encoded);
        inner.submitted += 1;
        let ticket = inner.submitted;
        let lazy = edit.keyspaces.iter().any(|keyspace| match keyspace.change {
            KeyspaceChange::Create(_) => planted(Bug::KeyspaceCreateLazy),
            KeyspaceChange::Drop => planted(Bug::KeyspaceDropLazy),
            _ => false,
        });
        if lazy {
            return Ok(());
        }
        self.inner.wait(&mut inner, self, &self.poison, |inner| inner.durable >= ticket)?;
        inner.refused.remove(&ticket).map_or(Ok(()), Err)
    }

    /// The journal is durable up to `seqno`, and what is committed from now on relies on that: an open
    /// that finds less of it finds a damaged store, and not one whose power failed.
    pub(crate) fn require_journal_upto(&self, seqno: Seqno) {
        let mut inner = self.inner.lock();
        inner.journal_durable = inner.journal_durable.max(Some(seqno));
    }

    /// The latch that is set when it is unknown what the manifest holds on the disk: the store's.
    pub(crate) fn poison(&self) -> &Arc<Poison> {
        &self.poison
    }

    /// The log's file, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        manifest_path(&self.dir, self.inner.lock().identity.number)
    }

    /// Bytes written since the open.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.inner.lock().written_bytes
    }

    /// Length of the log.
    pub(crate) fn bytes_total(&self) -> u64 {
        self.inner.lock().end
    }

    /// What of it is known to be live: the snapshot it starts with. Rewriting whenever the total is
    /// some multiple of this costs a bounded share of what has been appended.
    pub(crate) fn bytes_live(&self) -> u64 {
        self.inner.lock().snapshot_bytes
    }

    /// How many edits have been submitted since the open; see `rewrite`.
    pub(crate) fn edits_submitted(&self) -> u64 {
        self.inner.lock().submitted
    }

    /// Replaces the log by a new one that holds the state and the `trees`, one snapshot a keyspace,
    /// which include every edit up to the `edits`th submitted. Commits wait meanwhile.
    ///
    /// Returns false, having done nothing, if there have been more edits: look at the trees again.
    ///
    /// # Errors
    /// If the new log cannot be written, the old one stays in use. If it cannot be made certain which
    /// of them the next open finds, the store is poisoned.
    pub(crate) fn rewrite(&self, edits: u64, trees: &[(KeyspaceId, Vec<u8>)]) -> Result<bool> {
        let mut inner = self.inner.lock_idle();
        self.poison.check()?;
        if inner.submitted != edits || inner.durable != edits {
            return Ok(false);
        }
        let old = inner.identity;
        let new = Identity { number: old.number + 1, ..old };
        if planted(Bug::ManifestOldGoesFirst) {
            self.remove_durably(old.number)?;
        }
        let write = || write_manifest(&*self.vfs, &self.dir, new, &inner.state, trees);
        let written = caught(write).unwrap_or_else(|message| {
            // The new copy may be there already, and the next open would take it for the newest.
            let reason = format!("writing a new copy of the manifest panicked: {message}");
            let error = Error::Poisoned { reason };
            Err(error)
        });
        let (file, bytes) = match written {
            Ok(written) => written,
            Err(error) => {
                // Both copies may be there now, and the next open takes the newer.
                let _ = self.remove_durably(new.number).inspect_err(|error| self.poison.set(error));
                return Err(error);
            }
        };
        inner.identity = new;
        inner.file = file;
        inner.torn = false;
        inner.end = bytes;
        inner.snapshot_bytes = bytes;
        inner.written_bytes += bytes;
        self.remove_durably(old.number).inspect_err(|error| self.poison.set(error))?;
        self.note_durable(new, bytes);
        Ok(true)
    }

    /// Notes that the log is durable up to `bytes`.
    fn note_durable(&self, identity: Identity, bytes: u64) {
        let end = DurableEnd { identity, bytes };
        self.durable_file.lock().note(&*self.vfs, &self.dir, end);
    }

    /// After the last commit: makes durable how far the log is durable, so that the next open knows whether
    /// anything is missing from its end.
    pub(crate) fn close(&self) {
        self.durable_file.lock().sync(&*self.vfs, &self.dir);
    }

    fn remove_durably(&self, number: u64) -> Result<()> {
        let path = manifest_path(&self.dir, number);
        if self.vfs.exists(&path)? {
            self.vfs.remove(&path)?;
        }
        self.vfs.sync_dir(&self.dir)
    }
}

/// The edits that one leader appends as one record.
pub(crate) struct Round {
    payload: Vec<u8>,
    /// The last edit among them, and the state after it.
    target: u64,
    after: State,
    identity: Identity,
    file: Arc<dyn File>,
    end: u64,
    torn: bool,
}

impl Rounds for Manifest {
    type State = Inner;
    type Round = Round;
    /// Bytes appended, or why the disk refuses them: the log is what it was.
    type Done = Result<u64>;

    const WHAT: &'static str = "appending to the manifest";

    fn begin(&self, inner: &mut Inner) -> Round {
        Round {
            payload: std::mem::take(&mut inner.waiting),
            target: inner.submitted,
            after: inner.state.clone(),
            identity: inner.identity,
            file: Arc::clone(&inner.file),
            end: inner.end,
            torn: inner.torn,
        }
    }

    fn work(&self, round: &Round) -> Result<Result<u64>> {
        let appended = append(round)?;
        if let Ok(bytes) = appended {
            self.note_durable(round.identity, round.end + bytes);
        }
        Ok(appended)
    }

    /// Whatever fails but a refusal, the log may hold all of it, or some, or nothing.
    fn end(&self, inner: &mut Inner, round: Round, done: Result<Result<u64>>) -> Result<()> {
        match done? {
            Ok(bytes) => {
                inner.torn = false;
                inner.end += bytes;
                inner.written_bytes += bytes;
                inner.durable = round.target;
                inner.durable_state = round.after;
            }
            Err(error) => {
                // Those that were submitted meanwhile build on what is refused.
                for ticket in inner.durable + 1..=inner.submitted {
                    inner.refused.insert(ticket, error.clone());
                }
                inner.waiting.clear();
                inner.durable = inner.submitted;
                inner.state = inner.durable_state.clone();
            }
        }
        Ok(())
    }
}

/// Appends a record, durably, and returns its length. What a torn append has left there is taken away before.
fn append(round: &Round) -> Result<Result<u64>> {
    let Round { payload, identity, file, end, torn, .. } = round;
    let (file, end) = (&**file, *end);
    let record = identity.encode_record(end, RecordKind::Edits, payload)?;
    if *torn {
        // Durably, so that what a torn append leaves blank is blank.
        let cut = file.truncate(end).and_then(|()| file.sync());
        cut.map_err(|error| error.not_refused("truncate"))?;
    }
    if let Err(error) = file.write_at(end, &record) {
        let refused = matches!(error, Error::Full { .. });
        // What has been written of it is no record, but must not be taken for one that is damaged.
        let cut = || match file.len() {
            Ok(len) if len == end => Ok(()),
            _ => file.truncate(end),
        };
        return match refused && cut().is_ok() {
            true => Ok(Err(error)),
            false => Err(error.not_refused("write")),
        };
    }
    if !planted(Bug::ManifestNotSynced) {
        file.sync().map_err(|error| error.not_refused("sync"))?;
    }
    Ok(Ok(record.len() as u64))
}

/// A manifest's path in a store.
pub(super) fn manifest_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("manifest-{number:08}"))
}

/// The number in a manifest's file name.
pub(super) fn parse_manifest_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("manifest-")?;
    let number = digits.parse().ok()?;
    (digits == format!("{number:08}")).then_some(number)
}

/// The bytes of a manifest that holds only a snapshot.
pub(super) fn new_manifest(
    identity: Identity,
    state: &State,
    trees: &[(KeyspaceId, Vec<u8>)],
) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    state.to_edit(trees).encode(&mut payload);
    let mut bytes = identity.encode_header();
    let record = identity.encode_record(HEADER_BYTES as u64, RecordKind::Snapshot, &payload)?;
    bytes.extend_from_slice(&record);
    Ok(bytes)
}

/// Writes a manifest that holds only a snapshot, durably, and returns it with its length.
pub(super) fn write_manifest(
    vfs: &dyn Vfs,
    dir: &Path,
    identity: Identity,
    state: &State,
    trees: &[(KeyspaceId, Vec<u8>)],
) -> Result<(Arc<dyn File>, u64)> {
    let bytes = new_manifest(identity, state, trees)?;
    let file = vfs.create(&manifest_path(dir, identity.number), Access::Buffered)?;
    file.write_at(0, &bytes)?;
    if !planted(Bug::ManifestNewNotSynced) {
        file.sync()?;
    }
    if !planted(Bug::ManifestNameNotSynced) {
        vfs.sync_dir(dir)?;
    }
    Ok((file, bytes.len() as u64))
}
