//! Keys of records and their hashes.

use crate::record::java_hash_from;

/// One key of one record, on its way to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingKey {
    pub(crate) hash: i32,
    pub(crate) physical_offset: i64,
    pub(crate) store_timestamp: i64,
}

/// Java's hash of `topic#key`, made non-negative as the index does; `topic_hash` is that of
/// `topic#`.
#[inline]
pub(crate) fn key_hash(topic_hash: i32, key: &[u8]) -> i32 {
    // The absolute value of the smallest int is itself in Java, and 0 in the index.
    java_hash_from(topic_hash, key).checked_abs().unwrap_or(0)
}

/// Calls `put` with each index hash of a record: that of the unique key, then one per word of KEYS.
#[inline]
pub(crate) fn for_each_key(
    topic_hash: i32,
    uniq_key: Option<&[u8]>,
    keys: Option<&[u8]>,
    mut put: impl FnMut(i32),
) {
    if let Some(key) = uniq_key {
        put(key_hash(topic_hash, key));
    }
    if let Some(keys) = keys {
        for key in keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty()) {
            put(key_hash(topic_hash, key));
        }
    }
}
