//! The error type. Every variant names what it is about and says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every fallible operation of the store.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong, each with the thing it is about.
///
/// Errors are cheap to clone: a background failure is reported to every caller that meets it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("{op} failed on {}{}: {source}", path.display(), At(*offset))]
    Io {
        /// The operation: `"read"`, `"write"`, `"sync"`, `"create"`, …
        op: &'static str,
        /// The file it was applied to.
        path: PathBuf,
        /// The byte offset, where there is one.
        offset: Option<u64>,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// Bytes on disk are not what was written. The store never guesses past this.
    #[error(
        "corruption in {} at byte {offset}: {what}: expected {expected}, found {found}; restore the file from \
         a checkpoint, or make a new store of what can be read with `spinney repair`",
        file.display()
    )]
    Corruption {
        /// The damaged file, or the one that is missing. What is wrong with a tree's structure is
        /// said of the manifest, which has it.
        file: PathBuf,
        /// Where in the file the damaged structure starts. 0 also stands for the file as a whole.
        offset: u64,
        /// The structure or field that is wrong.
        what: &'static str,
        /// What should have been there.
        expected: String,
        /// What was there.
        found: String,
    },
    /// The directory does not hold a store.
    #[error("{} is not a Spinney store: {reason}", path.display())]
    NotAStore {
        /// The directory that was opened.
        path: PathBuf,
        /// What is missing or foreign.
        reason: String,
    },
    /// The store was written by a newer version of the format.
    #[error(
        "{} has format version {found}; this build reads {supported}: upgrade Spinney, or use the one that wrote it",
        file.display()
    )]
    UnsupportedVersion {
        /// The file that carries the version.
        file: PathBuf,
        /// The version it carries.
        found: u32,
        /// The newest version this build understands.
        supported: u32,
    },
    /// A write on a handle that [`Builder::open_read_only`](crate::Builder::open_read_only) gave.
    /// Nothing has been stored.
    #[error("{} is open for reading only; open it with Builder::open to write", path.display())]
    ReadOnly {
        /// The store's directory, or the file that would have been changed.
        path: PathBuf,
    },
    /// The journal holds more than a read-only store may keep in memory.
    #[error(
        "the journal of {} does not fit the memory budget of {budget} bytes: a budget of {sufficient} bytes \
         suffices, or open the store for writing once and flush it",
        path.display()
    )]
    JournalOverBudget {
        /// The store's directory.
        path: PathBuf,
        /// The memory budget that was given.
        budget: u64,
        /// A memory budget with which opening succeeds.
        sufficient: u64,
    },
    /// Another process (or another handle of this one) has the store open.
    #[error("{} is already open{}; close it first", path.display(), holder.as_deref().unwrap_or(""))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, if known (` (process 123)`).
        holder: Option<String>,
    },
    /// A journal write, sync or manifest write failed earlier. Reads go on; writes are refused
    /// until the store has been closed and reopened.
    #[error(
        "the store no longer accepts writes since {reason}; close and reopen it once the cause is fixed"
    )]
    Poisoned {
        /// The failure that poisoned the store.
        reason: String,
    },
    /// The disk has no room, or a quota or the process's limit on file sizes (`RLIMIT_FSIZE`)
    /// allows no more. Nothing of the refused write has been stored.
    #[error("no space left for {needed} bytes in {}; free some space and retry", path.display())]
    Full {
        /// The file or directory that could not grow.
        path: PathBuf,
        /// How many bytes were wanted.
        needed: u64,
    },
    /// The process, or the system, may open no more files. What was refused has not happened and
    /// may be tried again.
    #[error(
        "{op} failed on {}: too many files are open; close some or raise the limit (`ulimit -n`), and retry",
        path.display()
    )]
    TooManyFiles {
        /// The operation that needed a descriptor: `"open"`, `"create"`, …
        op: &'static str,
        /// The file it was for.
        path: PathBuf,
    },
    /// The caller passed something the store cannot take. Nothing has been stored.
    #[error("invalid argument: {what}")]
    InvalidArgument {
        /// What was wrong and what would be right.
        what: String,
    },
    /// The request contradicts what the store already holds (options, operators, names).
    #[error("conflict: {what}")]
    Conflict {
        /// What contradicts what.
        what: String,
    },
    /// A named thing does not exist.
    #[error("not found: {what}")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// The process is a fork of the one that opened the store. Nothing has been stored.
    #[error(
        "the store in {} belongs to the process that this one was forked from; open it anew here once \
         that one has closed it",
        path.display()
    )]
    Forked {
        /// The store's directory.
        path: PathBuf,
    },
    /// The database or keyspace handle has been closed or dropped.
    #[error("{what} is closed")]
    Closed {
        /// What was closed.
        what: String,
    },
    /// A page is not in memory and the operation was asked not to read: never leaves the crate.
    #[doc(hidden)]
    #[error("a page is not in memory")]
    NotResident,
    /// The merge operands of a key cannot be folded. They are kept as they are: other keys are not
    /// concerned, and a put or delete of the key ends it.
    #[error("merge operator {operator:?} failed on key \"{key}\" of keyspace {keyspace:?}: {what}")]
    Merge {
        /// The keyspace's name.
        keyspace: String,
        /// The start of the key (64 bytes at most), with bytes that are not printable ASCII
        /// escaped.
        key: String,
        /// The operator's registered name.
        operator: String,
        /// What it said.
        what: String,
    },
}

