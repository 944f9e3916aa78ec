//! Entry points for fuzzing: each decoder of bytes that come from a disk, fed with anything.
//!
//! Compiled with the feature `fuzz` alone, for `spinney-sim fuzz` and the crate in `fuzz/`; not a part
//! of the interface. A target panics if a decoder does what it must not: a wrong answer where an
//! encoder can tell, an error that names no damage, a check that passes what a read refuses.

pub use crate::base::fuzz::Target;

/// All targets.
pub fn targets() -> Vec<Target> {
    [
        &crate::base::fuzz::TARGETS[..],
        &crate::cache::fuzz::TARGETS,
        &crate::manifest::fuzz::TARGETS,
        &crate::filter::fuzz::TARGETS,
        &crate::perfect_hash::fuzz::TARGETS,
        &crate::location_index::fuzz::TARGETS,
        &crate::table::fuzz::TARGETS,
        &crate::tree::kinds::fuzz_targets(),
        &crate::journal::fuzz::TARGETS,
        &crate::db::fuzz::TARGETS,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_seed_passes_with_any_byte_changed() {
        let targets = targets();
        for (i, target) in targets.iter().enumerate() {
            assert!(targets[..i].iter().all(|other| other.name != target.name));
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty());
            for seed in seeds {
                (target.run)(&seed);
                for at in (0..seed.len()).step_by(1 + seed.len() / 64) {
                    let mut changed = seed.clone();
                    changed[at] ^= 1 << (at % 8);
                    (target.run)(&changed);
                    (target.run)(&seed[..at]);
                }
            }
        }
    }
}
