//! Newtypes for everything that is numbered, so that the numbers cannot be confused.

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
    /// A position in the one total order of all entries ever committed. 0 is before the first.
    Seqno(u64)
);
id!(
    /// A keyspace's number, never reused within a store.
    KeyspaceId(u32)
);
id!(
    /// A data file's number (table, maplet, blob), unique over all kinds and never reused.
    FileId(u64)
);
id!(
    /// A trunk node's number, unique within its keyspace and never reused.
    NodeId(u64)
);

impl Seqno {
    /// After every committed entry: reads at this number see everything.
    pub(crate) const MAX: Seqno = Seqno(u64::MAX >> 8);
}
