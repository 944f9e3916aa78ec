//! The operating system's counters of this process: processor time, bytes to and from the disk, memory.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// One reading. The difference of two measures the time between them.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// When it was taken.
    pub at: Instant,
    /// Processor time of all threads, background ones included.
    pub processor: Duration,
    /// The kernel's part of it.
    pub processor_system: Duration,
    /// Bytes fetched from the disk, if the system tells.
    pub disk_read_bytes: u64,
    /// Bytes sent to the disk, likewise.
    pub disk_written_bytes: u64,
}

impl Reading {
    /// Takes one.
    pub fn now() -> Reading {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let processor = Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        );
        Reading {
            at: Instant::now(),
            processor,
            processor_system: processor.mul_f64(system_share()),
            disk_read_bytes: number_after(&io, "read_bytes:").unwrap_or(0),
            disk_written_bytes: number_after(&io, "write_bytes:").unwrap_or(0),
        }
    }
}

/// The kernel's share of this process's processor time: it is counted in ticks, the whole exactly.
fn system_share() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the command in parentheses, which may hold anything; utime and stime are the
    // 14th and 15th.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let ticks: Vec<f64> = fields.take(2).map_while(|field| field.parse().ok()).collect();
    match ticks[..] {
        [user, system] if user + system > 0.0 => system / (user + system),
        _ => 0.0,
    }
}

/// Resident memory now.
fn resident_bytes() -> Option<u64> {
    Some(number_after(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")? << 10)
}

/// The most memory that was ever resident, since `reset_peak` where that works.
pub fn resident_bytes_peak() -> Option<u64> {
    Some(number_after(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")? << 10)
}

/// Makes the peak start anew. Not every system allows it; the sampled maximum is there besides.
pub fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Runs `work` while sampling resident memory; gives its result and the largest sample.
pub fn with_memory_sampled<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let (stop, most) = (AtomicBool::new(false), AtomicU64::new(resident_bytes().unwrap_or(0)));
    let result = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes().unwrap_or(0), Ordering::Relaxed);
                thread::park_timeout(Duration::from_millis(20));
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        sampler.thread().unpark();
        result
    });
    (result, most.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let before = Reading::now();
        let mut random = crate::data::random::Random::new(1);
        let mut sum = 0_u64;
        while before.at.elapsed() < Duration::from_millis(20) {
            sum = sum.wrapping_add(random.next_u64());
        }
        std::hint::black_box(sum);
        let after = Reading::now();
        assert!(after.processor > before.processor);
        assert!(after.processor_system <= after.processor);
    }

    #[test]
    fn sampled_memory_sees_what_the_work_held() {
        let size = 32 << 20;
        let (length, most) = with_memory_sampled(|| {
            let held = std::hint::black_box(vec![1_u8; size]);
            thread::sleep(Duration::from_millis(60));
            held.len()
        });
        assert_eq!(length, size);
        assert!(most > size as u64, "{most}");
    }

    #[test]
    fn numbers_are_found_by_name() {
        assert_eq!(number_after("a: 1\nVmHWM:\t  12 kB\n", "VmHWM:"), Some(12));
        assert_eq!(number_after("a: 1\n", "b:"), None);
    }
}
