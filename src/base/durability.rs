//! [`Durability`] of a commit.

/// The guarantee that a commit has when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The write survives a crash of the process. After a power loss the store has a prefix of the
    /// commit order that includes at least the last `Sync` commit.
    #[default]
    Buffered,
    /// The write and every earlier write survive a power loss.
    Sync,
}
