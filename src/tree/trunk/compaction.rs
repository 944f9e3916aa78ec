//! The steps of a compaction: it merges, adopts, writes an index, and installs the result.
//!
//! Invariants:
//! 1. Inputs that have moved to a child while the job ran are skipped when the result is installed
//!    (`Node::replace_bundles`).

use std::cell::Cell;
use std::sync::Arc;

use super::Trunk;
use super::branch_index::{BranchIndex, Company, IndexBuilder, IndexForm, IndexMerge};
use super::change::{self, Rules};
use super::node::{Bundle, Node};
use super::plan::{Input, Plan, Segment};
use super::version::Version;
use crate::base::entry::EntrySource;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::cache::{PageFileWriter, ReadContext};
use crate::filter::{FINGERPRINT_BITS_DEFAULT, SortedFingerprints};
use crate::jobs::Step;
use crate::merge::{Bottom, CompactionIterator};
use crate::table::Table;
use crate::tree::outlook::{Outlook, Staying};
use crate::tree::output::TableOutput;
use crate::tree::range::{ranges_overlap, table_part};
use crate::tree::versioned::{
    self, Compact, InputScan, NewFiles, NewTables, STEP_ENTRIES, chunk_bytes, rebalance_undamaged,
    walk,
};

/// A running compaction.
type CompactionJob = versioned::CompactionJob<Trunk>;

/// How long two nodes stay apart that could not be joined for damage.
const FAILED_JOIN_NANOS: u64 = 60_000_000_000;

/// Pages of an index that one step writes.
const STEP_PAGES: u32 = 64;

/// A branch of the output, in the making.
struct Output {
    table: Arc<Table>,
    /// For a maplet: a new table's fingerprints. An adopted one's are in its bundle's maplet.
    fingerprints: Option<SortedFingerprints>,
    is_adopted: bool,
}

struct Merging {
    entries: CompactionIterator<InputScan>,
    output: Option<TableOutput>,
    entries_out: u64,
    /// For a maplet: of all entries.
    hashes: PageVec<u64>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Segment,
    Merging(Box<Merging>),
    Index(Box<(IndexMerge, PageFileWriter)>),
}

/// What a compaction has done so far.
#[derive(Default)]
pub(in crate::tree) struct Progress {
    next_segment: usize,
    outputs: Vec<Output>,
    stage: Stage,
    retained_versions: bool,
    /// Memory of all outputs' fingerprints, which the index is made of.
    fingerprint_bytes: u64,
}

impl Compact for Trunk {
    fn step(job: &mut CompactionJob) -> Result<Step> {
        if job.plan.joins {
            return job.join();
        }
        match job.progress.stage {
            Stage::Segment => job.begin_segment(),
            Stage::Merging(_) => job.merge_some(),
            Stage::Index(_) => job.write_index(),
        }
    }

    fn inputs_alone(plan: &Plan) -> Vec<&Arc<Table>> {
        match plan.segments.as_slice() {
            [Segment::Merge(inputs)] if inputs.len() == 1 => vec![&inputs[0].table],
            _ => Vec::new(),
        }
    }

    fn list_bytes(progress: &Progress) -> u64 {
        let merging = match &progress.stage {
            Stage::Merging(merging) => {
                let hashes = (merging.hashes.capacity() * size_of::<u64>()) as u64;
                hashes + merging.output.as_ref().map_or(0, TableOutput::list_bytes)
            }
            Stage::Segment | Stage::Index(_) => 0,
        };
        merging + progress.fingerprint_bytes
    }

    fn outlook(plan: &Plan, version: &Version, collected: &[FileId]) -> Outlook {
        let ids = plan.bundle_ids();
        let mut staying = Staying::default();
        walk(&version.root, &mut |node| {
            let is_there = node.height == plan.place.height
                && ranges_overlap(node.range(), plan.place.range());
            for bundle in &node.bundles {
                if !is_there || !ids.contains(&bundle.id) {
                    bundle.branches.iter().for_each(|table| staying.add(table));
                }
            }
        });
        for segment in &plan.segments {
            if let Segment::Adopt(input) = segment {
                staying.add(&input.table);
            }
        }
        let merged = plan.segments.iter().filter_map(|segment| match segment {
            Segment::Merge(inputs) => Some(inputs),
            Segment::Adopt(_) => None,
        });
        let parts = merged.flatten().flat_map(|input| {
            input.ranges.iter().map(|(lower, upper)| {
                // An index that cannot be read is reported by whoever needs it, not by an estimate.
                let part = table_part(&input.table, lower, upper.as_deref()).unwrap_or_default();
                (&input.table, part)
            })
        });
        Outlook::of(parts, !plan.bottom, &staying, collected)
    }
}

