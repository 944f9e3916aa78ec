//! [`MapletHeader`], the metadata of a maplet.

use super::geometry::{BRANCHES_MAX, FINGERPRINT_BITS_MAX, FINGERPRINT_BITS_MIN, Geometry};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;

const MAGIC: [u8; 4] = *b"MPLT";
const VERSION: u16 = 1;

/// The counts of one branch in a maplet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BranchCounts {
    /// The number of distinct fingerprints of the branch.
    pub(crate) entries: u64,
    /// The number of them that a younger branch has too.
    pub(crate) superseded: u64,
}

/// A maplet's description, stored in a table's footer or in the last page of a maplet file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapletHeader {
    pub(super) geometry: Geometry,
    pub(super) pages: u32,
    pub(super) fingerprints: u64,
    pub(super) branches: Vec<BranchCounts>,
    /// Identifies the hash of the fingerprints
    /// ([`KeyHasher::id`](crate::base::key_hash::KeyHasher::id)).
    pub(super) hash_id: u32,
}

impl MapletHeader {
    /// Appends the encoded header.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let g = &self.geometry;
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(g.fingerprint_bits as u8);
        out.push(g.quotient_bits as u8);
        out.push(g.value_bits as u8);
        out.push(0);
        out.extend_from_slice(&(self.branches.len() as u16).to_le_bytes());
        out.extend_from_slice(&g.nominal_pages.to_le_bytes());
        out.extend_from_slice(&self.pages.to_le_bytes());
        out.extend_from_slice(&self.fingerprints.to_le_bytes());
        out.extend_from_slice(&self.hash_id.to_le_bytes());
        for branch in &self.branches {
            put_varint(out, branch.entries);
            put_varint(out, branch.superseded);
        }
    }

    /// Decodes a header of `file`.
    ///
    /// # Errors
    /// `Corruption` or `UnsupportedVersion`.
    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<MapletHeader> {
        decoder.magic(&MAGIC, "maplet magic")?;
        let version = decoder.u16("maplet version")?;
        decoder.check_version(u32::from(version), u32::from(VERSION), "maplet version")?;
        let fingerprint_bits = u32::from(decoder.u8("maplet fingerprint bits")?);
        if !(FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX).contains(&fingerprint_bits) {
            return Err(decoder.corrupt("maplet fingerprint bits", "32 to 48", fingerprint_bits));
        }
        let quotient_bits = u32::from(decoder.u8("maplet quotient bits")?);
        if quotient_bits >= fingerprint_bits {
            return Err(decoder.corrupt(
                "maplet quotient bits",
                format_args!("below {fingerprint_bits}"),
                quotient_bits,
            ));
        }
        let value_bits = u32::from(decoder.u8("maplet value bits")?);
        if value_bits > 8 {
            return Err(decoder.corrupt("maplet value bits", "0 to 8", value_bits));
        }
        let reserved = decoder.u8("maplet reserved byte")?;
        if reserved != 0 {
            return Err(decoder.corrupt("maplet reserved byte", 0, reserved));
        }
        let branches = usize::from(decoder.u16("maplet branches")?);
        if branches > BRANCHES_MAX.min(1 << value_bits) {
            let most = BRANCHES_MAX.min(1 << value_bits);
            return Err(decoder.corrupt("maplet branches", format_args!("up to {most}"), branches));
        }
        let nominal_pages = decoder.u32("maplet nominal pages")?;
        let pages = decoder.u32("maplet pages")?;
        if pages < nominal_pages || (pages > 0 && nominal_pages == 0) {
            let expected = format!("at least {nominal_pages}, or none of either");
            return Err(decoder.corrupt("maplet pages", expected, pages));
        }
        let fingerprints = decoder.u64("maplet fingerprints")?;
        let hash_id = decoder.u32("maplet key hash")?;
        let mut counts = Vec::with_capacity(branches);
        for _ in 0..branches {
            let entries = decoder.varint("maplet branch entries")?;
            let superseded = decoder.varint("maplet branch superseded")?;
            if entries > fingerprints || superseded > entries {
                let found = format!("{entries} entries, {superseded} superseded");
                let expected = format!("superseded <= entries <= {fingerprints}");
                return Err(decoder.corrupt("maplet branch counts", expected, found));
            }
            counts.push(BranchCounts { entries, superseded });
        }
        let geometry = Geometry { fingerprint_bits, quotient_bits, value_bits, nominal_pages };
        let header = MapletHeader { geometry, pages, fingerprints, branches: counts, hash_id };
        if header.entries() - header.superseded_total() != fingerprints
            || (fingerprints == 0) != (pages == 0)
        {
            let found = format!(
                "{} entries, {} superseded, {pages} pages",
                header.entries(),
                header.superseded_total()
            );
            return Err(decoder.corrupt("maplet counts", fingerprints, found));
        }
        Ok(header)
    }

    /// The number of pairs (fingerprint, branch).
    pub(crate) fn entries(&self) -> u64 {
        self.branches.iter().fold(0, |sum, branch| sum.saturating_add(branch.entries))
    }

    /// The number of distinct fingerprints.
    #[cfg(test)]
    pub(crate) fn fingerprints(&self) -> u64 {
        self.fingerprints
    }

    /// The number of pairs whose fingerprint a younger branch has too.
    pub(crate) fn superseded_total(&self) -> u64 {
        self.branches.iter().fold(0, |sum, branch| sum.saturating_add(branch.superseded))
    }

    /// The number of branches. Their ordinals are below this.
    pub(crate) fn branches(&self) -> usize {
        self.branches.len()
    }

    /// The counts of a branch; zeros if it does not exist.
    pub(crate) fn branch(&self, ordinal: u8) -> BranchCounts {
        self.branches.get(usize::from(ordinal)).copied().unwrap_or_default()
    }

    /// The number of bits of a fingerprint.
    pub(crate) fn fingerprint_bits(&self) -> u32 {
        self.geometry.fingerprint_bits
    }

    /// The number of pages, of one unit each.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use std::path::Path;

    fn header() -> MapletHeader {
        let branches = vec![
            BranchCounts { entries: 700, superseded: 100 },
            BranchCounts { entries: 0, superseded: 0 },
            BranchCounts { entries: 400, superseded: 0 },
        ];
        let geometry = Geometry::new(32, 3, 1100).unwrap();
        MapletHeader { geometry, pages: 1, fingerprints: 1000, branches, hash_id: 0x1234_5678 }
    }

    fn decode(bytes: &[u8]) -> Result<MapletHeader> {
        let file = Path::new("f.maplet");
        MapletHeader::decode(&mut Decoder::new(bytes, file, 0))
    }

    #[test]
    fn a_header_round_trips_and_a_cut_one_is_refused() {
        let mut bytes = Vec::new();
        header().encode(&mut bytes);
        assert_eq!(decode(&bytes).unwrap(), header());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).unwrap_err().is_corruption());
        }
    }

    #[test]
    fn a_changed_header_is_refused_or_consistent() {
        let mut bytes = Vec::new();
        header().encode(&mut bytes);
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                if let Ok(header) = decode(&damaged) {
                    assert!(header.branches() <= 1 << header.geometry.value_bits);
                    assert_eq!(header.entries() - header.superseded_total(), header.fingerprints);
                }
            }
        }
        bytes[4] = 2;
        let newer = decode(&bytes).unwrap_err();
        assert!(matches!(newer, Error::UnsupportedVersion { found: 2, supported: 1, .. }));
    }
}
