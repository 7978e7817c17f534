//! The fast path as the binding sees it: the store with the tables that the broker pushes.

use crate::protocol::{PERM_READ, TRANSACTION_MASK};
use parking_lot::{Mutex, MutexGuard};

use super::hold::{Asked, HeldPull};
use super::lent::{Key, Lease, Place, Queue, monotonic_ms};
use super::policy::{self, FastCalls, Got, Identity, Subscription, Tables};
use super::state::State;
use super::times::{CallCounts, CallTimes};
use super::waits::Wait;
use crate::access::{AccountRules, Accounts};
use crate::error::{PutStatus, StoreError};
use crate::queues::queue_ext::Filter;
use crate::record::NewRecord;
use crate::settings::Settings;
use crate::state::Core;
use crate::state::types::{Appended, BatchAppended, BatchItem, NewBatch, QueueHandle, ReadOutcome};
use crate::store::{Guard, Store};
use crate::wire::header::Encoding;

/// The store together with the tables and waiting rooms of the fast path.
pub struct FastPath {
    pub(super) store: Store,
    pub(super) state: Mutex<State>,
    pub(super) call_times: CallTimes,
}

/// A pull that the slow path wants held.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct NewHold<'a> {
    pub connection: u64,
    pub encoding: Encoding,
    pub opaque: i32,
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub offset: i64,
    pub max_count: i32,
    pub tag_codes: Option<&'a [i32]>,
    pub deadline_ms: i64,
}

/// A wait for an offset of a queue.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct NewWait<'a> {
    pub id: u64,
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub offset: i64,
    pub deadline_ms: i64,
}

/// A queue of a group that is lent, with what is out of it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct NewLent<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub committed: i64,
    pub next_offset: i64,
    pub space: u32,
    pub pop_time: i64,
    pub steady_ms: i64,
    pub retries: [i64; 2],
    pub retry_percent: u32,
    pub broker: &'a str,
}

/// What is out of a queue that is lent: group, topic, queue id, messages.
pub type LentCount = (String, String, i32, u32);

/// A queue that is lent: group, topic, queue id.
pub type LentName = (String, String, i32);

/// A committed offset: group, topic, queue id, offset.
pub type Commit = (String, String, i32, i64);

/// How far behind a group's last read was: group, topic, queue id, bytes.
pub type Lag = (String, String, i32, i64);

/// What a group got of a queue: group, topic, queue id, reads, messages, bytes, milliseconds.
pub type GroupStats = (String, String, i32, u64, u64, u64, u64);

