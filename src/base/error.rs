//! The error type. Each variant names what failed and what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every fallible operation of the store.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the store. Each variant names what it is about.
///
/// Errors are cheap to clone: an error of background work is returned to every caller that
/// encounters it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("{op} failed on {}{}: {source}", path.display(), At(*offset))]
    Io {
        /// The operation: `"read"`, `"write"`, `"sync"`, `"create"`, …
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The byte offset, if the operation has one.
        offset: Option<u64>,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// Bytes on disk are not the bytes that were written. The store never guesses their content.
    #[error(
        "corruption in {} at byte {offset}: {what}: expected {expected}, found {found}; restore the file from \
         a checkpoint, or make a new store of what can be read with `spinney repair`",
        file.display()
    )]
    Corruption {
        /// The damaged or missing file. For damage in a tree's structure, the manifest, which
        /// stores it.
        file: PathBuf,
        /// The offset of the damaged structure in the file. 0 also means the file as a whole.
        offset: u64,
        /// The damaged structure or field.
        what: &'static str,
        /// The expected content.
        expected: String,
        /// The content found.
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
    /// A newer version of Spinney wrote the file.
    #[error(
        "{} has format version {found}; this build reads {supported}: upgrade Spinney, or use the one that wrote it",
        file.display()
    )]
    UnsupportedVersion {
        /// The file with the format version.
        file: PathBuf,
        /// The version found.
        found: u32,
        /// The newest version that this build supports.
        supported: u32,
    },
    /// A write on a handle from [`Builder::open_read_only`](crate::Builder::open_read_only).
    /// Nothing was written.
    #[error("{} is open for reading only; open it with Builder::open to write", path.display())]
    ReadOnly {
        /// The store's directory, or the file that the write would have changed.
        path: PathBuf,
    },
    /// The journal does not fit into the memory of a read-only store.
    #[error(
        "the journal of {} does not fit the memory budget of {budget} bytes: a budget of {sufficient} bytes \
         suffices, or open the store for writing once and flush it",
        path.display()
    )]
    JournalOverBudget {
        /// The store's directory.
        path: PathBuf,
        /// The memory budget.
        budget: u64,
        /// A sufficient memory budget.
        sufficient: u64,
    },
    /// Another process, or another handle in this process, has the store open.
    #[error("{} is already open{}; close it first", path.display(), holder.as_deref().unwrap_or(""))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The holder of the lock, if known (` (process 123)`).
        holder: Option<String>,
    },
    /// An earlier write or sync of the journal or the manifest failed. Reads continue; writes are
    /// refused until the store is closed and reopened.
    #[error(
        "the store no longer accepts writes since {reason}; close and reopen it once the cause is fixed"
    )]
    Poisoned {
        /// The error that poisoned the store.
        reason: String,
    },
    /// The disk, a quota or the process's limit on file sizes (`RLIMIT_FSIZE`) has no room. Nothing
    /// of the refused write was stored. What background work found no room for is retried each
    /// second; writes that wait for that are refused until then.
    #[error("no space left for {needed} bytes in {}; free some space and retry", path.display())]
    Full {
        /// The file or directory that could not grow.
        path: PathBuf,
        /// The number of bytes requested.
        needed: u64,
    },
    /// The process or the system has too many open files. The refused operation had no effect and
    /// can be retried. Background work is retried as after [`Error::Full`].
    #[error(
        "{op} failed on {}: too many files are open; close some or raise the limit (`ulimit -n`), and retry",
        path.display()
    )]
    TooManyFiles {
        /// The operation that needed a descriptor: `"open"`, `"create"`, …
        op: &'static str,
        /// The file to be opened.
        path: PathBuf,
    },
    /// The caller passed an invalid argument. Nothing was stored.
    #[error("invalid argument: {what}")]
    InvalidArgument {
        /// What is wrong and what is allowed.
        what: String,
    },
    /// The request conflicts with the store's content (options, operators, names).
    #[error("conflict: {what}")]
    Conflict {
        /// The conflict.
        what: String,
    },
    /// The named thing does not exist.
    #[error("not found: {what}")]
    NotFound {
        /// What does not exist.
        what: String,
    },
    /// The process was forked from the one that opened the store. Nothing was stored.
    #[error(
        "the store in {} belongs to the process that this one was forked from; open it anew here once \
         that one has closed it",
        path.display()
    )]
    Forked {
        /// The store's directory.
        path: PathBuf,
    },
    /// The database is closed, or the keyspace was dropped.
    #[error("{what} is closed")]
    Closed {
        /// What is closed.
        what: String,
    },
    /// A page is not cached and the caller asked not to read from disk. Never leaves the crate.
    #[doc(hidden)]
    #[error("a page is not in memory")]
    NotResident,
    /// The merge operands of a key cannot be folded. They are kept unchanged. Other keys are not
    /// affected, and a put or delete of the key resolves the error.
    #[error("merge operator {operator:?} failed on key \"{key}\" of keyspace {keyspace:?}: {what}")]
    Merge {
        /// The keyspace's name.
        keyspace: String,
        /// The first 64 bytes of the key. Bytes that are not printable ASCII are escaped.
        key: String,
        /// The operator's registered name.
        operator: String,
        /// The operator's error.
        what: String,
    },
}

/// The number of bytes of a key that an error shows.
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
    /// Returns true if the operation was refused for lack of disk space or descriptors: it had no
    /// effect and can be retried.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::TooManyFiles { .. })
    }

    /// Returns true if a file was not read, and what it holds is not known.
    pub(crate) fn is_failed_read(&self) -> bool {
        matches!(self, Error::Io { op: "open" | "read" | "read length", .. })
    }

    /// Wraps an error of the operating system. "No space" becomes [`Error::Full`]; a lack of
    /// descriptors becomes [`Error::TooManyFiles`].
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

    /// The error of a write or sync of data that had already been stored or acknowledged. Never
    /// `Full` or `TooManyFiles`, which would mean that nothing was stored.
    pub(crate) fn not_refused(self, op: &'static str) -> Error {
        match self {
            Error::Full { path, .. } => {
                let source = Arc::new(io::ErrorKind::StorageFull.into());
                Error::Io { op, path, offset: None, source }
            }
            Error::TooManyFiles { path, .. } => {
                let source = Arc::new(io::Error::other("no descriptor is left for another file"));
                Error::Io { op, path, offset: None, source }
            }
            error => error,
        }
    }

    /// Reports damaged bytes. Users are told to restore `file`, so it must be a file of the store,
    /// and `offset` a position in it. Damage without a single position has offset 0 and its details
    /// in `found`.
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

    /// The same corruption, which may just as well be that of another file.
    pub(crate) fn or_damaged(mut self, file: &Path, offset: u64) -> Error {
        if let Error::Corruption { found, .. } = &mut self {
            found.push_str(&format!(" (or damaged: {} at byte {offset})", file.display()));
        }
        self
    }

    /// Reports that the operands of a key cannot be folded.
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

    /// Reports an invalid argument.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::InvalidArgument { what: what.into() }
    }

    /// Formats the error without advice, for lists of damage that give their own.
    pub fn description(&self) -> String {
        match self {
            Error::Corruption { file, offset, what, expected, found } => format!(
                "{} at byte {offset}: {what}: expected {expected}, found {found}",
                file.display()
            ),
            error => error.to_string(),
        }
    }

    /// Returns true for damage that `spinney check` would report.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corruption { .. })
    }

    /// Returns true if reading elsewhere may succeed: a part of a file is damaged or cannot be
    /// read.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.is_corruption() || matches!(self, Error::Io { op: "read", .. })
    }
}
