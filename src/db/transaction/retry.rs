//! [`Database::begin`] and [`Database::transact`].
//!
//! A transaction that conflicts is tried again. A key at which it has conflicted is locked before the next try, so that
//! those who want to change it at once take turns instead of undoing one another's work.

use std::sync::Arc;
use std::time::Duration;

use super::{Conflict, Isolation, Transaction};
use crate::base::durability::Durability;
use crate::base::error::{Error, Result};
use crate::base::random::SplitMix;
use crate::base::sync::yield_now;
use crate::db::database::Database;
use crate::store::state::KeyspaceState;

/// How often a transaction is begun.
const TRIES_MAX: u32 = 64;
/// After so many tries there is a pause before the next one.
const TRIES_AT_ONCE: u32 = 2;
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// A key at which a transaction has conflicted.
type Contended = (Arc<KeyspaceState>, Vec<u8>);

impl Database {
    /// Begins a transaction, which reads the store as it is now.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// let mut transaction = db.begin(spinney::Isolation::Serializable);
    /// transaction.put(&items, "a", "1")?;
    /// assert_eq!(transaction.get(&items, "a")?.unwrap(), b"1");
    /// assert_eq!(items.get("a")?, None);
    /// transaction.commit()?;
    /// assert_eq!(items.get("a")?.unwrap(), b"1");
    /// # Ok(()) }
    /// ```
    pub fn begin(&self, isolation: Isolation) -> Transaction {
        Transaction::new(self.store(), isolation)
    }

    /// Runs `body` as a serializable transaction and commits it, with `Durability::Buffered`. After a conflict it runs
    /// again, on a new transaction, up to 64 times. `body` must not have other effects than those on the transaction.
    ///
    /// From the second try on, the keys at which earlier ones conflicted are locked first. So each of several threads that
    /// change the same keys gets its turn.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// let name = db.transact(|transaction| {
    ///     let last = transaction.iter(&items).next_back().transpose()?;
    ///     let next = last.map_or(1, |(key, _)| key[0] + 1);
    ///     transaction.put(&items, [next], "new")?;
    ///     Ok::<_, spinney::Error>(next)
    /// })?;
    /// assert_eq!(name, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `body` returns, and nothing is written then. The errors of [`Transaction::commit`]; `Conflict` after the last
    /// try.
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.transact_with(Isolation::Serializable, Durability::Buffered, body)
    }

    /// [`Database::transact`] with the given isolation and durability.
    ///
    /// # Errors
    /// The errors of [`Database::transact`].
    pub fn transact_with<T, E: From<Error>>(
        &self,
        isolation: Isolation,
        durability: Durability,
        mut body: impl FnMut(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut contended: Vec<Contended> = Vec::new();
        let mut tries = 0;
        loop {
            tries += 1;
            let mut transaction = self.begin(isolation);
            let result = match transaction.lock_all(&contended) {
                Ok(()) => body(&mut transaction),
                Err(error) => Err(E::from(error)),
            };
            let result = match result {
                Ok(value) => transaction.try_commit(durability).map(|()| value).map_err(E::from),
                Err(error) => Err(error),
            };
            let Err(error) = result else { return result };
            // What has failed is told by the transaction, not by the error, which is the caller's.
            let Some(Conflict { keyspace, key }) = transaction.conflict() else {
                return Err(error);
            };
            if tries == TRIES_MAX {
                return Err(error);
            }
            contended.push((keyspace, key));
            contended.retain(|(keyspace, _)| !keyspace.is_dropped());
            // In this order, so that they do not wait for one another in a circle.
            contended
                .sort_unstable_by(|one, other| (one.0.id, &one.1).cmp(&(other.0.id, &other.1)));
            contended.dedup_by(|one, other| one.0.id == other.0.id && one.1 == other.1);
            let number = transaction.id();
            drop(transaction);
            self.pause(tries, number);
        }
    }

    /// Lets others finish.
    fn pause(&self, tries: u32, seed: u64) {
        let Some(exponent) = tries.checked_sub(TRIES_AT_ONCE) else { return };
        let most = Duration::from_micros(20 << exponent.min(10)).min(PAUSE_MAX);
        let micros = SplitMix::new(seed).below(most.as_micros() as u64);
        yield_now();
        self.store().clock.sleep(Duration::from_micros(micros));
    }
}

impl Transaction {
    fn lock_all(&mut self, keys: &[Contended]) -> Result<()> {
        let (owner, timeout) = (self.owner, self.lock_timeout);
        for (keyspace, key) in keys {
            let mut inner = self.enter()?;
            let place = inner.place_of(keyspace);
            inner.lock(place, key, owner, timeout)?;
        }
        Ok(())
    }

    /// The conflict that the last operation has failed with.
    fn conflict(&self) -> Option<Conflict> {
        self.store.check_open().ok()?;
        self.inner.lock().conflict.take()
    }
}
