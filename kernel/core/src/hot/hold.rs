//! Held pulls (long polling): who waits for which queue, and until when.
//!
//! A held pull lies in one slab and in three places that name it: the list of its queue, which an
//! append walks without a look at any other queue; the list of its connection, for closing; and a
//! heap of deadlines, whose entries are dropped lazily. An append whose tag matches moves the pull
//! from its queue's list to the `due` line; it is read and answered after the records of the chunk
//! are all in.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::header::Encoding;

/// Pulls that may be held in all; above, a pull is answered at once.
pub const HELD_PULLS_MAX: usize = 100_000;

/// End of a list.
const NONE: u32 = u32::MAX;

/// Deadlines may outnumber the held pulls by this many before the heap is rebuilt.
const STALE_DEADLINES_MAX: usize = 1_024;

/// A doubly linked list through the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl List {
    /// Whether nothing is in it.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.head == NONE
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

/// What a pull asked for, as far as its answer needs it.
#[derive(Clone, Debug)]
pub struct HeldPull {
    pub connection: u64,
    pub encoding: Encoding,
    pub opaque: i32,
    /// Slots of the policy tables.
    pub group: u32,
    pub topic: u32,
    pub queue_id: i32,
    pub offset: i64,
    pub max_count: i32,
    /// None: all tags.
    pub tag_codes: Option<Box<[i32]>>,
    pub deadline_ms: i64,
}

impl HeldPull {
    fn wants(&self, tags_code: i64) -> bool {
        // Java compares the low 32 bits of an entry's tags code.
        self.tag_codes.as_deref().is_none_or(|codes| codes.contains(&(tags_code as i32)))
    }
}

#[derive(Debug)]
struct Node {
    pull: HeldPull,
    links: [Link; 2],
    /// False: in the `due` line, in no queue's list.
    waiting: bool,
}

#[derive(Debug)]
struct Cell {
    node: Option<Node>,
    /// Counts the uses of the cell, so that a stale deadline is known as such.
    generation: u32,
}

/// All held pulls. The lists of queues and connections are kept by their owners.
#[derive(Debug, Default)]
pub struct Holds {
    cells: Vec<Cell>,
    free: Vec<u32>,
    deadlines: BinaryHeap<Reverse<(i64, u32, u32)>>,
    due: VecDeque<(u32, u32)>,
    count: usize,
}

