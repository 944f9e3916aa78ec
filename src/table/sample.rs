//! A sample of a table's keys: all keys whose hash is below a threshold.
//!
//! Tables of one keyspace sample the same keys. The samples of several tables therefore show how
//! much of one table's data is also in another, without reading either. A sampled key has its
//! position in the table, the size of its versions, and its newest version.
//!
//! Invariants:
//! 1. A sample holds every key of its table whose hash is below `threshold`, and no other.
//! 2. Keys are in ascending order of hash, then of position.
//! 3. If a key's newest versions are operands above a put or a delete in the same table, the sample
//!    describes their combined value, as a put. Its size is an estimate.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::base::codec::{Decoder, put_varint};
use crate::base::entry::EntryKind;
use crate::base::error::Result;

/// A threshold above all hashes: the sample has every key.
pub(crate) const SAMPLE_ALL: u64 = 1 << 32;

/// Operands up to this size that are as long as the value are assumed to replace it (counters);
/// others are assumed to make it longer.
const COUNTER_BYTES_MAX: u32 = 16;

/// Estimates the size of the value after `count` operands of `operands` bytes, the newest of
/// `operand` bytes.
pub(crate) fn folded_bytes(value: Option<u32>, operand: u32, operands: u32, count: u32) -> u32 {
    let counts = operand <= COUNTER_BYTES_MAX
        && operands == operand.saturating_mul(count)
        && value.is_none_or(|value| value == operand);
    if counts { operand } else { value.unwrap_or(0).saturating_add(operands) }
}

/// A flag with the kind of a sampled key: its older versions have values in blob files.
const OLDER_BLOBS: u8 = 0x80;
/// A flag with the kind of a sampled key: operands are folded into it.
const FOLDED: u8 = 0x40;

/// A key of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampledKey {
    /// The high half of the key's hash.
    pub(crate) hash: u32,
    /// The number of the table's entries before the key's first.
    pub(crate) position: u32,
    /// The size of the keys and values of all its versions, in bytes.
    pub(crate) bytes: u32,
    /// The size of the key and value of the newest version, or of the folded value, in bytes.
    pub(crate) newest_bytes: u32,
    /// The size of that version's value if it is in a blob file, in bytes.
    pub(crate) blob_bytes: u32,
    /// The size of all its versions' values in blob files, in bytes.
    pub(crate) blob_bytes_all: u32,
    /// The size of the key in bytes.
    pub(crate) key_bytes: u16,
    /// The number of versions; 255 stands for 255 or more.
    pub(crate) versions: u8,
    /// The kind of the newest version, or of the folded value.
    pub(crate) kind: EntryKind,
    /// True if operands are folded: the size of the value is an estimate.
    pub(crate) is_folded: bool,
}

impl SampledKey {
    /// The approximate number of versions. If there are many, as many as fit into their bytes.
    pub(crate) fn version_count(&self) -> u32 {
        match self.versions {
            u8::MAX => (self.bytes / self.newest_bytes.max(1)).max(u32::from(u8::MAX)),
            versions => u32::from(versions),
        }
    }

    /// True if blob files have more of it than its kind tells.
    fn has_older_blobs(&self) -> bool {
        self.blob_bytes_all != if self.kind.is_blob() { self.blob_bytes } else { 0 }
    }
}

impl Ord for SampledKey {
    fn cmp(&self, other: &SampledKey) -> Ordering {
        (self.hash, self.position).cmp(&(other.hash, other.position))
    }
}

