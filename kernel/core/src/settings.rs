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

/// Where settings are read from, by the names of the fields.
pub trait Source<T, E> {
    /// The value of a setting.
    ///
    /// # Errors
    /// It is missing, or not of that type.
    fn setting(&self, name: &str) -> Result<T, E>;
}

/// Makes [`Settings`] of a table: a line a setting, with its type and RocketMQ's default.
macro_rules! settings {
    ($($(#[$about:meta])* $name:ident: $type:ty = $default:expr;)*) => {
        /// Each field is the same-named key of `broker.conf` in snake case.
        ///
        /// Sizes are bytes, intervals milliseconds, ratios per cent.
        #[derive(Clone, Debug)]
        // Each field is documented by its RocketMQ name, and the switches are independent of each
        // other.
        #[allow(missing_docs, clippy::struct_excessive_bools)]
        pub struct Settings {
            pub store_path_root_dir: PathBuf,
            pub flush_disk_type: FlushDiskType,
            /// Milliseconds of level 1, 2 and so on; see [`delay_levels`].
            pub message_delay_level: Vec<i64>,
            $($(#[$about])* pub $name: $type,)*
        }

        impl Settings {
            /// RocketMQ's defaults, for a store below `root`.
            pub fn new(root: impl Into<PathBuf>) -> Self {
                Settings {
                    store_path_root_dir: root.into(),
                    flush_disk_type: FlushDiskType::Async,
                    message_delay_level: delay_levels(DELAY_LEVELS).unwrap_or_default(),
                    $($name: $default,)*
                }
            }

            /// All settings, each read by its name, but for the two that were read already.
            ///
            /// # Errors
            /// That of the first setting that can't be read.
            pub fn read<S, E>(
                source: &S,
                flush_disk_type: FlushDiskType,
                message_delay_level: Vec<i64>,
            ) -> Result<Self, E>
            where
                S: Source<bool, E> + Source<i64, E> + Source<u32, E> + Source<u64, E>,
                S: Source<usize, E> + Source<PathBuf, E>,
            {
                Ok(Settings {
                    store_path_root_dir: source.setting("store_path_root_dir")?,
                    flush_disk_type,
                    message_delay_level,
                    $($name: source.setting(stringify!($name))?,)*
                })
            }
        }
    };
}

settings! {
    /// One folder, or several joined by ','; empty: `commitlog` below the root.
    store_path_commit_log: PathBuf = PathBuf::new();
    mapped_file_size_commit_log: u64 = 1 << 30;
    mapped_file_size_consume_queue: u64 = 300_000 * 20;
    max_hash_slot_num: u32 = 5_000_000;
    max_index_num: u32 = 20_000_000;
    message_index_enable: bool = true;
    message_index_safe: bool = false;
    max_message_size: usize = 4 * 1024 * 1024;
    flush_interval_commit_log: u64 = 500;
    flush_commit_log_least_pages: u64 = 4;
    flush_commit_log_thorough_interval: u64 = 10_000;
    flush_interval_consume_queue: u64 = 1_000;
    flush_consume_queue_least_pages: u64 = 2;
    flush_consume_queue_thorough_interval: u64 = 60_000;
    sync_flush_timeout: u64 = 5_000;
    check_crc_on_recover: bool = true;
    max_transfer_bytes_on_message_in_memory: usize = 256 * 1024;
    max_transfer_count_on_message_in_memory: usize = 32;
    max_transfer_bytes_on_message_in_disk: usize = 64 * 1024;
    max_transfer_count_on_message_in_disk: usize = 8;
    access_message_in_memory_max_ratio: u64 = 40;
    max_msgs_num_batch: usize = 64;
    long_polling_enable: bool = true;
    // Dispatch.
    enable_multi_dispatch: bool = false;
    enable_lmq: bool = false;
    max_lmq_consume_queue_num: usize = 20_000;
    disk_fall_recorded: bool = true;
    /// Whether flushes and deliveries are timed.
    latency_recorded: bool = false;
    enable_consume_queue_ext: bool = false;
    mapped_file_size_consume_queue_ext: u64 = 48 << 20;
    /// Bits of the maps of units that recovery writes, all set; 0: none.
    bit_map_length_consume_queue_ext: usize = 0;
    /// Folders whose files are read and beside which none is made; several joined by ','.
    read_only_commit_log_store_paths: PathBuf = PathBuf::new();
    /// Whether every page of a new file is backed before it is needed.
    warm_maped_file_enable: bool = false;
    /// Pages brought to the disk at a time while a file is warmed up (`SYNC_FLUSH` only).
    flush_least_pages_when_warm_maped_file: u64 = 4_096;
    /// Milliseconds that an append may have waited for a file before others are refused.
    os_page_cache_busy_time_out_mills: i64 = 1_000;
    // Flush.
    /// Whether the asynchronous flush sleeps its interval through; else a put wakes it.
    flush_commit_log_timed: bool = true;
    /// Whether records are first written to memory of our own; `ASYNC_FLUSH` only.
    transient_store_pool_enable: bool = false;
    /// How many buffers, each as large as a file of the log.
    transient_store_pool_size: usize = 5;
    /// Whether a file for which there is no buffer is refused; else its records go to it directly.
    fast_fail_if_no_buffer_in_store_pool: bool = false;
    commit_interval_commit_log: u64 = 200;
    commit_commit_log_least_pages: u64 = 4;
    commit_commit_log_thorough_interval: u64 = 200;
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
