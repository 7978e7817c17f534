//! A stored record with its lengths checked.

use super::bodies::StoredBody;
use crate::protocol::{
    BORN_HOST_V6, MESSAGE_MAGIC, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN, STORE_HOST_V6,
    TOPIC_BYTES_MAX,
};

/// One record, its lengths checked.
pub(super) struct Record<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) sys_flag: i32,
    pub(super) born_host: &'a [u8],
    pub(super) store_timestamp: i64,
    pub(super) store_host: &'a [u8],
    /// Start of reconsume times, prepared offset and body length.
    pub(super) tail: usize,
    pub(super) body: &'a [u8],
    pub(super) topic: &'a [u8],
    pub(super) properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record at the start of `data`, all its lengths checked.
    pub(super) fn at(data: &'a [u8]) -> Result<Self, &'static str> {
        if data.len() < RECORD_BYTES_MIN {
            return Err("fewer bytes than the smallest record has");
        }
        if int_at(data, 4) != MESSAGE_MAGIC {
            return Err("wrong magic");
        }
        let size = usize::try_from(int_at(data, 0)).map_err(|_| "negative size")?;
        let bytes = data.get(..size).ok_or("torn: its size goes beyond the data")?;
        let sys_flag = int_at(bytes, 36);
        let host_size = |bit: i32| if sys_flag & bit == 0 { 8 } else { 20 };
        let born_end = 48 + host_size(BORN_HOST_V6);
        let store_end = born_end + 8 + host_size(STORE_HOST_V6);
        let body_start = store_end + 16;
        let reason = "its lengths do not add up";
        let part = |start: usize, size: usize| {
            start.checked_add(size).and_then(|end| bytes.get(start..end)).ok_or(reason)
        };
        part(store_end, 16)?;
        let body_size = usize::try_from(int_at(bytes, store_end + 12)).map_err(|_| reason)?;
        let body = part(body_start, body_size)?;
        let topic_start = body_start + body_size + 1;
        let topic_size = usize::from(part(topic_start - 1, 1)?[0]);
        let topic = part(topic_start, topic_size)?;
        if topic_size > TOPIC_BYTES_MAX {
            return Err(reason);
        }
        let text_start = topic_start + topic_size + 2;
        let text_size = part(text_start - 2, 2)?;
        let text_size = usize::from(u16::from_be_bytes([text_size[0], text_size[1]]));
        let properties = part(text_start, text_size)?;
        if text_start + text_size != size || text_size > PROPERTIES_BYTES_MAX {
            return Err(reason);
        }
        Ok(Self {
            bytes,
            sys_flag,
            born_host: &bytes[48..born_end],
            store_timestamp: long_at(bytes, born_end),
            store_host: &bytes[born_end + 8..store_end],
            tail: store_end,
            body,
            topic: std::str::from_utf8(topic).map_err(|_| "its topic is not UTF-8")?.as_bytes(),
            properties,
        })
    }

    pub(super) fn stored_body(&self) -> StoredBody<'a> {
        StoredBody {
            bytes: self.body,
            sys_flag: self.sys_flag,
            queue_offset: long_at(self.bytes, 20),
            commit_log_offset: long_at(self.bytes, 28),
        }
    }
}

pub(super) fn int_at(data: &[u8], at: usize) -> i32 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i32::from_be_bytes(*bytes))
}

pub(super) fn long_at(data: &[u8], at: usize) -> i64 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i64::from_be_bytes(*bytes))
}
