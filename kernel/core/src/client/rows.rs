//! Rows of a table as messages of batches, from columns in Arrow's layout: the counterpart of
//! `kerolox.codec.python_rows`.

use std::collections::HashSet;

use crate::client::send::push_item;
use crate::protocol::{ITEM_END, NAME_END, PROPERTIES_BYTES_MAX, property};
use crate::record::java_hash;

/// Of a message's properties so many bytes are left to marks of half messages, and the cluster.
const RESERVE_BYTES: usize = 1024;

/// Longest `UNIQ_KEY`: that of IPv6.
const ID_BYTES: usize = 56;

/// The buffers of a column contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadColumn;

/// Texts or bytes: validity bits (None: no row is null), offsets (int32), data.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// One bit a row.
    pub validity: Option<&'a [u8]>,
    /// One more than rows.
    pub offsets: &'a [u8],
    /// All values.
    pub data: &'a [u8],
}

impl<'a> Texts<'a> {
    /// The value of a row; None: null.
    #[inline]
    fn value(&self, row: usize) -> Result<Option<&'a [u8]>, BadColumn> {
        if !is_valid(self.validity, row)? {
            return Ok(None);
        }
        let (start, end) = span(self.offsets, row)?;
        self.data.get(start..end).map(Some).ok_or(BadColumn)
    }
}

/// Maps of texts: validity bits, offsets into the names and values of all rows.
#[derive(Clone, Copy, Debug)]
pub struct Maps<'a> {
    /// One bit a row.
    pub validity: Option<&'a [u8]>,
    /// One more than rows.
    pub offsets: &'a [u8],
    /// The names of all rows.
    pub names: Texts<'a>,
    /// Their values.
    pub values: Texts<'a>,
}

/// What messages are made of; a column that is None has nothing to say of any row.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Bodies.
    pub body: Texts<'a>,
    /// TAGS.
    pub tags: Option<Texts<'a>>,
    /// KEYS.
    pub keys: Option<Texts<'a>>,
    /// int32 each, without nulls.
    pub flags: Option<&'a [u8]>,
    /// The user's properties.
    pub properties: Option<Maps<'a>>,
}

/// What is the same for all rows of a write.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Largest body.
    pub body_bytes_max: usize,
    /// Names that no property of a row may have.
    pub reserved: HashSet<Vec<u8>>,
    /// They are left out; else they make a row illegal.
    pub drops_reserved: bool,
    /// Property text of rows without properties.
    pub default_properties: Vec<u8>,
    /// Property text behind that of each row.
    pub tail: Vec<u8>,
}

