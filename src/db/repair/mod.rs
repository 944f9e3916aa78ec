//! Repair: creates a new store from the readable data of a damaged one.
//!
//! `source` finds the keyspaces, tables and journal. `newest` merges them key by key. This module writes
//! the result to a new store. The source is not changed.
//!
//! With an intact manifest, the trees tell which tables cover which ranges, and the result is exact outside
//! the damaged ranges. Without a manifest, every table found is used, and the newest version of each key
//! wins. Deleted keys may then reappear: their tombstone may have been compacted away while an older table
//! is still on disk.
//!
//! Invariants:
//! 1. The newest readable version of each key decides. A tombstone is a version.
//! 2. A value is written unchanged or not at all.
//! 3. The report names every range in which a newer version may be lost. Outside these ranges the result is
//!    exact if the manifest and the journal are intact.
//! 4. Merge operands that cannot be folded (the operator is not registered, or fails) are copied unchanged.
//! 5. The result gets its final name last, durably. A failed repair leaves nothing behind, or its error names
//!    what it left.

mod newest;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::newest::{Found, Newest};
use self::source::{Source, SourceKeyspace};
use super::damage::DamagedRange;
use super::keyspace::Keyspace;
use crate::base::error::{Error, Result};
use crate::manifest::LOCK_FILE_NAME;
use crate::merge::MergeOperator;
use crate::store::checkpoint::{discard, refuse_inside};
use crate::store::options::Builder;
use crate::store::persistent_memory::PersistentMemory;
use crate::vfs::{Vfs, sync_parent};

/// Number of pairs between two calls of a progress callback.
const PROGRESS_PAIRS: u64 = 8192;

/// Creates a new store in the directory `target` from the readable data of the store in `source`. The
/// source is not changed. [`Repair`] does the same with options.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (damaged, repaired) = (dir.path().join("a"), dir.path().join("b"));
/// use spinney::{Database, KeyspaceOptions};
/// let db = Database::builder(&damaged).open()?;
/// db.keyspace("items", KeyspaceOptions::stb())?.put("a", "1")?;
/// db.close()?;
/// std::fs::remove_file(damaged.join("SPINNEY")).unwrap();
/// let report = spinney::repair(&damaged, &repaired)?;
/// assert_eq!(report.keyspaces[0].pairs, 1);
/// let db = Database::open_read_only(&repaired)?;
/// assert_eq!(db.existing_keyspace("items")?.get("a")?.as_deref(), Some(&b"1"[..]));
/// # Ok(()) }
/// ```
///
/// # Errors
/// The errors of [`Repair::into_new`].
pub fn repair(source: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<RepairReport> {
    Repair::new(source).into_new(target)
}

/// The repair of a damaged store, with options.
pub struct Repair {
    source: PathBuf,
    builder: Builder,
    without_doubtful: bool,
    progress: Option<Progress>,
}

type Progress = Box<dyn FnMut(&RepairProgress<'_>) + Send>;

/// The progress of a repair.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RepairProgress<'a> {
    /// Name of the keyspace that is being written.
    pub keyspace: &'a str,
    /// Number of its pairs written so far.
    pub pairs: u64,
}

/// The source of the list of tables that a repair used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairBasis {
    /// The manifest, which is intact.
    Manifest,
    /// The data files in the directory, because the manifest or superblock is lost or damaged.
    Files,
}

/// A part of a store that a repair could not read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairDamage {
    /// The keyspace's name.
    pub keyspace: String,
    /// The keys whose newest version may be lost. The result has older versions of them, or none.
    pub range: DamagedRange,
    /// The damage, with its file and offset.
    pub error: Error,
}

/// A keyspace in the result of a repair.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairedKeyspace {
    /// The keyspace's name, or `recovered-N` if the name is lost.
    pub name: String,
    /// Number of pairs.
    pub pairs: u64,
    /// Number of pairs in damaged ranges that were left out ([`Repair::without_doubtful`]).
    pub pairs_left_out: u64,
    /// Number of keys whose merge operands could not be folded because the operator is not registered
    /// ([`Repair::merge_operator`]) or fails. Not included in `pairs`. Their operands are copied unchanged:
    /// a read fails with [`Error::Merge`] until the operator can fold them.
    pub keys_not_folded: u64,
    /// The error of the first key that was not folded.
    pub not_folded: Option<Error>,
    /// Why the keyspace's options are lost, if they are. The keyspace then has default options and its old
    /// merge operator.
    pub options_lost: Option<Error>,
}

