//! Signatures of requests: `HmacSHA1` as base64 (`AclSigner`).

use std::fmt;

use ctutils::CtEq;
use sha1::block_api::compress;

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 28;

/// Bytes behind a text that the check of its signature writes to.
pub const SLACK_BYTES: usize = BLOCK_BYTES;

/// Bytes of the hash, and of what it takes at a time.
const HASH_BYTES: usize = 20;
const BLOCK_BYTES: usize = 64;

/// Bytes of the length at the end of the last block.
const LENGTH_BYTES: usize = 8;

const INNER_PAD: u8 = 0x36;
const OUTER_PAD: u8 = 0x5C;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What a hash has become of the blocks until now.
type State = [u32; 5];

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
            key[..HASH_BYTES].copy_from_slice(&finish(START, 0, secret));
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

    /// The signature of the first `size` bytes of `text`, with a body behind them. `text` has
    /// [`SLACK_BYTES`] more, which are changed.
    #[must_use]
    pub fn sign(&self, text: &mut [u8], size: usize, body: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut state = self.inner;
        // The last block of the text is filled from the body.
        let filled = size.next_multiple_of(BLOCK_BYTES).min(size + body.len());
        let (first, body) = body.split_at(filled - size);
        text[size..filled].copy_from_slice(first);
        let (blocks, rest) = text[..filled].as_chunks();
        compress(&mut state, blocks);
        let before = BLOCK_BYTES * (1 + blocks.len());
        // Whatever is left of the text, all of the body was put behind it.
        let hash = finish(state, before, if rest.is_empty() { body } else { rest });
        base64(&finish(self.outer, BLOCK_BYTES, &hash))
    }

    /// Whether a signature is right; how long that takes does not tell where it is wrong. `text`
    /// as in [`SigningKey::sign`].
    #[must_use]
    pub fn is_right(&self, text: &mut [u8], size: usize, body: &[u8], signature: &[u8]) -> bool {
        signature.len() == SIGNATURE_BYTES
            && self.sign(text, size, body)[..].ct_eq(signature).to_bool()
    }
}

/// The hash of so many bytes that made the state, and of those that come last.
fn finish(mut state: State, before: usize, text: &[u8]) -> [u8; HASH_BYTES] {
    let (blocks, rest) = text.as_chunks();
    compress(&mut state, blocks);
    let mut last = [[0; BLOCK_BYTES]; 2];
    let is_long = rest.len() + 1 + LENGTH_BYTES > BLOCK_BYTES;
    let last = &mut last[..=usize::from(is_long)];
    last[0][..rest.len()].copy_from_slice(rest);
    last[0][rest.len()] = 0x80;
    let bits = 8 * (before + text.len()) as u64;
    last[usize::from(is_long)][BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&bits.to_be_bytes());
    compress(&mut state, last);
    let mut hash = [0; HASH_BYTES];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

/// A hash as base64.
fn base64(hash: &[u8; HASH_BYTES]) -> [u8; SIGNATURE_BYTES] {
    let mut out = [b'='; SIGNATURE_BYTES];
    for (letters, bytes) in out.chunks_exact_mut(4).zip(hash.chunks(3)) {
        let word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        // The last two bytes of twenty are three letters.
        let word = word << (8 * (3 - bytes.len()));
        for (place, letter) in letters[..=bytes.len()].iter_mut().enumerate() {
            *letter = ALPHABET[(word >> (18 - 6 * place)) as usize & 0x3F];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and signature of RocketMQ's own test (`AclSignerTest`).
    const TEXT: &[u8] = b"Hello RocketMQ Client ACL Feature";
    const SECRET: &[u8] = b"adiaushdiaushd";
    const SIGNATURE: &[u8; SIGNATURE_BYTES] = b"tAb/54Rwwcq+pbH8Loi7FWX4QSQ=";

    fn sign(secret: &[u8], text: &[u8], body: &[u8]) -> String {
        let mut buffer = [text, &[0xEE; SLACK_BYTES]].concat();
        let signature = SigningKey::new(secret).sign(&mut buffer, text.len(), body);
        assert_eq!(&buffer[..text.len()], text);
        signature.escape_ascii().to_string()
    }

    fn is_right(text: &[u8], body: &[u8], signature: &[u8]) -> bool {
        let mut buffer = [text, &[0; SLACK_BYTES]].concat();
        SigningKey::new(SECRET).is_right(&mut buffer, text.len(), body, signature)
    }

    #[test]
    fn signatures_are_those_of_rocketmq() {
        for cut in 0..=TEXT.len() {
            assert_eq!(sign(SECRET, &TEXT[..cut], &TEXT[cut..]).as_bytes(), SIGNATURE);
        }
        assert!(is_right(TEXT, b"", SIGNATURE));
    }

    #[test]
    fn where_the_body_begins_does_not_matter() {
        // Of 0 to 400 bytes each; the signatures of all of them, signed.
        let bytes: Vec<u8> = (0..400_u16).map(|number| (number * 7 % 251) as u8).collect();
        let mut all = String::new();
        for size in 0..bytes.len() {
            let whole = sign(SECRET, &bytes[..size], b"");
            for cut in [0, 1, size / 3, size / 2, size.saturating_sub(1), size] {
                assert_eq!(
                    sign(SECRET, &bytes[..cut.min(size)], &bytes[cut.min(size)..size]),
                    whole
                );
            }
            all.push_str(&whole);
        }
        assert_eq!(sign(SECRET, all.as_bytes(), b""), "67iffZc6kDVTLcnLPYp8NB7K4KU=");
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

    /// The vectors of RFC 2202, whose keys are shorter and longer than a block.
    #[test]
    fn keys_have_any_length() {
        let cases: [(&[u8], &[u8], &str); 3] = [
            (&[0x0B; 20], b"Hi There", "thcxhlUFcmTii8C2+zeMjvFGvgA="),
            (b"Jefe", b"what do ya want for nothing?", "7/zfauXrL6LSdBbV8YTfnCWafHk="),
            (
                &[0xAA; 80],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "qkrl4VJy0A6VcFY3zoo7Ve1AIRI=",
            ),
        ];
        for (secret, text, signature) in cases {
            assert_eq!(sign(secret, text, b""), signature);
        }
    }

    #[test]
    fn a_key_does_not_show_its_secret() {
        assert_eq!(format!("{:?}", SigningKey::new(SECRET)), "SigningKey");
    }
}
