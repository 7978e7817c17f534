//! What clients encode is read by the broker's side as it was meant, and what the broker's side
//! answers by theirs; any other bytes are declined.

use super::send::{Numbers, OwnProperties, PropertyText, SendHead, push_item};
use super::sent::{Answers, Sent, sent};
use super::stream::FrameStream;
use crate::protocol::{FRAME_BYTES_MAX, PROPERTIES_BYTES_MAX, request};
use crate::record::properties;
use crate::wire::answer::{Pieces, SendAnswer};
use crate::wire::frame::{Cut, Frame, FrameError, cut};
use crate::wire::header::{Encoding, Header};
use proptest::prelude::*;

const HOST: [u8; 8] = [10, 0, 0, 1, 0, 0, 0x2A, 0x9F];

/// One of each place: a name, an ordinary text, and one with all that JSON has to escape.
const NAME: &str = "[A-Za-z0-9_%-]{1,20}";
const WORD: &str = "[^\u{1}\u{2}]{1,20}";

fn frame(bytes: &[u8]) -> Frame<'_> {
    match cut(bytes) {
        Ok(Cut::Frame(frame)) => frame,
        other => panic!("no frame: {other:?}"),
    }
}

fn answer(region: &str, trace_on: bool, opaque: i32, queue: i32, offset: i64) -> Vec<u8> {
    let mut out = Vec::new();
    let answer = SendAnswer {
        opaque,
        queue_id: queue,
        queue_offset: offset,
        physical_offsets: &[offset],
        ..SendAnswer::default()
    };
    Pieces::new(region, trace_on, &HOST).send_answer(&mut out, Encoding::Json, &answer);
    out
}

/// The frames that a stream gives for some chunks, and how it ends.
fn fed(chunks: &[&[u8]]) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let (mut frames, mut error) = (Vec::new(), None);
    let mut stream = FrameStream::new();
    for chunk in chunks {
        error = stream.feed(chunk, |frame| frames.push(frame.bytes.to_vec())).err();
    }
    (frames, error)
}

/// Bytes cut at some places.
fn pieces<'a>(data: &'a [u8], places: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place.index(data.len() + 1)).collect();
    places.sort_unstable();
    let mut start = 0;
    let mut found = Vec::new();
    for end in places.into_iter().chain([data.len()]) {
        found.push(&data[start..end]);
        start = end;
    }
    found
}

/// Headers of answers: %Q and %O are the queue and its offset, %I the id, %P the opaque.
const LAYOUTS: [&str; 5] = [
    concat!(
        r#"{"code":0,"extFields":{"MSG_REGION":"r","TRACE_ON":"true","msgId":"%I","#,
        r#""queueId":"%Q","queueOffset":"%O"},"flag":1,"language":"PYTHON","opaque":%P}"#,
    ),
    concat!(
        r#"{"code":0,"extFields":{"queueId":"%Q","TRACE_ON":"false","MSG_REGION":"é","#,
        r#""msgId":"%I","queueOffset":"%O"},"flag":1,"language":"JAVA","opaque":%P,"version":1}"#,
    ),
    concat!(
        r#"{ "opaque" : %P , "flag":1, "code":0, "extFields": {"queueOffset":"%O","#,
        r#""queueId":"7","msgId":"%I","queueId":"%Q"}}"#,
    ),
    r#"{"code":1,"extFields":{"msgId":"%I","queueId":"%Q","queueOffset":"%O"},"flag":1,"opaque":%P}"#,
    r#"{"code":0,"extFields":{"msgId":"%I"},"flag":1,"opaque":%P}"#,
];

/// Queue, offset, id and opaque as they are written.
fn values() -> impl Strategy<Value = [String; 4]> {
    let number = "[0-9]{1,3}|-?[0-9]{1,22}|[-0-9]{0,4}| 5";
    [number.boxed(), number.boxed(), "[0-9A-F,]{0,70}|[ -~é]{0,9}".boxed(), number.boxed()]
}

