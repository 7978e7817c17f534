//! Queues of pops that the broker lends: what is out of them, while only the commonest happens.
//!
//! The state machine of pops is in Python (`broker/pop`). It lends a queue of a group whole, and
//! takes it back before it does anything else with it: nothing here expires, changes or is reset. A
//! lent queue gives out messages and takes acknowledgements, by the rules of `PopTable.deliver` and
//! `PopTable.ack`. What it does not know for certain is for Python.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::protocol::{LENT_QUEUES_MAX, POP_MESSAGES_MAX};

/// Leases that are over may be so many more than twice the others.
const OVER_MAX: usize = 16;

/// Group slot, topic slot, queue id.
pub type Key = (u32, u32, i32);

/// The messages of one pop, among offsets that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct Lease {
    pub start: i64,
    pub count: u32,
    /// Bit i: offset `start` + i is out.
    pub open: u32,
    pub pop_time: i64,
    pub first_pop_time: i64,
    pub invisible_ms: i64,
    /// By the steady clock.
    pub visible_at: i64,
    pub owner: Arc<str>,
    /// Its messages are the owner's until it is silent: the broker renews their time.
    pub is_renewed: bool,
}

impl Lease {
    /// One of nobody, without messages.
    #[must_use]
    pub fn new(pop_time: i64, invisible_ms: i64) -> Self {
        Self {
            start: 0,
            count: 0,
            open: 0,
            pop_time,
            first_pop_time: pop_time,
            invisible_ms,
            visible_at: 0,
            owner: "".into(),
            is_renewed: false,
        }
    }
}

/// What is said of a group and a topic when a queue is lent.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where the group goes on in both topics of its retries.
    pub retries: [i64; 2],
    /// The broker's name in receipts of gRPC; empty: receives by gRPC are for Python.
    pub broker: Arc<str>,
}

/// A queue of a group as it is lent.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// What the table of offsets was told last.
    pub committed: i64,
    /// The first offset that never went out.
    pub next_offset: i64,
    /// Ascending.
    pub leases: VecDeque<Lease>,
    /// Messages that are out.
    pub out: u32,
    /// How many may be.
    out_max: u32,
    /// Somebody else committed an offset: where the group is, is for Python to say.
    pub is_disturbed: bool,
    /// No lease ends before.
    next_end: i64,
    live: usize,
}

impl Queue {
    /// A queue with what is out of it.
    #[must_use]
    pub fn new(committed: i64, next_offset: i64, space: u32, leases: Vec<Lease>) -> Self {
        let out = leases.iter().map(|lease| lease.open.count_ones()).sum();
        let next_end = leases.iter().map(|lease| lease.visible_at).min().unwrap_or(i64::MAX);
        Self {
            committed,
            next_offset,
            out,
            out_max: out + space,
            is_disturbed: false,
            next_end,
            live: leases.len(),
            leases: leases.into(),
        }
    }

    /// The lowest offset that is not done.
    pub fn low(&mut self) -> i64 {
        while self.leases.front().is_some_and(|lease| lease.open == 0) {
            self.leases.pop_front();
        }
        let lowest = |lease: &Lease| lease.start + i64::from(lease.open.trailing_zeros());
        self.leases.front().map_or(self.next_offset, lowest)
    }

    /// How many more messages may go out, at most those of a pop.
    pub fn capacity(&self) -> u32 {
        (self.out_max - self.out).min(POP_MESSAGES_MAX)
    }

    /// Messages from `next_offset` on go out, those that are open; nobody wants the others.
    pub fn deliver(&mut self, lease: Lease) {
        self.next_offset = lease.start + i64::from(lease.count);
        if lease.open == 0 {
            return;
        }
        self.out += lease.open.count_ones();
        self.next_end = self.next_end.min(lease.visible_at);
        self.live += 1;
        self.leases.push_back(lease);
    }

