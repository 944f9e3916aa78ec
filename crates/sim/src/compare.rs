//! The model regime: lists of actions on stores in memory, with every read compared.
//!
//! Invariants:
//! 1. A run is identified by its seed, its length and, if actions were removed, by the remaining
//!    ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spinney::vfs::{MemoryVfs, Vfs};

use crate::action::Action;
use crate::generate::{Generator, Purpose};
use crate::keep::Keep;
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::session::{Failure, Session, World};
use crate::shrink::shrink;
use crate::sizes::Sizes;
use crate::{counters, space};

/// How much a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Actions in a list, those that create keyspaces not counted.
    pub actions: usize,
    /// How long a list that fails may be cut down.
    pub shrink_for: Duration,
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { actions: 3000, shrink_for: Duration::from_secs(30) }
    }
}

/// Carries the list of a seed out, or the part of it that is kept; a failure is cut down.
pub fn run(seed: u64, kinds: Kinds, extent: Extent, keep: Option<&Keep>) -> Outcome {
    let sizes = Sizes::new(seed, kinds);
    let all = Generator::new(Purpose::Compare, seed, 0).list(extent.actions);
    let list = keep.map_or_else(|| all.clone(), |keep| keep.of(&all));
    let mut outcome = Outcome::default();
    outcome.count("lists");
    outcome.operations = list.iter().map(Action::operations).sum();
    if keep.is_none() && seed.is_multiple_of(space::EVERY) && !kinds.is_for_tests() {
        outcome.add(space::run(seed, kinds));
    }
    if keep.is_none() && seed % space::EVERY == counters::REMAINDER {
        outcome.add(counters::run(seed, kinds));
    }
    let Err(failure) = carry_out(sizes, &list) else { return outcome };
    let numbers = keep.map_or_else(|| (0..all.len()).collect(), |keep| keep.numbers().to_vec());
    outcome.violations.push(explain(sizes, seed, extent, &list, &numbers, &failure));
    outcome
}

/// Cuts down the `list` that fails, whose actions have these `numbers`.
fn explain(
    sizes: Sizes,
    seed: u64,
    extent: Extent,
    list: &[Action],
    numbers: &[usize],
    failure: &Failure,
) -> Violation {
    // What comes after the failure has nothing to do with it.
    let until = failure.action.map_or(list.len(), |number| list.len().min(number + 1));
    let list = &list[..until];
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let shrunk = shrink(list, extent.shrink_for, |list| carry_out(sizes, list).is_err());
    let last = carry_out(sizes, &shrunk.actions);
    std::panic::set_hook(hook);
    let keep = Keep::new(shrunk.keep.numbers().iter().map(|&number| numbers[number]).collect());
    let mut what = format!("{failure}\nin short ({} lists tried), {sizes:?}:\n", shrunk.tried);
    for (number, action) in shrunk.actions.iter().enumerate() {
        what += &format!("  {number}: {action}\n");
    }
    what += &match last {
        Ok(()) => "which fails only sometimes".to_string(),
        Err(failure) => failure.to_string(),
    };
    let kinds = sizes.kinds;
    let mut command = format!("spinney-sim model --kind {kinds} --seed {seed} --runs 1");
    if extent.actions != Extent::default().actions {
        command += &format!(" --actions {}", extent.actions);
    }
    command += &format!(" --keep {keep}");
    Violation { what, command }
}

/// Carries a list out on a new store in memory.
///
/// # Errors
/// The first failure; a panic is one.
pub fn carry_out(sizes: Sizes, list: &[Action]) -> Result<(), Failure> {
    let at = std::cell::Cell::new(None);
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut session = Session::open(sizes, world(Arc::new(MemoryVfs::new())), None, vec![])?;
        for (number, action) in list.iter().enumerate() {
            at.set(Some(number));
            session.apply(number, action)?;
        }
        at.set(None);
        session.close()
    }));
    done.unwrap_or_else(|panic| {
        Err(Failure { action: at.get(), what: panic_text(&*panic), error: None })
    })
}

/// A world without moments.
pub fn world(vfs: Arc<dyn Vfs>) -> World {
    World {
        vfs,
        moment: Box::new(|| 0),
        dir: PathBuf::from("/store"),
        copies: "/copy".to_string(),
        keep_copies: false,
    }
}
