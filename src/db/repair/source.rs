//! What there is of a damaged store: keyspaces, the tables that count for each range of keys, the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{LOCK_FILE_NAME, RepairBasis, RepairReport, is_io};
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::key_hash::{HashSecret, KeyHasher};
use crate::base::range_delete::RangeDelete;
use crate::cache::{Cache, CacheOptions, DataFiles, FileType};
use crate::journal::{EpochLimit, Journal, Operation, Operations, ReplayPlan, SegmentId};
use crate::manifest::{
    KeyspaceMeta, Manifest, RecoveredKeyspace, RecoveredState, SalvagedManifest,
};
use crate::merge::{Contained, MergeContext, MergeOperator, RangeDeletes};
use crate::store::options::{Builder, MIB};
use crate::store::persistent_memory::left::{Left, attach_what_is_left};
use crate::store::state::Blobs;
use crate::store::strangers::{origins_of_unknown, stranger};
use crate::table::{BlobFiles, Caching, TableSalvage};
use crate::tree::kinds::{self, TreeKind, repair_ranges};
use crate::tree::options::KeyspaceOptions;
use crate::tree::{OperationSource, RepairRange};
use crate::vfs::{Lock, ReadOnlyVfs, Vfs};

/// One version of a key.
#[derive(Debug, Clone)]
pub(super) struct Version {
    pub(super) seqno: Seqno,
    pub(super) kind: EntryKind,
    pub(super) value: Vec<u8>,
}

/// The journal's part of a keyspace.
#[derive(Default)]
pub(super) struct Replayed {
    pub(super) versions: BTreeMap<Vec<u8>, Vec<Version>>,
    range_deletes: Vec<RangeDelete>,
}

/// A keyspace that was found.
pub(super) struct SourceKeyspace {
    pub(super) name: String,
    pub(super) options: KeyspaceOptions,
    /// Why the options that it had are lost, if they are.
    pub(super) options_lost: Option<Error>,
    pub(super) merge: MergeContext,
    /// Ascending, without gaps, over all keys.
    pub(super) repair_ranges: Vec<RepairRange>,
    pub(super) replayed: Replayed,
    /// Those of the manifest and of the journal.
    pub(super) range_deletes: RangeDeletes,
}

/// A damaged store.
pub(super) struct Source {
    pub(super) files: Arc<DataFiles>,
    pub(super) keyspaces: Vec<SourceKeyspace>,
    basis: RepairBasis,
    problems: Vec<Error>,
    left_out: Vec<String>,
    keyspaces_left_out: bool,
    journal_records: u64,
    journal_incomplete: bool,
    _lock: Box<dyn Lock>,
    _memory_lock: Option<Box<dyn Lock>>,
}

/// What a table file says of itself.
struct FoundTable {
    id: FileId,
    keyspace: KeyspaceId,
    /// A number that grows with every table made, and whose it is.
    origin: Option<(u64, KeyspaceMeta)>,
}