impl FastPath {
    /// Touches no file.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let state = Mutex::new(State::new(&settings));
        Self { store: Store::new(settings), state, call_times: CallTimes::default() }
    }

    /// How long calls of gRPC took that were answered here.
    #[must_use]
    pub fn call_times(&self) -> Vec<CallCounts> {
        self.call_times.get()
    }

    /// The store below.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Closes the store and drops the held pulls; send answers that waited for the flush become
    /// ready.
    ///
    /// # Errors
    /// As [`Store::close`]: the last flush failed.
    pub fn close(&self) -> Result<(), StoreError> {
        let closed = self.store.close();
        self.state.lock().drop_holds();
        closed
    }

    /// Sets what goes into records and answers.
    pub fn set_identity(&self, identity: Identity) {
        self.state.lock().tables.identity = Some(identity);
    }

    /// Puts a topic into the table.
    pub fn set_topic(
        &self,
        topic: &str,
        read_queues: i32,
        write_queues: i32,
        perm: i32,
        fast: bool,
    ) {
        let mut state = self.state.lock();
        state.evict_names();
        state.tables.set_topic(topic.as_bytes(), read_queues, write_queues, perm, fast);
        if perm & PERM_READ == 0 {
            state.end_topic(topic.as_bytes());
        }
    }

    /// Takes a topic out of the table.
    pub fn delete_topic(&self, topic: &str) {
        let mut state = self.state.lock();
        state.end_topic(topic.as_bytes());
        state.tables.delete_topic(topic.as_bytes());
    }

    /// Puts a group into the table.
    pub fn set_group(&self, group: &str, fast: bool, slow_broker_id: i64) {
        let mut state = self.state.lock();
        state.evict_names();
        state.tables.set_group(group.as_bytes(), fast, slow_broker_id);
        if !fast {
            state.end_group(group.as_bytes());
        }
    }

    /// Takes a group out of the table.
    pub fn delete_group(&self, group: &str) {
        let mut state = self.state.lock();
        state.end_group(group.as_bytes());
        state.tables.delete_group(group.as_bytes());
    }

    /// Puts a subscription into the table.
    pub fn set_subscription(&self, group: &str, topic: &str, subscription: Subscription) {
        let mut state = self.state.lock();
        state.evict_names();
        let tables = &mut state.tables;
        let other = tables.set_subscription(group.as_bytes(), topic.as_bytes(), subscription);
        state.ended.subscriptions.extend(other);
    }

    /// Takes a subscription out of the table.
    pub fn delete_subscription(&self, group: &str, topic: &str) {
        let mut state = self.state.lock();
        let deleted = state.tables.delete_subscription(group.as_bytes(), topic.as_bytes());
        state.ended.subscriptions.extend(deleted);
    }

    /// Whether the pulls of a group of a topic are slow; its held ones end then.
    pub fn set_slow_pulls(&self, group: &str, topic: &str, slow: bool) {
        let mut state = self.state.lock();
        state.evict_names();
        let slots = state.tables.set_slow_pulls(group.as_bytes(), topic.as_bytes(), slow);
        state.ended.subscriptions.extend(slots.filter(|_| slow));
    }

    /// The groups that got messages of a topic, or wait for some; sorted.
    pub fn readers_of(&self, topic: &str) -> Vec<String> {
        self.state.lock().readers_of(topic.as_bytes())
    }

    /// False: every fast send takes the slow path.
    pub fn set_writable(&self, writable: bool) {
        self.state.lock().tables.writable = writable;
    }

    /// Whether offsets are committed that pulls carry; a slave does not.
    pub fn set_commits(&self, takes_commits: bool) {
        self.state.lock().tables.takes_commits = takes_commits;
    }

    /// For how long sends wait for a slave; None: not at all. Those that wait then end with the
    /// next tick.
    pub fn set_slave_timeout(&self, timeout_ms: Option<i64>) {
        self.state.lock().safety.slave_timeout_ms = timeout_ms;
    }

    /// How far the log is on a slave, and where a record ends that does not wait for one; whether
    /// `drain_ready` has something.
    pub fn set_replicated(&self, offset: i64, available_below: i64) -> bool {
        let mut state = self.state.lock();
        state.safety.replicated = offset;
        state.safety.available_below = available_below;
        state.release_safe(self.store.flushed_offset(), self.store.now_ms());
        state.has_ready()
    }

    /// Up to which physical offset queues show their records; `None`: all. Whether `drain_ready` has
    /// something.
    pub fn set_confirmed(&self, offset: Option<i64>) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut core = self.store.lock();
        core.set_confirmed(offset.unwrap_or(i64::MAX));
        if state.has_staged() {
            state.tables.refresh(&core);
            state.note_committed(&core);
            state.answer_arrivals(&mut core, None);
        }
        state.has_ready() || state.has_arrivals()
    }

    /// Replaces all accounts; None: nothing is checked. Held pulls are answered with the next tick,
    /// so that they come again and are checked anew.
    pub fn set_accounts(&self, rules: Option<&[AccountRules]>) {
        let accounts = rules.map(Accounts::new);
        let mut state = self.state.lock();
        let replaced = std::mem::replace(&mut state.accounts, accounts);
        state.ended.everyone = true;
        drop(state);
        drop(replaced);
    }

    /// Which messages that come by gRPC are fast.
    pub fn set_fast_calls(&self, topic: &str, fast: FastCalls) {
        self.state.lock().tables.set_fast_calls(topic.as_bytes(), fast);
    }

    /// `maxMessageSize` from now on.
    pub fn set_max_message_size(&self, size: usize) {
        let mut state = self.state.lock();
        state.max_message_bytes = size;
        self.store.lock().max_message_size = size;
    }

    /// Appends one record and wakes held pulls.
    ///
    /// # Errors
    /// The status to answer; nothing was stored then.
    pub fn append(
        &self,
        topic: &[u8],
        queue_id: i32,
        record: &NewRecord<'_>,
    ) -> Result<Appended, PutStatus> {
        let is_dispatched = self.store.settings().enable_multi_dispatch;
        self.append_with(topic, queue_id, |core, queue, codes, further| {
            let appended = if is_dispatched {
                core.append_dispatched(queue, record, further)?
            } else {
                core.append(queue, record)?
            };
            // Prepared and rollback records get no queue entry.
            if !matches!(record.sys_flag & TRANSACTION_MASK, 4 | 12) {
                codes.push(appended.tags_code);
            }
            Ok(appended)
        })
    }

    /// Appends records that follow each other, or none, and wakes held pulls. `physical_offsets`
    /// gets one value per record.
    ///
    /// # Errors
    /// The status to answer; nothing was stored then.
    pub fn append_batch(
        &self,
        topic: &[u8],
        queue_id: i32,
        batch: &NewBatch<'_>,
        items: &[BatchItem<'_>],
        physical_offsets: &mut Vec<i64>,
    ) -> Result<BatchAppended, PutStatus> {
        self.append_with(topic, queue_id, |core, queue, codes, _| {
            core.append_batch(queue, batch, items, physical_offsets, codes)
        })
    }

    /// Appends bytes of a master's log and wakes held pulls; the end of the last whole record.
    ///
    /// # Errors
    /// As [`Core::append_log`].
    pub fn append_log(&self, offset: i64, bytes: &[u8]) -> Result<i64, StoreError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut core = self.store.lock();
        let mut arrived = Vec::new();
        let appended = core.append_log(offset, bytes, &mut arrived);
        state.tables.refresh(&core);
        let mut last = None;
        for (queue, tags_code) in arrived {
            let Some(slot) = core.slot(queue) else { continue };
            // Mostly all are of one topic.
            let known = last.filter(|(of, _)| std::ptr::eq(*of, &raw const *slot.topic));
            let (_, topic) = *last.insert(known.unwrap_or_else(|| {
                let name = slot.topic.name.as_bytes();
                (&raw const *slot.topic, state.tables.topics.find(name, policy::NO_SLOT))
            }));
            if let Some(topic) = topic {
                state.note_append(&core, topic, slot.queue_id, tags_code);
            }
        }
        self.end_append(guard, core);
        appended
    }

    /// Ends an append: answers what it woke, gives the locks back, and tells that there are
    /// answers.
    pub(super) fn end_append(&self, mut state: MutexGuard<'_, State>, mut core: Guard<'_>) {
        let woken = state.has_arrivals();
        if woken {
            state.answer_arrivals(&mut core, None);
        }
        drop(core);
        drop(state);
        if woken {
            self.store.notify();
        }
    }

    fn append_with<R>(
        &self,
        topic: &[u8],
        queue_id: i32,
        append: impl FnOnce(
            &mut Core,
            QueueHandle,
            &mut Vec<i64>,
            &mut Vec<(String, i32)>,
        ) -> Result<R, PutStatus>,
    ) -> Result<R, PutStatus> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut core = self.store.lock();
        state.tables.refresh(&core);
        core.check_lmq(std::iter::once((topic, queue_id)))?;
        let queue = core.queue(topic, queue_id)?;
        let mut codes = std::mem::take(&mut state.batch.tags_codes);
        codes.clear();
        let mut further = Vec::new();
        let appended = append(&mut core, queue, &mut codes, &mut further);
        if appended.is_ok() {
            let others = further.iter().map(|(name, id)| (name.as_bytes(), *id));
            for (name, id) in [(topic, queue_id)].into_iter().chain(others) {
                if let Some(slot) = state.tables.topics.find(name, policy::NO_SLOT) {
                    for tags_code in &codes {
                        state.note_append(&core, slot, id, *tags_code);
                    }
                }
            }
        }
        state.batch.tags_codes = codes;
        self.end_append(guard, core);
        appended
    }

    /// `getMessage` of RocketMQ; raw records are appended to `records`. With a `group` it counts
    /// for that group.
    #[allow(clippy::too_many_arguments)] // the fields of a pull
    pub fn read(
        &self,
        group: Option<&str>,
        topic: &str,
        queue_id: i32,
        offset: i64,
        max_count: i32,
        filter: Filter<'_>,
        records: &mut Vec<u8>,
    ) -> ReadOutcome {
        let outcome = {
            let mut core = self.store.lock();
            let Some(queue) = core.find_queue(topic.as_bytes(), queue_id) else {
                return ReadOutcome::NO_QUEUE;
            };
            let count = max_count.max(0) as usize;
            let outcome = core.read_into(queue, offset, count, filter, records);
            if group.is_some() {
                core.note_delivery(&outcome);
            }
            outcome
        };
        if let Some(group) = group.filter(|_| outcome.lag >= 0) {
            let mut state = self.state.lock();
            state.evict_names();
            let tables = &mut state.tables;
            if let Some((group, topic)) = tables.intern(group.as_bytes(), topic.as_bytes()) {
                tables.note_got(group, topic, queue_id, &outcome);
            }
        }
        outcome
    }

    /// Holds a pull; false when the table is full. A later record wakes it, not one that is there.
    pub fn hold(&self, hold: &NewHold<'_>) -> bool {
        let mut state = self.state.lock();
        state.evict_names();
        let Some((group, topic)) = state.tables.intern(hold.group, hold.topic) else {
            return false;
        };
        let NewHold { connection, encoding, opaque, queue_id, offset, max_count, .. } = *hold;
        let asked =
            Asked { connection, encoding, opaque, group, topic, queue_id, offset, max_count };
        let tag_codes = hold.tag_codes.map(Into::into);
        state.hold(HeldPull { asked, tag_codes, deadline_ms: hold.deadline_ms })
    }

    /// Waits for an offset of a queue; false when too many wait.
    pub fn wait_for_offset(&self, new: &NewWait<'_>) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.evict_names();
        let tables = &mut state.tables;
        let Some((group, topic)) = tables.intern(new.group, new.topic) else {
            return false;
        };
        let NewWait { queue_id, offset, deadline_ms, .. } = *new;
        let end = {
            let mut core = self.store.lock();
            tables.refresh(&core);
            tables.end_of(&mut core, topic, queue_id)
        };
        let is_own = new.group.is_empty();
        let wait = Wait { group, topic, queue_id, offset, deadline_ms, is_own };
        let is_added = state.waits.add(new.id, wait, end);
        let is_over = state.waits.has_over();
        drop(guard);
        if is_over {
            self.store.notify();
        }
        is_added
    }

    /// Takes over a queue of pops; false: it may not be popped here, or too many are lent.
    pub fn lend_pops(&self, new: &NewLent<'_>, leases: Vec<Lease>) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let topic = state.tables.topics.find(new.topic, policy::NO_SLOT);
        let group = state.tables.groups.find(new.group, policy::NO_SLOT);
        let (Some(topic), Some(group)) = (topic, group) else {
            return false;
        };
        let queue = Queue::new(new.committed, new.next_offset, new.space, leases);
        let lent = &mut state.lent;
        let key = (group, topic, new.queue_id);
        if state.commits.contains_key(&key) || !lent.take(key, queue) {
            return false;
        }
        lent.places
            .insert((group, topic), Place { retries: new.retries, broker: new.broker.into() });
        lent.retry_percent = new.retry_percent;
        lent.pop_time = lent.pop_time.max(new.pop_time);
        lent.steady_ahead_ms = new.steady_ms - monotonic_ms();
        true
    }

    /// A queue of pops that is lent, and the newest pop time; `is_back`: it is lent no longer.
    pub fn lent_pops(
        &self,
        group: &[u8],
        topic: &[u8],
        queue_id: i32,
        is_back: bool,
    ) -> Option<(Queue, i64)> {
        let mut state = self.state.lock();
        let topic = state.tables.topics.find(topic, policy::NO_SLOT)?;
        let group = state.tables.groups.find(group, policy::NO_SLOT)?;
        let key = (group, topic, queue_id);
        let lent = &mut state.lent;
        let queue = if is_back { lent.give_back(key) } else { lent.get(key).cloned() }?;
        Some((queue, lent.pop_time))
    }

    /// The queues that are lent, in no order.
    pub fn lent_counts(&self) -> Vec<LentCount> {
        let guard = self.state.lock();
        let State { lent, tables, .. } = &*guard;
        let counts = lent.all().map(|((group, topic, queue_id), queue)| {
            let group = text(&tables.groups[*group as usize].name);
            (group, text(&tables.topics[*topic as usize].name), *queue_id, queue.out)
        });
        counts.collect()
    }

    /// Deliveries and acknowledgements of lent queues so far; when the first lease ends, or before;
    /// messages that the broker renews.
    pub fn lent_changes(&self) -> (u64, i64, u64) {
        let state = self.state.lock();
        (state.lent.changes, state.lent.next_end(), state.lent.renewed_count())
    }

    /// The lent queues of which a lease ended by now.
    pub fn lent_ended(&self, now_ms: i64) -> Vec<LentName> {
        let mut guard = self.state.lock();
        let State { lent, tables, .. } = &mut *guard;
        names(tables, lent.ended(now_ms))
    }

    /// The lent queues of which messages are out that the broker renews, of this owner, that end by
    /// then.
    pub fn lent_renewed(&self, owner: Option<&str>, until_ms: i64) -> Vec<LentName> {
        let guard = self.state.lock();
        names(&guard.tables, guard.lent.renewed(owner, until_ms))
    }

    /// Forgets a wait for an offset.
    pub fn cancel_wait(&self, id: u64) {
        self.state.lock().waits.cancel(id);
    }

    /// Some of the waits that are over; the store notifies when there are more.
    #[must_use]
    pub fn drain_arrived(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        let arrived = state.waits.take();
        let has_more = state.waits.has_over();
        drop(state);
        if has_more {
            self.store.notify();
        }
        arrived
    }

    /// Holds no more pulls: the next tick answers those that are held.
    pub fn stop_holding(&self) {
        self.state.lock().stop_holding();
    }

    /// Answers what is overdue; whether `drain_ready` has something.
    pub fn tick(&self, now_ms: i64) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut core = self.store.lock();
        state.tables.refresh(&core);
        state.note_committed(&core);
        state.expire_holds(&mut core, now_ms);
        state.release_safe(self.store.flushed_offset(), core.now_ms());
        state.expire_sends(now_ms, core.is_open() && !core.is_writable());
        state.has_ready()
    }

    /// (milliseconds, sends that took so long) since the last call.
    #[must_use]
    pub fn drain_put_times(&self) -> Vec<(i64, u64)> {
        self.state.lock().put_times.take()
    }

    /// The answers that became ready elsewhere than in their own feed, one run of frames per
    /// connection.
    #[must_use]
    pub fn drain_ready(&self) -> Vec<(u64, Vec<u8>)> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.release_safe(self.store.flushed_offset(), self.store.now_ms());
        if state.has_arrivals() || state.has_staged() {
            let mut core = self.store.lock();
            state.tables.refresh(&core);
            state.note_committed(&core);
            state.answer_arrivals(&mut core, None);
        }
        let taken = state.peers.take();
        let has_more = state.has_arrivals();
        drop(guard);
        if has_more {
            self.store.notify();
        }
        taken
    }

    /// What fast pulls committed since the last call.
    #[must_use]
    pub fn drain_commits(&self) -> Vec<Commit> {
        let mut guard = self.state.lock();
        let State { commits, tables, .. } = &mut *guard;
        commits
            .drain()
            .map(|((group, topic, queue_id), offset)| {
                let group = text(&tables.groups[group as usize].name);
                (group, text(&tables.topics[topic as usize].name), queue_id, offset)
            })
            .collect()
    }

    /// What groups got since open.
    #[must_use]
    pub fn group_stats(&self) -> Vec<GroupStats> {
        let describe = |group, topic, queue_id, got: &Got| {
            (group, topic, queue_id, got.reads, got.messages, got.bytes, got.milliseconds)
        };
        self.each_got(|got| got.reads > 0, describe)
    }

    /// (group, topic, queue id, bytes): how far behind the end of the log each group's last read of
    /// a queue was.
    #[must_use]
    pub fn lag(&self) -> Vec<Lag> {
        let is_known = |got: &Got| got.lag >= 0;
        self.each_got(is_known, |group, topic, queue_id, got| (group, topic, queue_id, got.lag))
    }

    /// What `describe` says of what groups got: of a group, a topic, a queue id.
    fn each_got<R>(
        &self,
        is_wanted: impl Fn(&Got) -> bool,
        describe: impl Fn(String, String, i32, &Got) -> R,
    ) -> Vec<R> {
        let guard = self.state.lock();
        let Tables { topics, groups, .. } = &guard.tables;
        let mut described = Vec::new();
        for group in groups.iter() {
            for ((topic, queue_id), got) in group.got.iter().filter(|each| is_wanted(each.1)) {
                let topic = text(&topics[*topic as usize].name);
                described.push(describe(text(&group.name), topic, *queue_id, got));
            }
        }
        described
    }

    /// How many pulls are held, and offsets waited for, but for the broker's own.
    #[must_use]
    pub fn held_pulls(&self) -> usize {
        let state = self.state.lock();
        state.holds.len() + state.waits.of_groups()
    }
}

fn names(tables: &Tables, keys: Vec<Key>) -> Vec<LentName> {
    let name = |(group, topic, queue_id): Key| {
        let group = text(&tables.groups[group as usize].name);
        (group, text(&tables.topics[topic as usize].name), queue_id)
    };
    keys.into_iter().map(name).collect()
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
