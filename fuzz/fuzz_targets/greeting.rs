//! The first bytes of a link.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat::proto::wire::Greeting;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((greeting, taken))) = Greeting::decode(bytes) {
        assert!(taken <= bytes.len());
        let mut again = vec![];
        greeting.encode(&mut again);
        assert_eq!(Greeting::decode(&again).ok().flatten().map(|(g, _)| g), Some(greeting));
    }
});
