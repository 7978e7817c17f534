//! A stored record whose columns are wanted.

use super::bodies::StoredBody;
use crate::protocol::{MESSAGE_MAGIC, RECORD_BYTES_MIN};
use crate::record::{RecordView, int, view};

/// The record at the start of `data`, all its lengths checked, its topic text.
pub(super) fn record_at(data: &[u8]) -> Result<RecordView<'_>, &'static str> {
    if data.len() < RECORD_BYTES_MIN {
        return Err("fewer bytes than the smallest record has");
    }
    if int(data, 4) != MESSAGE_MAGIC {
        return Err("wrong magic");
    }
    let size = usize::try_from(int(data, 0)).map_err(|_| "negative size")?;
    let bytes = data.get(..size).ok_or("torn: its size goes beyond the data")?;
    let record = view(bytes).ok_or("its lengths do not add up")?;
    std::str::from_utf8(record.topic).map_err(|_| "its topic is not UTF-8")?;
    Ok(record)
}

/// The body as it is stored.
pub(super) fn stored_body<'a>(record: &RecordView<'a>) -> StoredBody<'a> {
    StoredBody {
        bytes: record.body,
        sys_flag: record.sys_flag,
        queue_offset: record.queue_offset,
        commit_log_offset: record.physical_offset,
    }
}
