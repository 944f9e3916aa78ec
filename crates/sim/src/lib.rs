//! Tests of Spinney's promises: simulated crashes and faults, models, real threads, real kills,
//! damage.
//!
//! The common parts:
//! 1. [`content`] has the bytes of a file with cheap copies. [`disk`] models the results of a
//!    crash, and [`fault`] other failures of a disk: errors, lack of space, lies. [`vfs`] runs a
//!    store on such a disk and records the operations.
//! 2. [`action`] is an operation on a store, [`generate`] draws lists of them, [`sizes`] has the
//!    options of the store, [`model`] its expected content after each commit and the promises at
//!    each moment.
//! 3. [`session`] applies actions to a store and to the model, and compares reads. [`shrink`]
//!    shortens a failing list to the actions that a [`keep`] names.
//! 4. [`command`] is the command line. [`kinds`] are the tree kinds of a run, [`outcome`] its
//!    result.
//!
//! The regimes:
//! 1. [`compare`] (`spinney-sim model`) runs sessions without crashes.
//! 2. [`crash`]: [`workload`] is a session that ends with a crash. [`verify`] opens the result and
//!    judges it, by reading all of it ([`reading`]) and counting its files ([`space`]).
//! 3. [`faults`] injects a fault into each operation of a run and judges the store.
//! 4. [`bitflip`] and [`mangle`]: [`image`] makes small stores to be damaged, [`answers`] reads
//!    them in every way, [`damage`] judges the answers.
//! 5. [`fuzz`] feeds decoders with inputs from [`mutate`], and limits their memory with
//!    [`allocation`].
//! 6. [`concurrent`] (`spinney-sim threads`) runs real threads on a store and judges what they saw.
//! 7. [`kill`] kills real processes.
//! 8. [`torture`] kills processes that work on stores of gigabytes, and also judges memory, space
//!    and time.
//! 9. [`promises`] judges space, memory and opening work in memory, where everything is repeatable.
//! 10. [`callbacks`]: user code that panics.
//! 11. [`views`]: threads that overwrite the same keys, and readers that compare what they see.
//! 12. [`transactions`]: threads whose transactions append to lists and read them.
//! 13. `planted` (in builds with `--cfg planted`) measures whether these regimes find planted bugs.

pub mod action;
pub mod allocation;
pub mod answers;
pub mod bitflip;
pub mod callbacks;
pub mod command;
pub mod compare;
pub mod concurrent;
pub mod content;
pub mod counters;
pub mod crash;
pub mod damage;
pub mod disk;
pub mod fault;
pub mod faults;
pub mod fuzz;
pub mod generate;
pub mod image;
pub mod keep;
pub mod kill;
pub mod kinds;
pub mod mangle;
pub mod memory;
pub mod model;
pub mod mutate;
pub mod outcome;
#[cfg(planted)]
pub mod planted;
pub mod promises;
pub mod random;
pub mod reading;
pub mod session;
pub mod shrink;
pub mod sizes;
pub mod space;
pub mod torture;
pub mod transactions;
pub mod verify;
pub mod vfs;
pub mod views;
pub mod workload;
