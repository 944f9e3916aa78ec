//! Which compaction is next (section 3.3).
//!
//! Candidates are tables of which little is live, and those that are [scattered](super::scattered). Of the former, once
//! there are some, the one whose keys lie most among those of others is merged with these.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::change::{Rules, remove};
use super::level::Level;
use super::live_ranks::{LiveCounts, UNCHANGED, WITHOUT_KEYS};
use super::plan::{Action, Plan, overlap, overlap_permille, range_tables};
use super::registry::LevelKey;
use super::scattered::Chosen;
use super::version::Version;
use super::{Slm, SlmTree};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::atomic::Ordering;
use crate::table::{BlobFile, Table};
use crate::tree::dead_blobs::{BlobUse, collected_gain};
use crate::tree::range::{Key, table_overlaps, table_part};
use crate::tree::range_deleted::RangeDeleted;
use crate::tree::versioned::{
    Choose, CompactionPlan, Deleted, Gain, Intent, NewFiles, NewTables, Now, Place, Worth,
    split_keys,
};

/// A compaction is due once there are so many candidates.
const CANDIDATES_MIN: usize = 4;

/// No more of the tables that a merge may be chosen among are compared.
const CANDIDATES_MAX: usize = 64;

/// Tables whose overlap ratio is less are not alike.
const ALIKE_PERMILLE_MIN: u64 = 500;

/// The ranks of the tables of which less is live than allowed.
fn ranks_mostly_dead(version: &Version) -> RangeInclusive<u8> {
    0..=version.parameters.live_percent_min.saturating_sub(1)
}

/// The tables of which less is live than allowed.
pub(super) fn mostly_dead(version: &Version) -> Vec<LevelKey> {
    let has = |(number, table): &LevelKey, _: &LiveCounts| version.root.tables.has(*number, table);
    version.own.places.ranked(ranks_mostly_dead(version), usize::MAX, has)
}

impl Choose for Slm {
    type Choice = Plan;

    fn is_free(tree: &SlmTree, level: &Level, _by_path: bool) -> bool {
        tree.is_range_free(level.range())
    }

    fn choose_first(tree: &SlmTree, version: &Version) -> Option<Plan> {
        tree.receive_plan(version)
    }

    fn choose_due(tree: &SlmTree, version: &Version, _intent: Intent) -> Result<Option<Plan>> {
        if tree.own.places.is_partial() {
            return Ok(tree.rebuild_plan(version));
        }
        let plan = tree.drop_plan(version).or_else(|| tree.erase_plan(version));
        let (prune, merge) = (|| tree.prune_plan(version), || tree.merge_plan(version));
        // Both take turns, so that neither waits for all that there is of the other.
        Ok(plan.or_else(|| match tree.own.places.has_pruned.load(Ordering::SeqCst) {
            true => merge().or_else(prune),
            false => prune().or_else(merge),
        }))
    }

    fn choose_full(
        tree: &SlmTree,
        _level: &Level,
        _by_path: bool,
        _intent: Intent,
    ) -> Result<Option<Plan>> {
        Ok(tree.most_dead_plan(&tree.version.load_full()).map(|(plan, _)| plan))
    }

    fn choose_for_reads(_tree: &SlmTree, _level: &Level, _intent: Intent) -> Result<Option<Plan>> {
        Ok(None)
    }

    fn plan_of(tree: &SlmTree, plan: Plan) -> Result<Option<Plan>> {
        Ok(Some(plan.looked_at(&tree.version.load())))
    }

    fn gain(tree: &SlmTree, version: &Version, _level: &Level, _now: &Now) -> Gain {
        let Some((plan, bytes)) = tree.most_dead_plan(version) else { return Gain::default() };
        Gain { bytes, merged_bytes: plan.merge_bytes() }
    }

    fn path_gain(_version: &Version, _level: &Level) -> Gain {
        Gain::default()
    }

    fn deleted(
        _tree: &SlmTree,
        _version: &Version,
        _level: &Level,
        _worth: (Worth, &[Seqno]),
    ) -> Option<Deleted> {
        None
    }

    /// See [`super::erase`].
    const MERGES_FOR_RANGE_DELETES: bool = false;

    /// The merge of a table that only a part of has been deleted with its range.
    fn choose_idle(tree: &SlmTree, version: &Version) -> Option<Plan> {
        let tables = version.root.tables.iter().map(|it| &it.table);
        let is_free = |table: &Arc<Table>| {
            let number = tree.own.places.number_of(table);
            number.is_some_and(|number| tree.is_free_table(version, &(number, Arc::clone(table))))
        };
        let table = tree.first_range_deleted(version, tables, is_free)?;
        let inputs = vec![Arc::clone(table)];
        let (lower, upper) = hull(&inputs);
        Some(Plan::new(version, Action::Merge, Place { height: 0, lower, upper }, inputs))
    }

