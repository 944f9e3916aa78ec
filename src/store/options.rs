//! What a user may choose. Path and memory budget are the only things they have to think about;
//! every other default derives from those and from the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::events::EventListener;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::limits::INLINE_BYTES_MAX;
use crate::cache::Compression as PageCompression;
use crate::manifest::KeyspaceMeta;
use crate::merge::MergeOperator;
use crate::vfs::{MemoryVfs, PosixVfs, Vfs};

/// One mebibyte, for [`Builder::memory_budget`].
pub const MIB: u64 = 1 << 20;
/// One gibibyte, for [`Builder::memory_budget`].
pub const GIB: u64 = 1 << 30;

/// How much [`Database::check`](crate::Database::check) reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckLevel {
    /// The manifest, the trees' structure, and each file's existence, size and footer.
    Structure,
    /// Everything: each page of each file, its checksum, its order, its counts, its filter.
    Full,
}

/// How a keyspace's pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all: a point read is one 4 KiB read.
    #[default]
    None,
    /// LZ4, in pages of up to 16 KiB.
    Lz4,
}

impl Compression {
    pub(crate) fn page_compression(self) -> PageCompression {
        match self {
            Compression::None => PageCompression::None,
            Compression::Lz4 => PageCompression::Lz4,
        }
    }
}

/// The tree that holds a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TreeKind {
    /// SplinterDB's STBε-tree.
    #[default]
    Stb,
    /// PebblesDB's fragmented log-structured merge tree, with guards.
    Flsm,
}

impl TreeKind {
    /// All kinds there are.
    pub const ALL: [TreeKind; 2] = [TreeKind::Stb, TreeKind::Flsm];

    /// The name as stored and as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            TreeKind::Stb => "stb",
            TreeKind::Flsm => "flsm",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<TreeKind> {
        TreeKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for TreeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The newest form in which options are stored.
const OPTIONS_VERSION: u8 = 3;

/// A blob pointer is always shorter.
const BLOB_BYTES_MIN_LEAST: u32 = 64;

/// In the stored form: tables have no filters of their own.
const WITHOUT_FILTERS: u8 = 1;

/// What a keyspace is made of. Fixed when the keyspace is created and kept in the store; opening it
/// again with other options is a [`Error::Conflict`].
///
/// ```
/// use spinney::{Compression, KeyspaceOptions};
/// let options = KeyspaceOptions::stb().compression(Compression::Lz4).merge_operator("u64_add");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceOptions {
    pub(crate) kind: TreeKind,
    pub(crate) compression: Compression,
    pub(crate) merge_operator: Option<String>,
    pub(crate) blob_bytes_min: u32,
    pub(crate) fanout_max: u32,
    pub(crate) tables_per_guard_max: u32,
    pub(crate) filters: bool,
    pub(crate) space_amplification_max_percent: u32,
}

impl KeyspaceOptions {
    /// A keyspace held by an STBε-tree.
    pub fn stb() -> KeyspaceOptions {
        KeyspaceOptions {
            kind: TreeKind::Stb,
            compression: Compression::None,
            merge_operator: None,
            blob_bytes_min: 4096,
            fanout_max: 0,
            tables_per_guard_max: 0,
            filters: true,
            space_amplification_max_percent: 127,
        }
    }

    /// A keyspace held by a fragmented log-structured merge tree: for steady writes of keys in no
    /// order, with the fewest bytes written.
    pub fn flsm() -> KeyspaceOptions {
        KeyspaceOptions {
            kind: TreeKind::Flsm,
            space_amplification_max_percent: 130,
            ..KeyspaceOptions::stb()
        }
    }

    /// A keyspace of the given kind with that kind's defaults.
    pub fn new(kind: TreeKind) -> KeyspaceOptions {
        match kind {
            TreeKind::Stb => KeyspaceOptions::stb(),
            TreeKind::Flsm => KeyspaceOptions::flsm(),
        }
    }