impl Source {
    /// Opens what is left of the store in `path`, for nobody else if `alone`.
    pub(super) fn open(path: &Path, builder: &Builder, alone: bool) -> Result<Source> {
        let vfs: Arc<dyn Vfs> = Arc::new(ReadOnlyVfs(Arc::clone(&builder.vfs)));
        let not_a_store = |reason: &str| Error::NotAStore {
            path: path.to_path_buf(),
            reason: reason.to_string(),
        };
        let list = |vfs: &dyn Vfs| match vfs.read_names(path) {
            Err(error) if is_io(&error, ErrorKind::NotFound) => {
                Err(not_a_store("there is no such directory"))
            }
            Err(error) if is_io(&error, ErrorKind::NotADirectory) => {
                Err(not_a_store("it is a file, and a store is a directory"))
            }
            names => names,
        };
        // What is no store is told to be none before anything is said of locks.
        list(&*vfs)?;
        let lock_path = path.join(LOCK_FILE_NAME);
        let lock = match alone {
            true => builder.vfs.lock(&lock_path)?,
            false => vfs.lock_shared(&lock_path)?,
        };
        let manifest = Manifest::salvage(&*vfs, path)?;
        let memory = builder.persistent_memory.as_ref();
        let Left { vfs, lock: memory_lock, problem: lost } =
            attach_what_is_left(vfs, path, memory, manifest.store_id)?;
        let names: BTreeSet<String> = list(&*vfs)?.into_iter().collect();
        let is_part = |name: &String| {
            DataFiles::parse_name(name).is_some()
                || name.starts_with("journal-")
                || name.starts_with("manifest-")
        };
        if !names.iter().any(is_part) {
            return Err(not_a_store("it holds no file of a store"));
        }
        let cache = Arc::new(Cache::with_options(
            MIB as usize,
            CacheOptions { row_cache_bytes_max: 0, stripes: 1, deterministic: true },
        ));
        // No filter is asked, and none is written.
        let hasher = Arc::new(KeyHasher::new(HashSecret::default()));
        let files = Arc::new(DataFiles::new(Arc::clone(&vfs), cache, path, FileId(1), hasher));
        // Nothing is removed when a handle goes.
        files.retain_all();
        let blobs = BlobFiles::of_damaged_store(&files);
        let mut source = Source {
            files,
            keyspaces: Vec::new(),
            basis: RepairBasis::Files,
            problems: Vec::new(),
            left_out: Vec::new(),
            keyspaces_left_out: false,
            journal_records: 0,
            journal_incomplete: false,
            _lock: lock,
            _memory_lock: memory_lock,
        };
        source.add_problems(manifest.problems.iter().cloned());
        let is_lost = lost.is_some();
        source.add_problems(lost);
        let exact = source.exact_ranges(&manifest, &names);
        let mut found = match exact {
            Some(found) => {
                source.basis = RepairBasis::Manifest;
                found
            }
            None => source.found_ranges(&manifest, &names)?,
        };
        let mut replayed = source.replay(&*vfs, path, &manifest, &mut found)?;
        for keyspace in &manifest.state.keyspaces {
            let replayed = replayed.entry(keyspace.id).or_default();
            replayed.range_deletes.extend_from_slice(&keyspace.range_deletes);
        }
        source.journal_incomplete |= is_lost;
        source.make_keyspaces(found, replayed, builder, &blobs);
        Ok(source)
    }

    /// What a report begins with.
    pub(super) fn report(&self) -> RepairReport {
        RepairReport {
            basis: self.basis,
            keyspaces: Vec::new(),
            damage: Vec::new(),
            problems: self.problems.clone(),
            journal_records: self.journal_records,
            journal_incomplete: self.journal_incomplete,
            left_out: self.left_out.clone(),
            keyspaces_left_out: self.keyspaces_left_out,
        }
    }

    /// Adds problems at places at which none is known: what is wrong at one place is met by several ways to it.
    fn add_problems(&mut self, problems: impl IntoIterator<Item = Error>) {
        for problem in problems {
            let is_known = self.problems.iter().any(|known| match (known, &problem) {
                (
                    Error::Corruption { file, offset, .. },
                    Error::Corruption { file: new_file, offset: new_offset, .. },
                ) => (file, offset) == (new_file, new_offset),
                _ => known.to_string() == problem.to_string(),
            });
            if !is_known {
                self.problems.push(problem);
            }
        }
    }

    /// The ranges of a keyspace as its edits say them; none, and the reason is reported, if it is of a kind without
    /// tables.
    fn ranges(&mut self, keyspace: &RecoveredKeyspace, file: &Path) -> Result<Vec<RepairRange>> {
        match repair_ranges(&keyspace.meta, &keyspace.tree(), file) {
            Err(error @ Error::InvalidArgument { .. }) => {
                self.keyspaces_left_out = true;
                let left_out = format!("keyspace {:?}: {error}", keyspace.meta.name);
                if !self.left_out.contains(&left_out) {
                    self.left_out.push(left_out);
                }
                Ok(Vec::new())
            }
            found => found,
        }
    }

    /// The keyspaces as a whole manifest says them. One that is proven to have lost its end is not whole.
    fn exact_ranges(
        &mut self,
        manifest: &SalvagedManifest,
        names: &BTreeSet<String>,
    ) -> Option<Found> {
        let end = manifest.end.as_ref().filter(|_| manifest.whole)?;
        let mut found = BTreeMap::new();
        let mut named = BTreeSet::new();
        let mut all_there = true;
        for keyspace in &manifest.state.keyspaces {
            let repair_ranges = self.ranges(keyspace, &manifest.path).ok()?;
            all_there &= repair_ranges.iter().flat_map(|range| &range.tables).all(|&table| {
                let path = self.files.path(table, FileType::Table);
                path.file_name().is_some_and(|name| names.contains(&*name.to_string_lossy()))
            });
            named.extend(repair_ranges.iter().flat_map(|range| range.tables.iter().copied()));
            let meta = keyspace.meta.clone();
            let options_place = (manifest.path.clone(), keyspace.options_offset);
            found.insert(keyspace.id, FoundKeyspace { meta, options_place, repair_ranges });
        }
        if let Some(problem) = self.lost_end(end, manifest, names, &named) {
            self.problems.push(problem);
            return None;
        }
        // Where the manifest ends with bytes that are no record and what it asks for is gone, the record may
        // have been a whole one that did without it.
        (all_there || manifest.state.torn_bytes == 0).then_some(found)
    }