impl Holds {
    /// How many pulls are held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether another pull may be held.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.count < HELD_PULLS_MAX
    }

    /// Whether some pull waits for its answer.
    #[must_use]
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Holds a pull in the lists of its queue and its connection. The caller checked `has_room`.
    pub fn hold(&mut self, pull: HeldPull, queue: &mut List, connection: &mut List) -> u32 {
        let deadline = pull.deadline_ms;
        let apart = Link { previous: NONE, next: NONE };
        let node = Node { pull, links: [apart; 2], waiting: true };
        let index = if let Some(index) = self.free.pop() {
            self.cells[index as usize].node = Some(node);
            index
        } else {
            self.cells.push(Cell { node: Some(node), generation: 0 });
            self.cells.len() as u32 - 1
        };
        self.count += 1;
        self.append(index, queue, Side::Queue);
        self.append(index, connection, Side::Connection);
        let generation = self.cells[index as usize].generation;
        self.deadlines.push(Reverse((deadline, index, generation)));
        self.drop_stale_deadlines();
        index
    }

    /// Moves the pulls of a queue that want a tags code to the `due` line.
    pub fn wake(&mut self, queue: &mut List, tags_code: i64) {
        let mut index = queue.head;
        while index != NONE {
            let node = self.node(index);
            let next = node.links[Side::Queue as usize].next;
            if node.pull.wants(tags_code) {
                self.make_due(index, queue);
            }
            index = next;
        }
    }

    /// Moves one waiting pull to the `due` line.
    pub fn make_due(&mut self, index: u32, queue: &mut List) {
        self.unlink(index, queue, Side::Queue);
        self.node_mut(index).waiting = false;
        let generation = self.cells[index as usize].generation;
        self.due.push_back((index, generation));
    }

    /// The next pull of the `due` line; it stays held until `release` or `wait_again`.
    pub fn next_due(&mut self) -> Option<u32> {
        while let Some((index, generation)) = self.due.pop_front() {
            if self.is_current(index, generation) {
                return Some(index);
            }
        }
        None
    }

    /// Puts a pull of the `due` line back into its queue's list, at the end.
    pub fn wait_again(&mut self, index: u32, queue: &mut List) {
        self.node_mut(index).waiting = true;
        self.append(index, queue, Side::Queue);
    }

    /// The next pull whose deadline is at or before `now_ms`; its deadline counts no more.
    pub fn next_expired(&mut self, now_ms: i64) -> Option<u32> {
        while let Some(Reverse((deadline, index, generation))) = self.deadlines.peek().copied() {
            if deadline > now_ms {
                return None;
            }
            self.deadlines.pop();
            if self.is_current(index, generation) {
                return Some(index);
            }
        }
        None
    }

    /// What a held pull asked for.
    #[must_use]
    pub fn pull(&self, index: u32) -> &HeldPull {
        &self.node(index).pull
    }

    /// Takes a pull out of everything. `queue` is its queue's list.
    pub fn release(&mut self, index: u32, queue: &mut List, connection: &mut List) -> HeldPull {
        if self.node(index).waiting {
            self.unlink(index, queue, Side::Queue);
        }
        self.unlink(index, connection, Side::Connection);
        let cell = &mut self.cells[index as usize];
        cell.generation = cell.generation.wrapping_add(1);
        let node = cell.node.take().expect("a held pull has a node");
        self.free.push(index);
        self.count -= 1;
        node.pull
    }

    fn is_current(&self, index: u32, generation: u32) -> bool {
        let cell = &self.cells[index as usize];
        cell.generation == generation && cell.node.is_some()
    }

    fn node(&self, index: u32) -> &Node {
        self.cells[index as usize].node.as_ref().expect("a list names only held pulls")
    }

    fn node_mut(&mut self, index: u32) -> &mut Node {
        self.cells[index as usize].node.as_mut().expect("a list names only held pulls")
    }

    fn append(&mut self, index: u32, list: &mut List, side: Side) {
        self.node_mut(index).links[side as usize] = Link { previous: list.tail, next: NONE };
        if list.tail == NONE {
            list.head = index;
        } else {
            self.node_mut(list.tail).links[side as usize].next = index;
        }
        list.tail = index;
    }

    fn unlink(&mut self, index: u32, list: &mut List, side: Side) {
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
            entries.retain(|Reverse((_, index, generation))| self.is_current(*index, *generation));
            self.deadlines = entries.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(connection: u64, codes: Option<&[i32]>, deadline_ms: i64) -> HeldPull {
        HeldPull {
            connection,
            encoding: Encoding::Json,
            opaque: 0,
            group: 0,
            topic: 0,
            queue_id: 0,
            offset: 0,
            max_count: 32,
            tag_codes: codes.map(Into::into),
            deadline_ms,
        }
    }

    #[test]
    fn only_matching_pulls_of_the_queue_become_due_in_order() {
        let mut holds = Holds::default();
        let (mut one, mut other, mut connection) = Default::default();
        let a = holds.hold(pull(1, None, 10), &mut one, &mut connection);
        let b = holds.hold(pull(1, Some(&[7]), 10), &mut one, &mut connection);
        let c = holds.hold(pull(1, Some(&[-1]), 10), &mut one, &mut connection);
        holds.hold(pull(1, None, 10), &mut other, &mut connection);
        holds.wake(&mut one, -1);
        assert_eq!(
            (holds.next_due(), holds.next_due(), holds.next_due()),
            (Some(a), Some(c), None)
        );
        holds.wait_again(a, &mut one);
        holds.release(c, &mut one, &mut connection);
        holds.wake(&mut one, 7);
        assert_eq!(
            (holds.next_due(), holds.next_due(), holds.next_due()),
            (Some(b), Some(a), None)
        );
        assert!(one.is_empty());
        assert_eq!(holds.len(), 3);
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
    fn a_released_pull_is_not_due_any_more() {
        let mut holds = Holds::default();
        let (mut queue, mut connection) = Default::default();
        let index = holds.hold(pull(1, None, 30), &mut queue, &mut connection);
        holds.wake(&mut queue, 0);
        assert!(holds.has_due());
        holds.release(index, &mut queue, &mut connection);
        let again = holds.hold(pull(2, None, 30), &mut queue, &mut connection);
        assert_eq!(again, index);
        assert_eq!(holds.next_due(), None);
        assert_eq!(connection.first(), Some(again));
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
