//! Crashes at random, a few thousand of them, each gate; and that they find what is there to find.

use std::process::Command;
use std::time::{Duration, Instant};

use spinney_sim::crash::{self, Extent, StateName, exhaustive};
use spinney_sim::disk::Policy;
use spinney_sim::kinds::Kinds;
use spinney_sim::outcome::Outcome;

/// Runs from `seed` on, until enough are judged or time is up.
fn crash_from(seed: u64, runs: u64, extent: Extent, at_most: Duration) -> Outcome {
    let started = Instant::now();
    let mut total = Outcome::default();
    for seed in seed..seed + runs {
        if started.elapsed() > at_most {
            break;
        }
        for kinds in Kinds::All.runs() {
            total.add(crash::run(seed, kinds, extent, None));
        }
    }
    none_of(&total);
    total
}

fn none_of(total: &Outcome) {
    let told = total.violations.iter().map(|found| format!("{}\n{}\n", found.command, found.what));
    let violations: Vec<String> = told.collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn every_crash_leaves_what_was_promised() {
    let judged = crash_from(1, 12, Extent::default(), Duration::from_secs(12));
    assert!(judged.state_count() > 100, "{judged:?}");
    assert_eq!(judged.states.len(), Policy::ALL.len(), "{judged:?}");
}

#[test]
fn every_crash_inside_recovery_leaves_what_was_promised() {
    let judged = crash_from(1, 4, Extent::recovery(), Duration::from_secs(10));
    assert!(judged.state_count() > 100, "{judged:?}");
}

/// Two runs: `spinney-sim soak` begins with the same sequences for every kind.
#[test]
fn every_action_can_be_crashed_anywhere() {
    let runs = [Kinds::All.runs()[0], Kinds::Mixed];
    for (number, kinds) in runs.into_iter().enumerate() {
        let (base, seen) = (exhaustive::begin(kinds).unwrap(), exhaustive::Seen::default());
        let mut total = Outcome::default();
        for length in 0..=1 {
            for number in 0..exhaustive::sequences(length) {
                total.add(exhaustive::run(&base, length, number, &seen));
            }
        }
        none_of(&total);
        // The first kind has a file more for each table to be crashed at.
        let least = if number == 0 { 500 } else { 400 };
        assert!(total.state_count() > least, "{total:?}");
        assert_eq!(total.counts["sequences"], 1 + exhaustive::sequences(1));
        assert!(total.counts["states_same"] > total.state_count());
    }
}

#[test]
fn a_state_is_the_same_alone_as_among_others() {
    let extent = Extent { generations: 2, steps: 60, states: 5, ..Extent::default() };
    let all = crash::run(77, Kinds::Mixed, extent, None);
    let name = StateName { generation: 1, number: 3 };
    let alone = crash::run(77, Kinds::Mixed, extent, Some(name));
    assert!(all.state_count() >= 12, "{all:?}");
    assert!((1..=300).contains(&alone.state_count()), "{alone:?}");
    assert!(alone.state_count() < all.state_count());
    assert!(all.violations.is_empty() && alone.violations.is_empty());
}

/// The exit code of a command line, and what it says.
fn carry_out(command: &str) -> (Option<i32>, String, String) {
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("spinney-sim"));
    let done = Command::new(env!("CARGO_BIN_EXE_spinney-sim")).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// The first line that says how to see a violation again.
fn command_of(said: &str) -> &str {
    let mut lines = said.lines().filter_map(|line| line.trim().strip_prefix("again: "));
    lines.next().unwrap_or_else(|| panic!("no command in {said}"))
}

/// A disk that does not sync what it says it does is found out, and how is told in a few actions by
/// a command that shows it again.
#[test]
fn a_violation_becomes_a_short_story_that_can_be_told_again() {
    for lie in ["sync", "sync-dir"] {
        let command = format!(
            "spinney-sim crash --kind stb --seed 1 --jobs 1 --steps 60 --shrink 20 --lie {lie}"
        );
        let (code, line, said) = carry_out(&command);
        assert_eq!(code, Some(1), "{said}");
        assert!(line.contains("\"violations\":"), "{line}");
        let short = command_of(&said);
        assert!(short.contains(" --keep ") && short.contains(" --policy "), "{said}");
        let (_, story) = said.split_once("in short:\n").unwrap();
        let (story, _) = story.split_once("again: ").unwrap();
        let actions = story.lines().filter(|line| line.trim().starts_with("op ")).count();
        assert!(actions <= 20, "{actions} actions: {said}");
        let (code, _, again) = carry_out(short);
        assert_eq!(code, Some(1), "{short}: {again}");
        // Word for word.
        story.lines().for_each(|line| assert!(again.contains(line), "{line} is not in {again}"));
        // Without the lie there is nothing to tell.
        let honest = short.replace(&format!(" --lie {lie}"), "");
        assert_ne!(honest, short);
        let (code, _, said) = carry_out(&honest);
        assert_eq!(code, Some(0), "{honest}: {said}");
    }
}
