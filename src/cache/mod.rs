//! Data files read through one user-level page cache.
//!
//! [`DataFiles`] knows where the data files (tables, maplets, blobs) lie, numbers them and deletes
//! those that nothing refers to any more. A [`PageFile`] is one of them, read page by page through
//! the [`Cache`]. Memory is ours to account for: data files are opened for direct I/O, so a page is in
//! memory exactly if it is here.

mod data_files;
mod frames;
mod grace;
mod index;
mod page_cache;
#[cfg(test)]
mod page_cache_tests;
mod page_file;
mod pool;
mod region;

pub(crate) use data_files::{DataFiles, FileType};
pub(crate) use page_cache::{Cache, CachePin, CacheStatistics, PageClass, PageKey};
pub(crate) use page_file::{
    Compression, PAGE_HEADER_BYTES, PageFile, PageFileWriter, PageMiss, PagePointer, PageScan,
    ReadContext, fetch_misses,
};
