//! `cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer recovery`, see [`kerolox_fuzz::recovery`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kerolox_fuzz::recovery(data));
