//! Scenarios for shuttle: a few tasks on real parts of the engine, run in thousands of orders.
//!
//! `docs/testing.md`, section "Threads", says how to run them. Each order is drawn from the seed, by
//! turns at random and by priorities that change at few places (PCT, which finds bugs that need few
//! switches at just the right moments).

mod stores;
mod transactions;

use std::collections::VecDeque;
use std::env;
use std::panic;
use std::sync::Mutex;
use std::time::Instant;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

#[cfg(planted)]
use crate::base::planted;

struct Scenario {
    name: &'static str,
    run: fn(),
    /// How many of a hundred schedules are this one's: those that run longest get the fewest.
    share: usize,
}

const fn scenario(name: &'static str, share: usize, run: fn()) -> Scenario {
    Scenario { name, run, share }
}

const SCENARIOS: &[Scenario] = &[
    scenario("commit", 12, crate::commit::schedules::writers_and_a_reader),
    scenario("barrier", 10, crate::commit::schedules::a_barrier_meets_no_commit),
    scenario("one-shard", 6, crate::commit::schedules::one_shard_of_several_writers),
    scenario("group-commit", 6, crate::journal::schedules::group_commit),
    scenario("segments", 6, crate::journal::schedules::rolling_segments),
    scenario("failed-sync", 6, crate::journal::schedules::a_failed_sync),
    scenario("close-journal", 6, crate::journal::schedules::closing),
    scenario("memtable", 6, crate::memtable::schedules::readers_of_a_growing_index),
    scenario("versions", 8, crate::memtable::schedules::versions_of_one_key),
    scenario("evict", 6, crate::cache::schedules::readers_and_evictions),
    scenario("remove-file", 6, crate::cache::schedules::removed_files),
    scenario("capacity", 4, crate::cache::schedules::changing_capacity),
    scenario("stripes", 2, crate::cache::schedules::stripes),
    scenario("units", 2, crate::cache::schedules::pages_of_several_units),
    scenario("kept", 4, crate::cache::schedules::kept_values),
    scenario("records", 6, crate::cache::row_cache_schedules::superseded_while_written_once_more),
    scenario("outdated", 3, stores::records_are_never_outdated),
    scenario("halves", 3, stores::batched_reads_see_batches_whole),
    scenario("drop-rolls", 2, stores::batches_that_wait_for_segments_meet_a_drop),
    scenario("batches", 3, stores::batches_are_whole),
    scenario("gaps", 4, stores::gaps_end_at_puts),
    scenario("rotate", 3, stores::rotation_under_readers),
    scenario("freeze", 3, stores::freezing_under_writers),
    scenario("reclaim", 2, stores::iterators_outlive_compactions),
    scenario("close", 2, stores::closing_under_writers),
    scenario("drop", 2, stores::dropping_under_work),
    scenario("sync", 2, stores::syncing_writers),
    scenario("drop-keyspace", 2, stores::dropping_a_keyspace),
    scenario("drop-batches", 2, stores::batches_meet_a_drop),
    scenario("drop-full", 2, stores::a_drop_without_room),
    scenario("changes", 2, stores::changes_of_a_tree_meet),
    scenario("checkpoint", 2, stores::a_checkpoint_under_writers),
    scenario("ranges", 3, transactions::a_range_found_empty_stays_so),
    scenario("locks", 3, transactions::locks_in_different_orders),
    scenario("locked", 4, transactions::a_locked_key_never_conflicts),
    scenario("emptied", 3, transactions::a_range_found_full_is_deleted_before_or_behind),
];

/// Schedules that one scheduler draws from one seed.
const CHUNK: usize = 250;
/// At how many places priorities change.
const PCT_DEPTH: usize = 3;

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn count(name: &str, default: usize) -> usize {
    variable(name).map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {value:?}"))
    })
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.failure_persistence = FailurePersistence::Print;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.silence_warnings = true;
    config
}

/// A run of schedules of one scenario.
struct Chunk {
    scenario: &'static Scenario,
    seed: u64,
    schedules: usize,
}

impl Chunk {
    /// Whether no schedule failed.
    fn run(&self) -> bool {
        let Chunk { scenario, seed, schedules } = *self;
        let run = scenario.run;
        let result = panic::catch_unwind(move || {
            if seed % 2 == 0 {
                let scheduler = RandomScheduler::new_from_seed(seed, schedules);
                Runner::new(scheduler, config()).run(run)
            } else {
                let scheduler = PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules);
                Runner::new(scheduler, config()).run(run)
            }
        });
        if result.is_err() {
            eprintln!(
                "scenario {name} failed; the same schedules again:\n  \
                 SPINNEY_SCENARIO={name} SPINNEY_SEED={seed} SPINNEY_SCHEDULES={schedules} \
                 SPINNEY_CHUNK=1 {COMMAND}\nand the failing one alone, with what shuttle printed \
                 above between the quotes:\n  SPINNEY_SCENARIO={name} SPINNEY_SCHEDULE=\"…\" {COMMAND}",
                name = scenario.name,
            );
        }
        result.is_ok()
    }
}

