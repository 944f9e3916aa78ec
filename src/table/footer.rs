//! The footer: the payload of a table's last unit, which locates all other parts.

use std::path::Path;

use super::key_list_page::FILTER_KIND_KEYS;
use crate::base::codec::Decoder;
use crate::base::error::Result;
use crate::cache::PagePointer;
use crate::filter::FILTER_KIND_BLOCKS;
use crate::perfect_hash::FILTER_KIND_PIECE;

/// The first bytes of every footer.
const MAGIC: [u8; 8] = *b"SPNYTABL";
/// The newest version that this build reads. It is written if the table has split entries.
pub(super) const FORMAT_VERSION: u32 = 2;
/// The version without split entries.
const FORMAT_VERSION_WHOLE: u32 = 1;
/// The limit of the index height: an index of 2^64 bytes is lower.
const HEIGHT_MAX: u8 = 16;

/// The pages of the table's filter. Only the filter's own module understands their payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FilterSection {
    /// The format of the payloads; 0 without a filter.
    pub(crate) kind: u8,
    /// The first unit of the first page.
    pub(crate) first_unit: u32,
    /// The number of units of all its pages, which are consecutive.
    pub(crate) units: u32,
    /// The number of pages.
    pub(crate) pages: u32,
    /// The id of its hash ([`KeyHasher::id`](crate::base::key_hash::KeyHasher::id)); 0 without a
    /// filter.
    pub(crate) hash_id: u32,
}

/// The locations of a table's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    /// The number of index levels; 0 if the root is the only leaf.
    pub(super) height: u8,
    pub(super) root: PagePointer,
    pub(super) properties: PagePointer,
    /// Leaves are in units `0..leaf_units`.
    pub(super) leaf_units: u32,
    pub(super) filter: FilterSection,
    /// Values of some entries go on in the next leaf.
    pub(super) has_splits: bool,
}

impl Footer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let version = if self.has_splits { FORMAT_VERSION } else { FORMAT_VERSION_WHOLE };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&[self.height, self.filter.kind]);
        out.extend_from_slice(&self.root.units.to_le_bytes());
        out.extend_from_slice(&self.root.unit.to_le_bytes());
        out.extend_from_slice(&self.properties.unit.to_le_bytes());
        out.extend_from_slice(&self.properties.units.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        let filter = &self.filter;
        let rest = [self.leaf_units, filter.first_unit, filter.units, filter.pages, filter.hash_id];
        for field in rest {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// Reads the payload of the last unit, which starts at `offset` of `file`.
    pub(super) fn decode(payload: &[u8], file: &Path, offset: u64) -> Result<Footer> {
        let mut from = Decoder::new(payload, file, offset);
        from.magic(&MAGIC, "table magic")?;
        let version = from.version(FORMAT_VERSION, "table format version")?;
        let height = from.u8("index height")?;
        if height > HEIGHT_MAX {
            let most = format_args!("at most {HEIGHT_MAX}");
            return Err(from.corrupt("index height", most, height));
        }
        let filter_kind = from.u8("filter kind")?;
        let root_units = from.u16("root pointer")?;
        let root = PagePointer { unit: from.u32("root pointer")?, units: root_units };
        let properties = PagePointer {
            unit: from.u32("properties pointer")?,
            units: from.u16("properties pointer")?,
        };
        from.u16("reserved field")?;
        let leaf_units = from.u32("leaf units")?;
        let filter = FilterSection {
            kind: filter_kind,
            first_unit: from.u32("filter section")?,
            units: from.u32("filter section")?,
            pages: from.u32("filter section")?,
            hash_id: from.u32("filter section")?,
        };
        let units = offset / crate::base::limits::UNIT_BYTES as u64;
        let is_known = [FILTER_KIND_BLOCKS, FILTER_KIND_PIECE].contains(&filter.kind);
        if is_known && (filter.pages == 0 || filter.units != filter.pages) {
            let found = format_args!("{} pages in {} units", filter.pages, filter.units);
            return Err(from.corrupt("filter section", "pages of one unit each", found));
        }
        // A page of the list of keys may be larger.
        if filter.kind == FILTER_KIND_KEYS && !(1..=filter.units).contains(&filter.pages) {
            return Err(from.corrupt("filter section", "pages", filter.pages));
        }
        let parts = [
            ("leaf units", 0, leaf_units),
            ("filter section", filter.first_unit, filter.units),
            ("root pointer", root.unit, u32::from(root.units)),
            ("properties pointer", properties.unit, u32::from(properties.units)),
        ];
        for (what, first, count) in parts {
            let end = u64::from(first) + u64::from(count);
            if end > units {
                let expected = format_args!("units before the footer's, {units}");
                return Err(from.corrupt(what, expected, format_args!("up to {end}")));
            }
        }
        Ok(Footer {
            height,
            root,
            properties,
            leaf_units,
            filter,
            has_splits: version > FORMAT_VERSION_WHOLE,
        })
    }
}
