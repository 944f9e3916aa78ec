//! Reads of a transaction, and writes that depend on what it sees. The latter are reads and writes of it like others.

use super::{Inner, Transaction};
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::db::conditional::{Swap, Update};
use crate::db::keyspace::Keyspace;
use crate::store::read;

impl Inner {
    pub(super) fn get(&mut self, place: usize, key: &[u8]) -> Result<Option<Slice>> {
        let is_known = self.writes.own(place, key).is_some_and(|own| own.is_known());
        let below = match is_known {
            true => None,
            false => {
                let keyspace = &self.keyspaces[place];
                let below = read::get(&self.store, keyspace, key, self.seqno())?;
                if below.is_some() || !planted(Bug::TransactionAbsentNotKept) {
                    self.note_read(place, key)?;
                }
                below
            }
        };
        match self.writes.own(place, key) {
            None => Ok(below),
            Some(own) => own.value(&self.keyspaces[place], key, below.as_deref()),
        }
    }

    pub(super) fn multi_get(
        &mut self,
        place: usize,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Slice>>> {
        let mut wanted = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            if self.writes.own(place, key).is_none_or(|own| !own.is_known()) {
                self.note_read(place, key)?;
                wanted.push((index, key));
            }
        }
        let asked: Vec<&[u8]> = wanted.iter().map(|(_, key)| *key).collect();
        let keyspace = &self.keyspaces[place];
        let found = read::multi_get(&self.store, keyspace, &asked, self.seqno())?;
        let mut values = vec![None; keys.len()];
        for ((index, _), value) in wanted.into_iter().zip(found) {
            values[index] = value;
        }
        for (key, value) in keys.iter().zip(&mut values) {
            if let Some(own) = self.writes.own(place, key.as_ref()) {
                *value = own.value(keyspace, key.as_ref(), value.as_deref())?;
            }
        }
        Ok(values)
    }

    pub(super) fn contains_key(&mut self, place: usize, key: &[u8]) -> Result<bool> {
        if let Some(own) = self.writes.own(place, key)
            && (own.is_known() || own.is_present(false))
        {
            return Ok(own.is_present(false));
        }
        self.note_read(place, key)?;
        read::contains(&self.store, &self.keyspaces[place], key, self.seqno())
    }
}

impl Transaction {
    /// Sets the value of `key` if it has none. Returns true if it did so.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`] and [`Transaction::put`].
    pub fn insert_if_absent(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let is_absent = !self.contains_key(keyspace, key.as_ref())?;
        if is_absent {
            self.put(keyspace, key, value)?;
        }
        Ok(is_absent)
    }

    /// Sets the value of `key` if it has one. Returns true if it did so.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`] and [`Transaction::put`].
    pub fn update_if_present(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let is_present = self.contains_key(keyspace, key.as_ref())?;
        if is_present {
            self.put(keyspace, key, value)?;
        }
        Ok(is_present)
    }

    /// Removes the value of `key`, and returns it.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`] and [`Transaction::put`].
    pub fn take(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let found = self.get(keyspace, key.as_ref())?;
        if found.is_some() {
            self.delete(keyspace, key)?;
        }
        Ok(found)
    }

    /// Sets the value of `key` to `new` if it is `expected`. `None` is no value.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`] and [`Transaction::put`].
    pub fn compare_and_swap(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        let found = self.get(keyspace, key.as_ref())?;
        if found.as_deref() != expected {
            return Ok(Swap::Differs(found));
        }
        match new {
            Some(new) => self.put(keyspace, key, new)?,
            None if found.is_none() => {}
            None => self.delete(keyspace, key)?,
        }
        Ok(Swap::Done)
    }

    /// Makes a new value of the value of `key` by `change`, and returns the one that it had.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let accounts = db.keyspace("accounts", spinney::KeyspaceOptions::stb())?;
    /// use spinney::Update;
    /// accounts.put("ada", [7])?;
    /// db.transact(|transaction| {
    ///     transaction.fetch_update(&accounts, "ada", |has| Update::Put(vec![has.map_or(0, |has| has[0]) - 3]))?;
    ///     transaction.fetch_update(&accounts, "grace", |has| Update::Put(vec![has.map_or(0, |has| has[0]) + 3]))
    /// })?;
    /// assert_eq!(accounts.get("grace")?.unwrap(), &[3]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Transaction::get`] and [`Transaction::put`].
    pub fn fetch_update(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Update,
    ) -> Result<Option<Slice>> {
        let found = self.get(keyspace, key.as_ref())?;
        match change(found.as_deref()) {
            Update::Put(value) => self.write(keyspace, EntryKind::Put, key.as_ref(), &value)?,
            Update::Delete if found.is_some() => self.delete(keyspace, key)?,
            Update::Delete | Update::Keep => {}
        }
        Ok(found)
    }
}
