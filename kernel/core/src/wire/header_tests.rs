//! Tests of the header reader, with a bounded random mutation loop.

use super::header::{Encoding, Header, Order, PullFields, SendFields};
use super::numbers::{integer, long};
use crate::protocol::request as code;

/// A JSON header as a Java client writes it.
fn json(code: i32, flag: i32, opaque: i32, fields: &[(&str, &str)]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|(key, value)| format!("\"{key}\":\"{value}\"")).collect();
    format!(
        "{{\"code\":{code},\"extFields\":{{{}}},\"flag\":{flag},\"language\":\"JAVA\",\
         \"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}}",
        fields.join(",")
    )
}

fn binary(code: i16, flag: i32, opaque: i32, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut entries = Vec::new();
    for (key, value) in fields {
        entries.extend_from_slice(&i16::try_from(key.len()).unwrap().to_be_bytes());
        entries.extend_from_slice(key.as_bytes());
        entries.extend_from_slice(&i32::try_from(value.len()).unwrap().to_be_bytes());
        entries.extend_from_slice(value.as_bytes());
    }
    let mut out = code.to_be_bytes().to_vec();
    out.push(0);
    out.extend_from_slice(&409i16.to_be_bytes());
    out.extend_from_slice(&opaque.to_be_bytes());
    out.extend_from_slice(&flag.to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes());
    out.extend_from_slice(&i32::try_from(entries.len()).unwrap().to_be_bytes());
    out.extend_from_slice(&entries);
    out
}

const SEND: [(&str, &str); 12] = [
    ("a", "group"),
    ("b", "topic"),
    ("c", "TBW102"),
    ("d", "4"),
    ("e", "3"),
    ("f", "0"),
    ("g", "1700000000123"),
    ("h", "7"),
    ("i", "KEYS\\u0001order-42\\u0002TAGS\\u0001a"),
    ("j", "2"),
    ("k", "false"),
    ("m", "false"),
];

const PULL: [(&str, &str); 11] = [
    ("consumerGroup", "group"),
    ("topic", "topic"),
    ("queueId", "1"),
    ("queueOffset", "12345678901"),
    ("maxMsgNums", "32"),
    ("sysFlag", "6"),
    ("commitOffset", "-1"),
    ("suspendTimeoutMillis", "15000"),
    ("subscription", "a || b"),
    ("subVersion", "1"),
    ("expressionType", "TAG"),
];

fn read(text: &str) -> Option<Header> {
    let mut header = Header::default();
    header.read(0, text.as_bytes()).then_some(header)
}

#[test]
fn a_send_header_is_read_and_its_properties_unescaped() {
    let text = json(code::SEND_MESSAGE_V2, 2, -5, &SEND);
    let header = read(&text).unwrap();
    assert_eq!((header.code, header.flag, header.opaque), (310, 2, -5));
    let fields = header.send_fields(text.as_bytes()).unwrap();
    assert_eq!(
        fields,
        SendFields {
            group: b"group",
            topic: b"topic",
            queue_id: 3,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_123,
            flag: 7,
            properties: b"KEYS\x01order-42\x02TAGS\x01a",
            reconsume_times: 2,
            batch: false,
        }
    );
    assert!(header.pull_fields(text.as_bytes()).is_none());
}

#[test]
fn a_pull_header_is_read() {
    let text = json(code::PULL_MESSAGE, 0, 9, &PULL);
    let header = read(&text).unwrap();
    let fields = header.pull_fields(text.as_bytes()).unwrap();
    assert_eq!(
        fields,
        PullFields {
            group: b"group",
            topic: b"topic",
            queue_id: 1,
            queue_offset: 12_345_678_901,
            max_count: 32,
            sys_flag: 6,
            commit_offset: -1,
            suspend_timeout_ms: 15_000,
            subscription: b"a || b",
            subscription_version: 1,
        }
    );
}

#[test]
fn both_encodings_give_the_same_fields() {
    let mut fields = SEND;
    fields[8].1 = "KEYS\u{1}order-42\u{2}TAGS\u{1}a";
    let data = binary(310, 0, 77, &fields);
    let mut header = Header::default();
    assert!(header.read(1, &data));
    assert_eq!(header.encoding, Encoding::Binary);
    let text = json(310, 0, 77, &SEND);
    let other = read(&text).unwrap();
    assert_eq!(header.send_fields(&data), other.send_fields(text.as_bytes()));
    let data = binary(11, 0, 77, &PULL);
    assert!(header.read(1, &data));
    let text = json(11, 0, 77, &PULL);
    let other = read(&text).unwrap();
    assert_eq!(header.pull_fields(&data), other.pull_fields(text.as_bytes()));
}

