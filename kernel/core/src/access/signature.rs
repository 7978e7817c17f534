//! Signatures of requests: `HmacSHA1` as base64 (`AclSigner`).

use std::fmt;

use ctutils::CtEq;
use sha1::block_api::compress;

use super::sha1_lanes::{BLOCK_BYTES, Block, Lane, State, compress_all};
use crate::wire::grpc::HASH_BYTES;

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 28;

/// Bytes behind a text that the check of its signature writes to.
pub const SLACK_BYTES: usize = COPIED_BYTES_MAX + 3 * BLOCK_BYTES;

/// A body up to this long is copied behind its text, so that there is one run of blocks.
const COPIED_BYTES_MAX: usize = 512;

/// Bytes of the length at the end of the last block.
const LENGTH_BYTES: usize = 8;

const INNER_PAD: u8 = 0x36;
const OUTER_PAD: u8 = 0x5C;

const START: State = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];

/// A secret, ready to sign: the state of the hash behind each of its two pads.
#[derive(Clone)]
pub struct SigningKey {
    inner: State,
    outer: State,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningKey")
    }
}

impl SigningKey {
    /// The key of a secret of any length.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        let mut key = [0; BLOCK_BYTES];
        if secret.len() > BLOCK_BYTES {
            key[..HASH_BYTES].copy_from_slice(&hash_of(secret));
        } else {
            key[..secret.len()].copy_from_slice(secret);
        }
        let behind = |pad: u8| {
            let mut state = START;
            compress(&mut state, &[key.map(|byte| byte ^ pad)]);
            state
        };
        Self { inner: behind(INNER_PAD), outer: behind(OUTER_PAD) }
    }
}

/// One signature, to be checked: of a text and a body behind it.
#[derive(Debug)]
pub struct Check<'a> {
    key: &'a SigningKey,
    /// Text, body and padding, whole blocks.
    parts: [&'a [Block]; 3],
    given: &'a [u8],
}

impl<'a> Check<'a> {
    /// The check of a signature for the first `size` bytes of `text` and a body. `text` has
    /// [`SLACK_BYTES`] more, which are changed.
    #[must_use]
    pub fn new(
        key: &'a SigningKey,
        text: &'a mut [u8],
        size: usize,
        body: &'a [u8],
        given: &'a [u8],
    ) -> Self {
        // A long body stays where it is, but for its ends, which share blocks with others.
        let copied = if body.len() <= COPIED_BYTES_MAX {
            body.len()
        } else {
            size.next_multiple_of(BLOCK_BYTES) - size
        };
        let (first, rest) = body.split_at(copied);
        let (middle, last) = rest.as_chunks();
        let first_end = size + copied;
        text[size..first_end].copy_from_slice(first);
        let last_end = first_end + last.len();
        text[first_end..last_end].copy_from_slice(last);
        let end = pad(text, last_end, BLOCK_BYTES + size + body.len());
        let text: &[u8] = text;
        let (blocks, _) = text[..end].as_chunks();
        let is_whole = middle.is_empty() && last.is_empty();
        let (head, tail) =
            blocks.split_at(if is_whole { blocks.len() } else { first_end / BLOCK_BYTES });
        Self { key, parts: [head, middle, tail], given }
    }
}

