//! Tries to make stores lie: simulated crashes and faults, models, real threads, real kills,
//! damage.
//!
//! What all regimes share:
//! 1. [`content`] holds bytes of a file so that copies are cheap, [`disk`] says what a crash may
//!    leave of a sequence of operations, [`fault`] what else a disk may do: fail, be full, lie.
//!    [`vfs`] runs a store on such a disk and records the operations.
//! 2. [`action`] is what can be done to a store, [`generate`] draws lists of it, [`sizes`] is how
//!    the store is opened, [`model`] is what it should hold after each commit, and what was
//!    promised when.
//! 3. [`session`] carries actions out on a store and on the model, and compares what is read.
//!    [`shrink`] cuts a list that fails down, to the actions that a [`keep`] names.
//! 4. [`command`] is the command line; [`kinds`] and [`outcome`] are what a run is of and comes to.
//!
//! The regimes:
//! 1. [`compare`] (`spinney-sim model`) runs sessions without crashes.
//! 2. [`crash`]: [`workload`] is a session that a crash will end, [`verify`] opens what the crash
//!    has left and judges it, reading all of it ([`reading`]) and counting its files ([`space`]).
//! 3. [`faults`] strikes each operation of a run, and judges what the store makes of it.
//! 4. [`bitflip`] and [`mangle`]: [`image`] makes small stores to be damaged, [`answers`] asks them
//!    everything, [`damage`] judges what they say.
//! 5. [`fuzz`] feeds decoders with inputs that [`mutate`] makes, under [`allocation`]'s eye.
//! 6. [`concurrent`] (`spinney-sim threads`) lets real threads loose on a store and judges what
//!    they saw.
//! 7. [`kill`] kills real processes.
//! 8. [`torture`] kills processes that work on stores of gigabytes, and judges memory, space and
//!    time too.
//! 9. [`promises`] judges space, memory and work to open in memory, where everything is repeatable.
//! 10. [`callbacks`]: code of others that panics.
//! 11. [`views`]: threads that overwrite the same keys, and readers that compare what they see.
//! 12. `planted` (in builds with `--cfg planted`) sees whether all these find the bugs that are
//!     planted into the engine.

pub mod action;
pub mod allocation;
pub mod answers;
pub mod bitflip;
pub mod callbacks;
pub mod command;
pub mod compare;
pub mod concurrent;
pub mod content;
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
pub mod verify;
pub mod vfs;
pub mod views;
pub mod workload;
