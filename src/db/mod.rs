//! The store as its users see it: handles, options, statistics, errors of their use.
//!
//! A write goes `keyspace`/`batch` → `store` (admission, commit) → `commit` → journal and memtable. A
//! read goes `keyspace`/`snapshot`/`iterator` → `read` → memtables, then the tree's version.
//! `background` moves memtables into trees; `open` brings it all back.

pub(crate) mod background;
pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod counters;
pub(crate) mod damage;
pub(crate) mod database;
pub(crate) mod events;
mod failures;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod idle;
mod in_flight;
pub(crate) mod iterator;
pub(crate) mod keyspace;
pub(crate) mod large;
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod meeting_tests;
pub(crate) mod open;
pub(crate) mod open_iterators;
pub(crate) mod options;
mod payload;
mod pressure;
pub(crate) mod quarantine;
pub(crate) mod range;
mod read;
pub(crate) mod repair;
mod replay;
mod retired;
mod room;
#[cfg(all(test, shuttle))]
mod schedules;
pub(crate) mod snapshot;
pub(crate) mod snapshots;
mod staged;
pub(crate) mod state;
pub(crate) mod statistics;
pub(crate) mod store;
mod strangers;
