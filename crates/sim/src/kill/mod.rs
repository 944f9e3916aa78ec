//! Real kills: a child process runs real threads on a real store in the real file system, and is
//! killed at random moments. Every acknowledged write must exist afterwards.
//!
//! 1. [`script`] determines the steps of each writer.
//! 2. [`frames`] are the child's reports through the pipe.
//! 3. [`ledger`] is the knowledge from these reports.
//! 4. [`judge`] compares a store with it.
//! 5. [`child`] is the process that is killed.
//! 6. [`rounds`] starts it, kills it and judges the result.
//! 7. [`faults`] are those that `strace` injects; [`full`] is a full disk.

pub mod child;
pub mod faults;
pub mod frames;
pub mod full;
pub mod judge;
pub mod ledger;
pub mod rounds;
pub mod script;
