//! Crash policies: which pending changes a crash loses.
//!
//! Invariants:
//! 1. The same disk, policy and draw give the same result.
//! 2. Policies without a draw have one result. [`Policy::PowerSubset`] gives each of at most
//!    [`SUBSETS_MAX`] results if there are no more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Disk, FileNumber, FileState, Names, Node, Op};
use crate::content::Content;
use crate::random::Random;

/// Of how many states at most [`Policy::PowerSubset`] is all of them: those of eight changes.
pub const SUBSETS_MAX: u64 = 1 << 8;

/// What a crash takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// The process dies between two operations.
    Kill,
    /// The process dies while it stores bytes: some of the next write are there. Of one to a mapped
    /// file, any pieces: who copies them need not begin at the beginning.
    KillInWrite,
    /// Power fails, and nothing that was not synced is there.
    PowerNothing,
    /// Power fails, and everything is there: all caches were written just before.
    PowerEverything,
    /// Power fails; of each file the first so and so many writes since its sync are there.
    PowerPrefix,
    /// Power fails; each sector is there or not.
    PowerSectors,
    /// Power fails; each sector, each length and each name is there or not. If that makes few
    /// enough states, the draw's number is that of one of them; if changes are few, each of those
    /// is there or not as a whole.
    PowerSubset,
    /// Power fails; all writes are there but a part of the last one to each file.
    PowerTorn,
    /// Power fails; each sector is there or not, and of some the beginning is and the end is not,
    /// or the other way round.
    PowerTornSectors,
    /// Power fails; names and lengths are there, and zeros where bytes were added.
    PowerLengths,
    /// Power fails; names and bytes are there, and no file is longer or shorter than it was.
    PowerContents,
    /// Power fails; all bytes are there, and each change of names or not.
    PowerNames,
    /// Power fails; all names are there, and what files held when they were synced.
    PowerNamesOnly,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 13] = [
        Policy::Kill,
        Policy::KillInWrite,
        Policy::PowerNothing,
        Policy::PowerEverything,
        Policy::PowerPrefix,
        Policy::PowerSectors,
        Policy::PowerSubset,
        Policy::PowerTorn,
        Policy::PowerTornSectors,
        Policy::PowerLengths,
        Policy::PowerContents,
        Policy::PowerNames,
        Policy::PowerNamesOnly,
    ];

    /// One of them.
    pub fn random(random: &mut Random) -> Policy {
        Policy::ALL[random.below(Policy::ALL.len())]
    }

    /// Whether what was stored but not synced survives.
    pub fn keeps_unsynced(self) -> bool {
        matches!(self, Policy::Kill | Policy::KillInWrite)
    }

    /// Whether what is left depends on a draw.
    pub fn is_drawn(self) -> bool {
        use Policy::*;
        !matches!(
            self,
            Kill | PowerNothing | PowerEverything | PowerLengths | PowerContents | PowerNamesOnly
        )
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let named = Policy::ALL.into_iter().find(|policy| policy.to_string() == text);
        named.ok_or_else(|| {
            let names: Vec<String> = Policy::ALL.iter().map(Policy::to_string).collect();
            format!("no policy {text:?}: try {}", names.join(", "))
        })
    }
}

/// Something that power loss decides.
enum Choice {
    /// Whether a change of names is there.
    Names(usize),
    /// How many of the writes to a sector are there.
    Sector { file: FileNumber, sector: u64, writes: Vec<usize> },
    /// Of which moment a file's length is.
    Length { file: FileNumber, moments: Vec<usize> },
}

impl Choice {
    fn alternatives(&self) -> u64 {
        match self {
            Choice::Names(_) => 2,
            Choice::Sector { writes, .. } => writes.len() as u64 + 1,
            Choice::Length { moments, .. } => moments.len() as u64,
        }
    }
}

