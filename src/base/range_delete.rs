//! One range delete, as the journal, the manifest and readers know it.

use std::sync::Arc;

use super::ids::Seqno;

/// A bound of a range of keys.
pub(crate) type Bound = Arc<[u8]>;

/// A range delete: it deletes every version with a number below its own of the keys in `[lower, upper)`, `None` without
/// an end. The range is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeDelete {
    pub(crate) seqno: Seqno,
    pub(crate) lower: Bound,
    pub(crate) upper: Option<Bound>,
}

impl RangeDelete {
    /// The range delete of a journal's operation: an empty value is no upper bound. `None` if the range is empty, which no
    /// operation has.
    pub(crate) fn of_operation(seqno: Seqno, key: &[u8], value: &[u8]) -> Option<RangeDelete> {
        let upper = (!value.is_empty()).then(|| Bound::from(value));
        let is_empty = upper.as_ref().is_some_and(|upper| **upper <= *key);
        (!is_empty).then(|| RangeDelete { seqno, lower: Bound::from(key), upper })
    }

    /// About how much memory it takes in a list and in a map.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bounds = self.lower.len() + self.upper.as_ref().map_or(0, |upper| upper.len());
        (bounds + 256) as u64
    }
}
