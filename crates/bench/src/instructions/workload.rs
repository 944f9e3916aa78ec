//! The counted operations. Each is done some thousand times on a store at some stage.
//!
//! Invariants:
//! 1. Every read is checked, and a run whose pages did not come from where its stage says is an error:
//!    the cost of something else would pass for a change.
//! 2. A process ends with the last operation, so that closing the store, which costs more the more was
//!    written, is in no count.

use spinney::TreeKind;

use super::store::{Stage, Store, text, wrong};

/// How many pairs stores have.
pub const RECORDS: usize = 32_768;
/// Keys of a batched read.
const MULTI_GET_KEYS: usize = 64;
/// Pairs of a batch.
const BATCH_PAIRS: usize = 16;

/// A workload.
#[derive(Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// A description of one operation.
    pub operation: &'static str,
    /// The stage of its store.
    pub stage: Stage,
    /// Checks that the intended work was done, and not something else.
    work: Work,
    /// Does it, and says how many operations that was.
    run: fn(&Store) -> Result<usize, String>,
}

/// A workload's use of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing: memtables and cached pages are enough.
    Memory,
    /// It reads pages.
    Reads,
    /// It fills memtables, which are packed and compacted.
    Background,
}

const fn workload(
    name: &'static str,
    stage: Stage,
    work: Work,
    run: fn(&Store) -> Result<usize, String>,
    operation: &'static str,
) -> Workload {
    Workload { name, operation, stage, work, run }
}

/// All of them.
pub static WORKLOADS: &[Workload] = &[
    workload(
        "put",
        Stage::Roomy,
        Work::Memory,
        put,
        "put of a new key: memtable and journal alone",
    ),
    workload("batch16", Stage::Roomy, Work::Memory, batch, "the same in a batch of 16: one pair"),
    workload(
        "get-memtable",
        Stage::Roomy,
        Work::Memory,
        get,
        "get of a key that is in the memtable",
    ),
    workload(
        "load",
        Stage::Loaded,
        Work::Background,
        put,
        "put of a new key, with background work",
    ),
    workload("load-in-order", Stage::Ordered, Work::Background, put, "the same in key order"),
    workload(
        "overwrite",
        Stage::Loaded,
        Work::Background,
        overwrite,
        "the same of a key that is there",
    ),
    workload(
        "get",
        Stage::Loaded,
        Work::Memory,
        get,
        "get of a key that is there, from cached pages",
    ),
    workload(
        "get-absent",
        Stage::Loaded,
        Work::Memory,
        get_absent,
        "get of a key that is not there",
    ),
    workload("multi-get", Stage::Loaded, Work::Memory, multi_get, "a key of a `multi_get` of 64"),
    workload("scan10", Stage::Loaded, Work::Memory, scan::<10>, "scan of 10 pairs from a key"),
    workload("scan50", Stage::Loaded, Work::Memory, scan::<50>, "scan of 50 pairs from a key"),
    workload("full-scan", Stage::Loaded, Work::Memory, full_scan, "a pair of a scan of everything"),
    workload("get-merged", Stage::Merged, Work::Memory, get, "`get` when all is merged"),
    workload(
        "scan50-merged",
        Stage::Merged,
        Work::Memory,
        scan::<50>,
        "`scan50` when all is merged",
    ),
    workload(
        "full-scan-merged",
        Stage::Merged,
        Work::Memory,
        full_scan,
        "`full-scan` when all is merged",
    ),
    workload("get-cold", Stage::Cold, Work::Reads, get, "`get` with an eighth of the data cached"),
    workload("multi-get-cold", Stage::Cold, Work::Reads, multi_get, "`multi-get`, likewise"),
    workload("get-holed", Stage::Holed, Work::Memory, get, "`get` beside 10,000 range deletes"),
    workload("scan50-holed", Stage::Holed, Work::Memory, scan::<50>, "`scan50`, likewise"),
    workload("scan50-cold", Stage::Cold, Work::Reads, scan::<50>, "`scan50`, likewise"),
];

/// The background work per pair: the difference between the costs of these two workloads.
pub const BACKGROUND: (&str, [&str; 2]) = ("background", ["load", "put"]);

/// A description of that work.
pub const BACKGROUND_OPERATION: &str = "`load` less `put`: packing and compacting one pair";

impl Workload {
    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Workload> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }
}

