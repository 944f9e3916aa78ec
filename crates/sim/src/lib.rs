//! Simulated crashes: a store runs on a file system in memory that records every operation; the
//! harness then builds what a disk may hold had the machine stopped at any of them, opens that, and
//! compares it with what was promised.
//!
//! 1. [`content`] holds bytes of a file so that copies are cheap.
//! 2. [`disk`] says what a crash may leave of a sequence of operations.
//! 3. [`vfs`] runs a store and records the operations.
//! 4. [`action`] is what can be done to a store, [`generate`] draws lists of it, [`sizes`] is how the
//!    store is opened.
//! 5. [`model`] is what the store should hold after each commit, and what was promised when.
//! 6. [`session`] carries actions out on a store and on the model, and compares what is read.
//! 7. [`workload`] is a session that a crash will end, [`verify`] opens what the crash has left and
//!    judges it, reading all of it ([`reading`]) and counting its files ([`space`]), [`crash`] puts
//!    these together, reproducibly from a seed.
//! 8. [`compare`] runs sessions without crashes; [`shrink`] cuts a list that fails down, to the actions
//!    that a [`keep`] names.
//! 9. [`image`] makes small stores to be damaged, [`answers`] asks them everything, [`damage`] judges
//!    what they say, [`bitflip`] flips every bit of them.
//! 10. [`concurrent`] lets threads loose on a store and judges what they saw.
//! 11. `planted` (in builds with `--cfg planted`) sees whether all these find the bugs that are planted
//!     into the engine.
//! 12. [`command`] is the command line; [`kinds`] and [`outcome`] are what all regimes share.

pub mod action;
pub mod answers;
pub mod bitflip;
pub mod command;
pub mod compare;
pub mod concurrent;
pub mod content;
pub mod crash;
pub mod damage;
pub mod disk;
pub mod generate;
pub mod image;
pub mod keep;
pub mod kinds;
pub mod model;
pub mod outcome;
#[cfg(planted)]
pub mod planted;
pub mod random;
pub mod reading;
pub mod session;
pub mod shrink;
pub mod sizes;
pub mod space;
pub mod verify;
pub mod vfs;
pub mod workload;