impl CompactionJob {
    /// Joins the two nodes of the place. If a damaged file prevents that, they stay apart for a while: that concerns no
    /// compaction of either, and those of the damaged one report it.
    fn join(&mut self) -> Result<Step> {
        let is_damaged = Cell::new(false);
        let joined = self.install(|tree, plan| {
            let join = |root: &mut Arc<Node>, rules: &Rules| {
                let joined = change::join(root, &plan.place, rules).inspect_err(|error| {
                    // A wrong split names the manifest.
                    is_damaged.set(
                        matches!(error, Error::Corruption { file, .. } if *file != rules.manifest),
                    );
                })?;
                if joined {
                    rebalance_undamaged::<Trunk>(root, rules)?;
                }
                Ok(joined)
            };
            tree.change(NewFiles::None, join, Seqno(0), NewTables::None)
        });
        match joined {
            Err(_) if is_damaged.get() => {
                let now = self.tree.context.clock.nanos();
                let mut failed = self.tree.own.failed_joins.lock();
                failed.retain(|(_, until)| now < *until);
                failed.push((self.plan.place.clone(), now + FAILED_JOIN_NANOS));
                Ok(Step::Done)
            }
            joined => joined,
        }
    }

    /// Begins the next segment, or the maplet when there is none left.
    fn begin_segment(&mut self) -> Result<Step> {
        let Some(segment) = self.plan.segments.get(self.progress.next_segment) else {
            return self.begin_index();
        };
        let inputs = match segment {
            Segment::Adopt(input) => {
                self.progress.outputs.push(Output {
                    table: Arc::clone(&input.table),
                    fingerprints: None,
                    is_adopted: true,
                });
                self.progress.next_segment += 1;
                return Ok(Step::Again);
            }
            Segment::Merge(inputs) => inputs,
        };
        let context = &self.tree.context;
        let chunk_bytes = chunk_bytes(context, inputs.len());
        let expected: u64 = inputs.iter().map(|input| input.size.entries).sum();
        let expected_hashes = match self.tree.version.load().parameters.index_form {
            IndexForm::Maplet => (expected as usize).min(1 << 20),
            IndexForm::Head(..) => 0,
        };
        // Nothing is older than a leaf's first segment.
        let is_first = self.progress.next_segment == 0 || planted(Bug::LaterSegmentIsBottom);
        let bottom = self.plan.bottom && is_first;
        let bottom = bottom || planted(Bug::CompactDropsTombstones);
        let bottom = if bottom { Bottom::Always } else { Bottom::Never };
        let mut options = self.compaction.options(context, bottom);
        if planted(Bug::CompactIgnoresSnapshots) {
            options.snapshots.clear();
        }
        let scan =
            |input: &Input| self.compaction.scan(&input.table, input.ranges.clone(), chunk_bytes);
        self.progress.stage = Stage::Merging(Box::new(Merging {
            entries: CompactionIterator::new(inputs.iter().rev().map(scan).collect(), options),
            output: None,
            entries_out: 0,
            hashes: PageVec::with_capacity(expected_hashes),
        }));
        Ok(Step::Again)
    }

