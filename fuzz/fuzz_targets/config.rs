//! Configuration files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wingbeat::Config;

fuzz_target!(|text: &str| {
    if let Ok(config) = Config::from_toml(text) {
        let _ = config.validate();
        let _ = config.warnings();
    }
});
