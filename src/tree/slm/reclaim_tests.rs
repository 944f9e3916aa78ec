//! Which tables are merged, and which are dropped, beside many that are neither.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::change::{Rules, add, remove};
use super::level_tables::LevelTable;
use super::receive::Received;
use super::*;
use crate::base::entry::EntryKind;
use crate::base::random::SplitMix;
use crate::base::sync::Mutex;
use crate::base::visits;
use crate::jobs::{Job, Step};
use crate::location_index::LocationIndex;
use crate::pmem::HeapRegion;
use crate::tree::options::KeyspaceOptions;
use crate::tree::own_options::OwnValues;
use crate::tree::placed::RangeReads;
use crate::tree::range::Key;
use crate::tree::test_support::{Reader, context, key_of, table_of, table_with};
use crate::tree::versioned::{Choose, Intent, NewFiles, NewTables};
use crate::tree::{Tree, TreeObserver};
use crate::vfs::Access;

/// So many tables were looked at, and no more.
const WINDOW: u64 = 64;

/// A tree whose leaves are not scanned, and that does nothing by itself.
pub(super) struct Bed {
    pub(super) tree: Arc<SlmTree>,
    _observer: Arc<dyn TreeObserver>,
    seqno: u64,
}

impl Bed {
    pub(super) fn new() -> Bed {
        Bed::with(Arc::new(Reader(vec![Seqno(u64::MAX >> 8)])))
    }

    pub(super) fn with(observer: Arc<dyn TreeObserver>) -> Bed {
        Bed::of(observer, KeyspaceOptions::slm().leaf_scans(false).own, None)
    }

    /// With other options, and tables of so many bytes.
    pub(super) fn of(
        observer: Arc<dyn TreeObserver>,
        own: OwnValues,
        table_bytes: Option<u64>,
    ) -> Bed {
        let context = context("slm", &observer);
        let before = TreeOptions::clone(&context.options());
        let memtable_bytes = table_bytes.unwrap_or(before.memtable_bytes);
        context.options.store(Arc::new(TreeOptions { own, memtable_bytes, ..before }));
        let tree = SlmTree::open(context, &[], Seqno(0)).unwrap();
        Bed { tree, _observer: observer, seqno: 0 }
    }

    /// A memtable becomes part of the tree and of the index.
    pub(super) fn receive(
        &mut self,
        kind: EntryKind,
        keys: impl IntoIterator<Item = u64>,
    ) -> Arc<Table> {
        let table = self.incorporate(kind, keys);
        while self.tree.receive_some(usize::MAX) {}
        table
    }

    /// The same, with versions of keys by number, in the order of a table.
    pub(super) fn receive_table(&mut self, entries: Vec<(u64, u64, EntryKind)>) {
        self.incorporate_table(table_with(&self.tree.context.files, entries));
        while self.tree.receive_some(usize::MAX) {}
    }

    /// A memtable becomes part of the tree, and is pending.
    pub(super) fn incorporate(
        &mut self,
        kind: EntryKind,
        keys: impl IntoIterator<Item = u64>,
    ) -> Arc<Table> {
        let table = table_of(&self.tree.context.files, kind, self.seqno + 1, keys);
        self.incorporate_table(table)
    }

    /// A table becomes part of the tree, and is pending.
    pub(super) fn incorporate_table(&mut self, table: Arc<Table>) -> Arc<Table> {
        self.seqno = table.properties().seqno_max.0;
        let (places, flushed) = (self.places(), Seqno(self.seqno));
        let (number, index) = (places.next_number().unwrap(), places.file_id());
        let packed = PackedTable { table: Arc::clone(&table), number, index };
        Slm::incorporating(&self.tree, &packed, flushed).unwrap();
        let receive = |root: &mut Arc<Level>, _rules: &Rules| {
            add(
                root,
                LevelTable { table: Arc::clone(&packed.table), settled: flushed, number },
                index,
            );
            Ok(true)
        };
        let tables = NewTables::Younger(slice::from_ref(&table));
        self.tree.change(NewFiles::Some, receive, flushed, tables).unwrap();
        Slm::incorporated(&self.tree, &packed, true);
        table
    }

