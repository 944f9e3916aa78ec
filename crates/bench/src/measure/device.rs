//! The rates of the device alone, which no engine on it can exceed.
//!
//! Invariants:
//! 1. All reads are direct, of a file filled with bytes that do not compress.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::data::random::Random;

const PAGE_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 1 << 20;
/// Requests under way at once in the io_uring measurement.
pub const RING_DEPTH: u32 = 32;

/// The measured rates.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceRates {
    /// Bytes per second, 1 MiB at a time, four under way.
    pub sequential_read_bytes_per_second: f64,
    /// Random reads of 4 KiB per second, one under way in each thread.
    pub random_reads: Vec<RandomReads>,
    /// Random reads of 4 KiB per second from one thread, 32 under way through io_uring, where there is
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_uring_depth_32_reads_per_second: Option<f64>,
}

/// Random reads by a number of threads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RandomReads {
    /// How many threads.
    pub threads: usize,
    /// Reads per second, of all threads.
    pub reads_per_second: f64,
}

impl DeviceRates {
    /// The rate with this number of threads, if it was measured.
    pub fn random(&self, threads: u64) -> Option<f64> {
        let found = self.random_reads.iter().find(|reads| reads.threads as u64 == threads);
        found.map(|reads| reads.reads_per_second)
    }

    /// The medians of several measurements.
    pub fn median(all: &[DeviceRates]) -> DeviceRates {
        let of = |each: &dyn Fn(&DeviceRates) -> Option<f64>| {
            let mut values: Vec<f64> = all.iter().filter_map(each).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let threads = all.first().map(|rates| rates.random_reads.clone()).unwrap_or_default();
        DeviceRates {
            sequential_read_bytes_per_second: of(&|r| Some(r.sequential_read_bytes_per_second))
                .unwrap_or(0.0),
            random_reads: threads
                .into_iter()
                .map(|RandomReads { threads, .. }| RandomReads {
                    threads,
                    reads_per_second: of(&|r| r.random(threads as u64)).unwrap_or(0.0),
                })
                .collect(),
            io_uring_depth_32_reads_per_second: of(&|r| r.io_uring_depth_32_reads_per_second),
        }
    }
}

/// Bytes at an address that direct I/O accepts.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        Aligned { bytes, start, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Measures the device that holds `dir`, with a file of `file_bytes` that is made for it and removed, for
/// `each` at every kind of access.
///
/// # Errors
/// Operations that are not possible here.
pub fn measure(
    dir: &Path,
    file_bytes: u64,
    threads: &[usize],
    each: Duration,
) -> Result<DeviceRates, String> {
    let path = dir.join("device-test");
    let said = |error: std::io::Error| format!("{}: {error}", path.display());
    let result = (|| {
        fill(&path, file_bytes)?;
        let file = fs::OpenOptions::new().read(true).custom_flags(DIRECT).open(&path)?;
        let mut rates = DeviceRates {
            sequential_read_bytes_per_second: sequential(&file, file_bytes, each)?,
            ..DeviceRates::default()
        };
        for &threads in threads {
            let reads_per_second = random(&file, file_bytes, threads, each)?;
            rates.random_reads.push(RandomReads { threads, reads_per_second });
        }
        rates.io_uring_depth_32_reads_per_second = ring(&file, file_bytes, each);
        Ok(rates)
    })();
    let _ = fs::remove_file(&path);
    result.map_err(said)
}

const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

fn fill(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(DIRECT)
        .open(path)?;
    let (mut chunk, mut random) = (Aligned::new(CHUNK_BYTES), Random::new(bytes));
    for _ in 0..bytes.div_ceil(CHUNK_BYTES as u64) {
        for word in chunk.get().chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        file.write_all(chunk.get())?;
    }
    file.sync_all()
}

/// Four threads take turns at the next MiB: a device is rarely at its best with one request.
fn sequential(file: &File, bytes: u64, each: Duration) -> std::io::Result<f64> {
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let chunks = (bytes / CHUNK_BYTES as u64).max(1);
    let done = on_threads(4, || {
        let (mut room, mut done) = (Aligned::new(CHUNK_BYTES), 0);
        while start.elapsed() < each {
            let chunk = next.fetch_add(1, Ordering::Relaxed) % chunks;
            file.read_exact_at(room.get(), chunk * CHUNK_BYTES as u64)?;
            done += CHUNK_BYTES as u64;
        }
        Ok(done)
    })?;
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

fn random(file: &File, bytes: u64, threads: usize, each: Duration) -> std::io::Result<f64> {
    let (seed, start) = (AtomicU64::new(1), Instant::now());
    let pages = (bytes / PAGE_BYTES as u64).max(1);
    let done = on_threads(threads, || {
        let mut random = Random::new(seed.fetch_add(1, Ordering::Relaxed));
        let (mut room, mut done) = (Aligned::new(PAGE_BYTES), 0);
        while start.elapsed() < each {
            file.read_exact_at(room.get(), random.below(pages) * PAGE_BYTES as u64)?;
            done += 1;
        }
        Ok(done)
    })?;
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// The sum over all threads.
fn on_threads(
    threads: usize,
    work: impl Fn() -> std::io::Result<u64> + Sync,
) -> std::io::Result<u64> {
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let mut sum = 0;
        let mut result = Ok(());
        for thread in running {
            match thread.join() {
                Ok(Ok(done)) => sum += done,
                Ok(Err(error)) => result = Err(error),
                Err(_) => failed.store(true, Ordering::Relaxed),
            }
        }
        if failed.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("a thread panicked"));
        }
        result.map(|()| sum)
    })
}

