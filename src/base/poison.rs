//! The latch that stops all writes of a store once its durability is in doubt.
//!
//! The manifest creates it; the journal and the store share it. A failure that leaves the content
//! of the disk unknown sets the latch. Every write checks it first.
//!
//! Invariants:
//! 1. The first error is kept. Later ones change nothing.
//! 2. The listener is called once, by the thread that sets the latch, before any other thread can
//!    see it set.
//! 3. The latch stays set until the store is reopened.

use std::fmt;
use std::sync::OnceLock;

use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, Ordering};

/// A listener that gets the error that sets the latch.
type Listener = Box<dyn Fn(&Error) + Send + Sync>;

/// The latch. See the module's description.
#[derive(Default)]
pub(crate) struct Poison {
    is_set: AtomicBool,
    first: Mutex<Option<Error>>,
    listener: OnceLock<Listener>,
}

impl Poison {
    /// Sets the listener; only the first call has an effect. The listener may be called with any
    /// lock held, and must not use the latch.
    pub(crate) fn listen(&self, listener: impl Fn(&Error) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Sets the latch: refuses all writes from now on.
    #[cold]
    pub(crate) fn set(&self, error: &Error) {
        let mut first = self.first.lock();
        if first.is_some() || planted(Bug::PoisonForgotten) {
            return;
        }
        // A refusal means that the operation had no effect and can be retried. Neither is true
        // here.
        let error = match error.is_refusal() {
            true => Error::Poisoned { reason: error.to_string() },
            false => error.clone(),
        };
        if let Some(listener) = self.listener.get() {
            listener(&error);
        }
        *first = Some(error);
        self.is_set.store(true, Ordering::Release);
    }

    /// Returns `result`. An error sets the latch unless it is a refusal, which had no effect.
    pub(crate) fn unless_refused<R>(&self, result: Result<R>) -> Result<R> {
        result.inspect_err(|error| {
            if !error.is_refusal() {
                self.set(error);
            }
        })
    }

    /// Returns true if writes are refused.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Returns the error that set the latch.
    pub(crate) fn first(&self) -> Option<Error> {
        if self.is_set() { self.first.lock().clone() } else { None }
    }

    /// Returns true if this error set the latch, judged by its message.
    pub(crate) fn is_of(&self, error: &Error) -> bool {
        self.first().is_some_and(|first| first.to_string() == error.to_string())
    }

    /// Returns an error if the latch is set.
    ///
    /// # Errors
    /// `Poisoned`, with the first error as its reason.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { self.refuse() } else { Ok(()) }
    }

    #[cold]
    fn refuse(&self) -> Result<()> {
        match self.first.lock().clone() {
            Some(error @ Error::Poisoned { .. }) => Err(error),
            Some(error) => Err(Error::Poisoned { reason: error.to_string() }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Poison").field(&self.first()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn the_first_error_is_kept_and_told_once() {
        let (poison, told) = (Poison::default(), Arc::new(AtomicU32::new(0)));
        poison.listen({
            let told = Arc::clone(&told);
            move |error| {
                assert!(error.to_string().contains("first"));
                told.fetch_add(1, Ordering::SeqCst);
            }
        });
        let full = || Err::<(), _>(Error::Full { path: PathBuf::from("/store"), needed: 1 });
        assert!(poison.unless_refused(full()).is_err());
        assert!(!poison.is_set() && poison.check().is_ok() && poison.first().is_none());
        for what in ["first", "second"] {
            assert!(poison.unless_refused::<()>(Err(Error::invalid(what))).is_err());
        }
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert!(matches!(poison.first(), Some(Error::InvalidArgument { .. })));
        let refused = poison.check();
        assert!(
            matches!(&refused, Err(Error::Poisoned { reason }) if reason.contains("first")),
            "{refused:?}"
        );
    }
}
