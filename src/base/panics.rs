//! Catching panics that would leave other threads waiting, and reading their messages.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Calls `f` and turns a panic into its message.
///
/// Builds with a test scheduler end tasks by unwinding them, so there nothing is caught.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> std::result::Result<R, String> {
    if cfg!(any(loom, shuttle)) {
        return Ok(f());
    }
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let message = message_of(&*payload);
        // The payload of a panic may itself panic when it is dropped.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(another);
        }
        message
    })
}

/// Calls `f`. After a panic, calls `tell` with its message and resumes unwinding.
pub(crate) fn overheard<R>(f: impl FnOnce() -> R, tell: impl FnOnce(&str)) -> R {
    if cfg!(any(loom, shuttle)) {
        return f();
    }
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        tell(&message_of(&*payload));
        resume_unwind(payload)
    })
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(message), _) => (*message).to_string(),
        (None, Some(message)) => message.clone(),
        (None, None) => "a value that is no text".to_string(),
    }
}

/// Calls `f`, and `on_panic` if it unwinds. Costs nothing otherwise.
#[inline]
pub(crate) fn watched<R>(f: impl FnOnce() -> R, on_panic: impl Fn()) -> R {
    struct Watch<F: Fn()>(F);

    impl<F: Fn()> Drop for Watch<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    let watch = Watch(on_panic);
    let result = f();
    std::mem::forget(watch);
    result
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".to_string()));
        assert_eq!(caught(|| panic!("with {}", 2)), Err::<(), _>("with 2".to_string()));
        let odd = caught(|| std::panic::panic_any(Bomb));
        assert_eq!(odd, Err::<(), _>("a value that is no text".to_string()));
    }

    #[test]
    fn who_watches_hears_of_a_panic_alone() {
        let heard = Cell::new(0);
        let hear = || heard.set(heard.get() + 1);
        assert_eq!(watched(|| 7, hear), 7);
        assert_eq!(heard.get(), 0);
        assert!(caught(|| watched(|| panic!("no"), hear)).is_err());
        assert_eq!(heard.get(), 1);
    }
}
