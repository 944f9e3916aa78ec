//! A compaction: merges, adopts, rewrites maplets, and swaps the result in.
//!
//! Invariants:
//! 1. Inputs are immutable and pinned by the job; the trunk may change while it runs. What has moved
//!    on by then is skipped when the result is swapped in (`Node::replace_bundles`).
//! 2. The result is durable before the manifest names it.

use std::sync::Arc;

use super::StbTree;
use super::node::{Bundle, ranges_meet, table_stretch, walk};
use super::plan::{Input, Plan, Segment};
use super::version::Version;
use crate::base::entry::EntrySource;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::cache::{FileType, PageFileWriter};
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, MapletMerge, SortedFingerprints};
use crate::jobs::{Job, Step};
use crate::merge::{Bottom, CompactionIterator};
use crate::table::Table;
use crate::tree::compaction::{Compaction, InputScan, Retry, STEP_ENTRIES, chunk_bytes};
use crate::tree::outlook::{Outlook, Staying};
use crate::tree::output::TableOutput;

/// Maplet pages that one step writes.
const STEP_PAGES: u32 = 64;

/// A branch of the output, in the making.
struct Output {
    table: Arc<Table>,
    /// For a new table: its keys' fingerprints. An adopted one's are in its bundle's maplet.
    fingerprints: Option<SortedFingerprints>,
}

struct Merging {
    entries: CompactionIterator<InputScan>,
    output: Option<TableOutput>,
    hashes: PageVec<u64>,
}

enum Stage {
    Segment,
    Merging(Box<Merging>),
    Maplet(Box<(MapletMerge, PageFileWriter)>),
    Ended,
}

/// A compaction under way.
pub(super) struct CompactionJob {
    tree: Arc<StbTree>,
    number: u64,
    plan: Plan,
    compaction: Compaction,
    next_segment: usize,
    outputs: Vec<Output>,
    stage: Stage,
    retained_versions: bool,
}

impl CompactionJob {
    pub(super) fn new(tree: Arc<StbTree>, number: u64, plan: Plan) -> CompactionJob {
        let collected_blobs = tree.version.load().mostly_dead_blobs();
        let compaction = Compaction::begin(&tree.context, collected_blobs);
        CompactionJob {
            tree,
            number,
            plan,
            compaction,
            next_segment: 0,
            outputs: Vec::new(),
            stage: Stage::Segment,
            retained_versions: false,
        }
    }

    /// Begins the next segment, or the maplet when there is none left.
    fn begin_segment(&mut self) -> Result<Step> {
        let Some(segment) = self.plan.segments.get(self.next_segment) else {
            return self.begin_maplet();
        };
        let inputs = match segment {
            Segment::Adopt(input) => {
                self.outputs.push(Output { table: Arc::clone(&input.table), fingerprints: None });
                self.next_segment += 1;
                return Ok(Step::Again);
            }
            Segment::Merge(inputs) => inputs,
        };
        let context = &self.tree.context;
        let chunk_bytes = chunk_bytes(context, inputs.len());
        let expected: u64 = inputs.iter().map(|input| input.extent.entries).sum();
        // Nothing is older than a leaf's first segment.
        let bottom = self.plan.bottom && self.next_segment == 0;
        let bottom = bottom || planted(Bug::CompactDropsTombstones);
        let bottom = if bottom { Bottom::Always } else { Bottom::Never };
        let mut options = self.compaction.options(context, bottom);
        if planted(Bug::CompactIgnoresSnapshots) {
            options.snapshots.clear();
        }
        let scan = |input: &Input| InputScan::new(&input.table, input.ranges.clone(), chunk_bytes);
        self.stage = Stage::Merging(Box::new(Merging {
            entries: CompactionIterator::new(inputs.iter().rev().map(scan).collect(), options),
            output: None,
            hashes: PageVec::with_capacity((expected as usize).min(1 << 20)),
        }));
        Ok(Step::Again)
    }

    /// Merges some entries; at the end of the segment, finishes its table.
    fn merge_some(&mut self) -> Result<Step> {
        let Stage::Merging(merging) = &mut self.stage else { return Ok(Step::Again) };
        let hasher = &self.tree.context.files.hasher;
        let limit = merging.entries.counters().entries_in + STEP_ENTRIES;
        let ended = loop {
            merging.entries.next()?;
            let Some(entry) = merging.entries.entry() else { break true };
            let output = match &mut merging.output {
                Some(output) => output,
                none => none.insert(self.compaction.output(&self.tree.context, false)?),
            };
            let hash = hasher.hash(entry.key);
            merging.hashes.push(hash);
            self.compaction.add(output, hash, entry)?;
            if merging.entries.counters().entries_in >= limit {
                break false;
            }
        };
        if !ended {
            return Ok(Step::Again);
        }
        let hashes = std::mem::take(&mut merging.hashes);
        if let Some(output) = merging.output.take() {
            let table = self.compaction.finish(output)?;
            let entries = hashes.len();
            let fingerprints = SortedFingerprints::of_hashes(hashes, FINGERPRINT_BITS_DEFAULT);
            self.retained_versions |= fingerprints.len() < entries;
            self.outputs.push(Output { table, fingerprints: Some(fingerprints) });
        }
        self.next_segment += 1;
        self.stage = Stage::Segment;
        Ok(Step::Again)
    }