    /// Memtables of so many keys of their own, and of others at both ends that each has anew: the last is wholly live.
    pub(super) fn receive_range(
        &mut self,
        tables: u64,
        first: u64,
        own_keys: u64,
        shared_keys: u64,
    ) {
        let last = first + shared_keys + tables * own_keys;
        for table in 0..tables {
            let own = first + shared_keys + table * own_keys;
            self.receive(
                EntryKind::Put,
                (first..first + shared_keys).chain(own..own + own_keys).chain([last]),
            );
        }
    }

    pub(super) fn job(&self) -> Option<Box<dyn Job>> {
        (Arc::clone(&self.tree) as Arc<dyn Tree>).next_job()
    }

    pub(super) fn version(&self) -> Arc<Version> {
        self.tree.version.load_full()
    }

    pub(super) fn due(&self) -> Option<Plan> {
        Slm::choose_due(&self.tree, &self.version(), Intent::Ask).unwrap()
    }

    pub(super) fn places(&self) -> &Places {
        &self.tree.own.places
    }
}

/// Asserts that a plan has inputs from a key on alone.
fn assert_from(plan: Option<Plan>, first: u64) {
    let plan = plan.expect("a plan for what is free");
    assert!(plan.inputs.len() > 1);
    assert!(plan.inputs.iter().all(|table| table.first_key() >= &key_of(first)[..]));
}

/// A window of 64 tables was cut before those were left out that are not free. While a job worked among many tables of
/// which little is live, or where there was damage, nothing was merged elsewhere.
#[test]
fn tables_that_are_not_free_keep_no_others_from_being_merged() {
    let mut bed = Bed::new();
    bed.receive_range(WINDOW + 10, 0, 1, 10);
    bed.receive_range(6, 10_000, 10, 5);
    let _among_the_first = bed.job().expect("a merge of the first ones");
    assert_from(bed.due(), 10_000);
    let full = Slm::choose_full(&bed.tree, &bed.version().root, false, Intent::Ask);
    assert_from(full.unwrap(), 10_000);
}

/// The oldest 64 scattered tables were looked at. If they were not free, no other scattered table was merged.
#[test]
fn scattered_tables_that_are_not_free_keep_no_others_from_being_merged() {
    let mut bed = Bed::new();
    for first in [0, 10_000] {
        (0..WINDOW + 10).for_each(|nth| {
            bed.receive(EntryKind::Put, [first + nth, first + 500 + nth]);
        });
        let ids: Vec<FileId> = bed.version().tables().map(|table| table.id()).collect();
        bed.tree.own.scattered.note(0, &ids);
    }
    let _among_the_first = bed.job().expect("a merge of the first ones");
    assert_from(bed.due(), 10_000);
}

/// Dead tables stayed beside 64 tables of which nearly nothing was live: no more were looked at.
#[test]
fn dead_tables_are_dropped_beside_many_that_are_nearly_dead() {
    let mut bed = Bed::new();
    bed.receive_range(WINDOW + 1, 0, 1, 200);
    (0..2).for_each(|_| drop(bed.receive(EntryKind::Put, [20_000])));
    assert_eq!(bed.tree.droppable().len(), 1);
    let before = bed.version().root.tables.len();
    bed.tree.drop_dead().unwrap();
    assert_eq!(bed.version().root.tables.len(), before - 1);
}

/// Of many dead tables, 64 were dropped at the end of a compaction. After `compact`, the others were left.
#[test]
fn dead_tables_are_dropped_until_none_is_left() {
    let mut bed = Bed::new();
    (0..3 * WINDOW).for_each(|_| drop(bed.receive(EntryKind::Put, [1])));
    let tree: Arc<dyn Tree> = Arc::<SlmTree>::clone(&bed.tree);
    tree.compact(b"", None, &|| Ok(())).unwrap();
    assert_eq!(bed.version().root.tables.len(), 1);
}

