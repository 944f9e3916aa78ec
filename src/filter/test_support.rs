//! Data files in memory for the tests of the filters.

use std::path::Path;
use std::sync::Arc;

use crate::base::ids::FileId;
use crate::base::key_hash::test_hasher;
use crate::cache::{Cache, DataFiles};
use crate::vfs::{MemoryVfs, Vfs};

/// Data files that exist only in memory.
pub(crate) fn data_files() -> Arc<DataFiles> {
    let (vfs, dir) = (MemoryVfs::new(), Path::new("d"));
    vfs.create_dir_all(dir).unwrap();
    Arc::new(DataFiles::new(
        Arc::new(vfs),
        Arc::new(Cache::new(64 << 20)),
        dir,
        FileId(1),
        test_hasher(),
    ))
}
