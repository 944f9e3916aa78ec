//! Crashes at random, a few thousand of them, each gate.

use std::time::{Duration, Instant};

use spinney_sim::crash::{self, Extent};
use spinney_sim::disk::Policy;
use spinney_sim::kinds::Kinds;
use spinney_sim::outcome::Outcome;

/// Runs from `seed` on, until enough are judged or time is up.
fn crash_from(seed: u64, runs: u64, at_most: Duration) -> Outcome {
    let started = Instant::now();
    let mut total = Outcome::default();
    let extent = Extent::default();
    for seed in seed..seed + runs {
        if started.elapsed() > at_most {
            break;
        }
        for kinds in Kinds::All.runs() {
            total.add(crash::run(seed, kinds, extent, None));
        }
    }
    let told = total.violations.iter().map(|found| format!("{}\n{}\n", found.command, found.what));
    let violations: Vec<String> = told.collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    total
}

#[test]
fn every_crash_leaves_what_was_promised() {
    let judged = crash_from(1, 20, Duration::from_secs(25));
    assert!(judged.state_count() > 100, "{judged:?}");
    assert_eq!(judged.states.len(), Policy::ALL.len(), "{judged:?}");
}

#[test]
fn a_state_is_the_same_alone_as_among_others() {
    let extent = Extent { generations: 2, steps: 60, states: 5, ..Extent::default() };
    let all = crash::run(77, Kinds::Mixed, extent, None);
    let name = crash::StateName { generation: 1, number: 3 };
    let alone = crash::run(77, Kinds::Mixed, extent, Some(name));
    assert!(all.state_count() >= 12, "{all:?}");
    assert!((1..=3).contains(&alone.state_count()), "{alone:?}");
    assert!(all.violations.is_empty() && alone.violations.is_empty());
}
