//! SplinterDB's STBε-tree (paper: Conway et al., USENIX ATC 2020): a [`trunk`](super::trunk) whose bundles have maplets.

mod kind;

pub(super) use self::kind::KIND;