/// The result of a repair: what was recovered, and what could not be read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairReport {
    /// The source of the list of tables.
    pub basis: RepairBasis,
    /// The keyspaces of the result.
    pub keyspaces: Vec<RepairedKeyspace>,
    /// Parts of tables and large values that could not be read.
    pub damage: Vec<RepairDamage>,
    /// Damage in the superblock, the manifest or the journal, and why persistent memory was not read.
    pub problems: Vec<Error>,
    /// Number of journal records in the result.
    pub journal_records: u64,
    /// True if journal records are lost: any key may then have an older value.
    pub journal_incomplete: bool,
    /// Files and keyspaces that were left out, with the reason.
    pub left_out: Vec<String>,
    /// True if `left_out` has a whole keyspace.
    keyspaces_left_out: bool,
}

impl RepairReport {
    /// Returns true if the result has exactly the content of the damaged store.
    pub fn is_exact(&self) -> bool {
        self.basis == RepairBasis::Manifest
            && self.damage.is_empty()
            && !self.journal_incomplete
            && !self.keyspaces_left_out
            && self.keyspaces.iter().all(|keyspace| keyspace.options_lost.is_none())
    }

    /// Returns true if deleted keys may have reappeared: a tombstone may be lost, or may have been compacted
    /// away while an older table is still on disk.
    pub fn may_resurrect(&self) -> bool {
        !self.is_exact()
    }
}

