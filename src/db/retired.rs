//! What readers may still hold of a keyspace's earlier states.
//!
//! Whoever lets go last of a version lets go of tables that nothing else needs, and their files are removed:
//! tens of milliseconds where they are large. A get that happened to look at a state while it was
//! replaced must not be the one. So what is replaced is kept here, and the background lets go last.
//!
//! Invariants:
//! 1. A state that has been replaced is here for as long as anything else holds it, and its version for as long
//!    as a state or a reader does.

use std::sync::Arc;

use super::state::ReadState;
use crate::tree::TreeVersion;

/// See the module's description.
#[derive(Default)]
pub(super) struct Retired {
    states: Vec<Arc<ReadState>>,
    /// Of states that are gone, each once.
    versions: Vec<Arc<dyn TreeVersion>>,
}

/// What nobody holds any more; to be dropped where that may take its time.
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

    /// Takes what nobody else holds.
    pub(super) fn take_unheld(&mut self) -> Unheld {
        // Nobody can get hold anew of what only this holds.
        let mut states = Vec::new();
        for state in self.states.extract_if(.., |state| Arc::strong_count(state) == 1) {
            if !self.versions.iter().any(|version| Arc::ptr_eq(version, &state.version)) {
                self.versions.push(Arc::clone(&state.version));
            }
            states.extend(Arc::into_inner(state));
        }
        // Those states hold their versions too, until they are dropped.
        let is_held = |version: &Arc<dyn TreeVersion>| {
            let here = states.iter().filter(|state| Arc::ptr_eq(&state.version, version)).count();
            Arc::strong_count(version) > 1 + here
        };
        let versions = self.versions.extract_if(.., |version| !is_held(version)).collect();
        Unheld { _states: states, _versions: versions }
    }
}
