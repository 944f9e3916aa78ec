//! What a disk holds, what is still on its way there, and what a crash may make of that.
//!
//! Invariants:
//! 1. Bytes are durable once their file, names once their directory has been synced; nothing else is.
//! 2. Whatever is on its way may arrive or not, independently for each file, for each sector of
//!    512 bytes and for each change of names. A sector shows one of the states it has had.
//! 3. The end of a process loses nothing that an operation has stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::content::Content;
use crate::random::Random;

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

/// A change of a name: what it stands for from now on.
pub type NameChange = (PathBuf, Option<Node>);

/// An operation that changed something, or made something durable.
#[derive(Debug, Clone)]
pub enum Op {
    /// Bytes were stored.
    Write {
        /// Where.
        file: FileNumber,
        /// From which byte on.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
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
    /// A file's sync failed, and what was on its way is taken for stored: whoever reads still sees it,
    /// no later sync stores it.
    SyncForgot {
        /// Which.
        file: FileNumber,
        /// Which sectors have arrived nevertheless; none for 0.
        seed: u64,
    },
}

/// What a crash takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The process dies between two operations.
    Kill,
    /// The process dies while it stores bytes: some of the next write are there.
    KillInWrite,
    /// Power fails, and nothing that was not synced is there.
    PowerNothing,
    /// Power fails; of each file the first so and so many writes since its sync are there.
    PowerPrefix,
    /// Power fails; each sector is there or not.
    PowerSectors,
    /// Power fails; all writes are there but a part of the last one to each file.
    PowerTorn,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 6] = [
        Policy::Kill,
        Policy::KillInWrite,
        Policy::PowerNothing,
        Policy::PowerPrefix,
        Policy::PowerSectors,
        Policy::PowerTorn,
    ];

    /// One of them.
    pub fn random(random: &mut Random) -> Policy {
        Policy::ALL[random.below(Policy::ALL.len())]
    }

    /// Whether what was stored but not synced survives.
    pub fn keeps_unsynced(self) -> bool {
        matches!(self, Policy::Kill | Policy::KillInWrite)
    }
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
        self.seen.clone().unwrap_or_else(|| {
            let mut content = self.durable.clone();
            self.pending.iter().for_each(|change| change.apply(&mut content));
            content
        })
    }
}

/// What the names stand for.
pub type Names = BTreeMap<PathBuf, Node>;

/// A disk, and what is on its way to it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    names: Names,
    pending_names: Vec<Vec<NameChange>>,
    files: BTreeMap<FileNumber, FileState>,
    /// The highest number that any file has had: a number is never used again.
    last_file: FileNumber,
}

/// The size of what arrives whole or not at all.
const SECTOR_BYTES: u64 = 512;

impl Disk {
    /// Carries out an operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { file, offset, bytes } => {
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
                let files = changes.iter().filter_map(|(_, node)| node.and_then(file_of));
                self.last_file = files.fold(self.last_file, FileNumber::max);
                self.pending_names.push(changes.clone());
            }
            Op::SyncDir { dir } => {
                let names = &mut self.names;
                self.pending_names.retain(|changes| {
                    let here = changes.last().is_some_and(|(path, _)| path.parent() == Some(dir));
                    if here {
                        rename(names, changes);
                    }
                    !here
                });
            }
            Op::SyncForgot { file, seed } => {
                let state = self.files.entry(*file).or_default();
                let seen = state.view();
                if *seed != 0 {
                    let mut random = Random::new(&[*seed]);
                    state.durable = survivor(state, Policy::PowerSectors, &mut random);
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
        self.pending_names.iter().for_each(|changes| rename(&mut names, changes));
        (names, files.collect())
    }

    /// What is left after a crash before the operation `next`. After the end of a process alone,
    /// what was on its way still is.
    pub fn crash(&self, policy: Policy, next: Option<&Op>, random: &mut Random) -> Disk {
        if policy.keeps_unsynced() {
            let mut disk = self.clone();
            if policy == Policy::KillInWrite
                && let Some(Op::Write { file, offset, bytes }) = next
            {
                let bytes = Arc::from(&bytes[..random.below(bytes.len())]);
                disk.apply(&Op::Write { file: *file, offset: *offset, bytes });
            }
            return disk;
        }
        let mut names = self.names.clone();
        // Mostly some, now and then all or none: which is what most machines do most of the time.
        let kept_of_four = match policy {
            Policy::PowerNothing => 0,
            _ => [0, 1, 2, 3, 4, 4][random.below(6)],
        };
        for changes in &self.pending_names {
            if random.below(4) < kept_of_four {
                rename(&mut names, changes);
            }
        }
        remove_lost(&mut names);
        let kept: Vec<FileNumber> = names.values().filter_map(|node| file_of(*node)).collect();
        let mut files = BTreeMap::new();
        for number in kept {
            let state = self.files.get(&number).cloned().unwrap_or_default();
            let durable = survivor(&state, policy, random);
            files.entry(number).or_insert(FileState { durable, ..FileState::default() });
        }
        Disk { names, files, last_file: self.last_file, ..Disk::default() }
    }
}

