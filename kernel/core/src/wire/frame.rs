//! Cutting a byte stream into frames.
//!
//! A frame is a 4-byte length of what follows, a 4-byte word (serialize type in the top byte,
//! header length in the rest), the header and the body; all integers are big-endian.

use crate::protocol::{FRAME_BYTES_MAX, HEADER_BYTES_MAX, HEADER_SIZE_MASK};
use std::fmt;

/// Bytes of the length field and of the word after it.
pub const PREFIX_BYTES: usize = 8;

/// Bytes of the length field, which is judged as soon as it is there.
const LENGTH_BYTES: usize = 4;

/// One whole frame inside a larger buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Everything after the 4-byte length.
    pub bytes: &'a [u8],
    /// 0 JSON, 1 ROCKETMQ; other values are possible.
    pub serialize_type: u8,
    pub header: &'a [u8],
    pub body: &'a [u8],
}

/// What the start of a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut<'a> {
    Frame(Frame<'a>),
    /// The buffer ends early; this many bytes are known to be needed in all.
    Partial(usize),
}

/// The peer broke the framing; nothing after this point can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Not the peer's fault: the connection was closed here.
    Closed,
    /// The announced length.
    Length(i64),
    /// A header that is longer than its frame.
    #[allow(missing_docs)]
    HeaderLength { header: usize, frame: usize },
    /// A header that is longer than any may be.
    HeaderTooLong(usize),
}

impl FrameError {
    /// The peer speaks another protocol, and the text says which.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Length(length) if !foreign_protocol(*length).is_empty())
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => out.write_str("the connection is closed"),
            Self::Length(length) => {
                write!(out, "frame length {length} is not within 4 and {FRAME_BYTES_MAX}")?;
                out.write_str(foreign_protocol(*length))
            }
            Self::HeaderLength { header, frame } => {
                write!(out, "header length {header} does not fit into a frame of {frame} bytes")
            }
            Self::HeaderTooLong(header) => {
                write!(out, "header length {header} is more than {HEADER_BYTES_MAX}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// What to do when the four bytes that should be a length start another protocol; empty when they
/// tell of none. The counterpart of `foreign_protocol` in `protocol/framing.py`.
fn foreign_protocol(length: i64) -> &'static str {
    match (length as u32).to_be_bytes() {
        [0x16, 3, 0..=4, _] => {
            ": this is TLS, which is not served here; let the client connect without it \
             (setUseTLS(false), tls.enable=false)"
        }
        [b'G', b'E', b'T', b' ']
        | [b'P', b'O', b'S', b'T']
        | [b'H', b'E', b'A', b'D']
        | [b'P', b'U', b'T', b' ']
        | [b'O', b'P', b'T', b'I']
        | [b'P', b'R', b'I', b' '] => ": this is HTTP; the port is for clients of RocketMQ only",
        _ => "",
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at + 4)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Examines the first frame of `data`.
///
/// # Errors
///
/// `FrameError` as soon as the bytes present prove that the frame can't be one.
#[inline]
pub fn cut(data: &[u8]) -> Result<Cut<'_>, FrameError> {
    let Some(length) = u32_at(data, 0) else {
        return Ok(Cut::Partial(LENGTH_BYTES));
    };
    let size = length as usize;
    if !(4..=FRAME_BYTES_MAX).contains(&size) {
        return Err(FrameError::Length(i64::from(length as i32)));
    }
    let Some(word) = u32_at(data, 4) else {
        return Ok(Cut::Partial(PREFIX_BYTES));
    };
    let header_length = (word & HEADER_SIZE_MASK) as usize;
    if header_length > size - 4 {
        return Err(FrameError::HeaderLength { header: header_length, frame: size });
    }
    if header_length > HEADER_BYTES_MAX {
        return Err(FrameError::HeaderTooLong(header_length));
    }
    let Some(bytes) = data.get(4..4 + size) else {
        return Ok(Cut::Partial(4 + size));
    };
    let (header, body) = bytes[4..].split_at(header_length);
    Ok(Cut::Frame(Frame { bytes, serialize_type: (word >> 24) as u8, header, body }))
}

/// The parts of a frame that was cut before, without its length; None: it is none.
#[must_use]
pub fn split(bytes: &[u8]) -> Option<Frame<'_>> {
    let word = u32_at(bytes, 0)?;
    let (header, body) = bytes[4..].split_at_checked((word & HEADER_SIZE_MASK) as usize)?;
    Some(Frame { bytes, serialize_type: (word >> 24) as u8, header, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(serialize_type: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
        let size = u32::try_from(4 + header.len() + body.len()).unwrap();
        let word = (u32::from(serialize_type) << 24) | u32::try_from(header.len()).unwrap();
        let mut out = size.to_be_bytes().to_vec();
        out.extend_from_slice(&word.to_be_bytes());
        out.extend_from_slice(header);
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn a_whole_frame_is_cut_into_header_and_body() {
        let mut data = frame(1, b"head", b"body!");
        let size = data.len();
        data.extend_from_slice(b"next");
        let Ok(Cut::Frame(found)) = cut(&data) else { panic!("no frame") };
        assert_eq!(found.serialize_type, 1);
        assert_eq!((found.header, found.body), (&b"head"[..], &b"body!"[..]));
        assert_eq!(found.bytes, &data[4..size]);
        assert_eq!(split(found.bytes), Some(found));
        assert_eq!(split(&data[4..10]), None);
        assert_eq!(split(&data[4..7]), None);
    }

    #[test]
    fn every_shorter_prefix_says_how_much_is_needed() {
        let data = frame(0, b"header", b"the body");
        for end in 0..data.len() {
            let needed = [4, 8].into_iter().find(|size| end < *size).unwrap_or(data.len());
            assert_eq!(cut(&data[..end]), Ok(Cut::Partial(needed)));
        }
    }

    #[test]
    fn lying_lengths_are_errors_as_soon_as_they_are_seen() {
        for length in [0u32, 3, 16_777_217, 0xFFFF_FFFF] {
            assert!(matches!(cut(&length.to_be_bytes()), Err(FrameError::Length(_))));
        }
        let mut data = 4u32.to_be_bytes().to_vec();
        data.extend_from_slice(&1u32.to_be_bytes());
        let error = cut(&data).unwrap_err();
        assert_eq!(error, FrameError::HeaderLength { header: 1, frame: 4 });
        assert!(error.to_string().contains("header length 1"));
        let mut data = 15_000_000u32.to_be_bytes().to_vec();
        data.extend_from_slice(&((1u32 << 24) | 0x0040_0001).to_be_bytes());
        assert_eq!(cut(&data).unwrap_err(), FrameError::HeaderTooLong(4_194_305));
        assert!(FrameError::Length(-1).to_string().ends_with("-1 is not within 4 and 16777216"));
        for (bytes, protocol) in [(*b"\x16\x03\x01\x02", "TLS"), (*b"GET ", "HTTP")] {
            let error = cut(&bytes).unwrap_err();
            assert!(error.to_string().contains(&format!("this is {protocol}")));
        }
    }

    #[test]
    fn the_largest_frame_is_waited_for() {
        let mut data = 16_777_216u32.to_be_bytes().to_vec();
        data.extend_from_slice(&4_194_304u32.to_be_bytes());
        assert_eq!(cut(&data), Ok(Cut::Partial(16_777_220)));
    }
}
