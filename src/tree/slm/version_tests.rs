//! What ranges read of a version while the index changes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::reclaim_tests::Bed;
use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::tree::run::Run;
use crate::tree::test_support::Reader;
use crate::tree::{RangeAt, TreeVersion};

/// A scan that overlapped the end of a receive read all tables, and a long one did so until its end: about one scan after
/// each flush. It asks the index again instead, as point reads do.
#[test]
fn a_scan_beside_the_end_of_a_receive_asks_the_index_again() {
    let newest = Seqno(u64::MAX >> 8);
    // Each snapshot needs a place of the first key: more than a leaf holds, so that the scan waits for the list in memory.
    let held = (1..=40).map(Seqno).chain([newest]);
    let mut bed = Bed::with(Arc::new(Reader(held.collect())));
    (0..40).for_each(|_| drop(bed.receive(EntryKind::Put, [1])));
    bed.incorporate(EntryKind::Put, [2]);
    let (places, version) = (bed.places(), bed.version());
    assert_eq!(places.many.lock().len(), 1);
    let runs = thread::scope(|scope| {
        let many = places.many.lock();
        let before = places.state();
        let references = Arc::strong_count(&before);
        let scan = scope.spawn(|| version.runs_at(RangeAt::Key(b""), newest).runs);
        for _ in 0..10_000 {
            if Arc::strong_count(&before) > references {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        while bed.tree.receive_some(usize::MAX) {}
        drop(many);
        scan.join().unwrap()
    });
    assert!(matches!(&runs[..], [Run::Placed(_)]), "{} runs", runs.len());
}
