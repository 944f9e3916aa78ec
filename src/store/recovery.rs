//! What opening a store had to repair.

/// What opening a store had to repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Journal records replayed.
    pub records_replayed: u64,
    /// Bytes of them.
    pub bytes_replayed: u64,
    /// Whole records that lay beyond a gap, a torn record or damage and were dropped, as far as they are known.
    pub records_dropped: u64,
    /// Their bytes.
    pub bytes_dropped: u64,
    /// Why replay stopped where it did, if not at a clean end.
    pub stopped: Option<String>,
    /// Damage that replay stopped at, since [`Builder::salvage_journal`](crate::Builder::salvage_journal) was asked for:
    /// what followed is lost, and how much that was need not be known.
    pub journal_damage: Vec<String>,
    /// Places in the journal that cannot be read and are not needed, since trees hold all that stood
    /// there. A power loss may have left them so, or the disk is damaged.
    pub journal_damage_skipped: Vec<String>,
    /// Bytes of a torn record at the manifest's end, dropped: a change that had not been made.
    pub manifest_bytes_dropped: u64,
    /// Data files that nothing referred to, removed.
    pub orphans_removed: u64,
    /// The names of keyspaces that could not be opened ([`Database::existing_keyspace`](crate::Database::existing_keyspace) says why): the others can be
    /// used. Such a keyspace keeps its files and
    /// what the journal has of it, and meanwhile no data file of the store is deleted; once the cause is removed (a file restored from a
    /// checkpoint, say) the next open opens it. [`Database::drop_keyspace`](crate::Database::drop_keyspace) gives it up.
    pub keyspaces_not_opened: Vec<String>,
    /// How many memtables were weighed to find the largest, when replayed records needed room. It grows with
    /// the journal's bytes and the number of keyspaces, not with records times keyspaces.
    pub memtables_weighed: u64,
}
