//! How far the search for range deletes that are not needed any more has come.

use crate::base::ids::Seqno;
use crate::base::sync::Mutex;

/// How far the search has come for range deletes that are not needed any more.
#[derive(Default)]
pub(super) struct RangeDeletesLook(pub(super) Mutex<Look>);

#[derive(Default)]
pub(super) struct Look {
    /// The number of the last one that the pass has looked at.
    pub(super) at: Option<Seqno>,
    /// How many versions had been shown when the pass began, and when the last one that has ended did.
    pub(super) begun_at: Option<u64>,
    pub(super) ended_at: Option<u64>,
    /// The oldest snapshot then, if it did not have all range deletes.
    pub(super) held_by: Option<Seqno>,
}
