//! The live state: the sum of all edits.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::edit::{Edit, Epochs, KeyspaceChange, KeyspaceEdit, KeyspaceMeta};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::key_hash::HashSecret;
use crate::base::planted::{Bug, planted};
use crate::base::range_delete::RangeDelete;

/// A keyspace's state without its tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeyspaceState {
    pub(super) meta: KeyspaceMeta,
    pub(super) flushed: Seqno,
    /// Shared, because each round of commits keeps a state.
    pub(super) range_deletes: Arc<BTreeMap<Seqno, RangeDelete>>,
}

/// The part of the edits that the manifest itself interprets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) next_file_id: FileId,
    pub(super) journal_floor: Seqno,
    pub(super) epochs: Epochs,
    pub(super) last_seqno: Seqno,
    pub(super) next_keyspace_id: KeyspaceId,
    pub(super) keyspaces: BTreeMap<KeyspaceId, KeyspaceState>,
}

impl State {
    /// Checks that `edit` can be applied. Returns the contradiction otherwise.
    pub(super) fn check(&self, edit: &Edit) -> Result<(), String> {
        let mut next = self.next_keyspace_id;
        // Keyspaces changed by the edit so far, and whether they exist.
        let mut changed: BTreeMap<KeyspaceId, Option<&str>> = BTreeMap::new();
        for KeyspaceEdit { id, change } in &edit.keyspaces {
            let exists = match changed.get(id) {
                Some(name) => name.is_some(),
                None => self.keyspaces.contains_key(id),
            };
            match change {
                KeyspaceChange::Create(meta) => {
                    if *id < next || id.0 == u32::MAX {
                        return Err(format!("keyspace id {id} is used up, the next one is {next}"));
                    }
                    let old = self.keyspaces.iter().filter(|(id, _)| !changed.contains_key(id));
                    let old = old.map(|(_, keyspace)| &*keyspace.meta.name);
                    if changed.values().flatten().copied().chain(old).any(|n| n == meta.name) {
                        return Err(format!("keyspace {:?} exists already", meta.name));
                    }
                    if meta.operator.as_ref().is_some_and(String::is_empty) {
                        return Err("a merge operator's name must not be empty".to_string());
                    }
                    next = KeyspaceId(id.0 + 1);
                    changed.insert(*id, Some(&meta.name));
                }
                _ if !exists => return Err(format!("keyspace {id} does not exist")),
                KeyspaceChange::Drop => {
                    changed.insert(*id, None);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Applies an edit that passed `check`.
    pub(super) fn apply(&mut self, edit: &Edit) {
        fn raise<T: Ord + Copy>(number: &mut T, to: Option<T>) {
            *number = to.map_or(*number, |to| to.max(*number));
        }
        raise(&mut self.next_file_id, edit.next_file_id);
        raise(&mut self.journal_floor, edit.journal_floor);
        raise(&mut self.last_seqno, edit.last_seqno);
        raise(&mut self.next_keyspace_id, edit.next_keyspace_id);
        if let Some(epochs) = &edit.epochs {
            self.epochs = epochs.clone();
        }
        for KeyspaceEdit { id, change } in &edit.keyspaces {
            match (change, self.keyspaces.get_mut(id)) {
                (KeyspaceChange::Create(meta), _) => {
                    raise(&mut self.next_keyspace_id, Some(KeyspaceId(id.0.saturating_add(1))));
                    let keyspace = KeyspaceState { meta: meta.clone(), ..KeyspaceState::default() };
                    self.keyspaces.insert(*id, keyspace);
                }
                (KeyspaceChange::Drop, _) => {
                    self.keyspaces.remove(id);
                }
                (KeyspaceChange::Options(options), Some(keyspace)) => {
                    keyspace.meta.options.clone_from(options);
                }
                (KeyspaceChange::Flushed(seqno), Some(keyspace)) => {
                    raise(&mut keyspace.flushed, Some(*seqno));
                }
                (KeyspaceChange::RangeDelete(delete), Some(keyspace)) => {
                    let deletes = Arc::make_mut(&mut keyspace.range_deletes);
                    deletes.insert(delete.seqno, delete.clone());
                }
                (KeyspaceChange::RangeDeleteDone(seqno), Some(keyspace)) => {
                    Arc::make_mut(&mut keyspace.range_deletes).remove(seqno);
                }
                _ => {}
            }
        }
    }

    /// The edit that turns an empty state into this one, with these trees.
    pub(super) fn to_edit(&self, trees: &[(KeyspaceId, Vec<u8>)]) -> Edit {
        let mut keyspaces = Vec::new();
        let lost = usize::from(planted(Bug::ManifestRewriteKeyspace));
        let kept = self.keyspaces.len().saturating_sub(lost);
        for (&id, keyspace) in self.keyspaces.iter().take(kept) {
            let mut push = |change| keyspaces.push(KeyspaceEdit { id, change });
            push(KeyspaceChange::Create(keyspace.meta.clone()));
            push(KeyspaceChange::Flushed(keyspace.flushed));
            for delete in keyspace.range_deletes.values() {
                push(KeyspaceChange::RangeDelete(delete.clone()));
            }
            for (_, tree) in trees.iter().filter(|(of, _)| *of == id) {
                push(KeyspaceChange::TreeSnapshot(tree.clone()));
            }
        }
        Edit {
            keyspaces,
            next_file_id: Some(self.next_file_id),
            journal_floor: Some(self.journal_floor).filter(|_| !planted(Bug::ManifestRewriteFloor)),
            epochs: Some(self.epochs.clone()),
            last_seqno: Some(self.last_seqno),
            next_keyspace_id: Some(self.next_keyspace_id),
        }
    }
}

/// The state that an open has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecoveredState {
    pub(crate) store_id: u64,
    /// The secret for hashing the store's keys.
    pub(crate) hash_secret: HashSecret,
    pub(crate) format_version: u32,
    /// The name and version of the program that created the store.
    pub(crate) created_by: String,
    /// True if this open created the store.
    pub(crate) created: bool,
    /// The manifest's number.
    pub(crate) manifest_number: u64,
    /// The size of a torn record that was dropped from the end, in bytes.
    pub(crate) torn_bytes: u64,
    pub(crate) next_file_id: FileId,
    pub(crate) journal_floor: Seqno,
    pub(crate) epochs: Epochs,
    pub(crate) last_seqno: Seqno,
    pub(crate) next_keyspace_id: KeyspaceId,
    /// Keyspaces by number.
    pub(crate) keyspaces: Vec<RecoveredKeyspace>,
}

/// An edit or a snapshot of a tree, as the manifest has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TreeEdit {
    /// Its offset in the manifest.
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// An existing keyspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecoveredKeyspace {
    pub(crate) id: KeyspaceId,
    pub(crate) meta: KeyspaceMeta,
    /// The offset of its options in the manifest.
    pub(crate) options_offset: u64,
    pub(crate) flushed: Seqno,
    /// Ascending by their numbers.
    pub(crate) range_deletes: Vec<RangeDelete>,
    /// The last snapshot of its tree, if any.
    pub(crate) tree_snapshot: Option<TreeEdit>,
    /// The tree's later edits, in order.
    pub(crate) tree_edits: Vec<TreeEdit>,
}

impl RecoveredKeyspace {
    /// The records of its tree, in order.
    pub(crate) fn tree(&self) -> Vec<TreeEdit> {
        self.tree_snapshot.iter().chain(&self.tree_edits).cloned().collect()
    }
}

/// The trees' part of the edits. `State` is the rest.
#[derive(Debug, Default)]
pub(super) struct Trees(BTreeMap<KeyspaceId, TreeLog>);

/// A tree's last snapshot, its later edits, and the offset of the keyspace's options in the
/// manifest.
#[derive(Debug, Default)]
struct TreeLog {
    snapshot: Option<TreeEdit>,
    edits: Vec<TreeEdit>,
    options_offset: u64,
}

impl Trees {
    /// Applies an edit, with the offsets that `Edit::decode` returned.
    pub(super) fn apply(&mut self, edit: Edit, offsets: &[u64]) {
        for (KeyspaceEdit { id, change }, &offset) in edit.keyspaces.into_iter().zip(offsets) {
            match change {
                KeyspaceChange::TreeEdit(bytes) => {
                    self.0.entry(id).or_default().edits.push(TreeEdit { offset, bytes });
                }
                KeyspaceChange::TreeSnapshot(bytes) => {
                    let log = self.0.entry(id).or_default();
                    log.snapshot = Some(TreeEdit { offset, bytes });
                    log.edits.clear();
                }
                KeyspaceChange::Create(_) | KeyspaceChange::Options(_) => {
                    self.0.entry(id).or_default().options_offset = offset;
                }
                KeyspaceChange::Drop => {
                    self.0.remove(&id);
                }
                KeyspaceChange::Flushed(_)
                | KeyspaceChange::RangeDelete(_)
                | KeyspaceChange::RangeDeleteDone(_) => {}
            }
        }
    }

    /// Combines both parts.
    pub(super) fn join(mut self, state: &State) -> RecoveredState {
        let keyspaces = state.keyspaces.iter().map(|(&id, keyspace)| {
            let log = self.0.remove(&id).unwrap_or_default();
            RecoveredKeyspace {
                id,
                meta: keyspace.meta.clone(),
                options_offset: log.options_offset,
                flushed: keyspace.flushed,
                range_deletes: keyspace.range_deletes.values().cloned().collect(),
                tree_snapshot: log.snapshot,
                tree_edits: log.edits,
            }
        });
        RecoveredState {
            keyspaces: keyspaces.collect(),
            next_file_id: state.next_file_id,
            journal_floor: state.journal_floor,
            epochs: state.epochs.clone(),
            last_seqno: state.last_seqno,
            next_keyspace_id: state.next_keyspace_id,
            ..RecoveredState::default()
        }
    }
}
