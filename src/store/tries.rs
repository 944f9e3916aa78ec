//! What earlier tries of a commit have done, for the next one.

use super::large::LargeValues;
use super::locking::Taken;
use super::transaction_locks::LockedKey;

/// What earlier tries of a commit have done: one whose conditions do not hold is tried again.
#[derive(Default)]
pub(crate) struct Tries {
    /// Its large values, which have been written.
    pub(super) values: Option<LargeValues>,
    /// It has been delayed, for all of its bytes.
    pub(super) was_delayed: bool,
    /// Keys that transactions had locked, and that it has waited for.
    pub(super) taken: Option<Taken>,
    /// It has failed because its transaction would have waited for itself at this key.
    pub(crate) circle_at: Option<LockedKey>,
}

impl Tries {
    /// The next try writes other values.
    pub(crate) fn forget_values(&mut self) {
        self.values = None;
    }
}