    /// Compresses pages.
    pub fn compression(mut self, compression: Compression) -> KeyspaceOptions {
        self.compression = compression;
        self
    }

    /// Folds `merge` operands with the operator registered under this name.
    pub fn merge_operator(mut self, name: &str) -> KeyspaceOptions {
        self.merge_operator = Some(name.to_string());
        self
    }

    /// Values and merge operands of at least this many bytes go to blob files, which compactions do not copy.
    /// Default 4096; at least 64 and at most 1 MiB (other numbers count as the nearest of these).
    pub fn blob_bytes_min(mut self, bytes: u32) -> KeyspaceOptions {
        self.blob_bytes_min = bytes.clamp(BLOB_BYTES_MIN_LEAST, INLINE_BYTES_MAX);
        self
    }

    /// The most children of a trunk node or guard (0, the default: the tree's own choice). Small
    /// numbers are for tests.
    pub fn fanout_max(mut self, fanout: u32) -> KeyspaceOptions {
        self.fanout_max = if fanout == 0 { 0 } else { fanout.max(2) };
        self
    }

    /// How many tables may lie one over the other in a guard of an `flsm` keyspace before it is
    /// compacted: more make writes cheaper, fewer reads (0, the default: the tree's own choice). A keyspace of another
    /// kind, which has no guards, cannot be created with this.
    pub fn tables_per_guard_max(mut self, tables: u32) -> KeyspaceOptions {
        self.tables_per_guard_max = tables;
        self
    }

    /// Whether the tables of an `flsm` keyspace have filters (the default). Without them a little less is
    /// written, and a lookup reads a page of every table that reaches over its key: this is for measuring
    /// what they are worth. A keyspace of another kind, whose filters are of another sort, cannot be created without.
    pub fn filters(mut self, filters: bool) -> KeyspaceOptions {
        self.filters = filters;
        self
    }

    /// Reclaims space, at the cost of more writing, whenever disk space exceeds this many times the
    /// live data. Where entries leave more than 6% of their pages unused (three values of 1 KiB in 4
    /// KiB), live data counts with what it takes there. Default 1.27 (`flsm`: 1.3); at least 1.1.
    pub fn space_amplification_max(mut self, times: f64) -> KeyspaceOptions {
        self.space_amplification_max_percent = (times.clamp(1.1, 100.0) * 100.0).round() as u32;
        self
    }

    /// The tree that holds the keyspace.
    pub fn kind(&self) -> TreeKind {
        self.kind
    }

    /// The same with the defaults of options that the kind does not have.
    pub(crate) fn of_its_kind(&self) -> KeyspaceOptions {
        let defaults = KeyspaceOptions::new(self.kind);
        match self.kind {
            TreeKind::Flsm => self.clone(),
            TreeKind::Stb => KeyspaceOptions {
                tables_per_guard_max: defaults.tables_per_guard_max,
                filters: defaults.filters,
                ..self.clone()
            },
        }
    }

    /// Refuses options that the kind does not have, which would be kept and do nothing.
    pub(crate) fn check(&self) -> Result<()> {
        match self.difference(&self.of_its_kind()) {
            Some((option, ..)) => Err(Error::invalid(format!(
                "a keyspace of kind {} has no option {option}, which is one of {}; leave it out",
                self.kind,
                TreeKind::Flsm
            ))),
            None => Ok(()),
        }
    }

