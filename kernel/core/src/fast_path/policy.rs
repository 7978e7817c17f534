//! The tables that the broker pushes: topics with their queues, groups, subscriptions, identity.
//!
//! Names are interned, so that a held pull or a counter can hold a number instead of a text. A
//! deleted name keeps its slot with `present` false until a sweep finds that nothing names the slot
//! any more; then another name may get it. Connections remember slots too, but only to look there
//! first: they compare the name.

use crate::protocol::{GROUP_READS_MAX, HALF_TOPIC, PULL_COMMIT_OFFSET, TIMER_TOPIC};
use std::ops::{Deref, DerefMut};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use super::dedup::{Dedup, Window};
use super::hold::List;
use crate::state::Core;
use crate::state::types::{QueueHandle, ReadOutcome};
use crate::wire::answer::Pieces;
use crate::wire::properties::Timer;

/// Queue ids below this get a slot; the limit of what a topic may sensibly have.
pub const QUEUE_IDS_MAX: i32 = 65_536;

/// Names of topics, and of groups, that have a slot, configured or not (light message queues are
/// not). Requests of a further one take the slow path, and its pulls are not held.
pub const NAMES_MAX: usize = 262_144;

/// Bytes of all these names together, of topics or of groups.
pub const NAMES_BYTES_MAX: usize = 32 << 20;

/// Names made and deleted between two sweeps for slots to give back: so many deleted names may
/// still take up space.
const SWEEP_CHANGES: usize = 4_096;

/// Number of a topic or group that is in no table.
pub const NO_SLOT: u32 = u32::MAX;

/// One queue of a topic: its handle in the store and the pulls that wait for it.
#[derive(Clone, Debug, Default)]
pub struct QueueSlot {
    pub handle: Option<QueueHandle>,
    pub holds: List,
    /// Place in `State::arrived`, counted from one; 0 when nothing arrived.
    pub arrived: u32,
}

/// Which messages that come by gRPC are fast, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastCalls {
    /// Plain ones.
    pub normal: bool,
    /// Those of a group of messages, which has a queue.
    pub fifo: bool,
}

/// One topic.
#[derive(Debug, Default)]
pub struct Topic {
    pub name: Box<[u8]>,
    pub present: bool,
    pub fast: bool,
    pub fast_calls: FastCalls,
    pub perm: i32,
    pub read_queues: i32,
    pub write_queues: i32,
    pub queues: Vec<QueueSlot>,
    /// Keys that it had lately, where it keeps them.
    pub window: Option<Box<Window>>,
}

/// Which tags a group wants of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Milliseconds; a pull with a newer one takes the slow path.
    pub version: i64,
    /// None: all.
    pub tag_codes: Option<Box<[i32]>>,
}

impl Subscription {
    /// Whether the tags are the same, in whatever order.
    fn wants_as(&self, other: &Self) -> bool {
        let sorted = |codes: &Option<Box<[i32]>>| {
            codes.clone().map(|mut codes| {
                codes.sort_unstable();
                codes
            })
        };
        self.tag_codes == other.tag_codes || sorted(&self.tag_codes) == sorted(&other.tag_codes)
    }
}

/// What a group got of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// Reads that found messages, and how long those took in all.
    pub reads: u64,
    pub milliseconds: u64,
    pub messages: u64,
    pub bytes: u64,
    /// How far behind the end of the log the last read was; -1 before the first.
    pub lag: i64,
}

impl Default for Got {
    fn default() -> Self {
        Self { reads: 0, milliseconds: 0, messages: 0, bytes: 0, lag: -1 }
    }
}

/// One consumer group.
#[derive(Debug, Default)]
pub struct Group {
    pub name: Box<[u8]>,
    pub present: bool,
    pub fast: bool,
    pub slow_broker_id: i64,
    /// By topic slot.
    pub subscriptions: HashMap<u32, Subscription>,
    /// Slots of the topics of which its pulls are slow.
    pub slow_topics: HashSet<u32>,
    /// By topic slot and queue id.
    pub got: HashMap<(u32, i32), Got>,
}

impl Group {
    /// Whether its pulls of a topic are left to Python.
    #[inline]
    pub fn is_slow(&self, topic: u32) -> bool {
        !self.slow_topics.is_empty() && self.slow_topics.contains(&topic)
    }
}

/// Which messages for a moment are stored without the handler in Python.
#[derive(Clone, Debug)]
pub struct TimerRule {
    /// `timerPrecisionMs`, as it counts.
    pub precision_ms: i64,
    /// `timerMaxDelaySec`, in milliseconds.
    pub max_delay_ms: i64,
    /// What handles to take a message back name.
    pub broker_name: Box<str>,
    /// Slot of the timer's topic.
    pub topic: u32,
}