    fn first_merge_bytes(version: &Version, _level: &Level, _by_path: bool) -> u64 {
        let most = version.parameters.inputs_max as u64 * version.parameters.table_bytes;
        version.files.entry_bytes.min(most)
    }

    fn wasted_bytes_max(_level: &Level) -> Option<u64> {
        None
    }

    fn begin_compact(tree: &SlmTree, _range: (&[u8], Option<&[u8]>)) -> Result<u32> {
        while tree.receive_some(usize::MAX) {}
        Ok(0)
    }

    fn end_compact(tree: &SlmTree, (lower, upper): (&[u8], Option<&[u8]>)) {
        tree.own.places.pack(lower, upper);
    }

    fn next_uncompacted(
        tree: &SlmTree,
        _height: u32,
        (lower, upper): (&[u8], Option<&[u8]>),
        whole: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Plan>> {
        let version = tree.version.load_full();
        // Of a table that goes on in another part, the rest may be merged there: what is here would stay.
        let is_here = |table: &Table| {
            (lower == whole.0 || table.first_key() >= lower)
                && (upper == whole.1 || upper.is_none_or(|upper| table.last_key() < upper))
        };
        let mut from = lower.to_vec();
        let upper = upper.map(Key::from);
        let collected = tree.collected_blobs(&version);
        let deleted = RangeDeleted::of(&tree.context);
        let is_deleted_from = |table: &Arc<Table>| {
            let range = (table.first_key(), None);
            deleted.as_ref().is_some_and(|deleted| deleted.is_deleted_from(table, range))
        };
        if tree.own.places.is_partial() {
            return Ok(Some(tree.rebuild_anyway(&version)));
        }
        let mut tables = range_tables(&version, lower, upper.as_ref());
        tables.sort_by(|a, b| a.first_key().cmp(b.first_key()));
        for (at, first) in tables.iter().enumerate() {
            let alone = tables.get(at + 1).is_none_or(|next| next.first_key() > first.last_key());
            if !alone || !tree.is_clean(first, &collected) || is_deleted_from(first) {
                return range_plan(&version, &from, upper.as_ref(), &tables[at..]).map(Some);
            }
            let behind = Key::from([first.last_key(), &[0][..]].concat());
            if !is_here(first) {
                let end = upper.filter(|upper| *upper < behind).unwrap_or(behind);
                return range_plan(&version, &from, Some(&end), &tables[at..=at]).map(Some);
            }
            from = behind.to_vec();
        }
        Ok(tree.drop_plan(&version))
    }
}

/// The merge of the front part of a range.
fn range_plan(
    version: &Version,
    lower: &[u8],
    upper: Option<&Key>,
    tables: &[Arc<Table>],
) -> Result<Plan> {
    let range = (lower, upper.map(|upper| &**upper));
    let mut sized = Vec::with_capacity(tables.len());
    for table in tables {
        sized.push((table, table_part(table, range.0, range.1)?.size.bytes));
    }
    let bytes: u64 = sized.iter().map(|(_, bytes)| bytes).sum();
    let most = version.parameters.inputs_max as u64 * version.parameters.table_bytes;
    let end = match bytes / most.max(1) {
        0 => None,
        parts => split_keys(range, parts + 1, &sized)?.into_iter().next(),
    };
    let end = end.or_else(|| upper.cloned());
    let is_over = |table: &&Arc<Table>| table_overlaps(table, lower, end.as_deref());
    let inputs = tables.iter().filter(is_over).cloned().collect();
    let place = Place { height: 0, lower: Key::from(lower), upper: end };
    Ok(Plan::new(version, Action::MergeRange, place, inputs))
}

impl SlmTree {
    /// Whether no job works, and no damage is, in a range of keys.
    pub(super) fn is_range_free(&self, range: (&[u8], Option<&[u8]>)) -> bool {
        let now = self.context.clock.nanos();
        let jobs = self.jobs.lock();
        !jobs.quarantine.overlaps(0, range, now) && jobs.is_free(0, range, None)
    }

    /// Whether a table of a version can be merged as a whole. One that was not read stays away for a while; its live keys
    /// are found where they are.
    fn is_free_table(&self, version: &Version, (number, table): &LevelKey) -> bool {
        let (lower, upper) = hull(std::slice::from_ref(table));
        let now = self.context.clock.nanos();
        version.root.tables.has(*number, table)
            && self.own.places.live(table).is_some()
            && !self.jobs.lock().quarantine.has_table(table.pages().id(), now)
            && self.is_range_free((&lower, upper.as_deref()))
    }

