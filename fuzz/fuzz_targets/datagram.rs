//! Datagrams to a member.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat_fuzz::Victim;

fuzz_target!(|bytes: &[u8]| {
    let mut victim = Victim::new();
    victim.datagram(bytes);
    // Behind an envelope that the member takes, so that the parts are reached.
    let envelope = victim.envelope();
    victim.datagram(&[&envelope, bytes].concat());
    victim.is_well();
});
