//! Quarantined keyspaces: those that could not be opened, or whose journal entries could not be replayed. They stay
//! unchanged while the others are used.
//!
//! Damage in one keyspace's own files, or files of another version, concern that keyspace alone. Damage in files that
//! keyspaces share (superblock, manifest, journal) keeps the store from being opened: it would be unknown which
//! keyspaces are whole. So does a failing or full disk, which may recover by the next attempt: a keyspace that is
//! missing for that reason would be taken for lost.
//!
//! Invariants:
//! 1. A quarantined keyspace has no handles and no memtable. Asking for it returns the error with which opening it
//!    failed.
//! 2. Nothing that it needs is deleted. No data file is deleted while there is one, since what its tables and its
//!    part of the journal refer to is not known, and a blob file may be another keyspace's too; the manifest, which
//!    alone has its tree's edits, is not written anew; the journal is kept from where its tree ends.
//! 3. It is opened again with the store, or dropped. A keyspace whose tree keeps operations itself can be dropped only
//!    while no other is quarantined: the other needs the journal, and the journal needs these numbers.

use std::collections::BTreeMap;

use crate::base::error::{Error, Result};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::sync::RwLock;

/// A keyspace that could not be opened.
#[derive(Debug, Clone)]
pub(crate) struct Quarantined {
    pub(crate) id: KeyspaceId,
    /// Its tree holds everything up to here; the journal has the rest.
    pub(crate) flushed: Seqno,
    /// Its tree may keep operations itself, whose numbers other keyspaces need.
    pub(crate) has_log: bool,
    /// Why.
    pub(crate) error: Error,
}

/// The quarantined keyspaces, by name.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(RwLock<BTreeMap<String, Quarantined>>);

impl Quarantine {
    pub(crate) fn new(keyspaces: BTreeMap<String, Quarantined>) -> Quarantine {
        Quarantine(RwLock::new(keyspaces))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.read().keys().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Quarantined> {
        self.0.read().get(name).cloned()
    }

    pub(crate) fn remove(&self, name: &str) {
        self.0.write().remove(name);
    }

    /// Why each could not be opened.
    pub(crate) fn errors(&self) -> Vec<Error> {
        self.0.read().values().map(|quarantined| quarantined.error.clone()).collect()
    }

    /// Refuses what needs all quarantined keyspaces but `name`.
    pub(crate) fn check_all_but(&self, name: &str) -> Result<()> {
        let quarantined = self.0.read();
        let other = quarantined.iter().find(|(other, _)| *other != name);
        other.map_or(Ok(()), |(other, quarantined)| {
            Err(Error::Conflict {
                what: format!(
                    "keyspace {name:?} keeps a part of the journal that keyspace {other:?} needs, which is quarantined \
                     ({}); restore its files, or repair the store",
                    quarantined.error
                ),
            })
        })
    }

    /// Up to where the journal is not needed for them; `None` without any.
    pub(crate) fn persisted_upto(&self) -> Option<Seqno> {
        self.0.read().values().map(|quarantined| quarantined.flushed).min()
    }
}

/// Whether an error of opening one keyspace is the affair of that keyspace alone. `shared` says whether a file
/// is one that keyspaces share.
pub(crate) fn concerns_one(error: &Error, shared: impl Fn(&std::path::Path) -> bool) -> bool {
    match error {
        Error::Corruption { file, .. } => !shared(file),
        Error::UnsupportedVersion { .. } | Error::Conflict { .. } => true,
        _ => false,
    }
}
