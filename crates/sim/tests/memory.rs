//! What stores count as their memory stays within its shares.

use spinney_sim::kinds::Kinds;
use spinney_sim::memory;

#[test]
fn counted_memory_stays_within_its_shares() {
    for kinds in Kinds::All.runs() {
        for seed in 1..4 {
            let outcome = memory::run(seed, kinds);
            assert_eq!(outcome.violations, [], "seed {seed}, {kinds}");
        }
    }
}
