//! The store behind the handles: keyspaces' states, commits, reads, background work, opening.
//!
//! A write goes `write` (admission, commit) → `commit` → journal and memtable. A read goes `read` → memtables, then the
//! tree's version. `background` moves memtables into trees; `open` brings it all back.
//!
//! In the order in which they stand on one another: what users choose and hear (`options`, `events`, `recovery`); parts
//! of a store that know nothing of it; a keyspace's `state` and the `store`, which know each other; what is done with them.

pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod counters;
pub(crate) mod events;
mod failures;
pub(crate) mod flush;
pub(crate) mod idle;
mod in_flight;
mod large;
pub(crate) mod memtable_state;
pub(crate) mod open;
pub(crate) mod open_iterators;
pub(crate) mod operation;
pub(crate) mod options;
mod payload;
mod pressure;
pub(crate) mod quarantine;
pub(crate) mod read;
pub(crate) mod recovery;
mod replay;
mod retired;
mod room;
mod sizes;
pub(crate) mod snapshots;
mod staged;
pub(crate) mod state;
#[expect(clippy::module_inception, reason = "the store itself")]
pub(crate) mod store;
pub(crate) mod strangers;
mod write;