fn put(store: &Store) -> Result<usize, String> {
    let count = store.records() / 2;
    store.put(store.records()..store.records() + count)?;
    Ok(count)
}

fn overwrite(store: &Store) -> Result<usize, String> {
    let count = store.records() / 2;
    store.put(store.picks(count))?;
    Ok(count)
}

fn batch(store: &Store) -> Result<usize, String> {
    let batches = store.records() / 2 / BATCH_PAIRS;
    for number in 0..batches {
        let first = store.records() + number * BATCH_PAIRS;
        let mut batch = store.db.batch();
        for index in first..first + BATCH_PAIRS {
            batch.put(&store.keyspace, store.key(index), store.value(index));
        }
        text(batch.commit())?;
    }
    Ok(batches * BATCH_PAIRS)
}

fn get(store: &Store) -> Result<usize, String> {
    let count = store.records() / 2;
    store.picks(count).try_for_each(|index| store.get(index))?;
    Ok(count)
}

fn get_absent(store: &Store) -> Result<usize, String> {
    let count = store.records() / 2;
    for index in store.picks(count).map(|index| index + store.records()) {
        if text(store.keyspace.get(store.key(index)))?.is_some() {
            return Err(wrong(index));
        }
    }
    Ok(count)
}

fn multi_get(store: &Store) -> Result<usize, String> {
    let picks: Vec<usize> = store.picks(store.records() / 2).collect();
    for picks in picks.chunks(MULTI_GET_KEYS) {
        let found = text(store.keyspace.multi_get(picks.iter().map(|&index| store.key(index))))?;
        for (&index, value) in picks.iter().zip(&found) {
            if value.as_deref() != Some(store.value(index)) {
                return Err(wrong(index));
            }
        }
    }
    Ok(picks.len())
}

fn scan<const PAIRS: usize>(store: &Store) -> Result<usize, String> {
    let count = store.records() / 16;
    for index in store.picks(count) {
        let from = store.key(index);
        for (nth, pair) in store.keyspace.range(&from[..]..).take(PAIRS).enumerate() {
            let (key, value) = text(pair)?;
            if nth == 0 && (&key[..] != from || &value[..] != store.value(index)) {
                return Err(wrong(index));
            }
        }
    }
    Ok(count)
}

fn full_scan(store: &Store) -> Result<usize, String> {
    let mut seen = 0;
    for pair in store.keyspace.iter() {
        text(pair)?;
        seen += 1;
    }
    if seen == store.records() { Ok(seen) } else { Err(format!("a full scan met {seen} pairs")) }
}

/// Makes a store and does a workload to it, or nothing; says how many operations that was.
///
/// # Errors
/// Errors of the store, wrong answers, and work other than the intended one.
pub fn carry_out(
    kind: TreeKind,
    stage: Stage,
    workload: Option<&Workload>,
    records: usize,
) -> Result<usize, String> {
    let store = Store::open(kind, stage, records)?;
    let before = store.db.stats();
    let operations = workload.map_or(Ok(0), |workload| (workload.run)(&store))?;
    let after = store.db.stats();
    let pages = after.pages_read - before.pages_read;
    let packed = after.flush.count - before.flush.count;
    std::mem::forget(store);
    let as_meant = match workload.map_or(Work::Memory, |workload| workload.work) {
        Work::Memory => pages == 0 && packed == 0,
        Work::Reads => pages > 0 && packed == 0,
        Work::Background => packed > 0,
    };
    if as_meant {
        return Ok(operations);
    }
    Err(format!("read {pages} pages and packed {packed} memtables, which was not meant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_does_what_it_says_to_every_kind_of_tree() {
        for kind in TreeKind::ALL {
            for workload in WORKLOADS {
                let done = carry_out(kind, workload.stage, Some(workload), 8192);
                let (done, name) = (done.unwrap(), workload.name);
                assert!(done >= 512, "{kind} {name}: {done}");
            }
        }
    }

    #[test]
    fn names_are_distinct_and_those_that_others_stand_on_are_there() {
        for workload in WORKLOADS {
            assert!(std::ptr::eq(Workload::named(workload.name).unwrap(), workload));
        }
        let (name, [more, less]) = BACKGROUND;
        assert!(Workload::named(name).is_none());
        assert!(Workload::named(more).is_some() && Workload::named(less).is_some());
    }
}
