//! Looking through the property text of a send.
//!
//! Items are key 0x01 value, with 0x02 between them (and, from 4.6 clients, after the last).

use crate::protocol::{ITEM_END, NAME_END, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX, property};
use hashbrown::HashSet;

use super::answer::push_decimal;
use super::swar;
use crate::record::{self, Marks, Text};

/// Up to this many items, a name is compared with those before it; then with a set, at the end.
const FEW_ITEMS: usize = 64;

/// Digits of a moment; more may be no long.
const NUMBER_DIGITS_MAX: usize = 18;

/// Digits of a queue id.
const QUEUE_DIGITS_MAX: usize = 5;

/// What the fast path must know of a property text.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // what a text says, each by itself
pub struct Inspected<'a> {
    /// The text in front of the WAIT item and after it; without WAIT all is in front. A separator
    /// stands between the two where one is needed, and none at the end.
    pub kept: [&'a [u8]; 2],
    /// The whole text without a separator at its end.
    pub whole: &'a [u8],
    /// Whether the sender waits for the flush.
    pub waits: bool,
    /// Whether it is a half message of a transaction.
    pub is_half: bool,
    /// Whether it names a topic or queue that another message is for.
    pub names_target: bool,
    /// The moment that it is for.
    pub timer: Timer,
    /// Whether it has waited for its moment, or is a command to delete one that waits.
    pub has_waited: bool,
    pub marks: Marks<'a>,
}

/// When a message is to be delivered, as its text says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timer {
    /// At once.
    #[default]
    None,
    /// So many milliseconds from now on.
    After(i64),
    /// At a time, in milliseconds since the epoch.
    At(i64),
    /// The handler in Python says: it names several times, or no plain number.
    Odd,
}

/// Digits of a time in a text; with seconds it stays a long.
const TIMER_DIGITS_MAX: usize = 15;

impl Timer {
    /// What one more of these properties makes of it.
    fn and(self, name: &[u8], value: &[u8]) -> Self {
        let Some(number) = number(value, TIMER_DIGITS_MAX).filter(|_| self == Timer::None) else {
            return Timer::Odd;
        };
        match name {
            property::TIMER_DELAY_SECONDS => Timer::After(number * 1_000),
            property::TIMER_DELAY => Timer::After(number),
            _ => Timer::At(number),
        }
    }

    /// What a whole text makes of it.
    #[must_use]
    pub fn of(text: &[u8]) -> Self {
        record::properties(text)
            .filter(|(name, _)| {
                matches!(
                    *name,
                    property::TIMER_DELAY_SECONDS | property::TIMER_DELAY | property::TIMER_DELIVER
                )
            })
            .fold(Timer::None, |found, (name, value)| found.and(name, value))
    }
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

/// What storing a record again must know of its text: the end of a half message, or a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealText<'a> {
    pub group: &'a [u8],
    /// `KEROLOX_SINK`; empty: it has none.
    pub sink: &'a [u8],
    /// Topic and queue that it is for; None: it needs the handler in Python.
    pub target: Option<(&'a [u8], i32)>,
    /// `TIMER_OUT_MS`, if it is a number.
    pub moment: Option<i64>,
    pub marks: Marks<'a>,
}

/// Walks the text of a half message.
#[must_use]
pub fn inspect_half(text: &[u8]) -> RealText<'_> {
    inspect_real(text, |name| {
        matches!(
            name,
            property::DELAY
                | property::TRANSACTION_CHECK_TIMES
                | property::TRANSACTION_PREPARED_QUEUE_OFFSET
                | property::TIMER_DELIVER
                | property::TIMER_DELAY
                | property::TIMER_DELAY_SECONDS
        )
    })
}

/// Walks the text of a record that says where it is for. One with a name that `is_odd` needs the
/// handler in Python.
#[must_use]
pub fn inspect_real(text: &[u8], is_odd: impl Fn(&[u8]) -> bool) -> RealText<'_> {
    let mut found = RealText::default();
    let (mut topic, mut queue): (&[u8], &[u8]) = (b"", b"");
    let mut names = 0u64;
    let mut is_plain = true;
    let mut start = 0;
    for (count, item) in text.split(|byte| *byte == ITEM_END).enumerate() {
        let name_end = separator(item, 0);
        let (name, value) = (&item[..name_end], item.get(name_end + 1..).unwrap_or_default());
        if name.is_empty() || value.is_empty() || value.contains(&NAME_END) || count >= FEW_ITEMS {
            is_plain = false;
        }
        let bit = 1 << name_bit(name);
        is_plain = is_plain && !(names & bit != 0 && is_named(&text[..start], name));
        names |= bit;
        start += item.len() + 1;
        if name.is_empty() || value.is_empty() {
            continue;
        }
        match name {
            property::PRODUCER_GROUP => found.group = value,
            property::SINK => found.sink = value,
            property::REAL_TOPIC => topic = value,
            property::REAL_QUEUE_ID => queue = value,
            property::TIMER_OUT => found.moment = number(value, NUMBER_DIGITS_MAX),
            property::TAGS => found.marks.tags = Some(value),
            property::KEYS => found.marks.keys = Some(value),
            property::UNIQUE_KEY => found.marks.uniq_key = Some(value),
            property::INNER_MULTI_DISPATCH => is_plain = false,
            _ => {}
        }
        is_plain = is_plain && !is_odd(name);
    }
    if is_plain && (1..=TOPIC_BYTES_MAX).contains(&topic.len()) {
        let queue = number(queue, QUEUE_DIGITS_MAX).and_then(|queue| i32::try_from(queue).ok());
        found.target = queue.map(|queue| (topic, queue));
    }
    found
}

