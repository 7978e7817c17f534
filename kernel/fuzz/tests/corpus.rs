//! The corpus of each target, as it is and mutated: so that a find stays found without libFuzzer.
//!
//! `KEROLOX_FUZZ_TRIES=100000` tries longer than the default.
#![allow(missing_docs)]

use std::fs;
use std::path::Path;

/// Mutations of each file of a corpus.
const TRIES: usize = 30;

/// Numbers that look like chance and are the same in each run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    fn mutate(&mut self, data: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len());
            match self.below(6) {
                0 if !data.is_empty() => data[at] = self.below(256) as u8,
                1 if !data.is_empty() => data[at] ^= 1 << self.below(8),
                2 => data.truncate(at),
                3 => data.insert(at, kerolox_fuzz::CUT),
                4 => {
                    let number = [0, 1, 0x7F, 0x80, 0xFF][self.below(5)];
                    let end = (at + 4).min(data.len());
                    data[at..end].fill(number);
                }
                _ => {
                    let piece = data[at..(at + self.below(64)).min(data.len())].to_vec();
                    let to = self.below(data.len());
                    data.splice(to..to, piece);
                }
            }
        }
    }
}

fn replay(name: &str, target: fn(&[u8])) {
    let tries = std::env::var("KEROLOX_FUZZ_TRIES").ok().and_then(|text| text.parse().ok());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    for file in files {
        let bytes = fs::read(&file).unwrap();
        target(&bytes);
        for _ in 0..tries.unwrap_or(TRIES) {
            let mut changed = bytes.clone();
            chance.mutate(&mut changed);
            target(&changed);
        }
    }
}

#[test]
fn chunks_give_the_same_however_they_are_cut() {
    replay("feed", kerolox_fuzz::feed);
}

#[test]
fn what_an_account_is_answered_everybody_would_be_without_accounts() {
    replay("access", kerolox_fuzz::access);
}

#[test]
fn http2_means_the_same_however_it_is_cut() {
    replay("http2", kerolox_fuzz::http2);
}

#[test]
fn records_are_read_or_refused() {
    replay("record", kerolox_fuzz::record);
}

#[test]
fn damaged_stores_open() {
    replay("recovery", kerolox_fuzz::recovery);
}