impl Disk {
    /// What is left after a crash before the operation `next`. After the end of a process alone,
    /// what was on its way still is.
    pub fn crash(&self, policy: Policy, draw: u64, next: Option<&Op>) -> Disk {
        let mut random = Random::new(&[draw]);
        let random = &mut random;
        match policy {
            Policy::Kill => self.clone(),
            Policy::KillInWrite => self.kill_in(next, random),
            Policy::PowerNothing => self.settle(0, random, |file, _| file.durable.clone()),
            Policy::PowerEverything => self.settle(4, random, |file, _| file.all()),
            Policy::PowerPrefix => self.settle(some(random), random, FileState::prefix),
            Policy::PowerSectors => {
                self.settle(some(random), random, |file, random| file.by_sectors(false, random))
            }
            Policy::PowerTornSectors => {
                self.settle(some(random), random, |file, random| file.by_sectors(true, random))
            }
            Policy::PowerTorn => self.settle(some(random), random, FileState::torn),
            Policy::PowerLengths => {
                self.settle(4, random, |file, _| file.with(file.pending.len(), |_| 0))
            }
            Policy::PowerContents => self.settle(4, random, |file, _| file.with(0, |_| usize::MAX)),
            Policy::PowerNames => self.settle(some(random), random, |file, _| file.all()),
            Policy::PowerNamesOnly => self.settle(4, random, |file, _| file.durable.clone()),
            Policy::PowerSubset => self.subset(draw, random),
        }
    }

    /// How many states [`Policy::PowerSubset`] leaves, if the draws below that number are all of
    /// them.
    pub fn subsets(&self) -> Option<u64> {
        let product = product(&self.choices());
        let wholes = 1u64.checked_shl(self.changes() as u32).unwrap_or(u64::MAX);
        Some(if product <= SUBSETS_MAX { product } else { wholes }).filter(|n| *n <= SUBSETS_MAX)
    }

    /// How many changes are on their way.
    fn changes(&self) -> usize {
        let files = self.reachable().into_iter().filter_map(|number| self.files.get(&number));
        self.pending_names.len() + files.map(|file| file.pending.len()).sum::<usize>()
    }

    /// The files that have a name, or may have one after a power loss.
    fn reachable(&self) -> BTreeSet<FileNumber> {
        let pending = self.pending_names.iter().flatten().filter_map(|(_, node)| *node);
        self.names.files().chain(pending.filter_map(Node::file)).collect()
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices: Vec<Choice> = (0..self.pending_names.len()).map(Choice::Names).collect();
        for number in self.reachable() {
            let Some(file) = self.files.get(&number) else { continue };
            let (file, moments) = (file.sectors(), file.moments());
            if moments.len() > 1 {
                choices.push(Choice::Length { file: number, moments });
            }
            choices.extend(file.into_iter().map(|(sector, writes)| Choice::Sector {
                file: number,
                sector,
                writes,
            }));
        }
        choices
    }

    fn subset(&self, mut draw: u64, random: &mut Random) -> Disk {
        let choices = self.choices();
        if product(&choices) > SUBSETS_MAX {
            return self.subset_of_wholes(draw, random);
        }
        let mut names = self.names.clone();
        let mut lengths: BTreeMap<FileNumber, usize> = BTreeMap::new();
        let mut sectors: BTreeMap<(FileNumber, u64), usize> = BTreeMap::new();
        for choice in &choices {
            let (taken, left) = (draw % choice.alternatives(), draw / choice.alternatives());
            draw = left;
            match choice {
                Choice::Names(_) if taken == 0 => {}
                Choice::Names(number) => names.change(&self.pending_names[*number]),
                Choice::Length { file, moments } => {
                    lengths.insert(*file, moments[taken as usize]);
                }
                Choice::Sector { file, sector, writes } => {
                    let kept = writes.get(taken as usize).copied().unwrap_or(usize::MAX);
                    sectors.insert((*file, *sector), kept);
                }
            }
        }
        self.left(names, |number, file| {
            let moment = lengths.get(&number).copied().unwrap_or(0);
            file.with(moment, |sector| sectors.get(&(number, sector)).copied().unwrap_or(0))
        })
    }

