//! Multi-dispatch: one record with entries in several queues (`MultiDispatch` of RocketMQ).
//!
//! A producer names the queues in the property `INNER_MULTI_DISPATCH`, as `a,b`; the store adds
//! `INNER_MULTI_QUEUE_OFFSET`, as `7,0`: the queue offsets that the record gets there. The queue id
//! is the record's own, and 0 for light message queues (LMQ: `%LMQ%` names, with `enableLmq`),
//! which are topics of one queue without a topic configuration.
//!
//! A name that comes twice, or names the record's own queue, stands for one entry.

use crate::protocol::{ITEM_END, LMQ_PREFIX, property};
use crate::record::{Text, properties};

/// More digits than a queue offset can have.
const OFFSET_DIGITS_MAX: usize = 18;

/// A queue by its topic and id.
pub(crate) type Named<'a> = (&'a str, i32);

fn value<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    properties(text).filter(|(each, _)| *each == name).last().map(|(_, value)| value)
}

/// What Java's `Character.isWhitespace` says of ASCII.
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13 | 28..=31)
}

/// Whether the property text names offsets in further queues, which only the store may say.
pub(crate) fn claims_offsets(text: &Text<'_>) -> bool {
    text.parts
        .iter()
        .any(|part| properties(part).any(|(name, _)| name == property::INNER_MULTI_QUEUE_OFFSET))
}

/// The further queues that a record names, in order; mostly none. `None`: a name is no UTF-8.
pub(crate) fn named_queues(text: &[u8], queue_id: i32, lmq: bool) -> Option<Vec<Named<'_>>> {
    let Some(names) = value(text, property::INNER_MULTI_DISPATCH)
        .filter(|names| !names.iter().all(|&b| is_blank(b)))
    else {
        return Some(Vec::new());
    };
    // As Java splits: names at the end that are empty do not count.
    let names = std::str::from_utf8(names).ok()?.trim_end_matches(',');
    if names.is_empty() {
        return Some(Vec::new());
    }
    let id = |name: &str| if lmq && name.starts_with(LMQ_PREFIX) { 0 } else { queue_id };
    Some(names.split(',').map(|name| (name, id(name))).collect())
}

/// The further entries of a stored record, (queue, queue offset); none when the two properties do
/// not fit together.
pub(crate) fn targets(text: &[u8], queue_id: i32, lmq: bool) -> Vec<(Named<'_>, i64)> {
    let Some(offsets) = value(text, property::INNER_MULTI_QUEUE_OFFSET) else { return Vec::new() };
    let queues = named_queues(text, queue_id, lmq).unwrap_or_default();
    let number = |digits: &[u8]| {
        let is_number = digits.iter().all(u8::is_ascii_digit) && digits.len() <= OFFSET_DIGITS_MAX;
        std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse::<i64>().ok()
    };
    let offsets: Option<Vec<i64>> = offsets.split(|&byte| byte == b',').map(number).collect();
    match offsets {
        Some(offsets) if offsets.len() == queues.len() => queues.into_iter().zip(offsets).collect(),
        _ => Vec::new(),
    }
}

/// Property text that says what offsets the record has in its further queues.
pub(crate) fn with_offsets(text: &[u8], offsets: &[i64]) -> Vec<u8> {
    let is_kept = |item: &&[u8]| {
        !item.is_empty()
            && item
                .strip_prefix(property::INNER_MULTI_QUEUE_OFFSET)
                .is_none_or(|rest| !rest.starts_with(b"\x01"))
    };
    let mut kept: Vec<&[u8]> = text.split(|&byte| byte == ITEM_END).filter(is_kept).collect();
    let numbers: Vec<String> = offsets.iter().map(i64::to_string).collect();
    let added =
        [property::INNER_MULTI_QUEUE_OFFSET, b"\x01", numbers.join(",").as_bytes()].concat();
    kept.push(&added);
    kept.join(&ITEM_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_offsets_are_read_as_java_splits_them() {
        let named = |value: &str, lmq| {
            let text = [b"INNER_MULTI_DISPATCH\x01", value.as_bytes()].concat();
            let named = named_queues(&text, 3, lmq).unwrap();
            named.into_iter().map(|(name, id)| (name.to_owned(), id)).collect::<Vec<_>>()
        };
        let pair = |name: &str, id| (name.to_owned(), id);
        assert_eq!(named("a,%LMQ%b", true), [pair("a", 3), pair("%LMQ%b", 0)]);
        assert_eq!(named("%LMQ%b", false), [pair("%LMQ%b", 3)]);
        assert_eq!(named("a,,b,,", true), [pair("a", 3), pair("", 3), pair("b", 3)]);
        assert!(named(" \t", true).is_empty() && named(",", true).is_empty());
        assert_eq!(named_queues(b"INNER_MULTI_DISPATCH\x01\xff", 3, true), None);
        let text = with_offsets(b"INNER_MULTI_QUEUE_OFFSET\x019\x02a\x01b\x02\x02", &[7, 0]);
        assert_eq!(text, b"a\x01b\x02INNER_MULTI_QUEUE_OFFSET\x017,0");
        let stored = |queues: &str, offsets: &str| {
            let text = format!(
                "INNER_MULTI_DISPATCH\x01{queues}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}"
            );
            targets(text.as_bytes(), 3, true).len()
        };
        assert_eq!(stored("a,b", "7,0"), 2);
        for offsets in ["7", "7,x", "7,-1", "7,", "1,1234567890123456789"] {
            assert_eq!(stored("a,b", offsets), 0, "{offsets}");
        }
    }
}
