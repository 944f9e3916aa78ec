//! The options of a run's store: sizes so small that every mechanism is active all the time.

use std::path::Path;
use std::sync::Arc;

use spinney::vfs::Vfs;
use spinney::{Builder, Database, MergeOperator, PersistentMemory};

use crate::kinds::Kinds;
use crate::random::Random;

/// Pages a small cache holds.
const CACHE_PAGES_MIN: u64 = 8;
const PAGE_BYTES: u64 = 4096;

/// The sizes of a run's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The order of background work is drawn from it.
    pub seed: u64,
    /// The trees of its keyspaces.
    pub kinds: Kinds,
    /// When a memtable is frozen.
    pub memtable_bytes: u64,
    /// What the cache may take, if not what the memory budget leaves.
    pub cache_bytes: Option<u64>,
    /// The journal's shards.
    pub shards: usize,
    /// After how many calls iterators find their place anew, if they do so without need.
    pub iterator_calls: Option<u32>,
    /// How many deleted entries iterators remember as a gap, if not only many.
    pub gap_entries: Option<u32>,
    /// Whether the store rests as soon as nobody writes.
    pub rests: bool,
    /// Whether the journal is in a directory of its own, as on persistent memory.
    pub is_split: bool,
}

impl Sizes {
    /// Those of a run.
    pub fn new(seed: u64, kinds: Kinds) -> Sizes {
        let mut random = Random::new(&[seed, 1]);
        Sizes {
            seed,
            kinds,
            memtable_bytes: [1024, 2048, 4096][random.below(3)],
            shards: 1 + random.below(3),
            cache_bytes: match random.below(3) {
                0 => Some(CACHE_PAGES_MIN * PAGE_BYTES),
                1 => Some(4 * CACHE_PAGES_MIN * PAGE_BYTES),
                _ => None,
            },
            iterator_calls: match random.below(3) {
                0 => Some(1),
                1 => Some(1 + random.below(5) as u32),
                _ => None,
            },
            gap_entries: match random.below(3) {
                0 => Some(1),
                1 => Some(2 + random.below(6) as u32),
                _ => None,
            },
            rests: random.one_in(4),
            // Drawn from numbers of its own: the other sizes of a seed stay.
            is_split: Random::new(&[seed, 2]).one_in(4),
        }
    }

    /// How to open a store of these sizes.
    pub fn builder<V: Vfs + Clone + 'static>(&self, vfs: &V, dir: impl AsRef<Path>) -> Builder {
        self.builder_on(Arc::new(vfs.clone()), dir)
    }

    /// How to open a store of these sizes.
    pub fn builder_on(&self, vfs: Arc<dyn Vfs>, dir: impl AsRef<Path>) -> Builder {
        let memory = dir.as_ref().with_extension("memory");
        let builder = Database::builder(dir)
            .vfs(vfs)
            .memory_budget(1 << 20)
            .memtable_bytes(self.memtable_bytes)
            .journal_shards(self.shards)
            .cache_stripes(self.shards)
            .merge_operator(Arc::new(Greatest))
            .deterministic(self.seed);
        let builder = match self.cache_bytes {
            Some(bytes) => builder.cache_bytes(bytes),
            None => builder,
        };
        let builder = match self.iterator_calls {
            Some(calls) => builder.iterator_calls_max(calls),
            None => builder,
        };
        let builder = if self.rests { builder.rest_nanos(0) } else { builder };
        let builder = match self.is_split {
            true => builder.persistent_memory(PersistentMemory::at(memory)),
            false => builder,
        };
        match self.gap_entries {
            Some(entries) => builder.gap_entries_min(entries),
            None => builder,
        }
    }
}

/// [`crate::action::Operator::Greatest`].
struct Greatest;

impl MergeOperator for Greatest {
    fn name(&self) -> &str {
        "greatest"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        Ok(operands.iter().copied().chain(existing).max().unwrap_or_default().to_vec())
    }
}
