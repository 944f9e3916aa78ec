//! Real kills: a child process works on a real store, with real threads on the real file system,
//! and is killed at random moments; whatever it was told to be written is there.
//!
//! 1. [`script`] says what each writer does.
//! 2. [`frames`] is what the child says through the pipe.
//! 3. [`ledger`] is what is known from that.
//! 4. [`judge`] compares a store with it.
//! 5. [`child`] is the process that dies.
//! 6. [`rounds`] starts it, kills it and judges what it has left.
//! 7. [`faults`] are those that `strace` makes; [`full`] is a disk that is full.

pub mod child;
pub mod faults;
pub mod frames;
pub mod full;
pub mod judge;
pub mod ledger;
pub mod rounds;
pub mod script;
