//! The plan of a child's work in its life, in a file that its parent writes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::look::Extent;
use super::script::Script;
use crate::random::Random;

/// The plan's name in a run's directory.
const PLAN: &str = "plan.json";

/// A child's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The script's seed, trees and bytes.
    pub script: (u64, String, u64),
    /// Which life this is.
    pub life: u64,
    /// The store's memory budget.
    pub budget: u64,
    /// The last step of each writer.
    pub steps: Vec<u32>,
    /// What is looked at first.
    pub extent: Extent,
    /// Iterators that are opened and held.
    pub iterators: usize,
    /// Whether snapshots are held and read again.
    pub snapshots: bool,
    /// Threads that scan.
    pub scanners: usize,
    /// Whether keyspaces are flushed, compacted and checked by hand.
    pub upkeep: bool,
    /// Whether the store is copied.
    pub copies: bool,
    /// Writers end after so long; 0: never.
    pub work_millis: u64,
    /// And then the store is closed, rather than left idle.
    pub closes: bool,
    /// Where the process enters its memory cgroup.
    pub cgroup: Option<PathBuf>,
}

impl Plan {
    /// Draws a life.
    pub fn random(script: &Script, life: u64, random: &mut Random, full: bool) -> Plan {
        let budget = [16, 24, 32, 64, 64, 128, 256][random.below(7)] << 20;
        let (idle, closes) = match random.below(8) {
            0 | 1 => (true, false),
            2 => (false, true),
            _ => (false, false),
        };
        let millis = 1500 + random.below(6000) as u64;
        Plan {
            script: (script.seed, script.kinds.to_string(), script.bytes),
            life,
            budget,
            steps: Vec::new(),
            extent: Extent {
                under_way: Vec::new(),
                created: false,
                sample: 2000,
                full,
                draw: random.draw(),
            },
            iterators: [0, 0, 8, 300, 1000][random.below(5)],
            snapshots: random.one_in(3),
            scanners: [0, 0, 1, 8][random.below(4)],
            upkeep: random.one_in(2),
            copies: random.one_in(4),
            work_millis: if idle || closes { millis } else { 0 },
            closes,
            cgroup: None,
        }
    }

    /// Whether versions of the store are held on to, so that space cannot be given back.
    pub fn pins(&self) -> bool {
        self.iterators > 0 || self.snapshots || self.scanners > 0 || self.copies
    }

    /// Writes it into a directory.
    ///
    /// # Errors
    /// As the file system says.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let extent = &self.extent;
        let all = json!({
            "script": [self.script.0, self.script.1, self.script.2],
            "life": self.life, "budget": self.budget, "steps": self.steps,
            "extent": {
                "under_way": extent.under_way, "created": extent.created,
                "sample": extent.sample, "full": extent.full, "draw": extent.draw,
            },
            "iterators": self.iterators, "snapshots": self.snapshots, "scanners": self.scanners,
            "upkeep": self.upkeep, "copies": self.copies, "work_millis": self.work_millis,
            "closes": self.closes, "cgroup": self.cgroup,
        });
        fs::write(dir.join(PLAN), all.to_string())
    }

    /// Reads the one in a directory.
    ///
    /// # Errors
    /// As the file system says, or if it is no plan.
    pub fn load(dir: &Path) -> io::Result<Plan> {
        let path = dir.join(PLAN);
        let wrong = || io::Error::other(format!("{} is no plan", path.display()));
        let all: Value = serde_json::from_slice(&fs::read(&path)?)?;
        Plan::parse(&all).ok_or_else(wrong)
    }

    fn parse(all: &Value) -> Option<Plan> {
        let small = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let script = &all["script"];
        let extent = &all["extent"];
        let under_way = extent["under_way"].as_array()?.iter().map(|step| match step {
            Value::Null => Some(None),
            step => small(step).map(Some),
        });
        Some(Plan {
            script: (script[0].as_u64()?, script[1].as_str()?.to_string(), script[2].as_u64()?),
            life: all["life"].as_u64()?,
            budget: all["budget"].as_u64()?,
            steps: all["steps"].as_array()?.iter().map(small).collect::<Option<_>>()?,
            extent: Extent {
                under_way: under_way.collect::<Option<_>>()?,
                created: extent["created"].as_bool()?,
                sample: count(&extent["sample"])?,
                full: extent["full"].as_bool()?,
                draw: extent["draw"].as_u64()?,
            },
            iterators: count(&all["iterators"])?,
            snapshots: all["snapshots"].as_bool()?,
            scanners: count(&all["scanners"])?,
            upkeep: all["upkeep"].as_bool()?,
            copies: all["copies"].as_bool()?,
            work_millis: all["work_millis"].as_u64()?,
            closes: all["closes"].as_bool()?,
            cgroup: all["cgroup"].as_str().map(PathBuf::from),
        })
    }

    /// The script.
    pub fn script(&self) -> Option<Script> {
        Some(Script::new(self.script.0, self.script.1.parse().ok()?, self.script.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kinds;

    #[test]
    fn it_is_read_as_it_was_written() {
        let script = Script::new(3, Kinds::Mixed, 1 << 20);
        let mut random = Random::new(&[1]);
        let dir = std::env::temp_dir().join(format!("spinney-plan-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for life in 0..20 {
            let mut plan = Plan::random(&script, life, &mut random, life % 2 == 0);
            plan.steps = vec![3, 4];
            plan.extent.under_way = vec![None, Some(5)];
            plan.cgroup = (life % 3 == 0).then(|| PathBuf::from("/a/b"));
            plan.save(&dir).unwrap();
            assert_eq!(Plan::load(&dir).unwrap(), plan);
            assert_eq!(plan.script().unwrap().spaces.len(), script.spaces.len());
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
