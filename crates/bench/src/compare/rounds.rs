//! The rounds: the order in which engines work.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Found;
use super::child::Running;
use super::options::Run;
use crate::engine::{EngineName, remove};
use crate::measure::cgroup::Cgroup;
use crate::measure::device;
use crate::measure::measurement::Measurement;
use crate::workload::store::{Contents, Plan};
use crate::workload::{Shape, Workload, overhead};
use spinney_quantity::{bytes, grouped};

/// A directory that is removed with all that is in it.
struct Scratch {
    dir: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// One engine, over all rounds.
struct Lane {
    name: EngineName,
    plan: Plan,
    running: Option<Running>,
    /// It failed in this round; the next load begins anew.
    failed: bool,
}

struct Rounds<'a> {
    run: &'a Run,
    start: Instant,
    found: Found,
    cgroups: u64,
}

/// Runs everything.
pub(super) fn run(run: &Run) -> Result<Found, String> {
    let scratch = Scratch { dir: run.dir.join(format!("spinney-bench-{}", std::process::id())) };
    fs::create_dir_all(&scratch.dir)
        .map_err(|error| format!("cannot create {}: {error}", scratch.dir.display()))?;
    let found = Found { overhead: Some(overhead::measure(&run.plan)?), ..Found::default() };
    let mut rounds = Rounds { run, start: Instant::now(), found, cgroups: 0 };
    rounds.found.limit = run.limit_bytes.map(|limit| match rounds.cgroup() {
        Ok(_) => Ok(limit),
        Err(why) => Err(why),
    });
    match &rounds.found.limit {
        None => rounds.say("no memory limit, as asked: the page cache is whatever the machine has"),
        Some(Ok(limit)) => rounds.say(&format!("every engine is limited to {}", bytes(*limit))),
        Some(Err(why)) => rounds.say(&format!(
            "no memory cgroup can be made here ({why}); engines that leave caching to the kernel have all \
             of the machine's memory"
        )),
    }
    let mut lanes: Vec<Lane> = run
        .engines
        .iter()
        .map(|name| {
            let dir = scratch.dir.join(name.to_string().replace(':', "-"));
            let plan = Plan { engine: name.to_string(), dir, ..run.plan.clone() };
            Lane { name: name.clone(), plan, running: None, failed: false }
        })
        .collect();
    for round in 1..=run.rounds {
        rounds.measure_device(&scratch.dir, round)?;
        let count = lanes.len();
        if run.apart {
            for turn in 0..count {
                let lane = &mut lanes[(turn + round as usize - 1) % count];
                for workload in &run.workloads {
                    rounds.turn(lane, workload, round)?;
                }
                lane.end();
            }
            continue;
        }
        for (position, workload) in run.workloads.iter().enumerate() {
            for turn in 0..count {
                let lane = &mut lanes[(turn + position + round as usize - 1) % count];
                rounds.turn(lane, workload, round)?;
            }
        }
        for lane in &mut lanes {
            lane.end();
        }
    }
    Ok(rounds.found)
}

impl Lane {
    /// Closes the store, if it is open, and removes it.
    fn end(&mut self) {
        if let Some(running) = self.running.take()
            && let Err(what) = running.close()
        {
            eprintln!("{}: closing: {what}", self.name);
        }
        remove(&self.plan.dir);
        self.failed = false;
    }
}