    /// Bytes of a table's keys and values that a merge would drop, about: of keys that are dead, and of versions that only
    /// snapshots needed that have gone.
    pub(super) fn dead_bytes(&self, table: &Table, snapshots: &[Seqno]) -> u64 {
        let Some((live, named)) = self.own.places.live_of_named(table) else { return 0 };
        let dead = (named - live.min(named)) as f64 / named.max(1) as f64;
        let of_keys = (table.properties().entry_bytes() as f64 * dead) as u64;
        of_keys.max(self.jobs.lock().freed_bytes(table.id(), snapshots))
    }

    /// Whether a merge of a table alone would leave it as it is.
    fn is_clean(&self, table: &Table, collected: &[BlobUse]) -> bool {
        let is_collected = |blob: &Arc<BlobFile>| {
            collected.binary_search_by_key(&blob.id(), |collected| collected.file).is_ok()
        };
        let properties = table.properties();
        properties.deletes == 0
            && properties.compression == self.context.options().compression
            && self.own.places.live(table) == Some(properties.entries())
            && !table.blobs().iter().any(is_collected)
    }

    /// Drops the tables that nothing is left of.
    pub(super) fn drop_dead(&self) -> Result<()> {
        loop {
            let tables = self.droppable();
            if tables.is_empty() {
                return Ok(());
            }
            let index = self.own.places.file_id();
            let drop = |root: &mut Arc<Level>, _rules: &Rules| Ok(remove(root, &tables, index));
            self.change(NewFiles::None, drop, Seqno(0), NewTables::None)?;
            let tables: Vec<Arc<Table>> = tables.into_iter().map(|(_, table)| table).collect();
            self.own.places.forget(&tables);
            self.own.scattered.forget(&tables);
        }
    }

    fn drop_plan(&self, version: &Version) -> Option<Plan> {
        let tables = self.droppable().into_iter().map(|(_, table)| table);
        let tables: Vec<Arc<Table>> = tables.collect();
        let place = Place::of(&version.root);
        (!tables.is_empty() && self.is_range_free(place.range()))
            .then(|| Plan::new(version, Action::Drop, place, tables))
    }

    /// Building the index anew.
    fn rebuild_plan(&self, version: &Version) -> Option<Plan> {
        let is_free = self.is_range_free(Place::of(&version.root).range());
        is_free.then(|| self.rebuild_anyway(version))
    }

    /// The same, whatever else is going on, or has failed.
    fn rebuild_anyway(&self, version: &Version) -> Plan {
        Plan::new(version, Action::Rebuild, Place::of(&version.root), Vec::new())
    }

    /// Putting memtables into the index, if that is not done already. It excludes nothing else: its place is above the
    /// level.
    fn receive_plan(&self, version: &Version) -> Option<Plan> {
        if !self.own.places.has_pending() {
            return None;
        }
        let place = Place { height: 1, ..Place::of(&version.root) };
        let is_free = self.jobs.lock().is_free(place.height, place.range(), None);
        is_free.then(|| Plan::new(version, Action::Receive, place, Vec::new()))
    }

    /// The removal of what only snapshots needed, if some of them have gone: of the first marked keys that no job has.
    fn prune_plan(&self, version: &Version) -> Option<Plan> {
        let places = &self.own.places;
        if places.superseded() == 0 {
            return None;
        }
        let (now, nanos) = (self.context.snapshots(), self.context.clock.nanos());
        if !places.marked.lock().is_due(&now) {
            return None;
        }
        let free = self.jobs.lock().free_ranges(0, nanos);
        let (lower, upper) = places.marked.lock().due_in(&now, &free)?;
        let place = Place { height: 0, lower, upper: Some(upper) };
        Some(Plan::new(version, Action::Prune, place, Vec::new()))
    }

    fn merge_plan(&self, version: &Version) -> Option<Plan> {
        self.dead_plan(version).or_else(|| self.scattered_plan(version))
    }

