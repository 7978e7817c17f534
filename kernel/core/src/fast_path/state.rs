//! The state that all connections share: tables, held pulls, answers that come later.

use crate::protocol::{COMMITS_MAX, HELD_CODES_MAX, HELD_OF_CONNECTION_MAX, PASSED_OVER_MS};
use std::collections::{BTreeSet, VecDeque};

use hashbrown::{HashMap, HashSet};

use super::ahead::Ahead;
use super::hold::{Asked, HeldPull, Holds};
use super::lent::Lent;
use super::peers::Peers;
use super::pending::{Awaited, Safety};
use super::policy::{Group, NO_SLOT, Tables};
use super::reading::{self, AnswerHeader, Kind};
use super::times::PutTimes;
use super::waits::Waits;
use crate::access::Accounts;
use crate::settings::{FlushDiskType, Settings};
use crate::state::Core;
use crate::wire::answer::push_with_code;

/// Bytes of answers after which one call takes no more frames.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Buffers of a batch send, used again.
#[derive(Debug, Default)]
pub struct BatchBuffers {
    pub suffix: Vec<u8>,
    /// Where half messages, and those for a moment, are for.
    pub target: Vec<u8>,
    /// `TIMER_OUT_MS` of the last message for a moment.
    pub out_ms: i64,
    pub physical_offsets: Vec<i64>,
    /// Of the keys of its messages, for a topic with a window.
    pub hashes: Vec<Option<u64>>,
    pub tags_codes: Vec<i64>,
}

/// Tags codes of records that were appended to a queue with held pulls.
#[derive(Debug)]
struct Arrived {
    topic: u32,
    queue_id: i32,
    tags_codes: Vec<i32>,
}

/// A record that waits in a transient pool.
#[derive(Clone, Copy, Debug)]
struct Staged {
    end: i64,
    topic: u32,
    queue_id: i32,
    tags_code: i64,
}

/// Whose held pulls the next tick ends. Until then nothing may wake them, or they would be given
/// what their group does not want any more, and passed over what it wants now.
#[derive(Debug, Default)]
pub struct Ended {
    /// Everybody's: the accounts changed.
    pub everyone: bool,
    /// Ids of connections that a white list had.
    pub connections: HashSet<u64>,
    /// Slots of those that may not be read any more.
    groups: HashSet<u32>,
    topics: HashSet<u32>,
    /// Slots of groups and the topics of which they want other tags now.
    pub subscriptions: HashSet<(u32, u32)>,
}

impl Ended {
    fn is_empty(&self) -> bool {
        !self.everyone
            && self.connections.is_empty()
            && self.groups.is_empty()
            && self.topics.is_empty()
            && self.subscriptions.is_empty()
    }

    fn has(&self, asked: &Asked) -> bool {
        !self.is_empty()
            && (self.connections.contains(&asked.connection)
                || self.has_wait(asked.group, asked.topic))
    }

    fn has_wait(&self, group: u32, topic: u32) -> bool {
        self.everyone
            || self.groups.contains(&group)
            || self.topics.contains(&topic)
            || self.subscriptions.contains(&(group, topic))
    }
}

/// A list of tags codes is searched for repetitions up to this length.
const SEARCHED_CODES_MAX: usize = 16;

/// Everything under the fast path's lock. The store's lock is taken after it, never before.
#[derive(Debug, Default)]
pub struct State {
    pub tables: Tables,
    pub holds: Holds,
    pub waits: Waits,
    pub peers: Peers,
    /// Offsets committed by pulls: group slot, topic slot, queue id.
    pub commits: HashMap<(u32, u32, i32), i64>,
    /// Queues that pops have of the broker's state machine.
    pub lent: Lent,
    pub batch: BatchBuffers,
    pub scratch: Vec<u8>,
    answer_header: AnswerHeader,
    /// Queues whose held pulls are examined next, in the order of their first record.
    arrived: Vec<Arrived>,
    /// What was appended and is not committed by a transient pool, or not confirmed, in log order: it
    /// arrives then.
    staged: VecDeque<Staged>,
    pub ended: Ended,
    /// Whose requests are answered; None: everybody's.
    pub accounts: Option<Accounts>,
    pub ahead: Ahead,
    /// When pulls that were passed over were looked for.
    looked_ms: i64,
    /// Physical offset that the sends of this call want on disk; 0 for none.
    pub flush_wanted: i64,
    /// What the answers of sends wait for.
    pub safety: Safety,
    pub long_polling: bool,
    pub has_stopped_holding: bool,
    pub max_message_bytes: usize,
    /// Sends that are answered at the end of this call.
    pub answered_puts: u64,
    pub put_times: PutTimes,
}

