//! Keys, values and choices, made from a seed, so that what is read can be checked without a copy.

pub mod distribution;
pub mod division;
pub mod keys;
pub mod permutation;
pub mod random;
pub mod values;
