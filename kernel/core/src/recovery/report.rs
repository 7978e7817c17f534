//! What recovery tells its caller.

/// What `open` found and did; fields as in the Python interface.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct RecoveryReport {
    pub clean: bool,
    pub min_offset: i64,
    pub max_offset: i64,
    pub scanned_bytes: i64,
    pub truncated_bytes: i64,
    pub dispatched: i64,
    pub indexed: i64,
    pub queues: i64,
    pub notes: Vec<String>,
    pub same_boot: bool,
    pub begin_offset: i64,
    pub records: i64,
    pub cut_entries: i64,
    pub rebuilt_queues: i64,
    pub removed_index_files: i64,
    pub set_aside_files: i64,
    pub duration_ms: i64,
}
