//! Real threads on small stores, for a short while, each gate.

use std::time::{Duration, Instant};

use spinney_sim::concurrent::{self, Extent};
use spinney_sim::kinds::Kinds;
use spinney_sim::outcome::Outcome;

fn explained(seeds: std::ops::Range<u64>, extent: &Extent, at_most: Duration) -> Outcome {
    let started = Instant::now();
    let mut total = Outcome::default();
    for seed in seeds {
        for kinds in Kinds::All.runs() {
            if total.state_count() == 0 || started.elapsed() < at_most {
                total.add(concurrent::run(seed, kinds, extent));
            }
        }
    }
    let told: Vec<&str> = total.violations.iter().map(|found| found.what.as_str()).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    total
}

#[test]
fn what_threads_see_is_explained_by_one_order_of_commits() {
    let extent = Extent { operations: 250, ..Extent::default() };
    let judged = explained(1..30, &extent, Duration::from_secs(15));
    assert!(judged.operations > 500, "{judged:?}");
}

#[test]
fn the_same_on_the_file_system() {
    let dir = std::env::temp_dir().join(format!("spinney-threads-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let extent = Extent { operations: 100, dir: Some(dir.clone()), ..Extent::default() };
    let judged = explained(1..4, &extent, Duration::from_secs(10));
    assert!(judged.operations > 100, "{judged:?}");
    // Each run has cleared its store away.
    std::fs::remove_dir(&dir).unwrap();
}
