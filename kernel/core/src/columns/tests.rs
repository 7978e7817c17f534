//! Tests of decoded columns.

use crate::protocol::{BORN_HOST_V6, COMPRESSION_ZLIB, MESSAGE_MAGIC, STORE_HOST_V6};
use std::io::Write;

use super::bodies::refuse;
use super::hosts::plain_v6;
use super::maps::FEW_ITEMS;
use super::*;

fn decode(data: &[u8], columns: &[&str]) -> Result<Decoded, ColumnError> {
    decode_columns(data, columns, Window::default(), &mut refuse)
}

fn record(sys_flag: i32, offset: i64, body: &[u8], topic: &str, properties: &str) -> Vec<u8> {
    let host = |bit: i32| -> Vec<u8> {
        let mut host = if sys_flag & bit == 0 { vec![10, 0, 0, 1] } else { vec![0; 15] };
        if host.len() == 15 {
            host.push(1);
        }
        host.extend_from_slice(&10_911u32.to_be_bytes());
        host
    };
    let mut out = vec![0; 4];
    out.extend_from_slice(&MESSAGE_MAGIC.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&3i32.to_be_bytes());
    out.extend_from_slice(&(-1i32).to_be_bytes());
    out.extend_from_slice(&7i64.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&sys_flag.to_be_bytes());
    out.extend_from_slice(&1_700_000_000_001i64.to_be_bytes());
    out.extend_from_slice(&host(BORN_HOST_V6));
    out.extend_from_slice(&1_700_000_000_002i64.to_be_bytes());
    out.extend_from_slice(&host(STORE_HOST_V6));
    out.extend_from_slice(&2i32.to_be_bytes());
    out.extend_from_slice(&9i64.to_be_bytes());
    out.extend_from_slice(&i32::try_from(body.len()).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out.push(u8::try_from(topic.len()).unwrap());
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(&u16::try_from(properties.len()).unwrap().to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
    let size = u32::try_from(out.len()).unwrap().to_be_bytes();
    out[..4].copy_from_slice(&size);
    out
}

fn one(data: &[u8], column: &str) -> Result<Column, ColumnError> {
    decode(data, &[column]).map(|mut decoded| decoded.columns.remove(0))
}

fn texts(data: &[u8], column: &str) -> Vec<Option<String>> {
    let Column::Variable { validity, offsets, data } = one(data, column).unwrap() else {
        panic!("not a text column")
    };
    let ends: Vec<usize> = offsets
        .chunks(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()) as usize)
        .collect();
    ends.windows(2)
        .enumerate()
        .map(|(row, range)| {
            let is_there = validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
            let text = String::from_utf8(data[range[0]..range[1]].to_vec()).unwrap();
            is_there.then_some(text)
        })
        .collect()
}

#[test]
fn every_column_of_a_record_is_decoded() {
    let data = record(0, 0xAB, b"body", "topic", "TAGS\u{1}a\u{2}KEYS\u{1}k\u{2}x\u{1}y");
    for (column, value) in [("queueId", 3), ("flag", -1), ("sysFlag", 0), ("reconsumeTimes", 2)] {
        let expected = Column::Fixed(i32::to_le_bytes(value).to_vec());
        assert_eq!(one(&data, column).unwrap(), expected, "{column}");
    }
    let longs = [
        ("queueOffset", 7),
        ("commitLogOffset", 0xAB),
        ("preparedTransactionOffset", 9),
        ("bornTimestamp", 1_700_000_000_001_000),
        ("storeTimestamp", 1_700_000_000_002_000),
    ];
    for (column, value) in longs {
        let expected = Column::Fixed(i64::to_le_bytes(value).to_vec());
        assert_eq!(one(&data, column).unwrap(), expected, "{column}");
    }
    let all = [
        ("topic", Some("topic")),
        ("tags", Some("a")),
        ("keys", Some("k")),
        ("uniqKey", None),
        ("msgId", Some("0A00000100002A9F00000000000000AB")),
        ("bornHost", Some("10.0.0.1:10911")),
        ("storeHost", Some("10.0.0.1:10911")),
        ("body", Some("body")),
    ];
    for (column, value) in all {
        assert_eq!(texts(&data, column), [value.map(str::to_owned)], "{column}");
    }
    let Column::Map { offsets, key_data, value_data, .. } = one(&data, "properties").unwrap()
    else {
        panic!("not a map")
    };
    assert_eq!(offsets, [0, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!((&key_data[..], &value_data[..]), (&b"TAGSKEYSx"[..], &b"aky"[..]));
}

#[test]
fn long_hosts_move_the_later_fields() {
    let flags = BORN_HOST_V6 | STORE_HOST_V6;
    let data = [record(0, 1, b"a", "t", ""), record(flags, 2, b"b", "t", "")].concat();
    let hosts = ["10.0.0.1:10911", "::1:10911"].map(|text| Some(text.to_owned()));
    assert_eq!(texts(&data, "bornHost"), hosts);
    assert_eq!(texts(&data, "storeHost"), hosts);
    assert_eq!(texts(&data, "msgId")[1].as_ref().unwrap().len(), 56);
    assert_eq!(texts(&data, "body")[1].as_deref(), Some("b"));
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xFF, 0xFF, 1, 2, 3, 4]);
    assert_eq!(plain_v6(mapped), "::ffff:102:304");
}

#[test]
fn compressed_bodies_are_inflated_and_bad_ones_named() {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&[b'x'; 1_000]).unwrap();
    let body = encoder.finish().unwrap();
    for flag in [1, 1 | COMPRESSION_ZLIB] {
        let data = record(flag, 1, &body, "t", "");
        assert_eq!(texts(&data, "body")[0].as_ref().unwrap().len(), 1_000);
    }
    let longer = [&body[..], b"x"].concat();
    assert_eq!(texts(&record(1, 1, &longer, "t", ""), "body")[0].as_ref().unwrap().len(), 1_000);
    for (flag, body) in [(0x101, &body[..]), (1, b"not zlib"), (1, &body[..body.len() - 3])] {
        let error = one(&record(flag, 77, body, "t", ""), "body").unwrap_err();
        assert!(error.to_string().contains("offset 77"), "{error}");
    }
}

