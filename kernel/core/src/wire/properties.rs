//! Looking through the property text of a send.
//!
//! Items are key 0x01 value, with 0x02 between them (and, from 4.6 clients, after the last).

use crate::protocol::{ITEM_END, NAME_END, PROPERTIES_BYTES_MAX, property};
use hashbrown::HashSet;

use super::swar;
use crate::record::{Marks, Text};

/// Up to this many items, a name is compared with those before it; then with a set, at the end.
const FEW_ITEMS: usize = 64;

/// What the fast path must know of a property text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inspected<'a> {
    /// The text in front of the WAIT item and after it; without WAIT all is in front. A separator
    /// stands between the two where one is needed, and none at the end.
    pub kept: [&'a [u8]; 2],
    /// The whole text without a separator at its end.
    pub whole: &'a [u8],
    /// Whether the sender waits for the flush.
    pub waits: bool,
    pub marks: Marks<'a>,
}

impl<'a> Inspected<'a> {
    /// The text to store for a single send: WAIT left out, the cluster added. `cluster_item` has a
    /// separator in front.
    #[must_use]
    pub fn stored(&self, cluster_item: &'a [u8]) -> Text<'a> {
        let [before, after] = self.kept;
        let cluster = if before.is_empty() && after.is_empty() {
            cluster_item.get(1..).unwrap_or_default()
        } else {
            cluster_item
        };
        Text { parts: [before, after, cluster, &[]] }
    }
}

/// Walks a property text; None when it is malformed, names an item twice, or has one that is not
/// for the fast path.
#[must_use]
pub fn inspect(text: &[u8]) -> Option<Inspected<'_>> {
    let whole = text.strip_suffix(&[ITEM_END]).unwrap_or(text);
    let mut found = Inspected { kept: [whole, &[]], whole, waits: true, ..Inspected::default() };
    if text.is_empty() {
        return Some(found);
    }
    if whole.len() > PROPERTIES_BYTES_MAX || std::str::from_utf8(whole).is_err() {
        return None;
    }
    let mut names = 0u64;
    let mut count = 0;
    let mut start = 0;
    loop {
        let name_end = separator(whole, start);
        let end = separator(whole, name_end + 1);
        if name_end == start
            || end <= name_end + 1
            || whole.get(name_end) != Some(&NAME_END)
            || whole.get(end).is_some_and(|byte| *byte != ITEM_END)
        {
            return None;
        }
        let (name, value) = (&whole[start..name_end], &whole[name_end + 1..end]);
        let bit = 1 << name_bit(name);
        if names & bit != 0 && count < FEW_ITEMS && is_named(&whole[..start], name) {
            return None;
        }
        names |= bit;
        count += 1;
        match name {
            property::TAGS => found.marks.tags = Some(value),
            property::KEYS => found.marks.keys = Some(value),
            property::UNIQUE_KEY => found.marks.uniq_key = Some(value),
            property::WAIT => {
                // Boolean.parseBoolean: anything but true is false.
                found.waits = value.eq_ignore_ascii_case(b"true");
                found.kept = if end < whole.len() {
                    [&whole[..start], &whole[end + 1..]]
                } else {
                    [&whole[..start.saturating_sub(1)], &[]]
                };
            }
            property::DELAY
            | property::TRANSACTION_PREPARED
            | property::CLUSTER
            | property::INNER_MULTI_DISPATCH
            | property::MESSAGE_TYPE
            | property::START_DELIVER_TIME => return None,
            _ => {}
        }
        if end >= whole.len() {
            return (count <= FEW_ITEMS || has_distinct_names(whole)).then_some(found);
        }
        start = end + 1;
    }
}

/// Position of the next separator of either kind; the length when there is none.
fn separator(text: &[u8], from: usize) -> usize {
    let mut at = from;
    loop {
        at = swar::find_below(text, at, ITEM_END + 1);
        // A zero byte is text.
        if text.get(at) != Some(&0) {
            return at.min(text.len());
        }
        at += 1;
    }
}

/// A number below 64 that names mostly differ in.
fn name_bit(name: &[u8]) -> u32 {
    let ends = [name.first(), name.last()].map(|byte| u32::from(*byte.unwrap_or(&0)));
    (name.len() as u32 * 7 + ends[0] * 3 + ends[1]) % 64
}

/// Whether an item of a well-formed text has that name.
fn is_named(text: &[u8], name: &[u8]) -> bool {
    text.split(|byte| *byte == ITEM_END)
        .any(|item| item.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&NAME_END)))
}

/// Whether no name comes twice, for a text with many items.
fn has_distinct_names(text: &[u8]) -> bool {
    let mut names = HashSet::new();
    text.split(|byte| *byte == ITEM_END).all(|item| names.insert(&item[..separator(item, 0)]))
}

/// The text that is added to each item of a batch: the batch's own items and the cluster, with a
/// separator in front.
pub fn batch_suffix(own: &[u8], cluster_item: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if !own.is_empty() {
        out.push(ITEM_END);
        out.extend_from_slice(own);
    }
    out.extend_from_slice(cluster_item);
}

