//! The same seed does the same I/O, whatever else the process does.

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Trace, WatchedVfs};
use spinney::vfs::MemoryVfs;
use spinney_sim::compare;
use spinney_sim::generate::{Generator, Purpose};
use spinney_sim::kinds::Kinds;
use spinney_sim::session::Session;
use spinney_sim::sizes::Sizes;

/// What a list of actions does to the files.
fn trace(sizes: Sizes, list: u64) -> Trace {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    vfs.trace();
    let actions = Generator::new(Purpose::Compare, list, 0).list(700);
    let world = compare::world(Arc::new(vfs.clone()));
    let mut session = Session::open(sizes, world, None, Vec::new()).unwrap();
    session.run(&actions).unwrap();
    session.close().unwrap();
    vfs.traced()
}

#[track_caller]
fn same(what: &str, first: &Trace, second: &Trace) {
    let same = first.calls.iter().zip(&second.calls).take_while(|(a, b)| a == b).count();
    assert!(
        first.hash == second.hash && first.calls.len() == second.calls.len(),
        "{what}: they part at call {same}:\n{:?}\n{:?}",
        first.calls.get(same),
        second.calls.get(same)
    );
}

#[test]
fn the_same_seed_makes_the_same_calls() {
    for kinds in Kinds::All.runs() {
        let mut compared = 0;
        for seed in 1..=16 {
            if compared == 8 {
                break;
            }
            let sizes = Sizes::new(seed, kinds);
            let first = trace(sizes, seed);
            // A kind for tests has no compactions.
            let least = if kinds.is_for_tests() { 250 } else { 500 };
            // A list may drop its only keyspace early.
            if first.calls.len() <= least {
                continue;
            }
            compared += 1;
            same("on the same thread", &first, &trace(sizes, seed));
            let fresh = std::thread::spawn(move || trace(sizes, seed)).join().unwrap();
            same("on a fresh thread", &first, &fresh);
            let other = Sizes { seed: seed + 1, ..sizes };
            assert_ne!(first.hash, trace(other, seed).hash, "steps are done in another order");
        }
        assert_eq!(compared, 8, "{kinds:?}");
    }
}

/// Readers of one store had put off when another could use its cached pages again, and so made it
/// read more: a failure found in a busy process did not show again alone.
#[test]
fn other_stores_in_the_process_make_no_difference() {
    let sizes = Sizes { cache_bytes: Some(8 * 4096), ..Sizes::new(3, Kinds::Mixed) };
    let alone = trace(sizes, 3);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut list = 100 * thread;
                while !stop.load(Ordering::Relaxed) {
                    list += 1;
                    let _ = trace(Sizes::new(list, Kinds::Mixed), list);
                }
            });
        }
        let traces: Vec<Trace> = (0..5).map(|_| trace(sizes, 3)).collect();
        stop.store(true, Ordering::Relaxed);
        traces.iter().for_each(|busy| same("beside other stores", &alone, busy));
    });
}
