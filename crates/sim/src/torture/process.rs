//! The system's figures about a process: memory, descriptors, and the time that its threads waited
//! for a core.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::time::{Duration, Instant};

/// Resident memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// The most there was.
    pub peak: u64,
    /// Now, without files.
    pub anonymous: u64,
    /// Now, of mapped files.
    pub files: u64,
}

impl Memory {
    /// Of a process; none if it is gone.
    pub fn of(process: u32) -> Option<Memory> {
        let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Memory::parse(&text)
    }

    fn parse(text: &str) -> Option<Memory> {
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        Some(Memory {
            peak: number("VmHWM:")?,
            anonymous: number("RssAnon:")? + number("RssShmem:")?,
            files: number("RssFile:")?,
        })
    }
}

/// The bytes of a process's mappings of programs and libraries: of files that have a part that can
/// be carried out.
pub fn program_bytes(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    program_bytes_in(&text)
}

fn program_bytes_in(maps: &str) -> u64 {
    let mut files: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        let Some(name) = fields.nth(3).filter(|name| name.starts_with('/')) else { continue };
        let number = |text: Option<&str>| u64::from_str_radix(text.unwrap_or(""), 16).unwrap_or(0);
        let mut ends = range.split('-');
        let start = number(ends.next());
        let len = number(ends.next()).saturating_sub(start);
        let file = files.entry(name).or_default();
        file.0 += len;
        file.1 |= rights.contains('x');
    }
    files.values().filter(|(_, runs)| *runs).map(|(len, _)| len).sum()
}

/// What a process has had of the processors, and waited for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Processor time, in steps of a hundredth of a second.
    pub processor: Duration,
    /// How long its threads, as far as they still run, have waited for a core.
    waited: Duration,
}

impl Used {
    /// By a process so far.
    pub fn by(process: u32) -> Used {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let mut delays = Delays::default();
        delays.read(process);
        let last =
            |readings: &VecDeque<(Instant, Duration)>| readings.back().map(|(_, last)| *last);
        let waited = delays.threads.values().filter_map(last).sum();
        Used { processor: processor_in(&stat), waited }
    }
}

fn processor_in(stat: &str) -> Duration {
    // The second field is the command in parentheses, which may hold anything; utime and stime are
    // the 14th and 15th, in ticks, of which Linux tells a hundred a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let ticks: u64 = fields.take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// How many descriptors a process has.
pub fn descriptors(process: u32) -> u64 {
    fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64)
}

/// How long threads were ready to run and did not, for lack of a core: what a busy machine takes,
/// and not the store.
#[derive(Debug, Default)]
pub struct Delays {
    /// By thread: when it was asked, and what it had waited by then.
    threads: BTreeMap<String, VecDeque<(Instant, Duration)>>,
}

/// Older readings are forgotten.
const READINGS_MAX: usize = 600;

impl Delays {
    /// Asks now.
    pub fn read(&mut self, process: u32) {
        let now = Instant::now();
        let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return };
        for entry in entries.flatten() {
            let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
            let waited = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
            let thread = entry.file_name().to_string_lossy().into_owned();
            self.note(thread, now, Duration::from_nanos(waited.unwrap_or(0)));
        }
    }

    fn note(&mut self, thread: String, now: Instant, waited: Duration) {
        let readings = self.threads.entry(thread).or_default();
        readings.push_back((now, waited));
        if readings.len() > READINGS_MAX {
            readings.pop_front();
        }
    }

    /// The longest that one thread waited since then. What it waited between two readings counts as
    /// within if the second is.
    pub fn since(&self, then: Instant) -> Duration {
        let of = |readings: &VecDeque<(Instant, Duration)>| {
            let before = readings.partition_point(|(at, _)| *at <= then).checked_sub(1);
            let before = before.map_or(Duration::ZERO, |before| readings[before].1);
            readings.back().map_or(Duration::ZERO, |(_, last)| last.saturating_sub(before))
        };
        self.threads.values().map(of).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        let text =
            "VmHWM:\t  12 kB\nVmRSS:\t 9 kB\nRssAnon:\t 4 kB\nRssFile:\t 5 kB\nRssShmem:\t1 kB\n";
        let memory = Memory { peak: 12 << 10, anonymous: 5 << 10, files: 5 << 10 };
        assert_eq!(Memory::parse(text), Some(memory));
        assert!(Memory::of(std::process::id()).is_some_and(|memory| memory.peak > 0));
        assert!(descriptors(std::process::id()) > 2);
    }

    #[test]
    fn processor_time_is_the_users_and_the_kernels() {
        let stat = "77 (a ) b) S 1 1 1 0 -1 4194560 11 12 13 14 250 50 8 9 20 0 1 0 5";
        assert_eq!(processor_in(stat), Duration::from_secs(3));
        assert!(Used::by(std::process::id()).waited >= Duration::ZERO);
    }

    #[test]
    fn programs_are_files_that_can_be_carried_out() {
        let maps = "1000-3000 r--p 0 00:00 1 /bin/a\n3000-4000 r-xp 0 00:00 1 /bin/a\n\
                    5000-9000 rw-s 0 00:00 2 /store/journal\n9000-a000 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(program_bytes_in(maps), 0x3000);
    }

    #[test]
    fn the_longest_wait_of_a_thread_counts_from_the_last_reading_before() {
        let mut delays = Delays::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let millis = Duration::from_millis;
        for (now, waited) in [(0, 5), (100, 7), (200, 30)] {
            delays.note("1".to_string(), at(now), millis(waited));
        }
        delays.note("2".to_string(), at(200), millis(9));
        assert_eq!(delays.since(at(50)), millis(25));
        assert_eq!(delays.since(at(100)), millis(23));
        assert_eq!(delays.since(at(150)), millis(23));
        assert_eq!(delays.since(at(300)), millis(0));
    }
}