    /// The lease of a message that is out under such a receipt, and the message's place in it.
    fn find(&mut self, offset: i64, pop_time: i64) -> Option<(&mut Lease, i64)> {
        let place = self.leases.partition_point(|lease| lease.start <= offset);
        let lease = &mut self.leases[place.checked_sub(1)?];
        let distance = offset - lease.start;
        let is_out = distance < i64::from(lease.count)
            && lease.open >> distance & 1 != 0
            && (lease.first_pop_time..=lease.pop_time).contains(&pop_time);
        is_out.then_some((lease, distance))
    }

    /// Whether a message is out under such a receipt.
    pub fn is_out(&mut self, offset: i64, pop_time: i64) -> bool {
        self.find(offset, pop_time).is_some()
    }

    /// A message is done; false: it is not out under such a receipt.
    pub fn acknowledge(&mut self, offset: i64, pop_time: i64) -> bool {
        let Some((lease, distance)) = self.find(offset, pop_time) else {
            return false;
        };
        lease.open ^= 1 << distance;
        let is_over = lease.open == 0;
        self.out -= 1;
        if is_over {
            self.live -= 1;
            if self.leases.len() > 2 * self.live + OVER_MAX {
                self.leases.retain(|lease| lease.open != 0);
            }
        }
        true
    }

    /// Whether a lease ended by now.
    fn has_ended(&mut self, now_ms: i64) -> bool {
        if self.next_end > now_ms {
            return false;
        }
        let open = self.leases.iter().filter(|lease| lease.open != 0);
        self.next_end = open.map(|lease| lease.visible_at).min().unwrap_or(i64::MAX);
        self.next_end <= now_ms
    }
}

/// All that is lent.
#[derive(Debug, Default)]
pub struct Lent {
    queues: HashMap<Key, Queue>,
    /// By group and topic.
    pub places: HashMap<(u32, u32), Place>,
    /// Of a hundred pops, those that read retries first.
    pub retry_percent: u32,
    /// What the steady clock is ahead of that of the system.
    pub steady_ahead_ms: i64,
    /// The newest pop time.
    pub pop_time: i64,
    /// Deliveries and acknowledgements so far.
    pub changes: u64,
    /// Bodies of an answer; used again.
    pub body: Vec<u8>,
    random: u64,
}

impl Lent {
    /// Whether nothing is lent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A queue that is lent.
    #[inline]
    pub fn queue(&mut self, key: Key) -> Option<&mut Queue> {
        self.queues.get_mut(&key).filter(|queue| !queue.is_disturbed)
    }

    /// The broker's name in receipts of gRPC; None: receives of this group and topic are for Python,
    /// or for another broker.
    pub fn receivers(&self, place: (u32, u32), broker: &[u8]) -> Option<Arc<str>> {
        let name = &self.places.get(&place)?.broker;
        let is_here = broker.is_empty() || broker == name.as_bytes();
        (is_here && !name.is_empty()).then(|| Arc::clone(name))
    }

    /// A queue as it is.
    pub fn get(&self, key: Key) -> Option<&Queue> {
        self.queues.get(&key)
    }

    /// Takes a queue; false without space for it.
    pub fn take(&mut self, key: Key, queue: Queue) -> bool {
        let has_capacity = self.queues.len() < LENT_QUEUES_MAX;
        if has_capacity {
            self.queues.insert(key, queue);
        }
        has_capacity
    }

    /// Gives a queue back.
    pub fn give_back(&mut self, key: Key) -> Option<Queue> {
        let queue = self.queues.remove(&key);
        if self.queues.is_empty() {
            self.places.clear();
        }
        queue
    }

