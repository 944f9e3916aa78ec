//! Models of the stripes: all orders in which their owners may run.

use loom::sync::Arc;
use loom::thread;

use super::stripes::{Count, Owners};

/// A stripe that passes from one thread to the next loses no count, although its owners use plain
/// loads and stores.
#[test]
fn a_stripe_keeps_its_count_from_owner_to_owner() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(|| {
        let owners = Arc::new(Owners::new());
        let counts: Arc<[Count; 2]> = Arc::new(Default::default());
        let count = |owners: &Owners, counts: &[Count; 2]| {
            let stripe = owners.claim();
            counts[stripe].add_owned(1);
            counts[stripe].add_owned(1);
            owners.release(stripe);
        };
        let thread = {
            let (owners, counts) = (Arc::clone(&owners), Arc::clone(&counts));
            thread::spawn(move || count(&owners, &counts))
        };
        count(&owners, &counts);
        count(&owners, &counts);
        thread.join().unwrap();
        assert_eq!(counts.iter().map(Count::get).sum::<u64>(), 6);
    });
}

/// Threads that share a stripe lose no count either.
#[test]
fn a_shared_stripe_loses_nothing() {
    loom::model(|| {
        let count = Arc::new(Count::default());
        let other = Arc::clone(&count);
        let thread = thread::spawn(move || other.add_shared(1));
        count.add_shared(2);
        thread.join().unwrap();
        assert_eq!(count.get(), 3);
    });
}
