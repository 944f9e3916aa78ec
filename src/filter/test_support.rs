//! What the filter's tests share: a seeded generator and data files in memory.

use std::path::Path;
use std::sync::Arc;

use crate::base::ids::FileId;
use crate::base::key_hash::test_hasher;
use crate::cache::{Cache, DataFiles};
use crate::vfs::{MemoryVfs, Vfs};

/// A small seeded generator (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// Data files that are nowhere but in memory.
pub(super) fn data_files() -> Arc<DataFiles> {
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
