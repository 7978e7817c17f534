//! Waits for an offset of a queue: whoever reads by himself is notified when there is something to
//! read. A wait has a number and no answer; what it was for is its owner's affair.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::protocol::{ARRIVED_AT_ONCE_MAX, OFFSET_WAITS_MAX};

/// One wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Slots of the policy tables.
    pub group: u32,
    pub topic: u32,
    pub queue_id: i32,
    pub offset: i64,
    pub deadline_ms: i64,
    /// Of no group: the broker itself examines the queue, and no client waits.
    pub is_own: bool,
}

/// A queue: slot of its topic, queue id.
type Queue = (u32, i32);

/// All waits.
#[derive(Debug, Default)]
pub struct Waits {
    by_id: HashMap<u64, Wait>,
    by_queue: HashMap<Queue, Vec<u64>>,
    /// Queues that got records since the last `answer_arrivals`.
    touched: Vec<Queue>,
    /// Those that are over and were not told.
    over: VecDeque<u64>,
    /// How many of `by_id` are the broker's own.
    own: usize,
}

impl Waits {
    /// How many wait, or are over and were not told.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len() + self.over.len()
    }

    /// The same, without the broker's own.
    #[must_use]
    pub fn of_groups(&self) -> usize {
        self.len() - self.own
    }

    /// Adds a wait; false when there are too many. One for an offset below `end` is over at once.
    pub fn add(&mut self, id: u64, wait: Wait, end: i64) -> bool {
        if self.len() >= OFFSET_WAITS_MAX {
            return false;
        }
        if wait.offset < end {
            self.over.push_back(id);
        } else if self.by_id.insert(id, wait).is_none() {
            self.by_queue.entry((wait.topic, wait.queue_id)).or_default().push(id);
            self.own += usize::from(wait.is_own);
        }
        true
    }

    /// Forgets a wait.
    pub fn cancel(&mut self, id: u64) {
        self.over.retain(|other| *other != id);
        self.remove(id);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Notes that a queue got a record.
    #[inline]
    pub fn touch(&mut self, topic: u32, queue_id: i32) {
        let queue = (topic, queue_id);
        if !self.by_id.is_empty()
            && self.touched.last() != Some(&queue)
            && self.by_queue.contains_key(&queue)
        {
            self.touched.push(queue);
        }
    }

    /// Whether `answer_arrivals` has something to do.
    #[must_use]
    pub fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Whether `take` has something.
    #[must_use]
    pub fn has_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// Ends the waits whose offsets are there by now; `end_of` gives the end of a queue.
    pub fn answer_arrivals(&mut self, mut end_of: impl FnMut(Queue) -> i64) {
        for queue in std::mem::take(&mut self.touched) {
            let Some(ids) = self.by_queue.get(&queue) else {
                continue;
            };
            let end = end_of(queue);
            let is_there = |id: &u64| self.by_id[id].offset < end;
            let over: Vec<u64> = ids.iter().copied().filter(is_there).collect();
            self.end(over);
        }
    }

    /// Ends some waits.
    pub fn end_where(&mut self, mut is_over: impl FnMut(&Wait) -> bool) {
        let over = self.by_id.iter().filter(|(_, wait)| is_over(wait));
        let mut over: Vec<u64> = over.map(|(id, _)| *id).collect();
        over.sort_unstable();
        self.end(over);
    }

    /// Some of the waits that are over, in the order of their ends.
    pub fn take(&mut self) -> Vec<u64> {
        let count = self.over.len().min(ARRIVED_AT_ONCE_MAX);
        self.over.drain(..count).collect()
    }

    /// What is waited for.
    pub fn all(&self) -> impl Iterator<Item = &Wait> {
        self.by_id.values()
    }

    fn end(&mut self, ids: Vec<u64>) {
        for id in ids {
            self.remove(id);
            self.over.push_back(id);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(wait) = self.by_id.remove(&id) else {
            return;
        };
        self.own -= usize::from(wait.is_own);
        let queue = (wait.topic, wait.queue_id);
        if let Some(ids) = self.by_queue.get_mut(&queue) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_queue.remove(&queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(queue_id: i32, offset: i64, deadline_ms: i64) -> Wait {
        Wait { group: 0, topic: 0, queue_id, offset, deadline_ms, is_own: false }
    }

    #[test]
    fn the_brokers_own_waits_are_no_pulls() {
        let mut waits = Waits::default();
        let own = Wait { is_own: true, ..wait(0, 5, 10) };
        assert!(waits.add(1, own, 0) && waits.add(2, wait(0, 5, 20), 0) && waits.add(3, own, 0));
        assert_eq!((waits.len(), waits.of_groups()), (3, 1));
        waits.cancel(1);
        waits.end_where(|wait| wait.deadline_ms <= 10);
        assert_eq!((waits.take(), waits.of_groups()), (vec![3], 1));
    }

    #[test]
    fn a_wait_is_over_when_its_queue_has_the_offset() {
        let mut waits = Waits::default();
        assert!(waits.add(1, wait(0, 5, 10), 5) && waits.add(2, wait(0, 6, 10), 5));
        assert!(waits.add(3, wait(1, 0, 10), 0));
        waits.touch(0, 0);
        waits.touch(0, 7);
        waits.answer_arrivals(|queue| if queue == (0, 0) { 6 } else { unreachable!() });
        assert_eq!((waits.take(), waits.len()), (vec![1], 2));
        waits.end_where(|wait| wait.deadline_ms <= 10);
        assert_eq!((waits.take(), waits.len()), (vec![2, 3], 0));
    }

    #[test]
    fn a_wait_for_what_is_there_is_over_at_once_and_can_be_cancelled() {
        let mut waits = Waits::default();
        assert!(waits.add(1, wait(0, 5, 10), 6) && waits.add(2, wait(0, 5, 10), 6));
        waits.cancel(1);
        assert_eq!(waits.take(), [2]);
    }

    #[test]
    fn waits_are_bounded_and_told_a_few_at_a_time() {
        let mut waits = Waits::default();
        for id in 0..OFFSET_WAITS_MAX as u64 {
            assert!(waits.add(id, wait(0, 0, 10), 0));
        }
        assert!(!waits.add(u64::MAX, wait(0, 0, 10), 0));
        waits.end_where(|_| true);
        assert_eq!(waits.take().len(), ARRIVED_AT_ONCE_MAX);
        assert!(waits.has_over() && waits.add(u64::MAX, wait(0, 0, 10), 0));
    }
}
