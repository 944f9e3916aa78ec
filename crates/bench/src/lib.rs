//! Compares Spinney with other stores: the same work, the same memory, one run.
//!
//! `data` makes keys, values and choices that can be checked without a copy; `engine` is every store
//! behind one interface; `workload` has the operations; `measure` reads the operating system's counters and measures
//! the device; `compare` runs everything and makes the results; `plot` draws them; `document` makes the tables of
//! `docs/benchmarks.md`, which is for users; `hashes` compares perfect hash functions.

pub mod compare;
pub mod data;
pub mod document;
pub mod engine;
pub mod hashes;
pub mod instructions;
pub mod measure;
pub mod plot;
pub mod workload;