#[test]
fn the_long_names_of_code_10_mean_the_same_as_the_letters() {
    let names = [
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
        "properties",
        "reconsumeTimes",
        "unitMode",
        "batch",
    ];
    let fields: Vec<_> = names.iter().zip(SEND).map(|(n, (_, v))| (*n, v)).collect();
    let text = json(code::SEND_MESSAGE, 0, 1, &fields);
    let header = read(&text).unwrap();
    let short = json(310, 0, 1, &SEND);
    let other = read(&short).unwrap();
    assert_eq!(header.send_fields(text.as_bytes()), other.send_fields(short.as_bytes()));
}

#[test]
fn members_and_fields_may_come_in_any_order_and_with_blanks() {
    let mut fields = SEND;
    fields.reverse();
    let fields: Vec<String> =
        fields.iter().map(|(key, value)| format!("\"{key}\" : \"{value}\"")).collect();
    let text = format!(
        " {{ \"version\" : 409 , \"opaque\":12,\"flag\" :0, \"extFields\": {{ {} }}, \
         \"code\": 310, \"language\":\"GO\" }} ",
        fields.join(" ,\n")
    );
    let header = read(&text).unwrap();
    let fields = header.send_fields(text.as_bytes()).unwrap();
    assert_eq!(fields.properties, b"KEYS\x01order-42\x02TAGS\x01a");
}

#[test]
fn a_flag_may_be_missing_and_a_remark_there() {
    let good = json(310, 0, 1, &SEND);
    for (from, to) in [("\"flag\":0,", ""), ("\"flag\":0", "\"remark\":null")] {
        let text = good.replace(from, to);
        assert_eq!(read(&text).unwrap().flag, 0, "{text}");
    }
    let text = good.replace("\"flag\":0", "\"flag\":2,\"remark\":\"x\"");
    assert_eq!(read(&text).unwrap().flag, 2);
}

#[test]
fn a_subscription_may_hold_escapes() {
    let text = json(11, 0, 9, &PULL).replace("a || b", "\\u00e4\\t||b");
    let header = read(&text).unwrap();
    let fields = header.pull_fields(text.as_bytes()).unwrap();
    assert_eq!(fields.subscription, "ä\t||b".as_bytes());
}

#[test]
fn escapes_of_every_kind_are_decoded() {
    let cases: [(&str, &str); 5] = [
        ("a\\u0001b", "a\u{1}b"),
        ("\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\u{8}\u{c}\n\r\t"),
        ("\\u00e9\\u20AC\\ud83d\\ude00", "é€😀"),
        ("long text without any escape é\\u0002", "long text without any escape é\u{2}"),
        ("\\u0041", "A"),
    ];
    for (escaped, plain) in cases {
        let mut fields = SEND;
        fields[8].1 = escaped;
        let text = json(310, 0, 1, &fields);
        let header = read(&text).unwrap();
        let found = header.send_fields(text.as_bytes()).unwrap().properties;
        assert_eq!(found, plain.as_bytes());
    }
}

#[test]
fn the_unescape_buffer_of_one_header_does_not_leak_into_the_next() {
    let mut header = Header::default();
    let text = json(310, 0, 1, &SEND);
    assert!(header.read(0, text.as_bytes()));
    for value in ["", "x\\u0001y", "plain\u{7f}"] {
        let mut fields = SEND;
        fields[8].1 = value;
        let text = json(310, 0, 1, &fields);
        assert!(header.read(0, text.as_bytes()));
        let found = header.send_fields(text.as_bytes()).unwrap().properties;
        assert_eq!(found, value.replace("\\u0001", "\u{1}").as_bytes());
    }
}

#[test]
fn unusual_headers_are_declined() {
    let bad = [
        "",
        "{}",
        "[]",
        "{\"code\":310}",
        "{\"code\":310,\"extFields\":{},\"flag\":0,\"opaque\":1}",
        "{\"code\":310,\"extFields\":null,\"flag\":0,\"opaque\":1}",
    ];
    for text in bad {
        assert!(read(text).is_none(), "{text}");
    }
    let good = json(310, 0, 1, &SEND);
    let changes = [
        ("\"flag\":0", "\"flag\":0,\"flag\":0"),
        ("\"flag\":0", "\"flag\":0,\"extra\":0"),
        ("\"flag\":0", "\"flag\":0.5"),
        ("\"flag\":0", "\"flag\":99999999999"),
        ("\"flag\":0", "\"flag\":0,\"remark\":nul"),
        ("\"k\":\"false\"", "\"k\":false"),
        ("\"k\":\"false\"", "\"k\":null"),
        ("\"k\":\"false\"", "\"zz\":\"false\""),
        ("\"k\":\"false\"", "\"m\":\"false\""),
        ("\"topic\"", "\"to\\u0070ic\""),
        ("\"topic\"", "\"to\u{3}ic\""),
        ("order-42", "order\u{1}42"),
        ("order-42", "\\ud83d"),
        ("order-42", "\\ud83d\\u0041"),
        ("order-42", "\\udc00"),
        ("order-42", "\\x"),
        ("order-42", "\\u00g0"),
        ("409}", "409}x"),
        ("409}", "409"),
    ];
    for (from, to) in changes {
        let text = good.replace(from, to);
        assert_ne!(text, good);
        assert!(read(&text).is_none(), "{text}");
    }
}

