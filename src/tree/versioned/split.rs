//! Where a node that holds too much is split: at keys of its tables that divide its bytes equally.

use std::sync::Arc;

use crate::base::error::Result;
use crate::table::Table;
use crate::tree::range::Key;

/// The keys, ascending and within the range, that split it into `parts` of about as many bytes. `tables` are those of
/// the range, each with its bytes there.
///
/// A table offers its first key and keys that divide its own bytes equally. Each key counts for its share of them.
pub(in crate::tree) fn split_keys(
    (lower, upper): (&[u8], Option<&[u8]>),
    parts: u64,
    tables: &[(&Arc<Table>, u64)],
) -> Result<Vec<Key>> {
    let bytes: u64 = tables.iter().map(|(_, bytes)| bytes).sum();
    let mut offers: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut total = 0;
    for (table, table_bytes) in tables.iter().filter(|(_, bytes)| *bytes > 0) {
        let wanted = (table_bytes * parts * 8 / bytes.max(1)).clamp(2, 256) as usize;
        let mut keys = table.approximate_split_keys(Some(lower), upper, wanted)?;
        if *table.first_key() > *lower {
            keys.insert(0, table.first_key().to_vec());
        }
        let share = table_bytes / (keys.len() as u64 + 1);
        total += share * keys.len() as u64;
        offers.extend(keys.into_iter().map(|key| (key, share)));
    }
    offers.sort_unstable();
    let mut bounds: Vec<Key> = Vec::new();
    let mut passed = 0;
    for (key, share) in offers {
        passed += share;
        let due = total * (bounds.len() as u64 + 1) / parts;
        let last = bounds.last().map_or(lower, |last| last);
        if passed > due
            && bounds.len() as u64 + 1 < parts
            && *key > *last
            && upper.is_none_or(|upper| *key < *upper)
        {
            bounds.push(Arc::from(key));
        }
    }
    Ok(bounds)
}
