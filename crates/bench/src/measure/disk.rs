//! The disk under a directory: the space used, and the counters of its device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The bytes that the files below a directory take on the disk (not their length: files may have holes).
pub fn used_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => used_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        // Gone since the directory was read.
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// Requests that a device has done since the machine was started, for all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl DeviceCounters {
    /// Of the device that holds the directory, where the system tells.
    pub fn of(dir: &Path) -> Option<DeviceCounters> {
        let device = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        DeviceCounters::parse(
            &fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?,
        )
    }

    fn parse(text: &str) -> Option<DeviceCounters> {
        let fields: Vec<u64> =
            text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(DeviceCounters { reads: *fields.first()?, writes: *fields.get(4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_space_is_that_of_all_files_and_not_of_holes() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/b"), vec![1; 100_000]).unwrap();
        let hole = fs::File::create(dir.path().join("hole")).unwrap();
        hole.set_len(1 << 30).unwrap();
        hole.sync_all().unwrap();
        fs::File::open(dir.path().join("a/b")).unwrap().sync_all().unwrap();
        let used = used_bytes(dir.path());
        assert!((100_000..1_000_000).contains(&used), "{used}");
    }

    #[test]
    fn the_counters_are_the_first_and_the_fifth() {
        let text = "  11  2 33  4   55 6 77 8 9 10 11 12 13 14 15 16 17\n";
        assert_eq!(DeviceCounters::parse(text), Some(DeviceCounters { reads: 11, writes: 55 }));
        assert_eq!(DeviceCounters::parse("1 2"), None);
    }
}
