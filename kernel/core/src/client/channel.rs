//! One connection's fast-path sends: what is buffered in this iteration, and what waits for an
//! answer.

use hashbrown::HashMap;

use crate::client::sent::{Answers, Sent};
use crate::client::stream::FrameStream;
use crate::wire::frame::FrameError;

/// The buffer of an iteration is given back when it was larger than this.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// A send without an answer.
#[derive(Debug)]
pub struct Open<T> {
    /// When its time is over.
    pub deadline: f64,
    /// What is known of it.
    pub send: T,
    /// Counted up, so that those that end together do so in order.
    number: u64,
}

/// What a connection buffers and waits for.
#[derive(Debug)]
pub struct Channel<T> {
    /// Nothing is written any more.
    pub is_closed: bool,
    /// The peer does not take what is written, for now.
    pub is_blocked: bool,
    /// Requests that may wait for a response.
    pub calls_max: usize,
    /// When the timer of the deadlines fires.
    pub armed_at: f64,
    buffer_bytes_max: usize,
    buffered: Vec<u8>,
    frames: usize,
    entered: u64,
    /// How many sends the last answers were to.
    settled: usize,
    open: HashMap<i32, Open<T>>,
    stream: FrameStream,
    answers: Answers,
}

impl<T> Channel<T> {
    /// Nothing is buffered or open.
    #[must_use]
    pub fn new(calls_max: usize, buffer_bytes_max: usize) -> Self {
        Self {
            is_closed: false,
            is_blocked: false,
            calls_max,
            armed_at: f64::INFINITY,
            buffer_bytes_max,
            buffered: Vec::new(),
            frames: 0,
            entered: 0,
            settled: 0,
            open: HashMap::new(),
            stream: FrameStream::new(),
            answers: Answers::default(),
        }
    }

    /// A request may be buffered, given the calls of other kinds that are open.
    #[must_use]
    pub fn has_capacity(&self, calls: usize) -> bool {
        !self.is_closed && !self.is_blocked && self.open.len() + calls < self.calls_max
    }

    /// What is buffered should be written before anything else is buffered.
    #[must_use]
    pub fn is_buffer_full(&self) -> bool {
        self.buffered.len() >= self.buffer_bytes_max
    }

