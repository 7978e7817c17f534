//! `cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer access`, see [`kerolox_fuzz::access`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kerolox_fuzz::access(data));
