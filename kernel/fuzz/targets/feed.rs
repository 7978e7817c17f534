//! `cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer feed`, see [`kerolox_fuzz::feed`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kerolox_fuzz::feed(data));