#[test]
fn fields_that_the_fast_path_does_not_do_are_declined() {
    let good = json(310, 0, 1, &SEND);
    let changes = [
        ("\"k\":\"false\"", "\"k\":\"true\""),
        ("\"k\":\"false\"", "\"k\":\"False\""),
        ("\"k\":\"false\"", "\"topic\":\"t\""),
        ("\"m\":\"false\"", "\"m\":\"true\""),
        ("\"e\":\"3\"", "\"e\":\"3x\""),
        ("\"e\":\"3\"", "\"e\":\"\""),
        ("\"e\":\"3\"", "\"e\":\"2147483648\""),
        ("\"e\":\"3\",", ""),
        ("\"g\":\"1700000000123\"", "\"g\":\"9223372036854775808\""),
        ("\"j\":\"2\"", "\"j\":\"+2\""),
        ("\"j\":\"2\"", "\"l\":\"x\""),
    ];
    for (from, to) in changes {
        let text = good.replace(from, to);
        assert_ne!(text, good);
        let header = read(&text).unwrap();
        assert!(header.send_fields(text.as_bytes()).is_none(), "{text}");
    }
    let text = json(11, 0, 1, &PULL).replace("TAG", "SQL92");
    assert!(read(&text).unwrap().pull_fields(text.as_bytes()).is_none());
    let text = json(320, 0, 1, &SEND);
    assert!(read(&text).unwrap().send_fields(text.as_bytes()).is_none());
    let text = text.replace("\"m\":\"false\"", "\"m\":\"true\",\"bname\":\"b\",\"n\":\"b\"");
    let header = read(&text).unwrap();
    assert!(header.send_fields(text.as_bytes()).unwrap().batch);
}