fn laid_out(layout: &str, [queue, offset, id, opaque]: &[String; 4]) -> Vec<u8> {
    let numbers = layout.replace("%Q", queue).replace("%O", offset).replace("%P", opaque);
    numbers.replace("%I", id).into_bytes()
}

/// One byte that is another, is inserted, or is where the text ends.
type Damage = Option<(prop::sample::Index, u8, i32)>;

fn damage() -> impl Strategy<Value = Damage> {
    prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>(), 0..3))
}

fn damaged(mut text: Vec<u8>, damage: Damage) -> Vec<u8> {
    if let Some((place, byte, how)) = damage {
        let at = place.index(text.len());
        match how {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            _ => text.truncate(at),
        }
    }
    text
}

#[test]
fn an_answer_laid_out_as_the_last_one_is_read_alike() {
    let mut reader = Answers::default();
    for number in [1, 20, i64::MAX] {
        for layout in [0, 1, 1] {
            let values = [3.to_string(), number.to_string(), "0A".repeat(16), 77.to_string()];
            let header = laid_out(LAYOUTS[layout], &values);
            let frame = Frame { bytes: &header, serialize_type: 0, header: &header, body: b"" };
            let read = reader.read(&frame);
            assert_eq!(read.map(|it| (it.queue_id, it.queue_offset)), Some((3, number)));
            assert_eq!(read, sent(&frame));
            let binary = Frame { serialize_type: 1, ..frame };
            assert_eq!(reader.read(&binary), None);
        }
    }
}

#[test]
fn a_frame_that_is_too_long_is_none() {
    let head = SendHead::new("g", "T", "TBW102", 4, false, false, false);
    let numbers = Numbers { queue_id: 0, opaque: 1, now_ms: 2, flag: 0 };
    let mut out = Vec::new();
    head.push(&mut out, numbers, b"", b"").unwrap();
    let body = vec![0; FRAME_BYTES_MAX - (out.len() - 4) + 1];
    out = b"before".to_vec();
    assert!(head.push(&mut out, numbers, b"", &body).is_none());
    assert_eq!(out, b"before");
    assert!(head.push(&mut out, numbers, b"", &body[1..]).is_some());
}

#[test]
fn properties_that_would_be_read_as_others_are_declined() {
    for (name, value) in [("KEYS", "x"), ("WAIT", "x"), ("a\u{1}b", "x"), ("a", "x\u{2}b\u{1}c")] {
        let mut out = Vec::new();
        assert!(PropertyText::begin(&mut out).user(name, value).is_none(), "{name} {value}");
    }
    for (keys, tags, id) in [("a\u{1}", "", "i"), ("", "a\u{2}", "i"), ("", "", "i\u{2}")] {
        let mut out = Vec::new();
        assert!(PropertyText::begin(&mut out).end(keys, tags, true, id).is_none());
    }
}

#[test]
fn a_property_text_has_a_longest_length() {
    let size_with = |length: usize| {
        let mut out = b"before".to_vec();
        let mut text = PropertyText::begin(&mut out);
        text.user("a", &"x".repeat(length)).unwrap();
        text.end("", "", true, "id")
    };
    let least = size_with(0).unwrap();
    assert_eq!(size_with(PROPERTIES_BYTES_MAX - least), Some(PROPERTIES_BYTES_MAX));
    assert_eq!(size_with(PROPERTIES_BYTES_MAX - least + 1), None);
}

#[test]
fn an_answer_without_one_of_its_parts_is_declined() {
    let whole = answer("r", true, 7, 1, 5);
    let text = String::from_utf8(frame(&whole).header.to_vec()).unwrap();
    let read = |text: &str| {
        let header = text.as_bytes();
        sent(&Frame { bytes: header, serialize_type: 0, header, body: b"" }).is_some()
    };
    assert!(read(&text));
    for (part, other) in [
        ("\"code\":0", "\"code\":1"),
        ("\"code\":0,", ""),
        ("\"flag\":1", "\"flag\":0"),
        ("\"flag\":1,", ""),
        ("\"opaque\":7,", ""),
        ("\"queueId\":\"1\",", ""),
        ("\"queueId\":\"1\"", "\"queueId\":\"2147483648\""),
        ("\"queueOffset\"", "\"queueOffsets\""),
        ("\"msgId\"", "\"msgid\""),
        ("\"version\"", "\"versions\""),
        ("\"MSG_REGION\":\"r\"", "\"MSG_REGION\":null"),
        ("{\"code\"", "[\"code\""),
    ] {
        assert!(text.contains(part), "{part}");
        assert!(!read(&text.replacen(part, other, 1)), "{part} as {other}");
    }
    assert!(!read(&format!("{text}x")));
}

