//! The queues that a record belongs to, and its entries there.

use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::protocol::{RECORD_BYTES_MIN, SCHEDULE_TOPIC};
use crate::queues::consume_queue::ConsumeQueue;
use crate::queues::entry::Entry;
use crate::queues::multi_dispatch::targets;
use crate::queues::queue_ext::is_ext_address;
use crate::record::{Marks, RecordView, deliver_time};
use crate::settings::Settings;

/// Where a record says that it belongs.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) topic: &'a [u8],
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
}

/// The places of a record: its own, and those of its further queues.
pub(crate) fn places_of<'a>(view: &RecordView<'a>, settings: &Settings) -> SmallPlaces<'a> {
    let own = view.is_queued().then_some(Place {
        topic: view.topic,
        queue_id: view.queue_id,
        queue_offset: view.queue_offset,
    });
    let mut further = Vec::new();
    if settings.enable_multi_dispatch && own.is_some() {
        for ((topic, queue_id), queue_offset) in
            targets(view.properties, view.queue_id, settings.enable_lmq)
        {
            let place = Place { topic: topic.as_bytes(), queue_id, queue_offset };
            let is_new = own.iter().chain(&further).all(|known| !known.is_same_queue(place));
            // Each entry before this one was of a record before this one.
            let is_possible = queue_offset <= view.physical_offset / RECORD_BYTES_MIN as i64;
            if is_new && is_possible {
                further.push(place);
            }
        }
    }
    SmallPlaces { own, further }
}

/// Mostly one place, which needs no memory of its own.
pub(crate) struct SmallPlaces<'a> {
    own: Option<Place<'a>>,
    further: Vec<Place<'a>>,
}

impl<'a> SmallPlaces<'a> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Place<'a>> {
        self.own.iter().chain(&self.further).copied()
    }
}

impl Place<'_> {
    pub(super) fn is_same_queue(&self, other: Place<'_>) -> bool {
        self.topic == other.topic && self.queue_id == other.queue_id
    }
}

/// Whether the record that an entry names belongs to the place.
pub(super) fn is_owner(
    log: &CommitLog,
    entry: Entry,
    place: Place<'_>,
    settings: &Settings,
) -> bool {
    log.record(entry.physical_offset).is_some_and(|(view, _)| {
        view.size as i64 == i64::from(entry.size)
            && places_of(&view, settings)
                .iter()
                .any(|own| own.is_same_queue(place) && own.queue_offset == place.queue_offset)
    })
}

/// The time in the unit of an entry. Further queues of a record have no units, as in RocketMQ.
pub(crate) fn unit_time_of(place: Place<'_>, view: &RecordView<'_>) -> Option<i64> {
    (place.topic == view.topic).then_some(view.store_timestamp)
}

pub(super) fn is_same(known: Entry, entry: Entry) -> bool {
    known.physical_offset == entry.physical_offset && known.size == entry.size
}

/// Gives an entry the tags code of its record; 1 where it had another one. Two losses of power may
/// leave the entry of a record that was lost, when the one that came into its place is of its size.
pub(super) fn correct_code(
    queue: &mut ConsumeQueue,
    queue_offset: i64,
    known: Entry,
    entry: Entry,
    view: &RecordView<'_>,
) -> Result<i64, StoreError> {
    let is_right = if is_ext_address(known.tags_code) {
        // Where the unit is missing clients filter for themselves.
        queue.ext.as_mut().and_then(|ext| ext.get(known.tags_code)).is_none_or(|unit| {
            unit.tags_code == entry.tags_code && unit.store_time == view.store_timestamp
        })
    } else {
        known.tags_code == entry.tags_code
    };
    if !is_right {
        queue.rewrite(queue_offset, entry)?;
    }
    Ok(i64::from(!is_right))
}

/// The tags code of a record's queue entry.
pub(crate) fn tags_code(view: &RecordView<'_>, delays_ms: &[i64]) -> i64 {
    tags_code_with(view, delays_ms, &Marks::scan(view.properties))
}

/// The same, for a caller that has the marks of the record.
pub(crate) fn tags_code_with(view: &RecordView<'_>, delays_ms: &[i64], marks: &Marks<'_>) -> i64 {
    let is_delayed = view.topic == SCHEDULE_TOPIC;
    let time = is_delayed
        .then(|| deliver_time(view.properties, view.store_timestamp, delays_ms))
        .flatten();
    time.unwrap_or_else(|| marks.tags_code())
}
