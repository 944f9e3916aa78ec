//! The counted processes, and the counts that follow from them.
//!
//! Invariants:
//! 1. A count is the difference of two processes of the same kind and stage, over the operations of the
//!    one that did any.
//! 2. One failure fails the whole run. No count is invented.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use spinney::TreeKind;

use super::counter::{Counted, Counter};
use super::is_wanted;
use super::record::Count;
use super::store::Stage;
use super::workload::{BACKGROUND, WORKLOADS, Workload};

/// One process to be counted.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The tree's kind.
    pub kind: TreeKind,
    /// The store that is made.
    pub stage: Stage,
    /// The work on it; `None`: nothing.
    pub workload: Option<&'static Workload>,
}

impl Task {
    /// Runs it.
    ///
    /// # Errors
    /// The process's message, if it failed.
    pub fn count(&self, counter: &Counter) -> Result<Counted, String> {
        let mut arguments = vec!["counted", self.kind.name(), self.stage.name()];
        arguments.extend(self.workload.map(|workload| workload.name));
        counter.count(&arguments).map_err(|what| format!("{}: {what}", arguments[1..].join(" ")))
    }
}

/// What it takes to count these workloads, or all if none is named: for each stage the store alone, and each
/// of its workloads.
pub fn tasks(kinds: &[TreeKind], wanted: &[String]) -> Vec<Task> {
    let is_needed = |workload: &&Workload| {
        let for_background =
            wanted.iter().any(|name| name == BACKGROUND.0) && BACKGROUND.1.contains(&workload.name);
        for_background || is_wanted(workload.name, wanted)
    };
    let mut tasks = Vec::new();
    for &kind in kinds {
        let mut stages = BTreeSet::new();
        for workload in WORKLOADS.iter().filter(is_needed) {
            let stage = workload.stage;
            if stages.insert(stage) {
                tasks.push(Task { kind, stage, workload: None });
            }
            tasks.push(Task { kind, stage, workload: Some(workload) });
        }
    }
    tasks
}

/// Carries the tasks out, as many at a time as there are processors, and says how far it is.
///
/// # Errors
/// The failure of one; no other is begun then.
pub fn carry_out(
    tasks: &[Task],
    count: impl Fn(&Task) -> Result<Counted, String> + Sync,
) -> Result<Vec<Counted>, String> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(vec![None; tasks.len()]);
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(place) else { return };
            let result = count(task);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            let what = task.workload.map_or(task.stage.name(), |workload| workload.name);
            eprintln!("{done:>3} of {}: {} {what}", tasks.len(), task.kind);
            if result.is_err() {
                // The others need not be begun.
                next.store(tasks.len(), Ordering::Relaxed);
            }
            if let Ok(mut results) = results.lock() {
                results[place] = Some(result);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from).min(tasks.len()) {
            scope.spawn(work);
        }
    });
    let results = results.into_inner().map_err(|_| "a thread that counted is gone".to_string())?;
    // The failure, if there is one, and not what was left undone for it.
    if let Some(Err(what)) = results.iter().flatten().find(|result| result.is_err()) {
        return Err(what.clone());
    }
    let all: Option<Vec<_>> = results.into_iter().collect();
    all.ok_or("a thread that counted is gone".to_string())?.into_iter().collect()
}

/// Instructions per operation: a workload's count minus its stage's count, over the number of operations.
///
/// # Errors
/// A count that cannot be: a workload that did nothing, or took less than nothing.
pub fn evaluate(tasks: &[Task], counted: &[Counted]) -> Result<Vec<Count>, String> {
    let mut bases = BTreeMap::new();
    let mut exact: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let mut counts = Vec::new();
    for (task, counted) in tasks.iter().zip(counted) {
        let kind = task.kind.name();
        let Some(workload) = task.workload else {
            bases.insert((kind, task.stage), counted.instructions);
            continue;
        };
        let base = bases.get(&(kind, task.stage)).copied();
        let more = base.and_then(|base| counted.instructions.checked_sub(base));
        let more = more.filter(|_| counted.operations > 0).ok_or_else(|| {
            format!("{kind} {}: {counted:?}, and {base:?} for the store", workload.name)
        })?;
        let mut add = |name: &'static str, instructions: f64| {
            exact.insert((kind, name), instructions);
            let (kind, workload) = (kind.to_string(), name.to_string());
            counts.push(Count { kind, workload, instructions: instructions.round() as u64 });
        };
        add(workload.name, more as f64 / counted.operations as f64);
    }
    for kind in tasks.iter().map(|task| task.kind.name()).collect::<BTreeSet<_>>() {
        let (name, [more, less]) = BACKGROUND;
        if let (Some(more), Some(less)) = (exact.get(&(kind, more)), exact.get(&(kind, less))) {
            let instructions = (more - less).max(0.0).round() as u64;
            let (kind, workload) = (kind.to_string(), name.to_string());
            counts.push(Count { kind, workload, instructions });
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every store takes 1,000,000 instructions to make; `get` takes 500 an operation, `put` 300, others 900.
    fn counted(task: &Task) -> Result<Counted, String> {
        let operations = task.workload.map_or(0, |_| 1000);
        let each = match task.workload.map(|workload| workload.name) {
            Some("get") => 500,
            Some("put") => 300,
            _ => 900,
        };
        Ok(Counted { instructions: 1_000_000 + each * operations, operations })
    }

    fn named(counts: &[Count], name: &str) -> u64 {
        counts.iter().find(|count| count.workload == name).unwrap().instructions
    }

    #[test]
    fn counts_are_what_workloads_took_beyond_their_store() {
        let tasks = tasks(&TreeKind::ALL, &[]);
        let counts = evaluate(&tasks, &carry_out(&tasks, counted).unwrap()).unwrap();
        assert_eq!(counts.len(), TreeKind::ALL.len() * (WORKLOADS.len() + 1));
        assert_eq!((named(&counts, "get"), named(&counts, "put")), (500, 300));
        assert_eq!((named(&counts, "load"), named(&counts, BACKGROUND.0)), (900, 600));
    }

    #[test]
    fn only_what_is_needed_is_carried_out() {
        let names = |wanted: &str| -> Vec<Option<&str>> {
            let tasks = tasks(&[TreeKind::Stb], &[wanted.to_string()]);
            tasks.iter().map(|task| task.workload.map(|workload| workload.name)).collect()
        };
        assert_eq!(names("get"), [None, Some("get")]);
        assert_eq!(names(BACKGROUND.0), [None, Some("put"), None, Some("load")]);
    }

    #[test]
    fn a_failure_is_no_count() {
        let tasks = tasks(&TreeKind::ALL, &[]);
        let fails = |task: &Task| match task.workload {
            Some(workload) if workload.name == "scan10" => Err("it broke".to_string()),
            _ => counted(task),
        };
        assert_eq!(carry_out(&tasks, fails).unwrap_err(), "it broke");
        let mut results = carry_out(&tasks, counted).unwrap();
        results[1].instructions = 999_999;
        assert!(evaluate(&tasks, &results).is_err(), "less than the store alone");
        results[1] = Counted { instructions: 2_000_000, operations: 0 };
        assert!(evaluate(&tasks, &results).is_err(), "no operations");
    }
}
