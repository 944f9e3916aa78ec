//! Torture: stores of gigabytes, worked on by a process that is killed again and again, judged by
//! another that knows what must be there: data, and memory, space, descriptors, stalls and the time
//! to open.
//!
//! 1. [`script`] is what a store holds and what is done to it, as functions of a seed.
//! 2. [`ledger`] is what the parent knows, and compares with what is read.
//! 3. [`plan`] is what a child is to do; [`child`] does it and tells it in [`frames`]; [`look`] is
//!    how it reads what it has found.
//! 4. [`process`] asks the system about the child; [`promise`] says how much of everything is too
//!    much; [`fresh`] how much space would be right.
//! 5. [`life`] starts a child, which [`watch`] looks at and kills, and judges it; [`evidence`] is
//!    what a violation needs to be shown again.

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