    /// How many sends are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// No send is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A send that is buffered now will hardly be joined by others.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.buffered.is_empty() && self.open.is_empty() && self.settled <= 1
    }

    /// A send with this opaque is open.
    #[must_use]
    pub fn has(&self, opaque: i32) -> bool {
        self.open.contains_key(&opaque)
    }

    /// Bytes that are buffered.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered.len()
    }

    /// Frames that are buffered.
    #[must_use]
    pub fn buffered_frames(&self) -> usize {
        self.frames
    }

    /// Buffers what `push` appends, unless it declines: whether it is the first of this iteration.
    pub fn buffer_frame(&mut self, push: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Option<bool> {
        let is_first = self.buffered.is_empty();
        push(&mut self.buffered)?;
        self.frames += 1;
        Some(is_first)
    }

    /// A send waits for its answer from now on: whether its deadline comes before the timer's.
    pub fn enter(&mut self, opaque: i32, deadline: f64, send: T) -> bool {
        self.entered += 1;
        self.open.insert(opaque, Open { deadline, send, number: self.entered });
        deadline < self.armed_at
    }

    /// Gives what was buffered to `take`; the next iteration begins.
    pub fn take<R>(&mut self, take: impl FnOnce(&[u8]) -> R) -> R {
        let taken = take(&self.buffered);
        self.frames = 0;
        if self.buffered.capacity() > KEPT_BYTES_MAX {
            self.buffered = Vec::new();
        } else {
            self.buffered.clear();
        }
        taken
    }

    /// Takes bytes of the peer. `settle` gets each open send that is stored, `other` each frame
    /// that says anything else; an answer that does not `fit` its send is one of those.
    ///
    /// # Errors
    ///
    /// The peer broke the framing, now or before.
    pub fn feed(
        &mut self,
        data: &[u8],
        fits: impl Fn(&T, &Sent<'_>) -> bool,
        mut settle: impl FnMut(T, &Sent<'_>),
        mut other: impl FnMut(&[u8]),
    ) -> Result<(), FrameError> {
        let Self { stream, open, answers, settled, .. } = self;
        let mut count = 0;
        let fed = stream.feed(data, |frame| {
            let found = if open.is_empty() { None } else { answers.read(frame) };
            let Some(found) = found else { return other(frame.bytes) };
            if open.get(&found.opaque).is_none_or(|waiting| !fits(&waiting.send, &found)) {
                return other(frame.bytes);
            }
            if let Some(waiting) = open.remove(&found.opaque) {
                settle(waiting.send, &found);
                count += 1;
            }
        });
        if count > 0 {
            *settled = count;
        }
        fed
    }

    /// Takes out one send.
    pub fn remove(&mut self, opaque: i32) -> Option<Open<T>> {
        self.open.remove(&opaque)
    }

    /// Takes out the sends whose time is over, in order.
    pub fn expire(&mut self, now: f64) -> Vec<Open<T>> {
        in_order(self.open.extract_if(|_, waiting| waiting.deadline <= now))
    }

    /// The earliest deadline; infinite when nothing is open.
    #[must_use]
    pub fn earliest(&self) -> f64 {
        self.open.values().map(|waiting| waiting.deadline).fold(f64::INFINITY, f64::min)
    }

    /// Takes out all sends, in order.
    pub fn take_open(&mut self) -> Vec<Open<T>> {
        in_order(self.open.drain())
    }

    /// The open sends.
    pub fn sends(&self) -> impl Iterator<Item = &T> {
        self.open.values().map(|waiting| &waiting.send)
    }
}

fn in_order<T>(taken: impl Iterator<Item = (i32, Open<T>)>) -> Vec<Open<T>> {
    let mut open: Vec<_> = taken.map(|(_, waiting)| waiting).collect();
    open.sort_unstable_by_key(|waiting| waiting.number);
    open
}

#[cfg(test)]
mod tests {
    use super::Channel;

    fn answer(opaque: i32) -> Vec<u8> {
        let header = format!(
            "{{\"code\":0,\"flag\":1,\"opaque\":{opaque},\"extFields\":{{\"queueId\":\"1\",\
             \"queueOffset\":\"2\",\"msgId\":\"A\"}}}}"
        );
        let mut frame = (header.len() as u32 + 4).to_be_bytes().to_vec();
        frame.extend_from_slice(&(header.len() as u32).to_be_bytes());
        frame.extend_from_slice(header.as_bytes());
        frame
    }

    #[test]
    fn answers_end_open_sends_once() {
        let mut channel = Channel::new(10, 100);
        channel.enter(7, 1.0, "seven");
        let (mut settled, mut others) = (Vec::new(), 0);
        for _ in 0..2 {
            channel
                .feed(&answer(7), |_, _| true, |it, _| settled.push(it), |_| others += 1)
                .unwrap();
        }
        assert_eq!((settled, others), (vec!["seven"], 1));
    }

    #[test]
    fn room_is_bounded_by_count_and_a_turn_by_bytes() {
        let mut channel = Channel::new(2, 3);
        assert!(channel.has_capacity(1));
        assert!(!channel.has_capacity(2));
        let push = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"abc");
            Some(())
        };
        assert_eq!(channel.buffer_frame(push), Some(true));
        assert!(channel.is_buffer_full());
        assert_eq!(channel.buffer_frame(push), Some(false));
        assert_eq!(channel.take(<[u8]>::to_vec), b"abcabc");
        channel.enter(1, 0.0, ());
        assert!(channel.has_capacity(0));
        assert!(!channel.has_capacity(1));
    }

    #[test]
    fn what_is_declined_is_not_gathered() {
        let mut channel = Channel::<()>::new(2, 3);
        assert_eq!(channel.buffer_frame(|_| None), None);
        assert_eq!((channel.buffered_bytes(), channel.buffered_frames()), (0, 0));
    }

    #[test]
    fn sends_end_at_their_deadlines_in_order() {
        let mut channel = Channel::new(10, 10);
        for (opaque, deadline) in [(1, 3.0), (2, 1.0), (3, 2.0)] {
            channel.enter(opaque, deadline, opaque);
        }
        let ended: Vec<_> = channel.expire(2.0).into_iter().map(|it| it.send).collect();
        assert_eq!(ended, [2, 3]);
        assert!((channel.earliest() - 3.0).abs() < 1e-9);
    }
}
