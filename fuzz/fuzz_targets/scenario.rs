//! Scenario files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat::sim::Scenario;

fuzz_target!(|text: &str| drop(Scenario::parse(text, &[])));