impl State {
    /// The state of a broker that was told nothing yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let mut tables = Tables::new();
        tables.disk_fall_recorded = settings.disk_fall_recorded;
        let is_sync = settings.flush_disk_type == FlushDiskType::Sync;
        let disk_timeout_ms = is_sync.then_some(settings.sync_flush_timeout as i64);
        Self {
            tables,
            safety: Safety { disk_timeout_ms, ..Safety::default() },
            long_polling: settings.long_polling_enable,
            max_message_bytes: settings.max_message_size,
            ..Self::default()
        }
    }

    /// Whether another offset may be committed; those that are there may be replaced.
    #[inline]
    pub fn has_capacity_to_commit(&self, key: &(u32, u32, i32)) -> bool {
        self.commits.len() < COMMITS_MAX || self.commits.contains_key(key)
    }

    /// A pull commits an offset; pops of that queue are for Python then.
    pub fn commit_of_pull(&mut self, key: (u32, u32, i32), offset: i64) {
        self.commits.insert(key, offset);
        self.lent.disturb(key);
    }

    /// Whether another pull of a connection may be held, with those tags.
    pub fn has_capacity_to_hold(&mut self, connection: u64, tag_codes: Option<&[i32]>) -> bool {
        let held = self.peers.known(connection).map_or(0, |peer| peer.holds.len());
        let codes = self.holds.codes() + tag_codes.map_or(0, <[i32]>::len);
        self.holds.has_capacity() && held < HELD_OF_CONNECTION_MAX && codes <= HELD_CODES_MAX
    }

    /// Holds a pull; false when the table or the connection's share of it is full, or the queue id
    /// is outside the limits.
    pub fn hold(&mut self, pull: HeldPull) -> bool {
        if !self.has_capacity_to_hold(pull.asked.connection, pull.tag_codes.as_deref()) {
            return false;
        }
        let topic = &mut self.tables.topics[pull.asked.topic as usize];
        let Some(queue) = topic.queue(pull.asked.queue_id) else {
            return false;
        };
        let peer = self.peers.peer(pull.asked.connection);
        self.holds.hold(pull, &mut queue.holds, &mut peer.holds);
        true
    }

    /// The held pulls of a group end with the next tick.
    pub fn end_group(&mut self, group: &[u8]) {
        self.ended.groups.extend(self.tables.groups.find(group, NO_SLOT));
    }

    /// The held pulls of a topic end with the next tick.
    pub fn end_topic(&mut self, topic: &[u8]) {
        self.ended.topics.extend(self.tables.topics.find(topic, NO_SLOT));
    }

    /// The groups that got messages of a topic, or wait for some; sorted.
    pub fn readers_of(&self, topic: &[u8]) -> Vec<String> {
        let Some(slot) = self.tables.topics.find(topic, NO_SLOT) else {
            return Vec::new();
        };
        let got = |(number, group): (usize, &Group)| {
            group.got.keys().any(|(topic, _)| *topic == slot).then_some(number as u32)
        };
        let counted = self.tables.groups.iter().enumerate().filter_map(got);
        let held = self.holds.pulls().map(|pull| (pull.asked.topic, pull.asked.group));
        let waiting = self.waits.all().map(|wait| (wait.topic, wait.group));
        let here = held.chain(waiting).filter(|(topic, _)| *topic == slot);
        let slots: BTreeSet<u32> = counted.chain(here.map(|(_, group)| group)).collect();
        let name = |slot: u32| {
            String::from_utf8_lossy(&self.tables.groups[slot as usize].name).into_owned()
        };
        let mut names: Vec<String> = slots.into_iter().map(name).collect();
        names.sort_unstable();
        names
    }

    /// Holds no more pulls; those that are held end with the next tick.
    pub fn stop_holding(&mut self) {
        self.has_stopped_holding = true;
        self.holds.end_where(|_| true);
        self.waits.end_where(|_| true);
    }

    /// Gives back the slots of deleted names, when many names were made and deleted. What waits for
    /// something, or will be told, keeps its slots. To be called before a name gets a slot.
    pub fn evict_names(&mut self) {
        if !self.tables.needs_sweep() {
            return;
        }
        // What ended names is in the held pulls then.
        self.end_holds();
        let mut used = self.tables.used();
        for pull in self.holds.pulls() {
            used.note_group(pull.asked.group);
            used.note_topic(pull.asked.topic);
        }
        for wait in self.waits.all() {
            used.note_group(wait.group);
            used.note_topic(wait.topic);
        }
        for (group, topic, _) in self.commits.keys() {
            used.note_group(*group);
            used.note_topic(*topic);
        }
        for ((group, topic, _), _) in self.lent.all() {
            used.note_group(*group);
            used.note_topic(*topic);
        }
        self.arrived.iter().for_each(|arrival| used.note_topic(arrival.topic));
        self.staged.iter().for_each(|record| used.note_topic(record.topic));
        self.tables.sweep(&used);
    }

    fn end_holds(&mut self) {
        if !self.ended.is_empty() {
            let ended = std::mem::take(&mut self.ended);
            self.holds.end_where(|pull| ended.has(&pull.asked));
            self.waits.end_where(|wait| ended.has_wait(wait.group, wait.topic));
        }
    }

    /// Ends the pulls whose tags none of the messages had that came meanwhile, now and then.
    fn end_passed_over(&mut self, core: &mut Core, now_ms: i64) {
        let last_ms = self.looked_ms;
        if (last_ms..last_ms.saturating_add(PASSED_OVER_MS)).contains(&now_ms) {
            return;
        }
        self.looked_ms = now_ms;
        if last_ms == 0 {
            return;
        }
        let Self { tables, holds, .. } = self;
        let is_passed_over = |pull: &HeldPull| {
            pull.tag_codes.is_some()
                && pull.deadline_ms > now_ms
                && tables.end_of(core, pull.asked.topic, pull.asked.queue_id) > pull.asked.offset
        };
        holds.expire_where(is_passed_over, now_ms);
    }

    /// Notes a record that was just appended to a queue: it arrives, now or when it is committed
    /// and confirmed.
    #[inline]
    pub fn note_append(&mut self, core: &Core, topic: u32, queue_id: i32, tags_code: i64) {
        match core.staged_end() {
            None => self.note_arrival(topic, queue_id, tags_code),
            Some(end) => self.staged.push_back(Staged { end, topic, queue_id, tags_code }),
        }
    }

    /// Lets arrive what is committed and confirmed by now.
    pub fn note_committed(&mut self, core: &Core) {
        let end = core.visible();
        while let Some(record) = self.staged.front().copied().filter(|record| record.end <= end) {
            self.staged.pop_front();
            self.note_arrival(record.topic, record.queue_id, record.tags_code);
        }
    }

    /// Whether records wait to be committed, or confirmed.
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Notes a record that can be read in a queue; `answer_arrivals` examines the pulls that wait
    /// for it.
    #[inline]
    fn note_arrival(&mut self, topic: u32, queue_id: i32, tags_code: i64) {
        self.waits.touch(topic, queue_id);
        let queues = &mut self.tables.topics[topic as usize].queues;
        let Some(queue) = queues.get_mut(queue_id as usize) else {
            return;
        };
        if queue.holds.is_empty() {
            return;
        }
        if queue.arrived == 0 {
            self.arrived.push(Arrived { topic, queue_id, tags_codes: Vec::new() });
            queue.arrived = self.arrived.len() as u32;
        }
        let codes = &mut self.arrived[queue.arrived as usize - 1].tags_codes;
        // Java compares the low 32 bits of an entry's tags code.
        let code = tags_code as i32;
        if codes.last() != Some(&code)
            && (codes.len() > SEARCHED_CODES_MAX || !codes.contains(&code))
        {
            codes.push(code);
        }
    }

    /// Whether `answer_arrivals` has something to do.
    #[must_use]
    pub fn has_arrivals(&self) -> bool {
        !self.arrived.is_empty() || self.waits.has_touched()
    }

    /// Reads for the pulls that wait for what arrived, and answers those that found something:
    /// into `own` for that connection, else into the ready answers. Without space for these the
    /// rest is left for the next call.
    pub fn answer_arrivals(&mut self, core: &mut Core, mut own: Option<(u64, &mut Vec<u8>)>) {
        let Self { waits, tables, .. } = self;
        waits.answer_arrivals(|(topic, queue_id)| tables.end_of(core, topic, queue_id));
        let arrived = std::mem::take(&mut self.arrived);
        for arrival in arrived {
            let Arrived { topic, queue_id, tags_codes } = &arrival;
            let Some(queue) = self.tables.topics[*topic as usize].queue(*queue_id) else {
                continue;
            };
            queue.arrived = 0;
            let mut next = queue.holds.first();
            while let Some(index) = next {
                if !self.peers.has_capacity() {
                    self.leave(arrival);
                    break;
                }
                next = self.holds.next_of_queue(index);
                let pull = self.holds.pull(index);
                if pull.wants(tags_codes) && !pull.is_ended() && !self.ended.has(&pull.asked) {
                    self.try_to_answer(core, index, &mut own);
                }
            }
        }
    }

    /// Leaves an arrival for the next `answer_arrivals`.
    fn leave(&mut self, arrival: Arrived) {
        let place = self.arrived.len() as u32 + 1;
        if let Some(queue) = self.tables.topics[arrival.topic as usize].queue(arrival.queue_id) {
            queue.arrived = place;
            self.arrived.push(arrival);
        }
    }

    /// Reads for a held pull; one that finds nothing new stays held.
    fn try_to_answer(
        &mut self,
        core: &mut Core,
        index: u32,
        own: &mut Option<(u64, &mut Vec<u8>)>,
    ) {
        let Self { tables, holds, peers, answer_header, .. } = self;
        let pull = holds.pull(index);
        let HeldPull { asked, tag_codes, .. } = pull;
        let mut read = |out: &mut Vec<u8>| {
            let codes = tag_codes.as_deref();
            let (kind, outcome) = reading::read(tables, core, asked, codes, answer_header, out);
            if matches!(kind, Kind::Retry | Kind::Moved) {
                reading::answer_empty(tables, asked, &outcome, kind, out);
            }
            kind
        };
        let kind = match own {
            Some((connection, answers))
                if *connection == pull.asked.connection && answers.len() < ANSWER_BYTES_MAX =>
            {
                read(answers)
            }
            _ => peers.write_ready(pull.asked.connection, read),
        };
        if kind != Kind::NotFound {
            self.release(index);
        }
    }

    /// Answers the pulls whose time is over. Without space for the answers the rest is left for
    /// the next call; a closed store has no answer, all its queues look empty.
    pub fn expire_holds(&mut self, core: &mut Core, now_ms: i64) {
        if !core.is_open() {
            return;
        }
        self.end_holds();
        self.end_passed_over(core, now_ms);
        self.waits.end_where(|wait| wait.deadline_ms <= now_ms);
        while self.peers.has_capacity() {
            let Some(index) = self.holds.next_expired(now_ms) else {
                break;
            };
            let Self { tables, holds, peers, answer_header, .. } = self;
            let pull = holds.pull(index);
            let HeldPull { asked, tag_codes, .. } = pull;
            peers.write_ready(pull.asked.connection, |out| {
                if pull.is_ended() {
                    let nothing = reading::nothing_for(tables, core, asked);
                    return reading::answer_empty(tables, asked, &nothing, Kind::NotFound, out);
                }
                let codes = tag_codes.as_deref();
                let (kind, outcome) = reading::read(tables, core, asked, codes, answer_header, out);
                if kind != Kind::Found {
                    reading::answer_empty(tables, asked, &outcome, kind, out);
                }
            });
            self.release(index);
        }
    }

    /// Whether somebody has to be told of something.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.peers.has_ready() || self.has_arrivals() || self.waits.has_over()
    }

    /// Notes how long a call took, for the sends that it answered.
    pub fn note_puts(&mut self, milliseconds: i64) {
        self.put_times.note(milliseconds, std::mem::take(&mut self.answered_puts));
    }

    /// Lets the answer to a send wait that stands in `scratch`, or gives it where it need not.
    pub fn answer_when_safe(
        &mut self,
        connection: u64,
        end_offset: i64,
        now_ms: i64,
        awaited: Awaited,
        answers: &mut Vec<u8>,
    ) {
        let Self { peers, scratch, .. } = self;
        if !awaited.is_open() {
            push_with_code(answers, scratch, awaited.code());
        } else if peers.may_wait() {
            peers.wait(connection, end_offset, now_ms, awaited, scratch);
            self.answered_puts -= 1;
            self.safety.slave_wanted |= awaited.for_slave();
        } else {
            push_with_code(answers, scratch, awaited.code_when_late());
        }
    }

    /// Makes the send answers ready whose records are safe, the log being on disk that far.
    pub fn release_safe(&mut self, flushed_offset: i64, now_ms: i64) {
        self.safety.flushed = flushed_offset;
        let Self { peers, put_times, safety, .. } = self;
        peers.release(safety, None, |begin, count| put_times.note(now_ms - begin, count));
    }

    /// Makes the send answers ready whose time is over; `has_failed`: no flush will come.
    pub fn expire_sends(&mut self, now_ms: i64, has_failed: bool) {
        self.safety.has_failed = has_failed;
        let Self { peers, put_times, safety, .. } = self;
        peers.release(safety, Some(now_ms), |begin, count| put_times.note(now_ms - begin, count));
    }

    /// Forgets a connection, its held pulls and its answers.
    pub fn close(&mut self, connection: u64) {
        while let Some(peer) = self.peers.known(connection) {
            let Some(index) = peer.holds.first() else {
                break;
            };
            self.release(index);
        }
        self.peers.remove(connection);
    }

    /// Drops all held pulls.
    pub fn drop_holds(&mut self) {
        self.staged.clear();
        self.waits.clear();
        for index in self.holds.all() {
            self.release(index);
        }
    }

    /// Takes a held pull out of all lists.
    fn release(&mut self, index: u32) {
        let pull = self.holds.pull(index);
        let Asked { connection, topic, queue_id, .. } = pull.asked;
        let peer = self.peers.peer(connection);
        if let Some(queue) = self.tables.topics[topic as usize].queue(queue_id) {
            self.holds.release(index, &mut queue.holds, &mut peer.holds);
        }
    }
}
