//! [`Segment`]: a perfect hash function of a set small enough to be built at once.
//!
//! Its hashes are *spread*: distinct, and uniform over 64 bits ([`Function`](super::Function) sees to both).
//! The bytes of a segment are a head, which may stand apart, and a body: the parameters of its buckets, then
//! the side list.
//!
//! Invariants:
//! 1. A head that [`Head::decode`] returns describes a body of [`Head::body_bytes`] bytes, and every slot that
//!    it gives is below [`Head::slots`].
//! 2. `attempt` determines how hashes are mixed before they select a bucket, and how many slots there are; the
//!    first attempt that succeeds is taken.

use super::buckets::Sizes;
use super::displacement::{self, DisplacementScratch};
use super::pilots::{self, PilotScratch};
use super::reduce::mixed;
use crate::base::error::{Error, Result};

/// How a segment is built. On disk: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Construction {
    /// CPHash of the CompassDB paper: a pair of parameters per bucket, from a dictionary.
    Displacement = 1,
    /// One byte per bucket, found by moving buckets that are in the way.
    Pilots = 2,
}

impl Construction {
    fn of_tag(tag: u8) -> Option<Construction> {
        [Construction::Displacement, Construction::Pilots].into_iter().find(|c| *c as u8 == tag)
    }

    /// The number of slots for so many hashes in this attempt (section 4.1.1 of the paper: more space after a
    /// number of attempts).
    fn slots(self, hashes: usize, attempt: u8) -> usize {
        let slots = match self {
            // The paper's scale factor is 1.1.
            Construction::Displacement => hashes + hashes.div_ceil(10),
            // Half as many more make building a tenth slower.
            Construction::Pilots => hashes + hashes / 50 + 1,
        };
        slots + slots / 32 * usize::from(attempt / ATTEMPTS_BEFORE_GROWTH)
    }
}

/// Attempts with the same number of slots.
const ATTEMPTS_BEFORE_GROWTH: u8 = 3;
/// After so many attempts, all hashes go to the side list.
const ATTEMPTS_MAX: u8 = 24;
/// The size of an encoded head.
pub(crate) const HEAD_BYTES: usize = 16;
/// The size of an entry of the side list.
const SIDE_BYTES: usize = 8;
/// The most hashes of a segment.
pub(crate) const SEGMENT_HASHES_MAX: usize = 1 << 24;

/// What a segment is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The number of slots.
    pub(crate) slots: u32,
    pub(super) buckets: u32,
    /// The number of pairs of parameters; with [`Construction::Pilots`], none.
    dictionary: u32,
    attempt: u8,
    construction: Construction,
    /// All hashes are in the side list.
    aside: bool,
}

impl Head {
    /// Encodes the head.
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.slots.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.buckets.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.dictionary.to_le_bytes());
        bytes[12] = self.attempt;
        bytes[13] = self.construction as u8;
        bytes[14] = u8::from(self.aside);
        bytes
    }

    /// Decodes a head. Returns `None` if it cannot be one.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Head> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let head = Head {
            slots: word(0)?,
            buckets: word(4)?,
            dictionary: word(8)?,
            attempt: bytes[12],
            construction: Construction::of_tag(bytes[13])?,
            aside: bytes[14] == 1,
        };
        let dictionary = match head.construction {
            Construction::Displacement if head.buckets > 0 => {
                1..=displacement::DICTIONARY_LEN_MAX as u32
            }
            _ => 0..=0,
        };
        let right = bytes[14] <= 1
            && bytes[15] == 0
            && head.slots as usize <= 2 * SEGMENT_HASHES_MAX
            && head.buckets <= head.slots.saturating_add(1)
            && (head.buckets > 0) == (head.slots > 0 && !head.aside)
            && dictionary.contains(&head.dictionary);
        right.then_some(head)
    }

    #[inline(always)]
    fn sizes(&self) -> Sizes {
        Sizes { slots: self.slots, buckets: self.buckets, dictionary: self.dictionary }
    }

    /// The attempt that succeeded.
    #[cfg(test)]
    pub(super) fn attempt(&self) -> u8 {
        self.attempt
    }

    /// The size of the body.
    pub(crate) fn body_bytes(&self) -> usize {
        if self.aside {
            return self.slots as usize * SIDE_BYTES;
        }
        match self.construction {
            Construction::Displacement => displacement::body_bytes(&self.sizes()),
            Construction::Pilots => self.buckets as usize,
        }
    }

    /// The slot of a spread hash. `None` if the segment has no slots, or `body` is not of the size that the
    /// head says.
    #[inline(always)]
    pub(crate) fn slot(&self, body: &[u8], spread: u64) -> Option<u32> {
        if self.aside {
            return self.slot_aside(body, spread);
        }
        let spread = again(spread, self.attempt);
        match self.construction {
            Construction::Displacement => displacement::slot(&self.sizes(), body, spread),
            Construction::Pilots => pilots::slot(&self.sizes(), body, spread),
        }
    }

    #[cold]
    fn slot_aside(&self, body: &[u8], spread: u64) -> Option<u32> {
        let (listed, _) = body.as_chunks::<SIDE_BYTES>();
        if self.slots == 0 || listed.len() != self.slots as usize {
            return None;
        }
        let place = listed.partition_point(|bytes| u64::from_le_bytes(*bytes) < spread);
        Some(place.min(listed.len() - 1) as u32)
    }
}