    /// Each change is there or not as a whole, as the bits of `draw` say. A sector holds what it
    /// held after the last of those that are there.
    fn subset_of_wholes(&self, draw: u64, random: &mut Random) -> Disk {
        let few = self.changes() <= SUBSETS_MAX.trailing_zeros() as usize;
        let mut bits = draw;
        let mut is_there = || match few {
            false => random.one_in(2),
            true => {
                let bit = bits & 1;
                bits >>= 1;
                bit == 1
            }
        };
        let mut names = self.names.clone();
        for changes in &self.pending_names {
            if is_there() {
                names.change(changes);
            }
        }
        let mut there: BTreeMap<FileNumber, Vec<bool>> = BTreeMap::new();
        for number in self.reachable() {
            let pending = self.files.get(&number).map_or(0, |file| file.pending.len());
            there.insert(number, (0..pending).map(|_| is_there()).collect());
        }
        self.left(names, |number, file| {
            let Some(there) = there.get(&number) else { return file.durable.clone() };
            let sectors = file.sectors();
            let last = there.iter().rposition(|is_there| *is_there).map_or(0, |last| last + 1);
            file.with(last, |sector| {
                let writes = sectors.get(&sector).map_or(&[][..], Vec::as_slice);
                let last = writes.iter().rev().find(|write| there[**write]);
                last.map_or(0, |last| last + 1)
            })
        })
    }

    /// The process ends amid the operation `next`.
    fn kill_in(&self, next: Option<&Op>, random: &mut Random) -> Disk {
        let mut disk = self.clone();
        let Some(Op::Write { file, offset, bytes, mapped }) = next else { return disk };
        let mut put = |from: usize, to: usize| {
            let (offset, bytes) = (offset + from as u64, Arc::from(&bytes[from..to]));
            disk.apply(&Op::Write { file: *file, offset, bytes, mapped: *mapped });
        };
        if !mapped || random.one_in(2) {
            put(0, random.below(bytes.len()));
            return disk;
        }
        // What one instruction copies is there or not.
        let piece = [1, 8, 16, 32, 64][random.below(5)];
        for from in (0..bytes.len()).step_by(piece) {
            if random.one_in(2) {
                put(from, bytes.len().min(from + piece));
            }
        }
        disk
    }

    /// Of four changes of names `names_of_four` are kept, and of each file what `survivor` says.
    fn settle(
        &self,
        names_of_four: usize,
        random: &mut Random,
        mut survivor: impl FnMut(&FileState, &mut Random) -> Content,
    ) -> Disk {
        let mut names = self.names.clone();
        for changes in &self.pending_names {
            if random.below(4) < names_of_four {
                names.change(changes);
            }
        }
        self.left(names, |_, file| survivor(file, random))
    }

    /// A disk with those of `names` whose directories are there too.
    fn left(
        &self,
        mut names: Names,
        mut survivor: impl FnMut(FileNumber, &FileState) -> Content,
    ) -> Disk {
        names.remove_lost();
        let kept: BTreeSet<FileNumber> = names.files().collect();
        let files = kept.into_iter().map(|number| {
            let durable = match self.files.get(&number) {
                Some(file) if file.pending.is_empty() => file.durable.clone(),
                Some(file) => survivor(number, file),
                None => Content::default(),
            };
            (number, FileState { durable, ..FileState::default() })
        });
        Disk { files: files.collect(), names, pending_names: Vec::new(), last_file: self.last_file }
    }
}

/// How many states the choices make.
fn product(choices: &[Choice]) -> u64 {
    choices.iter().map(Choice::alternatives).fold(1, u64::saturating_mul)
}

/// Mostly some, now and then all or none: which is what most machines do most of the time.
fn some(random: &mut Random) -> usize {
    [0, 1, 2, 3, 4, 4][random.below(6)]
}