    /// Somebody else committed an offset of a queue.
    #[inline]
    pub fn disturb(&mut self, key: Key) {
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.is_disturbed = true;
        }
    }

    /// All that is lent.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Queue)> {
        self.queues.iter()
    }

    /// No lease ends before.
    pub fn next_end(&self) -> i64 {
        self.queues.values().map(|queue| queue.next_end).min().unwrap_or(i64::MAX)
    }

    /// The queues of which a lease ended by now.
    pub fn ended(&mut self, now_ms: i64) -> Vec<Key> {
        let ended = self
            .queues
            .iter_mut()
            .filter_map(|(key, queue)| queue.has_ended(now_ms).then_some(*key));
        ended.collect()
    }

    /// The queues of which messages are out that the broker renews, of this owner, and end by then.
    pub fn renewed(&self, owner: Option<&str>, until_ms: i64) -> Vec<Key> {
        let is_meant = |lease: &Lease| {
            lease.is_renewed
                && lease.open != 0
                && lease.visible_at <= until_ms
                && owner.is_none_or(|owner| *lease.owner == *owner)
        };
        let all = self.queues.iter();
        all.filter_map(|(key, queue)| queue.leases.iter().any(is_meant).then_some(*key)).collect()
    }

    /// Messages that the broker renews.
    pub fn renewed_count(&self) -> u64 {
        let leases = self.queues.values().flat_map(|queue| &queue.leases);
        leases
            .filter(|lease| lease.is_renewed)
            .map(|lease| u64::from(lease.open.count_ones()))
            .sum()
    }

    /// A number below 100, another one for each pop (xorshift).
    pub fn chance(&mut self) -> u32 {
        let mut word = self.random | 1;
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.random = word;
        (word >> 33) as u32 % 100
    }
}

/// Milliseconds of the system's steady clock.
pub fn monotonic_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time to the place that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(start: i64, count: u32, pop_time: i64) -> Lease {
        Lease {
            start,
            count,
            open: u32::MAX >> (32 - count),
            pop_time,
            first_pop_time: pop_time,
            invisible_ms: 50,
            visible_at: pop_time + 50,
            owner: "".into(),
            is_renewed: false,
        }
    }

    #[test]
    fn the_lowest_offset_that_is_not_done_is_where_the_group_is() {
        let mut queue = Queue::new(10, 10, 64, Vec::new());
        queue.deliver(lease(10, 4, 7));
        queue.deliver(lease(14, 2, 8));
        assert_eq!((queue.low(), queue.out, queue.next_offset), (10, 6, 16));
        assert!(queue.acknowledge(11, 7));
        assert!(!queue.acknowledge(11, 7), "it is done");
        assert!(!queue.acknowledge(10, 8), "another delivery");
        assert!(!queue.acknowledge(16, 8) && !queue.acknowledge(9, 7));
        assert_eq!(queue.low(), 10);
        assert!(queue.acknowledge(10, 7));
        assert_eq!(queue.low(), 12);
        for offset in [12, 13] {
            assert!(queue.acknowledge(offset, 7));
        }
        assert_eq!((queue.low(), queue.out), (14, 2));
        assert!(queue.acknowledge(14, 8) && queue.acknowledge(15, 8));
        assert_eq!(queue.low(), 16);
    }

    #[test]
    fn leases_behind_one_that_is_out_for_long_take_no_memory() {
        let mut queue = Queue::new(0, 0, 64, Vec::new());
        queue.deliver(lease(0, 1, 7));
        for start in 1..1_000 {
            queue.deliver(lease(start, 1, 7));
            assert!(queue.acknowledge(start, 7));
        }
        assert!(queue.leases.len() < OVER_MAX + 8);
        assert_eq!(queue.low(), 0);
    }

    #[test]
    fn a_queue_has_ended_once_the_first_open_lease_has() {
        let mut lent = Lent::default();
        let mut queue = Queue::new(0, 0, 64, Vec::new());
        queue.deliver(lease(0, 1, 7));
        queue.deliver(lease(1, 1, 9));
        assert!(queue.acknowledge(0, 7));
        assert!(lent.take((1, 2, 0), queue));
        assert_eq!(lent.next_end(), 57);
        assert_eq!(lent.ended(58), []);
        assert_eq!(lent.next_end(), 59);
        assert_eq!(lent.ended(59), [(1, 2, 0)]);
    }

    #[test]
    fn no_more_goes_out_than_was_allowed() {
        let mut queue = Queue::new(0, 3, 5, vec![lease(0, 3, 7)]);
        assert_eq!(queue.capacity(), 5);
        queue.deliver(lease(3, 5, 7));
        assert_eq!(queue.capacity(), 0);
    }
}
