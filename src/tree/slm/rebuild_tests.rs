//! An index that lacks keys, and has others that it should not have, is built anew while memtables come.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use super::*;
use crate::base::random::SplitMix;
use crate::cache::ReadContext;
use crate::jobs::{Job, Step};
use crate::location_index::{IndexVersion, LeafPlace, Location, LocationIndex};
use crate::pmem::HeapRegion;
use crate::tree::CheckScope;
use crate::tree::slm::change::Rules;
use crate::tree::slm::{PackedTable, Slm, SlmTree};
use crate::tree::test_support::{Puts, Reader, context, key_of};
use crate::tree::versioned::{Change, NewFiles, NewTables, VersionedKind};
use crate::tree::{Tree, TreeObserver};

/// The words of a block of the index.
const BLOCK_WORDS: usize = 512;

/// A snapshot that is held all the time.
const HELD: Seqno = Seqno(7);

/// A tree, and the numbers at which each key was written.
struct Bed {
    tree: Arc<SlmTree>,
    _observer: Arc<dyn TreeObserver>,
    written: BTreeMap<Vec<u8>, Vec<u64>>,
    random: SplitMix,
    seqno: u64,
}

impl Bed {
    fn new(seed: u64) -> Bed {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![HELD, Seqno(u64::MAX >> 8)]));
        let tree = SlmTree::open(context("slm", &observer), &[], Seqno(0)).unwrap();
        let (written, random) = (BTreeMap::new(), SplitMix::new(seed));
        Bed { tree, _observer: observer, written, random, seqno: 0 }
    }

    /// A packed memtable that is about to become part of the tree.
    fn begin(&mut self) -> PackedTable {
        let mut keys: Vec<Vec<u8>> = (0..40).map(|_| key_of(self.random.next() % 300)).collect();
        keys.sort();
        keys.dedup();
        self.begin_with(keys)
    }

    /// The same with these keys, which are in order.
    fn begin_with(&mut self, keys: Vec<Vec<u8>>) -> PackedTable {
        self.seqno += 1;
        let mut puts = Puts { seqno: self.seqno, keys, at: 0 };
        let (packed, _) = Slm::pack(&self.tree, &mut puts).unwrap();
        Slm::incorporating(&self.tree, &packed, Seqno(self.seqno)).unwrap();
        for key in puts.keys {
            self.written.entry(key).or_default().push(self.seqno);
        }
        packed
    }

    /// It becomes part of the tree.
    fn show(&self, packed: &PackedTable) {
        let receive = |root: &mut Arc<Level>, rules: &Rules| {
            Slm::receive(root, packed, rules)?;
            Ok(true)
        };
        let tables = NewTables::Younger(Slm::packed_tables(packed));
        self.tree.change(NewFiles::Some, receive, Seqno(self.seqno), tables).unwrap();
    }

    fn incorporate(&mut self) {
        let packed = self.begin();
        self.end(packed);
    }

    fn end(&self, packed: PackedTable) {
        self.show(&packed);
        Slm::incorporated(&self.tree, &packed, true);
    }

    fn begin_rebuild(&self) -> Rebuild {
        let version = self.tree.version.load_full();
        let snapshots = self.tree.context.snapshots();
        Rebuild::begin(self.places(), &version.root, version.flushed, snapshots).unwrap()
    }

    /// Goes on with the second half of a rebuild. Returns false at its end.
    fn receive_newer(&self) -> bool {
        self.tree.receive_newer(64).unwrap()
    }

    fn job(&self) -> Option<Box<dyn Job>> {
        (Arc::clone(&self.tree) as Arc<dyn Tree>).next_job()
    }

    fn finish(&self) {
        while let Some(mut job) = self.job() {
            while job.step().unwrap() == Step::Again {}
        }
    }

    fn places(&self) -> &Places {
        &self.tree.own.places
    }

    /// What is read at a number is what was written last up to there.
    fn check_reads(&self) {
        let version = (Arc::clone(&self.tree) as Arc<dyn Tree>).version();
        for number in 0..300 {
            let key = key_of(number);
            let written = self.written.get(&key).map_or(&[][..], Vec::as_slice);
            for snapshot in [HELD.0, self.seqno] {
                let mut found = None;
                let mut take = |entry: crate::base::entry::EntryRef<'_>| {
                    found = Some(entry.seqno.0);
                    ControlFlow::Break(())
                };
                let context = ReadContext::blocking();
                version.get(&key, 0, Seqno(snapshot), &context, &mut take).unwrap();
                let expected = written.iter().rev().find(|seqno| **seqno <= snapshot).copied();
                assert_eq!(found, expected, "key {number} at {snapshot}");
            }
        }
    }

    /// The index has what the tables have, and the counts are right.
    fn check_index(&self) {
        let version = (Arc::clone(&self.tree) as Arc<dyn Tree>).version();
        version.check(CheckScope::full(Path::new("manifest")), &mut |problem| panic!("{problem}"));
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let mut rest = Some(Vec::new());
        while let Some(from) = rest {
            let (entries, next) = self.places().entries_from(&from).unwrap();
            for version in entries.iter().flat_map(|(_, versions)| versions) {
                *live.entry(version.location.table).or_default() += 1;
            }
            rest = next;
        }
        let level = Arc::clone(&self.tree.version.load().root);
        for it in level.tables.iter() {
            let counted = live.remove(&it.number).unwrap_or_default();
            assert_eq!(self.places().live(&it.table), Some(counted));
        }
        assert!(live.is_empty(), "{live:?}");
    }
}