impl TimerRule {
    /// The begin of the step whose end a message waits for (`TIMER_OUT_MS`); None: the handler in
    /// Python says what becomes of it.
    pub fn out_ms(&self, timer: Timer, now_ms: i64) -> Option<i64> {
        let deliver_ms = match timer {
            Timer::After(delay_ms) => now_ms.checked_add(delay_ms)?,
            Timer::At(time_ms) => time_ms,
            Timer::None | Timer::Odd => return None,
        };
        let is_to_come = deliver_ms > now_ms && deliver_ms - now_ms <= self.max_delay_ms;
        is_to_come.then(|| (deliver_ms - 1) / self.precision_ms * self.precision_ms)
    }
}

/// Who the broker is: what goes into records and answers.
#[derive(Debug, Default)]
pub struct Identity {
    pub(super) store_host: Box<[u8]>,
    pub(super) broker_id: i64,
    /// `CLUSTER`, 0x01, the name, with 0x02 before it.
    pub(super) cluster_item: Vec<u8>,
    pub(super) pieces: Pieces,
}

impl Identity {
    /// The broker of this host in its cluster; `region` and `trace_on` are told to whoever sends.
    #[must_use]
    pub fn new(
        cluster: &str,
        region: &str,
        trace_on: bool,
        store_host: &[u8],
        broker_id: i64,
    ) -> Self {
        let pieces = Pieces::new(region, trace_on, store_host);
        let cluster_item = [b"\x02CLUSTER\x01", cluster.as_bytes()].concat();
        Self { store_host: store_host.into(), broker_id, cluster_item, pieces }
    }
}

/// Which slots something names; the others may be given back.
#[derive(Debug)]
pub struct Used {
    topics: Vec<bool>,
    groups: Vec<bool>,
}

impl Used {
    pub fn note_topic(&mut self, slot: u32) {
        self.topics[slot as usize] = true;
    }

    pub fn note_group(&mut self, slot: u32) {
        self.groups[slot as usize] = true;
    }
}

/// What has a name, by which it is found.
pub trait Named {
    /// One that was told nothing but its name.
    fn new(name: &[u8]) -> Self;

    /// The name.
    fn name(&self) -> &[u8];
}

/// Topics, or groups, by their names: each at a number of its own, its slot.
#[derive(Debug, Default)]
pub struct Slots<T> {
    values: Vec<T>,
    by_name: HashMap<Box<[u8]>, u32>,
    /// Bytes of all names.
    bytes: usize,
    free: Vec<u32>,
    /// Names made and deleted since the last sweep.
    changes: usize,
}

impl<T> Deref for Slots<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for Slots<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<T: Named> Slots<T> {
    /// The slot of a name, if it has one; `hint` is examined first.
    #[inline]
    #[must_use]
    pub fn find(&self, name: &[u8], hint: u32) -> Option<u32> {
        match self.get(hint as usize) {
            Some(value) if *value.name() == *name => Some(hint),
            _ => self.by_name.get(name).copied(),
        }
    }

    /// The slot of a name, made when it is new; None without space for it.
    pub fn intern(&mut self, name: &[u8]) -> Option<u32> {
        if let Some(slot) = self.by_name.get(name) {
            return Some(*slot);
        }
        if self.by_name.len() >= NAMES_MAX || self.bytes + name.len() > NAMES_BYTES_MAX {
            return None;
        }
        self.bytes += name.len();
        self.changes += 1;
        let slot = if let Some(slot) = self.free.pop() {
            self.values[slot as usize] = T::new(name);
            slot
        } else {
            self.values.push(T::new(name));
            self.values.len() as u32 - 1
        };
        self.by_name.insert(name.into(), slot);
        Some(slot)
    }

    /// Gives back the slots of names that nothing uses.
    fn sweep(&mut self, used: &[bool]) {
        self.changes = 0;
        for (slot, value) in self.values.iter_mut().enumerate().filter(|each| !used[each.0]) {
            // A slot that is free already is in no table.
            if self.by_name.get(value.name()) == Some(&(slot as u32)) {
                self.by_name.remove(value.name());
                self.bytes -= value.name().len();
                *value = T::new(b"");
                self.free.push(slot as u32);
            }
        }
    }
}

