//! Records stored again where their properties say: what waited for a moment, or for its level.

use hashbrown::{HashMap, HashSet};

use crate::protocol::{COPY_MARK, HALF_TOPIC, ITEM_END, SCHEDULE_TOPIC, property};

use super::halves::{Target, target_of};
use super::path::FastPath;
use super::state::State;
use crate::record::{self, NewRecord, RecordView, Text, is_queued};
use crate::state::Core;
use crate::wire::properties::{RealText, Timer, inspect_real};

/// Which records are copied, and what of.
#[derive(Debug, Default)]
pub struct CopyRule<'a> {
    /// A record with one of these properties is not plain.
    pub odd_names: Vec<&'a [u8]>,
    /// Nor is one with one of these as its `UNIQ_KEY`.
    pub odd_keys: HashSet<&'a [u8]>,
    /// Nor is one whose `TIMER_OUT_MS` is not below.
    pub moment_below: Option<i64>,
    /// Whether a copy says where its record is.
    pub names_source: bool,
}

/// What became of records that were to be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// How many of the first ones are stored.
    pub count: usize,
    /// Bytes of the copies.
    pub size: u64,
    /// How many of them each topic got.
    pub topics: HashMap<Vec<u8>, u64>,
}

impl FastPath {
    /// Stores plain records again, one after the other, and wakes held pulls. `added` has property
    /// text for each, or is empty.
    #[must_use]
    pub fn copy_records(&self, offsets: &[i64], added: &[&[u8]], rule: &CopyRule<'_>) -> Copied {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut core = self.store.lock();
        state.tables.refresh(&core);
        let done = copy_records(state, &mut core, offsets, added, rule);
        self.end_append(guard, core);
        done
    }

    /// When the message of each record is due, as its one plain property says; a delay counts from
    /// the time when the record was stored. None: it says nothing, or no record is there.
    #[must_use]
    pub fn moments(&self, offsets: &[i64]) -> Vec<Option<i64>> {
        let core = self.store.lock();
        let moment = |offset: &i64| {
            let record = core.record(*offset)?;
            let mut properties = record::properties(record.properties);
            match Timer::of(record.properties) {
                // One that was stored again does not tell when its delay began.
                Timer::After(_)
                    if properties.any(|(name, _)| name == property::TIMER_ROLL_TIMES) =>
                {
                    None
                }
                Timer::After(delay_ms) => record.store_timestamp.checked_add(delay_ms),
                Timer::At(time_ms) => Some(time_ms),
                Timer::None | Timer::Odd => None,
            }
        };
        offsets.iter().map(moment).collect()
    }
}

fn copy_records(
    state: &mut State,
    core: &mut Core,
    offsets: &[i64],
    added: &[&[u8]],
    rule: &CopyRule<'_>,
) -> Copied {
    let mut done = Copied::default();
    let mut last: Option<Target> = None;
    let mut bytes = Vec::new();
    for (number, offset) in offsets.iter().enumerate() {
        bytes.clear();
        if !core.lookup_into(*offset, &mut bytes) {
            break;
        }
        let Some(source) = record::view(&bytes) else { break };
        let text = inspect_real(source.properties, |name| rule.odd_names.contains(&name));
        let Some((topic, queue_id)) = target(&source, &text, rule) else { break };
        let Ok(target) = target_of(state, core, &mut last, topic, queue_id) else { break };
        let added = added.get(number).copied().unwrap_or_default();
        let Ok(stored) = core.append(target.queue, &copy_of(&source, &text, added, rule)) else {
            break;
        };
        state.note_append(core, target.slot, queue_id, stored.tags_code);
        done.count += 1;
        done.size += u64::from(stored.size);
        *done.topics.entry_ref(topic).or_insert(0) += 1;
    }
    done
}

/// Topic and queue of a plain record.
fn target<'a>(
    source: &RecordView<'_>,
    text: &RealText<'a>,
    rule: &CopyRule<'_>,
) -> Option<(&'a [u8], i32)> {
    let (topic, queue_id) = text.target?;
    let is_due = rule.moment_below.is_none_or(|end| text.moment.is_some_and(|at| at < end));
    let is_odd = text.marks.uniq_key.is_some_and(|key| rule.odd_keys.contains(key));
    let is_plain = is_due
        && !is_odd
        && is_queued(source.sys_flag)
        && topic != HALF_TOPIC
        && topic != SCHEDULE_TOPIC;
    is_plain.then_some((topic, queue_id))
}

fn copy_of<'a>(
    source: &RecordView<'a>,
    text: &RealText<'a>,
    added: &'a [u8],
    rule: &CopyRule<'_>,
) -> NewRecord<'a> {
    let parts = if added.is_empty() {
        [source.properties, &[], &[], &[]]
    } else {
        [source.properties, &[ITEM_END], added, &[]]
    };
    NewRecord {
        flag: source.flag,
        sys_flag: source.sys_flag,
        born_timestamp: source.born_timestamp,
        born_host: source.born_host,
        store_host: source.store_host,
        reconsume_times: source.reconsume_times,
        prepared_transaction_offset: if rule.names_source {
            source.physical_offset.saturating_add(COPY_MARK)
        } else {
            0
        },
        body: source.body,
        properties: Text { parts },
        marks: Some(text.marks),
        tags_code: None,
        bit_map: &[],
    }
}