fn file_of(node: Node) -> Option<FileNumber> {
    match node {
        Node::Dir => None,
        Node::File(number) => Some(number),
    }
}

fn rename(names: &mut Names, changes: &[NameChange]) {
    for (path, node) in changes {
        match node {
            Some(node) => names.insert(path.clone(), *node),
            None => names.remove(path),
        };
    }
}

/// What stands in a directory that got lost is lost too.
fn remove_lost(names: &mut Names) {
    let lost: Vec<PathBuf> = names
        .keys()
        .filter(|path| {
            path.ancestors().skip(1).any(|dir| dir != Path::new("") && !names.contains_key(dir))
        })
        .cloned()
        .collect();
    lost.iter().for_each(|path| {
        names.remove(path);
    });
}

/// What power loss leaves of a file.
fn survivor(state: &FileState, policy: Policy, random: &mut Random) -> Content {
    let mut content = state.durable.clone();
    let pending = &state.pending;
    match policy {
        Policy::Kill | Policy::KillInWrite | Policy::PowerNothing => {}
        Policy::PowerPrefix => {
            let kept = random.below(pending.len() + 1);
            pending[..kept].iter().for_each(|change| change.apply(&mut content));
        }
        Policy::PowerTorn => {
            let Some((last, before)) = pending.split_last() else { return content };
            before.iter().for_each(|change| change.apply(&mut content));
            match last {
                Change::Write { offset, bytes } => {
                    content.write(*offset, &bytes[..random.below(bytes.len() + 1)]);
                }
                Change::SetLen(_) if random.one_in(2) => last.apply(&mut content),
                Change::SetLen(_) => {}
            }
        }
        Policy::PowerSectors => survive_by_sectors(&mut content, pending, random),
    }
    content
}

fn survive_by_sectors(content: &mut Content, pending: &[Change], random: &mut Random) {
    // A file's length is one of those it has had.
    let mut lens = vec![content.len()];
    for change in pending {
        let before = lens[lens.len() - 1];
        lens.push(match change {
            Change::Write { offset, bytes } if !bytes.is_empty() => {
                before.max(offset + bytes.len() as u64)
            }
            Change::Write { .. } => before,
            Change::SetLen(len) => *len,
        });
    }
    let len = match random.below(3) {
        0 => lens[random.below(lens.len())],
        _ => lens[lens.len() - 1],
    };
    // Of each sector, the writes up to some moment.
    let mut kept: BTreeMap<u64, usize> = BTreeMap::new();
    let lost_of_four = random.below(5);
    for (number, change) in pending.iter().enumerate() {
        let Change::Write { offset, bytes } = change else {
            change.apply(content);
            continue;
        };
        let (mut at, end) = (*offset, offset + bytes.len() as u64);
        while at < end {
            let sector = at / SECTOR_BYTES;
            let piece_end = end.min((sector + 1) * SECTOR_BYTES);
            let kept = *kept.entry(sector).or_insert_with(|| {
                let lost = random.below(4) < lost_of_four;
                match (lost, random.one_in(2)) {
                    (false, _) => usize::MAX,
                    (true, false) => 0,
                    (true, true) => random.below(pending.len() + 1),
                }
            });
            if number < kept {
                let (from, to) = ((at - offset) as usize, (piece_end - offset) as usize);
                content.write(at, &bytes[from..to]);
            }
            at = piece_end;
        }
    }
    content.set_len(len);
}

#[cfg(test)]
mod tests;