/// All tables.
#[derive(Debug, Default)]
pub struct Tables {
    pub topics: Slots<Topic>,
    pub groups: Slots<Group>,
    /// Entries of all groups' `got`.
    got_count: usize,
    /// None until the broker told: nothing is fast before.
    pub identity: Option<Identity>,
    /// False: every send takes the slow path.
    pub writable: bool,
    /// False: offsets that pulls carry are not committed (a slave).
    pub takes_commits: bool,
    /// Slot of the half topic; None: half messages take the slow path.
    half_topic: Option<u32>,
    /// What makes sends for a moment fast.
    timer: Option<TimerRule>,
    /// What the windows of all topics share.
    pub dedup: Dedup,
    /// `diskFallRecorded`: keep how far behind the end of the log each read was.
    pub disk_fall_recorded: bool,
    /// The store's handle epoch of the cached handles.
    epoch: u64,
}

impl Named for Topic {
    fn new(name: &[u8]) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Topic {
    /// Drops the queues after the last that something waits for.
    fn drop_queues(&mut self) {
        let is_used = |queue: &QueueSlot| !queue.holds.is_empty() || queue.arrived > 0;
        let used = self.queues.iter().rposition(is_used).map_or(0, |last| last + 1);
        self.queues.truncate(used);
        self.queues.shrink_to_fit();
    }

    /// The handle of a queue: the one that is known, or what `find` gives.
    #[inline]
    fn handle(
        &mut self,
        queue_id: i32,
        find: impl FnOnce(&[u8]) -> Option<QueueHandle>,
    ) -> Option<QueueHandle> {
        let known = self.queues.get(usize::try_from(queue_id).ok()?).and_then(|slot| slot.handle);
        if known.is_some() {
            return known;
        }
        let found = find(&self.name)?;
        if let Some(slot) = self.queue(queue_id) {
            slot.handle = Some(found);
        }
        Some(found)
    }

    /// The slot of a queue, made when it is new; None for an id outside the limits.
    pub fn queue(&mut self, queue_id: i32) -> Option<&mut QueueSlot> {
        if !(0..QUEUE_IDS_MAX).contains(&queue_id) {
            return None;
        }
        let index = queue_id as usize;
        if index >= self.queues.len() {
            self.queues.resize(index + 1, QueueSlot::default());
        }
        self.queues.get_mut(index)
    }
}

impl Named for Group {
    fn new(name: &[u8]) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Tables {
    /// Empty tables of a writable broker.
    #[must_use]
    pub fn new() -> Self {
        Self { writable: true, takes_commits: true, disk_fall_recorded: true, ..Self::default() }
    }

    /// Whether the offset is committed that a pull with these flags carries.
    #[inline]
    #[must_use]
    pub const fn takes_commit(&self, sys_flag: i32) -> bool {
        self.takes_commits && sys_flag & PULL_COMMIT_OFFSET != 0
    }

    /// The slots of a group and a topic, made when they are new; None without space for them.
    pub fn intern(&mut self, group: &[u8], topic: &[u8]) -> Option<(u32, u32)> {
        Some((self.groups.intern(group)?, self.topics.intern(topic)?))
    }

    /// Puts a topic into the table, or changes it; without space for its name it stays unknown, and
    /// so on the slow path.
    pub fn set_topic(
        &mut self,
        name: &[u8],
        read_queues: i32,
        write_queues: i32,
        perm: i32,
        fast: bool,
    ) {
        let Some(slot) = self.topics.intern(name) else {
            return;
        };
        let topic = &mut self.topics[slot as usize];
        topic.present = true;
        topic.fast = fast;
        topic.perm = perm;
        topic.read_queues = read_queues.min(QUEUE_IDS_MAX);
        topic.write_queues = write_queues.min(QUEUE_IDS_MAX);
        let queues = topic.read_queues.max(topic.write_queues).max(0) as usize;
        if topic.queues.len() < queues {
            topic.queues.resize(queues, QueueSlot::default());
        }
    }

    /// Says which messages that come by gRPC are fast; of a topic without a slot none are.
    pub fn set_fast_calls(&mut self, name: &[u8], fast: FastCalls) {
        if let Some(slot) = self.topics.find(name, NO_SLOT) {
            self.topics[slot as usize].fast_calls = fast;
        }
    }

    /// Takes a topic out of the table, with what groups got of it.
    pub fn delete_topic(&mut self, name: &[u8]) {
        if let Some(slot) = self.topics.find(name, NO_SLOT) {
            self.drop_window(slot);
            let topic = &mut self.topics[slot as usize];
            topic.present = false;
            topic.fast = false;
            topic.fast_calls = FastCalls::default();
            topic.drop_queues();
            self.topics.changes += 1;
            let has_readers = |group: &&mut Group| !group.got.is_empty();
            let readers = if self.got_count > 0 { &mut self.groups[..] } else { &mut [] };
            for group in readers.iter_mut().filter(has_readers) {
                let before = group.got.len();
                group.got.retain(|(topic, _), _| *topic != slot);
                self.got_count -= before - group.got.len();
            }
        }
    }

    /// Whether half messages may be fast.
    pub fn set_halves(&mut self, fast: bool) {
        self.half_topic = if fast { self.topics.intern(HALF_TOPIC) } else { None };
    }

    /// The slot of the half topic when half messages may be fast.
    #[inline]
    pub fn half_topic(&self) -> Option<u32> {
        self.topics.find(HALF_TOPIC, self.half_topic?)
    }

    /// Says which sends for a moment are fast; none without a rule.
    pub fn set_timer(&mut self, rule: Option<TimerRule>) {
        self.timer = rule
            .and_then(|rule| Some(TimerRule { topic: self.topics.intern(TIMER_TOPIC)?, ..rule }));
    }

    /// The rule, with the slot of the timer's topic.
    pub fn timer(&self) -> Option<&TimerRule> {
        let rule = self.timer.as_ref()?;
        (self.topics.find(TIMER_TOPIC, rule.topic)? == rule.topic).then_some(rule)
    }

    /// Puts a group into the table, or changes it; as with a topic.
    pub fn set_group(&mut self, name: &[u8], fast: bool, slow_broker_id: i64) {
        let Some(slot) = self.groups.intern(name) else {
            return;
        };
        let group = &mut self.groups[slot as usize];
        group.present = true;
        group.fast = fast;
        group.slow_broker_id = slow_broker_id;
    }

    /// Takes a group, its subscriptions and what it got out of the tables.
    pub fn delete_group(&mut self, name: &[u8]) {
        if let Some(slot) = self.groups.find(name, NO_SLOT) {
            let group = &mut self.groups[slot as usize];
            group.present = false;
            group.fast = false;
            group.subscriptions = HashMap::new();
            self.got_count -= std::mem::take(&mut group.got).len();
            self.groups.changes += 1;
        }
    }

    /// Puts a subscription into the table; the slots of group and topic when the group wanted other
    /// tags before.
    pub fn set_subscription(
        &mut self,
        group: &[u8],
        topic: &[u8],
        subscription: Subscription,
    ) -> Option<(u32, u32)> {
        let (group, topic) = self.intern(group, topic)?;
        let subscriptions = &mut self.groups[group as usize].subscriptions;
        let is_same = subscriptions.get(&topic).is_none_or(|old| old.wants_as(&subscription));
        subscriptions.insert(topic, subscription);
        (!is_same).then_some((group, topic))
    }

    /// Takes a subscription out of the table; the slots of group and topic when it was there.
    pub fn delete_subscription(&mut self, group: &[u8], topic: &[u8]) -> Option<(u32, u32)> {
        let group = self.groups.find(group, NO_SLOT)?;
        let topic = self.topics.find(topic, NO_SLOT)?;
        self.groups[group as usize].subscriptions.remove(&topic)?;
        self.groups.changes += 1;
        Some((group, topic))
    }

    /// Whether the pulls of a group of a topic are slow; the slots of both. None without space for
    /// them: then nothing of them is fast.
    pub fn set_slow_pulls(&mut self, group: &[u8], topic: &[u8], slow: bool) -> Option<(u32, u32)> {
        let (group, topic) = self.intern(group, topic)?;
        let slow_topics = &mut self.groups[group as usize].slow_topics;
        if slow {
            slow_topics.insert(topic);
        } else {
            slow_topics.remove(&topic);
            self.groups.changes += 1;
        }
        Some((group, topic))
    }

    /// Whether so many names were made and deleted that a sweep is worth its time.
    #[must_use]
    pub const fn needs_sweep(&self) -> bool {
        self.topics.changes + self.groups.changes >= SWEEP_CHANGES
    }

    /// The slots of present names, and those that the tables name.
    #[must_use]
    pub fn used(&self) -> Used {
        let mut used = Used {
            topics: self.topics.iter().map(|topic| topic.present).collect(),
            groups: Vec::with_capacity(self.groups.len()),
        };
        for group in self.groups.iter() {
            let is_empty = group.subscriptions.is_empty()
                && group.slow_topics.is_empty()
                && group.got.is_empty();
            used.groups.push(group.present || !is_empty);
            let got = group.got.keys().map(|(topic, _)| topic);
            for topic in group.subscriptions.keys().chain(&group.slow_topics).chain(got) {
                used.note_topic(*topic);
            }
        }
        used
    }

    /// Gives back the slots of names that nothing uses.
    pub fn sweep(&mut self, used: &Used) {
        self.topics.sweep(&used.topics);
        self.groups.sweep(&used.groups);
    }

    /// Counts a read that examined entries of a queue.
    #[inline]
    pub fn note_got(&mut self, group: u32, topic: u32, queue_id: i32, outcome: &ReadOutcome) {
        let all = &mut self.groups[group as usize].got;
        let is_full = self.got_count >= GROUP_READS_MAX;
        let got = match all.entry((topic, queue_id)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return,
            Entry::Vacant(new) => {
                self.got_count += 1;
                new.insert(Got::default())
            }
        };
        if outcome.count > 0 {
            got.reads += 1;
            got.milliseconds += outcome.milliseconds;
            got.messages += u64::from(outcome.count);
            got.bytes += outcome.bytes as u64;
        }
        if self.disk_fall_recorded {
            got.lag = outcome.lag;
        }
    }

    /// Drops the cached queue handles when the store says that some went stale.
    pub fn refresh(&mut self, core: &Core) {
        let epoch = core.handles_epoch();
        if self.epoch != epoch {
            self.epoch = epoch;
            for queue in self.topics.iter_mut().flat_map(|topic| &mut topic.queues) {
                queue.handle = None;
            }
        }
    }

    /// The handle of a queue for reading; None when the store has no such queue.
    pub fn reading(&mut self, core: &Core, topic: u32, queue_id: i32) -> Option<QueueHandle> {
        self.topics[topic as usize].handle(queue_id, |name| core.find_queue(name, queue_id))
    }

    /// The offset after the last message of a queue that can be read; 0 without such a queue.
    pub fn end_of(&mut self, core: &mut Core, topic: u32, queue_id: i32) -> i64 {
        let queue = self.reading(core, topic, queue_id);
        queue.map_or(0, |queue| core.readable_bounds(queue).1)
    }

    /// The handle of a queue for writing, made when it is new; None when the store refuses.
    pub fn writing(&mut self, core: &mut Core, topic: u32, queue_id: i32) -> Option<QueueHandle> {
        self.topics[topic as usize].handle(queue_id, |name| core.queue(name, queue_id).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::GetStatus;

    const READ: ReadOutcome = ReadOutcome {
        status: GetStatus::Found,
        next_offset: 1,
        min_offset: 0,
        max_offset: 1,
        suggest_slave: false,
        count: 1,
        bytes: 100,
        lag: 0,
        waited_ms: -1,
        milliseconds: 0,
    };

    #[test]
    fn a_name_without_room_is_unknown_and_known_ones_go_on() {
        let mut tables = Tables::new();
        let longest = NAMES_BYTES_MAX / 255;
        for number in 0..longest {
            let name = format!("{number:0255}");
            tables.set_group(name.as_bytes(), true, 0);
        }
        tables.set_group(&[b'g'; 255], true, 0);
        assert_eq!(tables.groups.find(&[b'g'; 255], NO_SLOT), None);
        assert_eq!(tables.groups.len(), longest);
        tables.set_group(format!("{:0255}", 7).as_bytes(), false, 3);
        assert_eq!(tables.groups[7].slow_broker_id, 3);
        assert!(tables.topics.intern(&[b't'; 255]).is_some(), "topics have room of their own");
    }

    #[test]
    fn what_groups_got_is_counted_for_so_many_queues() {
        let mut tables = Tables::new();
        let group = tables.groups.intern(b"G").unwrap();
        for number in 0..4_u8 {
            let topic = tables.topics.intern(&[b't', number]).unwrap();
            for queue_id in 0..QUEUE_IDS_MAX {
                tables.note_got(group, topic, queue_id, &READ);
            }
        }
        assert_eq!(tables.groups[0].got.len(), GROUP_READS_MAX);
        tables.note_got(group, 0, 0, &READ);
        assert_eq!(tables.groups[0].got[&(0, 0)].reads, 2);
        tables.delete_topic(&[b't', 0]);
        assert_eq!(tables.got_count, GROUP_READS_MAX - QUEUE_IDS_MAX as usize);
        tables.note_got(group, 3, QUEUE_IDS_MAX - 1, &READ);
        assert_eq!(tables.groups[0].got[&(3, QUEUE_IDS_MAX - 1)].reads, 1);
        tables.delete_group(b"G");
        assert_eq!(tables.got_count, 0);
    }
}
