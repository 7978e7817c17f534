//! The way of index keys from the append to the index.

use parking_lot::MutexGuard;

use crate::shared::Shared;

/// Index keys that may wait for the background thread; when they are more, the append puts them into
/// the index itself. 6 MiB.
pub(crate) const INDEX_PENDING_MAX: usize = 262_144;
impl Shared {
    /// Puts pending index keys into the index, at most `limit` of them (plus nothing left: false).
    pub(crate) fn drain_index(&self, limit: usize) -> bool {
        let mut index = self.index.lock();
        let now_ms = self.now_ms();
        let mut left = limit;
        let has_more = loop {
            if index.backlog_is_empty() {
                let mut pending = self.index_pending.lock();
                // What is not committed may be lost yet: the index must not know it.
                let readable = self.pool.as_ref().map_or(i64::MAX, |pool| pool.committed());
                if pending.first().is_none_or(|key| key.physical_offset >= readable) {
                    break false;
                }
                let count = pending.partition_point(|key| key.physical_offset < readable);
                let mut rest = pending.split_off(count);
                index.take_backlog(&mut pending);
                pending.append(&mut rest);
            }
            if left == 0 {
                break true;
            }
            left -= index.put_backlog(left, now_ms);
            if let Some(stall) = &index.stall {
                let mut pending = self.index_pending.lock();
                if pending.len() >= INDEX_PENDING_MAX {
                    let stall =
                        format!("{stall}; too many keys wait, they are put after a restart");
                    pending.clear();
                    drop(pending);
                    index.give_up(stall);
                }
                break false;
            }
        };
        MutexGuard::unlock_fair(index);
        has_more
    }
}