const COMMAND: &str = "RUSTFLAGS=\"--cfg shuttle\" cargo test --profile schedules \
                       --target-dir target/shuttle --lib -- schedules --nocapture";

/// The chunks of all scenarios, in turn.
fn chunks(scenarios: &[&'static Scenario], seed: u64, schedules: usize) -> VecDeque<Chunk> {
    let shares: usize = scenarios.iter().map(|scenario| scenario.share).sum();
    let mut chunks = VecDeque::new();
    for (at, scenario) in scenarios.iter().enumerate() {
        let mut left = (schedules * scenario.share).div_ceil(shares);
        let mut number = 0;
        while left > 0 {
            // Chunks differ, and so do seeds that follow one another; odd ones are PCT's.
            let seed = (seed << 32) + ((at as u64) << 24) + number;
            let schedules = left.min(CHUNK);
            chunks.push_back(Chunk { scenario, seed, schedules });
            left -= schedules;
            number += 1;
        }
    }
    chunks
}

#[test]
fn schedules() {
    let wanted = variable("SPINNEY_SCENARIO");
    let is_wanted =
        |scenario: &&Scenario| wanted.as_deref().is_none_or(|name| name == scenario.name);
    let scenarios: Vec<&Scenario> = SCENARIOS.iter().filter(is_wanted).collect();
    assert!(!scenarios.is_empty(), "no scenario has that name; there are {:?}", names());
    #[cfg(planted)]
    if let Some(name) = variable("SPINNEY_BUG") {
        let bug = planted::Bug::ALL.iter().find(|bug| bug.name() == name);
        planted::activate(Some(*bug.unwrap_or_else(|| panic!("no bug is called {name:?}"))));
    }
    if let Some(schedule) = variable("SPINNEY_SCHEDULE") {
        return shuttle::replay(scenarios[0].run, &schedule);
    }
    let seed = count("SPINNEY_SEED", 1) as u64;
    let schedules = count("SPINNEY_SCHEDULES", 2_000);
    let chunks = if variable("SPINNEY_CHUNK").is_some() {
        VecDeque::from([Chunk { scenario: scenarios[0], seed, schedules }])
    } else {
        chunks(&scenarios, seed, schedules)
    };
    run(chunks, count("SPINNEY_THREADS", 1));
}

fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|scenario| scenario.name).collect()
}

#[derive(Default)]
struct Totals {
    chunks: VecDeque<Chunk>,
    schedules: usize,
    violations: usize,
    /// By scenario: schedules, and the seconds they took.
    spent: std::collections::BTreeMap<&'static str, (usize, f64)>,
    told: f64,
}

/// Runs all chunks and says how it went.
fn run(chunks: VecDeque<Chunk>, threads: usize) {
    let start = Instant::now();
    let totals = Mutex::new(Totals { chunks, ..Totals::default() });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(chunk) = totals.lock().unwrap().chunks.pop_front() else { return };
                    let began = Instant::now();
                    let passed = chunk.run();
                    let mut totals = totals.lock().unwrap();
                    totals.schedules += chunk.schedules;
                    totals.violations += usize::from(!passed);
                    let spent = totals.spent.entry(chunk.scenario.name).or_default();
                    spent.0 += chunk.schedules;
                    spent.1 += began.elapsed().as_secs_f64();
                    let seconds = start.elapsed().as_secs_f64();
                    if seconds - totals.told > 3.0 {
                        totals.told = seconds;
                        eprintln!(
                            "{} schedules, {seconds:.0} s, at {}",
                            totals.schedules, chunk.scenario.name
                        );
                    }
                    if totals.violations >= 3 {
                        totals.chunks.clear();
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    for (name, (schedules, seconds)) in &totals.spent {
        eprintln!("{schedules:>9}  {:>6.0} µs each  {name}", seconds * 1e6 / *schedules as f64);
    }
    println!(
        "{{\"regime\":\"schedules\",\"states\":{},\"operations\":{},\"violations\":{},\
         \"seconds\":{:.1}}}",
        totals.schedules,
        totals.schedules,
        totals.violations,
        start.elapsed().as_secs_f64()
    );
    assert_eq!(totals.violations, 0);
}
