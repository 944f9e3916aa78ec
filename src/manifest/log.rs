//! The open manifest: commits, and rewrites once most of the log is dead.
//!
//! An edit is submitted, which fixes its place in the order and takes no time, and later decided: it is durable, or it is
//! refused because the log cannot grow. A rewrite is submitted in the same way. The rounds of the group commit carry out
//! what has been submitted, a rewrite before the edits that were submitted after it.
//!
//! Invariants:
//! 1. Edits are decided in the order in which they were submitted.
//! 2. A refusal refuses every edit that is not durable yet: they may build on the refused one. An edit that is submitted
//!    later names the edit that it builds on. It is not accepted if that one has been refused: a refusal is remembered
//!    until whoever submitted the edit has taken the decision.
//! 3. A rewritten log has the edits that were submitted before the rewrite, and no other. If one of them is refused, before
//!    the rewrite is submitted or after, the rewrite does nothing.

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
    /// Edits refused because the disk is full, of which the decision has not been taken yet.
    refused: BTreeMap<u64, Error>,
    rewrite: RewriteStage,
    /// The journal is durable up to here. The next edit records it.
    journal_durable: Option<Seqno>,
}

/// A submitted edit. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A submitted rewrite that has not begun.
struct Rewrite {
    trees: Vec<(KeyspaceId, Vec<u8>)>,
    /// The last edit that it includes, and the state after it.
    target: u64,
    after: State,
    /// The edits that it includes and that no leader had taken: they are appended if it fails.
    waiting: Vec<u8>,
}

/// How far a rewrite is.
#[derive(Default)]
enum RewriteStage {
    #[default]
    None,
    Submitted(Box<Rewrite>),
    UnderWay,
    /// Whether it has taken place, or why not.
    Ended(Result<bool>),
}