    /// Merges some entries; at the end of the segment, finishes its table.
    fn merge_some(&mut self) -> Result<Step> {
        let Stage::Merging(merging) = &mut self.progress.stage else { return Ok(Step::Again) };
        let hasher = &self.tree.context.files.hasher;
        let form = self.tree.version.load().parameters.index_form;
        let company = if self.plan.is_one_merge() { Company::Alone } else { Company::Others };
        let filter = form.table_filter(company);
        let limit = merging.entries.counters().entries_in + STEP_ENTRIES;
        let ended = loop {
            merging.entries.next()?;
            let Some(entry) = merging.entries.entry() else { break true };
            let output = match &mut merging.output {
                Some(output) => output,
                none => none.insert(self.compaction.output(&self.tree.context, filter)?),
            };
            let hash = hasher.hash(entry.key);
            merging.entries_out += 1;
            if form == IndexForm::Maplet {
                merging.hashes.push(hash);
            }
            self.compaction.add(output, hash, entry)?;
            if merging.entries.counters().entries_in >= limit {
                break false;
            }
        };
        if !ended {
            return Ok(Step::Again);
        }
        let (hashes, entries) = (std::mem::take(&mut merging.hashes), merging.entries_out);
        if let Some(output) = merging.output.take() {
            let table = self.compaction.finish(output)?;
            let fingerprints = (form == IndexForm::Maplet)
                .then(|| SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT));
            let keys = match &fingerprints {
                Some(fingerprints) => fingerprints.len() as u64,
                None => table.piece(&ReadContext::blocking())?.map_or(0, |piece| piece.keys()),
            };
            let bytes = fingerprints.as_ref().map_or(0, SortedFingerprints::memory_bytes);
            self.progress.fingerprint_bytes += bytes as u64;
            self.progress.retained_versions |= keys < entries;
            self.progress.outputs.push(Output { table, fingerprints, is_adopted: false });
        }
        self.progress.next_segment += 1;
        self.progress.stage = Stage::Segment;
        Ok(Step::Again)
    }

    /// Lays the indexes of what was adopted and the hashes of what is new together.
    fn begin_index(&mut self) -> Result<Step> {
        if self.progress.outputs.is_empty() {
            return self.install_output(None);
        }
        let form = self.tree.version.load().parameters.index_form;
        let is_alone = self.plan.is_one_merge() || planted(Bug::HeadLeftOut);
        if form != IndexForm::Maplet && is_alone {
            return self.finish_bundle(None);
        }
        let place = &self.plan.place;
        let range = (&place.lower, place.upper.as_ref());
        let mut builder = IndexBuilder::new(form, self.progress.outputs.len(), range)?;
        for bundle in &self.plan.bundles {
            let ordinals: Vec<Option<u8>> = bundle
                .branches
                .iter()
                .map(|table| {
                    let adopted =
                        |output: &Output| output.is_adopted && output.table.id() == table.id();
                    self.progress
                        .outputs
                        .iter()
                        .position(adopted)
                        .and_then(|i| u8::try_from(i).ok())
                })
                .collect();
            if ordinals.iter().any(Option::is_some) && !planted(Bug::AdoptUnfiltered) {
                builder.add_adopted(&bundle.index, &bundle.branches, &ordinals)?;
            }
        }
        for (ordinal, output) in self.progress.outputs.iter_mut().enumerate() {
            if !output.is_adopted
                && let Ok(ordinal) = u8::try_from(ordinal)
            {
                builder.add_new(ordinal, &output.table, output.fingerprints.take())?;
            }
        }
        let writer = PageFileWriter::create(&self.tree.context.files, form.file_type())?;
        self.progress.stage = Stage::Index(Box::new((builder.start()?, writer)));
        Ok(Step::Again)
    }

    fn write_index(&mut self) -> Result<Step> {
        let Stage::Index(index) = &mut self.progress.stage else { return Ok(Step::Again) };
        let (merge, writer) = &mut **index;
        if !merge.step(writer, STEP_PAGES)? {
            return Ok(Step::Again);
        }
        let Stage::Index(index) = std::mem::replace(&mut self.progress.stage, Stage::Segment)
        else {
            return Ok(Step::Done);
        };
        let (merge, writer) = *index;
        let index = merge.finish_file(writer)?;
        self.compaction.wrote(index.own_bytes());
        self.finish_bundle(Some(index))
    }

    /// Installs the outputs as one bundle with this index; without one it has a single piece.
    fn finish_bundle(&mut self, index: Option<BranchIndex>) -> Result<Step> {
        let outputs = self.progress.outputs.drain(..);
        let branches: Vec<_> = outputs.map(|output| output.table).collect();
        let index = match (index, branches.first()) {
            (None, Some(table)) => Some(BranchIndex::of_piece(table)?),
            (index, _) => index,
        };
        let bundle = index.map(|index| {
            let id = self.tree.own.allocate_bundle();
            Arc::new(Bundle { id, branches, index: Arc::new(index), bloom: None })
        });
        self.install_output(bundle)
    }

    fn install_output(&mut self, output: Option<Arc<Bundle>>) -> Result<Step> {
        let branches = output.iter().flat_map(|bundle| &bundle.branches);
        let retained: Vec<_> = match self.progress.retained_versions {
            true => branches.cloned().collect(),
            false => Vec::new(),
        };
        self.install_merged(&retained, |tree, plan| {
            let replace = |root: &mut Arc<Node>, rules: &Rules| {
                if !change::replace(root, plan, &plan.bundle_ids(), output.as_ref(), rules)? {
                    return Ok(false);
                }
                rebalance_undamaged::<Trunk>(root, rules)?;
                if planted(Bug::FilesGoBeforeEdit) {
                    plan.remove_maplets(&*tree.context.files.vfs)?;
                }
                Ok(true)
            };
            let merged = output.as_ref().filter(|_| plan.bottom);
            let tables =
                merged.map_or(NewTables::None, |output| NewTables::Merged(&output.branches));
            tree.change(NewFiles::Some, replace, Seqno(0), tables)
        })
    }
}
