//! The table of tree kinds: everything that the rest of the engine knows of a kind.
//!
//! A kind is a folder under `tree` and one line here. Each folder has a `KIND` that says the kind's
//! name, its own options, and how its trees are opened and described.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::own_options::OwnOption;
use super::{OperationSource, RepairRange, Tree, TreeContext};
use crate::base::error::{Error, Result};
#[cfg(feature = "fuzz")]
use crate::base::fuzz::Target;
use crate::base::ids::Seqno;
use crate::cache::DataFiles;
use crate::manifest::{KeyspaceMeta, TreeEdit};

/// Opens a tree that holds everything up to a number.
type Open = fn(TreeContext, &[TreeEdit], Seqno) -> Result<Arc<dyn Tree>>;

/// Finds the logs that a tree's edits name.
type OperationSources = fn(&DataFiles, &[TreeEdit], &Path) -> Result<Vec<Arc<dyn OperationSource>>>;

/// A tree kind's entry in the table.
pub(super) struct Kind {
    /// The name as stored and as the command line takes it.
    pub(super) name: &'static str,
    /// The options that the kind has beyond those of every keyspace.
    pub(super) own_options: &'static [&'static OwnOption],
    /// The default of `space_amplification_max`, in percent.
    pub(super) space_amplification_max_percent: u32,
    /// The default of `blob_bytes_min`.
    pub(super) blob_bytes_min: u32,
    /// Opens a tree from its manifest edits (none for a new keyspace).
    pub(super) open: Open,
    /// Whether the indexes of bundles are heads, over pieces that have local indexes.
    pub(super) has_heads: bool,
    /// See [`operation_sources`].
    pub(super) operation_sources: Option<OperationSources>,
    /// See [`repair_ranges`].
    pub(super) repair_ranges: fn(&[TreeEdit], &Path) -> Result<Vec<RepairRange>>,
    #[cfg(feature = "fuzz")]
    pub(super) fuzz_targets: &'static [Target],
}

/// Makes [`TreeKind`] from the table. A kind of the second list is for tests: `TreeKind::ALL` does not have it.
macro_rules! kinds {
    (
        $($(#[doc = $doc:literal])* $kind:ident = $module:ident,)*
        ;
        $(#[$cfg:meta] $test_kind:ident = $test_module:ident,)*
    ) => {
        /// The tree that holds a keyspace.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum TreeKind {
            $($(#[doc = $doc])* $kind,)*
            $(#[$cfg] #[doc(hidden)] $test_kind,)*
        }

        impl TreeKind {
            /// All kinds there are.
            pub const ALL: [TreeKind; [$(stringify!($kind)),*].len()] = [$(TreeKind::$kind),*];

            /// The kinds that exist for tests alone.
            #[doc(hidden)]
            pub const FOR_TESTS: &[TreeKind] = &[$(#[$cfg] TreeKind::$test_kind,)*];

            fn entry(self) -> &'static Kind {
                match self {
                    $(TreeKind::$kind => &super::$module::KIND,)*
                    $(#[$cfg] TreeKind::$test_kind => &super::$test_module::KIND,)*
                }
            }
        }
    };
}

kinds! {
    /// SplinterDB's STBε-tree.
    Stb = stb,
    /// PebblesDB's fragmented log-structured merge tree, with guards.
    Flsm = flsm,
    /// CompassDB's two-tier perfect hash tables.
    Tph = tph,
    /// SLM-DB's single level of tables under a B+-tree of all keys.
    Slm = slm,
    ;
    #[cfg(feature = "example")]
    Example = example,
}

impl Default for TreeKind {
    fn default() -> TreeKind {
        TreeKind::ALL[0]
    }
}

impl TreeKind {
    /// The name as stored and as the command line takes it.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<TreeKind> {
        TreeKind::registered().find(|kind| kind.name() == name)
    }

    /// Every line of the table.
    pub(crate) fn registered() -> impl Iterator<Item = TreeKind> {
        TreeKind::ALL.into_iter().chain(TreeKind::FOR_TESTS.iter().copied())
    }

    /// The kind that a manifest names for a keyspace.
    ///
    /// # Errors
    /// `Conflict` for a kind that this build does not have.
    pub(crate) fn of_stored(name: &str, keyspace: &str) -> Result<TreeKind> {
        TreeKind::from_name(name).ok_or_else(|| Error::Conflict {
            what: format!(
                "keyspace {keyspace:?} has the tree kind {name:?}, which this build does not \
                 have; upgrade Spinney"
            ),
        })
    }

    pub(super) fn own_options(self) -> &'static [&'static OwnOption] {
        self.entry().own_options
    }

    pub(super) fn has_heads(self) -> bool {
        self.entry().has_heads
    }

    pub(super) fn space_amplification_max_percent(self) -> u32 {
        self.entry().space_amplification_max_percent
    }

    pub(super) fn blob_bytes_min(self) -> u32 {
        self.entry().blob_bytes_min
    }
}

impl fmt::Display for TreeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The ranges of keys of a tree, ascending and without gaps.
///
/// # Errors
/// `Corruption` for edits that do not fit together, `UnsupportedVersion`, `Conflict` for a kind that this
/// build does not have.
pub(crate) fn repair_ranges(
    meta: &KeyspaceMeta,
    edits: &[TreeEdit],
    file: &Path,
) -> Result<Vec<RepairRange>> {
    match edits {
        [] => Ok(Vec::new()),
        edits => (TreeKind::of_stored(&meta.kind, &meta.name)?.entry().repair_ranges)(edits, file),
    }
}

/// Opens the tree of a keyspace from its manifest edits (none for a new keyspace).
///
/// # Errors
/// `Corruption` for edits that do not fit together or name missing or damaged files.
pub(crate) fn open(
    kind: TreeKind,
    context: TreeContext,
    edits: &[TreeEdit],
    flushed: Seqno,
) -> Result<Arc<dyn Tree>> {
    (kind.entry().open)(context, edits, flushed)
}

/// What earlier processes left in the logs of a keyspace's tree. `manifest` is the file that has the edits.
///
/// # Errors
/// `Corruption` for edits that cannot be read.
pub(crate) fn operation_sources(
    kind: TreeKind,
    files: &DataFiles,
    edits: impl FnOnce() -> Vec<TreeEdit>,
    manifest: &Path,
) -> Result<Vec<Arc<dyn OperationSource>>> {
    (kind.entry().operation_sources).map_or(Ok(Vec::new()), |find| find(files, &edits(), manifest))
}

/// The fuzz targets of all kinds.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_targets() -> Vec<Target> {
    TreeKind::registered().flat_map(|kind| kind.entry().fuzz_targets).copied().collect()
}
