//! Several things done at once, on threads that end with them.

use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicUsize, Ordering};

/// Calls `work` with each item, on up to `threads` threads at once; with one, in order on this one. After
/// the first error none is begun any more.
///
/// # Errors
/// The first that `work` returned.
pub(crate) fn for_each_at_once<T: Sync>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    if threads <= 1 || items.len() <= 1 {
        return items.iter().try_for_each(work);
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None::<Error>));
    let take = || {
        while failed.lock().is_none() {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            if let Err(error) = work(item) {
                failed.lock().get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            // Where the system has no more threads, those that there are do all of it.
            if std::thread::Builder::new().spawn_scoped(scope, take).is_err() {
                break;
            }
        }
        take();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once_and_the_first_error_ends_it() {
        let items: Vec<usize> = (0..100).collect();
        for threads in [1, 3, 200] {
            let seen = Mutex::new(Vec::new());
            for_each_at_once(threads, &items, |item| {
                seen.lock().push(*item);
                Ok(())
            })
            .unwrap();
            let mut seen = seen.into_inner();
            seen.sort_unstable();
            assert_eq!(seen, items);
            let done = AtomicUsize::new(0);
            let result = for_each_at_once(threads, &items, |_| {
                done.fetch_add(1, Ordering::Relaxed);
                Err(Error::invalid("no"))
            });
            assert!(result.is_err());
            assert!(done.load(Ordering::Relaxed) <= threads.min(items.len()));
        }
    }
}