    /// What tells that the manifest, with valid records up to `end`, has lost durable ones, or makes that
    /// likely: it names none of the tables of its keyspaces, although there are some.
    fn lost_end(
        &self,
        (manifest, end): &(PathBuf, u64),
        salvaged: &SalvagedManifest,
        names: &BTreeSet<String>,
        named: &BTreeSet<FileId>,
    ) -> Option<Error> {
        let state = &salvaged.state;
        let lost = |expected: String, found: String| {
            Some(Error::corruption(manifest, *end, "end of the manifest", expected, found))
        };
        let epochs = names.iter().filter_map(|name| Some((name, SegmentId::parse(name)?.epoch)));
        let newest = state.epochs.current;
        if let Some((name, epoch)) = epochs.max_by_key(|(_, epoch)| *epoch)
            && u64::from(epoch) > newest
        {
            let expected =
                format!("the record that begins epoch {epoch}, of which {name} is a segment");
            return lost(expected, format!("epochs up to {newest}"));
        }
        let next = state.next_keyspace_id;
        let mut left = None;
        for table in origins_of_unknown(&self.files, names.iter(), |id| named.contains(&id)) {
            if let Some(error) = stranger((manifest, *end), next, &table) {
                return Some(error);
            }
            let of_one = state.keyspaces.iter().any(|keyspace| keyspace.id == table.1.keyspace);
            left = left.or_else(|| of_one.then_some(table));
        }
        // Where the manifest ends where it should, they are orphans of a crash.
        let (table, origin) = left.filter(|_| named.is_empty() && !salvaged.noted)?;
        lost(
            format!(
                "a record that names {}, a table of keyspace {:?}",
                table.display(),
                origin.meta.name
            ),
            "none that names a table".to_string(),
        )
    }

    /// The keyspaces as the tables say them, each with one range that has all of its tables.
    fn found_ranges(
        &mut self,
        manifest: &SalvagedManifest,
        names: &BTreeSet<String>,
    ) -> Result<Found> {
        let state = &manifest.state;
        // Whose tables are of which nothing can be read but their leaves.
        let mut owners: BTreeMap<FileId, KeyspaceId> = BTreeMap::new();
        let mut metas: BTreeMap<KeyspaceId, (u64, FoundKeyspace)> = BTreeMap::new();
        for keyspace in &state.keyspaces {
            let known = self.ranges(keyspace, &manifest.path);
            let tables = known.iter().flatten().flat_map(|range| &range.tables);
            owners.extend(tables.map(|&table| (table, keyspace.id)));
            let options_place = (manifest.path.clone(), keyspace.options_offset);
            let meta = keyspace.meta.clone();
            let found = FoundKeyspace { meta, options_place, ..FoundKeyspace::default() };
            metas.insert(keyspace.id, (0, found));
        }
        let mut tables: BTreeMap<KeyspaceId, Vec<FileId>> = BTreeMap::new();
        for name in names {
            let Some((id, FileType::Table)) = DataFiles::parse_name(name) else { continue };
            let Some(table) = self.identify(id, owners.get(&id).copied())? else { continue };
            let dropped = table.keyspace < state.next_keyspace_id
                && !state.keyspaces.iter().any(|keyspace| keyspace.id == table.keyspace);
            if dropped {
                self.left_out.push(format!("{name}: a table of a keyspace that has been dropped"));
                continue;
            }
            tables.entry(table.keyspace).or_default().push(table.id);
            if let Some((creation, meta)) = table.origin {
                let known = metas.entry(table.keyspace).or_default();
                if known.0 <= creation {
                    let options_place = (self.files.path(table.id, FileType::Table), 0);
                    *known = (
                        creation,
                        FoundKeyspace { meta, options_place, ..FoundKeyspace::default() },
                    );
                }
            }
        }
        let found = metas.into_iter().map(|(id, (_, found))| {
            let tables = tables.remove(&id).unwrap_or_default();
            let repair_ranges = vec![RepairRange { lower: Vec::new(), upper: None, tables }];
            (id, FoundKeyspace { repair_ranges, ..found })
        });
        Ok(found.collect())
    }

