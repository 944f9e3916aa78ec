//! (to be written)

/// Files in memory, for tests and in-memory stores.
#[derive(Debug)]
pub struct MemoryVfs;
impl MemoryVfs { /// stub
 pub fn new() -> MemoryVfs { MemoryVfs } }
