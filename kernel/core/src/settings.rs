//! Settings of the store: RocketMQ's `MessageStoreConfig` keys that the files depend on.

use std::path::PathBuf;

/// `flushDiskType`: when a send counts as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushDiskType {
    /// Flushed in the background, each `flush_interval_commit_log`.
    #[default]
    Async,
    /// Flushed on request; one flush covers all that asked (group commit).
    Sync,
}

/// Each field is the same-named key of `broker.conf` in snake case.
///
/// Sizes are bytes, intervals milliseconds, ratios per cent.
#[derive(Clone, Debug)]
// Each field is documented by its RocketMQ name, and the switches are independent of each other.
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct Settings {
    pub store_path_root_dir: PathBuf,
    /// Empty: `commitlog` below the root.
    pub store_path_commit_log: PathBuf,
    pub mapped_file_size_commit_log: u64,
    pub mapped_file_size_consume_queue: u64,
    pub max_hash_slot_num: u32,
    pub max_index_num: u32,
    pub message_index_enable: bool,
    pub message_index_safe: bool,
    pub max_message_size: usize,
    pub flush_disk_type: FlushDiskType,
    pub flush_interval_commit_log: u64,
    pub flush_commit_log_least_pages: u64,
    pub flush_commit_log_thorough_interval: u64,
    pub flush_interval_consume_queue: u64,
    pub flush_consume_queue_least_pages: u64,
    pub flush_consume_queue_thorough_interval: u64,
    pub sync_flush_timeout: u64,
    pub check_crc_on_recover: bool,
    pub max_transfer_bytes_on_message_in_memory: usize,
    pub max_transfer_count_on_message_in_memory: usize,
    pub max_transfer_bytes_on_message_in_disk: usize,
    pub max_transfer_count_on_message_in_disk: usize,
    pub access_message_in_memory_max_ratio: u64,
    pub default_query_max_num: usize,
    pub max_msgs_num_batch: usize,
    pub long_polling_enable: bool,
}

impl Settings {
    /// RocketMQ's defaults, for a store below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Settings {
            store_path_root_dir: root.into(),
            store_path_commit_log: PathBuf::new(),
            mapped_file_size_commit_log: 1 << 30,
            mapped_file_size_consume_queue: 300_000 * 20,
            max_hash_slot_num: 5_000_000,
            max_index_num: 20_000_000,
            message_index_enable: true,
            message_index_safe: false,
            max_message_size: 4 * 1024 * 1024,
            flush_disk_type: FlushDiskType::Async,
            flush_interval_commit_log: 500,
            flush_commit_log_least_pages: 4,
            flush_commit_log_thorough_interval: 10_000,
            flush_interval_consume_queue: 1_000,
            flush_consume_queue_least_pages: 2,
            flush_consume_queue_thorough_interval: 60_000,
            sync_flush_timeout: 5_000,
            check_crc_on_recover: true,
            max_transfer_bytes_on_message_in_memory: 256 * 1024,
            max_transfer_count_on_message_in_memory: 32,
            max_transfer_bytes_on_message_in_disk: 64 * 1024,
            max_transfer_count_on_message_in_disk: 8,
            access_message_in_memory_max_ratio: 40,
            default_query_max_num: 32,
            max_msgs_num_batch: 64,
            long_polling_enable: true,
        }
    }

    /// The folder of the commit log files.
    pub fn commit_log_dir(&self) -> PathBuf {
        if self.store_path_commit_log.as_os_str().is_empty() {
            self.store_path_root_dir.join("commitlog")
        } else {
            self.store_path_commit_log.clone()
        }
    }
}
