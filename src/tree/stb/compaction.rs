//! A compaction: merges, adopts, rewrites maplets, and swaps the result in.
//!
//! Invariants:
//! 1. Inputs are immutable and pinned by the job; the trunk may change while it runs. What has moved
//!    on by then is skipped when the result is swapped in (`Node::replace_bundles`).
//! 2. The result is durable before the manifest names it.

use std::sync::Arc;

use super::StbTree;
use super::node::{Bundle, Key};
use super::plan::{Input, Plan, Segment};
use crate::base::checksum::hash_key;
use crate::base::entry::{EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::cache::{FileType, PageFileWriter};
use crate::filter::{FINGERPRINT_BITS_DEFAULT, MapletBuilder, MapletMerge, SortedFingerprints};
use crate::jobs::{Job, Step};
use crate::merge::{Bottom, CompactionIterator, CompactionOptions};
use crate::table::{Table, TableScan};
use crate::tree::output::TableOutput;

/// Input entries that one step looks at.
const STEP_ENTRIES: u64 = 4096;
/// Maplet pages that one step writes.
const STEP_PAGES: u32 = 64;

/// An input branch read range by range.
pub(super) struct BranchScan {
    table: Arc<Table>,
    ranges: std::vec::IntoIter<(Key, Option<Key>)>,
    chunk_bytes: usize,
    current: Option<TableScan>,
}

impl BranchScan {
    fn new(input: &Input, chunk_bytes: usize) -> BranchScan {
        BranchScan {
            table: Arc::clone(&input.table),
            ranges: input.ranges.clone().into_iter(),
            chunk_bytes,
            current: None,
        }
    }
}

impl EntrySource for BranchScan {
    #[inline]
    fn next(&mut self) -> Result<()> {
        if let Some(scan) = &mut self.current {
            scan.next()?;
            if scan.entry().is_some() {
                return Ok(());
            }
        }
        self.next_range()
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.current.as_ref()?.entry()
    }
}

impl BranchScan {
    #[cold]
    fn next_range(&mut self) -> Result<()> {
        self.current = None;
        for (lower, upper) in self.ranges.by_ref() {
            let scan = self.table.scan(Some(&lower), upper.as_deref(), self.chunk_bytes)?;
            if scan.entry().is_some() {
                self.current = Some(scan);
                break;
            }
        }
        Ok(())
    }
}

/// A branch of the output, in the making.
struct Output {
    table: Arc<Table>,
    /// For a new table: its keys' fingerprints. An adopted one's are in its bundle's maplet.
    fingerprints: Option<SortedFingerprints>,
}

struct Merging {
    entries: CompactionIterator<'static, BranchScan>,
    output: Option<TableOutput>,
    hashes: Vec<u64>,
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
    snapshots: Vec<Seqno>,
    /// Blob files whose values are to be copied out.
    collected_blobs: Vec<FileId>,
    next_segment: usize,
    outputs: Vec<Output>,
    stage: Stage,
    started_nanos: u64,
    written_bytes: u64,
    retained_versions: bool,
}

impl CompactionJob {
    pub(super) fn new(tree: Arc<StbTree>, number: u64, plan: Plan) -> CompactionJob {
        let snapshots = tree.snapshots();
        let started_nanos = tree.context.clock.nanos();
        let collected_blobs = tree.version.load().mostly_dead_blobs();
        CompactionJob {
            tree,
            number,
            plan,
            snapshots,
            collected_blobs,
            next_segment: 0,
            outputs: Vec::new(),
            stage: Stage::Segment,
            started_nanos,
            written_bytes: 0,
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
        let buffers = self.tree.context.options.job_bytes_max as usize / (2 * inputs.len());
        let chunk_bytes = buffers.clamp(16 << 10, 256 << 10) & !4095;
        let expected: u64 = inputs.iter().map(|input| input.extent.entries).sum();
        // Nothing is older than a leaf's first segment.
        let bottom = self.plan.bottom && self.next_segment == 0;
        let bottom = bottom || planted(Bug::CompactDropsTombstones);
        let options = CompactionOptions {
            snapshots: match planted(Bug::CompactIgnoresSnapshots) {
                true => Vec::new(),
                false => self.snapshots.clone(),
            },
            bottom: if bottom { Bottom::Always } else { Bottom::Never },
            operator: self.tree.context.operator.clone(),
            on_blob_dropped: None,
        };
        let sources =
            inputs.iter().rev().map(|input| BranchScan::new(input, chunk_bytes)).collect();
        self.stage = Stage::Merging(Box::new(Merging {
            entries: CompactionIterator::new(sources, options),
            output: None,
            hashes: Vec::with_capacity((expected as usize).min(1 << 20)),
        }));
        Ok(Step::Again)
    }

    /// Merges some entries; at the end of the segment, finishes its table.
    fn merge_some(&mut self) -> Result<Step> {
        let Stage::Merging(merging) = &mut self.stage else { return Ok(Step::Again) };
        let limit = merging.entries.counters().entries_in + STEP_ENTRIES;
        let ended = loop {
            merging.entries.next()?;
            let Some(entry) = merging.entries.entry() else { break true };
            let output = match &mut merging.output {
                Some(output) => output,
                none => none.insert(TableOutput::new(&self.tree.context, false)?),
            };
            merging.hashes.push(hash_key(entry.key));
            output.add_old(entry, &self.collected_blobs)?;
            if merging.entries.counters().entries_in >= limit {
                break false;
            }
        };
        if !ended {
            return Ok(Step::Again);
        }
        let hashes = std::mem::take(&mut merging.hashes);
        if let Some(output) = merging.output.take() {
            let (table, written_bytes) = output.finish()?;
            self.written_bytes += written_bytes;
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
        let Stage::Maplet(maplet) = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return Ok(Step::Done);
        };
        let (merge, writer) = *maplet;
        let maplet = merge.finish_file(writer)?;
        self.written_bytes += maplet.file().bytes();
        let branches = self.outputs.drain(..).map(|output| output.table).collect();
        let id = self.tree.allocate_bundle();
        self.install(Some(Arc::new(Bundle { id, branches, maplet: Arc::new(maplet), sieve: None })))
    }

    fn install(&mut self, output: Option<Arc<Bundle>>) -> Result<Step> {
        self.stage = Stage::Ended;
        if self.retained_versions
            && let Some(bundle) = &output
        {
            self.tree.note_retained(bundle, &self.snapshots);
        }
        self.tree.install_compaction(&self.plan, output)?;
        let nanos = self.tree.context.clock.nanos().saturating_sub(self.started_nanos);
        self.tree.note_compaction(self.plan.merge_bytes, self.written_bytes, nanos);
        Ok(Step::Done)
    }
}

impl Job for CompactionJob {
    fn step(&mut self) -> Result<Step> {
        match self.stage {
            Stage::Segment => self.begin_segment(),
            Stage::Merging(_) => self.merge_some(),
            Stage::Maplet(_) => self.write_maplet(),
            Stage::Ended => Ok(Step::Done),
        }
    }
}

impl Drop for CompactionJob {
    fn drop(&mut self) {
        self.tree.job_ended(self.number);
    }
}
