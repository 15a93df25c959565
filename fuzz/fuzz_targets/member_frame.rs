//! Frames of membership from a node that a member has admitted, and to a node that joins.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat_fuzz::{Victim, join};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    if kind % 2 == 0 {
        Victim::new().frame(kind / 2, rest);
    } else {
        join(rest);
    }
});
