//! Messages of Protocol Buffers, field by field.

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// A text, bytes or a message.
    #[must_use]
    pub const fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }

    /// A number of any type that is written as a varint.
    #[must_use]
    pub const fn number(self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(number as i64),
            Self::Bytes(_) => None,
        }
    }
}

/// The fields of a message that are left.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field: its number, and what it holds; None inside: there is none any more. None:
    /// it is malformed, or of a type that our messages do not have.
    #[allow(clippy::option_option)] // no error has to be explained here
    pub fn next(&mut self) -> Option<Option<(u64, Value<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let size = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(size)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        Some(Some((key >> 3, value)))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut found = 0;
        for place in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            found |= u64::from(byte & !0x80) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(found);
            }
        }
        None
    }
}

/// Writes a field that holds a number; 0 is left out.
pub fn push_number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        push_told_number(out, field, number);
    }
}

/// Writes a field that holds bytes; none are left out.
pub fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        push_message(out, field, bytes);
    }
}

/// Writes a field that holds a message.
pub fn push_message(out: &mut Vec<u8>, field: u8, message: &[u8]) {
    start_message(out, field, message.len());
    out.extend_from_slice(message);
}

/// Writes what stands before so many bytes of a field.
pub fn start_message(out: &mut Vec<u8>, field: u8, size: usize) {
    push_varint(out, u64::from(field) << 3 | 2);
    push_varint(out, size as u64);
}

/// Writes a field that holds a number, 0 too.
pub fn push_told_number(out: &mut Vec<u8>, field: u8, number: u64) {
    push_varint(out, u64::from(field) << 3);
    push_varint(out, number);
}

/// How many bytes a number takes.
pub const fn varint_bytes(number: u64) -> usize {
    (63 - (number | 1).leading_zeros() as usize) / 7 + 1
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = Vec::new();
        push_number(&mut out, 1, 0);
        push_number(&mut out, 1, u64::MAX);
        push_bytes(&mut out, 2, b"");
        push_bytes(&mut out, 3, &[7; 200]);
        push_message(&mut out, 4, b"");
        let mut fields = Fields(&out);
        assert_eq!(fields.next(), Some(Some((1, Value::Number(u64::MAX)))));
        assert_eq!(fields.next(), Some(Some((3, Value::Bytes(&[7; 200])))));
        assert_eq!(fields.next(), Some(Some((4, Value::Bytes(b"")))));
        assert_eq!(fields.next(), Some(None));
    }

    #[test]
    fn what_is_torn_is_refused() {
        for data in [&b"\x08"[..], b"\x0a\x02a", b"\x09", &[0xFF; 11], b"\x0b\x0c"] {
            assert_eq!(Fields(data).next(), None, "{data:?}");
        }
    }
}
