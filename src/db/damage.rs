//! [`DamagedRange`], a range of keys with unreadable data.

use std::fmt;

/// A range of keys with unreadable data: from `lower` (inclusive) to `upper` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRange {
    /// The first key of the range. Empty if the range begins before all keys.
    pub lower: Vec<u8>,
    /// The first key after the range. `None` if the range ends after all keys.
    pub upper: Option<Vec<u8>>,
}

impl DamagedRange {
    /// Returns the range that contains only `key`.
    pub(crate) fn of_key(key: &[u8]) -> DamagedRange {
        DamagedRange { lower: key.to_vec(), upper: Some(after(key)) }
    }

    /// Returns true if `key` is in the range.
    ///
    /// ```
    /// let range = spinney::DamagedRange { lower: b"b".to_vec(), upper: Some(b"d".to_vec()) };
    /// assert!(range.contains(b"b") && range.contains(b"c") && !range.contains(b"d"));
    /// ```
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.lower <= *key && self.upper.as_deref().is_none_or(|upper| key < upper)
    }

    /// Returns the intersection with another range, unless it is empty.
    pub(crate) fn within(&self, lower: &[u8], upper: Option<&[u8]>) -> Option<DamagedRange> {
        let lower = lower.max(&self.lower).to_vec();
        let upper = match (self.upper.as_deref(), upper) {
            (Some(a), Some(b)) => Some(a.min(b).to_vec()),
            (a, b) => a.or(b).map(<[u8]>::to_vec),
        };
        upper.as_ref().is_none_or(|upper| lower < *upper).then_some(DamagedRange { lower, upper })
    }
}

/// Returns the first key after `key`.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Longer keys are truncated for display.
const SHOWN_BYTES: usize = 64;

fn shown(key: &[u8]) -> String {
    let start = &key[..key.len().min(SHOWN_BYTES)];
    let more = if start.len() < key.len() { "…" } else { "" };
    format!("\"{}{more}\"", start.escape_ascii())
}

impl fmt::Display for DamagedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.upper {
            Some(upper) if *upper == after(&self.lower) => write!(f, "key {}", shown(&self.lower)),
            Some(upper) if self.lower.is_empty() => write!(f, "keys before {}", shown(upper)),
            Some(upper) => write!(f, "keys from {} to before {}", shown(&self.lower), shown(upper)),
            None if self.lower.is_empty() => write!(f, "all keys"),
            None => write!(f, "keys from {}", shown(&self.lower)),
        }
    }
}
