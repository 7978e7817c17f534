//! Held pulls (long polling): who waits for which queue, and until when.
//!
//! A held pull lies in one slab and in three places that name it: the list of its queue, which a
//! wake-up walks without a check of any other queue; the list of its connection, for closing; and a
//! heap of deadlines, whose entries are dropped lazily. The lists belong to the queues and
//! connections; all of them are in the order of holding.

use crate::protocol::HELD_PULLS_MAX;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::wire::header::Encoding;

/// The deadline of a pull that was ended before its time.
const ENDED_MS: i64 = 0;

/// End of a list.
const NONE: u32 = u32::MAX;

/// Deadlines may outnumber the held pulls by this many before the heap is rebuilt.
const STALE_DEADLINES_MAX: usize = 1_024;

/// A doubly linked list through the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    /// Whether nothing is in it.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// How many are in it.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.len
    }

    /// The first of it.
    #[must_use]
    pub fn first(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Which of the two lists of a held pull.
#[derive(Clone, Copy)]
enum Side {
    Queue = 0,
    Connection = 1,
}

/// What a pull asks for beside its tags, as far as its answer needs it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub connection: u64,
    pub encoding: Encoding,
    pub opaque: i32,
    /// Slots of the policy tables.
    pub group: u32,
    pub topic: u32,
    pub queue_id: i32,
    pub offset: i64,
    pub max_count: i32,
}

/// A pull that waits.
#[derive(Clone, Debug)]
pub struct HeldPull {
    pub asked: Asked,
    /// None: all tags.
    pub tag_codes: Option<Box<[i32]>>,
    pub deadline_ms: i64,
}

impl HeldPull {
    /// Whether it was ended before its time.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.deadline_ms == ENDED_MS
    }

    /// How many tags codes it holds.
    fn codes(&self) -> usize {
        self.tag_codes.as_deref().map_or(0, <[i32]>::len)
    }

    /// Whether a record with one of these tags codes is for it.
    #[must_use]
    pub fn wants(&self, tags_codes: &[i32]) -> bool {
        let Some(wanted) = self.tag_codes.as_deref() else {
            return true;
        };
        wanted.iter().any(|code| tags_codes.contains(code))
    }
}

#[derive(Debug)]
struct Node {
    pull: HeldPull,
    links: [Link; 2],
    /// Counts the pulls ever held: a deadline with another number is stale.
    sequence: u64,
}

/// All held pulls. The lists of queues and connections are kept by their owners.
#[derive(Debug, Default)]
pub struct Holds {
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
    /// Deadline, sequence, index.
    deadlines: BinaryHeap<Reverse<(i64, u64, u32)>>,
    count: usize,
    codes: usize,
    sequence: u64,
}

impl Holds {
    /// How many pulls are held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// How many tags codes they hold together.
    #[must_use]
    pub const fn codes(&self) -> usize {
        self.codes
    }

    /// Whether another pull may be held.
    #[must_use]
    pub const fn has_capacity(&self) -> bool {
        self.count < HELD_PULLS_MAX
    }