/// Full tables of tombstones alone were merged without end: what came out was as many and as large.
#[test]
fn full_tables_of_tombstones_are_not_merged_again_and_again() {
    let mut bed = Bed::new();
    // So little of it is dead that it is not merged itself.
    bed.receive(EntryKind::Put, 0..20_000);
    for nth in 0..10 {
        bed.receive(EntryKind::Delete, (0..140).map(|at| at * 30 + nth));
    }
    let version = bed.version();
    let is_full =
        |table: &Arc<Table>| table.properties().entry_bytes() >= version.parameters.table_bytes;
    assert!(version.tables().all(is_full));
    for _ in 0..20 {
        if let Some(mut job) = bed.job() {
            while job.step().unwrap() == Step::Again {}
        }
    }
    assert!(bed.job().is_none(), "{} tables", bed.version().root.tables.len());
}

/// Small tables of tombstones were merged once there were eight of them. If none lay among the others, one was merged alone, and
/// stayed as it was: again and again, and nothing else was merged.
#[test]
fn tables_of_tombstones_that_lie_beside_one_another_are_merged_with_their_neighbours() {
    let mut bed = Bed::new();
    bed.receive(EntryKind::Put, 0..20_000);
    for nth in 0..11 {
        bed.receive(EntryKind::Delete, nth * 1000..nth * 1000 + 5);
    }
    for _ in 0..20 {
        if let Some(mut job) = bed.job() {
            while job.step().unwrap() == Step::Again {}
        }
    }
    assert!(bed.job().is_none(), "{} tables", bed.version().root.tables.len());
    // One of eight, and three more.
    assert_eq!(bed.version().root.tables.len(), 5);
    let deletes: u64 = bed.version().tables().map(|table| table.properties().deletes).sum();
    assert_eq!(deletes, 55);
}

