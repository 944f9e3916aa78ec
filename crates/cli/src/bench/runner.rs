//! Runs one workload on all threads and puts together what they and the meters say.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use spinney::{Database, Keyspace, Statistics};

use super::BenchOptions;
use super::worker::{Measured, Shared, Worker};
use super::workload::Workload;
use crate::failure::{Failure, Outcome};
use spinney_bench::data::distribution::{Distribution, Picker};
use spinney_bench::data::division::share;
use spinney_bench::data::keys::KeyMaker;
use spinney_bench::data::values::ValueMaker;
use spinney_bench::measure::meter::{self, Reading};
use spinney_bench::quantity::whole;

/// What a workload gave.
pub(crate) struct WorkloadResult {
    pub(crate) name: &'static str,
    pub(crate) distribution: Distribution,
    pub(crate) measured: Measured,
    /// From the first operation to the last.
    pub(crate) elapsed: Duration,
    /// From then until background work was done.
    pub(crate) settling: Duration,
    /// Processor time while operations ran, background work at the time included.
    pub(crate) processor: Duration,
    /// The same with the settling.
    pub(crate) processor_settled: Duration,
    pub(crate) disk_read_bytes: u64,
    pub(crate) disk_written_bytes: u64,
    pub(crate) resident_bytes_sampled_max: u64,
    pub(crate) resident_bytes_peak: Option<u64>,
    pub(crate) before: Statistics,
    pub(crate) after: Statistics,
}

/// The store and its contents, over all workloads of a run.
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a BenchOptions,
    pub(crate) database: &'a Database,
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) keys: KeyMaker,
    pub(crate) values: ValueMaker,
    /// The index the next insert takes: so many records are there.
    pub(crate) next_index: AtomicU64,
}

impl Bench<'_> {
    pub(crate) fn run(&self, workload: &Workload) -> Outcome<WorkloadResult> {
        let options = self.options;
        let distribution = match options.distribution {
            Some(chosen) if !workload.distribution_fixed => chosen,
            _ => workload.distribution,
        };
        if workload.is_load() {
            self.next_index.store(0, Ordering::SeqCst);
        }
        let progress = self.progress(workload);
        meter::reset_peak();
        let before = self.database.stats();
        let start = Reading::now();
        let (outcome, resident_bytes_sampled_max) = meter::with_memory_sampled(|| {
            let measured = self.run_threads(workload, distribution, &progress, start.at)?;
            let worked = Reading::now();
            if workload.writes() && !options.no_settle {
                progress.set_message("waiting for background work");
                self.database.wait_idle()?;
            }
            Ok::<_, Failure>((measured, worked))
        });
        let (measured, worked) = outcome?;
        let settled = Reading::now();
        progress.finish_and_clear();
        if workload.is_load() {
            // Threads that found nothing left to do have counted on.
            self.next_index.store(measured.operations.min(options.records), Ordering::SeqCst);
        }
        Ok(WorkloadResult {
            name: workload.name,
            distribution,
            measured,
            elapsed: worked.at - start.at,
            settling: settled.at - worked.at,
            processor: worked.processor.saturating_sub(start.processor),
            processor_settled: settled.processor.saturating_sub(start.processor),
            disk_read_bytes: settled.disk_read_bytes.saturating_sub(start.disk_read_bytes),
            disk_written_bytes: settled.disk_written_bytes.saturating_sub(start.disk_written_bytes),
            resident_bytes_sampled_max,
            resident_bytes_peak: meter::resident_bytes_peak(),
            before,
            after: self.database.stats(),
        })
    }

    fn run_threads(
        &self,
        workload: &Workload,
        distribution: Distribution,
        progress: &ProgressBar,
        start: Instant,
    ) -> Outcome<Measured> {
        let options = self.options;
        let threads = options.threads.max(1);
        let shared = Shared {
            options,
            workload,
            database: self.database,
            keyspace: self.keyspace,
            keys: &self.keys,
            values: &self.values,
            next_index: &self.next_index,
            inserting: (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect(),
            stop: AtomicBool::new(false),
            deadline: options.seconds.map(|seconds| start + Duration::from_secs_f64(seconds)),
            progress,
        };
        let records = self.next_index.load(Ordering::SeqCst);
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let shared = &shared;
                    let share = share(options.operations, thread as u64, threads as u64);
                    scope.spawn(move || {
                        let picker =
                            Picker::new(distribution, records, thread as u64, threads as u64);
                        Worker::new(shared, thread, picker).run(share)
                    })
                })
                .collect();
            let mut all = Measured::new();
            let mut failure = None;
            for thread in running {
                match thread.join() {
                    Ok(Ok(measured)) => all.merge(measured),
                    Ok(Err(error)) => failure = failure.or(Some(error)),
                    Err(_) => failure = failure.or(Some(Failure::other("a thread panicked"))),
                }
            }
            failure.map_or(Ok(all), Err)
        })
    }

    fn progress(&self, workload: &Workload) -> ProgressBar {
        let options = self.options;
        let total = if workload.is_load() {
            options.records
        } else if workload.is_full_scan() {
            self.next_index.load(Ordering::SeqCst) * options.threads as u64
        } else {
            options.operations
        };
        let style =
            ProgressStyle::with_template(PROGRESS).map(|style| style.with_key("rate", rate));
        ProgressBar::new(total)
            .with_prefix(workload.name)
            .with_style(style.unwrap_or(ProgressStyle::default_bar()))
    }
}

/// What the progress bar shows.
const PROGRESS: &str = "{prefix:10} {bar:32.green} {human_pos} of {human_len}  {rate}  {msg}";

/// Operations a second, as whole numbers: the progress bar's own has four digits behind the point.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let _ = write!(out, "{}/s", whole(state.per_sec()));
}

#[cfg(test)]
mod tests {
    use super::PROGRESS;

    /// The bar's own `per_sec` said `8,877.5675/s`; `rate` is ours.
    #[test]
    fn the_progress_bar_has_no_fractions_of_operations() {
        assert!(PROGRESS.contains("{rate}") && !PROGRESS.contains("per_sec"), "{PROGRESS}");
    }
}
