//! An index that lacks keys, and has others that it should not have, is built anew while memtables come.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use super::*;
use crate::base::random::SplitMix;
use crate::cache::ReadContext;
use crate::jobs::{Job, Step};
use crate::location_index::{IndexVersion, LeafPlace, Location};
use crate::tree::slm::SlmTree;
use crate::tree::test_support::{Puts, Reader, context, key_of};
use crate::tree::{Tree, TreeObserver};

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

    fn incorporate(&mut self) {
        self.seqno += 1;
        let mut keys: Vec<Vec<u8>> = (0..40).map(|_| key_of(self.random.next() % 300)).collect();
        keys.sort();
        keys.dedup();
        for key in &keys {
            self.written.entry(key.clone()).or_default().push(self.seqno);
        }
        let mut puts = Puts { seqno: self.seqno, keys, at: 0 };
        let packed = (Arc::clone(&self.tree) as Arc<dyn Tree>).pack(&mut puts).unwrap();
        packed.incorporate(Seqno(self.seqno)).unwrap();
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
        version.check(Path::new("manifest"), true, &mut |problem| panic!("{problem}"));
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
        for (table, placed) in level.tables.iter().zip(&level.placed) {
            let counted = live.remove(&placed.number).unwrap_or_default();
            assert_eq!(self.places().live(table), Some(counted));
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
        let mut job = bed.job().expect("a rebuild");
        bed.incorporate();
        while job.step().unwrap() == Step::Again {
            assert!(bed.places().is_partial());
            bed.check_reads();
            if bed.random.next().is_multiple_of(2) {
                bed.incorporate();
            }
        }
        drop(job);
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
