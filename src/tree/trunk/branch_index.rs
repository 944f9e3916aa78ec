//! The index of a bundle: which of its branches may hold a key. An `stb` tree has a maplet, a `tph` tree a head, or no
//! index but that of its only piece.
//!
//! Invariants:
//! 1. All bundles of a tree have indexes of the same form.
//! 2. A head has the hashes that its pieces have in the key range that it was made for. A node that has the bundle later has
//!    no data of it elsewhere.
//! 3. A bundle of `tph` without a head has one branch, whose local index has signatures.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::cache::{DataFiles, FileType, PageFile, PageFileWriter, ReadContext};
use crate::filter::{
    BloomFilter, BranchCounts, BranchSet, FINGERPRINT_BITS_DEFAULT, Maplet, MapletBuilder,
    MapletMerge, SortedFingerprints,
};
use crate::perfect_hash::{Construction, Head, HeadBuilder, HeadMerge};
use crate::table::{Table, TableFilter};
use crate::tree::range::Key;

/// What indexes of bundles a tree makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum IndexForm {
    Maplet,
    /// Heads, over pieces that have local indexes, with so many bytes of a signature.
    Head(Construction, u8),
}

/// Bytes that a key takes in a piece's index and list, and what its head takes, about.
const PIECE_ENTRY_BYTES: u64 = 8;

/// Bytes of a signature in the index of a memtable, which every lookup asks, and of one in another.
const SIGNATURE_BYTES_YOUNG: u8 = 2;
const SIGNATURE_BYTES: u8 = 1;

/// How the bundle is made that a new table will be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Company {
    /// It is a memtable's only table.
    Young,
    /// It is the only table of a compaction.
    Alone,
    /// There may be others beside it.
    Others,
}

impl IndexForm {
    /// The type of an index's file.
    pub(super) fn file_type(self) -> FileType {
        match self {
            IndexForm::Maplet => FileType::Maplet,
            IndexForm::Head(..) => FileType::Head,
        }
    }

    /// What a branch has.
    pub(super) fn table_filter(self, company: Company) -> TableFilter {
        match self {
            IndexForm::Maplet => TableFilter::None,
            IndexForm::Head(construction, signature_bytes) => {
                let alone = match company {
                    Company::Young => SIGNATURE_BYTES_YOUNG,
                    Company::Alone => SIGNATURE_BYTES,
                    Company::Others => 0,
                };
                TableFilter::Piece(construction, signature_bytes.max(alone))
            }
        }
    }

    /// Bytes of indexes per key beyond those of a maplet: of the local index, its list of hashes, and the head.
    pub(super) fn entry_bytes(self) -> u64 {
        match self {
            IndexForm::Maplet => 0,
            IndexForm::Head(..) => PIECE_ENTRY_BYTES,
        }
    }

    /// Opens indexes, and returns them in the same order.
    pub(super) fn open_all(self, files: Vec<Arc<PageFile>>) -> Result<Vec<Arc<BranchIndex>>> {
        Ok(match self {
            IndexForm::Maplet => {
                let maplets = Maplet::open_all(files)?.into_iter();
                maplets.map(|maplet| Arc::new(BranchIndex::Maplet(maplet))).collect()
            }
            IndexForm::Head(..) => {
                let heads = Head::open_all(files)?.into_iter();
                heads.map(|head| Arc::new(BranchIndex::Head(head))).collect()
            }
        })
    }

    /// The index of a memtable's table. A maplet is written, of the hashes of its keys.
    pub(super) fn of_young(
        self,
        files: &Arc<DataFiles>,
        table: &Arc<Table>,
        hashes: PageVec<u64>,
    ) -> Result<BranchIndex> {
        match self {
            IndexForm::Maplet => {
                let bits = FINGERPRINT_BITS_DEFAULT;
                let mut builder = MapletBuilder::new(bits, 1)?;
                builder.add_branch(0, SortedFingerprints::of_hashes(hashes, bits))?;
                let mut writer = PageFileWriter::create(files, FileType::Maplet)?;
                let mut merge = builder.start()?;
                while !merge.step(&mut writer, u32::MAX)? {}
                merge.finish_file(writer).map(BranchIndex::Maplet)
            }
            IndexForm::Head(..) => BranchIndex::of_piece(table),
        }
    }
}

/// The index of a bundle.
pub(super) enum BranchIndex {
    Maplet(Maplet),
    Head(Head),
    /// None but the local index of the only branch, with the number of its keys.
    Piece(Arc<Table>, u64),
}

impl BranchIndex {
    /// The index of a bundle that a new table is the only branch of.
    pub(super) fn of_piece(table: &Arc<Table>) -> Result<BranchIndex> {
        let piece = table.piece(&ReadContext::blocking())?;
        let keys = piece.map_or(table.properties().entries(), |piece| piece.keys());
        Ok(BranchIndex::Piece(Arc::clone(table), keys))
    }