/// `None` where io_uring is missing or forbidden.
#[cfg(target_os = "linux")]
fn ring(file: &File, bytes: u64, each: Duration) -> Option<f64> {
    use std::os::fd::AsRawFd;

    use io_uring::{IoUring, opcode, types};

    let mut ring = IoUring::new(RING_DEPTH).ok()?;
    let pages = (bytes / PAGE_BYTES as u64).max(1);
    let mut rooms: Vec<Aligned> = (0..RING_DEPTH).map(|_| Aligned::new(PAGE_BYTES)).collect();
    let mut random = Random::new(77);
    let descriptor = types::Fd(file.as_raw_fd());
    let mut free: Vec<usize> = (0..rooms.len()).collect();
    let (mut done, mut failed, start) = (0_u64, false, Instant::now());
    loop {
        let more = start.elapsed() < each && !failed;
        while more && let Some(slot) = free.pop() {
            let entry =
                opcode::Read::new(descriptor, rooms[slot].get().as_mut_ptr(), PAGE_BYTES as u32)
                    .offset(random.below(pages) * PAGE_BYTES as u64)
                    .build()
                    .user_data(slot as u64);
            // SAFETY: the file is open and the room alive until the request has been answered: the loop
            // does not end before all have been, and a slot is used for one request at a time.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                free.push(slot);
                break;
            }
        }
        if free.len() == rooms.len() {
            break;
        }
        while let Err(error) = ring.submit_and_wait(1) {
            if error.kind() != std::io::ErrorKind::Interrupted {
                // The kernel may still write into the rooms.
                std::mem::forget(rooms);
                return None;
            }
        }
        for answer in ring.completion() {
            failed |= answer.result() != PAGE_BYTES as i32;
            done += 1;
            free.push(answer.user_data() as usize);
        }
    }
    (!failed).then(|| done as f64 / start.elapsed().as_secs_f64())
}

#[cfg(not(target_os = "linux"))]
fn ring(_file: &File, _bytes: u64, _each: Duration) -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_rate_by_rate() {
        let of = |sequential: f64, random: f64| DeviceRates {
            sequential_read_bytes_per_second: sequential,
            random_reads: vec![RandomReads { threads: 2, reads_per_second: random }],
            io_uring_depth_32_reads_per_second: None,
        };
        let median = DeviceRates::median(&[of(1.0, 30.0), of(3.0, 10.0), of(2.0, 20.0)]);
        assert_eq!(median.sequential_read_bytes_per_second, 2.0);
        assert_eq!((median.random(2), median.random(1)), (Some(20.0), None));
        assert_eq!(median.io_uring_depth_32_reads_per_second, None);
    }

    #[test]
    fn aligned_room_is_aligned() {
        for len in [PAGE_BYTES, CHUNK_BYTES] {
            let mut room = Aligned::new(len);
            assert_eq!((room.get().as_ptr() as usize % PAGE_BYTES, room.get().len()), (0, len));
        }
    }
}
