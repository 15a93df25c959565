//! A link's stream of frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat::proto::wire::{Context, Cut, Decoded, cut, decode, encode};

const MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let cx = Context { sender: wingbeat::NodeId::from_raw(1), now: wingbeat::Time::from_nanos(1) };
    let mut rest = bytes;
    while let Ok(Cut::Frame(n)) = cut(rest, MAX) {
        if let Ok(Decoded::Frame(frame)) = decode(&rest[..n], cx) {
            let mut again = vec![];
            if encode(&frame, cx, usize::MAX, &mut again).is_ok() {
                assert_eq!(decode(&again, cx), Ok(Decoded::Frame(frame)));
            }
        }
        rest = &rest[n..];
    }
});