    /// Lays the maplets of what was adopted and the fingerprints of what is new together.
    fn begin_maplet(&mut self) -> Result<Step> {
        if self.outputs.is_empty() {
            return self.install(None);
        }
        let mut builder = MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, self.outputs.len())?;
        for bundle in &self.plan.bundles {
            let ordinals: Vec<Option<u8>> = bundle
                .branches
                .iter()
                .map(|table| {
                    let adopted = |output: &Output| {
                        output.fingerprints.is_none() && output.table.id() == table.id()
                    };
                    self.outputs.iter().position(adopted).and_then(|i| u8::try_from(i).ok())
                })
                .collect();
            if ordinals.iter().any(Option::is_some) && !planted(Bug::AdoptUnfiltered) {
                builder.add_maplet(&bundle.maplet, &ordinals)?;
            }
        }
        for (ordinal, output) in self.outputs.iter_mut().enumerate() {
            if let (Some(fingerprints), Ok(ordinal)) =
                (output.fingerprints.take(), u8::try_from(ordinal))
            {
                builder.add_branch(ordinal, fingerprints)?;
            }
        }
        let writer = PageFileWriter::create(&self.tree.context.files, FileType::Maplet)?;
        self.stage = Stage::Maplet(Box::new((builder.start()?, writer)));
        Ok(Step::Again)
    }

    fn write_maplet(&mut self) -> Result<Step> {
        let Stage::Maplet(maplet) = &mut self.stage else { return Ok(Step::Again) };
        let (merge, writer) = &mut **maplet;
        if !merge.step(writer, STEP_PAGES)? {
            return Ok(Step::Again);
        }
        let Stage::Maplet(maplet) = std::mem::replace(&mut self.stage, Stage::Segment) else {
            return Ok(Step::Done);
        };
        let (merge, writer) = *maplet;
        let maplet = merge.finish_file(writer)?;
        self.compaction.wrote(maplet.file().bytes());
        let branches = self.outputs.drain(..).map(|output| output.table).collect();
        let id = self.tree.allocate_bundle();
        self.install(Some(Arc::new(Bundle { id, branches, maplet: Arc::new(maplet), bloom: None })))
    }

    fn install(&mut self, output: Option<Arc<Bundle>>) -> Result<Step> {
        self.stage = Stage::Ended;
        if self.retained_versions
            && let Some(bundle) = &output
        {
            self.tree.note_retained(bundle, &self.compaction.snapshots);
        }
        self.tree.install_compaction(&self.plan, output)?;
        self.compaction.end(&self.tree.context, self.plan.merge_bytes);
        Ok(Step::Done)
    }
}

impl CompactionJob {
    /// There was no room. Begins anew, if it may take of the reserve.
    #[cold]
    fn begin_anew(&mut self, error: Error) -> Result<Step> {
        // What has been written goes first: its room counts.
        self.outputs.clear();
        (self.stage, self.next_segment, self.retained_versions) = (Stage::Segment, 0, false);
        let (tree, plan) = (&self.tree, &self.plan);
        let version = tree.version.load();
        match self.compaction.begin_anew(&tree.context, |blobs| outlook(plan, &version, blobs)) {
            Retry::Now => Ok(Step::Again),
            Retry::Later => Ok(Step::Postponed),
            Retry::Never => Err(error),
        }
    }
}

/// What carrying out a plan gives back that copies values out of some blob files.
fn outlook(plan: &Plan, version: &Version, collected: &[FileId]) -> Outlook {
    let ids = plan.bundle_ids();
    let mut staying = Staying::default();
    walk(&version.root, &mut |node| {
        let is_there = node.height == plan.height && ranges_meet(node.range(), plan.range());
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
    let stretches = merged.flatten().flat_map(|input| {
        input.ranges.iter().map(|(lower, upper)| {
            // An index that cannot be read is reported by whoever needs it, not by an estimate.
            let stretch = table_stretch(&input.table, lower, upper.as_deref()).unwrap_or_default();
            (&input.table, stretch)
        })
    });
    Outlook::of(stretches, !plan.bottom, &staying, collected)
}

impl Job for CompactionJob {
    fn step(&mut self) -> Result<Step> {
        let step = match self.stage {
            Stage::Segment => self.begin_segment(),
            Stage::Merging(_) => self.merge_some(),
            Stage::Maplet(_) => self.write_maplet(),
            Stage::Ended => Ok(Step::Done),
        };
        let step = match step {
            // A manifest that cannot grow has no use for another merge.
            Err(error @ Error::Full { .. }) if !matches!(self.stage, Stage::Ended) => {
                self.begin_anew(error)
            }
            step => step,
        };
        step.inspect_err(|error| self.tree.note_damage(error, self.plan.height, self.plan.range()))
    }
}

impl Drop for CompactionJob {
    fn drop(&mut self) {
        if planted(Bug::ClaimKept) && !matches!(self.stage, Stage::Ended) {
            return;
        }
        self.tree.jobs.lock().claims.end(self.number);
    }
}
