//! What is asked of the edits of every kind: by the fuzz targets, and by the tests of each.

use std::path::Path;

use crate::base::error::Result;

/// What a sequence of edits has defined.
pub(super) trait Edits: Default {
    /// Applies one more.
    fn take(&mut self, edit: &[u8], file: &Path) -> Result<()>;

    /// Builds the tree, of which no file can be opened, and writes it anew, whole.
    fn rewritten(&self, file: &Path) -> Result<Vec<u8>>;
}

#[cfg(feature = "fuzz")]
pub(super) mod fuzz {
    use std::path::Path;

    use super::Edits;
    use crate::base::codec::{Decoder, put_bytes};
    use crate::base::fuzz::{FILE, named};

    /// Edits, each with its length before it: what they build, written anew, builds the same.
    pub(in crate::tree) fn run<E: Edits>(data: &[u8]) {
        let file = Path::new(FILE);
        let mut edits = E::default();
        let mut decoder = Decoder::new(data, file, 0);
        while !decoder.is_empty() {
            let Some(edit) = named(decoder.byte_string("edit")) else { break };
            if named(edits.take(edit, file)).is_none() {
                return;
            }
        }
        let Some(whole) = named(edits.rewritten(file)) else { return };
        let mut again = E::default();
        again.take(&whole, file).expect("what was encoded is decoded");
        assert_eq!(again.rewritten(file).expect("what was encoded is built"), whole);
    }

    /// A seed of edits.
    pub(in crate::tree) fn with_lengths(edits: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        edits.iter().for_each(|edit| put_bytes(&mut out, edit));
        out
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::Edits;
    use crate::base::entry::EntryKind;
    use crate::base::error::Error;
    use crate::base::ids::{FileId, Seqno};
    use crate::base::key_hash::test_hasher;
    use crate::cache::{Cache, DataFiles};
    use crate::table::{BlobFiles, Table, TableBuilder, TableOptions};
    use crate::vfs::MemoryVfs;

    /// The file that holds the edits of examples.
    pub(in crate::tree) fn file() -> &'static Path {
        Path::new("manifest-00000001")
    }

    /// Data files in memory, numbered from 5 on as in the examples.
    pub(in crate::tree) fn data_files() -> Arc<DataFiles> {
        let cache = Arc::new(Cache::new(1 << 20));
        let vfs = Arc::new(MemoryVfs::new());
        Arc::new(DataFiles::new(vfs, cache, Path::new("/"), FileId(5), test_hasher()))
    }

    /// A table with one entry; `number` is the entry's, the file gets the next.
    pub(in crate::tree) fn table(files: &Arc<DataFiles>, number: u64) -> Arc<Table> {
        let options = TableOptions { creation: number, ..TableOptions::default() };
        let mut table = TableBuilder::new(files, &BlobFiles::new(files), options).unwrap();
        table.add(b"key", Seqno(number), EntryKind::Put, b"value").unwrap();
        table.finish().unwrap()
    }

    /// An edit that ends too early or too late is corruption.
    pub(in crate::tree) fn refuses_other_lengths<E: Edits>(edit: &[u8]) {
        for len in 0..edit.len() {
            let error = E::default().take(&edit[..len], file()).unwrap_err();
            assert!(error.is_corruption(), "{len} bytes: {error}");
        }
        let longer = [edit, &[0]].concat();
        assert!(E::default().take(&longer, file()).unwrap_err().is_corruption());
    }

    /// Whatever a byte is changed to, nothing panics, and everything ends.
    pub(in crate::tree) fn bears_changed_bytes<E: Edits>(edit: &[u8]) {
        let mut taken = 0;
        for at in 0..edit.len() {
            for byte in 0..=255 {
                let mut changed = edit.to_vec();
                changed[at] = byte;
                let mut edits = E::default();
                if edits.take(&changed, file()).is_ok() {
                    let _ = edits.rewritten(file());
                    taken += 1;
                }
            }
        }
        // The edit itself, once for each of its bytes, and others.
        assert!(taken > edit.len());
    }

    /// An edit of a later version is not taken for one of this.
    pub(in crate::tree) fn refuses_later_versions<E: Edits>(edit: &[u8], newest: u8) {
        let later = [&[newest + 1], &edit[1..]].concat();
        let error = E::default().take(&later, file()).unwrap_err();
        let Error::UnsupportedVersion { found, supported, .. } = error else { panic!("{error}") };
        assert_eq!((found, supported), (u32::from(newest) + 1, u32::from(newest)));
    }
}
