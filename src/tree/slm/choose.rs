//! Which compaction is next (section 3.3): tables of which little is live, those first whose keys lie among one
//! another.

use std::sync::Arc;

use super::change::{Rules, replace};
use super::level::Level;
use super::plan::{Action, Plan, droppable, overlap, range_tables};
use super::version::Version;
use super::{Slm, SlmTree};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::table::Table;
use crate::tree::range::{Key, table_overlaps, table_part};
use crate::tree::versioned::{
    Choose, CompactionPlan, Deleted, Gain, Intent, NewFiles, NewTables, Now, Place, Worth,
    split_keys,
};

/// The tables of which less is live than allowed, tombstones apart.
pub(super) fn candidates(version: &Version) -> Vec<Arc<Table>> {
    let percent = version.parameters.live_percent_min;
    let is_candidate = |table: &&Arc<Table>| {
        let values = values_of(table);
        version.own.places.live(table).is_some_and(|live| live > 0 && live * 100 < values * percent)
    };
    version.tables().iter().filter(is_candidate).cloned().collect()
}

/// The entries of a table that are no tombstones.
fn values_of(table: &Table) -> u64 {
    let properties = table.properties();
    properties.entries() - properties.deletes
}

impl Choose for Slm {
    type Choice = Plan;

    fn is_free(tree: &SlmTree, level: &Level, _by_path: bool) -> bool {
        let now = tree.context.clock.nanos();
        let jobs = tree.jobs.lock();
        !jobs.quarantine.overlaps(level.height, level.range(), now)
            && jobs.is_free(level.height, level.range(), Some(&[]))
    }

    fn choose_due(tree: &SlmTree, version: &Version, _intent: Intent) -> Result<Option<Plan>> {
        if !Self::is_free(tree, &version.root, false) {
            return Ok(None);
        }
        Ok(tree.drop_plan(version).or_else(|| tree.merge_plan(version)))
    }

    fn choose_full(
        tree: &SlmTree,
        _level: &Level,
        _by_path: bool,
        _intent: Intent,
    ) -> Result<Option<Plan>> {
        Ok(tree.most_dead_plan(&tree.version.load_full()))
    }

    fn choose_for_reads(_tree: &SlmTree, _level: &Level, _intent: Intent) -> Result<Option<Plan>> {
        Ok(None)
    }

    fn plan_of(_tree: &SlmTree, plan: Plan) -> Result<Option<Plan>> {
        Ok(Some(plan))
    }

    fn gain(tree: &SlmTree, version: &Version, _level: &Level, _now: &Now) -> Gain {
        let Some(plan) = tree.most_dead_plan(version) else { return Gain::default() };
        let dead = plan.inputs.iter().map(|table| dead_bytes(version, table)).sum();
        Gain { bytes: dead, merged_bytes: plan.merge_bytes() }
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

    fn first_merge_bytes(version: &Version, level: &Level, _by_path: bool) -> u64 {
        let most = version.parameters.inputs_max as u64 * version.parameters.table_bytes;
        level.bytes().min(most)
    }

    fn wasted_bytes_max(_level: &Level) -> Option<u64> {
        None
    }

    fn begin_compact(_tree: &SlmTree, _range: (&[u8], Option<&[u8]>)) -> Result<u32> {
        Ok(0)
    }

    fn next_uncompacted(
        tree: &SlmTree,
        _height: u32,
        (lower, upper): (&[u8], Option<&[u8]>),
    ) -> Result<Option<Plan>> {
        let version = tree.version.load_full();
        let mut from = lower.to_vec();
        let upper = upper.map(Key::from);
        loop {
            let mut tables = range_tables(&version, &from, upper.as_ref());
            tables.sort_by(|a, b| a.first_key().cmp(b.first_key()));
            let Some(first) = tables.first() else {
                return Ok(tree.drop_plan(&version));
            };
            let alone = tables.get(1).is_none_or(|next| next.first_key() > first.last_key());
            if alone && is_clean(&version, first) {
                from = first.last_key().to_vec();
                from.push(0);
                continue;
            }
            return range_plan(&version, &from, upper.as_ref(), &tables).map(Some);
        }
    }
}

/// Whether a merge of a table alone would leave it as it is.
fn is_clean(version: &Version, table: &Table) -> bool {
    let properties = table.properties();
    properties.deletes == 0 && version.own.places.live(table) == Some(properties.entries())
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

/// Bytes of a table's entries that are not live, about. Tombstones do not count.
fn dead_bytes(version: &Version, table: &Table) -> u64 {
    let properties = table.properties();
    let values = values_of(table);
    let live = version.own.places.live(table).unwrap_or(values).min(values);
    let entries = properties.entries().max(1) as f64;
    (properties.entry_bytes() as f64 * (values - live) as f64 / entries) as u64
}

impl SlmTree {
    /// Whether no job works on a table.
    fn is_table_free(&self, version: &Version, table: &Table) -> bool {
        let jobs = self.jobs.lock();
        let (height, range) = (version.root.height, version.root.range());
        jobs.is_free(height, range, Some(&[table.id().0]))
    }

    /// Drops the tables that nothing is left of.
    pub(super) fn drop_dead(&self) -> Result<()> {
        let tables = droppable(&self.version.load());
        if tables.is_empty() {
            return Ok(());
        }
        let drop = |root: &mut Arc<Level>, _rules: &Rules| Ok(replace(root, &[], &tables, &[]));
        self.change(NewFiles::None, drop, Seqno(0), NewTables::None)?;
        self.own.places.forget(&tables);
        Ok(())
    }

    fn drop_plan(&self, version: &Version) -> Option<Plan> {
        let mut tables = droppable(version);
        tables.retain(|table| self.is_table_free(version, table));
        let place = Place::of(&version.root);
        (!tables.is_empty()).then(|| Plan::new(version, Action::Drop, place, tables))
    }

    /// The merge of the candidate whose keys lie among those of most others, with these.
    fn merge_plan(&self, version: &Version) -> Option<Plan> {
        let mut free = candidates(version);
        let snapshots = self.context.snapshots();
        free.retain(|table| {
            self.is_table_free(version, table) && self.jobs.lock().gains(table.id(), &snapshots)
        });
        self.plan_among(version, &free)
    }

    /// The merge of the tables that are most dead.
    fn most_dead_plan(&self, version: &Version) -> Option<Plan> {
        let mut free: Vec<Arc<Table>> = version.tables().to_vec();
        let snapshots = self.context.snapshots();
        free.retain(|table| {
            version.own.places.live(table).is_some_and(|live| live > 0)
                && self.is_table_free(version, table)
                && self.jobs.lock().gains(table.id(), &snapshots)
        });
        free.sort_by_cached_key(|table| std::cmp::Reverse(dead_bytes(version, table)));
        free.truncate(version.parameters.inputs_max);
        free.retain(|table| dead_bytes(version, table) > 0);
        let place = Place::of(&version.root);
        (!free.is_empty()).then(|| Plan::new(version, Action::Merge, place, free))
    }

    fn plan_among(&self, version: &Version, free: &[Arc<Table>]) -> Option<Plan> {
        let overlaps =
            |table: &Arc<Table>| free.iter().filter(|other| overlap(table, other)).count();
        let first = free.iter().max_by_key(|table| overlaps(table))?;
        let mut inputs: Vec<Arc<Table>> = vec![Arc::clone(first)];
        for other in free {
            if inputs.len() < version.parameters.inputs_max
                && other.id() != first.id()
                && overlap(first, other)
            {
                inputs.push(Arc::clone(other));
            }
        }
        Some(Plan::new(version, Action::Merge, Place::of(&version.root), inputs))
    }
}
