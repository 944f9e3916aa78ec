//! Small stores answer as a map of all versions does; a few lists of actions, each gate.

use std::time::{Duration, Instant};

use spinney_sim::compare::{self, Extent};
use spinney_sim::keep::Keep;
use spinney_sim::kinds::Kinds;
use spinney_sim::outcome::Outcome;

fn agree(total: &Outcome) {
    let told = total.violations.iter().map(|found| format!("{}\n{}\n", found.command, found.what));
    let violations: Vec<String> = told.collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn random_actions_agree_with_the_model() {
    let started = Instant::now();
    let mut total = Outcome::default();
    for seed in 1..=24 {
        if started.elapsed() > Duration::from_secs(30) {
            break;
        }
        for kinds in Kinds::All.runs() {
            total.add(compare::run(seed, kinds, Extent::default(), None));
        }
    }
    agree(&total);
    assert!(total.operations > 3000, "{total:?}");
}

/// Whatever is left out, what is left can be done.
#[test]
fn any_part_of_a_list_agrees_too() {
    let extent = Extent { actions: 400, ..Extent::default() };
    for seed in 1..=12 {
        for step in 2..5 {
            let keep = Keep::new((seed as usize % step..500).step_by(step).collect());
            agree(&compare::run(seed, Kinds::Mixed, extent, Some(&keep)));
        }
    }
}
