//! A link's stream of frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat::proto::wire::{Context, Cut, Decoded, cut, decode, encode, encode_link, link_frame_in};

const MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let cx = Context { sender: wingbeat::NodeId::from_raw(1), now: wingbeat::Time::from_nanos(1) };
    let mut rest = bytes;
    while let Ok(Cut::Frame(n)) = cut(rest, MAX) {
        if let Some(Ok(frame)) = link_frame_in(&rest[..n]) {
            let mut again = vec![];
            encode_link(frame, &mut again);
            assert_eq!(again, rest[..n]);
        }
        if let Ok(Decoded::Frame(frame)) = decode(&rest[..n], cx) {
            let mut again = vec![];
            if encode(&frame, cx, usize::MAX, &mut again).is_ok() {
                assert_eq!(decode(&again, cx), Ok(Decoded::Frame(frame)));
            }
        }
        rest = &rest[n..];
    }
});