impl Rounds<'_> {
    fn say(&self, what: &str) {
        eprintln!("[{:7.1} s] {what}", self.start.elapsed().as_secs_f64());
    }

    fn cgroup(&mut self) -> Result<Cgroup, String> {
        self.cgroups += 1;
        let name = format!("spinney-bench-{}-{}", std::process::id(), self.cgroups);
        Cgroup::new(&name, self.run.limit_bytes.unwrap_or(u64::MAX))
    }

    fn measure_device(&mut self, dir: &Path, round: u64) -> Result<(), String> {
        if self.run.device_file_bytes == 0 {
            return Ok(());
        }
        let mut threads = vec![1, 2, 16];
        threads.push(self.run.plan.threads);
        threads.extend(self.run.workloads.iter().filter_map(|workload| workload.threads));
        threads.sort_unstable();
        threads.dedup();
        let each = Duration::from_secs_f64(self.run.device_seconds);
        let rates = device::measure(dir, self.run.device_file_bytes, &threads, each)?;
        let random: Vec<String> = rates
            .random_reads
            .iter()
            .map(|reads| format!("{}: {}", reads.threads, grouped(reads.reads_per_second as u64)))
            .collect();
        self.say(&format!(
            "round {round}: the device: {}/s in order; 4 KiB reads/s with threads {}; io_uring depth 32: {}",
            bytes(rates.sequential_read_bytes_per_second as u64),
            random.join(", "),
            rates.io_uring_depth_32_reads_per_second.map_or("none".into(), |r| grouped(r as u64)),
        ));
        self.found.device.push(rates);
        Ok(())
    }

    /// One engine's turn at one workload.
    fn turn(&mut self, lane: &mut Lane, workload: &Workload, round: u64) -> Result<(), String> {
        if let Shape::Load { sequential_percent } = workload.shape {
            lane.end();
            let contents = Contents { sequential_percent, first_index: 0, next_index: 0 };
            if let Err(what) = self.open(lane, contents) {
                self.failed(lane, workload, round, what);
                return Ok(());
            }
        }
        if lane.failed {
            return Ok(());
        }
        if let Some(why) = workload.needs().and_then(|need| lane.name.lacks(need)) {
            self.note(lane, workload, round, why.to_string());
            return Ok(());
        }
        let outcome = match lane.running.as_mut() {
            Some(running) => running.run(workload.name()),
            None => Err("it is not open".to_string()),
        };
        let outcome = match (outcome, workload.shape) {
            (Ok(measurement), Shape::Reopen { rebuilds }) => {
                self.reopen(lane, measurement, rebuilds)
            }
            (other, _) => other,
        };
        match outcome {
            Ok(mut measurement) => {
                measurement.round = round;
                self.say(&format!(
                    "round {round}: {workload} {}: {}/s, {:.2} µs of CPU each{}{}",
                    lane.name,
                    grouped(measurement.operations_per_second as u64),
                    measurement.processor_microseconds_per_operation,
                    measurement
                        .open_seconds
                        .map_or(String::new(), |s| format!(", open again in {s:.3} s")),
                    match measurement.missing + measurement.wrong {
                        0 => String::new(),
                        bad => format!(", {bad} WRONG OR MISSING"),
                    },
                ));
                self.found.measurements.push(measurement);
            }
            Err(what) => self.failed(lane, workload, round, what),
        }
        Ok(())
    }

    fn failed(&mut self, lane: &mut Lane, workload: &Workload, round: u64, what: String) {
        self.note(lane, workload, round, what);
        lane.running = None;
        lane.failed = true;
    }

    /// Notes a workload that an engine could not do.
    fn note(&mut self, lane: &Lane, workload: &Workload, round: u64, what: String) {
        self.say(&format!("round {round}: {workload} {}: FAILED: {what}", lane.name));
        let mut measurement = Measurement::failure(&lane.name.to_string(), workload.name(), what);
        measurement.round = round;
        self.found.measurements.push(measurement);
    }

    fn open(&mut self, lane: &mut Lane, contents: Contents) -> Result<(), String> {
        let cgroup = match self.found.limit {
            Some(Ok(_)) => Some(self.cgroup()?),
            _ => None,
        };
        lane.running = Some(Running::start(&lane.plan, contents, cgroup)?);
        Ok(())
    }

    /// Kills the engine's process and opens the store in another.
    fn reopen(
        &mut self,
        lane: &mut Lane,
        mut found: Measurement,
        rebuilds: bool,
    ) -> Result<Measurement, String> {
        let Some(running) = lane.running.take() else { return Ok(found) };
        let contents = running.contents;
        running.kill();
        if rebuilds {
            remove_indexes(&lane.plan.dir)?;
        }
        self.open(lane, contents)?;
        if let Some(running) = lane.running.as_mut() {
            found.open_seconds = Some(running.open_seconds);
            // What the process had written when it died must be there, if that is what the engine says.
            let bad = running.check_last()?;
            found.missing += if lane.name.keeps_buffered() { bad } else { 0 };
        }
        Ok(found)
    }
}

/// Removes what Spinney makes anew from the other files of a store, which is not open.
fn remove_indexes(dir: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "index") {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}
