//! Newtypes for numbers, so that they cannot be confused.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub(crate) struct $name(pub(crate) $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// A sequence number: the position of an entry in the total order of commits. 0 is before the
    /// first.
    Seqno(u64)
);
id!(
    /// A keyspace's number. Never reused within a store.
    KeyspaceId(u32)
);
id!(
    /// A data file's number (table, maplet, blob). Unique over all kinds and never reused.
    FileId(u64)
);
id!(
    /// A trunk node's number. Unique within its keyspace and never reused.
    NodeId(u64)
);

impl Seqno {
    /// The greatest sequence number. Reads at this number see every entry.
    pub(crate) const MAX: Seqno = Seqno(u64::MAX >> 8);
}