impl PartialOrd for SampledKey {
    fn partial_cmp(&self, other: &SampledKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The sample of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeySample {
    threshold: u64,
    keys: Box<[SampledKey]>,
}

impl KeySample {
    /// Hashes below this are in the sample.
    pub(crate) fn threshold(&self) -> u64 {
        self.threshold
    }

    /// The keys with hashes below `threshold`.
    pub(crate) fn below(&self, threshold: u64) -> &[SampledKey] {
        let end = self.keys.partition_point(|key| u64::from(key.hash) < threshold);
        &self.keys[..end]
    }

    /// The share of the sampled keys' bytes in versions older than the newest.
    pub(crate) fn old_share(&self) -> f64 {
        let sum = |of: fn(&SampledKey) -> u32| self.keys.iter().map(|key| u64::from(of(key))).sum();
        let (all, newest): (u64, u64) = (sum(|key| key.bytes), sum(|key| key.newest_bytes));
        all.saturating_sub(newest) as f64 / all.max(1) as f64
    }

    /// Memory used.
    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.keys) as u64
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.threshold);
        put_varint(out, self.keys.len() as u64);
        let mut before = 0;
        for key in &self.keys {
            put_varint(out, u64::from(key.hash - before));
            before = key.hash;
            put_varint(out, u64::from(key.position));
            put_varint(out, u64::from(key.bytes));
            put_varint(out, u64::from(key.newest_bytes));
            put_varint(out, u64::from(key.key_bytes));
            let older = if key.has_older_blobs() { OLDER_BLOBS } else { 0 };
            let folded = if key.is_folded { FOLDED } else { 0 };
            out.extend_from_slice(&[key.versions, key.kind as u8 | older | folded]);
            if key.kind.is_blob() {
                put_varint(out, u64::from(key.blob_bytes));
            }
            if older != 0 {
                put_varint(out, u64::from(key.blob_bytes_all));
            }
        }
    }

    pub(super) fn decode(from: &mut Decoder<'_>) -> Result<KeySample> {
        let threshold = from.varint("sample threshold")?;
        if threshold > SAMPLE_ALL {
            return Err(from.corrupt("sample threshold", "at most 2^32", threshold));
        }
        let count = from.count(7, "sampled keys")?;
        let mut keys: Vec<SampledKey> = Vec::with_capacity(count);
        let mut before = 0u64;
        for _ in 0..count {
            let hash = before.saturating_add(from.varint("hash of a sampled key")?);
            if hash >= threshold {
                let expected = format_args!("below {threshold}");
                return Err(from.corrupt("hash of a sampled key", expected, hash));
            }
            before = hash;
            let mut number = |what| {
                let n = from.varint(what)?;
                u32::try_from(n).map_err(|_| from.corrupt(what, "32 bits", n))
            };
            let position = number("position of a sampled key")?;
            let bytes = number("bytes of a sampled key")?;
            let newest_bytes = number("bytes of a newest version")?;
            let key_bytes = number("length of a sampled key")?;
            let key_bytes = u16::try_from(key_bytes)
                .map_err(|_| from.corrupt("length of a sampled key", "16 bits", key_bytes))?;
            let versions = from.u8("versions of a sampled key")?;
            let tag = from.u8("kind of a sampled key")?;
            let kind = EntryKind::from_tag(tag & !(OLDER_BLOBS | FOLDED))
                .ok_or_else(|| from.corrupt("kind of a sampled key", "a known kind", tag))?;
            let mut number = |what| {
                let n = from.varint(what)?;
                u32::try_from(n).map_err(|_| from.corrupt(what, "32 bits", n))
            };
            let blob_bytes =
                if kind.is_blob() { number("blob bytes of a sampled key")? } else { 0 };
            let blob_bytes_all = match tag & OLDER_BLOBS {
                0 => blob_bytes,
                _ => number("blob bytes of a sampled key's versions")?,
            };
            keys.push(SampledKey {
                hash: hash as u32,
                position,
                bytes,
                newest_bytes,
                blob_bytes,
                blob_bytes_all,
                key_bytes,
                versions,
                kind,
                is_folded: tag & FOLDED != 0,
            });
        }
        Ok(KeySample { threshold, keys: keys.into() })
    }
}

/// How many keys a table's sample may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleLimit {
    /// However small the table is.
    pub(crate) keys_min: usize,
    /// However large it is.
    pub(crate) keys_max: usize,
    /// Between them: a key for each so many bytes of keys and values.
    pub(crate) bytes_per_key: u64,
}

impl SampleLimit {
    /// The same for all tables.
    pub(crate) fn keys(keys: usize) -> SampleLimit {
        SampleLimit { keys_min: keys, keys_max: keys, bytes_per_key: 1 }
    }