proptest! {
    #[test]
    fn a_send_is_read_as_it_was_meant(
        (group, topic, template) in (NAME, NAME, NAME),
        (queue_id, opaque, now_ms, flag) in (0..i32::MAX, any::<i32>(), any::<i64>(), any::<i32>()),
        items in prop::collection::vec((WORD, WORD), 0..5),
        body in prop::collection::vec(any::<u8>(), 0..50),
        (is_batch, is_oneway) in (any::<bool>(), any::<bool>()),
    ) {
        let mut text = Vec::new();
        let mut building = PropertyText::begin(&mut text);
        let items: Vec<_> = items
            .iter()
            .filter(|(name, value)| building.user(name, value).is_some())
            .collect();
        building.end("k", "t", true, "id").unwrap();
        let mut out = Vec::new();
        let numbers = Numbers {
            queue_id: queue_id.into(), opaque: opaque.into(), now_ms, flag: flag.into(),
        };
        let head = SendHead::new(&group, &topic, &template, 4, false, is_batch, is_oneway);
        head.push(&mut out, numbers, &text, &body).unwrap();

        let frame = frame(&out);
        prop_assert_eq!(frame.bytes.len() + 4, out.len());
        prop_assert_eq!(frame.body, &body[..]);
        let mut header = Header::default();
        prop_assert!(header.read(frame.serialize_type, frame.header));
        prop_assert_eq!((header.opaque, header.flag), (opaque, if is_oneway { 2 } else { 0 }));
        let code = if is_batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 };
        prop_assert_eq!(header.code, code);
        let fields = header.send_fields(frame.header).unwrap();
        prop_assert_eq!(fields.topic, topic.as_bytes());
        prop_assert_eq!((fields.queue_id, fields.flag, fields.batch), (queue_id, flag, is_batch));
        prop_assert_eq!((fields.sys_flag, fields.reconsume_times), (0, 0));
        prop_assert_eq!(fields.born_timestamp, now_ms);
        prop_assert_eq!(fields.properties, &text[..]);
        let own = [("KEYS", "k"), ("TAGS", "t"), ("WAIT", "true"), ("UNIQ_KEY", "id")];
        let written: Vec<(&[u8], &[u8])> = items
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .chain(own.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
            .collect();
        prop_assert_eq!(properties(&text).collect::<Vec<_>>(), written);
    }

    #[test]
    fn plain_properties_are_written_as_all_others(
        (keys, tags) in (".{0,9}|[ -~]{0,12}", ".{0,9}|[ -~]{0,12}"),
        (is_waiting, message_id) in (any::<bool>(), "[0-9A-F]{8,32}"),
    ) {
        let own = OwnProperties { keys: &keys, tags: &tags, is_waiting, message_id: &message_id };
        let needs = |text: &str| text.chars().any(|it| it < ' ' || it == '"' || it == '\\');
        prop_assert_eq!(own.is_fast(), !needs(&keys) && !needs(&tags));
        if own.is_fast() {
            let head = SendHead::new("g", "T", "TBW102", 4, false, false, false);
            let numbers = Numbers { queue_id: 1, opaque: -2, now_ms: 3, flag: 4 };
            let (mut text, mut plain, mut general) = (Vec::new(), vec![7], vec![7]);
            let building = PropertyText::begin(&mut text);
            building.end(&keys, &tags, is_waiting, &message_id).unwrap();
            head.push_fast(&mut plain, numbers, own, b"body").unwrap();
            head.push(&mut general, numbers, &text, b"body").unwrap();
            prop_assert_eq!(plain, general);
        }
    }

    #[test]
    fn an_item_of_a_batch_says_how_long_it_is(
        flag in any::<i32>(),
        body in prop::collection::vec(any::<u8>(), 0..50),
        text in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut out = b"before".to_vec();
        push_item(&mut out, flag, &body, &text);
        let item = &out[6..];
        prop_assert_eq!(&item[..4], &(item.len() as u32).to_be_bytes());
        prop_assert_eq!(&item[4..12], &[0; 8]);
        prop_assert_eq!(&item[12..16], &flag.to_be_bytes());
        prop_assert_eq!(&item[16..20], &(body.len() as u32).to_be_bytes());
        let (stored, rest) = item[20..].split_at(body.len());
        prop_assert_eq!(stored, &body[..]);
        prop_assert_eq!(&rest[..2], &(text.len() as u16).to_be_bytes());
        prop_assert_eq!(&rest[2..], &text[..]);
    }

    #[test]
    fn an_answer_is_read_as_it_was_meant(
        (region, trace_on) in ("[A-Za-z0-9]{0,12}", any::<bool>()),
        (opaque, queue_id, queue_offset) in (any::<i32>(), any::<i32>(), any::<i64>()),
    ) {
        let whole = answer(&region, trace_on, opaque, queue_id, queue_offset);
        let id = format!("0A00000100002A9F{:016X}", queue_offset as u64);
        prop_assert_eq!(
            sent(&frame(&whole)),
            Some(Sent {
                opaque, queue_id, queue_offset, message_id: &id, region: &region, is_traced: trace_on,
            })
        );
    }

    #[test]
    fn a_damaged_answer_is_declined_or_whole(
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        how in 0..3,
    ) {
        let whole = answer("region", true, 12, 3, 45);
        let header = damaged(frame(&whole).header.to_vec(), Some((place, byte, how)));
        let damaged = Frame { bytes: &header, serialize_type: 0, header: &header, body: b"" };
        if let Some(read) = sent(&damaged) {
            prop_assert!(how < 2, "half an answer was read");
            prop_assert!(std::str::from_utf8(&header).is_ok());
            let id = read.message_id.as_bytes();
            let is_there = header.windows(id.len().max(1)).any(|part| part == id);
            prop_assert!(is_there || id.is_empty());
        }
    }

    #[test]
    fn an_answer_is_read_alike_whatever_layout_came_before(
        answers in prop::collection::vec((0..LAYOUTS.len(), values(), damage()), 1..12),
    ) {
        let mut reader = Answers::default();
        for (layout, values, damage) in answers {
            let header = damaged(laid_out(LAYOUTS[layout], &values), damage);
            let frame = Frame { bytes: &header, serialize_type: 0, header: &header, body: b"" };
            prop_assert_eq!(reader.read(&frame), sent(&frame));
        }
    }

    #[test]
    fn frames_are_the_same_however_the_stream_is_cut(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut data = Vec::new();
        for body in &bodies {
            let size = 4 + 2 + body.len();
            data.extend((size as u32).to_be_bytes());
            data.extend(2u32.to_be_bytes());
            data.extend(b"{}");
            data.extend(body);
        }
        let (frames, error) = fed(&pieces(&data, &places));
        prop_assert_eq!(error, None);
        let found: Vec<&[u8]> = frames.iter().map(|frame| &frame[6..]).collect();
        prop_assert_eq!(found, bodies.iter().map(|body| &body[..]).collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_are_frames_or_an_error_that_stays(
        mut data in prop::collection::vec(prop_oneof![Just(0u8), Just(4), Just(9), any::<u8>()], 0..80),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = fed(&[&data]);
        prop_assert_eq!(&fed(&pieces(&data, &places)), &whole);
        if whole.1.is_some() {
            data.extend([0, 0, 0, 4, 0, 0, 0, 0]);
            prop_assert_eq!(fed(&[&data]), whole);
        }
    }
}
