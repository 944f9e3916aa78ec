//! Looks at memory and disk while a workload runs, and shows how far it is.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::disk::used_bytes;
use super::meter;
use crate::workload::Workload;
use crate::workload::store::Plan;
use spinney_quantity::grouped;

/// How often the disk is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// The observations.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// The most memory that was resident.
    pub resident_bytes_peak: Option<u64>,
    /// The most memory that the cgroup counted, page cache included.
    pub cgroup_bytes_peak: Option<u64>,
    /// Disk space at the end, after background work.
    pub space_bytes: u64,
    /// The most that was seen.
    pub space_bytes_max: u64,
    /// All that was seen, twice a second.
    pub space_timeline_bytes: Vec<u64>,
}

/// Watches one workload.
pub struct Watch<'a> {
    dir: &'a Path,
    cgroup_peak: Option<&'a Path>,
    /// Its name, if progress is shown.
    shown: Option<String>,
    progress: &'a AtomicU64,
}

impl<'a> Watch<'a> {
    /// `progress` counts operations.
    pub fn new(plan: &'a Plan, workload: &Workload, progress: &'a AtomicU64) -> Watch<'a> {
        let shown = plan.progress && std::io::stderr().is_terminal();
        Watch {
            dir: &plan.dir,
            cgroup_peak: plan.cgroup_peak.as_deref(),
            shown: shown.then(|| format!("{} {workload}", plan.engine)),
            progress,
        }
    }

    /// Watches while `work` runs.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> (T, Watched) {
        meter::reset_peak();
        if let Some(file) = self.cgroup_peak {
            // The first version of cgroups starts anew on a write; the second may not, and then says
            // the most since the process began.
            let _ = fs::write(file, "0");
        }
        let stop = AtomicBool::new(false);
        let (result, mut watched) = thread::scope(|scope| {
            let watcher = scope.spawn(|| self.watch(&stop));
            let result = work();
            stop.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            (result, watcher.join().unwrap_or_default())
        });
        watched.resident_bytes_peak = meter::resident_bytes_peak();
        watched.cgroup_bytes_peak = self
            .cgroup_peak
            .and_then(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
        watched.space_bytes = used_bytes(self.dir);
        watched.space_bytes_max = watched.space_bytes_max.max(watched.space_bytes);
        (result, watched)
    }

    fn watch(&self, stop: &AtomicBool) -> Watched {
        let (mut watched, start) = (Watched::default(), Instant::now());
        loop {
            thread::park_timeout(INTERVAL);
            let space = used_bytes(self.dir);
            watched.space_bytes_max = watched.space_bytes_max.max(space);
            watched.space_timeline_bytes.push(space);
            let stopped = stop.load(Ordering::Relaxed);
            if let Some(name) = &self.shown {
                let done = self.progress.load(Ordering::Relaxed);
                let rate = done as f64 / start.elapsed().as_secs_f64().max(1e-9);
                let line = format!("{name}: {} done, {}/s", grouped(done), grouped(rate as u64));
                let line = if stopped { String::new() } else { line };
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            }
            if stopped {
                return watched;
            }
        }
    }
}