    /// The merge of tables of like ranges where many lie among one another.
    fn scattered_plan(&self, version: &Version) -> Option<Plan> {
        let scattered = &self.own.scattered;
        scattered.choose(|stretch| {
            let crowd = stretch.crowded(|id| self.own.places.of_file(id));
            let Some(crowd) = crowd else { return Chosen::Never };
            let (is_urgent, tables) = (stretch.is_urgent(&crowd), crowd.len().min(CANDIDATES_MAX));
            let free = crowd.into_iter().filter(|table| self.is_free_table(version, table));
            let free: Vec<Arc<Table>> = free.map(|(_, table)| table).take(CANDIDATES_MAX).collect();
            let inputs_max = version.parameters.inputs_max;
            let plan = match is_urgent {
                false => self.alike_plan(version, &free, inputs_max),
                true => self.alike_plan(version, &free, CANDIDATES_MIN).or_else(|| {
                    let plan = self.plan_among(version, &free);
                    plan.filter(|plan| plan.inputs.len() >= CANDIDATES_MIN)
                }),
            };
            match plan {
                Some(plan) if !stretch.is_read || scattered.are_read_enough(&plan.inputs) => {
                    Chosen::Plan(plan)
                }
                // Its tables become fewer, and never more.
                None if free.len() == tables => Chosen::Never,
                _ => Chosen::NotYet,
            }
        })
    }

    /// The merge of the tables whose ranges are most alike, if there are at least so many.
    fn alike_plan(&self, version: &Version, free: &[Arc<Table>], least: usize) -> Option<Plan> {
        let alike = |first: &Arc<Table>| {
            let others = free.iter().filter(|other| !Arc::ptr_eq(other, first));
            let overlaps = others.map(|other| (overlap_permille(first, other), other));
            let mut alike: Vec<(u64, &Arc<Table>)> =
                overlaps.filter(|(permille, _)| *permille >= ALIKE_PERMILLE_MIN).collect();
            alike.sort_by_key(|(permille, _)| Reverse(*permille));
            alike.truncate(version.parameters.inputs_max.saturating_sub(1));
            let sum: u64 = alike.iter().map(|(permille, _)| permille).sum();
            (alike.len() + 1 >= least).then_some((sum, alike))
        };
        let groups = free.iter().filter_map(|first| alike(first).map(|group| (first, group)));
        let (first, (_, others)) = groups.max_by_key(|(_, (sum, _))| *sum)?;
        let others = others.into_iter().map(|(_, other)| other);
        let inputs: Vec<Arc<Table>> = std::iter::once(first).chain(others).cloned().collect();
        let (lower, upper) = hull(&inputs);
        self.is_range_free((&lower, upper.as_deref()))
            .then(|| Plan::new(version, Action::Merge, Place { height: 0, lower, upper }, inputs))
    }

    /// The merge of the table of which little is live whose keys lie most among those of others like it, with these.
    fn dead_plan(&self, version: &Version) -> Option<Plan> {
        let places = &self.own.places;
        let is_free = |table: &LevelKey, _: &LiveCounts| self.is_free_table(version, table);
        let mut tables = places.ranked(ranks_mostly_dead(version), CANDIDATES_MAX, is_free);
        let percent = u64::from(100 - version.parameters.live_percent_min);
        let has_freed = |(table, freed): &(LevelKey, u64)| {
            *freed * 100 >= table.1.properties().entry_bytes() * percent
                && self.is_free_table(version, table)
        };
        tables.extend(self.freed().filter(has_freed).map(|(table, _)| table));
        // Tables of tombstones that still hide something. Large ones would be as large again.
        let is_of_tombstones = |table: &LevelKey, counts: &LiveCounts| {
            counts.live == 0
                && table.1.properties().entry_bytes() * 2 <= version.parameters.table_bytes
                && self.is_free_table(version, table)
        };
        let ranks = WITHOUT_KEYS..=WITHOUT_KEYS;
        let of_tombstones = places.ranked(ranks, CANDIDATES_MAX, is_of_tombstones);
        let are_many = of_tombstones.len() >= version.parameters.inputs_max;
        if are_many {
            tables.extend(of_tombstones.iter().cloned());
        }
        let candidates: BTreeMap<FileId, Arc<Table>> =
            tables.into_iter().map(|(_, table)| (table.id(), table)).collect();
        let mut free: Vec<Arc<Table>> = candidates.into_values().collect();
        free.truncate(CANDIDATES_MAX);
        if free.len() < CANDIDATES_MIN {
            return None;
        }
        let plan = self.plan_among(version, &free)?;
        match &plan.inputs[..] {
            [alone] if self.would_stay(alone) && are_many => {
                self.neighbours_plan(version, of_tombstones)
            }
            [alone] if self.would_stay(alone) => None,
            _ => Some(plan),
        }
    }

    /// Whether nothing of a table without values would go if it were merged alone.
    fn would_stay(&self, table: &Table) -> bool {
        self.own.places.live_of_named(table) == Some((0, 0))
            && self.dead_bytes(table, &self.context.snapshots()) == 0
    }

