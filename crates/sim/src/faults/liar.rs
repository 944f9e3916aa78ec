//! Judges a store whose disk has lied: its content is right, or it reports an error.

use std::path::Path;

use spinney::{CheckLevel, Database, Error};

use super::worker::Verdict;
use crate::disk::{Disk, Policy};
use crate::fault::{Fault, Strike};
use crate::model::History;
use crate::random::fingerprint;
use crate::sizes::Sizes;
use crate::vfs::CrashVfs;
use crate::workload::STORE;

pub(super) struct Judge<'a> {
    pub(super) sizes: Sizes,
    pub(super) history: &'a History,
    pub(super) strikes: &'a [Strike],
    pub(super) fault: Fault,
    /// The moment of the crash.
    pub(super) at: usize,
    pub(super) may_be_missing: bool,
}

/// A keyspace, as far as it could be read.
struct Found<'a> {
    name: &'a str,
    /// Those of its name that there may have been, youngest first.
    places: Vec<usize>,
    sum: u64,
    whole: bool,
}

impl Judge<'_> {
    /// Opens what is left and judges it.
    pub(super) fn judge(&self, disk: &Disk, policy: Policy) -> Verdict {
        let vfs = CrashVfs::new(disk);
        let db = match self.sizes.builder(&vfs, STORE).create_if_missing(false).open() {
            Ok(db) => db,
            Err(Error::NotAStore { .. }) if self.may_be_missing => return Ok(()),
            Err(error) => return named(&error).map_err(|what| format!("open: {what}")),
        };
        let names = db.keyspaces();
        let mut found = Vec::new();
        let closed = db.recovery().keyspaces_not_opened;
        for name in &names {
            match db.existing_keyspace(name) {
                Err(error) if closed.contains(name) => named(&error)?,
                _ => found.push(self.read(&db, name)?),
            }
        }
        let report = db.check(CheckLevel::Full).map_err(|error| format!("check: {error}"))?;
        report.problems.iter().try_for_each(named)?;
        if !closed.is_empty() || found.iter().any(|keyspace| !keyspace.whole) {
            return match report.problems.is_empty() {
                true => Err("a read fails where a full check finds nothing".to_string()),
                false => Ok(()),
            };
        }
        let most = self.history.promise(self.at, true).most;
        // Only data files were struck: nothing of the journal or the manifest can be missing.
        let spared = self.fault != Fault::StrayWrite
            && self.strikes.iter().all(|strike| is_data_file(&strike.path));
        let least = match spared {
            true => self.history.promise(self.at, policy.keeps_unsynced()).least,
            false => 0,
        };
        let history = &self.history.keyspaces;
        let fits = |keyspace: &Found<'_>, commits: usize| {
            // What has become of the manifest's last record, which said that the younger one took
            // the place of the older, nobody can tell who has no later one.
            let places = keyspace.places.iter().take(if spared { 1 } else { usize::MAX });
            let mut sums = places.map(|place| history[*place].fingerprint(commits));
            sums.any(|sum| sum == keyspace.sum)
        };
        let whole = |commits: &usize| found.iter().all(|keyspace| fits(keyspace, *commits));
        match (least..=most).rev().find(whole) {
            Some(_) => Ok(()),
            None => Err(format!(
                "holds what no {least} to {most} commits make; {:?}; of each alone {:?}",
                db.recovery(),
                found
                    .iter()
                    .map(|keyspace| {
                        let commits = 0..=self.history.commits.len();
                        let at = commits.filter(|commits| fits(keyspace, *commits));
                        (keyspace.name, at.collect::<Vec<_>>())
                    })
                    .collect::<Vec<_>>()
            )),
        }
    }

    fn read<'a>(&self, db: &Database, name: &'a str) -> Verdict<Found<'a>> {
        let known = self.history.keyspaces.iter().enumerate().rev();
        let places: Vec<usize> = known
            .filter(|(_, keyspace)| keyspace.name == name && keyspace.created.issued <= self.at)
            .map(|(place, _)| place)
            .collect();
        if places.is_empty() {
            return Err(format!("keyspace {name:?} was never made"));
        }
        let keyspace = db.existing_keyspace(name).map_err(|error| error.to_string())?;
        let mut found = Found { name, places, sum: 0, whole: true };
        for pair in keyspace.iter() {
            match pair {
                Ok((key, value)) => {
                    found.sum = found.sum.wrapping_add(fingerprint(&key, &value));
                }
                Err(error) => {
                    named(&error).map_err(|what| format!("read: {what}"))?;
                    found.whole = false;
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// Whether the error says which file is damaged.
fn named(error: &Error) -> Verdict {
    let fits = match error {
        Error::Corruption { file, .. } => file.starts_with("/data"),
        Error::Io { path, .. } => path.starts_with("/data"),
        // The disk has lost all that there was.
        Error::InvalidArgument { what } => what.contains("is on persistent memory in /data"),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(format!("{error} ({error:?})")),
    }
}

fn is_data_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("table" | "maplet" | "head" | "blob" | "pool"))
}
