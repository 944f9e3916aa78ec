//! Files of the operating system with a kernel that behaves unlike this machine's: it accepts
//! `O_DIRECT` and refuses the reads, and it reports lost bytes only once. Used by several threads.

use std::path::Path;
use std::sync::Barrier;
use std::thread;

use spinney::Result;
use spinney::planted::quirks;
use spinney::vfs::{Access, AlignedBuf, PosixVfs, Vfs};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};

const THREADS: usize = 3;
const UNIT_BYTES: usize = 4096;
const ROUNDS: u64 = 40;

/// A few rounds of first reads and of syncs at once.
pub(super) fn run(seed: u64, _kinds: Kinds) -> Outcome {
    let name = format!("spinney-system-{}-{seed}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    quirks::set(true, true);
    let went = std::fs::create_dir_all(&dir)
        .map_err(|error| error.to_string())
        .and_then(|()| (0..ROUNDS).try_for_each(|round| meet(&dir, round)));
    quirks::set(false, false);
    let _ = std::fs::remove_dir_all(&dir);
    let mut outcome = Outcome { operations: ROUNDS, ..Outcome::default() };
    if let Err(what) = went {
        outcome.violations.push(Violation { what, command: String::new() });
    }
    outcome
}

fn meet(dir: &Path, round: u64) -> std::result::Result<(), String> {
    let vfs = PosixVfs::new();
    let path = dir.join(format!("read-{round}"));
    std::fs::write(&path, vec![7; THREADS * UNIT_BYTES]).map_err(|error| error.to_string())?;
    let file = vfs.open(&path, Access::Direct, true).map_err(|error| error.to_string())?;
    let read = at_once(&|thread| {
        let mut buf = AlignedBuf::new(UNIT_BYTES);
        file.read_at((thread * UNIT_BYTES) as u64, &mut buf)
    });
    if let Some(error) = read.into_iter().find_map(Result::err) {
        return Err(format!("a first read of a file that is not direct: {error}"));
    }
    let path = dir.join(format!("sync-{round}"));
    let mapped = vfs.create_mapped(&path, 2 * UNIT_BYTES as u64).map_err(|e| e.to_string())?;
    mapped.write(0, b"lost");
    match at_once(&|_| mapped.sync()).iter().all(Result::is_err) {
        true => Ok(()),
        false => Err("a sync of bytes that were lost has passed".to_string()),
    }
}

/// Does it in several threads, and returns how that went.
fn at_once(what: &(dyn Fn(usize) -> Result<()> + Sync)) -> Vec<Result<()>> {
    let together = Barrier::new(THREADS);
    let mut results: Vec<Option<Result<()>>> = (0..THREADS).map(|_| None).collect();
    thread::scope(|scope| {
        for (thread, result) in results.iter_mut().enumerate() {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                *result = Some(what(thread));
            });
        }
    });
    results.into_iter().flatten().collect()
}
