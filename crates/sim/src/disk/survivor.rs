//! The content of one file after a power loss.
//!
//! Invariants:
//! 1. A sector has the result of a prefix of its pending writes: if one is lost, so are all later
//!    ones to the same sector.
//! 2. A file's length, with the effect of truncation, is that of some moment since its sync,
//!    whatever the state of its sectors.

use std::collections::BTreeMap;

use super::{Change, FileState};
use crate::content::Content;
use crate::random::Random;

/// The size of what drives write at once.
pub(super) const SECTOR_BYTES: u64 = 512;

/// What is never torn of a mapped file.
const WORD_BYTES: usize = 8;

impl FileState {
    /// The file's length after each so and so many of the pending changes.
    fn lens(&self) -> Vec<u64> {
        let mut lens = vec![self.durable.len()];
        for change in &self.pending {
            let before = lens[lens.len() - 1];
            lens.push(match change {
                Change::Write { bytes, .. } if bytes.is_empty() => before,
                Change::Write { offset, bytes } => before.max(offset + bytes.len() as u64),
                Change::SetLen(len) => *len,
            });
        }
        lens
    }

    /// The moments at which the length, or what has been cut off, is another than before.
    pub(super) fn moments(&self) -> Vec<usize> {
        let lens = self.lens();
        let changed = (1..lens.len()).filter(|&moment| lens[moment] != lens[moment - 1]);
        std::iter::once(0).chain(changed).collect()
    }

    /// The sectors with pending writes, and which writes those are.
    pub(super) fn sectors(&self) -> BTreeMap<u64, Vec<usize>> {
        let mut sectors: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (number, change) in self.pending.iter().enumerate() {
            let Change::Write { offset, bytes } = change else { continue };
            if bytes.is_empty() {
                continue;
            }
            let last = (offset + bytes.len() as u64 - 1) / SECTOR_BYTES;
            for sector in offset / SECTOR_BYTES..=last {
                sectors.entry(sector).or_default().push(number);
            }
        }
        sectors
    }

    /// The file with the length of `moment`, and in each sector the pending writes before the
    /// number that `kept` gives.
    pub(super) fn with(&self, moment: usize, kept: impl FnMut(u64) -> usize) -> Content {
        let mut content = self.with_any_length(moment, kept);
        content.set_len(self.lens()[moment]);
        content
    }

    fn with_any_length(&self, moment: usize, mut kept: impl FnMut(u64) -> usize) -> Content {
        let mut content = self.durable.clone();
        for (number, change) in self.pending.iter().enumerate() {
            let Change::Write { offset, bytes } = change else {
                if number < moment {
                    change.apply(&mut content);
                }
                continue;
            };
            let (mut at, end) = (*offset, offset + bytes.len() as u64);
            while at < end {
                let sector = at / SECTOR_BYTES;
                let piece_end = end.min((sector + 1) * SECTOR_BYTES);
                if number < kept(sector) {
                    let (from, to) = ((at - offset) as usize, (piece_end - offset) as usize);
                    content.write(at, &bytes[from..to]);
                }
                at = piece_end;
            }
        }
        content
    }

    /// Everything has arrived.
    pub(super) fn all(&self) -> Content {
        let mut content = self.durable.clone();
        self.pending.iter().for_each(|change| change.apply(&mut content));
        content
    }

    /// The first so and so many changes have arrived.
    pub(super) fn prefix(&self, random: &mut Random) -> Content {
        let mut content = self.durable.clone();
        let kept = random.below(self.pending.len() + 1);
        self.pending[..kept].iter().for_each(|change| change.apply(&mut content));
        content
    }

    /// All has arrived but a part of the last change.
    pub(super) fn torn(&self, random: &mut Random) -> Content {
        let mut content = self.durable.clone();
        let Some((last, before)) = self.pending.split_last() else { return content };
        before.iter().for_each(|change| change.apply(&mut content));
        match last {
            Change::Write { offset, bytes } => {
                content.write(*offset, &bytes[..random.below(bytes.len() + 1)]);
            }
            Change::SetLen(_) if random.one_in(2) => last.apply(&mut content),
            Change::SetLen(_) => {}
        }
        content
    }

    /// Each sector is in one of the states that it has had; where `torn`, some of them are in two.
    pub(super) fn by_sectors(&self, torn: bool, random: &mut Random) -> Content {
        let moment = match random.below(3) {
            0 => random.below(self.pending.len() + 1),
            _ => self.pending.len(),
        };
        let lost_of_four = random.below(5);
        let sectors = self.sectors();
        let mut draw = |writes: &[usize]| match random.below(4) < lost_of_four {
            false => usize::MAX,
            true if random.one_in(2) => 0,
            true => writes[random.below(writes.len())],
        };
        let kept: BTreeMap<u64, usize> =
            sectors.iter().map(|(sector, writes)| (*sector, draw(writes))).collect();
        let mut content = self.with_any_length(moment, |sector| kept[&sector]);
        if torn {
            let others: BTreeMap<u64, usize> =
                sectors.iter().map(|(sector, writes)| (*sector, draw(writes))).collect();
            let other = self.with_any_length(moment, |sector| others[&sector]);
            for sector in sectors.keys().filter(|sector| kept[sector] != others[sector]) {
                // Journal and manifest tell what never arrived from damage by whole words that are
                // missing.
                let words = SECTOR_BYTES as usize / WORD_BYTES;
                let cut = WORD_BYTES * (1 + random.below(words - 1));
                let mut bytes = [0; SECTOR_BYTES as usize];
                let start = sector * SECTOR_BYTES;
                other.read_some(start, &mut bytes);
                // Drives write from either end.
                match random.one_in(2) {
                    true => content.write(start, &bytes[..cut]),
                    false => content.write(start + cut as u64, &bytes[cut..]),
                }
            }
        }
        content.set_len(self.lens()[moment]);
        content
    }
}
