//! Files with whose calls something else happens: how a story of several threads is told in one
//! order.

use std::path::Path;
use std::sync::Mutex;

use spinney_sim::vfs::{WatchedVfs, Watcher};

/// A call that a file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// A write, before it is done.
    Write,
    /// A sync, once it is done.
    Synced,
}

type Happening = Box<dyn FnOnce(&str) + Send>;

/// What is to happen, and with which call: the first of its kind on a file whose name contains
/// that.
#[derive(Default)]
pub(crate) struct Plan(Mutex<Vec<(Call, &'static str, Happening)>>);

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}

impl Plan {
    /// With the next such call on a file whose name contains `part` this happens, on its thread; it
    /// is told the name.
    pub(crate) fn with_next(
        &self,
        call: Call,
        part: &'static str,
        happening: impl FnOnce(&str) + Send + 'static,
    ) {
        self.0.lock().unwrap().push((call, part, Box::new(happening)));
    }

    /// Whether all that was to happen has.
    pub(crate) fn all_happened(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    fn meet(&self, call: Call, path: &Path) {
        let name = path.file_name().unwrap().to_string_lossy();
        let due = {
            let mut plan = self.0.lock().unwrap();
            let due =
                plan.iter().position(|(planned, part, _)| *planned == call && name.contains(part));
            due.map(|at| plan.remove(at))
        };
        // The next call of its kind is free to pass meanwhile.
        if let Some((_, _, happening)) = due {
            happening(&name);
        }
    }
}

impl Watcher for Plan {
    const FILES: bool = true;

    fn writing(&self, path: &Path) {
        self.meet(Call::Write, path);
    }

    fn synced(&self, path: &Path) {
        self.meet(Call::Synced, path);
    }
}

/// A file system that passes everything on, and makes happen what is planned.
pub(crate) type MeetingVfs = WatchedVfs<Plan>;
