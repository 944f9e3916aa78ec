//! Earlier read states of a keyspace that readers may still hold.
//!
//! Dropping the last reference to a version drops tables that nothing else needs and deletes their files, which takes
//! tens of milliseconds if they are large. A get that loaded a state just before it was replaced must not do that. So
//! replaced states are kept here, and the background drops the last reference.
//!
//! Invariants:
//! 1. A replaced state is kept as long as anything else holds it, and its version as long as a state or a reader does.

use std::sync::Arc;

use super::memtable_state::MemtableState;
use super::state::ReadState;
use crate::tree::TreeVersion;

/// See the module's description.
#[derive(Default)]
pub(super) struct Retired {
    states: Vec<Arc<ReadState>>,
    /// Of states that are gone, each once.
    versions: Vec<Arc<dyn TreeVersion>>,
}

/// States and versions that nothing else holds. Dropping them may take long.
#[derive(Default)]
pub(super) struct Unheld {
    _states: Vec<ReadState>,
    _versions: Vec<Arc<dyn TreeVersion>>,
}

impl Retired {
    /// Keeps a state that has just been replaced.
    pub(super) fn add(&mut self, state: Arc<ReadState>) {
        self.states.push(state);
    }

    /// Returns true if nothing is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty() && self.versions.is_empty()
    }

    /// Bytes of memtables that states have which are kept, and `newest` has not.
    pub(super) fn memtable_bytes_besides(&self, newest: &ReadState) -> u64 {
        let memtables = self.states.iter().flat_map(|state| state.memtables());
        let mut kept: Vec<&Arc<MemtableState>> = memtables
            .filter(|memtable| !newest.memtables().any(|newer| Arc::ptr_eq(newer, memtable)))
            .collect();
        kept.sort_unstable_by_key(|memtable| Arc::as_ptr(memtable));
        kept.dedup_by_key(|memtable| Arc::as_ptr(memtable));
        kept.iter().map(|memtable| memtable.bytes()).sum()
    }

    /// Takes the states that nobody else holds, and keeps their versions: to drop them takes no longer than to release
    /// their memtables.
    pub(super) fn take_unheld_states(&mut self) -> Vec<ReadState> {
        // Nobody can get hold anew of what only this holds.
        let mut states = Vec::new();
        for state in self.states.extract_if(.., |state| Arc::strong_count(state) == 1) {
            if !self.versions.iter().any(|version| Arc::ptr_eq(version, &state.version)) {
                self.versions.push(Arc::clone(&state.version));
            }
            states.extend(Arc::into_inner(state));
        }
        states
    }

    /// Takes what nobody else holds.
    pub(super) fn take_unheld(&mut self) -> Unheld {
        let states = self.take_unheld_states();
        // Those states hold their versions too, until they are dropped.
        let is_held = |version: &Arc<dyn TreeVersion>| {
            let here = states.iter().filter(|state| Arc::ptr_eq(&state.version, version)).count();
            Arc::strong_count(version) > 1 + here
        };
        let versions = self.versions.extract_if(.., |version| !is_held(version)).collect();
        Unheld { _states: states, _versions: versions }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Weak;

    use super::*;
    use crate::base::entry::EntryRef;
    use crate::base::error::{Error, Result};
    use crate::base::ids::Seqno;
    use crate::cache::ReadContext;
    use crate::memtable::ChunkPool;
    use crate::store::memtable_state::MemtableState;
    use crate::tree::description::TreeDescription;
    use crate::tree::{CheckCounts, CheckScope, RangeAt, RangeRuns};

    /// A version that nobody asks for anything.
    struct Idle;

    impl TreeVersion for Idle {
        fn flushed(&self) -> Seqno {
            Seqno(0)
        }

        fn get(
            &self,
            _key: &[u8],
            _hash: u64,
            _snapshot: Seqno,
            _context: &ReadContext,
            _f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
        ) -> Result<()> {
            unreachable!()
        }

        fn runs_at(&self, _at: RangeAt<'_>, _snapshot: Seqno) -> RangeRuns {
            unreachable!()
        }

        fn files(&self) -> Vec<std::path::PathBuf> {
            unreachable!()
        }

        fn describe(&self) -> Result<TreeDescription> {
            unreachable!()
        }

        fn check(&self, _scope: CheckScope<'_>, _problem: &mut dyn FnMut(Error)) -> CheckCounts {
            unreachable!()
        }
    }

    /// A version, and what tells whether it is still there.
    fn version() -> (Arc<dyn TreeVersion>, Weak<dyn TreeVersion>) {
        let version: Arc<dyn TreeVersion> = Arc::new(Idle);
        let watch = Arc::downgrade(&version);
        (version, watch)
    }

    fn state(version: &Arc<dyn TreeVersion>) -> Arc<ReadState> {
        let pool = Arc::new(ChunkPool::new(0));
        let active = MemtableState::new(&pool);
        Arc::new(ReadState::new(active, Vec::new(), (Arc::clone(version), 0), Arc::default()))
    }

    #[test]
    fn a_state_goes_when_nobody_holds_it_and_only_with_what_was_taken() {
        let mut retired = Retired::default();
        let (held, watch) = version();
        let reader = state(&held);
        drop(held);
        retired.add(Arc::clone(&reader));
        drop(retired.take_unheld());
        assert!(watch.upgrade().is_some(), "a reader has it");
        drop(reader);
        assert!(watch.upgrade().is_some(), "the reader was not to be the last");
        let unheld = retired.take_unheld();
        assert!(watch.upgrade().is_some(), "not before what was taken is dropped");
        drop(unheld);
        assert!(watch.upgrade().is_none());
    }

    /// A freeze makes a new state with the same version.
    #[test]
    fn a_version_stays_while_a_newer_state_has_it() {
        let mut retired = Retired::default();
        let (held, watch) = version();
        let (older, newer) = (state(&held), state(&held));
        drop(held);
        retired.add(older);
        drop(retired.take_unheld());
        assert_eq!(Arc::strong_count(&newer.version), 2, "the newer state's and the one kept here");
        retired.add(newer);
        drop(retired.take_unheld());
        assert!(watch.upgrade().is_none() && retired.versions.is_empty());
    }

    /// Iterators hold on to a version after they have dropped the state.
    #[test]
    fn a_reader_that_holds_a_version_alone_does_not_let_go_of_it_last() {
        let mut retired = Retired::default();
        let (reader, watch) = version();
        for _ in 0..3 {
            retired.add(state(&reader));
        }
        drop(retired.take_unheld());
        assert_eq!((retired.states.len(), retired.versions.len()), (0, 1));
        drop(reader);
        assert!(watch.upgrade().is_some(), "kept for the background");
        drop(retired.take_unheld());
        assert!(watch.upgrade().is_none());
    }
}
