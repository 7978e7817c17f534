//! `cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer http2`, see [`kerolox_fuzz::http2`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kerolox_fuzz::http2(data));
