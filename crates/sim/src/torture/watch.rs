//! The thread that watches a child: it samples memory and descriptors, and kills the child at the
//! planned moment.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::process::{Delays, Memory, descriptors};

/// A child that says nothing for so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How often memory is looked at.
const GLANCE: Duration = Duration::from_millis(20);
/// When a child is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// So long after its start.
    AfterStart(Duration),
    /// So long after it began to work.
    AfterWorking(Duration),
    /// Once it has been idle for long enough.
    Idle,
    /// It closes the store and ends.
    Never,
}

/// What the thread that watches and the one that listens tell each other.
#[derive(Debug, Default)]
pub struct Signals {
    /// The writers are at work.
    pub working: AtomicBool,
    /// It has been idle for long enough.
    pub idle: AtomicBool,
    /// It has said its last.
    pub ended: AtomicBool,
    /// It has been killed.
    pub kill: AtomicBool,
    /// When it last said something, in milliseconds after its start.
    pub heard: AtomicU64,
    /// The most memory that was resident.
    pub peak: AtomicU64,
    /// The most descriptors.
    pub descriptors: AtomicU64,
    /// It said nothing for too long.
    pub hung: AtomicBool,
    /// How long its threads waited for cores.
    pub delays: Mutex<Delays>,
}

impl Signals {
    /// Looks at a process until it has ended, and kills it when its moment has come.
    pub fn watch(&self, process: u32, moment: Moment, started: Instant) {
        let mut working = None;
        let mut glances = 0_u64;
        while !self.ended.load(Ordering::Relaxed) {
            if let Some(memory) = Memory::of(process) {
                self.peak.fetch_max(memory.peak, Ordering::Relaxed);
            }
            if glances.is_multiple_of(5) {
                self.descriptors.fetch_max(descriptors(process), Ordering::Relaxed);
                self.delays.lock().unwrap_or_else(|held| held.into_inner()).read(process);
            }
            glances += 1;
            if self.working.load(Ordering::Relaxed) {
                working.get_or_insert(Instant::now());
            }
            let due = match moment {
                Moment::AfterStart(after) => Some(started + after),
                Moment::AfterWorking(after) => working.map(|working| working + after),
                Moment::Idle => self.idle.load(Ordering::Relaxed).then_some(started),
                Moment::Never => None,
            };
            let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
            let is_hung = started.elapsed().saturating_sub(heard) > PATIENCE;
            self.hung.fetch_or(is_hung, Ordering::Relaxed);
            let now = Instant::now();
            if is_hung || due.is_some_and(|due| due <= now) {
                self.kill.store(true, Ordering::Relaxed);
                kill(process);
                return;
            }
            let rest = due.map_or(GLANCE, |due| due.saturating_duration_since(now).min(GLANCE));
            std::thread::sleep(rest);
        }
    }
}

/// Kills a process that nobody has waited for yet.
pub fn kill(process: u32) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // It may be dead already; its parent has not waited for it yet, so the number is still its
        // own.
        let _ = kill_process(process, Signal::KILL);
    }
}