/// An item's text with the batch's after it.
#[must_use]
pub fn with_suffix<'a>(text: &'a [u8], suffix: &'a [u8]) -> Text<'a> {
    let skipped = usize::from(text.is_empty() || text.ends_with(&[ITEM_END]));
    Text { parts: [text, suffix.get(skipped..).unwrap_or_default(), &[], &[]] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(items: &[(&str, &str)]) -> Vec<u8> {
        let items: Vec<String> = items.iter().map(|(k, v)| format!("{k}\u{1}{v}")).collect();
        items.join("\u{2}").into_bytes()
    }

    fn stored(items: &[(&str, &str)]) -> Vec<u8> {
        let text = text(items);
        inspect(&text).unwrap().stored(b"\x02CLUSTER\x01c").parts.concat()
    }

    #[test]
    fn wait_is_left_out_wherever_it_stands_and_the_cluster_added() {
        let (a, b, wait) = (("a", "1"), ("b", "2"), ("WAIT", "true"));
        let cluster = ("CLUSTER", "c");
        let expected = text(&[a, b, cluster]);
        assert_eq!(stored(&[a, b]), expected);
        assert_eq!(stored(&[wait, a, b]), expected);
        assert_eq!(stored(&[a, wait, b]), expected);
        assert_eq!(stored(&[a, b, wait]), expected);
        assert_eq!(stored(&[wait]), text(&[cluster]));
        assert_eq!(inspect(b"").unwrap().stored(b"\x02C\x01c").parts.concat(), b"C\x01c");
    }

    #[test]
    fn a_separator_at_the_end_vanishes() {
        let mut given = text(&[("a", "1"), ("WAIT", "false")]);
        given.push(2);
        let found = inspect(&given).unwrap();
        assert!(!found.waits);
        assert_eq!(found.kept.concat(), b"a\x011");
        assert_eq!(found.whole, text(&[("a", "1"), ("WAIT", "false")]));
    }

    #[test]
    fn marks_are_found() {
        let given = text(&[("TAGS", "x"), ("KEYS", "k1 k2"), ("UNIQ_KEY", "u")]);
        let marks = inspect(&given).unwrap().marks;
        assert_eq!(marks.tags, Some(&b"x"[..]));
        assert_eq!(marks.keys, Some(&b"k1 k2"[..]));
        assert_eq!(marks.uniq_key, Some(&b"u"[..]));
    }

    #[test]
    fn malformed_and_special_texts_are_declined() {
        let malformed: [&[u8]; 14] = [
            b"a\x01b\x01c",
            b"a\x01b\x02c\x01d\x02a\x01b",
            b"TAGS\x01b\x02TAGS\x01c",
            b"a",
            b"\x02",
            b"\x01",
            b"a\x01",
            b"\x01b",
            b"a\x01b\x02\x02",
            b"\x02a\x01b",
            b"a\x02b\x01c",
            b"a\x01\x02b\x01c",
            b"a\x01b\x02c",
            b"a\x01\xff",
        ];
        for text in malformed {
            assert!(inspect(text).is_none(), "{text:?}");
        }
        for name in ["DELAY", "TRAN_MSG", "CLUSTER", "MSG_TYPE", "__STARTDELIVERTIME"] {
            assert!(inspect(&text(&[("a", "b"), (name, "1")])).is_none(), "{name}");
        }
        assert!(inspect(&text(&[("WAIT", "true"), ("WAIT", "true")])).is_none());
        let many: Vec<String> = (0..300).map(|number| format!("n{number}")).collect();
        let items: Vec<_> = many.iter().map(|name| (name.as_str(), "v")).collect();
        assert!(inspect(&text(&items)).is_some());
        let twice = [&items[..], &[("n7", "w")]].concat();
        assert!(inspect(&text(&twice)).is_none());
        assert!(inspect(b"a\0b\x01c\0d\x02e\x01\0").is_some());
        assert!(inspect(&text(&[("INNER_MULTI_DISPATCH", "q")])).is_none());
    }

    #[test]
    fn a_batch_item_gets_a_separator_only_where_one_is_missing() {
        let mut suffix = Vec::new();
        batch_suffix(b"", b"\x02CLUSTER\x01c", &mut suffix);
        assert_eq!(with_suffix(b"", &suffix).parts.concat(), b"CLUSTER\x01c");
        assert_eq!(with_suffix(b"a\x01b", &suffix).parts.concat(), b"a\x01b\x02CLUSTER\x01c");
        assert_eq!(with_suffix(b"a\x01b\x02", &suffix).parts.concat(), b"a\x01b\x02CLUSTER\x01c");
        batch_suffix(b"x\x01y", b"\x02CLUSTER\x01c", &mut suffix);
        assert_eq!(with_suffix(b"", &suffix).parts.concat(), b"x\x01y\x02CLUSTER\x01c");
    }
}