impl fmt::Debug for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repair").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Repair {
    /// Returns a repair of the store in the directory `source`.
    pub fn new(source: impl AsRef<Path>) -> Repair {
        let source = source.as_ref().to_path_buf();
        let builder = Builder::posix(&source);
        Repair { source, builder, without_doubtful: false, progress: None }
    }

    /// Sets the memory budget of the new store during the repair, in bytes. The content of the source's
    /// journal is held in memory in addition.
    pub fn memory_budget(mut self, bytes: u64) -> Repair {
        self.builder = self.builder.memory_budget(bytes);
        self
    }

    /// Sets the file system of both stores.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Repair {
        self.builder = self.builder.vfs(vfs);
        self
    }

    /// Says where the source's persistent memory is, if that is not where the source says, or if the source does not say it
    /// any more. The new store has none.
    ///
    /// If the directory that is named cannot be read, is in use, or is another store's, that is an error. One that only
    /// the source names is left out then, and the report says so. The same holds for one that is of another moment than
    /// the source, such as that of the store that the source is a copy of: it is read only if it is named.
    pub fn persistent_memory(mut self, memory: PersistentMemory) -> Repair {
        self.builder = self.builder.persistent_memory(memory);
        self
    }

    /// Registers a merge operator under its name. `"u64_add"` and `"append"` are always registered. Without
    /// the operator of a keyspace, operands are copied unchanged ([`RepairedKeyspace::keys_not_folded`]).
    pub fn merge_operator(mut self, operator: Arc<dyn MergeOperator>) -> Repair {
        self.builder = self.builder.merge_operator(operator);
        self
    }

    /// Runs the new store's background work as with [`Builder::deterministic`]. For tests.
    pub fn deterministic(mut self, seed: u64) -> Repair {
        self.builder = self.builder.deterministic(seed);
        self
    }

    /// Sets whether pairs in damaged ranges are left out. By default the newest readable version is kept,
    /// which may be older than the lost one.
    pub fn without_doubtful(mut self, without: bool) -> Repair {
        self.without_doubtful = without;
        self
    }

    /// Calls `progress` every few thousand pairs.
    pub fn progress(
        mut self,
        progress: impl FnMut(&RepairProgress<'_>) + Send + 'static,
    ) -> Repair {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Writes the result to a new store in the directory `target`. The new store is durable when this
    /// returns. The source is not changed.
    ///
    /// The store is built in a directory named `target` plus `.repairing`, which is renamed last.
    ///
    /// # Errors
    /// - `NotAStore` if the source has no files of a store.
    /// - `Conflict` if `target` exists and is not empty, or the `.repairing` directory exists.
    /// - `InvalidArgument` if `target` is inside the source, or inside its persistent memory.
    /// - `Locked` if the source, or the persistent memory that is named, is open for writing.
    /// - `UnsupportedVersion` if a newer version of Spinney wrote the source.
    /// - `Io` or `Full` if the file system fails.
    ///
    /// A failed repair removes what it has written, unless the error says otherwise.
    pub fn into_new(mut self, target: impl AsRef<Path>) -> Result<RepairReport> {
        let vfs = Arc::clone(&self.builder.vfs);
        let target = vfs.canonical(target.as_ref())?;
        let conflict = |what: &str| {
            Err(Error::Conflict {
                what: format!("{} {what}; name a new directory", target.display()),
            })
        };
        let exists = vfs.exists(&target)?;
        if exists {
            match vfs.read_names(&target) {
                Ok(names) if names.is_empty() => {}
                Ok(_) => return conflict("is not empty"),
                Err(error) if is_io(&error, ErrorKind::NotADirectory) => {
                    return conflict("is a file");
                }
                Err(error) => return Err(error),
            }
        }
        let memory = self.builder.persistent_memory.as_ref();
        refuse_inside(&*vfs, &self.source, memory, &target)?;
        let building = beside(&target, BUILDING);
        refuse_taken(&*vfs, &building)?;
        let source = Source::open(&self.source, &self.builder, false)?;
        if exists && let Err(error) = vfs.remove_dir(&target) {
            // A mount point, for example. Fails before the work rather than after it.
            return conflict(&format!("cannot be replaced ({error})"));
        }
        let result = self.build(&source, &building).and_then(|report| {
            match vfs.rename(&building, &target).and_then(|()| sync_parent(&*vfs, &target)) {
                Ok(()) => Ok(report),
                Err(error) => Err(given_up(&*vfs, &building, error)),
            }
        });
        if result.is_err() && exists && !vfs.exists(&target).unwrap_or(true) {
            // Restores the empty directory that the repair has removed.
            let _ = vfs.create_dir_all(&target);
        }
        result
    }

    /// Replaces the source with the result, and keeps the source under its name plus `.damaged`, which must
    /// not exist. The result is durable when this returns.
    ///
    /// The new store is built beside the source, under its name plus `.repairing`. Then the two directories
    /// are exchanged atomically, so that there is a store under the original name at every moment. A crash
    /// directly after the exchange leaves the source named `.repairing`. If the file system cannot exchange
    /// directories, they are renamed one after the other. A crash in between leaves nothing under the
    /// original name, the source as `.damaged`, and the complete new store as `.repairing`.
    ///
    /// # Errors
    /// The errors of [`Repair::into_new`].
    pub fn in_place(mut self) -> Result<RepairReport> {
        let vfs = Arc::clone(&self.builder.vfs);
        let place = vfs.canonical(&self.source)?;
        let (aside, building) = (beside(&place, ".damaged"), beside(&place, BUILDING));
        refuse_taken(&*vfs, &aside)?;
        refuse_taken(&*vfs, &building)?;
        // Excludes readers too: they open files by name and would get those of the new store.
        let source = Source::open(&self.source, &self.builder, true)?;
        let report = self.build(&source, &building)?;
        match vfs.exchange(&building, &place) {
            Ok(()) => {
                let renamed =
                    sync_parent(&*vfs, &place).and_then(|()| vfs.rename(&building, &aside));
                renamed.map_err(|error| Error::Conflict {
                    what: format!(
                        "the repaired store is in its place, but the damaged one is still named {}: {error}",
                        building.display()
                    ),
                })?;
            }
            Err(error) if is_io(&error, ErrorKind::Unsupported) => {
                let renamed = vfs.rename(&place, &aside).and_then(|()| {
                    vfs.rename(&building, &place).inspect_err(|_| {
                        // Best effort: restores the original name.
                        let _ = vfs.rename(&aside, &place);
                    })
                });
                renamed.map_err(|error| given_up(&*vfs, &building, error))?;
            }
            Err(error) => return Err(given_up(&*vfs, &building, error)),
        }
        sync_parent(&*vfs, &place)?;
        Ok(report)
    }

    /// Builds the result in the directory `target`, which must not exist. A failure removes it.
    fn build(&mut self, source: &Source, target: &Path) -> Result<RepairReport> {
        let result = self.write(source, target);
        result.map_err(|error| given_up(&*self.builder.vfs, target, error))
    }

    fn write(&mut self, source: &Source, target: &Path) -> Result<RepairReport> {
        let mut builder = self.builder.clone();
        builder.path = target.to_path_buf();
        builder.persistent_memory = None;
        for name in source.keyspaces.iter().filter_map(|it| it.options.merge_operator.clone()) {
            let operators = &mut builder.merge_operators;
            operators.entry(name.clone()).or_insert_with(|| Arc::new(Unregistered { name }));
        }
        let db = builder.open()?;
        let mut report = source.report();
        let mut names = BTreeMap::new();
        for keyspace in &source.keyspaces {
            let name = unused_name(&keyspace.name, &names);
            names.insert(name.clone(), ());
            let into = db.keyspace(&name, keyspace.options.clone())?;
            let written = self.write_keyspace(source, keyspace, &into, &mut report)?;
            report.keyspaces.push(written);
        }
        db.sync()?;
        db.close()?;
        sync_parent(&*self.builder.vfs, target)?;
        Ok(report)
    }

    fn write_keyspace(
        &mut self,
        source: &Source,
        keyspace: &SourceKeyspace,
        into: &Keyspace,
        report: &mut RepairReport,
    ) -> Result<RepairedKeyspace> {
        let name = into.name().to_string();
        let mut written = RepairedKeyspace {
            name: name.clone(),
            pairs: 0,
            pairs_left_out: 0,
            keys_not_folded: 0,
            not_folded: None,
            options_lost: keyspace.options_lost.clone(),
        };
        let mut newest = Newest::new(source, keyspace);
        while let Some((key, found)) = newest.next()? {
            if self.without_doubtful && newest.is_doubtful(&key) {
                written.pairs_left_out += 1;
                continue;
            }
            match found {
                Found::Value(value) => into.put(&key, &value)?,
                Found::Operands { base, operands, error } => {
                    if let Some(base) = base {
                        into.put(&key, &base)?;
                    }
                    for operand in operands {
                        into.merge(&key, &operand)?;
                    }
                    written.keys_not_folded += 1;
                    written.not_folded.get_or_insert(error);
                    continue;
                }
            }
            written.pairs += 1;
            if written.pairs.is_multiple_of(PROGRESS_PAIRS)
                && let Some(progress) = &mut self.progress
            {
                progress(&RepairProgress { keyspace: &name, pairs: written.pairs });
            }
        }
        let damage = newest.into_damage().into_iter();
        report.damage.extend(damage.map(|(range, error)| RepairDamage {
            keyspace: name.clone(),
            range,
            error,
        }));
        into.flush()?;
        Ok(written)
    }
}

/// What the name of a directory ends with while a store is made there.
const BUILDING: &str = ".repairing";

/// The path with `ending` behind its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_path_buf().into_os_string();
    name.push(ending);
    PathBuf::from(name)
}

