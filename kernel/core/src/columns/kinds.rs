//! The columns that there are, and where their values come from.

use super::items::Known;
use super::record::{Record, int_at, long_at};

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Int(fn(&Record<'_>) -> i32),
    Long(fn(&Record<'_>) -> i64),
    Topic,
    MessageId,
    BornHost,
    StoreHost,
    Property(Known),
    Body,
    Properties,
}

pub(super) const COLUMNS: [(&str, Kind); 18] = [
    ("topic", Kind::Topic),
    ("queueId", Kind::Int(|record| int_at(record.bytes, 12))),
    ("queueOffset", Kind::Long(|record| long_at(record.bytes, 20))),
    ("commitLogOffset", Kind::Long(|record| long_at(record.bytes, 28))),
    ("msgId", Kind::MessageId),
    ("tags", Kind::Property(Known::Tags)),
    ("keys", Kind::Property(Known::Keys)),
    ("uniqKey", Kind::Property(Known::UniqueKey)),
    ("flag", Kind::Int(|record| int_at(record.bytes, 16))),
    ("sysFlag", Kind::Int(|record| record.sys_flag)),
    ("bornTimestamp", Kind::Long(|record| long_at(record.bytes, 40).saturating_mul(1_000))),
    ("storeTimestamp", Kind::Long(|record| record.store_timestamp.saturating_mul(1_000))),
    ("bornHost", Kind::BornHost),
    ("storeHost", Kind::StoreHost),
    ("reconsumeTimes", Kind::Int(|record| int_at(record.bytes, record.tail))),
    ("preparedTransactionOffset", Kind::Long(|record| long_at(record.bytes, record.tail + 4))),
    ("body", Kind::Body),
    ("properties", Kind::Properties),
];

/// The names of all columns.
#[must_use]
pub fn names() -> Vec<&'static str> {
    COLUMNS.iter().map(|(name, _)| *name).collect()
}
