//! Conditional writes, each compared with the model: whether it writes, and what it says was there.

use spinney::Batch;

use super::*;
use crate::action::{Ask, Conditional, Requirement};

/// What a conditional write has told.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// Whether it wrote, if it tells.
    wrote: Option<bool>,
    /// What was there before, if it tells.
    before: Option<Option<Vec<u8>>>,
}

impl Told {
    fn wrote(wrote: bool) -> Told {
        Told { wrote: Some(wrote), before: None }
    }

    fn before(before: Option<Slice>) -> Told {
        Told { wrote: None, before: Some(before.map(|value| value.to_vec())) }
    }

    /// Whether it agrees with what happened.
    fn agrees(&self, wrote: bool, before: &Option<Vec<u8>>) -> bool {
        self.wrote.is_none_or(|told| told == wrote)
            && self.before.as_ref().is_none_or(|told| told == before)
    }
}

impl Session {
    /// What a key holds now.
    fn held(&self, place: usize, key: &[u8]) -> Option<Vec<u8>> {
        self.history.keyspaces[place].get(key, self.history.issued()).map(<[u8]>::to_vec)
    }

    pub(super) fn write_if(&mut self, conditional: &Conditional) -> Done {
        let Conditional { keyspace, key, ask, value } = *conditional;
        let put = action::Write { keyspace, key, change: Change::Put(value) };
        let Some((keyspace, Write { place, key, effect: Effect::Put(value) })) = self.resolve(&put)
        else {
            return Ok(());
        };
        let before = self.held(place, &key);
        let effect = ask.effect(before.as_deref(), &value);
        let is_unchanged = effect.is_none();
        if let Some(after) = effect {
            let effect = after.map_or(Effect::Delete, Effect::Put);
            let issued = self.moment();
            self.history.commit(&[Write { place, key: key.clone(), effect }], issued);
        }
        let told = match ask {
            Ask::InsertIfAbsent => Told::wrote(keyspace.insert_if_absent(&key, &value)?),
            Ask::UpdateIfPresent => Told::wrote(keyspace.update_if_present(&key, &value)?),
            Ask::GetOrInsert => Told::before(keyspace.get_or_insert(&key, &value)?),
            Ask::Replace => Told::before(keyspace.replace(&key, &value)?),
            Ask::Take => Told::before(keyspace.take(&key)?),
            Ask::FetchUpdate => {
                Told::before(keyspace.fetch_update(&key, |found| Ask::update(found, &value))?)
            }
            Ask::Swap { holds, deletes } => {
                let mut expected = before.clone();
                if !holds {
                    // Another value, or none, or one where there is none.
                    expected = match &expected {
                        Some(value) if value.len() % 2 == 1 => None,
                        Some(value) => Some([&**value, b"!"].concat()),
                        None => Some(value.clone()),
                    };
                }
                let new = (!deletes).then_some(&*value);
                match keyspace.compare_and_swap(&key, expected.as_deref(), new)? {
                    Swap::Done => Told::wrote(true),
                    Swap::Differs(found) => Told { wrote: Some(false), ..Told::before(found) },
                }
            }
        };
        let wrote = match ask {
            // Also where there was nothing to delete.
            Ask::Swap { holds, .. } => holds,
            _ => !is_unchanged,
        };
        if !told.agrees(wrote, &before) {
            let held = before.map(|value| value.escape_ascii().to_string());
            return Err(Failure::mismatch(format!(
                "{ask:?} of \"{}\" in {}, which held {held:?}, said {told:?}",
                key.escape_ascii(),
                keyspace.name(),
            )));
        }
        if !is_unchanged {
            let at = self.moment();
            self.history.returned(at);
        }
        Ok(())
    }

    /// Adds a condition to a batch.
    fn require(&self, batch: &mut Batch, required: &Requirement) {
        let Some(open) = self.find(required.keyspace) else { return };
        let key = key_bytes(required.key);
        match (self.held(open.place, &key), required.holds, required.compares) {
            (Some(value), true, true) => batch.require_value(&open.keyspace, &key, value),
            (Some(_), true, false) | (None, false, false) => {
                batch.require_present(&open.keyspace, &key);
            }
            (Some(value), false, true) => {
                batch.require_value(&open.keyspace, &key, [&*value, b"!"].concat());
            }
            (None, false, true) => batch.require_value(&open.keyspace, &key, b""),
            (None, true, _) | (Some(_), false, false) => {
                batch.require_absent(&open.keyspace, &key);
            }
        }
    }

    pub(super) fn batch_if(&mut self, requires: &[Requirement], writes: &[action::Write]) -> Done {
        let mut batch = self.db()?.batch();
        requires.iter().for_each(|required| self.require(&mut batch, required));
        let holds = self.keyspaces.is_empty() || requires.iter().all(|required| required.holds);
        let resolved: Vec<(Keyspace, Write)> =
            writes.iter().filter_map(|write| self.resolve(write)).collect();
        for (keyspace, write) in &resolved {
            add(&mut batch, keyspace, write);
        }
        let writes: Vec<Write> = resolved.into_iter().map(|(_, write)| write).collect();
        let is_commit = holds && !writes.is_empty();
        if is_commit {
            let issued = self.moment();
            self.history.commit(&writes, issued);
        }
        match batch.commit() {
            Err(Error::Conflict { .. }) if !holds => {}
            Ok(()) if !holds => {
                return Err(Failure::mismatch("a batch was written against its conditions".into()));
            }
            committed => committed?,
        }
        if is_commit {
            let at = self.moment();
            self.history.returned(at);
        }
        Ok(())
    }
}