/// A number in no more than so many digits, without a sign; zeros may be in front.
fn number(text: &[u8], digits_max: usize) -> Option<i64> {
    let is_number = (1..=digits_max).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let value = || text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    is_number.then(value)
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
            property::TRANSACTION_PREPARED if value == b"true" => found.is_half = true,
            property::REAL_TOPIC | property::REAL_QUEUE_ID => found.names_target = true,
            property::TIMER_DELIVER | property::TIMER_DELAY | property::TIMER_DELAY_SECONDS => {
                found.timer = found.timer.and(name, value);
            }
            property::TIMER_OUT | property::TIMER_DELETES => found.has_waited = true,
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

/// What the text of a half message ends with: where it is for.
pub fn target_text(topic: &[u8], queue_id: i32, out: &mut Vec<u8>) {
    out.clear();
    push_target(topic, queue_id, out);
}

fn push_target(topic: &[u8], queue_id: i32, out: &mut Vec<u8>) {
    out.push(ITEM_END);
    out.extend_from_slice(property::REAL_TOPIC);
    out.push(NAME_END);
    out.extend_from_slice(topic);
    out.push(ITEM_END);
    out.extend_from_slice(property::REAL_QUEUE_ID);
    out.push(NAME_END);
    push_decimal(out, i64::from(queue_id));
}

/// What the text of a message for a moment ends with: the moment, and where it is for.
pub fn timed_text(out_ms: i64, topic: &[u8], queue_id: i32, out: &mut Vec<u8>) {
    out.clear();
    out.push(ITEM_END);
    out.extend_from_slice(property::TIMER_OUT);
    out.push(NAME_END);
    push_decimal(out, out_ms);
    push_target(topic, queue_id, out);
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
    fn the_moment_of_a_message_is_found() {
        let timer = |items: &[(&str, &str)]| inspect(&text(items)).unwrap().timer;
        assert_eq!(timer(&[("a", "1")]), Timer::None);
        assert_eq!(timer(&[("TIMER_DELAY_SEC", "2"), ("a", "1")]), Timer::After(2_000));
        assert_eq!(timer(&[("TIMER_DELAY_MS", "02")]), Timer::After(2));
        assert_eq!(timer(&[("TIMER_DELIVER_MS", "7")]), Timer::At(7));
        for value in ["-1", "1x", "1000000000000000"] {
            assert_eq!(timer(&[("TIMER_DELAY_MS", value)]), Timer::Odd, "{value}");
        }
        assert_eq!(timer(&[("TIMER_DELAY_MS", "1"), ("TIMER_DELAY_SEC", "1")]), Timer::Odd);
        for name in ["TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"] {
            assert!(inspect(&text(&[(name, "1")])).unwrap().has_waited);
        }
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
    fn a_half_message_is_told_apart() {
        let half = text(&[("TRAN_MSG", "true"), ("WAIT", "false")]);
        let found = inspect(&half).unwrap();
        assert!(found.is_half && !found.waits && !found.names_target);
        assert!(inspect(&text(&[("TRAN_MSG", "TRUE")])).is_none());
        assert!(inspect(&text(&[("TRAN_MSG", "true"), ("REAL_QID", "1")])).unwrap().names_target);
        let mut out = Vec::new();
        target_text(b"T", 12, &mut out);
        assert_eq!(out, b"\x02REAL_TOPIC\x01T\x02REAL_QID\x0112");
    }

    #[test]
    fn the_text_of_a_half_names_its_target_when_nothing_is_unusual() {
        let items = [("PGROUP", "g"), ("KEROLOX_SINK", "q/1/2/3"), ("REAL_TOPIC", "T")];
        let plain = [&items[..], &[("REAL_QID", "7"), ("TAGS", "x")]].concat();
        let plain_text = text(&plain);
        let found = inspect_half(&plain_text);
        assert_eq!((found.group, found.sink), (&b"g"[..], &b"q/1/2/3"[..]));
        assert_eq!(found.target, Some((&b"T"[..], 7)));
        assert_eq!(found.marks.tags, Some(&b"x"[..]));
        let unusual = [
            ("TAGS", "y"),
            ("a", ""),
            ("", "b"),
            ("DELAY", "1"),
            ("TRANSACTION_CHECK_TIMES", "1"),
            ("TRAN_PREPARED_QUEUE_OFFSET", "1"),
            ("TIMER_DELIVER_MS", "1"),
            ("TIMER_DELAY_MS", "1"),
            ("TIMER_DELAY_SEC", "1"),
            ("c", "d\u{1}e"),
            ("REAL_QID", "8"),
        ];
        for item in unusual {
            let items = text(&[&plain[..], &[item]].concat());
            let found = inspect_half(&items);
            assert_eq!((found.group, found.target), (&b"g"[..], None), "{item:?}");
        }
        for queue in ["", "123456", "-1", "x"] {
            let items = text(&[&items[..], &[("REAL_QID", queue)]].concat());
            assert_eq!(inspect_half(&items).target, None, "{queue}");
        }
        assert!(inspect_half(b"").target.is_none());
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