    /// The first option in which `other` differs: its name, its value here, and its value there.
    ///
    /// ```
    /// use spinney::KeyspaceOptions;
    /// let (a, b) = (KeyspaceOptions::stb().fanout_max(4), KeyspaceOptions::stb().fanout_max(8));
    /// assert_eq!(a.difference(&b), Some(("fanout_max", "4".to_string(), "8".to_string())));
    /// ```
    pub fn difference(&self, other: &KeyspaceOptions) -> Option<(&'static str, String, String)> {
        let choice = |n: u32| match n {
            0 => "the tree's own choice".to_string(),
            n => n.to_string(),
        };
        let of = |options: &KeyspaceOptions| {
            let percent = f64::from(options.space_amplification_max_percent);
            [
                ("kind", options.kind.to_string()),
                ("compression", format!("{:?}", options.compression).to_lowercase()),
                (
                    "merge_operator",
                    match &options.merge_operator {
                        Some(name) => format!("{name:?}"),
                        None => "none".to_string(),
                    },
                ),
                ("blob_bytes_min", options.blob_bytes_min.to_string()),
                ("fanout_max", choice(options.fanout_max)),
                ("tables_per_guard_max", choice(options.tables_per_guard_max)),
                ("filters", options.filters.to_string()),
                ("space_amplification_max", (percent / 100.0).to_string()),
            ]
        };
        let differs = of(self).into_iter().zip(of(other)).find(|(a, b)| a != b);
        differs.map(|((name, here), (_, there))| (name, here, there))
    }

    /// What the manifest keeps of a keyspace of this name with these options.
    pub(crate) fn meta(&self, name: &str) -> KeyspaceMeta {
        KeyspaceMeta {
            name: name.to_string(),
            kind: self.kind.name().to_string(),
            options: self.encode(),
            operator: self.merge_operator.clone(),
        }
    }

    /// The stored form (`docs/format/keyspace-options.md`).
    pub(crate) fn encode(&self) -> Vec<u8> {
        // What says nothing of guards is written as it was before there were any.
        let version = match (self.filters, self.tables_per_guard_max) {
            (true, 0) => 1,
            (true, _) => 2,
            (false, _) => 3,
        };
        let mut out = vec![version, self.compression.page_compression() as u8];
        put_varint(&mut out, u64::from(self.blob_bytes_min));
        put_varint(&mut out, u64::from(self.fanout_max));
        put_varint(&mut out, u64::from(self.space_amplification_max_percent));
        if version >= 2 {
            put_varint(&mut out, u64::from(self.tables_per_guard_max));
        }
        if version >= 3 {
            out.push(WITHOUT_FILTERS);
        }
        out
    }

    /// Reads what `encode` has written, which begins at an offset of a file.
    pub(crate) fn decode(
        kind: TreeKind,
        merge_operator: Option<String>,
        bytes: &[u8],
        (file, offset): (&Path, u64),
    ) -> Result<KeyspaceOptions> {
        let mut decoder = Decoder::new(bytes, file, offset);
        let version = decoder.u8("keyspace options version")?;
        if !(1..=OPTIONS_VERSION).contains(&version) {
            return Err(Error::UnsupportedVersion {
                file: file.to_path_buf(),
                found: u32::from(version),
                supported: u32::from(OPTIONS_VERSION),
            });
        }
        let tag = decoder.u8("keyspace compression")?;
        let compression = match PageCompression::from_tag(tag) {
            Some(PageCompression::None) => Compression::None,
            Some(PageCompression::Lz4) => Compression::Lz4,
            None => return Err(decoder.corrupt("keyspace compression", "0 or 1", tag)),
        };
        let mut number = |what| -> Result<u32> {
            let n = decoder.varint(what)?;
            u32::try_from(n).map_err(|_| decoder.corrupt(what, "a 32-bit number", n))
        };
        let mut options = KeyspaceOptions {
            kind,
            compression,
            merge_operator,
            filters: true,
            blob_bytes_min: number("blob_bytes_min")?.clamp(BLOB_BYTES_MIN_LEAST, INLINE_BYTES_MAX),
            fanout_max: number("fanout_max")?,
            space_amplification_max_percent: number("space_amplification_max")?,
            tables_per_guard_max: match version {
                1 => 0,
                _ => number("tables_per_guard_max")?,
            },
        };
        if version >= 3 {
            match decoder.u8("keyspace switches")? {
                WITHOUT_FILTERS => options.filters = false,
                other => return Err(decoder.corrupt("keyspace switches", "1", other)),
            }
        }
        if !decoder.is_empty() {
            return Err(decoder.corrupt("keyspace options", "their end", "more bytes"));
        }
        Ok(options)
    }
}

/// How background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackgroundMode {
    /// On this many threads (0: chosen from the machine).
    Threads(usize),
    /// Step by step, in an order drawn from the seed, when the test asks or a writer must wait.
    Stepped(u64),
}

