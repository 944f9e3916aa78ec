//! [`Function`]: a perfect hash function of any number of hashes, in segments, read in place.
//!
//! The bytes: a header, a directory with an entry per segment, then the segments' bodies
//! (`docs/format/perfect-hash.md`).
//!
//! Invariants:
//! 1. The slots of segment `i` follow those of segment `i - 1`.
//! 2. A function that [`Function::open`] returns has bytes for each of its segments.

use super::reduce::{divided, mixed};
use super::segment::{Construction, HEAD_BYTES, Head, SEGMENT_HASHES_MAX, Segment, SegmentBuilder};
use crate::base::error::{Error, Result};

/// Begins every function.
const MAGIC: [u8; 4] = *b"SPPH";
const VERSION: u16 = 1;
/// Magic, version, reserved u16, seed u64, hashes u64, slots u64, segments u32, reserved u32.
const HEADER_BYTES: usize = 40;
/// First slot u64, body's offset u64, head.
const ENTRY_BYTES: usize = 16 + HEAD_BYTES;
/// Hashes per segment where nothing else counts: few enough that a build works in a core's own caches. Not tuned yet.
#[cfg(feature = "hashes")]
pub(crate) const SEGMENT_HASHES: usize = 1 << 15;

/// A function, read in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function<'a> {
    seed: u64,
    hashes: u64,
    slots: u64,
    segments: u32,
    directory: &'a [u8],
    bytes: &'a [u8],
}

/// The segment of a hash, and the hash as the segment sees it.
#[inline(always)]
pub(crate) fn spread(hash: u64, seed: u64, segments: u32) -> (u32, u64) {
    let (segment, spread) = divided(mixed(hash, seed), u64::from(segments));
    (segment as u32, spread)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Function<'a> {
    /// The function of these bytes. Returns what is wrong if they cannot be one.
    pub(crate) fn open(bytes: &'a [u8]) -> std::result::Result<Function<'a>, &'static str> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or("a truncated header")?;
        if header[..4] != MAGIC {
            return Err("another magic number");
        }
        if header[4..8] != [VERSION.to_le_bytes(), [0; 2]].concat() {
            return Err("another version");
        }
        let read = |at| word(header, at).unwrap_or(0);
        let segments = read(32);
        let segments = u32::try_from(segments).map_err(|_| "a reserved field that is not 0")?;
        let directory = bytes
            .get(HEADER_BYTES..)
            .and_then(|rest| rest.get(..(segments as usize).checked_mul(ENTRY_BYTES)?));
        let directory = directory.ok_or("a truncated directory")?;
        let function = Function {
            seed: read(8),
            hashes: read(16),
            slots: read(24),
            segments,
            directory,
            bytes,
        };
        let (mut slot, mut end) = (0, (HEADER_BYTES + directory.len()) as u64);
        for segment in 0..segments {
            let entry = function.entry(segment).ok_or("a damaged directory")?;
            if (entry.first_slot, entry.offset) != (slot, end) {
                return Err("segments that do not follow each other");
            }
            slot += u64::from(entry.head.slots);
            end += entry.head.body_bytes() as u64;
        }
        if slot != function.slots || end != bytes.len() as u64 || function.hashes > slot {
            return Err("sums that are not those of the segments");
        }
        Ok(function)
    }

    #[inline(always)]
    fn entry(&self, segment: u32) -> Option<Entry> {
        let at = segment as usize * ENTRY_BYTES;
        let bytes: &[u8; ENTRY_BYTES] = self.directory.get(at..)?.first_chunk()?;
        let head: &[u8; HEAD_BYTES] = bytes.last_chunk()?;
        Some(Entry {
            first_slot: word(bytes, 0)?,
            offset: word(bytes, 8)?,
            head: Head::decode(head)?,
        })
    }

    /// The slot of a hash. `None` if no hash of the set is in its segment.
    #[inline(always)]
    pub(crate) fn slot(&self, hash: u64) -> Option<u64> {
        let (segment, spread) = spread(hash, self.seed, self.segments);
        let entry = self.entry(segment)?;
        let body = self.bytes.get(entry.offset as usize..)?.get(..entry.head.body_bytes())?;
        Some(entry.first_slot + u64::from(entry.head.slot(body, spread)?))
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }

    /// The number of hashes in the set.
    #[cfg(test)]
    pub(crate) fn hashes(&self) -> u64 {
        self.hashes
    }
}

struct Entry {
    first_slot: u64,
    offset: u64,
    head: Head,
}

/// Builds functions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionBuilder {
    /// How segments are built.
    pub(crate) construction: Construction,
    /// Functions with different seeds have nothing in common.
    pub(crate) seed: u64,
    /// Hashes per segment, on average.
    pub(crate) segment_hashes: usize,
    /// Threads that build segments.
    pub(crate) threads: usize,
}

impl FunctionBuilder {
    /// Builds the function of distinct hashes, in any order.
    ///
    /// # Errors
    /// `InvalidArgument` if two hashes are equal.
    pub(crate) fn build(&self, hashes: &[u64]) -> Result<Vec<u8>> {
        let segment_hashes = self.segment_hashes.clamp(1, SEGMENT_HASHES_MAX / 2);
        let segments = hashes.len().div_ceil(segment_hashes);
        let count = u32::try_from(segments).map_err(|_| Error::invalid("too many hashes"))?;
        let (spread, starts) = self.spread(hashes, count);
        let numbers: Vec<usize> = (0..segments).collect();
        let built: Vec<std::sync::OnceLock<Segment>> =
            (0..segments).map(|_| std::sync::OnceLock::new()).collect();
        let pool = crate::base::sync::Mutex::new(Vec::new());
        crate::jobs::for_each_at_once(self.threads, &numbers, |&segment| {
            let of_segment = &spread[starts[segment]..starts[segment + 1]];
            let builder = pool.lock().pop();
            let mut builder = builder.unwrap_or_else(|| SegmentBuilder::new(self.construction));
            let _ = built[segment].set(builder.build(of_segment)?);
            pool.lock().push(builder);
            Ok(())
        })?;
        let mut out = Vec::new();
        let parts: Vec<Segment> =
            built.into_iter().filter_map(std::sync::OnceLock::into_inner).collect();
        let slots: u64 = parts.iter().map(|part| u64::from(part.head.slots)).sum();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&(hashes.len() as u64).to_le_bytes());
        out.extend_from_slice(&slots.to_le_bytes());
        out.extend_from_slice(&u64::from(count).to_le_bytes());
        let (mut slot, mut offset) = (0u64, (HEADER_BYTES + segments * ENTRY_BYTES) as u64);
        for part in &parts {
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&part.head.encode());
            slot += u64::from(part.head.slots);
            offset += part.body.len() as u64;
        }
        for part in &parts {
            out.extend_from_slice(&part.body);
        }
        Ok(out)
    }

    /// The spread hashes segment by segment, and where each segment begins, with one more at the end.
    fn spread(&self, hashes: &[u64], segments: u32) -> (Vec<u64>, Vec<usize>) {
        let mut starts = vec![0; segments as usize + 1];
        for &hash in hashes {
            starts[spread(hash, self.seed, segments).0 as usize] += 1;
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut spread_hashes = vec![0; hashes.len()];
        for &hash in hashes {
            let (segment, spread) = spread(hash, self.seed, segments);
            let place = &mut starts[segment as usize];
            *place -= 1;
            spread_hashes[*place] = spread;
        }
        (spread_hashes, starts)
    }
}
