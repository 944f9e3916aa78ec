//! The store behind the handles: keyspaces' states, commits, reads, background work, opening.
//!
//! A write passes `write` (admission, commit) and `commit`, and ends in the journal and a memtable. A read passes `read`,
//! which asks the memtables and then the tree's version. `flush` brings memtables into trees, `background` schedules that
//! and all other background work, and `open` recovers the store.
//!
//! From the bottom up: settings and reports (`options`, `events`, `recovery`); parts that do not know the store; a
//! keyspace's `state` and the `store`, which use each other; the operations on them.

mod alter;
pub(crate) mod background;
pub(crate) mod checkpoint;
mod compact;
pub(crate) mod condition;
pub(crate) mod counters;
mod disk_room;
pub(crate) mod events;
mod failures;
pub(crate) mod flush;
pub(crate) mod gaps;
pub(crate) mod idle;
mod in_flight;
mod job_memory;
mod kept;
mod kept_state;
mod key_locks;
mod large;
pub(crate) mod locking;
pub(crate) mod memtable_state;
mod new_range_deletes;
pub(crate) mod open;
pub(crate) mod open_iterators;
pub(crate) mod operation;
pub(crate) mod options;
mod payload;
pub(crate) mod persistent_memory;
mod pressure;
mod provided;
pub(crate) mod quarantine;
pub(crate) mod range_deletes;
mod range_deletes_look;
pub(crate) mod read;
pub(crate) mod recovery;
mod replay;
mod rest;
mod rest_state;
mod retired;
mod room;
mod sizes;
pub(crate) mod snapshots;
mod staged;
pub(crate) mod state;
#[expect(clippy::module_inception, reason = "the store itself")]
pub(crate) mod store;
pub(crate) mod strangers;
pub(crate) mod transaction_locks;
pub(crate) mod transaction_memory;
pub(crate) mod tries;
pub(crate) mod watch;
mod write;
