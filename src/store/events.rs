//! Hooks: what the store tells a program about its background life.

use std::time::Duration;

use crate::base::error::Error;

/// Something that happened in the background.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A memtable has become a table of the tree.
    Flush {
        /// The keyspace's name.
        keyspace: String,
        /// Bytes of keys and values.
        data_bytes: u64,
        /// Bytes written.
        written_bytes: u64,
        /// From freezing to being part of the tree.
        elapsed: Duration,
    },
    /// A compaction has ended.
    Compaction {
        /// The keyspace's name.
        keyspace: String,
        /// Bytes of the inputs that were read.
        read_bytes: u64,
        /// Bytes written.
        written_bytes: u64,
        /// From its first step to its last.
        elapsed: Duration,
    },
    /// Writers have begun, or ceased, to be slowed.
    Throttle {
        /// The keyspace they write to.
        keyspace: String,
        /// The delay per mebibyte written; zero when writers go unslowed again.
        delay_per_mib: Duration,
    },
    /// A background step failed. A failure of the journal or the manifest poisons the store.
    Error {
        /// What failed.
        error: Error,
    },
}

/// Receives events, one after the other, on a thread of its own and with no lock of the store held.
///
/// A listener may call the store, also to write, flush, wait or close. It may block: nobody waits for it, but
/// only 4,096 events wait at once, and those beyond that are lost ([`Statistics::events_lost`]). Its panics are
/// caught and counted ([`Statistics::listener_panics`]), and the next event is delivered as ever. Closing the
/// store waits until the listener has heard of everything, five seconds at most.
///
/// In [deterministic] mode there are no threads: the listener is called at the end of the calls in which
/// something happened, on the thread that made them.
///
/// [`Statistics::events_lost`]: crate::Statistics::events_lost
/// [`Statistics::listener_panics`]: crate::Statistics::listener_panics
/// [deterministic]: crate::Builder::deterministic
pub trait EventListener: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> EventListener for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}