#[test]
fn numbers_are_those_of_java() {
    assert_eq!(long(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(long(b"9223372036854775807"), Some(i64::MAX));
    assert_eq!(long(b"9223372036854775808"), None);
    assert_eq!(integer(b"-2147483648"), Some(i32::MIN));
    assert_eq!(integer(b"2147483648"), None);
    for bad in ["", "-", "+1", "01", "-0", "00", " 1", "1 ", "0x1", "99999999999999999999"] {
        assert_eq!(long(bad.as_bytes()), None);
    }
}

/// xorshift; the seed is fixed so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

#[test]
fn random_changes_never_panic_and_never_read_outside() {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let mut plain = SEND;
    plain[8].1 = "KEYS\u{1}order-42\u{2}TAGS\u{1}a";
    let seeds = [
        (0, json(310, 0, 1, &SEND).into_bytes()),
        (0, json(11, 0, 1, &PULL).into_bytes()),
        (1, binary(310, 0, 1, &plain)),
        (1, binary(11, 0, 1, &PULL)),
    ];
    let interesting = b"\"\\{}:,u0D89\x00\x01\x7f\xff ";
    let mut header = Header::default();
    let mut accepted = 0;
    for round in 0..40_000 {
        let (serialize_type, seed) = &seeds[round % seeds.len()];
        let mut data = seed.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(data.len().max(1));
            match random.below(4) {
                _ if data.is_empty() => break,
                0 => data[at] = interesting[random.below(interesting.len())],
                1 => drop(data.remove(at)),
                2 => data.insert(at, interesting[random.below(interesting.len())]),
                _ => data.truncate(at.max(1)),
            }
        }
        if header.read(*serialize_type, &data) {
            let is_send = header.send_fields(&data).is_some();
            let is_pull = header.pull_fields(&data).is_some();
            accepted += usize::from(is_send || is_pull);
        }
    }
    assert!(accepted > 100, "the changes are too wild: {accepted}");
}

/// The fields of a send with another property text.
fn with_properties(text: &str) -> Vec<(&str, &str)> {
    SEND.into_iter().map(|(key, value)| (key, if key == "i" { text } else { value })).collect()
}

#[test]
fn a_long_text_with_escapes_is_left_to_python_and_leaves_no_buffer_behind() {
    let long = "\\n".repeat(1 << 20);
    let text = json(310, 0, 1, &with_properties(&long));
    let mut header = Header::default();
    assert!(!header.read(0, text.as_bytes()));
    assert!(header.buffer_bytes() < 1 << 20, "{}", header.buffer_bytes());
    // The longest text that a record can hold, each of its bytes written as an escape.
    let most = "\\u0041".repeat(32_767);
    let text = json(310, 0, 1, &with_properties(&most));
    assert!(header.read(0, text.as_bytes()));
}

const SIGNING: [(&str, &str); 5] = [
    ("Signature", "c2lnbmF0dXJl"),
    ("SecurityToken", "token"),
    ("AccessKey", "key"),
    ("ReqT", "0"),
    ("OnsChannel", "ALIYUN"),
];

fn signed(header: &Header, bytes: &[u8], order: &mut Order) -> Option<Vec<u8>> {
    let mut text = b"what the last one signed".to_vec();
    let size = header.signed_text(bytes, order, &mut text, 9)?;
    assert!(text.len() >= size + 9);
    text.truncate(size);
    Some(text)
}

#[test]
fn what_is_signed_are_the_values_in_the_order_of_names() {
    let decoded = |value: &str| value.replace("\\u0001", "\x01").replace("\\u0002", "\x02");
    let mut order = Order::default();
    for plain in [SEND.as_slice(), PULL.as_slice()] {
        // Fields come, go and change their places; the order is remembered from one to the next.
        for round in 0..64_usize {
            let mut fields: Vec<_> = plain.iter().chain(&SIGNING).copied().collect();
            fields.retain(|(name, _)| name.len() != 1 + round % 16);
            let middle = round % fields.len();
            fields.rotate_left(middle);
            let code = if plain.len() == SEND.len() { 310 } else { 11 };
            let text = json(code, 0, 1, &fields);
            let header = read(&text).unwrap();
            fields.sort_unstable();
            fields.retain(|(name, _)| *name != "Signature");
            let expected: String = fields.iter().map(|(_, value)| decoded(value)).collect();
            assert_eq!(signed(&header, text.as_bytes(), &mut order).unwrap(), expected.as_bytes());
        }
    }
}

#[test]
fn a_signed_header_is_as_fast_as_another_and_says_who_signed() {
    for plain in [SEND.as_slice(), PULL.as_slice()] {
        let fields: Vec<_> = plain.iter().chain(&SIGNING).copied().collect();
        let code = if plain.len() == SEND.len() { 310 } else { 11 };
        let text = json(code, 0, 1, &fields);
        let header = read(&text).unwrap();
        let bytes = text.as_bytes();
        assert_eq!(header.send_fields(bytes).is_some(), code == 310);
        assert_eq!(header.pull_fields(bytes).is_some(), code == 11);
        assert_eq!(header.access_key(bytes), Some(&b"key"[..]));
        assert_eq!(header.signature(bytes), b"c2lnbmF0dXJl");
        let unsigned = json(code, 0, 1, plain);
        let header = read(&unsigned).unwrap();
        assert_eq!(header.access_key(unsigned.as_bytes()), None);
        assert_eq!(header.signature(unsigned.as_bytes()), b"");
        for twice in &SIGNING {
            let fields: Vec<_> = fields.iter().chain([twice]).copied().collect();
            assert!(read(&json(code, 0, 1, &fields)).is_none(), "{twice:?} comes twice");
        }
    }
}

#[test]
fn what_is_no_certain_text_is_not_signed() {
    let mut order = Order::default();
    let mut header = Header::default();
    let plain = SEND.iter().filter(|(name, _)| *name != "i");
    let fields: Vec<_> = plain.chain(&SIGNING).copied().collect();
    let bytes = binary(310, 0, 1, &fields);
    assert!(header.read(1, &bytes));
    assert!(header.access_key(&bytes).is_some() && signed(&header, &bytes, &mut order).is_some());
    let with_null: Vec<_> = fields.iter().copied().chain([("n", "")]).collect();
    let bytes = binary(310, 0, 1, &with_null);
    assert!(header.read(1, &bytes) && header.send_fields(&bytes).is_some());
    assert_eq!(header.access_key(&bytes), None, "a null");
    // Two halves of a character that only stand beside each other when they are signed.
    let halves: Vec<_> = fields.iter().copied().filter(|(name, _)| !"ab".contains(name)).collect();
    let halves: Vec<_> = halves.into_iter().chain([("a", "\u{e4}"), ("b", "x")]).collect();
    let mut bytes = binary(310, 0, 1, &halves);
    let at = bytes.iter().position(|byte| *byte == 0xC3).unwrap();
    // ä is C3 A4: the value of `a` ends in the middle of it, and b is what is left.
    bytes.splice(at + 1..at + 2, []);
    bytes[at - 1] = 1;
    let last = bytes.len() - 1;
    bytes[last] = 0xA4;
    let size = u32::from_be_bytes(*bytes[17..].first_chunk().unwrap()) - 1;
    bytes[17..21].copy_from_slice(&size.to_be_bytes());
    assert!(header.read(1, &bytes) && header.send_fields(&bytes).is_some());
    assert_eq!(signed(&header, &bytes, &mut order), None);
}
