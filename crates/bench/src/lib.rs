//! Spinney beside the stores people use: the same work, the same memory, one run.
//!
//! `data` makes keys, values and choices that can be checked without a copy; `engine` is every store
//! behind one interface; `workload` is what is done with them; `measure` asks the operating system and
//! the device; `compare` runs it all and puts it together; `plot` draws it; `document` makes the tables of
//! `docs/benchmarks.md`, which is for users.

pub mod compare;
pub mod data;
pub mod document;
pub mod engine;
pub mod instructions;
pub mod measure;
pub mod plot;
pub mod workload;
