//! A simulated disk: its durable content, its pending writes, and the possible results of a crash.
//!
//! Invariants:
//! 1. Bytes are durable once their file has been synced, names once their directory has been
//!    synced; nothing else is durable.
//! 2. Pending changes may be lost or kept, independently for each file, for each sector of 512
//!    bytes, for a file's length and for each change of names. A sector has one of its earlier
//!    states or, if a policy tears it, the beginning of one and the end of another.
//! 3. The end of a process loses nothing that an operation has stored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::content::Content;
use crate::random::{Random, fingerprint, mix};

mod crash;
mod names;
mod survivor;

pub use crash::{Policy, SUBSETS_MAX};
pub use names::Names;

/// A file's number. It keeps it under all its names.
pub type FileNumber = u64;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Dir,
    /// A file.
    File(FileNumber),
}

impl Node {
    /// The file's number.
    pub fn file(self) -> Option<FileNumber> {
        match self {
            Node::Dir => None,
            Node::File(number) => Some(number),
        }
    }
}

/// A change of a name: what it stands for from now on.
pub type NameChange = (PathBuf, Option<Node>);

/// An operation that changed something, or made something durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Bytes were stored.
    Write {
        /// Where.
        file: FileNumber,
        /// From which byte on.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
        /// Whether by copying it to where the file is mapped.
        mapped: bool,
    },
    /// A file was cut or extended.
    SetLen {
        /// Which.
        file: FileNumber,
        /// To how many bytes.
        len: u64,
    },
    /// A file was synced.
    Sync {
        /// Which.
        file: FileNumber,
    },
    /// Names were changed, all at once.
    Names {
        /// The changes; the last one's directory is where they happen.
        changes: Vec<NameChange>,
    },
    /// A directory was synced.
    SyncDir {
        /// Which.
        dir: PathBuf,
    },
    /// A file's sync failed, and what was on its way is taken for stored: whoever reads still sees
    /// it, no later sync stores it.
    SyncForgot {
        /// Which.
        file: FileNumber,
        /// Which sectors have arrived nevertheless; none for 0.
        seed: u64,
    },
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    SetLen(u64),
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Change::Write { offset, bytes } => content.write(*offset, bytes),
            Change::SetLen(len) => content.set_len(*len),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct FileState {
    durable: Content,
    pending: Vec<Change>,
    /// What is seen, if that is not what is durable and what is on its way.
    seen: Option<Content>,
}

impl FileState {
    fn change(&mut self, change: Change) {
        if let Some(seen) = &mut self.seen {
            change.apply(seen);
        }
        self.pending.push(change);
    }

    fn view(&self) -> Content {
        self.seen.clone().unwrap_or_else(|| self.all())
    }
}

/// A disk, and what is on its way to it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    names: Names,
    pending_names: Vec<Vec<NameChange>>,
    files: BTreeMap<FileNumber, FileState>,
    /// The highest number that any file has had: a number is never used again.
    last_file: FileNumber,
}

impl Disk {
    /// A disk with one directory, `data`.
    pub fn with_a_directory() -> Disk {
        Disk::default().after(&[
            Op::Names { changes: vec![(PathBuf::from("data"), Some(Node::Dir))] },
            Op::SyncDir { dir: PathBuf::new() },
        ])
    }

    /// The disk after these operations.
    pub fn after(&self, log: &[Op]) -> Disk {
        let mut disk = self.clone();
        log.iter().for_each(|op| disk.apply(op));
        disk
    }

    /// Carries out an operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { file, offset, bytes, .. } => {
                let change = Change::Write { offset: *offset, bytes: Arc::clone(bytes) };
                self.files.entry(*file).or_default().change(change);
            }
            Op::SetLen { file, len } => {
                self.files.entry(*file).or_default().change(Change::SetLen(*len));
            }
            Op::Sync { file } => {
                let state = self.files.entry(*file).or_default();
                for change in state.pending.drain(..) {
                    change.apply(&mut state.durable);
                }
            }
            Op::Names { changes } => {
                let files = changes.iter().filter_map(|(_, node)| node.and_then(Node::file));
                self.last_file = files.fold(self.last_file, FileNumber::max);
                self.pending_names.push(changes.clone());
            }
            Op::SyncDir { dir } => {
                let names = &mut self.names;
                self.pending_names.retain(|changes| {
                    let here = changes.last().is_some_and(|(path, _)| path.parent() == Some(dir));
                    if here {
                        names.change(changes);
                    }
                    !here
                });
            }
            Op::SyncForgot { file, seed } => {
                let state = self.files.entry(*file).or_default();
                let seen = state.view();
                if *seed != 0 {
                    let mut random = Random::new(&[*seed]);
                    state.durable = state.by_sectors(false, &mut random);
                }
                state.pending.clear();
                state.seen = Some(seen);
            }
        }
    }

    /// The highest number that any file has had.
    pub fn last_file(&self) -> FileNumber {
        self.last_file
    }

    /// What a running process sees.
    pub fn view(&self) -> (Names, BTreeMap<FileNumber, Content>) {
        let files = self.files.iter().map(|(number, state)| (*number, state.view()));
        let mut names = self.names.clone();
        self.pending_names.iter().for_each(|changes| names.change(changes));
        (names, files.collect())
    }

    /// What all names, and all bytes of all files, come to for a running process.
    pub fn fingerprint(&self) -> u64 {
        let (names, files) = self.view();
        fingerprint_of(&names, &files)
    }
}

/// What all names, and all bytes of all files that have one, come to.
pub fn fingerprint_of(names: &Names, files: &BTreeMap<FileNumber, Content>) -> u64 {
    let empty = Content::default().fingerprint();
    let mut state = 0;
    for (path, node) in names.iter() {
        let bytes = path.as_os_str().as_encoded_bytes();
        let content = match node {
            Node::Dir => 1,
            Node::File(number) => files.get(&number).map_or(empty, Content::fingerprint),
        };
        state = mix(state ^ fingerprint(bytes, &content.to_le_bytes()));
    }
    state
}

#[cfg(test)]
mod tests;
