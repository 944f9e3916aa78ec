//! Changing the options of a keyspace that is in use.
//!
//! Invariants:
//! 1. The manifest has the new options durably, in one record, before the keyspace or its tree follows them. So an open
//!    after a crash finds the old options or the new ones, and the new ones if the call has returned.
//! 2. Changes of one store are made one at a time, under `registry`, which dropping, creating and copying keyspaces hold
//!    too. The caller's function runs without a lock: it may use the store.

use std::sync::Arc;

use super::state::KeyspaceState;
use super::store::Store;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::manifest::{Edit, KeyspaceChange, KeyspaceEdit};
use crate::tree::options::KeyspaceOptions;

impl Store {
    /// Gives a keyspace the options that `change` makes of the present ones. `change` is called again if another change
    /// came first.
    pub(crate) fn alter(
        &self,
        keyspace: &KeyspaceState,
        change: &mut dyn FnMut(KeyspaceOptions) -> KeyspaceOptions,
    ) -> Result<()> {
        loop {
            self.check_writable()?;
            keyspace.check_exists()?;
            let before = keyspace.options();
            let wanted = change((*before).clone());
            before.check_change(&keyspace.name, &wanted)?;
            if self.changing("changing options", || self.alter_from(keyspace, &before, wanted))? {
                return Ok(());
            }
        }
    }

    /// Changes the options to those wanted, unless they are no longer those of `before`: then it returns false.
    fn alter_from(
        &self,
        keyspace: &KeyspaceState,
        before: &Arc<KeyspaceOptions>,
        wanted: KeyspaceOptions,
    ) -> Result<bool> {
        let _registry = self.registry.lock();
        self.check_writable()?;
        keyspace.check_exists()?;
        if !Arc::ptr_eq(before, &keyspace.options()) {
            return Ok(false);
        }
        if wanted == **before {
            return Ok(true);
        }
        let of_tree = self.tree_options(keyspace.id, &keyspace.name, &wanted);
        let change = KeyspaceChange::Options(wanted.encode());
        let keyspaces = vec![KeyspaceEdit { id: keyspace.id, change }];
        let wanted = Arc::new(wanted);
        if planted(Bug::OptionsBeforeDurable) {
            keyspace.follow(Arc::clone(&wanted), of_tree.clone());
        }
        if !planted(Bug::OptionsNotStored) {
            // Without a tree's change lock: the sync would hold up memtables that are incorporated.
            self.commit_edit(&Edit { keyspaces, ..Edit::default() })?;
            self.manifest.confirm_end();
        }
        keyspace.follow(wanted, of_tree);
        Ok(true)
    }
}