/// What can be switched off while a store is open, to measure what it is worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switches {
    pub(crate) parallel_seeks: bool,
    pub(crate) seek_compaction: bool,
    /// After so many calls an iterator closes its cursors.
    pub(crate) iterator_calls_max: Option<u32>,
}

/// Opens a [`Database`](crate::Database).
///
/// ```no_run
/// # fn main() -> spinney::Result<()> {
/// let db = spinney::Database::builder("my.store").memory_budget(2 * spinney::GIB).open()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Builder {
    pub(crate) path: PathBuf,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) memory_budget: u64,
    pub(crate) memtable_bytes: Option<u64>,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) create: bool,
    pub(crate) salvage: bool,
    pub(crate) background: BackgroundMode,
    pub(crate) journal_shards: usize,
    pub(crate) switches: Switches,
    pub(crate) merge_operators: BTreeMap<String, Arc<dyn MergeOperator>>,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
}

/// The directory of a store in memory, on a file system of its own.
const IN_MEMORY_DIR: &str = "/memory";

impl Builder {
    pub(crate) fn new(path: &Path, vfs: Arc<dyn Vfs>) -> Builder {
        let mut builder = Builder {
            path: path.to_path_buf(),
            vfs,
            memory_budget: 256 * MIB,
            memtable_bytes: None,
            cache_bytes: None,
            create: true,
            salvage: false,
            background: BackgroundMode::Threads(0),
            journal_shards: 0,
            switches: Switches {
                parallel_seeks: true,
                seek_compaction: true,
                iterator_calls_max: None,
            },
            merge_operators: BTreeMap::new(),
            listener: None,
        };
        for operator in builtin_operators() {
            builder = builder.register(operator);
        }
        builder
    }

    pub(crate) fn posix(path: &Path) -> Builder {
        Builder::new(path, Arc::new(PosixVfs::new()))
    }

    pub(crate) fn in_memory() -> Builder {
        Builder::new(Path::new(IN_MEMORY_DIR), Arc::new(MemoryVfs::new()))
    }

    /// The memory the store may use, in bytes, for everything: memtables, cache, filters, indexes.
    /// Default 256 MiB; at least 1 MiB.
    ///
    /// Resident memory stays below this × 1.1 + 32 MiB, whatever is held and however many keyspaces, threads and
    /// iterators there are, with these exceptions:
    ///
    /// - A batch or value of more than a quarter of the budget adds up to twice its bytes: once as the caller holds
    ///   it, once as a memtable or a buffer.
    /// - An iterator keeps 768 bytes and the keys that it has reached, taken from the cache. The cache keeps at least
    ///   an eighth of the budget; iterators beyond that (more than one for each 2 KiB of the budget) add theirs.
    ///
    /// [`Statistics`](crate::Statistics) shows where memory is.
    pub fn memory_budget(mut self, bytes: u64) -> Builder {
        self.memory_budget = bytes.max(MIB);
        self
    }

    /// The size at which a memtable is frozen. Derived from the memory budget unless set; for tests
    /// that want many small tables, and for experiments. From 1 KiB to 1 GiB.
    pub fn memtable_bytes(mut self, bytes: u64) -> Builder {
        self.memtable_bytes = Some(bytes.clamp(1024, GIB));
        self
    }