/// A job had replaced a table by its output between a look at the version and one at the list of tables that may hide
/// something dead: neither was in both, and a tombstone over what they had was dropped.
#[test]
fn a_tombstone_over_the_output_of_another_job_is_not_dropped() {
    let mut bed = Bed::new();
    let input = bed.receive(EntryKind::Put, 0..10);
    bed.receive(EntryKind::Delete, [5]);
    let (tree, places) = (&bed.tree, bed.places());
    assert!(tree.droppable().is_empty());
    // The output of a job that began before the tombstone came: it has the key.
    let output = table_of(&tree.context.files, EntryKind::Put, 1, 0..10);
    let (number, number_of_input) =
        (places.number(&output).unwrap(), places.number(&input).unwrap());
    let before = bed.version();
    thread::scope(|scope| {
        // Whoever asks for dead tables waits for this lock, with a version and without a list.
        let mut registry = places.registry.write();
        let references = Arc::strong_count(&before);
        let asking = scope.spawn(|| tree.droppable());
        for _ in 0..10_000 {
            if Arc::strong_count(&before) > references {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let replace = |root: &mut Arc<Level>, _rules: &Rules| {
            let (table, index) = (Arc::clone(&output), places.file_id());
            remove(root, &[(number_of_input, Arc::clone(&input))], index);
            add(root, LevelTable { table, settled: Seqno(1), number }, index);
            Ok(true)
        };
        tree.change(NewFiles::Some, replace, Seqno(0), NewTables::None).unwrap();
        registry.numbers.remove(&input.id());
        registry.tables.remove(&number_of_input);
        places.ranks.lock().remove(number_of_input);
        drop(registry);
        assert!(asking.join().unwrap().is_empty());
    });
}

/// After a crash, memtables that had not been in the index were counted twice. They looked half dead, and were merged.
#[test]
fn a_memtable_that_is_put_into_the_index_after_a_crash_is_wholly_live() {
    let mut bed = Bed::new();
    let table = bed.receive(EntryKind::Put, 0..100);
    let region = HeapRegion::reserve(1 << 20, Path::new("index")).unwrap();
    let index = LocationIndex::create(Arc::new(region), 0).unwrap();
    let places = Places::new(index, None, true);
    let found = FoundIndex { live: BTreeMap::new(), settled: Seqno(0) };
    places.resume(&bed.version().root, &found, Seqno(5)).unwrap();
    assert_eq!((places.state().pending.len(), places.live_of_named(&table)), (1, None));
    while places.receive_some(30, &|| vec![Seqno::MAX]).unwrap() != Received::All {}
    assert_eq!((places.state().pending.len(), places.live_of_named(&table)), (0, Some((100, 100))));
    // Otherwise a full check would have nothing to compare before the next memtable.
    assert_eq!(places.state().settled, Seqno(5));
}

/// What was deleted while a compaction made its output, after it had been read, did not count as dead in the output. Nobody
/// merged that: a full store of large values kept 53 MB for 7 MB.
#[test]
fn keys_that_go_while_an_output_is_made_count_as_dead_in_it() {
    let mut bed = Bed::new();
    bed.receive(EntryKind::Put, 0..20_000);
    bed.receive(EntryKind::Put, 0..14_000);
    let mut job = bed.job().expect("a merge of the first table");
    // 18,095 has been read; of the last few keys up to it the index does not know yet.
    assert_eq!(job.step().unwrap(), Step::Again);
    bed.receive(EntryKind::Delete, (17_950..18_096).step_by(3));
    while job.step().unwrap() == Step::Again {}
    let (mut live, mut named) = (0, 0);
    let version = bed.version();
    let is_output = |table: &&Arc<Table>| {
        table.properties().deletes == 0 && table.first_key() >= &key_of(14_000)[..]
    };
    for table in version.tables().filter(is_output) {
        let counts = bed.places().live_of_named(table).unwrap();
        (live, named) = (live + counts.0, named + counts.1);
    }
    assert_eq!((live, named), (5951, 6000));
}

/// Holds snapshots that may go.
pub(super) struct Changing(pub(super) Mutex<Vec<Seqno>>);

impl TreeObserver for Changing {
    fn installed(&self, _version: Arc<dyn crate::tree::TreeVersion>) {}
    fn compacted(&self, _read_bytes: u64, _written_bytes: u64, _nanos: u64) {}
    fn snapshots(&self) -> Vec<Seqno> {
        self.0.lock().clone()
    }
    fn is_dropped(&self) -> bool {
        false
    }
}

/// While the journal was replayed, everything that a memtable superseded was kept for snapshots that there were not, until
/// the next one went.
#[test]
fn without_a_list_of_snapshots_nothing_superseded_is_kept() {
    let mut bed = Bed::with(Arc::new(Reader(Vec::new())));
    let first = bed.receive(EntryKind::Put, 0..100);
    bed.receive(EntryKind::Put, 0..100);
    assert_eq!((bed.places().superseded(), bed.places().live(&first)), (0, Some(0)));
}

/// A search for what only a snapshot needed that had gone, and which ended in the middle, was not repeated.
#[test]
fn a_search_for_what_a_snapshot_needed_is_repeated_until_it_has_ended() {
    let newest = Seqno(u64::MAX >> 8);
    let observer = Arc::new(Changing(Mutex::new(vec![Seqno(1), newest])));
    let mut bed = Bed::with(observer.clone());
    // More leaves of the index than one step looks at.
    bed.receive(EntryKind::Put, 0..12_000);
    bed.receive(EntryKind::Put, 0..12_000);
    assert_eq!(bed.places().superseded(), 12_000);
    *observer.0.lock() = vec![newest];
    let mut ended = bed.job().expect("a search");
    assert_eq!(ended.step().unwrap(), Step::Again);
    drop(ended);
    assert!((1..12_000).contains(&bed.places().superseded()));
    while bed.due().is_some() {
        let mut job = bed.job().expect("what is due");
        while job.step().unwrap() == Step::Again {}
    }
    assert_eq!(bed.places().superseded(), 0);
}

/// Two threads compacted two parts of a range. In the one, a table was alone and wholly live, so it stayed. The other merged
/// what it had there, so the table stayed with what was left of it, and everything else that it had: in 11 of 150 stores
/// of 20,000 pairs, a compaction left a tenth of them twice.
#[test]
fn a_table_in_two_parts_of_a_compaction_stays_in_both_or_in_none() {
    let mut bed = Bed::new();
    let first = bed.receive(EntryKind::Put, 0..100);
    bed.receive(EntryKind::Put, 200..300);
    let (middle, end) = (key_of(50), key_of(150));
    let next = |part, whole| Slm::next_uncompacted(&bed.tree, 0, part, whole).unwrap();
    // As far as anybody compacts, all is as it should be.
    assert!(next((b"", None), (b"", None)).is_none());
    assert!(next((b"", Some(&middle)), (b"", Some(&middle))).is_none());
    assert!(next((&middle, None), (&middle, None)).is_none());
    // A part of one table, but not of the other.
    for (lower, upper) in [(&b""[..], Some(&middle)), (&middle, None)] {
        let part = (lower, upper.map(|upper| &**upper));
        let plan = next(part, (b"", None)).unwrap();
        let inputs: Vec<FileId> = plan.inputs.iter().map(|table| table.id()).collect();
        assert_eq!(inputs, [first.id()]);
        assert_eq!(&*plan.place.lower, lower);
        let behind = Key::from([first.last_key(), &[0][..]].concat());
        assert_eq!(plan.place.upper.as_deref(), Some(upper.map_or(&*behind, |upper| &**upper)));
    }
    for part in [(&b""[..], Some(&*end)), (&*end, None)] {
        assert!(next(part, (b"", None)).is_none());
    }
}

/// After a merge had met one damaged page, the range of all its inputs was quarantined for a minute: with random keys, nearly
/// all keys. Nothing else was merged, and after that minute the same tables were chosen. The store grew without bound.
#[test]
fn a_damaged_table_keeps_no_others_from_being_merged() {
    let mut bed = Bed::new();
    let mut random = SplitMix::new(1);
    let mut keys = || {
        let keys: BTreeSet<u64> = (0..300).map(|_| random.next() % 2000).collect();
        keys.into_iter()
    };
    // Some of its keys stay.
    let table = bed.receive(EntryKind::Put, keys().chain(2000..2010));
    (0..11).for_each(|_| drop(bed.receive(EntryKind::Put, keys())));
    let damaged = table.pages();
    let file = bed.tree.context.files.vfs.open(&damaged.path(), Access::Buffered, true).unwrap();
    file.write_at(3 * 4096 + 77, &[0x5a; 8]).unwrap();
    damaged.forget_pages();
    let mut failures = 0;
    for round in 0..100 {
        bed.receive(EntryKind::Put, keys());
        while let Some(mut job) = bed.job() {
            let ended = loop {
                match job.step() {
                    Ok(Step::Again) => {}
                    ended => break ended,
                }
            };
            if let Err(error) = ended {
                assert!(error.is_corruption() && bed.tree.tell_damage(&error), "{error}");
                failures += 1;
            }
        }
        let taken: u64 = bed.version().tables().map(|it| it.properties().entry_bytes()).sum();
        assert!(taken < 3 * 2000 * 108, "{taken} bytes in round {round}");
    }
    assert_eq!(failures, 1, "the clock has not moved");
    assert!(bed.version().tables().any(|it| Arc::ptr_eq(it, &table)));
}

/// Behind each table that was as it should be, all tables were looked at again, with a lock on what other compactions ask as
/// well.
#[test]
fn a_compaction_of_a_compacted_tree_looks_at_each_table_a_few_times() {
    let mut bed = Bed::new();
    (0..300).for_each(|key| drop(bed.receive(EntryKind::Put, [key])));
    let whole = (&b""[..], None);
    let (visits, next) = visits::of(|| Slm::next_uncompacted(&bed.tree, 0, whole, whole).unwrap());
    assert!(next.is_none());
    assert!(visits < 300 * 10, "{visits} visits");
}

/// What is live was gathered from the tables in the order of their numbers. A compaction's output, made while memtables
/// came, brought to life what these had deleted: of a store with 6,038 pairs, 7,240 were said to be live.
#[test]
fn what_is_live_is_gathered_from_the_oldest_entries_on() {
    let bed = Bed::new();
    let files = &bed.tree.context.files;
    let mut level = Arc::clone(&bed.version().root);
    let mut put = |kind, seqno, settled, number| {
        let table = table_of(files, kind, seqno, 0..100);
        add(&mut level, LevelTable { table, settled: Seqno(settled), number }, FileId(0));
    };
    put(EntryKind::Delete, 10, 10, 1);
    put(EntryKind::Put, 1, 5, 2);
    assert_eq!(bed.tree.version_of(level, Seqno(10)).space().live_keys, 0);
}