/// Of a longer key an error shows the start.
const KEY_BYTES_SHOWN: usize = 64;

/// `EMFILE` and `ENFILE`.
const EXHAUSTED: [i32; 2] =
    [rustix::io::Errno::MFILE.raw_os_error(), rustix::io::Errno::NFILE.raw_os_error()];

struct At(Option<u64>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(offset) => write!(f, " at byte {offset}"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// Whether something was refused for want of room or of descriptors: it has not happened,
    /// nothing is in doubt, and it may be tried again.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::TooManyFiles { .. })
    }

    /// Wraps an operating-system error; "no space" becomes [`Error::Full`], and a want of
    /// descriptors [`Error::TooManyFiles`].
    pub fn io(op: &'static str, path: &Path, offset: Option<u64>, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Error::Full { path: path.to_path_buf(), needed: 0 },
            _ if source.raw_os_error().is_some_and(|code| EXHAUSTED.contains(&code)) => {
                Error::TooManyFiles { op, path: path.to_path_buf() }
            }
            _ => Error::Io { op, path: path.to_path_buf(), offset, source: Arc::new(source) },
        }
    }

    /// What a write or sync failed with of something that had been stored or promised before:
    /// `Full` would say that nothing has been stored, and it is too late for that.
    pub(crate) fn not_refused(self, op: &'static str) -> Error {
        match self {
            Error::Full { path, .. } => {
                let source = Arc::new(io::ErrorKind::StorageFull.into());
                Error::Io { op, path, offset: None, source }
            }
            error => error,
        }
    }

    /// Reports damaged bytes. Users are told to restore `file`, so it must be one of the store's,
    /// and `offset` a place in it: of damage that has no single place, 0, with the rest in `found`.
    pub fn corruption(
        file: &Path,
        offset: u64,
        what: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Error {
        Error::Corruption {
            file: file.to_path_buf(),
            offset,
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Tells that the operands of a key cannot be folded.
    pub(crate) fn merge(
        keyspace: &str,
        key: &[u8],
        operator: &str,
        what: impl Into<String>,
    ) -> Error {
        let shown = key.get(..KEY_BYTES_SHOWN).unwrap_or(key);
        Error::Merge {
            keyspace: keyspace.to_string(),
            key: shown.escape_ascii().to_string(),
            operator: operator.to_string(),
            what: what.into(),
        }
    }

    /// Refuses an argument.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::InvalidArgument { what: what.into() }
    }

    /// The error without advice: for lists of damage, which give their own.
    pub fn description(&self) -> String {
        match self {
            Error::Corruption { file, offset, what, expected, found } => format!(
                "{} at byte {offset}: {what}: expected {expected}, found {found}",
                file.display()
            ),
            error => error.to_string(),
        }
    }

    /// True for damage that `spinney check` would report.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corruption { .. })
    }

    /// Whether reading elsewhere may help: a part of a file is damaged, or the disk does not give
    /// it.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.is_corruption() || matches!(self, Error::Io { op: "read", .. })
    }
}
