//! Signatures of requests: `HmacSHA1` as base64 (`AclSigner`).

use std::fmt;

use ctutils::CtEq;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 28;

/// Bytes of the hash.
const HASH_BYTES: usize = 20;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A secret, ready to sign: the state of the hash behind each of its two pads.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha1>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningKey")
    }
}

impl SigningKey {
    /// The key of a secret of any length.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("a key of HMAC has any length"))
    }

    /// The signature of a text with a body behind it.
    #[must_use]
    pub fn sign(&self, text: &[u8], body: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut mac = self.0.clone();
        mac.update(text);
        mac.update(body);
        base64(&mac.finalize().into_bytes().into())
    }

    /// Whether a signature is right; how long that takes does not tell where it is wrong.
    #[must_use]
    pub fn is_right(&self, text: &[u8], body: &[u8], signature: &[u8]) -> bool {
        signature.len() == SIGNATURE_BYTES && self.sign(text, body)[..].ct_eq(signature).to_bool()
    }
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

    #[test]
    fn signatures_are_those_of_rocketmq() {
        let key = SigningKey::new(SECRET);
        for cut in 0..=TEXT.len() {
            assert_eq!(&key.sign(&TEXT[..cut], &TEXT[cut..]), SIGNATURE);
        }
        assert!(key.is_right(TEXT, b"", SIGNATURE));
    }

    #[test]
    fn a_signature_that_is_wrong_anywhere_or_cut_is_refused() {
        let key = SigningKey::new(SECRET);
        for at in 0..SIGNATURE_BYTES {
            for bit in 0..8 {
                let mut wrong = *SIGNATURE;
                wrong[at] ^= 1 << bit;
                assert!(!key.is_right(TEXT, b"", &wrong));
            }
            assert!(!key.is_right(TEXT, b"", &SIGNATURE[..at]));
        }
        assert!(!key.is_right(TEXT, b"", &[&SIGNATURE[..], b"="].concat()));
        assert!(!key.is_right(TEXT, b"x", SIGNATURE));
        // The same hash, to who ignores the two bits that its letters have too many.
        assert!(!key.is_right(TEXT, b"", b"tAb/54Rwwcq+pbH8Loi7FWX4QSR="));
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
            let signed = SigningKey::new(secret).sign(text, b"");
            assert_eq!(signed.escape_ascii().to_string(), signature.escape_ascii().to_string());
        }
    }

    #[test]
    fn a_key_does_not_show_its_secret() {
        assert_eq!(format!("{:?}", SigningKey::new(SECRET)), "SigningKey");
    }
}
