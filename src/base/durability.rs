//! The durability of a commit when it returns.

/// When a commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once the write survives the death of the process. After a power loss a prefix of the commit
    /// order is there, at least up to the last `Sync` commit.
    #[default]
    Buffered,
    /// Once the write, and every one before it, survives power loss.
    Sync,
}
