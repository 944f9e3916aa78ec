//! The open manifest: commits, and rewrites once most of the log is dead.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::durable::{DurableEnd, DurableFile};
use super::edit::{Edit, KeyspaceChange, KeyspaceEdit};
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
    /// Only the leader accesses the end of the file.
    inner: GroupCommit<Inner>,
    /// The file with the durable position.
    durable_file: Mutex<DurableFile>,
    /// The store's latch. The manifest is the first part to be created.
    poison: Arc<Poison>,
}

pub(crate) struct Inner {
    identity: Identity,
    file: Arc<dyn File>,
    /// The offset of the next record.
    end: u64,
    /// True if remains of a torn append may be at the end. An open that fails leaves them.
    torn: bool,
    /// The size of the first record.
    snapshot_bytes: u64,
    /// Bytes written since the open.
    written_bytes: u64,
    /// The state with all submitted edits applied. If these fail, everything after them fails too.
    state: State,
    /// Encoded edits that no leader has taken yet.
    waiting: Vec<u8>,
    /// The number of edits submitted since the open, and the number that are durable or refused.
    submitted: u64,
    durable: u64,
    /// The state on the disk.
    durable_state: State,
    /// Edits refused because the disk is full, whose callers have not been notified yet.
    refused: BTreeMap<u64, Error>,
    /// The journal is durable up to here. The next edit records it.
    journal_durable: Option<Seqno>,
}

impl Manifest {
    /// The open manifest of a file that was read or written up to `end`.
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

    /// Makes an edit durable. Concurrent edits share one record and one sync. They take effect in
    /// the order of the calls.
    ///
    /// # Errors
    /// `Conflict` if the edit contradicts the state, `Full` if the log cannot grow: the edit had no
    /// effect. Any other error has poisoned the store: it is unknown whether the next open will
    /// find the edit, and until then every commit returns `Poisoned`.
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
        if planted(Bug::OptionsLostInRewrite) {
            let is_kept =
                |change: &KeyspaceEdit| !matches!(change.change, KeyspaceChange::Options(_));
            edit.to_mut().keyspaces.retain(is_kept);
        }
        inner.state.apply(&edit);
        put_bytes(&mut inner.waiting, &encoded);
        inner.submitted += 1;
        let ticket = inner.submitted;
        let lazy = edit.keyspaces.iter().any(|keyspace| match keyspace.change {
            KeyspaceChange::Create(_) => planted(Bug::KeyspaceCreateLazy),
            KeyspaceChange::Drop => planted(Bug::KeyspaceDropLazy),
            KeyspaceChange::Options(_) => planted(Bug::OptionsLazy),
            _ => false,
        });
        if lazy {
            return Ok(());
        }
        self.inner.wait(&mut inner, self, &self.poison, |inner| inner.durable >= ticket)?;
        inner.refused.remove(&ticket).map_or(Ok(()), Err)
    }

    /// Records that the journal is durable up to `seqno`. If a later open finds less, the store is
    /// damaged; a power loss does not explain it.
    pub(crate) fn require_journal_upto(&self, seqno: Seqno) {
        let mut inner = self.inner.lock();
        inner.journal_durable = inner.journal_durable.max(Some(seqno));
    }

    /// The store's latch, set when the content of the manifest on the disk is unknown.
    pub(crate) fn poison(&self) -> &Arc<Poison> {
        &self.poison
    }

    /// The log's path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        manifest_path(&self.dir, self.inner.lock().identity.number)
    }

    /// The number of bytes written since the open.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.inner.lock().written_bytes
    }

    /// The length of the log in bytes.
    pub(crate) fn bytes_total(&self) -> u64 {
        self.inner.lock().end
    }

    /// The part known to be live: the snapshot at its start. Rewriting when the log exceeds a
    /// multiple of this costs a bounded share of the bytes appended.
    pub(crate) fn bytes_live(&self) -> u64 {
        self.inner.lock().snapshot_bytes
    }

    /// The number of edits submitted since the open; see `rewrite`.
    pub(crate) fn edits_submitted(&self) -> u64 {
        self.inner.lock().submitted
    }

    /// Replaces the log by a new one with the state and the `trees`, one snapshot per keyspace,
    /// which include every edit up to the `edits`th submitted. Commits wait in the meantime.
    ///
    /// Returns false without any effect if more edits were submitted: take the trees again.
    ///
    /// # Errors
    /// If the new log cannot be written, the old one stays in use. If it is uncertain which of them
    /// the next open finds, the store is poisoned.
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
            // The new log may exist already, and the next open would use it as the newest.
            let reason = format!("writing a new copy of the manifest panicked: {message}");
            let error = Error::Poisoned { reason };
            Err(error)
        });
        let (file, bytes) = match written {
            Ok(written) => written,
            Err(error) => {
                // Both logs may exist now, and the next open uses the newer.
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

    /// Records that the log is durable up to `bytes`.
    fn note_durable(&self, identity: Identity, bytes: u64) {
        let end = DurableEnd { identity, bytes };
        self.durable_file.lock().note(&*self.vfs, &self.dir, end);
    }

    /// After the last commit: makes the durable position durable, so that the next open detects
    /// records missing from the end.
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

/// The edits that a leader appends as one record.
pub(crate) struct Round {
    payload: Vec<u8>,
    /// The last of these edits, and the state after it.
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
    /// The number of bytes appended, or the refusal of the disk: then the log is unchanged.
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

    /// After any failure except a refusal, the log may have all of the record, a part, or none.
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
                // Edits submitted in the meantime build on the refused ones.
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

/// Appends a record durably and returns its length. First removes the remains of a torn append.
fn append(round: &Round) -> Result<Result<u64>> {
    let Round { payload, identity, file, end, torn, .. } = round;
    let (file, end) = (&**file, *end);
    let record = identity.encode_record(end, RecordKind::Edits, payload)?;
    if *torn {
        // Made durable, so that blank bytes after a torn append really are blank.
        let cut = file.truncate(end).and_then(|()| file.sync());
        cut.map_err(|error| error.not_refused("truncate"))?;
    }
    if let Err(error) = file.write_at(end, &record) {
        let refused = matches!(error, Error::Full { .. });
        // The part written is not a record, but must not look like a damaged one.
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

/// The path of a manifest in a store.
pub(super) fn manifest_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("manifest-{number:08}"))
}

/// The number in a manifest's file name.
pub(super) fn parse_manifest_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("manifest-")?;
    let number = digits.parse().ok()?;
    (digits == format!("{number:08}")).then_some(number)
}

/// The bytes of a manifest with only a snapshot.
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

/// Writes a manifest with only a snapshot, durably, and returns it with its length.
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
