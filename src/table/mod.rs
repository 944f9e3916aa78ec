//! The table: an immutable sorted run on disk (`docs/format/table.md`); and blob files for values
//! too large to be copied by every compaction (`docs/format/blob.md`).
//!
//! A table consists of leaves, an optional filter, index levels from the bottom up, properties, and
//! a footer in the last unit. Leaf and index pages share one layout, the [`node`]. [`TableBuilder`]
//! writes tables. [`Table::get`], [`Table::may_contain`], [`TableCursor`] (both directions, short
//! runs) and [`TableScan`] (compaction input) read them.
//!
//! Invariants:
//! 1. Entries are strictly ordered by key ascending, then by sequence number descending.
//! 2. Leaves are consecutive from unit 0, so a key range is a range of units.
//! 3. A separator is greater than every entry before its child, and not greater than any entry in
//!    or after it.
//! 4. A finished table never changes. Its file is deleted when the last handle is dropped, and its
//!    references to blob files are dropped with it.

mod blob;
mod blob_files;
mod blob_pointer;
mod blob_scan;
mod blob_writer;
mod builder;
mod check;
mod cursor;
mod filter;
mod footer;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod hole;
mod index;
mod key_list;
mod key_list_page;
mod key_scan;
mod leaf_cursor;
mod leaf_stream;
mod node;
mod node_builder;
mod properties;
mod reader;
mod run_length;
mod salvage;
mod sample;
mod scan;
mod statistics;

#[cfg(test)]
mod blob_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod key_list_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

pub(crate) use blob::BlobFile;
pub(crate) use blob_files::{BlobFiles, Caching};
pub(crate) use blob_pointer::BlobPointer;
pub(crate) use blob_scan::BlobScan;
pub(crate) use blob_writer::BlobWriter;
pub(crate) use builder::TableFilter;
pub(crate) use builder::{TableBuilder, TableOptions};
pub(crate) use cursor::TableCursor;
pub(crate) use filter::FilterUse;
pub(crate) use hole::{Hole, HoleAt};
pub(crate) use key_list::{KeyList, ListedVersions};
#[cfg(test)]
pub(crate) use key_list_page::TableKey;
pub(crate) use key_scan::KeyScan;
pub(crate) use leaf_stream::LeafStream;
pub(crate) use properties::Origin;
pub(crate) use reader::{Table, rest_page};
pub(crate) use run_length::RunLength;
pub(crate) use salvage::{LostPart, TableSalvage};
pub(crate) use sample::{KeySample, SAMPLE_ALL, SampleLimit, SampledKey, folded_bytes};
pub(crate) use scan::TableScan;

/// The page kinds of table and blob files. On disk: never renumber.
mod page_kind {
    pub(super) const LEAF: u8 = 1;
    pub(super) const INDEX: u8 = 2;
    pub(super) const PROPERTIES: u8 = 3;
    pub(super) const FOOTER: u8 = 4;
    pub(super) const FILTER: u8 = 5;
    pub(super) const BLOB: u8 = 16;
    pub(super) const BLOB_FOOTER: u8 = 17;
}
