//! Opening the files of a trunk: their ends are read together, not one after the other.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::branch_index::{BranchIndex, IndexForm};
use super::edit::{Body, BundleRecord, build, bundles_in_use};
use super::node::{Bundle, BundleId, Node};
use super::parameters::Parameters;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::cache::{PageFile, ReadContext, fetch_misses};
use crate::table::Table;
use crate::tree::TreeContext;
use crate::tree::range::table_overlaps;
use crate::tree::versioned::{Recovered, walk};

/// Levels of an index whose pages are read together; what is below is read page by page.
const INDEX_HEIGHT_MAX: usize = 4;
/// Index pages that are read at once: 1 MiB.
const FETCHED_PAGES_MAX: usize = 256;

/// Builds the trunk that edits have defined.
pub(super) fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Node>> {
    let files = OpenFiles::open(context, recovered)?;
    let root = build(recovered, &context.manifest.path(), &mut |id, record| {
        files.bundle(context, id, record)
    })?;
    fetch_leaf_indexes(&root);
    Ok(root)
}

/// The files of the trunk's bundles, open.
struct OpenFiles {
    tables: BTreeMap<FileId, Arc<Table>>,
    indexes: BTreeMap<FileId, Arc<BranchIndex>>,
    /// The bundles of the root, which every lookup asks.
    root_bundles: BTreeSet<u64>,
}

impl OpenFiles {
    /// Opens what the bundles name, each file once, and reads many at once.
    fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<OpenFiles> {
        let bundles = bundles_in_use(recovered);
        let tables: BTreeSet<FileId> =
            bundles.values().flat_map(|record| &record.branches).copied().collect();
        let tables: Vec<FileId> = tables.into_iter().collect();
        let opened = Table::open_all(&context.files, &context.blobs, &tables)?;
        let form = Parameters::new(&context.options(), context.merge.operator.is_some()).index_form;
        // The local index of an only piece comes with its table.
        let has_file = |record: &&&BundleRecord| form == IndexForm::Maplet || !record.is_piece();
        let indexes: BTreeSet<FileId> =
            bundles.values().filter(has_file).map(|record| record.maplet).collect();
        let files = (indexes.iter())
            .map(|&id| PageFile::open(&context.files, id, form.file_type()))
            .collect::<Result<_>>()?;
        let tables: BTreeMap<FileId, Arc<Table>> = tables.into_iter().zip(opened).collect();
        let alone: BTreeSet<FileId> = match form {
            IndexForm::Maplet => BTreeSet::new(),
            IndexForm::Head(..) => {
                let records = bundles.values().filter(|record| record.is_piece());
                records.map(|record| record.maplet).collect()
            }
        };
        let pieces = alone.iter().map(|id| Arc::clone(&tables[id])).collect();
        let pieces = BranchIndex::open_pieces(pieces)?;
        let indexes = indexes.into_iter().zip(form.open_all(files)?);
        Ok(OpenFiles {
            root_bundles: recovered
                .root()
                .iter()
                .flat_map(|root| &root.body.bundles)
                .copied()
                .collect(),
            tables,
            indexes: indexes.chain(alone.into_iter().zip(pieces)).collect(),
        })
    }

    /// The bundle that a record of the same trunk is of.
    fn bundle(
        &self,
        context: &TreeContext,
        id: BundleId,
        record: &BundleRecord,
    ) -> Result<Arc<Bundle>> {
        let branches: Vec<Arc<Table>> =
            record.branches.iter().map(|number| Arc::clone(&self.tables[number])).collect();
        let index = Arc::clone(&self.indexes[&record.maplet]);
        if index.branches() != branches.len() {
            return Err(Error::corruption(
                &index.file().path(),
                0,
                "branch count of a bundle's index",
                branches.len(),
                index.branches(),
            ));
        }
        // A memtable's, as far as can be told. Further down such a bundle has a Bloom filter only as long as the store
        // stays open: there would be hundreds to be made now, a millisecond each.
        let young = match branches.as_slice() {
            [table] if self.root_bundles.contains(&id.0) => {
                table.properties().entry_bytes() <= context.options().memtable_bytes
            }
            _ => false,
        };
        let bloom = match young.then(|| index.bloom()).transpose() {
            Ok(bloom) => bloom.flatten(),
            // Damage is reported by those who ask the index.
            Err(error) if error.is_corruption() => None,
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Bundle { id, branches, index, bloom }))
    }
}

/// Reads into the cache, many at once, the index pages from which leaves estimate what lies in them: one after the other
/// they took half the time of opening. What cannot be read or kept is left to the leaves.
fn fetch_leaf_indexes(root: &Arc<Node>) {
    for _ in 0..INDEX_HEIGHT_MAX {
        let context = ReadContext::collecting();
        walk(root, &mut |node| {
            let (lower, upper) = node.range();
            let tables = node.bundles.iter().flat_map(|bundle| &bundle.branches);
            for table in
                tables.filter(|table| node.height == 0 && table_overlaps(table, lower, upper))
            {
                let _ = table.range_statistics(Some(lower), upper, &context);
            }
        });
        let misses = context.misses.map(RefCell::into_inner).unwrap_or_default();
        let mut misses = misses.into_iter().peekable();
        if misses.peek().is_none() {
            return;
        }
        while misses.peek().is_some() {
            if fetch_misses(misses.by_ref().take(FETCHED_PAGES_MAX).collect()).is_err() {
                return;
            }
        }
    }
}
