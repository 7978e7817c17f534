//! `cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer record`, see [`kerolox_fuzz::record`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kerolox_fuzz::record(data));
