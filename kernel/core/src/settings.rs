//! Settings of the store: RocketMQ's `MessageStoreConfig` keys that the files depend on.

use crate::protocol::DELAY_LEVELS;
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
    /// One folder, or several joined by ','; empty: `commitlog` below the root.
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
    /// Milliseconds of level 1, 2 and so on; see [`delay_levels`].
    pub message_delay_level: Vec<i64>,
    // Dispatch.
    pub enable_multi_dispatch: bool,
    pub enable_lmq: bool,
    pub max_lmq_consume_queue_num: usize,
    pub disk_fall_recorded: bool,
    pub enable_consume_queue_ext: bool,
    pub mapped_file_size_consume_queue_ext: u64,
    /// Bits of the maps of units that recovery writes, all set; 0: none.
    pub bit_map_length_consume_queue_ext: usize,
    /// Folders whose files are read and beside which none is made; several joined by ','.
    pub read_only_commit_log_store_paths: PathBuf,
    /// Whether every page of a new file is backed before it is needed.
    pub warm_maped_file_enable: bool,
    /// Pages brought to the disk at a time while a file is warmed up (`SYNC_FLUSH` only).
    pub flush_least_pages_when_warm_maped_file: u64,
    /// Milliseconds that an append may have waited for a file before others are refused.
    pub os_page_cache_busy_time_out_mills: i64,
    // Flush.
    /// Whether the asynchronous flush sleeps its interval through; else a put wakes it.
    pub flush_commit_log_timed: bool,
    /// Whether records are first written to memory of our own; `ASYNC_FLUSH` only.
    pub transient_store_pool_enable: bool,
    /// How many buffers, each as large as a file of the log.
    pub transient_store_pool_size: usize,
    /// Whether a file for which there is no buffer is refused; else its records go to it directly.
    pub fast_fail_if_no_buffer_in_store_pool: bool,
    pub commit_interval_commit_log: u64,
    pub commit_commit_log_least_pages: u64,
    pub commit_commit_log_thorough_interval: u64,
}

/// The delays of a `messageDelayLevel`, in milliseconds; level 1 comes first.
///
/// # Errors
/// What is wrong: a level that is not a number followed by s, m, h or d.
pub fn delay_levels(text: &str) -> Result<Vec<i64>, String> {
    let milliseconds = |level: &str| {
        let (digits, unit) = level.split_at_checked(level.len().checked_sub(1)?)?;
        let unit: i64 = match unit {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<i64>().ok().filter(|_| is_number)?.checked_mul(unit)
    };
    text.split_whitespace()
        .map(|level| {
            milliseconds(level).ok_or_else(|| {
                format!("messageDelayLevel: {level:?} is not a number followed by s, m, h, d")
            })
        })
        .collect()
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
            message_delay_level: delay_levels(DELAY_LEVELS).unwrap_or_default(),
            enable_multi_dispatch: false,
            enable_lmq: false,
            max_lmq_consume_queue_num: 20_000,
            disk_fall_recorded: true,
            enable_consume_queue_ext: false,
            mapped_file_size_consume_queue_ext: 48 << 20,
            bit_map_length_consume_queue_ext: 0,
            read_only_commit_log_store_paths: PathBuf::new(),
            warm_maped_file_enable: false,
            flush_least_pages_when_warm_maped_file: 4_096,
            os_page_cache_busy_time_out_mills: 1_000,
            flush_commit_log_timed: true,
            transient_store_pool_enable: false,
            transient_store_pool_size: 5,
            fast_fail_if_no_buffer_in_store_pool: false,
            commit_interval_commit_log: 200,
            commit_commit_log_least_pages: 4,
            commit_commit_log_thorough_interval: 200,
        }
    }

    /// Whether there is a transient store pool (`isTransientStorePoolEnable`).
    pub(crate) fn has_pool(&self) -> bool {
        self.transient_store_pool_enable && self.flush_disk_type == FlushDiskType::Async
    }

    /// Which file of the log holds an offset.
    pub(crate) fn log_file_index(&self, offset: u64) -> u64 {
        offset / self.mapped_file_size_commit_log.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_levels_are_numbers_with_a_unit() {
        assert_eq!(Settings::new("").message_delay_level.len(), 18);
        assert_eq!(delay_levels("2s  3m 1h 1d"), Ok(vec![2_000, 180_000, 3_600_000, 86_400_000]));
        assert_eq!(delay_levels(""), Ok(vec![]));
        for text in ["1", "s", "+1s", "1x", "1s 9223372036854775807s", "1\u{e9}", "-1s"] {
            assert!(delay_levels(text).is_err_and(|text| text.contains("messageDelayLevel")));
        }
    }
}
