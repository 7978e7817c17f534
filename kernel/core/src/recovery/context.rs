//! What the steps of a recovery work on.

use hashbrown::HashMap;

use crate::files::deletions::Deletions;
use crate::files::folder::CLOCK_STEP_MS;
use crate::files::inventory::Inventory;
use crate::index::Index;
use crate::queues::entry::Entry;
use crate::recovery::report::RecoveryReport;
use crate::shared::Shared;
use crate::state::Core;

pub(super) struct Recovery<'a> {
    pub(super) core: &'a mut Core,
    pub(super) index: &'a mut Index,
    pub(super) shared: &'a Shared,
    pub(super) report: &'a mut RecoveryReport,
    pub(super) now_ms: i64,
    pub(super) deletions: &'a Deletions,
    pub(super) check: QueueCheck,
    pub(super) inventory: Option<Inventory>,
}

/// What has to be known of the queues while the log is read.
#[derive(Default)]
pub(super) struct QueueCheck {
    /// By index of the queue: those that lack entries from before the range that is read, and a
    /// record that waits for another one to confirm it.
    pub(super) short: HashMap<u32, Option<Waiting>>,
    /// By index of the queue.
    pub(super) seen: Vec<Seen>,
    /// Entries of records from here on may hold the tags code of another record.
    pub(super) suspect_from: i64,
}

/// The entries of a queue from where reading started, and how many of them a record claimed.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) from: i64,
    pub(super) end: i64,
    pub(super) claimed: i64,
}

/// A record whose queue offset does not join: it counts once the next one goes on from it, or at the
/// end of the log, where nothing contradicts it.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) entry: Entry,
    pub(super) unit_time: Option<i64>,
    pub(super) queue_offset: i64,
}

/// A time, or 0 when it is far ahead of the clock.
pub(super) fn believable(timestamp: i64, now_ms: i64) -> i64 {
    if timestamp > now_ms.saturating_add(CLOCK_STEP_MS) { 0 } else { timestamp }
}
