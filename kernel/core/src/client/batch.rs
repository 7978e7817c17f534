//! Messages of one topic that wait for each other, and then travel together.

use crate::client::ids::Id;
use crate::client::outgoing::{Outgoing, UserProperties, give_back};
use crate::client::send::push_item;

/// A message of a batch.
#[derive(Debug)]
struct Item<T> {
    waiter: T,
    id: Id,
    /// Where it ends in the body.
    end: usize,
}

/// What became of a message that was to join a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It waits for others.
    Waiting,
    /// It waits, and no further message is worth waiting for.
    Full,
    /// There is no capacity for it.
    NoCapacity,
    /// It takes the slow path.
    Declined,
}

/// A batch; a `T` waits for the result of each message.
#[derive(Debug)]
pub struct Batch<T> {
    /// The WAIT of all.
    pub is_waiting: bool,
    /// The callers chose the queue.
    pub is_given: bool,
    bytes_max: usize,
    count_max: usize,
    is_refused: bool,
    body: Vec<u8>,
    text: Vec<u8>,
    items: Vec<Item<T>>,
}

impl<T> Batch<T> {
    /// Nobody waits.
    #[must_use]
    pub fn new(is_waiting: bool, is_given: bool, bytes_max: usize, count_max: usize) -> Self {
        let (body, text, items) = (Vec::new(), Vec::new(), Vec::new());
        Self { is_waiting, is_given, bytes_max, count_max, is_refused: false, body, text, items }
    }

    /// Takes in a message; a single one may be larger than the bounds. `waiter` is dropped unless
    /// the message waits from now on.
    pub fn join(
        &mut self,
        message: &Outgoing<'_, impl UserProperties>,
        id: &Id,
        waiter: T,
    ) -> Joined {
        let text = &mut self.text;
        let is_text = message.set_properties(text, id).is_some();
        let (Ok(flag), true) = (i32::try_from(message.flag), is_text) else {
            give_back(text);
            return Joined::Declined;
        };
        let (start, count) = (self.body.len(), self.items.len());
        push_item(&mut self.body, flag, message.body, text);
        let end = self.body.len();
        if count > 0 && (end > self.bytes_max || count >= self.count_max) {
            self.body.truncate(start);
            self.is_refused = true;
            return Joined::NoCapacity;
        }
        self.items.push(Item { waiter, id: *id, end });
        let is_full = end >= self.bytes_max || count + 1 >= self.count_max;
        if is_full { Joined::Full } else { Joined::Waiting }
    }

    /// The next message is about to join.
    pub fn begin(&mut self) {
        self.is_refused = false;
    }

    /// The last message found no capacity.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Leaves out the messages whose waiters are `gone`, one for each: those waiters.
    pub fn leave_out(&mut self, gone: &[bool]) -> Vec<T> {
        if !gone.contains(&true) {
            return Vec::new();
        }
        let (body, items) = (std::mem::take(&mut self.body), std::mem::take(&mut self.items));
        let (mut left, mut start) = (Vec::new(), 0);
        for (item, is_gone) in items.into_iter().zip(gone) {
            let message = &body[start..item.end];
            start = item.end;
            if *is_gone {
                left.push(item.waiter);
            } else {
                self.body.extend_from_slice(message);
                self.items.push(Item { end: self.body.len(), ..item });
            }
        }
        left
    }

    /// The messages as they lie in the request.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// How many messages it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// It has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Who waits for each message, and its id.
    pub fn messages(&self) -> impl Iterator<Item = (&T, &Id)> {
        self.items.iter().map(|item| (&item.waiter, &item.id))
    }
}

#[cfg(test)]
mod tests {
    use super::{Batch, Joined};
    use crate::client::outgoing::Outgoing;
    use crate::client::outgoing::tests::{id, message};

    #[test]
    fn a_batch_is_bounded_by_bytes_and_count_but_takes_one_message() {
        let mut one = Batch::new(true, false, 1, 10);
        assert_eq!(one.join(&message(b"body"), &id(), 1), Joined::Full);
        let size = one.body().len();
        let mut batch = Batch::new(true, false, 2 * size + 1, 10);
        assert_eq!(batch.join(&message(b"body"), &id(), 1), Joined::Waiting);
        assert_eq!(batch.join(&message(b"body"), &id(), 2), Joined::Waiting);
        assert_eq!(batch.join(&message(b"body"), &id(), 3), Joined::NoCapacity);
        assert_eq!((batch.is_refused(), batch.len(), batch.body().len()), (true, 2, 2 * size));
        batch.begin();
        assert!(!batch.is_refused());
        let mut few = Batch::new(true, false, 1_000, 2);
        few.join(&message(b"a"), &id(), 1);
        assert_eq!(few.join(&message(b"b"), &id(), 2), Joined::Full);
        assert_eq!(few.join(&message(b"c"), &id(), 3), Joined::NoCapacity);
    }

    #[test]
    fn a_message_that_no_item_can_hold_is_declined() {
        let mut batch = Batch::new(true, false, 1_000, 10);
        for odd in [
            Outgoing { flag: 1 << 31, ..message(b"body") },
            Outgoing { keys: "a\u{1}b", ..message(b"body") },
        ] {
            assert_eq!(batch.join(&odd, &id(), 1), Joined::Declined);
        }
        assert!(batch.is_empty() && batch.body().is_empty() && !batch.is_refused());
    }

    #[test]
    fn messages_whose_waiters_are_gone_are_left_out() {
        let mut batch = Batch::new(true, false, 1_000, 10);
        for (waiter, body) in [(1, b"first"), (2, b"other"), (3, b"third")] {
            batch.join(&message(body), &id(), waiter);
        }
        let mut fewer = Batch::new(true, false, 1_000, 10);
        fewer.join(&message(b"first"), &id(), 1);
        fewer.join(&message(b"third"), &id(), 3);
        assert!(batch.leave_out(&[false; 3]).is_empty());
        assert_eq!(batch.leave_out(&[false, true, false]), [2]);
        assert_eq!(batch.body(), fewer.body());
        assert_eq!(batch.messages().map(|(waiter, _)| *waiter).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(batch.leave_out(&[true, false]), [1]);
        assert_eq!(batch.len(), 1);
    }
}