    /// Finds out whose a table is.
    fn identify(&mut self, id: FileId, owner: Option<KeyspaceId>) -> Result<Option<FoundTable>> {
        let table = match TableSalvage::open(&self.files, id) {
            Err(error @ Error::UnsupportedVersion { .. }) => return Err(error),
            Err(error) => {
                self.left_out.push(error.description());
                return Ok(None);
            }
            Ok(table) => table,
        };
        let creation = table.properties().map_or(0, |properties| properties.creation);
        let origin = table.origin().map(|origin| (creation, origin.meta.clone()));
        let keyspace = table.origin().map(|origin| origin.keyspace).or(owner);
        if keyspace.is_none() {
            let name = table.path();
            self.left_out.push(format!(
                "{}: nothing says whose table it is (it was being written when the process ended, or is \
                 damaged)",
                name.display()
            ));
        }
        Ok(keyspace.map(|keyspace| FoundTable { id, keyspace, origin }))
    }

    /// The operations that trees keep themselves. Where an edit does not say which, the journal ends at a gap.
    fn operation_sources(
        &self,
        state: &RecoveredState,
        manifest: &Path,
    ) -> Vec<Arc<dyn OperationSource>> {
        let of = |keyspace: &RecoveredKeyspace| {
            let kind = TreeKind::from_name(&keyspace.meta.kind)?;
            kinds::operation_sources(kind, &self.files, || keyspace.tree(), manifest).ok()
        };
        state.keyspaces.iter().filter_map(of).flatten().collect()
    }

    /// Reads the journal.
    fn replay(
        &mut self,
        vfs: &dyn Vfs,
        dir: &Path,
        manifest: &SalvagedManifest,
        found: &mut Found,
    ) -> Result<BTreeMap<KeyspaceId, Replayed>> {
        let state = &manifest.state;
        let mut replay = Replay::default();
        if self.basis == RepairBasis::Manifest {
            let flushed = state.keyspaces.iter().map(|keyspace| (keyspace.id, keyspace.flushed));
            replay.flushed = flushed.collect();
            let logs = self.operation_sources(state, &manifest.path);
            let plan = replay_plan(state, logs)?;
            let take = |first, _, operations: Operations<'_>| replay.take(first, operations);
            match Journal::replay(vfs, dir, &plan, take) {
                Ok(report) => {
                    self.journal_records = report.records;
                    let settled = replay.flushed.values().copied().max().unwrap_or_default();
                    let last = report.last.max(state.journal_floor).max(settled);
                    let torn = report.torn.iter().map(|torn| {
                        let found = "one that is cut, and no commit behind it was taken";
                        Error::corruption(&torn.file, torn.offset, torn.what, "a record", found)
                    });
                    self.add_problems(torn);
                    let is_short = last < state.last_seqno;
                    // Otherwise the place says where they are missing.
                    if is_short && report.torn.is_empty() && report.damage_salvaged.is_empty() {
                        self.add_problems([Error::corruption(
                            &dir.join(format!("journal-{:08}-*.log", state.epochs.current)),
                            0,
                            "journal",
                            format_args!("commits up to {}", state.last_seqno),
                            format_args!("commits up to {last}"),
                        )]);
                    }
                    // Of a journal that is only torn, what opening takes: a prefix of the commits. Of one that
                    // is damaged, what lies behind the damage too.
                    let damaged = is_short || !report.damage_salvaged.is_empty();
                    self.journal_incomplete = damaged || !report.torn.is_empty();
                    self.add_problems(report.damage_salvaged);
                    if !damaged {
                        return Ok(replay.versions);
                    }
                    replay.versions.clear();
                }
                Err(error) if !error.is_corruption() => return Err(error),
                Err(error) => {
                    self.add_problems([error]);
                    self.journal_incomplete = true;
                    replay.versions.clear();
                }
            }
        }
        let store_id = match manifest.store_id {
            Some(store_id) => Some(store_id),
            None => Journal::find_store_id(vfs, dir)?,
        };
        if let Some(store_id) = store_id {
            let take = |first, operations: Operations<'_>| replay.take(first, operations);
            let read = Journal::salvage(vfs, dir, store_id, take)?;
            self.journal_records = read.records;
            self.journal_incomplete |= !read.problems.is_empty();
            self.add_problems(read.problems);
        }
        for id in replay.versions.keys().filter(|id| **id >= state.next_keyspace_id) {
            // There may be nothing of it but the journal.
            found.entry(*id).or_default();
        }
        Ok(replay.versions)
    }

