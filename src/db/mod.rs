//! The store as its users see it: handles, statistics, errors of their use.

pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod conditional;
pub(crate) mod damage;
pub(crate) mod database;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
pub(crate) mod iterator;
pub(crate) mod keyspace;
#[cfg(all(test, lock_counts))]
mod lock_waits;
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod meeting_tests;
pub(crate) mod range;
pub(crate) mod repair;
#[cfg(all(test, shuttle))]
mod schedules;
pub(crate) mod snapshot;
pub(crate) mod statistics;
pub(crate) mod transaction;
