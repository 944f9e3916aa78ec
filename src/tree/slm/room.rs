//! What is known of the keys that will come to the index: what it will need of the disk.

use crate::table::Table;

/// The keys that a partial index lacks, as far as that is known, and their bytes.
#[derive(Default)]
pub(super) struct Lacking {
    pub(super) known: (u64, u64),
    /// Those that a rebuild has found no room for, and that have come since it began, while it goes through all keys.
    since: Option<(u64, u64)>,
}

impl Lacking {
    pub(super) fn add(&mut self, (keys, bytes): (u64, u64)) {
        for sum in [Some(&mut self.known), self.since.as_mut()].into_iter().flatten() {
            *sum = (sum.0 + keys, sum.1 + bytes);
        }
    }

    pub(super) fn begin_rebuild(&mut self) {
        self.since = Some((0, 0));
    }

    /// A rebuild has found no room for a key.
    pub(super) fn add_unplaced(&mut self, key: &[u8]) {
        if let Some((keys, bytes)) = &mut self.since {
            (*keys, *bytes) = (*keys + 1, *bytes + key.len() as u64);
        }
    }

    /// A rebuild has gone through all keys: what it lacks is known.
    pub(super) fn end_pass(&mut self) {
        if let Some(since) = self.since.take() {
            self.known = since;
        }
    }
}

/// Entries of the last memtables that came, on average.
#[derive(Clone, Copy)]
pub(super) struct UsualEntry {
    pub(super) key_bytes: u64,
    /// Of key and value.
    pub(super) entry_bytes: u64,
}

impl UsualEntry {
    /// Another table. One with a few short keys does not say what comes next.
    pub(super) fn add(&mut self, table: &Table) {
        let properties = table.properties();
        let of_each = |bytes: u64| bytes.checked_div(properties.entries()).unwrap_or(0);
        let mean = |before: u64, now: u64| (before * 3 + now) / 4;
        let key_bytes = of_each(properties.key_bytes);
        self.key_bytes = key_bytes.max(mean(self.key_bytes, key_bytes));
        self.entry_bytes = mean(self.entry_bytes, of_each(properties.entry_bytes()));
    }
}

impl Default for UsualEntry {
    fn default() -> UsualEntry {
        UsualEntry { key_bytes: 16, entry_bytes: 48 }
    }
}

/// Bytes of a record of the journal beside key and value, about.
pub(super) const RECORD_BYTES: u64 = 16;
