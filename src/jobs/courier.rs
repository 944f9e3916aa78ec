//! Delivers things to a callback of the user's, on a thread of its own.
//!
//! Who sends holds locks and must go on; the callback may block, call the store, or panic. So what is sent is
//! queued, and the callback is called with no lock held.
//!
//! Invariants:
//! 1. What is sent arrives in the order of sending, one thing at a time.
//! 2. `send` never waits for the callback. A queue that is full takes nothing more, and what it did not take
//!    is counted.
//! 3. A panic of the callback ends neither the thread nor the delivery of what follows; it is counted.
//! 4. Without a thread of its own (stepped mode) a courier delivers when `deliver_here` is called, and only
//!    then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::error::{Error, Result};
use crate::base::panics::caught;
use crate::base::planted::{Bug, planted};
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex, MutexGuard};

/// The most things that wait for a callback.
pub(crate) const WAITING_MAX: usize = 4096;

/// How long `close` waits for a callback that does not return.
const FAREWELL: Duration = Duration::from_secs(5);

type Callback<T> = Box<dyn Fn(&T) + Send + Sync>;

struct State<T> {
    waiting: VecDeque<T>,
    /// Whether somebody is delivering at this moment.
    delivering: bool,
    closing: bool,
    ended: bool,
    lost: u64,
    panics: u64,
    first_panic: Option<String>,
}

struct Shared<T> {
    callback: Callback<T>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// What has become of what was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Deliveries {
    /// How often the callback has panicked.
    pub(crate) panics: u64,
    /// What it said the first time.
    pub(crate) first_panic: Option<String>,
    /// Things for which there was no room.
    pub(crate) lost: u64,
}

/// See the module's description.
pub(crate) struct Courier<T> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Courier<T> {
    /// A courier with a thread of its own, or without one if `stepped`.
    ///
    /// # Errors
    /// `Io` if the thread cannot be started.
    pub(crate) fn new(stepped: bool, callback: Callback<T>) -> Result<Courier<T>> {
        let state = State {
            waiting: VecDeque::new(),
            delivering: false,
            closing: false,
            ended: stepped,
            lost: 0,
            panics: 0,
            first_panic: None,
        };
        let shared =
            Arc::new(Shared { callback, state: Mutex::new(state), changed: Condvar::new() });
        let thread = if stepped {
            None
        } else {
            let shared = Arc::clone(&shared);
            let spawned = thread::Builder::new()
                .name("spinney-events".to_string())
                .spawn(move || shared.work());
            Some(
                spawned
                    .map_err(|e| Error::io("thread start", std::path::Path::new(""), None, e))?,
            )
        };
        Ok(Courier { shared, thread })
    }

    /// Takes something to be delivered, if there is room.
    pub(crate) fn send(&self, thing: T) {
        let mut state = self.shared.state.lock();
        if state.waiting.len() >= WAITING_MAX {
            state.lost += 1;
            return;
        }
        state.waiting.push_back(thing);
        self.shared.changed.notify_all();
    }

    /// Delivers what waits, on this thread, if the courier has none of its own. The caller holds no lock.
    pub(crate) fn deliver_here(&self) {
        if self.thread.is_some() {
            return;
        }
        let mut state = self.shared.state.lock();
        // The callback may have called what called this.
        if !state.delivering {
            self.shared.deliver(&mut state);
        }
    }

    /// Whether this is the thread that delivers.
    pub(crate) fn is_this_thread(&self) -> bool {
        self.thread.as_ref().is_some_and(|it| it.thread().id() == thread::current().id())
    }

    /// Takes nothing more and waits, a few seconds at most, until what was sent has been delivered. A callback
    /// may call this: nobody waits then.
    pub(crate) fn close(&self) {
        self.deliver_here();
        let mut state = self.shared.state.lock();
        state.closing = true;
        self.shared.changed.notify_all();
        let Some(thread) = &self.thread else { return };
        if thread.thread().id() == thread::current().id() {
            return;
        }
        let start = Instant::now();
        while !state.ended && start.elapsed() < FAREWELL {
            self.shared.changed.wait_for(&mut state, FAREWELL);
        }
    }

    /// What has become of what was sent.
    pub(crate) fn deliveries(&self) -> Deliveries {
        let state = self.shared.state.lock();
        Deliveries {
            panics: state.panics,
            first_panic: state.first_panic.clone(),
            lost: state.lost,
        }
    }
}

impl<T> Drop for Courier<T> {
    fn drop(&mut self) {
        // The thread ends by itself; whoever drops this may be that thread.
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
    }
}

impl<T> Shared<T> {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            self.deliver(&mut state);
            if state.closing {
                state.ended = true;
                self.changed.notify_all();
                return;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Delivers until nothing waits.
    fn deliver(&self, state: &mut MutexGuard<'_, State<T>>) {
        state.delivering = true;
        while let Some(thing) = state.waiting.pop_front() {
            let heard = MutexGuard::unlocked(state, || {
                let heard = match planted(Bug::ListenerUncaught) {
                    true => {
                        (self.callback)(&thing);
                        Ok(())
                    }
                    false => caught(|| (self.callback)(&thing)),
                };
                drop(thing);
                heard
            });
            if let Err(message) = heard {
                state.panics += 1;
                state.first_panic.get_or_insert(message);
            }
        }
        state.delivering = false;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn things_arrive_in_order_and_panics_stop_nothing() {
        let (sender, heard) = mpsc::channel();
        let sender = Mutex::new(sender);
        let courier = Courier::new(
            false,
            Box::new(move |number: &u64| {
                assert!(!number.is_multiple_of(3), "three in {number}");
                sender.lock().send(*number).unwrap();
            }),
        )
        .unwrap();
        (1..=7).for_each(|number| courier.send(number));
        courier.close();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1, 2, 4, 5, 7]);
        let deliveries = courier.deliveries();
        assert_eq!((deliveries.panics, deliveries.lost), (2, 0));
        assert_eq!(deliveries.first_panic.as_deref(), Some("three in 3"));
    }

    #[test]
    fn nobody_waits_for_a_callback_that_blocks() {
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Mutex::new(blocked);
        let courier = Courier::new(
            false,
            Box::new(move |_: &u64| {
                let _ = blocked.lock().recv();
            }),
        )
        .unwrap();
        (0..WAITING_MAX as u64 + 10).for_each(|number| courier.send(number));
        // One may be with the callback already.
        assert!((9..=10).contains(&courier.deliveries().lost), "{:?}", courier.deliveries());
        drop(release);
        courier.close();
    }

    #[test]
    fn without_a_thread_things_wait_until_somebody_delivers_them() {
        let heard = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&heard);
        let courier = Courier::new(
            true,
            Box::new(move |number: &u64| {
                sum.fetch_add(*number, Ordering::SeqCst);
            }),
        )
        .unwrap();
        courier.send(1);
        courier.send(2);
        assert_eq!(heard.load(Ordering::SeqCst), 0);
        courier.deliver_here();
        assert_eq!(heard.load(Ordering::SeqCst), 3);
        courier.send(4);
        courier.close();
        assert_eq!(heard.load(Ordering::SeqCst), 7);
    }
}