/// After one moment without room, the tables were asked, and nothing was compacted, until the store was opened again.
#[test]
fn an_index_that_lacks_keys_is_built_anew_beside_memtables() {
    for seed in 0..12 {
        let mut bed = Bed::new(seed);
        for _ in 0..20 + seed {
            bed.incorporate();
        }
        // In some runs, memtables are pending.
        if seed % 3 > 0 {
            bed.finish();
        }
        let places = bed.places();
        places.distrust();
        let location = Location::new(1, LeafPlace { unit: 0, units: 1, is_split: false }, false);
        let wrong = [IndexVersion { location, superseded: None }];
        for number in [0, 7, 100, 299, 1000] {
            let mut writing = places.write().unwrap();
            if seed % 2 == 0 {
                writing.set(&key_of(number), &wrong).unwrap();
            } else {
                writing.set(&key_of(number), &[]).unwrap();
            }
        }
        bed.check_reads();
        let mut rebuild = bed.begin_rebuild();
        let mut steps = 0;
        while rebuild.compare_some(bed.places(), 64).unwrap() {
            steps += 1;
            bed.check_reads();
            bed.incorporate();
        }
        assert!(steps > 2, "{steps} steps");
        // One is on its way, one is shown and has not been told of, or none.
        let packed = (seed % 4 < 2).then(|| bed.begin());
        let shown = packed.as_ref().filter(|_| seed % 4 == 1);
        shown.iter().for_each(|packed| bed.show(packed));
        let mut rounds = 0;
        while bed.receive_newer() {
            rounds += 1;
            assert!(bed.places().is_partial());
        }
        assert!(rounds > 0, "nothing has come meanwhile");
        if let Some(packed) = packed {
            if seed % 4 == 0 {
                bed.show(&packed);
            }
            bed.check_reads();
            Slm::incorporated(&bed.tree, &packed, true);
        }
        assert!(!bed.places().is_partial());
        bed.check_reads();
        bed.finish();
        bed.check_reads();
        bed.check_index();
        for _ in 0..10 {
            bed.incorporate();
        }
        bed.finish();
        bed.check_reads();
        bed.check_index();
    }
}

/// A memtable was pending when the index became partial, and became part of the tree once that had been built anew: it was
/// known to nobody then. Its keys were not found, and the index was trusted without them when the store was opened again.
#[test]
fn a_memtable_on_its_way_when_the_index_becomes_partial_is_not_lost() {
    for is_refused in [false, true] {
        let mut bed = Bed::new(1);
        (0..10).for_each(|_| bed.incorporate());
        let packed = bed.begin();
        bed.places().distrust();
        let mut rebuild = bed.begin_rebuild();
        while rebuild.compare_some(bed.places(), 64).unwrap() {}
        while bed.receive_newer() {}
        assert!(!bed.places().is_partial());
        if is_refused {
            Slm::incorporated(&bed.tree, &packed, false);
            let seqno = bed.seqno;
            bed.written.values_mut().for_each(|seqnos| seqnos.retain(|it| *it != seqno));
            bed.seqno -= 1;
        } else {
            bed.show(&packed);
            bed.check_reads();
            Slm::incorporated(&bed.tree, &packed, true);
        }
        bed.check_reads();
        bed.finish();
        bed.check_reads();
        bed.check_index();
    }
}

