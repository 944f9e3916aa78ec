//! PTHash (Pibiri and Trani, 2021), with which the CompassDB paper compares its function. Whoever wants it builds a library of
//! `pthash.cpp` beside its headers, and names it in `SPINNEY_PTHASH`:
//!
//! ```sh
//! git clone --recursive https://github.com/jermp/pthash && cd pthash && git checkout a95e8147
//! g++ -std=c++17 -O3 -march=native -DNDEBUG -shared -fPIC -I include -I external/xxHash -I external/bits/include \
//!     -I external/bits/external/essentials/include -I external/mm_file/include \
//!     …/crates/bench/src/hashes/pthash.cpp -o libspinney_pthash.so
//! ```

use std::ffi::c_void;
use std::sync::OnceLock;
use std::time::Instant;

use super::{Contestant, Found, asked};
use crate::engine::functions;

functions! {
    /// The functions of `pthash.cpp`.
    PtHash from env "SPINNEY_PTHASH", ["libspinney_pthash.so"] {
        fn pthash_build(*const u64, u64, f64, f64, u64) -> *mut c_void;
        fn pthash_bits(*const c_void) -> u64;
        fn pthash_slots(*const c_void) -> u64;
        fn pthash_slot(*const c_void, u64) -> u64;
        fn pthash_destroy(*mut c_void);
    }
}

/// As in the CompassDB paper (section 5.4): keys per bucket, and the load.
const BUCKET_KEYS: f64 = 5.0;
const LOAD: f64 = 0.9;

fn library() -> Option<&'static PtHash> {
    static LIBRARY: OnceLock<Option<PtHash>> = OnceLock::new();
    LIBRARY.get_or_init(|| PtHash::load().ok()).as_ref()
}

/// It, if the library is there.
pub(super) fn contestant() -> Option<Contestant> {
    library().map(|_| -> Contestant { ("PTHash", build) })
}

fn build(hashes: &[u64]) -> Found {
    let library = library().expect("it has been found");
    let count = hashes.len() as u64;
    let start = Instant::now();
    // SAFETY: there are so many keys, which it reads alone.
    let function = unsafe { (library.pthash_build)(hashes.as_ptr(), count, BUCKET_KEYS, LOAD, 1) };
    let elapsed = start.elapsed().as_nanos() as f64;
    assert!(!function.is_null(), "PTHash finds no function");
    // SAFETY: the function is not destroyed yet.
    let (bits, slots) =
        unsafe { ((library.pthash_bits)(function) as f64, (library.pthash_slots)(function)) };
    let found = asked(hashes, elapsed, bits, slots, |hash| {
        // SAFETY: as above.
        unsafe { (library.pthash_slot)(function, hash) }
    });
    // SAFETY: it is used no more.
    unsafe { (library.pthash_destroy)(function) };
    found
}
