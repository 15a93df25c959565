//! A connection to the HTTP surface.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((size, rest)) = bytes.split_first() else { return };
    let whole = wingbeat::admin::read_requests(rest, rest.len().max(1));
    // However the bytes are cut, they are the same requests.
    assert_eq!(wingbeat::admin::read_requests(rest, usize::from(*size).max(1)).0, whole.0);
});
