//! The columns that there are, and where their values come from.

use super::items::Known;
use crate::protocol::{COLUMN_MS_MAX, COLUMN_MS_MIN};
use crate::record::RecordView;

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Int(fn(&RecordView<'_>) -> i32),
    Long(fn(&RecordView<'_>) -> i64),
    Truth(fn(&RecordView<'_>) -> bool),
    Topic,
    MessageId,
    BornHost,
    StoreHost,
    Property(Known),
    Body,
    Properties,
}

pub(super) const COLUMNS: [(&str, Kind); 20] = [
    ("topic", Kind::Topic),
    ("queueId", Kind::Int(|record| record.queue_id)),
    ("queueOffset", Kind::Long(|record| record.queue_offset)),
    ("commitLogOffset", Kind::Long(|record| record.physical_offset)),
    ("msgId", Kind::MessageId),
    ("tags", Kind::Property(Known::Tags)),
    ("keys", Kind::Property(Known::Keys)),
    ("uniqKey", Kind::Property(Known::UniqueKey)),
    ("flag", Kind::Int(|record| record.flag)),
    ("sysFlag", Kind::Int(|record| record.sys_flag)),
    ("bornTimestamp", Kind::Long(|record| microseconds(record.born_timestamp))),
    ("storeTimestamp", Kind::Long(|record| microseconds(record.store_timestamp))),
    ("bornHost", Kind::BornHost),
    ("storeHost", Kind::StoreHost),
    ("reconsumeTimes", Kind::Int(|record| record.reconsume_times)),
    ("preparedTransactionOffset", Kind::Long(|record| record.prepared_transaction_offset)),
    ("size", Kind::Int(|record| record.size as i32)),
    ("crcOk", Kind::Truth(is_crc_right)),
    ("body", Kind::Body),
    ("properties", Kind::Properties),
];

fn microseconds(time_ms: i64) -> i64 {
    time_ms.clamp(COLUMN_MS_MIN, COLUMN_MS_MAX) * 1_000
}

fn is_crc_right(record: &RecordView<'_>) -> bool {
    record.is_crc_right()
}

/// The names of all columns.
#[must_use]
pub fn names() -> Vec<&'static str> {
    COLUMNS.iter().map(|(name, _)| *name).collect()
}
