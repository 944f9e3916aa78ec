//! Data files, read through one page cache in user space.
//!
//! [`DataFiles`] knows the directory of the data files (tables, maplets, blobs), numbers them, and
//! deletes those that are no longer referenced. A [`PageFile`] is one data file, read page by page
//! through the [`Cache`]. Data files are opened for direct I/O, so a page is in memory exactly if
//! it is in this cache, and the memory used is known.

mod cold_slots;
mod data_files;
mod fetch;
mod frames;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod grace;
mod index;
mod kept;
#[cfg(all(test, loom))]
mod loom_tests;
mod page;
mod page_cache;
#[cfg(test)]
mod page_cache_tests;
mod page_file;
#[cfg(test)]
mod page_file_tests;
mod page_scan;
mod page_writer;
mod pool;
mod read_ahead;
mod rows;
#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
mod stripe;

#[cfg(feature = "example")]
pub(crate) use data_files::open_named;
pub(crate) use data_files::{DataFiles, FileType, ReserveTurn, Room};
pub(crate) use fetch::{
    PageMiss, UnitRun, fetch_misses, fetch_runs, read_ends, read_pages, read_unit_runs,
};
pub(crate) use page::{Compression, PAGE_HEADER_BYTES};
pub(crate) use page_cache::{Cache, CacheOptions, PageClass, PageKey};
pub(crate) use page_file::{PageFile, PagePointer, ReadContext};
pub(crate) use page_scan::PageScan;
pub(crate) use page_writer::PageFileWriter;
pub(crate) use read_ahead::Lease;
pub(crate) use rows::RowCache;
#[cfg(all(test, shuttle))]
pub(crate) use rows::schedules as row_cache_schedules;