fn refuse_taken(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    match vfs.exists(path)? {
        false => Ok(()),
        true => Err(Error::Conflict {
            what: format!(
                "{} exists, perhaps from an earlier repair; move it away",
                path.display()
            ),
        }),
    }
}

fn is_io(error: &Error, kind: ErrorKind) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == kind)
}

/// Removes what a repair that failed has made in `dir`, and returns why it failed.
fn given_up(vfs: &dyn Vfs, dir: &Path, error: Error) -> Error {
    discard(vfs, dir, false);
    match vfs.exists(dir) {
        Ok(false) => error,
        _ => Error::Conflict {
            what: format!(
                "{error}; what had been made of the new store could not be removed: remove {}",
                dir.display()
            ),
        },
    }
}

/// Stands for an operator that is not registered: operands are written, and not folded.
struct Unregistered {
    name: String,
}

impl MergeOperator for Unregistered {
    fn name(&self) -> &str {
        &self.name
    }

    fn full_merge(
        &self,
        _: &[u8],
        _: Option<&[u8]>,
        _: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, String> {
        Err("it is not registered".to_string())
    }
}

/// The name, or one like it if it is used.
fn unused_name(name: &str, used: &BTreeMap<String, ()>) -> String {
    let mut found = name.to_string();
    let mut number = 2;
    while used.contains_key(&found) {
        found = format!("{name}-{number}");
        number += 1;
    }
    found
}
