//! Torture: a process works on stores of gigabytes and is killed repeatedly. Another process knows
//! the expected content and judges data, memory, space, descriptors, stalls and opening times.
//!
//! 1. [`script`] is the content of a store and the work on it, as functions of a seed.
//! 2. [`ledger`] is the parent's knowledge, and compares it with what is read.
//! 3. [`plan`] is the work of a child; [`child`] does it and reports it in [`frames`]; [`look`]
//!    reads the store.
//! 4. [`process`] asks the system about the child. [`promise`] has the limits of all figures;
//!    [`fresh`] has the reference for space.
//! 5. [`life`] starts a child and judges it; [`watch`] observes and kills it; [`evidence`] keeps
//!    what reproduces a violation.

pub mod child;
pub mod evidence;
pub mod frames;
pub mod fresh;
pub mod ledger;
pub mod life;
pub mod look;
pub mod plan;
pub mod process;
pub mod promise;
pub mod script;
pub mod watch;
