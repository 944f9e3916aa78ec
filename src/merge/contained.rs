//! A wrapper of a merge operator that turns its panics into errors.
//!
//! Every keyspace calls its operator through this wrapper: in reader threads, in the background,
//! and while a store is opened.
//!
//! Invariants:
//! 1. No panic of an operator escapes. A full merge that panics counts as refused. A partial merge
//!    that panics folds nothing, so its operands are kept unchanged.
//! 2. A thread that is inside an operator is marked ([`Contained::refuse_inside`]). It must not
//!    wait for background work, which may itself wait for the operator.

use std::cell::Cell;
use std::sync::Arc;

use super::operator::MergeOperator;
use crate::base::error::{Error, Result};
use crate::base::panics::caught;
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;

thread_local! {
    /// How many operators the thread is inside of.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// See the module's description.
pub(crate) struct Contained {
    operator: Arc<dyn MergeOperator>,
    keyspace: String,
    /// Cached, because the operator's `name` is user code too.
    name: String,
    panics: Mutex<Panics>,
}

#[derive(Default)]
struct Panics {
    count: u64,
    /// The last panic that has not been reported.
    untold: Option<Error>,
}

impl Contained {
    /// Contains the `operator` of `keyspace`, which is registered as `name`.
    pub(crate) fn new(
        keyspace: &str,
        name: &str,
        operator: Arc<dyn MergeOperator>,
    ) -> Arc<Contained> {
        let (keyspace, name) = (keyspace.to_string(), name.to_string());
        Arc::new(Contained { operator, keyspace, name, panics: Mutex::default() })
    }

    /// How often the operator has panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.lock().count
    }

    /// The operator's last panic as an error, once.
    pub(crate) fn take_untold(&self) -> Option<Error> {
        self.panics.lock().untold.take()
    }

    /// Whether the thread is inside an operator.
    pub(crate) fn is_inside() -> bool {
        INSIDE.get() > 0
    }

    /// Refuses `call` on a thread that is inside an operator.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn refuse_inside(call: &str) -> Result<()> {
        if !Contained::is_inside() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{call} from inside a merge operator, which background work may be waiting for; call it from \
             another thread"
        )))
    }

    fn call<R>(&self, key: &[u8], f: impl FnOnce() -> R) -> std::result::Result<R, String> {
        if planted(Bug::OperatorUncaught) {
            return Ok(f());
        }
        INSIDE.set(INSIDE.get() + 1);
        let result = caught(f);
        INSIDE.set(INSIDE.get() - 1);
        result.map_err(|message| {
            let what = format!("it panicked: {message}");
            let mut panics = self.panics.lock();
            panics.count += 1;
            panics.untold = Some(Error::merge(&self.keyspace, key, &self.name, &*what));
            what
        })
    }
}

impl MergeOperator for Contained {
    fn name(&self) -> &str {
        &self.name
    }

    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, String> {
        self.call(key, || self.operator.full_merge(key, existing, operands))?
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.call(key, || self.operator.partial_merge(key, older, newer)).unwrap_or_default()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct Moody;

    impl MergeOperator for Moody {
        fn name(&self) -> &str {
            "moody"
        }

        fn full_merge(
            &self,
            _key: &[u8],
            _existing: Option<&[u8]>,
            operands: &[&[u8]],
        ) -> std::result::Result<Vec<u8>, String> {
            assert!(operands.len() < 3, "too much");
            let inside = Contained::refuse_inside("flush").is_err();
            Ok(vec![operands.len() as u8, u8::from(inside)])
        }

        fn partial_merge(&self, _key: &[u8], _older: &[u8], _newer: &[u8]) -> Option<Vec<u8>> {
            panic!("not today")
        }
    }

    #[test]
    fn a_panic_is_a_refusal_that_is_told_of_once() {
        let moody = Contained::new("items", "moody", Arc::new(Moody));
        assert_eq!(moody.full_merge(b"k", None, &[b"1", b"2"]), Ok(vec![2, 1]));
        let refused = moody.full_merge(b"k", None, &[b"1", b"2", b"3"]);
        assert_eq!(refused, Err("it panicked: too much".to_string()));
        assert_eq!(moody.partial_merge(b"k", b"1", b"2"), None);
        assert_eq!(moody.panics(), 2);
        let untold = moody.take_untold();
        assert!(matches!(&untold, Some(Error::Merge { keyspace, key, operator, what })
            if keyspace == "items" && key == "k" && operator == "moody"
                && what == "it panicked: not today"));
        assert!(moody.take_untold().is_none());
        Contained::refuse_inside("flush").unwrap();
    }
}
