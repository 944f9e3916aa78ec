//! A memory cgroup for one engine, made by the process that compares and entered by the engine's.
//!
//! Invariants:
//! 1. The limit counts the page cache: an engine that leaves its caching to the kernel has no more memory
//!    than one that does it itself.
//! 2. The group is removed when it is dropped, its process being gone.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Which interface there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy.
    Two,
}

/// A memory cgroup with a limit.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Makes a group below the one this process is in.
    ///
    /// # Errors
    /// Why it cannot be made here.
    pub fn new(name: &str, limit_bytes: u64) -> Result<Cgroup, String> {
        let own = fs::read_to_string("/proc/self/cgroup")
            .map_err(|error| format!("/proc/self/cgroup: {error}"))?;
        let (version, parents) = parents(&own, Path::new(ROOT))
            .ok_or("no memory controller in /proc/self/cgroup or /sys/fs/cgroup")?;
        let mut failures = Vec::new();
        for parent in parents {
            let dir = parent.join(name);
            match fs::create_dir(&dir) {
                Ok(()) => {
                    let group = Cgroup { dir, version };
                    group.limit(limit_bytes)?;
                    return Ok(group);
                }
                Err(error) => failures.push(format!("{}: {error}", dir.display())),
            }
        }
        Err(failures.join("; "))
    }

    fn limit(&self, bytes: u64) -> Result<(), String> {
        let set = |file: &str| {
            fs::write(self.dir.join(file), bytes.to_string())
                .map_err(|error| format!("{}: {error}", self.dir.join(file).display()))
        };
        match self.version {
            Version::One => set("memory.limit_in_bytes")?,
            Version::Two => {
                set("memory.max")?;
                // Where there is swap, it is not to be used.
                let _ = fs::write(self.dir.join("memory.swap.max"), "0");
            }
        }
        Ok(())
    }

    /// Where a process writes its id to enter.
    pub fn processes(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The file with the peak of memory used.
    pub fn peak(&self) -> PathBuf {
        self.dir.join(match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        })
    }

    /// Whether the kernel has killed a process for reaching the limit.
    pub fn has_killed(&self) -> bool {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|n| n.trim() != "0"))
    }

    /// Which interface it is made by.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What is left of the page cache may hold it for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Where a group may be made: below this process's own, or else below the root.
fn parents(own: &str, root: &Path) -> Option<(Version, Vec<PathBuf>)> {
    let below = |base: PathBuf, path: &str| vec![base.join(path.trim_start_matches('/')), base];
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.split(',').any(|controller| controller == "memory") {
            return Some((Version::One, below(root.join("memory"), path)));
        }
    }
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The second version has no processes beside groups, but at the root; so first the parent.
    let own = root.join(path.trim_start_matches('/'));
    let mut parents: Vec<PathBuf> = own.parent().map(Path::to_path_buf).into_iter().collect();
    parents.retain(|parent| parent.starts_with(root));
    parents.push(root.to_path_buf());
    Some((Version::Two, parents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_follows_from_what_the_process_is_in() {
        let root = Path::new("/cg");
        let one = "7:blkio:/\n4:cpu,memory:/a/b\n0::/\n";
        let places = vec![PathBuf::from("/cg/memory/a/b"), PathBuf::from("/cg/memory")];
        assert_eq!(parents(one, root), Some((Version::One, places)));
        let places = vec![PathBuf::from("/cg/user"), PathBuf::from("/cg")];
        assert_eq!(parents("0::/user/scope\n", root), Some((Version::Two, places)));
        assert_eq!(parents("", root), None);
    }
}