/// A reader had read a partial index, and took what it had read for the truth once that was whole.
#[test]
fn what_a_partial_index_has_said_is_not_believed_once_it_is_whole() {
    let mut bed = Bed::new(2);
    (0..10).for_each(|_| bed.incorporate());
    bed.finish();
    bed.places().distrust();
    let before = bed.places().state();
    bed.finish();
    assert!(!bed.places().is_partial());
    assert!(!bed.places().covers(&before, Seqno(bed.seqno)));
    assert!(bed.places().covers(&bed.places().state(), Seqno(bed.seqno)));
}

/// After a rebuild, as many keys of a table were known as were live: nothing was dead, and no space came back.
#[test]
fn what_is_dead_is_known_after_a_rebuild() {
    let mut bed = Bed::new(3);
    (0..3).for_each(|_| bed.incorporate());
    while bed.tree.receive_some(usize::MAX) {}
    bed.places().distrust();
    bed.finish();
    let level = Arc::clone(&bed.tree.version.load().root);
    let oldest = level.tables().min_by_key(|table| table.properties().seqno_max).unwrap();
    let (live, named) = bed.places().live_of_named(oldest).unwrap();
    assert!(live < named, "{live} of {named}");
    assert_eq!(named, oldest.properties().entries());
}

/// The places of a tree, in an index of so many blocks that has no room left: it has keys that are in no table, behind
/// all others.
fn full_places(level: &Level, blocks: usize) -> Places {
    let region = HeapRegion::reserve(blocks * BLOCK_WORDS, Path::new("heap")).unwrap();
    let index = LocationIndex::create(Arc::new(region), 0).unwrap();
    let places = Places::new(index, None, false);
    places.register_all(level);
    let location = Location::new(1, LeafPlace { unit: 0, units: 1, is_split: false }, false);
    let version = [IndexVersion { location, superseded: None }];
    let mut number = 0;
    while places.write().unwrap().set(format!("z{number:06}").as_bytes(), &version).is_ok() {
        number += 1;
    }
    places.distrust();
    places
}

/// Carries out the first half of a rebuild.
fn compare_all(rebuild: &mut Rebuild, places: &Places) -> Result<()> {
    while rebuild.compare_some(places, 64)? {}
    Ok(())
}

/// A rebuild ended at the first key that there was no room for. What it would have removed behind that key stayed, so the
/// next one had no room either: the index of a disk that was full for a moment was partial until the store was opened again.
#[test]
fn a_rebuild_that_has_no_room_makes_some_for_the_next() {
    let mut bed = Bed::new(4);
    (0..10).for_each(|_| bed.incorporate());
    let version = bed.tree.version.load_full();
    let newest = || (Arc::clone(&version.root), version.flushed);
    let snapshots = || vec![Seqno::MAX];
    let places = full_places(&version.root, 64);
    let begin = || Rebuild::begin(&places, &version.root, version.flushed, snapshots()).unwrap();
    let failed = compare_all(&mut begin(), &places);
    assert!(matches!(failed, Err(Error::Full { .. })), "{failed:?}");
    let mut again = begin();
    compare_all(&mut again, &places).unwrap();
    while places.receive_newer(usize::MAX, &newest, &snapshots).unwrap() {}
    assert!(!places.is_partial());
    let (mut keys, mut rest) = (Vec::new(), Some(Vec::new()));
    while let Some(from) = rest {
        let (entries, next) = places.entries_from(&from).unwrap();
        keys.extend(entries.into_iter().map(|(key, _)| key));
        rest = next;
    }
    assert!(keys.iter().eq(bed.written.keys()));
}