    /// Holds a pull in the lists of its queue and its connection. The caller checked
    /// `has_capacity`.
    pub fn hold(&mut self, pull: HeldPull, queue: &mut List, connection: &mut List) -> u32 {
        let deadline = pull.deadline_ms;
        let apart = Link { previous: NONE, next: NONE };
        self.sequence += 1;
        self.codes += pull.codes();
        let node = Some(Node { pull, links: [apart; 2], sequence: self.sequence });
        let index = if let Some(index) = self.free.pop() {
            self.nodes[index as usize] = node;
            index
        } else {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        self.count += 1;
        self.append(index, queue, Side::Queue);
        self.append(index, connection, Side::Connection);
        self.deadlines.push(Reverse((deadline, self.sequence, index)));
        self.drop_stale_deadlines();
        index
    }

    /// The next pull whose deadline is at or before `now_ms`; its deadline counts no more.
    pub fn next_expired(&mut self, now_ms: i64) -> Option<u32> {
        while let Some(Reverse((deadline, sequence, index))) = self.deadlines.peek().copied() {
            let is_current = self.is_current(index, sequence);
            if is_current && deadline > now_ms {
                return None;
            }
            self.deadlines.pop();
            if is_current {
                return Some(index);
            }
        }
        None
    }

    /// Lets the time of some pulls be over.
    pub fn end_where(&mut self, is_over: impl FnMut(&HeldPull) -> bool) {
        self.expire_where(is_over, ENDED_MS);
    }

    /// Gives some pulls another deadline.
    pub fn expire_where(&mut self, mut is_over: impl FnMut(&HeldPull) -> bool, deadline_ms: i64) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if let Some(node) = node.as_mut().filter(|node| is_over(&node.pull)) {
                node.pull.deadline_ms = deadline_ms;
                self.deadlines.push(Reverse((deadline_ms, node.sequence, index as u32)));
            }
        }
    }

    /// All held pulls.
    #[must_use]
    pub fn all(&self) -> Vec<u32> {
        let held = |(index, node): (usize, &Option<Node>)| node.as_ref().map(|_| index as u32);
        self.nodes.iter().enumerate().filter_map(held).collect()
    }

    /// What all held pulls asked for.
    pub fn pulls(&self) -> impl Iterator<Item = &HeldPull> {
        self.nodes.iter().flatten().map(|node| &node.pull)
    }

    /// What a held pull asked for.
    #[must_use]
    pub fn pull(&self, index: u32) -> &HeldPull {
        &self.node(index).pull
    }

    /// The pull after one in the list of its queue.
    #[must_use]
    pub fn next_of_queue(&self, index: u32) -> Option<u32> {
        let next = self.node(index).links[Side::Queue as usize].next;
        (next != NONE).then_some(next)
    }

    /// Takes a pull out of everything. The lists are those of its queue and its connection.
    pub fn release(&mut self, index: u32, queue: &mut List, connection: &mut List) {
        self.unlink(index, queue, Side::Queue);
        self.unlink(index, connection, Side::Connection);
        self.codes -= self.node(index).pull.codes();
        self.nodes[index as usize] = None;
        self.free.push(index);
        self.count -= 1;
    }

    fn is_current(&self, index: u32, sequence: u64) -> bool {
        self.nodes[index as usize].as_ref().is_some_and(|node| node.sequence == sequence)
    }

    fn node(&self, index: u32) -> &Node {
        self.nodes[index as usize].as_ref().expect("a list names only held pulls")
    }

    fn node_mut(&mut self, index: u32) -> &mut Node {
        self.nodes[index as usize].as_mut().expect("a list names only held pulls")
    }

    fn append(&mut self, index: u32, list: &mut List, side: Side) {
        self.node_mut(index).links[side as usize] = Link { previous: list.tail, next: NONE };
        if list.tail == NONE {
            list.head = index;
        } else {
            self.node_mut(list.tail).links[side as usize].next = index;
        }
        list.tail = index;
        list.len += 1;
    }

    fn unlink(&mut self, index: u32, list: &mut List, side: Side) {
        list.len -= 1;
        let Link { previous, next } = self.node(index).links[side as usize];
        if previous == NONE {
            list.head = next;
        } else {
            self.node_mut(previous).links[side as usize].next = next;
        }
        if next == NONE {
            list.tail = previous;
        } else {
            self.node_mut(next).links[side as usize].previous = previous;
        }
    }

    /// Pulls are mostly answered long before their deadline: rebuild when most entries are stale.
    fn drop_stale_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.count + STALE_DEADLINES_MAX {
            let mut entries = std::mem::take(&mut self.deadlines).into_vec();
            entries.retain(|Reverse((_, sequence, index))| self.is_current(*index, *sequence));
            self.deadlines = entries.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(connection: u64, codes: Option<&[i32]>, deadline_ms: i64) -> HeldPull {
        let (encoding, max_count) = (Encoding::Json, 32);
        let (group, topic, queue_id, offset, opaque) = Default::default();
        HeldPull {
            asked: Asked {
                connection,
                encoding,
                opaque,
                group,
                topic,
                queue_id,
                offset,
                max_count,
            },
            tag_codes: codes.map(Into::into),
            deadline_ms,
        }
    }

    fn of_queue(holds: &Holds, queue: List) -> Vec<u32> {
        std::iter::successors(queue.first(), |index| holds.next_of_queue(*index)).collect()
    }

    #[test]
    fn a_queue_lists_its_pulls_in_the_order_of_holding() {
        let mut holds = Holds::default();
        let (mut one, mut other, mut connection) = Default::default();
        let mut hold = |queue: &mut List| holds.hold(pull(1, None, 10), queue, &mut connection);
        let known = [hold(&mut one), hold(&mut one), hold(&mut one)];
        let apart = hold(&mut other);
        assert_eq!(of_queue(&holds, one), known);
        holds.release(known[1], &mut one, &mut connection);
        assert_eq!(of_queue(&holds, one), [known[0], known[2]]);
        let again = holds.hold(pull(1, None, 10), &mut one, &mut connection);
        assert_eq!(again, known[1], "the cell is used again");
        assert_eq!(of_queue(&holds, one), [known[0], known[2], again]);
        assert_eq!(of_queue(&holds, other), [apart]);
        assert_eq!(holds.len(), 4);
        assert_eq!((one.len(), other.len(), connection.len()), (3, 1, 4));
    }

    #[test]
    fn a_pull_wants_what_its_tags_say() {
        assert!(pull(1, None, 0).wants(&[5]));
        assert!(pull(1, Some(&[7, -1]), 0).wants(&[3, -1]));
        assert!(!pull(1, Some(&[7, -1]), 0).wants(&[3, 1]));
    }

    #[test]
    fn deadlines_come_in_order_and_only_for_held_pulls() {
        let mut holds = Holds::default();
        let (mut queue, mut connection) = Default::default();
        let late = holds.hold(pull(1, None, 30), &mut queue, &mut connection);
        let early = holds.hold(pull(1, None, 10), &mut queue, &mut connection);
        let gone = holds.hold(pull(1, None, 5), &mut queue, &mut connection);
        holds.release(gone, &mut queue, &mut connection);
        assert_eq!(holds.next_expired(9), None);
        assert_eq!(holds.next_expired(10), Some(early));
        holds.release(early, &mut queue, &mut connection);
        assert_eq!(holds.next_expired(29), None);
        assert_eq!(holds.next_expired(100), Some(late));
        assert_eq!(holds.next_expired(100), None);
    }

    #[test]
    fn equal_deadlines_expire_in_the_order_of_holding() {
        let mut holds = Holds::default();
        let (mut queue, mut connection) = Default::default();
        let old = holds.hold(pull(1, None, 10), &mut queue, &mut connection);
        let first = holds.hold(pull(1, None, 10), &mut queue, &mut connection);
        holds.release(old, &mut queue, &mut connection);
        let second = holds.hold(pull(1, None, 10), &mut queue, &mut connection);
        assert!(second < first, "the cell is used again");
        assert_eq!(holds.next_expired(10), Some(first));
        holds.release(first, &mut queue, &mut connection);
        assert_eq!(holds.next_expired(10), Some(second));
    }

    #[test]
    fn stale_deadlines_do_not_pile_up() {
        let mut holds = Holds::default();
        let (mut queue, mut connection) = Default::default();
        for round in 0..50_000 {
            let index = holds.hold(pull(1, None, 1_000 + round), &mut queue, &mut connection);
            holds.release(index, &mut queue, &mut connection);
        }
        assert!(holds.len() == 0 && queue.is_empty() && connection.is_empty());
        assert!(holds.deadlines.len() <= STALE_DEADLINES_MAX + 2);
    }
}
