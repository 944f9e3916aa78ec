//! The work on a store between two crashes, and its operations on the disk.

use std::path::PathBuf;
use std::sync::Arc;

use crate::action::Action;
use crate::disk::{Disk, Op};
use crate::generate::{Generator, Purpose};
use crate::model::{Checkpoint, History};
use crate::session::{Failure, Inherited, Session, World};
use crate::sizes::Sizes;
use crate::space;
use crate::vfs::CrashVfs;

/// Where the store is.
pub const STORE: &str = "/data/store";

/// What was done from one crash to the next.
pub struct Generation {
    /// The disk before.
    pub disk: Disk,
    /// What was done to the store.
    pub actions: Vec<Action>,
    /// What that did to the disk.
    pub log: Vec<Op>,
    /// How many operations there were before the store was closed.
    pub worked: usize,
    /// What was done when, and what the store should hold.
    pub history: History,
}

/// What is done to the store of a run in its generation of that number.
pub fn actions(seed: u64, number: usize, count: usize) -> Vec<Action> {
    Generator::new(Purpose::Crash, seed, number as u64).list(count)
}

/// Opens the store on `disk` (creates it if nothing is inherited), works on it, and closes it.
/// Where it `settles`, all handles are dropped before that, all background work is done, and the
/// store's directory must hold what the store knows and nothing else.
///
/// # Errors
/// Whatever the store fails with: nothing here should fail.
pub fn run(
    sizes: Sizes,
    number: usize,
    disk: &Disk,
    inherited: Option<Vec<Inherited>>,
    checkpoints: Vec<Checkpoint>,
    actions: Vec<Action>,
    settles: bool,
) -> Result<Generation, String> {
    let vfs = CrashVfs::new(disk);
    let counted = vfs.clone();
    let world = World {
        vfs: Arc::new(vfs.clone()),
        moment: Box::new(move || counted.ops()),
        dir: PathBuf::from(STORE),
        copies: format!("/data/copy-{number}"),
        keep_copies: true,
    };
    let mut session = Session::closed(sizes, world, inherited.as_deref(), checkpoints);
    let mut worked = 0;
    let mut work = || -> Result<(), Failure> {
        session.open_store(inherited.is_none())?;
        session.run(&actions)?;
        worked = vfs.ops();
        session.let_go();
        if settles && let Some(db) = session.database() {
            let settled = space::check_settled(&vfs, STORE, db);
            settled.map_err(|what| Failure { action: None, what, error: None })?;
        }
        session.close()
    };
    let done = work();
    let history = session.into_history();
    let at = vfs.ops();
    done.map_err(|failure| {
        let trace = history.trace_before(&actions, at);
        format!("without any crash, at op {at}: {failure}\n{trace}")
    })?;
    Ok(Generation { disk: disk.clone(), actions, log: vfs.take_log(), worked, history })
}
