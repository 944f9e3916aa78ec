//! Conditional writes: what is written depends on what the key holds. Each is one commit in the order of all commits, and
//! nobody writes to the key between what it has seen and that commit.
//!
//! The key is read without a lock, then it is locked and compared by its version, which reads nothing from the disk (see
//! `store::condition`). If somebody has written to it meanwhile, it is read again. So of several threads that change one key at
//! once, one always gets ahead, and a function of the caller never runs with a lock held.

use std::borrow::Cow;

use super::keyspace::Keyspace;
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::planted::{Bug, hold_open};
use crate::base::slice::Slice;
use crate::merge::Contained;
use crate::store::condition::{Condition, Preconditions};
use crate::store::operation::{Operation, check_sizes};
use crate::store::read;
use crate::store::tries::Tries;

/// What [`Keyspace::fetch_update`] makes of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Nothing is written.
    Keep,
    /// The key gets this value.
    Put(Vec<u8>),
    /// The key's value is removed. If it has none, nothing is written.
    Delete,
}

/// The result of [`Keyspace::compare_and_swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// The key had the expected value, and has the new one now.
    Done,
    /// The key has this value, and nothing was written.
    Differs(Option<Slice>),
}

/// What is to be written.
#[derive(PartialEq)]
enum Decision<'a> {
    Keep,
    Put(Cow<'a, [u8]>),
    Delete,
}

/// What of a value decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Whether there is one. It is not read from a blob file, and is empty for who decides.
    Presence,
    Value,
}

