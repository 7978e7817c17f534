//! Numbers as Java writes them.

use super::swar;

/// A 64-bit integer as Java's `Long.toString` writes it.
#[inline]
#[must_use]
pub fn long(text: &[u8]) -> Option<i64> {
    if let [digit @ b'0'..=b'9'] = text {
        return Some(i64::from(digit - b'0'));
    }
    many_digits(text)
}

fn many_digits(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    // Java would take a leading zero; no client writes one, and the Python kernel declines it.
    if digits[0] == b'0' {
        return None;
    }
    let mut value = 0u64;
    let mut rest = digits;
    while let Some((eight, after)) = rest.split_first_chunk::<8>() {
        let (eight, count) = swar::leading_digits(u64::from_le_bytes(*eight));
        if count < 8 {
            return None;
        }
        value = value * 100_000_000 + eight;
        rest = after;
    }
    for digit in rest {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits fit into 64 bits without sign.
        value = value * 10 + u64::from(digit);
    }
    if negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// A 32-bit integer as Java's `Integer.toString` writes it.
#[inline]
#[must_use]
pub fn integer(text: &[u8]) -> Option<i32> {
    i32::try_from(long(text)?).ok()
}
