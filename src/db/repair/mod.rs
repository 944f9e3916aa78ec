//! Repair: a new store out of what can be read of a damaged one.
//!
//! `source` finds out what there is (keyspaces, tables, journal), `newest` merges it key by key, and here the
//! result is written to a store of its own. The source is not changed.
//!
//! With a whole manifest the trees' own ranges say which tables count where, so that outside the ranges of
//! damage the result is exactly what the store held. Without one, every table that is found counts, and of
//! each key the newest version: what had been deleted may come back where the tombstone has been dropped
//! already and an older table still lies there.
//!
//! Invariants:
//! 1. Of each key, the newest version that can be read decides; a tombstone is a version.
//! 2. A value is written as it was or not at all.
//! 3. Where a newer version may have been lost, the report says so: outside the reported ranges, and with a
//!    whole manifest and journal, the result is exact.
//! 4. Merge operands that cannot be folded (the operator is not registered, or refuses) are written as they were.
//! 5. The result gets its name last, durably. A repair that fails leaves nothing of it, or says what.

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
use crate::vfs::{Vfs, sync_parent};

/// Pairs between two calls of a progress callback.
const PROGRESS_PAIRS: u64 = 8192;

/// Makes a new store in the directory `target` out of what can be read of the one in `source`, which is not
/// changed. [`Repair`] has options.
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
/// As [`Repair::into_new`].
pub fn repair(source: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<RepairReport> {
    Repair::new(source).into_new(target)
}

/// How a damaged store is repaired.
pub struct Repair {
    source: PathBuf,
    builder: Builder,
    without_doubtful: bool,
    progress: Option<Progress>,
}

type Progress = Box<dyn FnMut(&RepairProgress<'_>) + Send>;

/// How far a repair is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RepairProgress<'a> {
    /// The keyspace that is being written.
    pub keyspace: &'a str,
    /// Its pairs so far.
    pub pairs: u64,
}

/// What the result of a repair rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairBasis {
    /// The manifest, which is whole.
    Manifest,
    /// The data files that were found, since manifest or superblock are lost or damaged.
    Files,
}

/// A part of a store that a repair could not read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairDamage {
    /// The keyspace's name.
    pub keyspace: String,
    /// Its keys of which something may be lost. The result holds older versions of them or none.
    pub range: DamagedRange,
    /// What is wrong, in which file and where.
    pub error: Error,
}

/// A keyspace in the result of a repair.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairedKeyspace {
    /// Its name: `recovered-N` if that is lost.
    pub name: String,
    /// How many pairs it holds.
    pub pairs: u64,
    /// Pairs in damaged ranges that were left out ([`Repair::without_doubtful`]).
    pub pairs_left_out: u64,
    /// Keys, beside the pairs, whose merge operands cannot be folded, since the operator is not registered
    /// ([`Repair::merge_operator`]) or refuses. They have the operands that they had: reading one fails with
    /// [`Error::Merge`] until the operator folds them.
    pub keys_not_folded: u64,
    /// Why the first of them is not folded.
    pub not_folded: Option<Error>,
    /// Why the options are lost that the keyspace had, if they are. It has those of a new one then, with the
    /// merge operator that it had.
    pub options_lost: Option<Error>,
}

/// What a repair has read, and what it could not.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairReport {
    /// What the result rests on.
    pub basis: RepairBasis,
    /// The keyspaces of the result.
    pub keyspaces: Vec<RepairedKeyspace>,
    /// Parts of tables and large values that could not be read.
    pub damage: Vec<RepairDamage>,
    /// Other damage: superblock, manifest, journal.
    pub problems: Vec<Error>,
    /// Journal records that the result holds.
    pub journal_records: u64,
    /// Whether commits are missing that the journal had: any key may then be older than it was.
    pub journal_incomplete: bool,
    /// Files and keyspaces that were left out, and why.
    pub left_out: Vec<String>,
    /// Whether a whole keyspace is among it.
    keyspaces_left_out: bool,
}

impl RepairReport {
    /// Whether the result holds exactly what the store held.
    pub fn is_exact(&self) -> bool {
        self.basis == RepairBasis::Manifest
            && self.damage.is_empty()
            && !self.journal_incomplete
            && !self.keyspaces_left_out
            && self.keyspaces.iter().all(|keyspace| keyspace.options_lost.is_none())
    }

