//! What is derived from a node's other fields when it is first asked for.
//!
//! Invariants:
//! 1. A copy of a node starts without it, since it is made to be changed.

use std::sync::OnceLock;

/// A value derived once.
pub(super) struct Derived<T>(OnceLock<T>);

impl<T> Derived<T> {
    pub(super) fn get_or(&self, derive: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(derive)
    }
}

impl<T> Default for Derived<T> {
    fn default() -> Derived<T> {
        Derived(OnceLock::new())
    }
}

impl<T> Clone for Derived<T> {
    fn clone(&self) -> Derived<T> {
        Derived::default()
    }
}