    /// What the page cache may take, in bytes, its tables included. Derived from the memory budget
    /// unless set; for tests that want a cache of a few pages.
    pub fn cache_bytes(mut self, bytes: u64) -> Builder {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Whether a missing store is created (the default) or an error.
    pub fn create_if_missing(mut self, create: bool) -> Builder {
        self.create = create;
        self
    }

    /// Opens a damaged journal as far as it can be read: what lies behind the damage is dropped
    /// and reported by [`Database::recovery`](crate::Database::recovery). Without this, such damage refuses to open.
    pub fn salvage_journal(mut self, salvage: bool) -> Builder {
        self.salvage = salvage;
        self
    }

    /// The number of background threads, at most 1,024. Default: one for each core, at least two, at most eight.
    /// There is one more, mostly asleep, that has the journal's next segments ready.
    pub fn background_threads(mut self, threads: usize) -> Builder {
        self.background = BackgroundMode::Threads(threads.max(1));
        self
    }

    /// Runs background work on the calling threads, one small step at a time, in an order drawn
    /// from `seed`: the same calls with the same seed do the same I/O. For tests; see
    /// [`Database::step`](crate::Database::step).
    pub fn deterministic(mut self, seed: u64) -> Builder {
        self.background = BackgroundMode::Stepped(seed);
        self
    }

    /// The number of journal shards, at most 64 (0, the default: chosen from the machine).
    pub fn journal_shards(mut self, shards: usize) -> Builder {
        self.journal_shards = shards;
        self
    }

    /// Whether an iterator reads the first pages of all tables that it merges at once (the default) or one
    /// table after another. Not kept in the store; for measuring what it is worth.
    pub fn parallel_seeks(mut self, parallel: bool) -> Builder {
        self.switches.parallel_seeks = parallel;
        self
    }

    /// Whether ranges of keys that iterators have read from many tables are merged in the background (the
    /// default). Not kept in the store; for measuring what it is worth, and for stores that are to write
    /// nothing while they are only read.
    pub fn seek_compaction(mut self, compaction: bool) -> Builder {
        self.switches.seek_compaction = compaction;
        self
    }

    /// Makes each iterator close its cursors after so many calls and find its place anew, as it does when memory
    /// is short. Not kept in the store; for tests.
    pub fn iterator_calls_max(mut self, calls: u32) -> Builder {
        self.switches.iterator_calls_max = Some(calls.max(1));
        self
    }

    /// Puts the store on another file system than the operating system's.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Builder {
        self.vfs = vfs;
        self
    }

    /// Registers a merge operator under its name. `"u64_add"` and `"append"` are always there.
    pub fn merge_operator(self, operator: Arc<dyn MergeOperator>) -> Builder {
        self.register(operator)
    }

    fn register(mut self, operator: Arc<dyn MergeOperator>) -> Builder {
        self.merge_operators.insert(operator.name().to_string(), operator);
        self
    }

    /// Calls `listener` on flushes, compactions, throttling and errors.
    pub fn events(mut self, listener: Arc<dyn EventListener>) -> Builder {
        self.listener = Some(listener);
        self
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("path", &self.path)
            .field("memory_budget", &self.memory_budget)
            .finish_non_exhaustive()
    }
}