#[test]
fn torn_and_malformed_records_are_named_by_their_position() {
    let first = record(0, 1, b"body", "topic", "a\u{1}b");
    let data = [first.clone(), first.clone()].concat();
    for end in first.len() + 1..data.len() {
        let error = one(&data[..end], "topic").unwrap_err();
        assert!(
            matches!(error, ColumnError::Malformed { position, .. } if position == first.len())
        );
    }
    for at in [0, 4, 39, 84, 92, first.len() - 5] {
        let mut changed = first.clone();
        changed[at] ^= 0x35;
        assert!(one(&changed, "topic").is_err(), "{at}");
    }
    let error = decode(&data, &["nope"]).unwrap_err();
    assert!(error.to_string().contains("nope") && error.to_string().contains("queueOffset"));
    assert_eq!(decode(b"", &["topic", "flag"]).unwrap().rows, 0);
}

#[test]
fn many_items_are_taken_apart_like_few() {
    for count in [1, FEW_ITEMS, FEW_ITEMS + 1, 2_000] {
        let items: Vec<String> = (0..count).map(|index| format!("n{index}\u{1}{index}")).collect();
        let text = format!("{}\u{2}n0\u{1}last", items.join("\u{2}"));
        let Column::Map { offsets, value_data, .. } =
            one(&record(0, 1, b"b", "t", &text), "properties").unwrap()
        else {
            panic!("not a map")
        };
        assert_eq!(offsets[4..], (count as i32).to_le_bytes());
        assert!(value_data.starts_with(b"last"), "{count}");
    }
}

#[test]
fn a_property_that_comes_twice_counts_once() {
    let data = record(0, 1, b"b", "t", "TAGS\u{1}a\u{2}TAGS\u{1}b\u{2}\u{2}bad\u{2}c\u{1}");
    assert_eq!(texts(&data, "tags"), [Some("b".to_owned())]);
    let Column::Map { key_data, value_data, .. } = one(&data, "properties").unwrap() else {
        panic!("not a map")
    };
    assert_eq!((&key_data[..], &value_data[..]), (&b"TAGS"[..], &b"b"[..]));
}