    fn of(&self, entry_bytes: u64) -> usize {
        let keys = usize::try_from(entry_bytes / self.bytes_per_key.max(1)).unwrap_or(usize::MAX);
        keys.max(self.keys_min).min(self.keys_max)
    }
}

/// Chooses the sample of a table under construction: the keys with the smallest hashes, up to a
/// maximum number.
pub(super) struct KeySampler {
    limit: SampleLimit,
    threshold: u64,
    /// The greatest hash on top.
    keys: BinaryHeap<SampledKey>,
    /// The key that is being added, if it is in the sample so far.
    current: Option<SampledKey>,
    /// While all its versions are operands: their size and number.
    operands: (u32, u32),
}

impl KeySampler {
    pub(super) fn new(limit: SampleLimit) -> KeySampler {
        let threshold = if limit.keys_max == 0 { 0 } else { SAMPLE_ALL };
        KeySampler { limit, threshold, keys: BinaryHeap::new(), current: None, operands: (0, 0) }
    }

    /// Adds the newest version of the next key, which has so many entries of the table before it.
    #[inline]
    pub(super) fn add_key(
        &mut self,
        hash: u64,
        position: u64,
        (key_bytes, value_bytes): (usize, usize),
        kind: EntryKind,
        blob_bytes: u32,
    ) {
        let hash = (hash >> 32) as u32;
        if self.current.is_none() && u64::from(hash) >= self.threshold {
            return;
        }
        self.keep_current();
        if u64::from(hash) >= self.threshold {
            return;
        }
        let Ok(position) = u32::try_from(position) else { return };
        let bytes = clamp(key_bytes + value_bytes);
        self.current = Some(SampledKey {
            hash,
            position,
            bytes,
            newest_bytes: bytes,
            blob_bytes,
            blob_bytes_all: blob_bytes,
            key_bytes: key_bytes.min(usize::from(u16::MAX)) as u16,
            versions: 1,
            kind,
            is_folded: false,
        });
        self.operands = (clamp(value_bytes), 1);
    }

    /// Adds an older version of the same key.
    #[inline]
    pub(super) fn add_version(
        &mut self,
        (key_bytes, value_bytes): (usize, usize),
        kind: EntryKind,
        blob_bytes: u32,
    ) {
        if let Some(current) = &mut self.current {
            current.bytes = current.bytes.saturating_add(clamp(key_bytes + value_bytes));
            current.blob_bytes_all = current.blob_bytes_all.saturating_add(blob_bytes);
            current.versions = current.versions.saturating_add(1);
            if current.kind == EntryKind::Merge {
                self.fold(kind, clamp(value_bytes), blob_bytes);
            }
        }
    }

    /// Adds an older version of a key whose versions so far are operands.
    #[cold]
    fn fold(&mut self, kind: EntryKind, value_bytes: u32, blob_bytes: u32) {
        let Some(current) = &mut self.current else { return };
        let (operands, count) = self.operands;
        let key_bytes = u32::from(current.key_bytes);
        let operand = current.newest_bytes.saturating_sub(key_bytes);
        match kind {
            EntryKind::Merge => {
                self.operands = (operands.saturating_add(value_bytes), count.saturating_add(1));
            }
            EntryKind::Put | EntryKind::Delete => {
                let value = (kind == EntryKind::Put).then_some(value_bytes);
                let folded = folded_bytes(value, operand, operands, count);
                current.newest_bytes = key_bytes.saturating_add(folded);
                current.kind = EntryKind::Put;
                current.is_folded = true;
            }
            EntryKind::PutBlob => {
                current.newest_bytes = key_bytes.saturating_add(value_bytes);
                current.blob_bytes = blob_bytes.saturating_add(operands);
                current.kind = EntryKind::PutBlob;
                current.is_folded = true;
            }
            // A value in a blob file stays beside the operands.
            EntryKind::MergeBlob | EntryKind::RangeDelete => {}
        }
    }

