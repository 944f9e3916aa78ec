//! How a version of the tree is read.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Slm;
use super::describe::describe_level;
use super::lookup::Lookup;
use super::places::Places;
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::cache::ReadContext;
use crate::table::Table;
use crate::tree::description::TreeDescription;
use crate::tree::run::Run;
use crate::tree::versioned::{self};
use crate::tree::{CheckCounts, RangeAt, RangeRuns, TreeVersion, files};

/// A version.
pub(super) type Version = versioned::Version<Slm>;

/// What a version knows beyond its files.
pub(in crate::tree) struct Summary {
    pub(super) places: Arc<Places>,
}

impl Version {
    pub(super) fn tables(&self) -> &[Arc<Table>] {
        &self.root.tables
    }
}

impl TreeVersion for Version {
    fn flushed(&self) -> Seqno {
        self.flushed
    }

    fn get(
        &self,
        key: &[u8],
        _hash: u64,
        snapshot: Seqno,
        context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let places = &self.own.places;
        let (tables, flushed) = (self.tables(), self.flushed);
        Lookup { places, tables, flushed, key, snapshot, context }.run(f)
    }

    /// A leaf of the index, if that is exactly the version's. Otherwise all keys: everything that the tables have.
    fn runs_at(&self, at: RangeAt<'_>) -> RangeRuns {
        // Damage is reported by whoever needs the index.
        if let Ok(Some(runs)) = self.own.places.runs_at(at, self.flushed) {
            return runs;
        }
        let runs = vec![Run::Union(self.tables().into())];
        RangeRuns { lower: Arc::default(), upper: None, runs }
    }

    fn files(&self) -> Vec<PathBuf> {
        files::paths(&self.tables().iter().collect::<Vec<_>>(), [])
    }

    fn describe(&self) -> Result<TreeDescription> {
        let describe = |level: &Arc<_>| Ok(describe_level(level, &self.own.places));
        self.described(super::KIND.name, self.parameters.named(), describe)
    }

    fn check(&self, manifest: &Path, full: bool, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        self.check_totals(manifest, problem);
        super::check::check(&self.root, manifest, full, problem)
    }
}