impl Keyspace {
    /// Sets the value of `key` if it has none, with `Durability::Buffered`. Returns true if it did so. Reads no value; a
    /// key that is absent is mostly found to be so by the filters of the tree, without a disk read.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let users = db.keyspace("users", spinney::KeyspaceOptions::stb())?;
    /// assert!(users.insert_if_absent("ada", "1")?);
    /// assert!(!users.insert_if_absent("ada", "2")?);
    /// assert_eq!(users.get("ada")?.unwrap(), b"1");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`]; those of [`Keyspace::contains_key`]; `InvalidArgument` inside a merge operator.
    /// Nothing is written in these cases.
    pub fn insert_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.insert_if_absent_with(key, value, Durability::Buffered)
    }

    /// [`Keyspace::insert_if_absent`] with the given durability. If nothing is written, nothing is made durable.
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`] and [`Keyspace::put_with`].
    pub fn insert_if_absent_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<bool> {
        let value = value.as_ref();
        let found =
            self.decide(key.as_ref(), durability, Reads::Presence, |found| match found {
                None => Decision::Put(Cow::Borrowed(value)),
                Some(_) => Decision::Keep,
            })?;
        Ok(found.is_none())
    }

    /// Sets the value of `key` if it has one, with `Durability::Buffered`. Returns true if it did so. Reads no value.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let users = db.keyspace("users", spinney::KeyspaceOptions::stb())?;
    /// assert!(!users.update_if_present("ada", "1")?);
    /// assert_eq!(users.get("ada")?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`].
    pub fn update_if_present(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        self.update_if_present_with(key, value, Durability::Buffered)
    }

    /// [`Keyspace::update_if_present`] with the given durability. If nothing is written, nothing is made durable.
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent_with`].
    pub fn update_if_present_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<bool> {
        let value = value.as_ref();
        let found =
            self.decide(key.as_ref(), durability, Reads::Presence, |found| match found {
                Some(_) => Decision::Put(Cow::Borrowed(value)),
                None => Decision::Keep,
            })?;
        Ok(found.is_some())
    }

    /// Returns the value of `key`; if it has none, sets it to `value`, with `Durability::Buffered`, and returns `None`.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let users = db.keyspace("users", spinney::KeyspaceOptions::stb())?;
    /// assert_eq!(users.get_or_insert("ada", "1")?, None);
    /// assert_eq!(users.get_or_insert("ada", "2")?.unwrap(), b"1");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`] and [`Keyspace::get`].
    pub fn get_or_insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        let value = value.as_ref();
        self.decide(key.as_ref(), Durability::Buffered, Reads::Value, |found| match found {
            None => Decision::Put(Cow::Borrowed(value)),
            Some(_) => Decision::Keep,
        })
    }

    /// Sets the value of `key` if it has one, with `Durability::Buffered`, and returns the one that it had. Returns `None`,
    /// and writes nothing, if it has none.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let users = db.keyspace("users", spinney::KeyspaceOptions::stb())?;
    /// assert_eq!(users.replace("ada", "1")?, None);
    /// users.put("ada", "2")?;
    /// assert_eq!(users.replace("ada", "3")?.unwrap(), b"2");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`] and [`Keyspace::get`].
    pub fn replace(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let value = value.as_ref();
        self.decide(key.as_ref(), Durability::Buffered, Reads::Value, |found| match found {
            Some(_) => Decision::Put(Cow::Borrowed(value)),
            None => Decision::Keep,
        })
    }

    /// Removes the value of `key` and returns it, with `Durability::Buffered`. Returns `None`, and writes nothing, if it
    /// has none.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let queue = db.keyspace("queue", spinney::KeyspaceOptions::stb())?;
    /// queue.put("job", "1")?;
    /// assert_eq!(queue.take("job")?.unwrap(), b"1");
    /// assert_eq!(queue.take("job")?, None); // of several threads, one gets it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`] and [`Keyspace::get`].
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.take_with(key, Durability::Buffered)
    }

    /// [`Keyspace::take`] with the given durability. If nothing is written, nothing is made durable.
    ///
    /// # Errors
    /// The errors of [`Keyspace::take`] and [`Keyspace::put_with`].
    pub fn take_with(
        &self,
        key: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<Option<Slice>> {
        self.decide(key.as_ref(), durability, Reads::Value, |found| match found {
            Some(_) => Decision::Delete,
            None => Decision::Keep,
        })
    }

    /// Sets the value of `key` to `new` if it is `expected`, with `Durability::Buffered`. `None` is no value.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let locks = db.keyspace("locks", spinney::KeyspaceOptions::stb())?;
    /// use spinney::Swap;
    /// assert_eq!(locks.compare_and_swap("door", None, Some(b"ada"))?, Swap::Done);
    /// let Swap::Differs(holder) = locks.compare_and_swap("door", None, Some(b"grace"))? else { panic!() };
    /// assert_eq!(holder.unwrap(), b"ada");
    /// assert_eq!(locks.compare_and_swap("door", Some(b"ada"), None)?, Swap::Done);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`] and [`Keyspace::get`].
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        self.compare_and_swap_with(key, expected, new, Durability::Buffered)
    }

    /// [`Keyspace::compare_and_swap`] with the given durability. If the value differs, nothing is made durable.
    ///
    /// # Errors
    /// The errors of [`Keyspace::compare_and_swap`] and [`Keyspace::put_with`].
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        durability: Durability,
    ) -> Result<Swap> {
        let is_expected = |found: Option<&Slice>| found.map(|found| &**found) == expected;
        let reads = if expected.is_none() { Reads::Presence } else { Reads::Value };
        let mut decision = |found: Option<&Slice>| match new {
            _ if !is_expected(found) => Decision::Keep,
            Some(new) => Decision::Put(Cow::Borrowed(new)),
            // What is absent needs no delete.
            None if found.is_none() => Decision::Keep,
            None => Decision::Delete,
        };
        let mut found = self.decide(key.as_ref(), durability, reads, &mut decision)?;
        if reads == Reads::Presence && found.is_some() {
            // Its value has not been read.
            found = self.decide(key.as_ref(), durability, Reads::Value, &mut decision)?;
        }
        Ok(if is_expected(found.as_ref()) { Swap::Done } else { Swap::Differs(found) })
    }

    /// Makes a new value of the value of `key` by `change`, with `Durability::Buffered`, and returns the one that it had.
    /// `change` is called again if the value has changed meanwhile. It runs without a lock, and may use the store. One that
    /// changes this value each time that it is called never ends.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let counters = db.keyspace("counters", spinney::KeyspaceOptions::stb())?;
    /// use spinney::Update;
    /// let next = |count: Option<&[u8]>| {
    ///     let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    ///     Update::Put((count + 1).to_le_bytes().to_vec())
    /// };
    /// assert_eq!(counters.fetch_update("visits", next)?, None);
    /// assert_eq!(counters.fetch_update("visits", next)?.unwrap(), &1u64.to_le_bytes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::insert_if_absent`] and [`Keyspace::get`].
    pub fn fetch_update(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Update,
    ) -> Result<Option<Slice>> {
        self.fetch_update_with(key, change, Durability::Buffered)
    }

    /// [`Keyspace::fetch_update`] with the given durability. If nothing is written, nothing is made durable.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`] and [`Keyspace::put_with`].
    pub fn fetch_update_with(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Update,
        durability: Durability,
    ) -> Result<Option<Slice>> {
        self.decide(key.as_ref(), durability, Reads::Value, |found| {
            match change(found.map(|found| &**found)) {
                Update::Put(value) => Decision::Put(Cow::Owned(value)),
                Update::Delete if found.is_some() => Decision::Delete,
                Update::Delete | Update::Keep => Decision::Keep,
            }
        })
    }

    /// Carries out what is decided of the key's newest value, and returns that value.
    fn decide<'a>(
        &self,
        key: &[u8],
        durability: Durability,
        reads: Reads,
        mut decision: impl FnMut(Option<&Slice>) -> Decision<'a>,
    ) -> Result<Option<Slice>> {
        // A reader may wait for the operator, and commits for that reader's memtables.
        Contained::refuse_inside("a conditional write")?;
        let (store, keyspace) = (self.store(), self.state());
        check_sizes(key, &[])?;
        // Also if nothing will be written: what a poisoned store answers depends on no earlier write.
        store.check_writable()?;
        store.guard(keyspace)?;
        let (mut decided, mut tries) = (None, Tries::default());
        loop {
            let (found, since) = read::newest(store, keyspace, key, reads == Reads::Presence)?;
            // What has only left the memtables is found again, and what was decided of it is kept.
            let made = match decided.take() {
                Some((before, made)) if before == found => made,
                before => {
                    let made = decision(found.as_ref());
                    if before.is_some_and(|(_, before)| before != made) {
                        tries.forget_values();
                    }
                    made
                }
            };
            let (kind, value) = match &made {
                Decision::Keep => return Ok(found),
                Decision::Put(value) => (EntryKind::Put, &**value),
                Decision::Delete => (EntryKind::Delete, &[][..]),
            };
            hold_open(Bug::ConditionNotVerified, 16);
            hold_open(Bug::ConditionSeesActiveOnly, 16);
            hold_open(Bug::ConditionIgnoresFlush, 16);
            let operation = Operation { keyspace, kind, key, value };
            let condition = [Condition { keyspace, key, since }];
            let operations = || std::iter::once(operation);
            let wanted = Preconditions::of(&condition);
            if store.commit_if(operations, durability, &wanted, &mut tries)? {
                return Ok(found);
            }
            decided = Some((found, made));
        }
    }
}
