//! A cursor over the JSON that clients write.

use super::numbers::integer;
use super::swar;

/// `"x":"` with any letter, and which of its bytes count.
const LETTER_TEXT: u64 = u64::from_le_bytes([b'"', 0, b'"', b':', b'"', 0, 0, 0]);
const LETTER_MASK: u64 = u64::from_le_bytes([0xFF, 0, 0xFF, 0xFF, 0xFF, 0, 0, 0]);

/// A cursor over JSON text.
pub(crate) struct Json<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Json<'a> {
    /// The next byte that is no white space, taken.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u8> {
        loop {
            let byte = *self.data.get(self.at)?;
            self.at += 1;
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// The commonest start of a field, a letter from a to n: `"x":"` taken, the letter's number,
    /// and whether the value is a single character. Anything else is left for the slow path.
    #[inline]
    pub(crate) fn letter(&mut self) -> Option<(u8, bool)> {
        let word = swar::word_at(self.data, self.at)?;
        let [_, letter, _, _, _, value, quote, _] = word.to_le_bytes();
        if word & LETTER_MASK != LETTER_TEXT || !letter.is_ascii_lowercase() || letter > b'n' {
            return None;
        }
        self.at += 5;
        let is_short = quote == b'"' && value >= 0x20 && value != b'"' && value != b'\\';
        Some((letter - b'a', is_short))
    }

    /// Whether so many bytes follow; they are taken then.
    #[inline]
    pub(crate) fn starts_with<const N: usize>(&mut self, bytes: &[u8; N]) -> bool {
        let found = self.data.get(self.at..).and_then(<[u8]>::first_chunk::<N>) == Some(bytes);
        self.at += if found { N } else { 0 };
        found
    }

    /// Nothing but white space may be left.
    pub(crate) fn end(&mut self) -> Option<()> {
        self.next().is_none().then_some(())
    }

    /// A text without escapes: its span.
    #[inline]
    pub(crate) fn plain_text(&mut self) -> Option<(usize, usize)> {
        self.take(b'"')?;
        let start = self.at;
        if self.skip_plain()? != b'"' {
            return None;
        }
        let end = self.at;
        self.at += 1;
        Some((start, end))
    }

    /// A text without escapes.
    #[inline]
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let (start, end) = self.plain_text()?;
        Some(&self.data[start..end])
    }

    /// An object: `read` takes the value of each member, by its name; None from it ends all.
    #[inline]
    pub(crate) fn members(
        &mut self,
        mut read: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        loop {
            let name = self.text()?;
            self.take(b':')?;
            read(self, name)?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// A text without escapes, or null.
    pub(crate) fn text_or_null(&mut self) -> Option<()> {
        if self.next()? == b'"' {
            self.at -= 1;
            return self.plain_text().map(|_| ());
        }
        let null = self.data.get(self.at - 1..self.at + 3)?;
        self.at += 3;
        (null == b"null").then_some(())
    }

    /// Moves to the next quote or backslash and returns it; None for a raw control character,
    /// which JSON forbids, and at the end.
    #[inline]
    pub(crate) fn skip_plain(&mut self) -> Option<u8> {
        let mut at = self.at;
        let stop = loop {
            if let Some(word) = swar::word_at(self.data, at) {
                let marks =
                    swar::equal(word, b'"') | swar::equal(word, b'\\') | swar::below(word, 0x20);
                if marks == 0 {
                    at += 8;
                    continue;
                }
                at += swar::first(marks);
                break self.data[at];
            }
            match *self.data.get(at)? {
                stop @ (b'"' | b'\\' | 0..=0x1F) => break stop,
                _ => at += 1,
            }
        };
        self.at = at;
        (stop >= 0x20).then_some(stop)
    }

    /// A whole number of 32 bits.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<i32> {
        let first = self.next()?;
        let start = self.at - 1;
        if first.is_ascii_digit() {
            if let Some(word) = swar::word_at(self.data, start) {
                let (value, digits) = swar::leading_digits(word);
                if digits < 8 {
                    self.at = start + digits;
                    return i32::try_from(value).ok();
                }
            }
        } else if first != b'-' {
            return None;
        }
        while self.data.get(self.at)?.is_ascii_digit() {
            self.at += 1;
        }
        integer(&self.data[start..self.at])
    }
}

/// Decodes the escape at the start of `data`: bytes of UTF-8 written to `out`, bytes used.
#[inline]
pub(crate) fn escape(data: &[u8], out: &mut [u8; 4]) -> Option<(usize, usize)> {
    let plain = match *data.get(1)? {
        b'u' => {
            let unit = hex_unit(data)?;
            if unit < 0x80 {
                out[0] = u8::try_from(unit).ok()?;
                return Some((1, 6));
            }
            return wide_escape(unit, data, out);
        }
        byte @ (b'"' | b'\\' | b'/') => byte,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'f' => 12,
        b'r' => b'\r',
        _ => return None,
    };
    out[0] = plain;
    Some((1, 2))
}

/// An escape above ASCII, perhaps the first of a surrogate pair.
pub(crate) fn wide_escape(unit: u32, data: &[u8], out: &mut [u8; 4]) -> Option<(usize, usize)> {
    let (scalar, used) = if (0xD800..0xDC00).contains(&unit) {
        let low = hex_unit(data.get(6..)?)?;
        if !(0xDC00..0xE000).contains(&low) {
            return None;
        }
        (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12)
    } else {
        (unit, 6)
    };
    let text = char::from_u32(scalar)?.encode_utf8(out);
    Some((text.len(), used))
}

/// The UTF-16 unit of a `\uXXXX` at the start of `data`.
#[inline]
pub(crate) fn hex_unit(data: &[u8]) -> Option<u32> {
    let &[b'\\', b'u', digits @ ..] = data.first_chunk::<6>()? else {
        return None;
    };
    let mut unit = 0;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        unit = unit << 4 | u32::from(value);
    }
    Some(unit)
}