    /// The same of tables that are there: what tells their keys is read together.
    pub(super) fn open_pieces(tables: Vec<Arc<Table>>) -> Result<Vec<Arc<BranchIndex>>> {
        let keys = Table::piece_keys(&tables)?;
        let opened = tables.into_iter().zip(keys);
        Ok(opened.map(|(table, keys)| Arc::new(BranchIndex::Piece(table, keys))).collect())
    }

    /// The branches that may hold the key with this hash: every branch that does, and seldom others.
    ///
    /// # Errors
    /// `Corruption` if a page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(super) fn probe(&self, hash: u64, context: &ReadContext) -> Result<BranchSet> {
        match self {
            BranchIndex::Maplet(maplet) => maplet.probe(hash, context),
            BranchIndex::Head(head) => head.probe(hash, context),
            BranchIndex::Piece(..) => Ok(BranchSet::of_newest(0, false)),
        }
    }

    /// The first of two prefetch hints before a probe.
    #[inline]
    pub(super) fn prefetch_place(&self, hash: u64) {
        if let BranchIndex::Maplet(maplet) = self {
            maplet.prefetch_place(hash);
        }
    }

    /// The second.
    #[inline]
    pub(super) fn prefetch_bytes(&self, hash: u64) {
        if let BranchIndex::Maplet(maplet) = self {
            maplet.prefetch_bytes(hash);
        }
    }

    /// The file that it is in.
    pub(super) fn file(&self) -> &Arc<PageFile> {
        match self {
            BranchIndex::Maplet(maplet) => maplet.file(),
            BranchIndex::Head(head) => head.file(),
            BranchIndex::Piece(table, _) => table.pages(),
        }
    }

    /// The same if nothing else is in that file.
    pub(super) fn own_file(&self) -> Option<&Arc<PageFile>> {
        (!matches!(self, BranchIndex::Piece(..))).then(|| self.file())
    }

    /// The size of that.
    pub(super) fn own_bytes(&self) -> u64 {
        self.own_file().map_or(0, |file| file.bytes())
    }

    /// Memory that it uses beside the page cache, if that depends on its size.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            // A table's memory is counted with the table.
            BranchIndex::Maplet(_) | BranchIndex::Piece(..) => 0,
            BranchIndex::Head(head) => head.memory_bytes(),
        }
    }

    /// The number of branches.
    pub(super) fn branches(&self) -> usize {
        match self {
            BranchIndex::Maplet(maplet) => maplet.branches(),
            BranchIndex::Head(head) => head.pieces().len(),
            BranchIndex::Piece(..) => 1,
        }
    }

    /// The counts of a branch; zeros if it does not exist.
    pub(super) fn counts(&self, ordinal: usize) -> BranchCounts {
        match self {
            BranchIndex::Maplet(maplet) => u8::try_from(ordinal)
                .map_or_else(|_| BranchCounts::default(), |o| maplet.header().branch(o)),
            BranchIndex::Head(head) => head.pieces().get(ordinal).copied().unwrap_or_default(),
            BranchIndex::Piece(_, keys) if ordinal == 0 => {
                BranchCounts { entries: *keys, superseded: 0 }
            }
            BranchIndex::Piece(..) => BranchCounts::default(),
        }
    }

    /// The counts of a branch, with all keys of its table. Where a head counts those of its range, as large a share of all
    /// is taken for superseded.
    pub(super) fn whole_counts(&self, ordinal: usize, table: &Table) -> BranchCounts {
        let counts = self.counts(ordinal);
        if !self.is_head() {
            return counts;
        }
        // What cannot be read is reported by the operations that need it.
        let piece = table.piece(&ReadContext::blocking()).ok().flatten();
        let keys = piece.map_or(table.properties().entries(), |piece| piece.keys());
        let share = u128::from(counts.superseded) * u128::from(keys);
        let superseded = (share / u128::from(counts.entries.max(1))) as u64;
        BranchCounts { entries: keys, superseded }
    }

    /// Whether it is a head.
    pub(super) fn is_head(&self) -> bool {
        matches!(self, BranchIndex::Head(_))
    }

    /// Whether younger branches have more than this share of the keys of a branch, in percent, and it should be merged for
    /// that. Only heads are judged so.
    pub(super) fn tells_dead(&self, ordinal: usize, percent_max: u64) -> bool {
        let counts = self.counts(ordinal);
        self.is_head() && counts.superseded * 100 > counts.entries * percent_max
    }

    /// The entries of all branches.
    pub(super) fn entries(&self) -> u64 {
        (0..self.branches()).map(|ordinal| self.counts(ordinal).entries).sum()
    }

    /// A Bloom filter of all keys, if that can be made of the index.
    pub(super) fn bloom(&self) -> Result<Option<BloomFilter>> {
        match self {
            BranchIndex::Maplet(maplet) => BloomFilter::of_maplet(maplet).map(Some),
            BranchIndex::Head(_) | BranchIndex::Piece(..) => Ok(None),
        }
    }

    /// Reads the whole index and verifies it; that of an only piece is verified with its table.
    ///
    /// # Errors
    /// `Corruption` for the first problem found.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            BranchIndex::Maplet(maplet) => maplet.check(),
            BranchIndex::Head(head) => head.check(),
            BranchIndex::Piece(..) => Ok(()),
        }
    }
}