    #[cold]
    fn keep_current(&mut self) {
        let Some(current) = self.current.take() else { return };
        self.keys.push(current);
        if self.keys.len() <= self.limit.keys_max {
            return;
        }
        // All keys with the greatest hash are removed, because a threshold cannot separate equal
        // hashes.
        let Some(greatest) = self.keys.pop() else { return };
        self.threshold = u64::from(greatest.hash);
        while self.keys.peek().is_some_and(|key| key.hash == greatest.hash) {
            self.keys.pop();
        }
    }

    /// The sample of a table that has so many bytes of keys and values.
    pub(super) fn finish(mut self, entry_bytes: u64) -> KeySample {
        self.keep_current();
        let mut keys = self.keys.into_sorted_vec();
        if let Some(first) = keys.get(self.limit.of(entry_bytes)) {
            // Keys of equal hashes go together.
            let hash = first.hash;
            keys.truncate(keys.partition_point(|key| key.hash < hash));
            self.threshold = u64::from(hash);
        }
        KeySample { threshold: self.threshold, keys: keys.into() }
    }
}

fn clamp(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::key_hash::hash_key;

    fn sample(keys: impl Iterator<Item = u32>, keys_max: usize) -> KeySample {
        let mut sampler = KeySampler::new(SampleLimit::keys(keys_max));
        for key in keys {
            let hash = hash_key(&key.to_be_bytes());
            sampler.add_key(hash, u64::from(key) * 2, (4, 10), EntryKind::Put, 0);
            sampler.add_version((4, 3), EntryKind::Put, 0);
        }
        sampler.finish(0)
    }

    /// Tables of 800 KiB whose memtables have 256 KiB had samples of 256 keys. What was live of 8,000 pairs was then off by
    /// up to 12%.
    #[test]
    fn samples_are_as_large_as_their_tables_allow() {
        let limit = SampleLimit { keys_min: 10, keys_max: 100, bytes_per_key: 10 };
        let sample_of = |limit: SampleLimit, entry_bytes: u64| {
            let mut sampler = KeySampler::new(limit);
            for key in 0..1000u32 {
                // Each hash is that of two keys.
                let hash = hash_key(&(key / 2).to_be_bytes());
                sampler.add_key(hash, u64::from(key), (4, 10), EntryKind::Put, 0);
            }
            sampler.finish(entry_bytes)
        };
        for (entry_bytes, keys) in [(0, 10), (99, 10), (210, 21), (1000, 100), (1 << 40, 100)] {
            let sample = sample_of(limit, entry_bytes);
            assert_eq!(sample, sample_of(SampleLimit::keys(keys), 0), "{entry_bytes} bytes");
            assert_eq!(sample.keys.len(), keys / 2 * 2);
        }
    }

    /// The common part of two samples is the sample of the common keys.
    #[test]
    fn samples_tell_how_many_keys_two_tables_share() {
        let (a, b) = (sample(0..10_000, 500), sample(5_000..25_000, 500));
        assert_eq!((a.keys.len(), b.keys.len()), (500, 500));
        let threshold = a.threshold().min(b.threshold());
        let hashes = |s: &KeySample| s.below(threshold).iter().map(|k| k.hash).collect::<Vec<_>>();
        let (a, b) = (hashes(&a), hashes(&b));
        let shared = a.iter().filter(|hash| b.contains(hash)).count() as f64;
        let union = a.len() as f64 + b.len() as f64 - shared;
        assert!((shared / union - 0.2).abs() < 0.05, "{shared} of {union}");
        let keys = union * (SAMPLE_ALL as f64 / threshold as f64);
        assert!((keys / 25_000.0 - 1.0).abs() < 0.1, "{keys} keys");
    }

    #[test]
    fn a_small_table_is_sampled_whole_and_a_sample_may_be_empty() {
        let all = sample(0..100, 100);
        assert_eq!((all.threshold(), all.keys.len()), (SAMPLE_ALL, 100));
        assert!(all.keys.iter().all(|key| (key.bytes, key.newest_bytes) == (21, 14)));
        assert!(all.keys.iter().all(|key| (key.versions, key.key_bytes) == (2, 4)));
        let none = sample(0..100, 0);
        assert_eq!((none.threshold(), none.keys.len()), (0, 0));
    }

    #[test]
    fn hashes_that_are_equal_stay_or_go_together() {
        let mut sampler = KeySampler::new(SampleLimit::keys(3));
        for (position, hash) in [5, 9, 9, 9, 9, 2].into_iter().enumerate() {
            sampler.add_key(hash << 32, position as u64, (1, 1), EntryKind::Put, 0);
        }
        let sample = sampler.finish(0);
        let hashes: Vec<u32> = sample.keys.iter().map(|key| key.hash).collect();
        assert_eq!((sample.threshold(), hashes), (9, vec![2, 5]));
    }

    /// A put and operands in one memtable were taken for operands alone, and added to the value
    /// that the put had replaced. The live bytes of a store of puts and merges were a fifth too
    /// high.
    #[test]
    fn operands_above_a_put_or_a_delete_are_a_put() {
        let folded = |versions: &[(EntryKind, usize)]| {
            let mut sampler = KeySampler::new(SampleLimit::keys(1));
            for (at, &(kind, value)) in versions.iter().enumerate() {
                let blob = if kind.is_blob() { 5000 } else { 0 };
                match at {
                    0 => sampler.add_key(0, 0, (3, value), kind, blob),
                    _ => sampler.add_version((3, value), kind, blob),
                }
            }
            let key = sampler.finish(0).keys[0];
            (key.kind, key.newest_bytes, key.blob_bytes)
        };
        use EntryKind::{Delete, Merge, MergeBlob, Put, PutBlob};
        assert_eq!(folded(&[(Merge, 5), (Merge, 6), (Put, 100), (Put, 7)]), (Put, 114, 0));
        assert_eq!(folded(&[(Merge, 8), (Merge, 8), (Put, 8)]), (Put, 11, 0));
        assert_eq!(folded(&[(Merge, 20), (Delete, 0), (Put, 9)]), (Put, 23, 0));
        assert_eq!(folded(&[(Merge, 20), (PutBlob, 24)]), (PutBlob, 27, 5020));
        assert_eq!(folded(&[(Merge, 20), (Merge, 9)]), (Merge, 23, 0));
        assert_eq!(folded(&[(MergeBlob, 24), (Put, 9)]), (MergeBlob, 27, 5000));
        assert_eq!(folded(&[(Put, 20), (Merge, 9)]), (Put, 23, 0));
    }

    #[test]
    fn a_sample_round_trips_and_a_cut_one_is_refused() {
        let mut sampler = KeySampler::new(SampleLimit::keys(10));
        sampler.add_key(7 << 32, 0, (3, 900), EntryKind::Put, 0);
        sampler.add_key(3 << 32, 1, (3, 20), EntryKind::PutBlob, 5000);
        sampler.add_key(4 << 32, 2, (3, 0), EntryKind::Delete, 0);
        sampler.add_key(8 << 32, 3, (3, 9), EntryKind::Merge, 0);
        sampler.add_version((3, 1), EntryKind::Put, 0);
        sampler.add_key(9 << 32, 5, (3, 20), EntryKind::PutBlob, 5000);
        sampler.add_version((3, 20), EntryKind::PutBlob, 7000);
        sampler.add_key(10 << 32, 7, (3, 0), EntryKind::Delete, 0);
        sampler.add_version((3, 20), EntryKind::PutBlob, 8000);
        let sample = sampler.finish(0);
        let all: Vec<u32> = sample.keys.iter().map(|key| key.blob_bytes_all).collect();
        assert_eq!(all, [5000, 0, 0, 0, 12_000, 8000]);
        let mut bytes = Vec::new();
        sample.encode(&mut bytes);
        let decode =
            |bytes: &[u8]| KeySample::decode(&mut Decoder::new(bytes, Path::new("9.table"), 0));
        assert_eq!(decode(&bytes).unwrap(), sample);
        for n in 0..bytes.len() {
            assert!(decode(&bytes[..n]).unwrap_err().is_corruption());
        }
    }
}