    /// The merge of small tables of tombstones of which none lies among the others: those that follow one another.
    fn neighbours_plan(&self, version: &Version, tables: Vec<LevelKey>) -> Option<Plan> {
        let mut tables: Vec<Arc<Table>> = tables.into_iter().map(|(_, table)| table).collect();
        tables.sort_by(|a, b| a.first_key().cmp(b.first_key()));
        tables.chunks(version.parameters.inputs_max).filter(|inputs| inputs.len() > 1).find_map(
            |inputs| {
                let (lower, upper) = hull(inputs);
                self.is_range_free((&lower, upper.as_deref())).then(|| {
                    let place = Place { height: 0, lower, upper };
                    Plan::new(version, Action::Merge, place, inputs.to_vec())
                })
            },
        )
    }

    /// The tables that have had bytes for snapshots of which one has gone, with these bytes.
    fn freed(&self) -> impl Iterator<Item = (LevelKey, u64)> {
        let freed = self.jobs.lock().freed(&self.context.snapshots());
        freed.into_iter().filter_map(|(id, bytes)| Some((self.own.places.of_file(id)?, bytes)))
    }

    /// The merge of the tables that give back most, and about how many bytes they do.
    fn most_dead_plan(&self, version: &Version) -> Option<(Plan, u64)> {
        let (snapshots, collected) = (self.context.snapshots(), self.collected_blobs(version));
        let gain = |table: &Arc<Table>| {
            let (bytes, _) = collected_gain(std::iter::once(table), &collected);
            bytes + self.dead_bytes(table, &snapshots)
        };
        let mut tables: Vec<LevelKey> = if collected.is_empty() {
            // Tables are about as large as one another.
            let is_free = |table: &LevelKey, _: &LiveCounts| self.is_free_table(version, table);
            let dead = self.own.places.ranked(0..=UNCHANGED - 1, CANDIDATES_MAX, is_free);
            dead.into_iter().chain(self.freed().map(|(table, _)| table)).collect()
        } else {
            version.root.tables.iter().map(|it| (it.number, Arc::clone(&it.table))).collect()
        };
        tables.sort_unstable_by_key(|(number, _)| *number);
        tables.dedup_by_key(|(number, _)| *number);
        let mut gains: Vec<(u64, LevelKey)> =
            tables.into_iter().map(|table| (gain(&table.1), table)).collect();
        gains.retain(|(bytes, _)| *bytes > 0);
        gains.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let free = gains.into_iter().filter(|(_, table)| self.is_free_table(version, table));
        let mut free: Vec<Arc<Table>> = free.map(|(_, (_, table))| table).collect();
        free.truncate(version.parameters.inputs_max);
        let bytes = free.iter().map(gain).sum();
        let (lower, upper) = hull(&free);
        let place = Place { height: 0, lower, upper };
        (!free.is_empty() && self.is_range_free(place.range()))
            .then(|| (Plan::new(version, Action::Merge, place, free), bytes))
    }

    fn plan_among(&self, version: &Version, free: &[Arc<Table>]) -> Option<Plan> {
        let sum = |table: &&Arc<Table>| {
            let others = free.iter().filter(|other| other.id() != table.id());
            others.map(|other| overlap_permille(table, other)).sum::<u64>()
        };
        let first = free.iter().max_by_key(sum)?;
        let mut others: Vec<&Arc<Table>> = free.iter().collect();
        others.retain(|other| other.id() != first.id() && overlap(first, other));
        others.sort_by_cached_key(|other| Reverse(overlap_permille(first, other)));
        let mut inputs: Vec<Arc<Table>> = vec![Arc::clone(first)];
        for other in others {
            inputs.push(Arc::clone(other));
            let (lower, upper) = hull(&inputs);
            if inputs.len() > version.parameters.inputs_max
                || !self.is_range_free((&lower, upper.as_deref()))
            {
                inputs.pop();
            }
        }
        let (lower, upper) = hull(&inputs);
        Some(Plan::new(version, Action::Merge, Place { height: 0, lower, upper }, inputs))
    }
}

/// The range of the keys of tables.
fn hull(tables: &[Arc<Table>]) -> (Key, Option<Key>) {
    let lower = tables.iter().map(|table| table.first_key()).min().unwrap_or_default();
    let last = tables.iter().map(|table| table.last_key()).max().unwrap_or_default();
    let upper: Vec<u8> = last.iter().copied().chain([0]).collect();
    (Key::from(lower), Some(Key::from(upper)))
}
