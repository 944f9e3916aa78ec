//! CHD (Belazzougui, Botelho, Dietzfelbinger, 2009), with which the CompassDB paper compares its function: that of the C
//! library cmph, if it is installed.

use std::ffi::{c_char, c_double, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::time::Instant;

use super::{Contestant, Found, asked};
use crate::engine::functions;

functions! {
    /// What is used of cmph.
    Cmph from ["libcmph.so.0", "libcmph.so"] {
        fn cmph_io_struct_vector_adapter(*mut c_void, u32, u32, u32, u32) -> *mut c_void;
        fn cmph_io_struct_vector_adapter_destroy(*mut c_void);
        fn cmph_config_new(*mut c_void) -> *mut c_void;
        fn cmph_config_set_algo(*mut c_void, c_uint);
        fn cmph_config_set_graphsize(*mut c_void, c_double);
        fn cmph_config_set_b(*mut c_void, u32);
        fn cmph_config_destroy(*mut c_void);
        fn cmph_new(*mut c_void) -> *mut c_void;
        fn cmph_search(*mut c_void, *const c_char, u32) -> u32;
        fn cmph_packed_size(*mut c_void) -> u32;
        fn cmph_destroy(*mut c_void);
    }
}

/// `CMPH_CHD` of its header.
const CHD: c_uint = 8;
/// As in the paper (section 5.4): the load, and keys per bucket.
const LOAD: c_double = 0.9;
const BUCKET_KEYS: u32 = 5;
const KEY_BYTES: u32 = size_of::<u64>() as u32;

fn library() -> Option<&'static Cmph> {
    static LIBRARY: OnceLock<Option<Cmph>> = OnceLock::new();
    LIBRARY.get_or_init(|| Cmph::load().ok()).as_ref()
}

/// It, if the library is there.
pub(super) fn contestant() -> Option<Contestant> {
    library().map(|_| -> Contestant { ("cmph CHD", build) })
}

fn build(hashes: &[u64]) -> Found {
    let cmph = library().expect("it has been found");
    let mut keys = hashes.to_vec();
    let count = u32::try_from(keys.len()).expect("fewer than 2^32 keys");
    let start = Instant::now();
    // SAFETY: the keys outlive the adapter, and the configuration the function's construction; each is destroyed once.
    let function = unsafe {
        let keys = keys.as_mut_ptr().cast();
        let adapter = (cmph.cmph_io_struct_vector_adapter)(keys, KEY_BYTES, 0, KEY_BYTES, count);
        let config = (cmph.cmph_config_new)(adapter);
        (cmph.cmph_config_set_algo)(config, CHD);
        (cmph.cmph_config_set_graphsize)(config, LOAD);
        (cmph.cmph_config_set_b)(config, BUCKET_KEYS);
        let function = (cmph.cmph_new)(config);
        (cmph.cmph_config_destroy)(config);
        (cmph.cmph_io_struct_vector_adapter_destroy)(adapter);
        function
    };
    let elapsed = start.elapsed().as_nanos() as f64;
    assert!(!function.is_null(), "cmph finds no function");
    // SAFETY: the function is not destroyed yet.
    let bits = unsafe { (cmph.cmph_packed_size)(function) } as f64 * 8.0;
    let found = asked(hashes, elapsed, bits, u64::from(count), |hash| {
        // SAFETY: as above; the key is as long as it says.
        let slot = unsafe { (cmph.cmph_search)(function, ptr::from_ref(&hash).cast(), KEY_BYTES) };
        u64::from(slot)
    });
    // SAFETY: it is used no more.
    unsafe { (cmph.cmph_destroy)(function) };
    found
}
