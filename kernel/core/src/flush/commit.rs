//! The commit thread: records of the transient store pool go to the page cache.

use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::shared::Shared;
use crate::shared::pool::Pool;

/// Commits what the pool holds, if that is at least `least_pages` pages (0: anything); whether there
/// was any. An error is kept by the store until a commit succeeds, and nothing is lost by it.
pub(super) fn commit(shared: &Shared, pool: &Pool, least_pages: u64) -> Result<bool, StoreError> {
    let (has_moved, result) = pool.commit(|| shared.written(), least_pages);
    if has_moved {
        // Pulls that were held for these records.
        shared.notify.signal();
    }
    result.inspect_err(|error| shared.note_refusal(error.to_string())).map(|()| has_moved)
}

/// The commit thread's life (`CommitRealTimeService`).
pub(crate) fn run_commit(shared: &Shared, pool: &Pool) {
    let settings = &shared.settings;
    let interval = Duration::from_millis(settings.commit_interval_commit_log.max(1));
    let thorough = Duration::from_millis(settings.commit_commit_log_thorough_interval);
    let mut last_thorough = Instant::now();
    while pool.wait.sleep(interval) {
        pool.wait.take_note();
        let is_thorough = last_thorough.elapsed() >= thorough;
        let least_pages = if is_thorough { 0 } else { settings.commit_commit_log_least_pages };
        // Errors refuse the writes and are told by `Store::error`.
        let has_moved = commit(shared, pool, least_pages).unwrap_or(false);
        if is_thorough || has_moved {
            last_thorough = Instant::now();
        }
        if has_moved {
            shared.note_commit();
        }
    }
}