    /// Whether keys may be back that had been deleted: their tombstones may be lost, or dropped before while
    /// an older table still lay there.
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
    /// A repair of the store in the directory `source`.
    pub fn new(source: impl AsRef<Path>) -> Repair {
        let source = source.as_ref().to_path_buf();
        let builder = Builder::posix(&source);
        Repair { source, builder, without_doubtful: false, progress: None }
    }

    /// The memory that the new store may use meanwhile; what the journal holds comes on top of it.
    pub fn memory_budget(mut self, bytes: u64) -> Repair {
        self.builder = self.builder.memory_budget(bytes);
        self
    }

    /// Both stores are on this file system.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Repair {
        self.builder = self.builder.vfs(vfs);
        self
    }

    /// Registers a merge operator under its name. `"u64_add"` and `"append"` are always there. Where one is
    /// missing, operands are copied as they are ([`RepairedKeyspace::keys_not_folded`]).
    pub fn merge_operator(mut self, operator: Arc<dyn MergeOperator>) -> Repair {
        self.builder = self.builder.merge_operator(operator);
        self
    }

    /// Runs the new store's background work as [`Builder::deterministic`] does. For tests.
    pub fn deterministic(mut self, seed: u64) -> Repair {
        self.builder = self.builder.deterministic(seed);
        self
    }

    /// Whether pairs in damaged ranges are left out. The default is to keep the newest version that can be
    /// read, which may be older than the one that was lost.
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

    /// Writes the result to a new store in the directory `target`, durably. The source is not changed.
    ///
    /// The store is made beside `target`, under its name with `.repairing` added, and renamed last.
    ///
    /// # Errors
    /// `NotAStore` if nothing of a store is in the source; `Conflict` if `target` exists and is not empty, or the
    /// name beside it is taken; `InvalidArgument` if `target` is inside the source; `Locked` if the source is open
    /// for writing; `UnsupportedVersion`; `Io` and `Full` as the file system says. Nothing of the result is left
    /// then, unless the error says so.
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
        refuse_inside(&*vfs, &self.source, &target)?;
        let building = beside(&target, BUILDING);
        refuse_taken(&*vfs, &building)?;
        let source = Source::open(&self.source, &self.builder, false)?;
        if exists && let Err(error) = vfs.remove_dir(&target) {
            // A mount point, say. Better to know before the work than after it.
            return conflict(&format!("cannot be replaced ({error})"));
        }
        let result = self.build(&source, &building).and_then(|report| {
            match vfs.rename(&building, &target).and_then(|()| sync_parent(&*vfs, &target)) {
                Ok(()) => Ok(report),
                Err(error) => Err(given_up(&*vfs, &building, error)),
            }
        });
        if result.is_err() && exists && !vfs.exists(&target).unwrap_or(true) {
            // It was there before.
            let _ = vfs.create_dir_all(&target);
        }
        result
    }

    /// Writes the result to the place of the source, and keeps the source beside it under its name with
    /// `.damaged` added, which must not exist.
    ///
    /// The new store is made beside the source, under its name with `.repairing` added. Last the two directories
    /// are exchanged in one step, so that at each moment there is a store at the place. A crash right behind that
    /// leaves the source under the name `.repairing`. Where the file system cannot exchange directories, they are
    /// renamed one after the other: a crash in between leaves nothing at the place, the source as `.damaged`, and
    /// the new store, which is whole, as `.repairing`.
    ///
    /// # Errors
    /// As [`Repair::into_new`].
    pub fn in_place(mut self) -> Result<RepairReport> {
        let vfs = Arc::clone(&self.builder.vfs);
        let place = vfs.canonical(&self.source)?;
        let (aside, building) = (beside(&place, ".damaged"), beside(&place, BUILDING));
        refuse_taken(&*vfs, &aside)?;
        refuse_taken(&*vfs, &building)?;
        // Who reads the store meanwhile opens files by name, and would find the new store's.
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
                        // Back, as well as it can be done.
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

    /// Makes the result in the directory `target`, which does not exist, or leaves nothing there.
    fn build(&mut self, source: &Source, target: &Path) -> Result<RepairReport> {
        let result = self.write(source, target);
        result.map_err(|error| given_up(&*self.builder.vfs, target, error))
    }

    fn write(&mut self, source: &Source, target: &Path) -> Result<RepairReport> {
        let mut builder = self.builder.clone();
        builder.path = target.to_path_buf();
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
