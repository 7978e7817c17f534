//! A send that waits for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::client::sent::Sent;

/// How many messages of one producer are on their way.
#[derive(Clone, Debug, Default)]
pub struct OpenCount(Arc<AtomicUsize>);

impl OpenCount {
    /// So many.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts some messages as long as what it returns lives.
    #[must_use]
    pub fn counted(&self, messages: usize) -> Counted {
        self.0.fetch_add(messages, Ordering::Relaxed);
        Counted { count: self.clone(), messages }
    }
}

/// Messages that count as being on their way.
#[derive(Debug)]
pub struct Counted {
    count: OpenCount,
    messages: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.0.fetch_sub(self.messages, Ordering::Relaxed);
    }
}

/// What is known of a send, or of a batch, that waits for its answer.
#[derive(Debug)]
pub struct OpenSend<T> {
    /// Who waits, and what for.
    pub waiter: T,
    /// How many messages it has, if it is a batch.
    pub batch_count: Option<usize>,
    /// Its messages, as long as they are on their way.
    pub counted: Counted,
    /// Where it goes.
    pub queue_id: i64,
    /// How long it may take, and since when.
    pub terms: Terms,
}

/// On which terms a send is made.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The caller chose the queue.
    pub is_given: bool,
    /// When it was asked for, by the loop's time in seconds.
    pub asked_at: f64,
    /// When its time is over.
    pub deadline: f64,
    /// Its time limit.
    pub timeout_ms: i64,
}

impl Terms {
    /// Those of a send that is asked for now.
    #[must_use]
    pub fn new(is_given: bool, asked_at: f64, timeout_ms: i64) -> Self {
        let deadline = asked_at + timeout_ms as f64 / 1000.0;
        Self { is_given, asked_at, deadline, timeout_ms }
    }
}

impl<T> OpenSend<T> {
    /// An answer can be its own: that to a batch names as many messages as it has.
    pub(crate) fn fits(&self, answer: &Sent<'_>) -> bool {
        self.batch_count.is_none_or(|count| answer.message_id.split(',').count() == count)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{OpenCount, OpenSend, Terms};

    pub fn open<T>(waiter: T, deadline: f64, count: &OpenCount) -> OpenSend<T> {
        let terms = Terms { is_given: false, asked_at: 0.0, deadline, timeout_ms: 1_000 };
        OpenSend { waiter, batch_count: None, counted: count.counted(1), queue_id: 1, terms }
    }

    #[test]
    fn messages_count_until_nobody_has_them_any_more() {
        let count = OpenCount::default();
        let (one, three) = (count.counted(1), count.counted(3));
        assert_eq!(count.get(), 4);
        drop(three);
        assert_eq!(count.get(), 1);
        drop(one);
        assert_eq!(count.get(), 0);
    }

    #[test]
    fn a_send_ends_its_time_limit_after_it_was_asked_for() {
        let terms = Terms::new(true, 10.0, 500);
        assert!((terms.deadline - 10.5).abs() < 1e-9);
    }
}
