//! Tests of the merges that bring neighbours in order together.

use std::sync::Arc;

use super::plan::overlap_permille;
use super::reclaim_tests::Bed;
use crate::base::entry::EntryKind;
use crate::base::ids::{FileId, Seqno};
use crate::jobs::Step;
use crate::table::Table;
use crate::tree::options::KeyspaceOptions;
use crate::tree::placed::RangeReads;
use crate::tree::test_support::Reader;

/// Keys of a memtable.
const KEYS: u64 = 256;

impl Bed {
    /// A memtable of keys in random order among all.
    fn receive_scattered(&mut self, random: &mut u64) {
        let keys = (0..KEYS).map(|_| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *random >> 20
        });
        let mut keys: Vec<u64> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        self.receive(EntryKind::Put, keys);
    }

    fn work(&self, mut each: impl FnMut(&[Arc<Table>])) {
        while let Some(plan) = self.due() {
            each(&plan.inputs);
            let mut job = self.job().expect("what is due is done");
            while job.step().unwrap() == Step::Again {}
        }
    }

    /// How many tables lie over a key, on average and at most.
    fn depth(&self) -> (f64, usize) {
        let version = self.version();
        let mut keys: Vec<Vec<u8>> = version
            .tables()
            .flat_map(|it| [it.first_key().to_vec(), it.last_key().to_vec()])
            .collect();
        keys.sort();
        let over = |key: &[u8]| {
            version.tables().filter(|it| it.first_key() <= key && key <= it.last_key()).count()
        };
        let depths: Vec<usize> = keys.iter().map(|key| over(key)).collect();
        let sum: usize = depths.iter().sum();
        (sum as f64 / depths.len().max(1) as f64, depths.into_iter().max().unwrap_or(0))
    }
}

fn bed() -> Bed {
    let reader = Arc::new(Reader(vec![Seqno(u64::MAX >> 8)]));
    Bed::of(reader, KeyspaceOptions::slm().own, Some(KEYS * 108))
}

/// A table of a memtable was merged with one that had an eighth of all keys already, and what had been in order was written
/// again: 1.8 times what 64 memtables had, 2.6 times with 128, and eleven tables lay over one another after that.
#[test]
fn what_is_written_in_random_order_is_merged_once_for_each_factor_of_eight() {
    for (memtables, rewritten_max) in [(64, 1.1), (128, 1.7), (256, 2.1)] {
        let mut bed = bed();
        let (mut random, mut rewritten) = (1, 0);
        for _ in 0..memtables {
            bed.receive_scattered(&mut random);
            bed.work(|inputs| {
                assert_eq!(inputs.len(), 8);
                let ratio = |table| overlap_permille(&inputs[0], table);
                assert!(inputs.iter().all(|table| ratio(table) > 300));
                rewritten += inputs.iter().map(|table| table.properties().entries()).sum::<u64>();
            });
        }
        let (mean, most) = bed.depth();
        let rewritten = rewritten as f64 / (memtables * KEYS) as f64;
        println!(
            "{memtables} memtables: {rewritten:.2} times, {mean:.1} and {most} tables over a key"
        );
        assert!(rewritten <= rewritten_max, "{memtables}: {rewritten}");
        assert!(mean < 20.0 && most <= 30, "{memtables}: {mean}, {most}");
    }
}

/// The first range queries after a load began merges of everything, beside which they had a tenth of their rate.
#[test]
fn tables_are_merged_for_range_queries_once_these_have_read_as_much_as_the_merge_would() {
    let mut bed = bed();
    let mut random = 1;
    (0..9).for_each(|_| bed.receive_scattered(&mut random));
    let ids: Vec<FileId> = bed.version().tables().map(|table| table.id()).collect();
    assert!(bed.due().is_none());
    let scattered = Arc::clone(&bed.tree.own.scattered);
    // 28 KB of a table are as much as two reads.
    scattered.note(30, &ids);
    assert!(bed.due().is_none());
    scattered.note(30, &ids[..8]);
    assert!(bed.due().is_none(), "no more than there may be");
    scattered.note(30, &ids);
    assert_eq!(bed.due().expect("a merge").inputs.len(), 8);
    bed.work(|_| {});
    assert_eq!(bed.depth().1, 2);
    // What has been read of tables that are gone is forgotten, and nothing is merged again and again.
    (0..10).for_each(|_| scattered.note(30, &ids));
    assert!(bed.due().is_none());
}