/// Collects what a new index is made of.
pub(super) enum IndexBuilder {
    Maplet(Box<MapletBuilder>),
    /// With the key range that it is for.
    Head(HeadBuilder, (Key, Option<Key>)),
}

impl IndexBuilder {
    /// The index of so many branches of a compaction, for a key range.
    pub(super) fn new(
        form: IndexForm,
        branches: usize,
        (lower, upper): (&Key, Option<&Key>),
    ) -> Result<IndexBuilder> {
        Ok(match form {
            IndexForm::Maplet => {
                let builder = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, branches)?;
                IndexBuilder::Maplet(Box::new(builder))
            }
            IndexForm::Head(construction, _) => {
                let builder = HeadBuilder::new(construction, SIGNATURE_BYTES, branches)?;
                IndexBuilder::Head(builder, (Arc::clone(lower), upper.cloned()))
            }
        })
    }

    /// Adds the branches of an older bundle that the new one adopts, each with its new number.
    pub(super) fn add_adopted(
        &mut self,
        index: &BranchIndex,
        tables: &[Arc<Table>],
        ordinals: &[Option<u8>],
    ) -> Result<()> {
        match (self, index) {
            (IndexBuilder::Maplet(builder), BranchIndex::Maplet(maplet)) => {
                builder.add_maplet(maplet, ordinals)
            }
            (IndexBuilder::Head(builder, range), _) => {
                for (table, ordinal) in tables.iter().zip(ordinals) {
                    if let Some(ordinal) = ordinal {
                        add_list(builder, *ordinal, table, range)?;
                    }
                }
                Ok(())
            }
            (IndexBuilder::Maplet(_), _) => {
                let (path, what) = (index.file().path(), "index of a bundle");
                Err(Error::corruption(&path, 0, what, "a maplet", "another"))
            }
        }
    }

    /// Adds a new branch: for a head, by its own list of hashes.
    pub(super) fn add_new(
        &mut self,
        ordinal: u8,
        table: &Arc<Table>,
        fingerprints: Option<SortedFingerprints>,
    ) -> Result<()> {
        match (self, fingerprints) {
            (IndexBuilder::Maplet(builder), Some(fingerprints)) => {
                builder.add_branch(ordinal, fingerprints)
            }
            // A maplet that left it out would hide its keys.
            (IndexBuilder::Maplet(_), None) => unreachable!("a tree has one form of indexes"),
            (IndexBuilder::Head(..), _) if planted(Bug::HeadForgetsNew) => Ok(()),
            (IndexBuilder::Head(builder, range), _) => add_list(builder, ordinal, table, range),
        }
    }

    /// Begins the merge.
    pub(super) fn start(self) -> Result<IndexMerge> {
        Ok(match self {
            IndexBuilder::Maplet(builder) => IndexMerge::Maplet(Box::new(builder.start()?)),
            IndexBuilder::Head(builder, _) => IndexMerge::Head(Box::new(builder.start())),
        })
    }
}

/// Adds a piece to the head of a key range by its list of hashes.
fn add_list(
    builder: &mut HeadBuilder,
    ordinal: u8,
    table: &Arc<Table>,
    (lower, upper): &(Key, Option<Key>),
) -> Result<()> {
    let Some(piece) = table.piece(&ReadContext::blocking())? else {
        let (path, expected) = (table.pages().path(), "the local index of a piece");
        return Err(Error::corruption(&path, 0, "filter kind of a table", expected, "another"));
    };
    let keep = table.keep_in_range(lower, upper.as_deref())?;
    builder.add_list(ordinal, piece.keys(), piece.hashes(table.pages()), keep);
    Ok(())
}

/// An index in the making.
pub(super) enum IndexMerge {
    Maplet(Box<MapletMerge>),
    Head(Box<HeadMerge>),
}

impl IndexMerge {
    /// Writes up to about `pages_max` more pages. Returns true when all are written.
    pub(super) fn step(&mut self, writer: &mut PageFileWriter, pages_max: u32) -> Result<bool> {
        match self {
            IndexMerge::Maplet(merge) => merge.step(writer, pages_max),
            IndexMerge::Head(merge) => merge.step(writer, pages_max),
        }
    }

    /// Writes the rest, makes the file durable (but not its name) and opens the index.
    pub(super) fn finish_file(self, writer: PageFileWriter) -> Result<BranchIndex> {
        Ok(match self {
            IndexMerge::Maplet(merge) => BranchIndex::Maplet(merge.finish_file(writer)?),
            IndexMerge::Head(merge) => BranchIndex::Head(merge.finish_file(writer)?),
        })
    }
}