/// Whether each of these signatures is right; false where there is none to check. How long it takes
/// does not report where one is wrong.
#[must_use]
pub fn are_right<const N: usize>(checks: &[Option<Check<'_>>; N]) -> [bool; N] {
    let mut lanes = checks.each_ref().map(|check| match check {
        Some(check) => Lane::new(check.key.inner, check.parts),
        None => Lane::default(),
    });
    compress_all(&mut lanes);
    let mut last = [0; BLOCK_BYTES];
    pad(&mut last, HASH_BYTES, BLOCK_BYTES + HASH_BYTES);
    let mut hashes = [last; N];
    for (hash, lane) in hashes.iter_mut().zip(&lanes) {
        hash[..HASH_BYTES].copy_from_slice(&bytes_of(lane.state));
    }
    for ((lane, check), hash) in lanes.iter_mut().zip(checks).zip(hashes.chunks(1)) {
        if let Some(check) = check {
            *lane = Lane::new(check.key.outer, [hash, &[], &[]]);
        }
    }
    compress_all(&mut lanes);
    let signatures = lanes.map(|lane| base64(&bytes_of(lane.state)));
    let mut answers = [false; N];
    for ((answer, check), signature) in answers.iter_mut().zip(checks).zip(&signatures) {
        *answer = check.as_ref().is_some_and(|check| is_equal(signature, check.given));
    }
    answers
}

/// Whether a hash is the `HmacSHA1` of a text.
#[must_use]
pub fn is_hash_right(key: &SigningKey, text: &[u8], hash: &[u8; HASH_BYTES]) -> bool {
    let mut buffer = [text, &[0; SLACK_BYTES]].concat();
    let given = base64(hash);
    let [is_right] = are_right(&[Some(Check::new(key, &mut buffer, text.len(), b"", &given))]);
    is_right
}

fn is_equal(signature: &[u8; SIGNATURE_BYTES], given: &[u8]) -> bool {
    let Ok(given) = <&[u8; SIGNATURE_BYTES]>::try_from(given) else {
        return false;
    };
    let differences = signature.iter().zip(given).fold(0, |bits, (one, two)| bits | (one ^ two));
    differences.ct_eq(&0).to_bool()
}

/// Pads a text of so many bytes, of `all` that were hashed, to whole blocks; where they end.
fn pad(text: &mut [u8], size: usize, all: usize) -> usize {
    let end = (size + 1 + LENGTH_BYTES).next_multiple_of(BLOCK_BYTES);
    if let Some(room) = text[size..].first_chunk_mut::<{ BLOCK_BYTES + LENGTH_BYTES }>() {
        // As many as there may be: a fixed number is quicker.
        room.fill(0);
    } else {
        text[size..end].fill(0);
    }
    text[size] = 0x80;
    text[end - LENGTH_BYTES..end].copy_from_slice(&(8 * all as u64).to_be_bytes());
    end
}

fn hash_of(text: &[u8]) -> [u8; HASH_BYTES] {
    let mut padded = [text, &[0; 2 * BLOCK_BYTES]].concat();
    let end = pad(&mut padded, text.len(), text.len());
    let mut state = START;
    compress(&mut state, padded[..end].as_chunks().0);
    bytes_of(state)
}

fn bytes_of(state: State) -> [u8; HASH_BYTES] {
    let mut bytes = [0; HASH_BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

/// A hash as base64.
fn base64(hash: &[u8; HASH_BYTES]) -> [u8; SIGNATURE_BYTES] {
    // Six bytes are eight letters, the last ones of bytes that are 0.
    let mut padded = [0; 4 * 6];
    padded[..HASH_BYTES].copy_from_slice(hash);
    let mut values = [0; 4 * 8];
    for (eight, six) in values.chunks_exact_mut(8).zip(padded.chunks_exact(6)) {
        let word = six.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // Each half of what is together moves away from the other.
        let word = word >> 24 << 32 | word & ((1 << 24) - 1);
        let word = (word & 0x00FF_F000_00FF_F000) << 4 | word & 0x0000_0FFF_0000_0FFF;
        let word = (word & 0x0FC0_0FC0_0FC0_0FC0) << 2 | word & 0x003F_003F_003F_003F;
        eight.copy_from_slice(&word.to_be_bytes());
    }
    let letters = values.map(letter);
    let mut out = [b'='; SIGNATURE_BYTES];
    out[..SIGNATURE_BYTES - 1].copy_from_slice(&letters[..SIGNATURE_BYTES - 1]);
    out
}

/// The letter of six bits; computed, so that many are at once and no place of memory depends on
/// them.
fn letter(value: u8) -> u8 {
    let above = |bound: u8| u8::from(value > bound);
    value + b'A' + 6 * above(25) - 75 * above(51) - 15 * above(61) + 3 * above(62)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Key and signature of RocketMQ's own test (`AclSignerTest`).
    const TEXT: &[u8] = b"Hello RocketMQ Client ACL Feature";
    const SECRET: &[u8] = b"adiaushdiaushd";
    const SIGNATURE: &[u8; SIGNATURE_BYTES] = b"tAb/54Rwwcq+pbH8Loi7FWX4QSQ=";

    fn is_signed(secret: &[u8], text: &[u8], body: &[u8], signature: &[u8]) -> bool {
        let mut buffer = [text, &[0xEE; SLACK_BYTES]].concat();
        let key = SigningKey::new(secret);
        let check = Check::new(&key, &mut buffer, text.len(), body, signature);
        let [is_right] = are_right(&[Some(check)]);
        assert_eq!(&buffer[..text.len()], text);
        is_right
    }

    fn is_right(text: &[u8], body: &[u8], signature: &[u8]) -> bool {
        is_signed(SECRET, text, body, signature)
    }

    /// What RFC 2104 says, of one text after the other.
    fn sign(secret: &[u8], text: &[u8]) -> String {
        let mut key =
            if secret.len() > BLOCK_BYTES { hash_of(secret).to_vec() } else { secret.to_vec() };
        key.resize(BLOCK_BYTES, 0);
        let padded = |pad: u8| key.iter().map(|byte| byte ^ pad).collect::<Vec<u8>>();
        let inner = hash_of(&[padded(INNER_PAD), text.to_vec()].concat());
        let hash = hash_of(&[padded(OUTER_PAD), inner.to_vec()].concat());
        let bits: Vec<u8> =
            hash.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
        let value = |six: &[u8]| (0..6).fold(0, |value, at| value << 1 | six.get(at).unwrap_or(&0));
        let letters = bits.chunks(6).map(|six| ALPHABET[usize::from(value(six))] as char);
        letters.chain(['=']).collect()
    }

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    #[test]
    fn signatures_are_those_of_rocketmq() {
        for cut in 0..=TEXT.len() {
            assert!(is_right(&TEXT[..cut], &TEXT[cut..], SIGNATURE));
        }
        assert_eq!(sign(SECRET, TEXT).as_bytes(), SIGNATURE);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn texts_and_bodies_of_any_lengths_are_checked_together(
            texts in vec((vec(any::<u8>(), 0..400), vec(any::<u8>(), 0..5000), vec(any::<u8>(), 0..100), 0..3_u8), 0..8)
        ) {
            const TOGETHER: usize = 8;
            let keys: Vec<_> = texts.iter().map(|(_, _, secret, _)| SigningKey::new(secret)).collect();
            let mut buffers: Vec<_> =
                texts.iter().map(|(text, ..)| [text, &[0xEE; SLACK_BYTES][..]].concat()).collect();
            let given: Vec<_> = texts
                .iter()
                .map(|(text, body, secret, kind)| {
                    let mut signature = sign(secret, &[&text[..], body].concat()).into_bytes();
                    signature[usize::from(text.len() % 28 == 0)] ^= u8::from(*kind == 1);
                    signature
                })
                .collect();
            let mut checks = [const { None }; TOGETHER];
            for (at, buffer) in buffers.iter_mut().enumerate() {
                let (text, body, _, kind) = &texts[at];
                if *kind < 2 {
                    checks[at] = Some(Check::new(&keys[at], buffer, text.len(), body, &given[at]));
                }
            }
            let answers = are_right(&checks);
            for (at, answer) in answers.into_iter().enumerate() {
                prop_assert_eq!(answer, texts.get(at).is_some_and(|text| text.3 == 0), "{}", at);
            }
        }
    }

    #[test]
    fn where_the_body_begins_does_not_matter() {
        let bytes: Vec<u8> = (0..700_u16).map(|number| (number * 7 % 251) as u8).collect();
        for size in 0..bytes.len() {
            let signature = sign(SECRET, &bytes[..size]);
            for cut in [0, 1, size / 3, size / 2, size.saturating_sub(1), size] {
                let (text, body) = bytes[..size].split_at(cut.min(size));
                assert!(is_right(text, body, signature.as_bytes()), "{size} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_signature_that_is_wrong_anywhere_or_cut_is_refused() {
        for at in 0..SIGNATURE_BYTES {
            for bit in 0..8 {
                let mut wrong = *SIGNATURE;
                wrong[at] ^= 1 << bit;
                assert!(!is_right(TEXT, b"", &wrong));
            }
            assert!(!is_right(TEXT, b"", &SIGNATURE[..at]));
        }
        assert!(!is_right(TEXT, b"", &[&SIGNATURE[..], b"="].concat()));
        assert!(!is_right(TEXT, b"x", SIGNATURE));
        // The same hash, to who ignores the two bits that its letters have too many.
        assert!(!is_right(TEXT, b"", b"tAb/54Rwwcq+pbH8Loi7FWX4QSR="));
    }

    #[test]
    fn a_hash_is_checked_as_its_letters_are() {
        let key = SigningKey::new(b"Jefe");
        let mut hash =
            *b"\xef\xfc\xdf\x6a\xe5\xeb\x2f\xa2\xd2\x74\x16\xd5\xf1\x84\xdf\x9c\x25\x9a\x7c\x79";
        assert!(is_hash_right(&key, b"what do ya want for nothing?", &hash));
        assert!(!is_hash_right(&key, b"what do ya want for nothing", &hash));
        hash[19] ^= 1;
        assert!(!is_hash_right(&key, b"what do ya want for nothing?", &hash));
    }

    /// The vectors of RFC 2202, whose keys are shorter and longer than a block.
    #[test]
    fn keys_have_any_length() {
        let cases: [(&[u8], &[u8], &[u8]); 3] = [
            (&[0x0B; 20], b"Hi There", b"thcxhlUFcmTii8C2+zeMjvFGvgA="),
            (b"Jefe", b"what do ya want for nothing?", b"7/zfauXrL6LSdBbV8YTfnCWafHk="),
            (
                &[0xAA; 80],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                b"qkrl4VJy0A6VcFY3zoo7Ve1AIRI=",
            ),
        ];
        for (secret, text, signature) in cases {
            assert!(is_signed(secret, text, b"", signature));
        }
    }

    #[test]
    fn every_six_bits_have_their_letter() {
        for (value, expected) in ALPHABET.iter().enumerate() {
            assert_eq!(letter(value as u8), *expected);
        }
    }

    #[test]
    fn a_key_does_not_show_its_secret() {
        assert_eq!(format!("{:?}", SigningKey::new(SECRET)), "SigningKey");
    }
}
