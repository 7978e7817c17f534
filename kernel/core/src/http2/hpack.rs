//! Reading blocks of headers (RFC 7541).

use std::collections::VecDeque;

use super::huffman;
use crate::protocol::http2::{HEADER_EXTRA_BYTES as ENTRY_BYTES, TABLE_UPDATES_MAX};

/// Bytes of the dynamic table, which we ask nobody to change.
const TABLE_BYTES_MAX: usize = 4_096;

/// Bytes of one number behind its first.
const NUMBER_BYTES_MAX: usize = 5;

const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Why a block can't be read. Nothing that follows it on its connection can be, either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is none.
    Malformed,
    /// Its headers are too large together.
    Oversized,
}

/// The headers of a block, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    texts: Vec<u8>,
    /// Of each header, where its name and its value end.
    ends: Vec<(u32, u32)>,
}

impl Headers {
    /// As RFC 7541 counts them.
    #[must_use]
    pub fn size(&self) -> usize {
        self.texts.len() + self.ends.len() * ENTRY_BYTES
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(name_end, end)| {
            let (name_end, end) = (name_end as usize, end as usize);
            let found = (&self.texts[start..name_end], &self.texts[name_end..end]);
            start = end;
            found
        })
    }
}

/// One entry of the dynamic table: name and value behind each other.
#[derive(Debug)]
struct Entry {
    texts: Box<[u8]>,
    name_bytes: usize,
}

impl Entry {
    fn size(&self) -> usize {
        self.texts.len() + ENTRY_BYTES
    }
}

/// Reads the blocks of one connection.
#[derive(Debug)]
pub struct Decoder {
    /// The newest first.
    entries: VecDeque<Entry>,
    size: usize,
    size_max: usize,
    headers_bytes_max: usize,
}

impl Decoder {
    /// `headers_bytes_max`: of the headers of one block, as RFC 7541 counts them.
    pub fn new(headers_bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, size_max: TABLE_BYTES_MAX, headers_bytes_max }
    }

    /// Reads one block.
    pub fn decode(&mut self, block: &[u8]) -> Result<Headers, Fault> {
        let mut headers = Headers::default();
        let mut rest = block;
        let mut size = 0;
        let mut table_updates = 0;
        while let Some(&first) = rest.first() {
            let start = headers.texts.len();
            if first & 0xE0 == 0x20 {
                table_updates += 1;
                if table_updates > TABLE_UPDATES_MAX {
                    return Err(Fault::Malformed);
                }
                let wanted = number(&mut rest, 5)?;
                if !headers.ends.is_empty() || wanted > TABLE_BYTES_MAX {
                    return Err(Fault::Malformed);
                }
                self.size_max = wanted;
                self.shrink();
                continue;
            }
            let name_end = if first & 0x80 != 0 {
                self.indexed(number(&mut rest, 7)?, &mut headers.texts)?
            } else {
                let is_kept = first & 0x40 != 0;
                let name_end =
                    self.literal(&mut rest, if is_kept { 6 } else { 4 }, &mut headers.texts)?;
                if is_kept {
                    self.add(&headers.texts[start..], name_end - start);
                }
                name_end
            };
            let end = headers.texts.len();
            headers.ends.push((name_end as u32, end as u32));
            size += end - start + ENTRY_BYTES;
            if size > self.headers_bytes_max {
                return Err(Fault::Oversized);
            }
        }
        Ok(headers)
    }

    /// Name and value of an entry.
    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Fault> {
        let index = index.checked_sub(1).ok_or(Fault::Malformed)?;
        if let Some(&found) = STATIC.get(index) {
            return Ok(found);
        }
        let entry = self.entries.get(index - STATIC.len()).ok_or(Fault::Malformed)?;
        Ok(entry.texts.split_at(entry.name_bytes))
    }

    /// Writes a header of the tables; where its name ends.
    fn indexed(&self, index: usize, out: &mut Vec<u8>) -> Result<usize, Fault> {
        let (name, value) = self.entry(index)?;
        out.extend_from_slice(name);
        let name_end = out.len();
        out.extend_from_slice(value);
        Ok(name_end)
    }

    /// Writes a header whose value, at least, is spelled out; where its name ends.
    fn literal(&self, rest: &mut &[u8], bits: u32, out: &mut Vec<u8>) -> Result<usize, Fault> {
        let index = number(rest, bits)?;
        if index == 0 {
            text(rest, out)?;
        } else {
            out.extend_from_slice(self.entry(index)?.0);
        }
        let name_end = out.len();
        text(rest, out)?;
        Ok(name_end)
    }

    fn add(&mut self, texts: &[u8], name_bytes: usize) {
        if texts.len() + ENTRY_BYTES > self.size_max {
            self.entries.clear();
            self.size = 0;
            return;
        }
        let entry = Entry { texts: texts.into(), name_bytes };
        self.size += entry.size();
        self.entries.push_front(entry);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.size > self.size_max {
            let Some(last) = self.entries.pop_back() else {
                break;
            };
            self.size -= last.size();
        }
    }
}

/// Takes a number whose first byte has so many bits of it.
fn number(rest: &mut &[u8], bits: u32) -> Result<usize, Fault> {
    let most = (1_usize << bits) - 1;
    let (first, mut bytes) = rest.split_first().ok_or(Fault::Malformed)?;
    let mut found = usize::from(*first) & most;
    if found == most {
        for place in 0..NUMBER_BYTES_MAX {
            let (next, behind) = bytes.split_first().ok_or(Fault::Malformed)?;
            bytes = behind;
            found += usize::from(next & !0x80) << (7 * place);
            if next & 0x80 == 0 {
                *rest = bytes;
                return Ok(found);
            }
        }
        return Err(Fault::Malformed);
    }
    *rest = bytes;
    Ok(found)
}

/// Takes a text, and writes what it means.
fn text(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    let is_huffman = rest.first().is_some_and(|first| first & 0x80 != 0);
    let size = number(rest, 7)?;
    let (found, behind) = rest.split_at_checked(size).ok_or(Fault::Malformed)?;
    *rest = behind;
    if is_huffman {
        return huffman::decode(found, out).ok_or(Fault::Malformed);
    }
    out.extend_from_slice(found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Fault> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = decoder.decode(block)?;
        Ok(headers.iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    #[test]
    fn headers_are_remembered_and_forgotten() {
        let mut decoder = Decoder::new(1 << 15);
        let one = ("name".to_owned(), "value".to_owned());
        let block = b"\x40\x04name\x05value\xbe";
        assert_eq!(decoded(&mut decoder, block), Ok(vec![one.clone(), one.clone()]));
        assert_eq!(decoded(&mut decoder, b"\xbe"), Ok(vec![one]));
        assert_eq!(decoded(&mut decoder, b"\x20"), Ok(vec![]));
        assert_eq!(decoded(&mut decoder, b"\xbe"), Err(Fault::Malformed));
    }

    #[test]
    fn headers_that_are_too_large_together_are_refused() {
        let mut decoder = Decoder::new(2 * (ENTRY_BYTES + 10));
        assert!(decoder.decode(&[0x82, 0x82]).is_ok());
        assert_eq!(decoder.decode(&[0x82, 0x82, 0x82]), Err(Fault::Oversized));
    }
}
