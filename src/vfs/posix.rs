//! (to be written)

/// The operating system's files.
#[derive(Debug)]
pub struct PosixVfs;
impl PosixVfs { /// stub
 pub fn new() -> PosixVfs { PosixVfs } }