    fn make_keyspaces(
        &mut self,
        found: Found,
        mut replayed: BTreeMap<KeyspaceId, Replayed>,
        builder: &Builder,
        blobs: &Arc<BlobFiles>,
    ) {
        for (id, found) in found {
            let FoundKeyspace { meta, options_place: (file, offset), mut repair_ranges } = found;
            let name = match meta.name.as_str() {
                "" => format!("recovered-{id}"),
                name => name.to_string(),
            };
            let kind = TreeKind::from_name(&meta.kind).unwrap_or_default();
            let mut options_lost = None;
            let mut options = KeyspaceOptions::new(kind);
            options.merge_operator.clone_from(&meta.operator);
            if !meta.kind.is_empty() {
                let operator = meta.operator.clone();
                match KeyspaceOptions::decode(kind, operator, &meta.options, (&file, offset)) {
                    Ok(decoded) => options = decoded,
                    Err(error) => options_lost = Some(error),
                }
            }
            // Where it is not registered, operands are copied as they are.
            let operator = meta.operator.as_ref().and_then(|operator| {
                let found = builder.merge_operators.get(operator)?;
                Some(Contained::new(&name, operator, Arc::clone(found)))
            });
            if repair_ranges.is_empty() {
                repair_ranges.push(RepairRange {
                    lower: Vec::new(),
                    upper: None,
                    tables: Vec::new(),
                });
            }
            let merge = MergeContext {
                keyspace: Arc::from(name.as_str()),
                operator_name: meta.operator.as_deref().map(Arc::from),
                operator: operator.map(|operator| operator as Arc<dyn MergeOperator>),
                blobs: Some(Arc::new(Blobs {
                    files: Arc::clone(blobs),
                    caching: Caching::Bypasses,
                })),
            };
            let replayed = replayed.remove(&id).unwrap_or_default();
            self.keyspaces.push(SourceKeyspace {
                name,
                options,
                options_lost,
                merge,
                repair_ranges,
                range_deletes: RangeDeletes::of(&replayed.range_deletes),
                replayed,
            });
        }
    }
}

/// What is known of keyspaces before they are made.
type Found = BTreeMap<KeyspaceId, FoundKeyspace>;

/// What is known of one keyspace before it is made.
#[derive(Default)]
struct FoundKeyspace {
    meta: KeyspaceMeta,
    /// The file that says so, and where its options begin in it; 0 if that is not known.
    options_place: (PathBuf, u64),
    repair_ranges: Vec<RepairRange>,
}

/// What a journal has brought.
#[derive(Default)]
struct Replay {
    /// Trees hold what they have up to here.
    flushed: BTreeMap<KeyspaceId, Seqno>,
    versions: BTreeMap<KeyspaceId, Replayed>,
}

impl Replay {
    fn take(&mut self, first: Seqno, operations: Operations<'_>) -> Result<()> {
        for (seqno, operation) in (first.0..).zip(operations) {
            let operation = operation?;
            let seqno = Seqno(seqno);
            if self.flushed.get(&operation.keyspace).is_some_and(|flushed| seqno <= *flushed) {
                continue;
            }
            let Operation { kind, key, value, .. } = operation;
            let replayed = self.versions.entry(operation.keyspace).or_default();
            if kind == EntryKind::RangeDelete {
                replayed.range_deletes.extend(RangeDelete::of_operation(seqno, key, value));
                continue;
            }
            let versions = replayed.versions.entry(key.to_vec()).or_default();
            versions.push(Version { seqno, kind, value: value.to_vec() });
        }
        Ok(())
    }
}

/// What opening would replay, as far as it can be read.
fn replay_plan(state: &RecoveredState, logs: Vec<Arc<dyn OperationSource>>) -> Result<ReplayPlan> {
    let number = |epoch: u64| {
        u32::try_from(epoch).map_err(|_| Error::invalid(format!("journal epoch {epoch}")))
    };
    let limits = state.epochs.older.iter();
    let limits = limits.map(|&(epoch, last)| Ok(EpochLimit { epoch: number(epoch)?, last }));
    Ok(ReplayPlan {
        store_id: state.store_id,
        floor: state.journal_floor,
        limits: limits.collect::<Result<_>>()?,
        newest_epoch: number(state.epochs.current)?,
        logs,
        salvage: true,
        read_only: true,
    })
}