/// On a full disk, all tables were read again each second, whether or not anything had changed. After the first repair they
/// still were if keys were long: there was room for a short one.
#[test]
fn a_rebuild_that_has_no_room_is_not_tried_again_for_the_same_tables() {
    [0, 300, 5000].into_iter().for_each(try_without_room);
}

/// Keys have so many bytes more than usual.
fn try_without_room(more_bytes: usize) {
    let mut bed = Bed::new(5);
    let key = |number| [key_of(number), vec![7; more_bytes]].concat();
    let packed = bed.begin_with((0..3000).map(key).collect());
    bed.end(packed);
    let places = full_places(&bed.tree.version.load().root, 16);
    let begin = |bed: &Bed| {
        let version = bed.tree.version.load_full();
        Rebuild::begin(&places, &version.root, version.flushed, vec![Seqno::MAX])
    };
    let mut tries = 0;
    while let Ok(mut rebuild) = begin(&bed) {
        let failed = compare_all(&mut rebuild, &places);
        assert!(matches!(failed, Err(Error::Full { .. })), "{failed:?}");
        tries += 1;
        assert!(tries < 10, "tried without end");
    }
    assert!(tries > 0);
    bed.incorporate();
    begin(&bed).unwrap();
}

/// All tables that had come during the first half of a rebuild were received in one step, which a store that was closed
/// waited for.
#[test]
fn a_step_of_a_rebuild_receives_a_part_of_a_table() {
    let mut bed = Bed::new(6);
    (0..10).for_each(|_| bed.incorporate());
    bed.places().distrust();
    let mut rebuild = bed.begin_rebuild();
    compare_all(&mut rebuild, bed.places()).unwrap();
    for _ in 0..10 {
        let packed = bed.begin_with((0..200).map(key_of).collect());
        bed.end(packed);
    }
    let mut steps = 0;
    while bed.receive_newer() {
        steps += 1;
        bed.check_reads();
    }
    assert!(steps >= 10 * 200 / 64, "{steps} steps");
    bed.check_reads();
    bed.finish();
    bed.check_index();
}

/// While memtables came faster than one thread received them, an index that was built anew stayed partial, and nothing was
/// compacted.
#[test]
fn a_rebuild_ends_although_memtables_come_faster_than_it_receives_them() {
    let mut bed = Bed::new(7);
    (0..10).for_each(|_| bed.incorporate());
    bed.places().distrust();
    let mut rebuild = bed.begin_rebuild();
    compare_all(&mut rebuild, bed.places()).unwrap();
    (0..20).for_each(|_| bed.incorporate());
    let mut rounds = 0;
    while bed.receive_newer() {
        bed.check_reads();
        (0..2).for_each(|_| bed.incorporate());
        rounds += 1;
        assert!(rounds < 100, "it does not end");
    }
    assert!(!bed.places().is_partial());
    bed.check_reads();
    bed.finish();
    bed.check_reads();
    bed.check_index();
}

/// Writers filled memtables faster than the index received them, and then waited for seconds without having been slowed
/// before.
#[test]
fn writers_are_slowed_while_the_index_falls_behind() {
    let mut bed = Bed::new(8);
    let mut lags = vec![Slm::lag(&bed.tree.version.load())];
    for _ in 0..3 {
        bed.incorporate();
        lags.push(Slm::lag(&bed.tree.version.load()));
    }
    assert_eq!(lags[0], 0.0);
    assert!(lags.is_sorted() && lags[2] > 0.5 && lags[3] < 1.0, "{lags:?}");
    // Nobody is at it: slower writers would not help much.
    assert_eq!(lags[3], 0.7);
    let snapshots = || vec![Seqno::MAX];
    bed.places().receive_some(1, &snapshots).unwrap();
    let begun = Slm::lag(&bed.tree.version.load());
    assert!(begun > 0.85 && begun < 1.0, "{begun}");
    bed.places().receive_some(20, &snapshots).unwrap();
    assert!(Slm::lag(&bed.tree.version.load()) < begun);
    bed.finish();
    assert_eq!(Slm::lag(&bed.tree.version.load()), 0.0);
}
