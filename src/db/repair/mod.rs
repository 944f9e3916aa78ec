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

mod newest;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::newest::Newest;
use self::source::{Source, SourceKeyspace};
use super::damage::DamagedRange;
use super::keyspace::Keyspace;
use super::options::Builder;
use crate::base::error::{Error, Result};
use crate::manifest::LOCK_FILE_NAME;
use crate::merge::MergeOperator;
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
}

impl RepairReport {
    /// Whether the result holds exactly what the store held.
    pub fn is_exact(&self) -> bool {
        self.basis == RepairBasis::Manifest && self.damage.is_empty() && !self.journal_incomplete
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

    /// Registers a merge operator under its name. `"u64_add"` and `"append"` are always there.
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
    /// # Errors
    /// `NotAStore` if nothing of a store is in the source; `Conflict` if `target` exists and is not empty, or
    /// a keyspace's merge operator is not registered; `Locked` if the source is open for writing;
    /// `UnsupportedVersion`; `Io` and `Full` as the file system says. What there is of the target is then no
    /// whole result: remove it.
    pub fn into_new(mut self, target: impl AsRef<Path>) -> Result<RepairReport> {
        let target = target.as_ref();
        let vfs = Arc::clone(&self.builder.vfs);
        if vfs.exists(target)? && !vfs.read_dir(target)?.is_empty() {
            return Err(Error::Conflict {
                what: format!("{} is not empty; name a new directory", target.display()),
            });
        }
        let source = Source::open(&self.source, &self.builder)?;
        self.write(&source, target)
    }

    /// Writes the result to the place of the source, and keeps the source beside it under its name with
    /// `.damaged` added, which must not exist. The two directories are exchanged last.
    ///
    /// # Errors
    /// As [`Repair::into_new`].
    pub fn in_place(mut self) -> Result<RepairReport> {
        let vfs = Arc::clone(&self.builder.vfs);
        let beside = |ending: &str| {
            let mut name = self.source.clone().into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        let (aside, target) = (beside(".damaged"), beside(".repairing"));
        for path in [&aside, &target] {
            if vfs.exists(path)? {
                return Err(Error::Conflict {
                    what: format!(
                        "{} exists, perhaps from an earlier repair; move it away",
                        path.display()
                    ),
                });
            }
        }
        let source = Source::open(&self.source, &self.builder)?;
        let report = self.write(&source, &target)?;
        vfs.rename(&self.source, &aside)?;
        vfs.rename(&target, &self.source)?;
        sync_parent(&*vfs, &self.source)?;
        Ok(report)
    }

    fn write(&mut self, source: &Source, target: &Path) -> Result<RepairReport> {
        let mut builder = self.builder.clone();
        builder.path = target.to_path_buf();
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
        let mut written = RepairedKeyspace { name: name.clone(), pairs: 0, pairs_left_out: 0 };
        let mut newest = Newest::new(source, keyspace);
        while let Some((key, value)) = newest.next()? {
            if self.without_doubtful && newest.is_doubtful(&key) {
                written.pairs_left_out += 1;
                continue;
            }
            into.put(&key, &value)?;
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