/// A rewrite that has been submitted; for [`Manifest::finish_rewrite`].
#[must_use]
pub(crate) struct SubmittedRewrite(());

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
                rewrite: RewriteStage::None,
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
        let ticket = self.accept(&mut self.inner.lock(), edit)?;
        let lazy = edit.keyspaces.iter().any(|keyspace| match keyspace.change {
            KeyspaceChange::Create(_) => planted(Bug::KeyspaceCreateLazy),
            KeyspaceChange::Drop => planted(Bug::KeyspaceDropLazy),
            KeyspaceChange::Options(_) => planted(Bug::OptionsLazy),
            _ => false,
        });
        if lazy {
            return Ok(());
        }
        self.wait_for(ticket)?;
        self.take_decision(ticket).unwrap_or(Ok(()))
    }

    /// Takes an edit that is to be made durable after all others so far. It waits for no disk. If the edit builds on
    /// another one, of which the caller has not taken the decision, `after` is that one. Returns `None` if that one has
    /// been refused.
    ///
    /// # Errors
    /// As [`Manifest::commit`], except that `Full` is told by [`Manifest::take_decision`].
    pub(crate) fn submit(&self, edit: &Edit, after: Option<Ticket>) -> Result<Option<Ticket>> {
        let mut inner = self.inner.lock();
        if after.is_some_and(|Ticket(after)| inner.refused.contains_key(&after)) {
            return Ok(None);
        }
        self.accept(&mut inner, edit).map(Some)
    }

    fn accept(&self, inner: &mut Inner, edit: &Edit) -> Result<Ticket> {
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
        Ok(Ticket(inner.submitted))
    }

    /// Waits until a submitted edit is decided.
    ///
    /// # Errors
    /// The store has been poisoned before that: it is unknown whether the next open will find the edit.
    pub(crate) fn wait_for(&self, Ticket(ticket): Ticket) -> Result<()> {
        let mut inner = self.inner.lock();
        self.inner.wait(&mut inner, self, &self.poison, |inner| inner.durable >= ticket)
    }

    /// The number of edits that are decided.
    #[cfg(test)]
    pub(crate) fn edits_decided(&self) -> u64 {
        self.inner.lock().durable
    }

    /// Whether a submitted edit is durable or, with the reason, refused; `None` if it is not decided yet. A refusal is told
    /// once.
    pub(crate) fn take_decision(&self, Ticket(ticket): Ticket) -> Option<Result<()>> {
        let mut inner = self.inner.lock();
        let is_decided = inner.durable >= ticket;
        is_decided.then(|| inner.refused.remove(&ticket).map_or(Ok(()), Err))
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

    /// Submits a rewrite: the log is replaced by a new one with the state and the `trees`, one snapshot per keyspace, which
    /// include every edit up to the `edits`th submitted. It waits for no disk. Edits that are submitted afterwards are
    /// appended to the new log.
    ///
    /// Returns `None` without any effect if more edits were submitted, if one has been refused and its tree does not know
    /// yet, or if another rewrite is under way: take the trees again.
    ///
    /// # Errors
    /// `Poisoned`.
    pub(crate) fn submit_rewrite(
        &self,
        edits: u64,
        trees: Vec<(KeyspaceId, Vec<u8>)>,
    ) -> Result<Option<SubmittedRewrite>> {
        let mut inner = self.inner.lock();
        self.poison.check()?;
        // A refusal that nobody has taken: the trees may still have the change, which is taken back from them.
        let is_settled = inner.refused.is_empty();
        if inner.submitted != edits || !is_settled || !matches!(inner.rewrite, RewriteStage::None) {
            return Ok(None);
        }
        let waiting = std::mem::take(&mut inner.waiting);
        let rewrite = Rewrite { trees, target: edits, after: inner.state.clone(), waiting };
        inner.rewrite = RewriteStage::Submitted(Box::new(rewrite));
        Ok(Some(SubmittedRewrite(())))
    }

    /// Waits for a submitted rewrite. Returns false if it had no effect because an edit that it includes was refused.
    ///
    /// # Errors
    /// If the new log cannot be written, the old one stays in use. If it is uncertain which of them
    /// the next open finds, the store is poisoned.
    pub(crate) fn finish_rewrite(&self, _submitted: SubmittedRewrite) -> Result<bool> {
        let mut inner = self.inner.lock();
        let has_ended = |inner: &Inner| matches!(inner.rewrite, RewriteStage::Ended(_));
        self.inner.wait(&mut inner, self, &self.poison, has_ended)?;
        match std::mem::take(&mut inner.rewrite) {
            RewriteStage::Ended(result) => result,
            _ => Ok(false),
        }
    }

    /// Submits a rewrite and waits for it; false if it had no effect.
    #[cfg(test)]
    pub(crate) fn rewrite(&self, edits: u64, trees: &[(KeyspaceId, Vec<u8>)]) -> Result<bool> {
        match self.submit_rewrite(edits, trees.to_vec())? {
            Some(submitted) => self.finish_rewrite(submitted),
            None => Ok(false),
        }
    }

    /// Takes what has been submitted, as a leader does.
    #[cfg(test)]
    pub(super) fn begin_round(&self) -> Round {
        self.begin(&mut self.inner.lock())
    }

    /// Carries it out.
    #[cfg(test)]
    pub(super) fn end_round(&self, round: Round) {
        let done = self.work(&round);
        self.end(&mut self.inner.lock(), round, done).unwrap();
    }

    /// Writes a new log and removes the old one, durably. Returns the new one with its length, or why it could not be
    /// written: then the old one stays in use.
    fn replace_log(&self, round: &Round, trees: &[(KeyspaceId, Vec<u8>)]) -> Result<Rewritten> {
        let old = round.identity;
        let new = old.next();
        if planted(Bug::ManifestOldGoesFirst)
            && let Err(error) = self.remove_durably(old.number)
        {
            return Ok(Err(error));
        }
        let write = || write_manifest(&*self.vfs, &self.dir, new, &round.after, trees);
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
                return Ok(Err(error));
            }
        };
        // The new log holds the edits of all who wait: none of them is refused.
        self.remove_durably(old.number).map_err(|error| match error.is_refusal() {
            true => Error::Poisoned { reason: format!("the manifest's old copy stays: {error}") },
            false => error,
        })?;
        self.note_durable(new, bytes);
        Ok(Ok((file, bytes)))
    }

    /// Records that the log is durable up to `bytes`.
    fn note_durable(&self, identity: Identity, bytes: u64) {
        let end = DurableEnd { identity, bytes };
        self.durable_file.lock().note(&*self.vfs, &self.dir, end);
    }

    /// Makes the durable position durable, so that the next open detects records missing from the end: after the last
    /// commit, and after those that nothing else would prove.
    pub(crate) fn confirm_end(&self) {
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

/// What a leader does at once.
pub(crate) struct Round {
    work: Work,
    /// The last edit that is durable afterwards, and the state after it.
    target: u64,
    after: State,
    identity: Identity,
}

enum Work {
    /// The edits that are appended as one record, to a file of this length.
    Append { payload: Vec<u8>, file: Arc<dyn File>, end: u64, torn: bool },
    /// A rewrite, with the edits that are to be appended if it fails.
    Rewrite { trees: Vec<(KeyspaceId, Vec<u8>)>, waiting: Vec<u8> },
}

/// The new log and its length, or why there is none.
type Rewritten = Result<(Arc<dyn File>, u64)>;

/// What a round has done, or why it has changed nothing.
pub(crate) enum Done {
    /// The number of bytes appended, or the refusal of the disk: then the log is unchanged.
    Appended(Result<u64>),
    Rewritten(Rewritten),
}

impl Rounds for Manifest {
    type State = Inner;
    type Round = Round;
    type Done = Done;

    const WHAT: &'static str = "appending to the manifest";

    fn begin(&self, inner: &mut Inner) -> Round {
        let identity = inner.identity;
        match std::mem::replace(&mut inner.rewrite, RewriteStage::UnderWay) {
            RewriteStage::Submitted(rewrite) => {
                let Rewrite { trees, target, after, waiting } = *rewrite;
                Round { work: Work::Rewrite { trees, waiting }, target, after, identity }
            }
            stage => {
                inner.rewrite = stage;
                let payload = std::mem::take(&mut inner.waiting);
                let (end, torn) = (inner.end, inner.torn);
                let work = Work::Append { payload, file: Arc::clone(&inner.file), end, torn };
                Round { work, target: inner.submitted, after: inner.state.clone(), identity }
            }
        }
    }

    fn work(&self, round: &Round) -> Result<Done> {
        match &round.work {
            Work::Append { payload, file, end, torn } => {
                let appended = append(payload, round.identity, &**file, *end, *torn)?;
                if let Ok(bytes) = appended {
                    self.note_durable(round.identity, end + bytes);
                }
                Ok(Done::Appended(appended))
            }
            Work::Rewrite { trees, .. } => self.replace_log(round, trees).map(Done::Rewritten),
        }
    }

    /// After any failure except a refusal, the log may have all of the record, a part, or none.
    fn end(&self, inner: &mut Inner, round: Round, done: Result<Done>) -> Result<()> {
        match done? {
            Done::Appended(Ok(bytes)) => {
                inner.torn = false;
                inner.end += bytes;
                inner.written_bytes += bytes;
                inner.durable = round.target;
                inner.durable_state = round.after;
            }
            Done::Appended(Err(error)) => {
                // Edits submitted in the meantime build on the refused ones, and so does what a rewrite includes.
                for ticket in inner.durable + 1..=inner.submitted {
                    inner.refused.insert(ticket, error.clone());
                }
                inner.waiting.clear();
                inner.durable = inner.submitted;
                inner.state = inner.durable_state.clone();
                if let RewriteStage::Submitted(_) = inner.rewrite {
                    inner.rewrite = RewriteStage::Ended(Ok(false));
                }
            }
            Done::Rewritten(Ok((file, bytes))) => {
                inner.identity = round.identity.next();
                inner.file = file;
                inner.torn = false;
                inner.end = bytes;
                inner.snapshot_bytes = bytes;
                inner.written_bytes += bytes;
                inner.durable = round.target;
                inner.durable_state = round.after;
                inner.rewrite = RewriteStage::Ended(Ok(true));
            }
            Done::Rewritten(Err(error)) => {
                if let Work::Rewrite { mut waiting, .. } = round.work {
                    waiting.append(&mut inner.waiting);
                    inner.waiting = waiting;
                }
                inner.rewrite = RewriteStage::Ended(Err(error));
            }
        }
        Ok(())
    }
}

/// Appends a record durably at the end of the log and returns its length. First removes the remains of a torn append.
fn append(
    payload: &[u8],
    identity: Identity,
    file: &dyn File,
    end: u64,
    torn: bool,
) -> Result<Result<u64>> {
    let record = identity.encode_record(end, RecordKind::Edits, payload)?;
    if torn {
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
