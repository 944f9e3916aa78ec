//! The fault regime, small enough for every test run; `spinney-sim faults` goes on for longer.

use spinney_sim::fault::Fault;
use spinney_sim::faults::{self, Extent};
use spinney_sim::kinds::Kinds;

#[test]
fn whatever_the_disk_does_the_store_is_right_or_says_so() {
    let extent = Extent { every: 40, ..Extent::default() };
    for kinds in Kinds::All.runs() {
        for seed in 1..3 {
            let outcome = faults::run(seed, kinds, extent, None);
            let told: Vec<String> =
                outcome.violations.iter().map(|v| format!("{}\n{}", v.what, v.command)).collect();
            assert!(told.is_empty(), "{}", told.join("\n\n"));
            for fault in Fault::ALL {
                assert!(outcome.states.contains_key(fault.name()), "{fault}: {:?}", outcome.states);
            }
        }
    }
}

#[test]
fn the_same_seed_does_the_same() {
    let extent = Extent { every: 97, steps: 40, ..Extent::default() };
    let run = || faults::run(5, Kinds::All.runs()[0], extent, None);
    assert_eq!(run(), run());
}