/// A spread hash in a later attempt.
#[inline(always)]
fn again(spread: u64, attempt: u8) -> u64 {
    if attempt == 0 { spread } else { mixed(spread, u64::from(attempt)) }
}

/// A segment in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Segment {
    /// As [`Head::slot`].
    #[cfg(test)]
    pub(crate) fn slot(&self, spread: u64) -> Option<u32> {
        self.head.slot(&self.body, spread)
    }
}

/// Builds segments, one after another, with the same buffers.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    construction: Construction,
    mixed: Vec<u64>,
    displacement: DisplacementScratch,
    pilots: PilotScratch,
    attempts_max: u8,
}

impl SegmentBuilder {
    /// A builder of segments of this construction.
    pub(crate) fn new(construction: Construction) -> SegmentBuilder {
        SegmentBuilder {
            construction,
            mixed: Vec::new(),
            displacement: DisplacementScratch::default(),
            pilots: PilotScratch::default(),
            attempts_max: ATTEMPTS_MAX,
        }
    }

    /// A builder that gives up at once, for tests of the side list.
    #[cfg(test)]
    pub(crate) fn that_gives_up(construction: Construction) -> SegmentBuilder {
        SegmentBuilder { attempts_max: 0, ..SegmentBuilder::new(construction) }
    }

    /// Builds the segment of distinct spread hashes, at most [`SEGMENT_HASHES_MAX`].
    ///
    /// # Errors
    /// `InvalidArgument` if two hashes are equal, or there are too many.
    pub(crate) fn build(&mut self, spread: &[u64]) -> Result<Segment> {
        if spread.len() > SEGMENT_HASHES_MAX {
            sorted_distinct(spread)?;
            return Err(Error::invalid("too many hashes for a segment of a perfect hash function"));
        }
        let construction = self.construction;
        let empty =
            Head { slots: 0, buckets: 0, dictionary: 0, attempt: 0, construction, aside: false };
        if spread.is_empty() {
            return Ok(Segment { head: empty, body: Vec::new() });
        }
        for attempt in 0..self.attempts_max {
            self.mixed.clear();
            self.mixed.extend(spread.iter().map(|&spread| again(spread, attempt)));
            let slots = construction.slots(spread.len(), attempt);
            let built = match construction {
                Construction::Displacement => self.displacement.build(&self.mixed, slots),
                Construction::Pilots => self.pilots.build(&self.mixed, slots),
            };
            if let Some(built) = built {
                let head = Head {
                    slots: slots as u32,
                    buckets: built.buckets,
                    dictionary: built.dictionary,
                    attempt,
                    ..empty
                };
                debug_assert_eq!(built.body.len(), head.body_bytes());
                return Ok(Segment { head, body: built.body });
            }
            if attempt == 0 {
                sorted_distinct(spread)?;
            }
        }
        let body =
            sorted_distinct(spread)?.iter().flat_map(|spread| spread.to_le_bytes()).collect();
        Ok(Segment { head: Head { slots: spread.len() as u32, aside: true, ..empty }, body })
    }
}

/// The hashes in order, or an error if two are equal: then no attempt can succeed.
#[cold]
fn sorted_distinct(spread: &[u64]) -> Result<Vec<u64>> {
    let mut sorted = spread.to_vec();
    sorted.sort_unstable();
    if sorted.windows(2).any(|two| two[0] == two[1]) {
        return Err(Error::invalid("a perfect hash function of equal hashes"));
    }
    Ok(sorted)
}
