//! What earlier tries of a commit have done, for the next one.

use super::large::LargeValues;
use super::locking::Taken;
use super::transaction_locks::{LockedKey, Owner};

/// What earlier tries of a commit have done: one whose conditions do not hold is tried again. Every commit makes one, and
/// few note more than that they were delayed.
#[derive(Default)]
pub(crate) struct Tries {
    /// It has been delayed, for all of its bytes.
    pub(super) was_delayed: bool,
    rest: Option<Box<Rest>>,
}

#[derive(Default)]
pub(super) struct Rest {
    /// Its large values, which have been written.
    pub(super) values: Option<LargeValues>,
    /// Keys that transactions had locked, and that it has waited for.
    pub(super) taken: Option<Taken>,
    /// It has failed because its transaction would have waited for itself at this key.
    pub(super) circle_at: Option<LockedKey>,
}

impl Tries {
    pub(super) fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    /// The next try writes other values.
    pub(crate) fn forget_values(&mut self) {
        self.rest().values = None;
    }

    /// Who has taken keys for it.
    pub(super) fn owner(&self) -> Option<Owner> {
        Some(self.rest.as_ref()?.taken.as_ref()?.owner)
    }

    /// The key at which its transaction would have waited for itself.
    pub(crate) fn into_circle(self) -> Option<LockedKey> {
        self.rest?.circle_at
    }
}