/// The operators that are always registered.
fn builtin_operators() -> [Arc<dyn MergeOperator>; 2] {
    [Arc::new(crate::merge::U64Add), Arc::new(crate::merge::Append)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::documented::hex_block;

    /// The bytes of the `nth` hex block of the format's page.
    fn documented(nth: usize) -> Vec<u8> {
        hex_block(include_str!("../../docs/format/keyspace-options.md"), nth)
    }

    fn decode(bytes: &[u8]) -> Result<KeyspaceOptions> {
        KeyspaceOptions::decode(TreeKind::Stb, None, bytes, (Path::new("manifest-00000001"), 0))
    }

    #[test]
    fn the_documented_options_are_what_is_written_and_read() {
        let plain = KeyspaceOptions::stb().blob_bytes_min(4096).space_amplification_max(1.3);
        let chosen = KeyspaceOptions::stb()
            .compression(Compression::Lz4)
            .blob_bytes_min(300)
            .fanout_max(8)
            .space_amplification_max(1.25);
        let guards = plain.clone().tables_per_guard_max(4);
        let unfiltered = plain.clone().filters(false);
        for (nth, options) in [(0, plain), (1, chosen), (2, guards), (3, unfiltered)] {
            assert_eq!(options.encode(), documented(nth));
            assert_eq!(decode(&documented(nth)).unwrap(), options);
        }
    }

    #[test]
    fn the_merge_operator_is_kept_beside_them() {
        let options = KeyspaceOptions::stb().merge_operator("u64_add");
        let decoded = KeyspaceOptions::decode(
            TreeKind::Stb,
            Some("u64_add".to_string()),
            &options.encode(),
            (Path::new("manifest-00000001"), 0),
        );
        assert_eq!(decoded.unwrap(), options);
    }

    /// Who asked for other options than a keyspace has was shown both structures whole.
    /// They were kept and ignored, and then made opening the keyspace again a conflict.
    #[test]
    fn options_of_another_kind_are_refused() {
        let refused = |options: KeyspaceOptions| options.check().unwrap_err().to_string();
        assert!(
            refused(KeyspaceOptions::stb().tables_per_guard_max(3))
                .contains("no option tables_per")
        );
        assert!(refused(KeyspaceOptions::stb().filters(false)).contains("no option filters"));
        KeyspaceOptions::stb().filters(true).fanout_max(4).check().unwrap();
        KeyspaceOptions::flsm().filters(false).tables_per_guard_max(3).check().unwrap();
        let db = crate::Database::builder_in_memory().deterministic(1).open().unwrap();
        let created = db.keyspace("items", KeyspaceOptions::stb().filters(false));
        assert!(matches!(created, Err(Error::InvalidArgument { .. })));
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let plain = KeyspaceOptions::flsm();
        let others = [
            (KeyspaceOptions::flsm().compression(Compression::Lz4), "compression", "none", "lz4"),
            (plain.clone().merge_operator("append"), "merge_operator", "none", "\"append\""),
            (plain.clone().blob_bytes_min(300), "blob_bytes_min", "4096", "300"),
            (plain.clone().fanout_max(3), "fanout_max", "the tree's own choice", "3"),
            (
                plain.clone().tables_per_guard_max(4),
                "tables_per_guard_max",
                "the tree's own choice",
                "4",
            ),
            (plain.clone().filters(false), "filters", "true", "false"),
            (plain.clone().space_amplification_max(1.5), "space_amplification_max", "1.3", "1.5"),
            (KeyspaceOptions::stb(), "kind", "flsm", "stb"),
        ];
        for (other, name, here, there) in others {
            let expected = Some((name, here.to_string(), there.to_string()));
            assert_eq!(plain.difference(&other), expected);
        }
        assert_eq!(plain.difference(&KeyspaceOptions::flsm()), None);
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        let bytes = documented(0);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).unwrap_err().is_corruption(), "{len} bytes");
        }
        assert!(decode(&[&*bytes, &[0]].concat()).unwrap_err().is_corruption());
        assert!(decode(&[1, 2, 0, 0, 0]).unwrap_err().is_corruption());
        // 2^32 is one too many.
        assert!(decode(&[1, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0]).unwrap_err().is_corruption());
        assert!(decode(&[3, 0, 0, 0, 0, 0, 0]).unwrap_err().is_corruption());
        assert!(decode(&[3, 0, 0, 0, 0, 0, 2]).unwrap_err().is_corruption());
        let later = decode(&[4, 0, 0, 0, 0, 0, 1]).unwrap_err();
        assert!(matches!(later, Error::UnsupportedVersion { found: 4, supported: 3, .. }));
    }

    #[test]
    fn out_of_range_choices_are_brought_into_range() {
        let options = KeyspaceOptions::stb().fanout_max(1).blob_bytes_min(0);
        let options = options.space_amplification_max(0.5);
        assert_eq!((options.fanout_max, options.blob_bytes_min), (2, 64));
        assert_eq!(options.space_amplification_max_percent, 110);
    }
}
