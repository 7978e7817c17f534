//! `StoreSettings` of Python as the engine's settings.

use kerolox_core::{FlushDiskType, Settings, settings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// One field, of the type that the engine wants.
fn field<'py, T>(settings: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    settings.getattr(name)?.extract()
}

fn flush_disk_type(given: &Bound<'_, PyAny>) -> PyResult<FlushDiskType> {
    match field::<String>(given, "flush_disk_type")?.as_str() {
        "ASYNC_FLUSH" => Ok(FlushDiskType::Async),
        "SYNC_FLUSH" => Ok(FlushDiskType::Sync),
        other => Err(PyValueError::new_err(format!(
            "flushDiskType is ASYNC_FLUSH or SYNC_FLUSH, not {other}"
        ))),
    }
}

/// Reads every field by its name.
///
/// # Errors
///
/// `AttributeError`, `TypeError`, `OverflowError` or `ValueError` for a field that is missing or
/// not of its type.
pub fn from_python(given: &Bound<'_, PyAny>) -> PyResult<Settings> {
    macro_rules! fields {
        ($($name:ident),* $(,)?) => {
            Settings {
                flush_disk_type: flush_disk_type(given)?,
                message_delay_level: settings::delay_levels(&field::<String>(
                    given,
                    "message_delay_level",
                )?)
                .map_err(PyValueError::new_err)?,
                $($name: field(given, stringify!($name))?,)*
            }
        };
    }
    Ok(fields! {
        store_path_root_dir,
        store_path_commit_log,
        mapped_file_size_commit_log,
        mapped_file_size_consume_queue,
        max_hash_slot_num,
        max_index_num,
        message_index_enable,
        message_index_safe,
        max_message_size,
        flush_interval_commit_log,
        flush_commit_log_least_pages,
        flush_commit_log_thorough_interval,
        flush_interval_consume_queue,
        flush_consume_queue_least_pages,
        flush_consume_queue_thorough_interval,
        sync_flush_timeout,
        check_crc_on_recover,
        max_transfer_bytes_on_message_in_memory,
        max_transfer_count_on_message_in_memory,
        max_transfer_bytes_on_message_in_disk,
        max_transfer_count_on_message_in_disk,
        access_message_in_memory_max_ratio,
        default_query_max_num,
        max_msgs_num_batch,
        long_polling_enable,
        enable_multi_dispatch,
        enable_lmq,
        max_lmq_consume_queue_num,
        disk_fall_recorded,
        enable_consume_queue_ext,
        mapped_file_size_consume_queue_ext,
        bit_map_length_consume_queue_ext,
        read_only_commit_log_store_paths,
        warm_maped_file_enable,
        flush_least_pages_when_warm_maped_file,
        os_page_cache_busy_time_out_mills,
        flush_commit_log_timed,
        transient_store_pool_enable,
        transient_store_pool_size,
        fast_fail_if_no_buffer_in_store_pool,
        commit_interval_commit_log,
        commit_commit_log_least_pages,
        commit_commit_log_thorough_interval,
    })
}