/// The first illegal row among `[start, stop)`.
///
/// # Errors
///
/// The columns contradict themselves.
pub fn first_fault(
    rows: &Rows<'_>,
    start: usize,
    stop: usize,
    rules: &Rules,
) -> Result<Option<usize>, BadColumn> {
    for row in start..stop {
        if !is_legal(rows, row, rules)? {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

/// Appends legal rows as items of a batch, and to `ends` where each ends, counted from the first.
///
/// `head` begins each `UNIQ_KEY`, and a number of 16 bits that counts from `first` ends it.
///
/// # Errors
///
/// The columns contradict themselves.
pub fn encode(
    rows: &Rows<'_>,
    (start, stop): (usize, usize),
    rules: &Rules,
    (head, first): (&[u8], u16),
    out: &mut Vec<u8>,
    ends: &mut Vec<u8>,
) -> Result<(), BadColumn> {
    let begin = out.len();
    let mut text = Vec::with_capacity(512);
    let mut number = first;
    for row in start..stop {
        text.clear();
        push_properties(rows, row, rules, &mut text)?;
        push(&mut text, property::WAIT, b"true");
        push(&mut text, property::UNIQUE_KEY, head);
        text.extend_from_slice(&hex(number));
        number = number.wrapping_add(1);
        if !rules.tail.is_empty() {
            text.push(ITEM_END);
            text.extend_from_slice(&rules.tail);
        }
        let body = rows.body.value(row)?.unwrap_or_default();
        push_item(out, flag(rows, row)?, body, &text);
        let size = u32::try_from(out.len() - begin).map_err(|_| BadColumn)?;
        ends.extend_from_slice(&size.to_ne_bytes());
    }
    Ok(())
}

/// Appends the hash code of each text, int32; that of null is 0.
///
/// # Errors
///
/// The column contradicts itself.
pub fn hashes(texts: &Texts<'_>, count: usize, out: &mut Vec<u8>) -> Result<(), BadColumn> {
    for row in 0..count {
        let hash = texts.value(row)?.map_or(0, java_hash);
        out.extend_from_slice(&hash.to_ne_bytes());
    }
    Ok(())
}

fn is_legal(rows: &Rows<'_>, row: usize, rules: &Rules) -> Result<bool, BadColumn> {
    let Some(body) = rows.body.value(row)? else {
        return Ok(false);
    };
    if body.is_empty() || body.len() > rules.body_bytes_max {
        return Ok(false);
    }
    let mut size = sized(property::WAIT, b"true") + sized(property::UNIQUE_KEY, &[0; ID_BYTES]);
    for (name, texts) in [(property::KEYS, &rows.keys), (property::TAGS, &rows.tags)] {
        let text = texts.map_or(Ok(None), |texts| texts.value(row))?.unwrap_or_default();
        if !is_whole(text) {
            return Ok(false);
        }
        if !text.is_empty() {
            size += 1 + sized(name, text);
        }
    }
    if !rules.tail.is_empty() {
        size += 1 + rules.tail.len();
    }
    match items(rows, row)? {
        None if rules.default_properties.is_empty() => {}
        None => size += 1 + rules.default_properties.len(),
        Some((maps, from, to)) => {
            for at in from..to {
                let (Some(name), Some(value)) = (maps.names.value(at)?, maps.values.value(at)?)
                else {
                    return Ok(false);
                };
                if rules.reserved.contains(name) {
                    if rules.drops_reserved {
                        continue;
                    }
                    return Ok(false);
                }
                if !is_whole(name) || !is_whole(value) || is_blank(name) || is_blank(value) {
                    return Ok(false);
                }
                size += 1 + sized(name, value);
            }
        }
    }
    // Between WAIT and UNIQ_KEY.
    Ok(size < PROPERTIES_BYTES_MAX - RESERVE_BYTES)
}

/// Appends the user's properties, KEYS and TAGS.
fn push_properties(
    rows: &Rows<'_>,
    row: usize,
    rules: &Rules,
    text: &mut Vec<u8>,
) -> Result<(), BadColumn> {
    match items(rows, row)? {
        None => text.extend_from_slice(&rules.default_properties),
        Some((maps, from, to)) => {
            for at in from..to {
                if let (Some(name), Some(value)) = (maps.names.value(at)?, maps.values.value(at)?)
                    && !rules.reserved.contains(name)
                {
                    push(text, name, value);
                }
            }
        }
    }
    for (name, texts) in [(property::KEYS, &rows.keys), (property::TAGS, &rows.tags)] {
        let value = texts.map_or(Ok(None), |texts| texts.value(row))?.unwrap_or_default();
        if !value.is_empty() {
            push(text, name, value);
        }
    }
    Ok(())
}

/// The map of a row and where its items begin and end; None: null.
#[inline]
fn items<'r, 'a>(
    rows: &'r Rows<'a>,
    row: usize,
) -> Result<Option<(&'r Maps<'a>, usize, usize)>, BadColumn> {
    match &rows.properties {
        Some(maps) if is_valid(maps.validity, row)? => {
            let (from, to) = span(maps.offsets, row)?;
            Ok(Some((maps, from, to)))
        }
        _ => Ok(None),
    }
}

#[inline]
fn push(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if !text.is_empty() {
        text.push(ITEM_END);
    }
    text.extend_from_slice(name);
    text.push(NAME_END);
    text.extend_from_slice(value);
}

const fn sized(name: &[u8], value: &[u8]) -> usize {
    name.len() + 1 + value.len()
}

#[inline]
fn flag(rows: &Rows<'_>, row: usize) -> Result<i32, BadColumn> {
    match rows.flags {
        None => Ok(0),
        Some(flags) => word(flags, row),
    }
}

#[inline]
fn is_valid(validity: Option<&[u8]>, row: usize) -> Result<bool, BadColumn> {
    match validity {
        None => Ok(true),
        Some(bits) => bits.get(row / 8).map(|byte| byte >> (row % 8) & 1 == 1).ok_or(BadColumn),
    }
}

#[inline]
fn span(offsets: &[u8], row: usize) -> Result<(usize, usize), BadColumn> {
    let place = |at| word(offsets, at).and_then(|at| usize::try_from(at).map_err(|_| BadColumn));
    Ok((place(row)?, place(row + 1)?))
}

#[inline]
fn word(words: &[u8], at: usize) -> Result<i32, BadColumn> {
    let bytes = words.get(4 * at..4 * at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(i32::from_le_bytes).ok_or(BadColumn)
}

/// UTF-8 that is read as one name or value.
#[inline]
fn is_whole(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok()
        && !text.iter().any(|byte| matches!(*byte, NAME_END | ITEM_END))
}

/// Nothing but white space, as Python's `str.strip` knows it.
#[inline]
fn is_blank(text: &[u8]) -> bool {
    match text.first() {
        Some(byte) if byte.is_ascii_graphic() => false,
        _ => std::str::from_utf8(text).is_ok_and(|text| {
            text.chars().all(|each| each.is_whitespace() || matches!(each, '\x1c'..='\x1f'))
        }),
    }
}

fn hex(number: u16) -> [u8; 4] {
    [12, 8, 4, 0].map(|shift| b"0123456789ABCDEF"[usize::from(number >> shift & 15)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_contradict_each_other_are_refused() {
        let offsets: Vec<u8> = [0i32, 2, 9].iter().flat_map(|at| at.to_le_bytes()).collect();
        let texts = Texts { validity: None, offsets: &offsets, data: b"abc" };
        assert_eq!(texts.value(0), Ok(Some(b"ab".as_slice())));
        assert_eq!(texts.value(1), Err(BadColumn));
        assert_eq!(texts.value(2), Err(BadColumn));
        assert_eq!(Texts { validity: Some(&[]), ..texts }.value(0), Err(BadColumn));
        let back: Vec<u8> = [2i32, 0].iter().flat_map(|at| at.to_le_bytes()).collect();
        assert_eq!(Texts { offsets: &back, ..texts }.value(0), Err(BadColumn));
    }

    #[test]
    fn numbers_are_four_digits() {
        assert_eq!(&hex(0), b"0000");
        assert_eq!(&hex(0xABCD), b"ABCD");
    }
}
