//! One connection's fast-path sends: what is buffered in this iteration, and what waits for an
//! answer.

use hashbrown::HashMap;

use crate::client::clock::Reading;
use crate::client::open_send::OpenSend;
use crate::client::sent::{Answers, Sent};
use crate::client::stream::FrameStream;
use crate::wire::frame::FrameError;

/// The buffer of an iteration is given back when it was larger than this.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// A send without an answer.
#[derive(Debug)]
struct Open<T> {
    send: OpenSend<T>,
    /// Counted up, so that those that end together do so in order.
    number: u64,
}

/// What stands before a further request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Nothing.
    Free,
    /// Nothing, and it is the first of this iteration.
    First,
    /// What is buffered: it has to be written, then there may be capacity.
    Flush,
    /// Those that are open, or the peer.
    None,
}

/// What has to be done when a send was buffered, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Posted {
    /// A flush is to be scheduled for this iteration's end.
    pub schedules_flush: bool,
    /// The timer is to fire at this time.
    pub arms_at: Option<f64>,
    /// What is buffered is to be written at once: others will hardly join it.
    pub flushes: bool,
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
    /// The loop's time, as it was read last.
    pub time: Reading<f64>,
    is_prompt: bool,
    buffer_bytes_max: usize,
    buffered: Vec<u8>,
    /// The property text of one call; kept so that no call allocates it.
    text: Vec<u8>,
    frames: usize,
    entered: u64,
    /// How many sends the last answers were to.
    settled: usize,
    open: HashMap<i32, Open<T>>,
    stream: FrameStream,
    answers: Answers,
}

impl<T> Channel<T> {
    /// Nothing is buffered or open. `is_prompt`: sends that others will hardly join are flushed at
    /// once.
    #[must_use]
    pub fn new(calls_max: usize, buffer_bytes_max: usize, is_prompt: bool) -> Self {
        Self {
            is_closed: false,
            is_blocked: false,
            calls_max,
            armed_at: f64::INFINITY,
            time: Reading::default(),
            is_prompt,
            buffer_bytes_max,
            buffered: Vec::new(),
            text: Vec::new(),
            frames: 0,
            entered: 0,
            settled: 0,
            open: HashMap::new(),
            stream: FrameStream::new(),
            answers: Answers::default(),
        }
    }

    /// What stands before a further request, given the calls of other kinds that are open.
    #[must_use]
    pub fn capacity(&self, calls: usize) -> Capacity {
        if self.is_closed || self.is_blocked || self.open.len() + calls >= self.calls_max {
            Capacity::None
        } else if self.buffered.len() >= self.buffer_bytes_max {
            Capacity::Flush
        } else if self.buffered.is_empty() {
            Capacity::First
        } else {
            Capacity::Free
        }
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

    /// Buffers a frame that nothing waits for: whether a flush is to be scheduled. None: `push`,
    /// which is as that of [`Channel::post`], declined.
    pub fn write(
        &mut self,
        push: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> Option<()>,
    ) -> Option<bool> {
        let is_first = self.buffered.is_empty();
        push(&mut self.buffered, &mut self.text)?;
        self.frames += 1;
        Some(is_first)
    }

    /// Buffers the frame of a send, which waits for its answer from now on; None: `push` declined.
    ///
    /// `push` is given the buffer, and one for a property text. `make` makes the send.
    pub fn post(
        &mut self,
        opaque: i32,
        push: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> Option<()>,
        make: impl FnOnce() -> OpenSend<T>,
    ) -> Option<Posted> {
        let is_first = self.buffered.is_empty();
        let flushes = self.is_prompt && is_first && self.open.is_empty() && self.settled <= 1;
        push(&mut self.buffered, &mut self.text)?;
        self.frames += 1;
        self.entered += 1;
        let send = make();
        let deadline = send.terms.deadline;
        let arms_at = (deadline < self.armed_at).then_some(deadline);
        self.open.insert(opaque, Open { send, number: self.entered });
        Some(Posted { schedules_flush: is_first && !flushes, arms_at, flushes })
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
    /// that says anything else; an answer that does not fit its send is one of those.
    ///
    /// # Errors
    ///
    /// The peer broke the framing, now or before.
    pub fn feed(
        &mut self,
        data: &[u8],
        mut settle: impl FnMut(OpenSend<T>, &Sent<'_>),
        mut other: impl FnMut(&[u8]),
    ) -> Result<(), FrameError> {
        let Self { stream, open, answers, settled, time, .. } = self;
        let mut count = 0;
        time.forget(); // what is asked from now on is asked later than this came
        let fed = stream.feed(data, |frame| {
            let found = if open.is_empty() { None } else { answers.read(frame) };
            let Some(found) = found else { return other(frame.bytes) };
            if open.get(&found.opaque).is_none_or(|waiting| !waiting.send.fits(&found)) {
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
    pub fn remove(&mut self, opaque: i32) -> Option<OpenSend<T>> {
        self.open.remove(&opaque).map(|waiting| waiting.send)
    }

    /// Takes out the sends whose time is over, in order, with the earliest deadline of the others;
    /// infinite: there are none.
    pub fn expire(&mut self, now: f64) -> (Vec<OpenSend<T>>, f64) {
        let overdue = self.open.extract_if(|_, waiting| waiting.send.terms.deadline <= now);
        let overdue = in_order(overdue);
        let deadlines = self.sends().map(|send| send.terms.deadline);
        (overdue, deadlines.fold(f64::INFINITY, f64::min))
    }

    /// Takes out all sends, in order.
    pub fn take_open(&mut self) -> Vec<OpenSend<T>> {
        in_order(self.open.drain())
    }

    /// The open sends.
    pub fn sends(&self) -> impl Iterator<Item = &OpenSend<T>> {
        self.open.values().map(|waiting| &waiting.send)
    }
}

fn in_order<T>(taken: impl Iterator<Item = (i32, Open<T>)>) -> Vec<OpenSend<T>> {
    let mut open: Vec<_> = taken.map(|(_, waiting)| waiting).collect();
    open.sort_unstable_by_key(|waiting| waiting.number);
    open.into_iter().map(|waiting| waiting.send).collect()
}

#[cfg(test)]
mod tests {
    use super::{Capacity, Channel, Posted};
    use crate::client::open_send::OpenCount;
    use crate::client::open_send::tests::open;

    fn answer(opaque: i32, ids: &str) -> Vec<u8> {
        let header = format!(
            "{{\"code\":0,\"flag\":1,\"opaque\":{opaque},\"extFields\":{{\"queueId\":\"1\",\
             \"queueOffset\":\"2\",\"msgId\":\"{ids}\"}}}}"
        );
        let mut frame = (header.len() as u32 + 4).to_be_bytes().to_vec();
        frame.extend_from_slice(&(header.len() as u32).to_be_bytes());
        frame.extend_from_slice(header.as_bytes());
        frame
    }

    /// Appends three bytes.
    #[allow(clippy::unnecessary_wraps)] // as what encodes a frame
    fn push(out: &mut Vec<u8>, _: &mut Vec<u8>) -> Option<()> {
        out.extend_from_slice(b"abc");
        Some(())
    }

    /// Posts a send that ends at a time.
    fn post(channel: &mut Channel<i32>, opaque: i32, deadline: f64) -> Posted {
        let make = || open(opaque, deadline, &OpenCount::default());
        channel.post(opaque, push, make).unwrap()
    }

    /// Those who wait for what is stored, and how many frames say anything else.
    fn fed(channel: &mut Channel<i32>, data: &[u8]) -> (Vec<i32>, usize) {
        let (mut settled, mut others) = (Vec::new(), 0);
        channel.feed(data, |it, _| settled.push(it.waiter), |_| others += 1).unwrap();
        (settled, others)
    }

    #[test]
    fn answers_end_open_sends_once() {
        let mut channel = Channel::new(10, 100, false);
        post(&mut channel, 7, 1.0);
        assert_eq!(fed(&mut channel, &answer(7, "A")), (vec![7], 0));
        assert_eq!(fed(&mut channel, &answer(7, "A")), (vec![], 1));
    }

    #[test]
    fn an_answer_to_a_batch_names_each_of_its_messages() {
        let (mut channel, count) = (Channel::new(10, 100, false), OpenCount::default());
        let make = || {
            let counted = count.counted(2);
            let one = open(7, 1.0, &OpenCount::default());
            crate::client::open_send::OpenSend { batch_count: Some(2), counted, ..one }
        };
        channel.post(7, push, make).unwrap();
        assert_eq!(fed(&mut channel, &answer(7, "A")), (vec![], 1));
        assert_eq!((count.get(), channel.len()), (2, 1));
        assert_eq!(fed(&mut channel, &answer(7, "A,B")), (vec![7], 0));
        assert_eq!((count.get(), channel.len()), (0, 0));
    }

    #[test]
    fn capacity_is_bounded_by_count_and_an_iteration_by_bytes() {
        let mut channel = Channel::<i32>::new(2, 6, false);
        assert_eq!(channel.capacity(1), Capacity::First);
        assert_eq!(channel.capacity(2), Capacity::None);
        assert_eq!(channel.write(push), Some(true));
        assert_eq!(channel.capacity(1), Capacity::Free);
        assert_eq!(channel.write(push), Some(false));
        assert_eq!(channel.capacity(1), Capacity::Flush);
        assert_eq!((channel.buffered_bytes(), channel.buffered_frames()), (6, 2));
        assert_eq!(channel.take(<[u8]>::to_vec), b"abcabc");
        post(&mut channel, 1, 0.0);
        assert_eq!(channel.capacity(1), Capacity::None);
        assert_eq!(channel.capacity(0), Capacity::Free);
        channel.is_blocked = true;
        assert_eq!(channel.capacity(0), Capacity::None);
        (channel.is_blocked, channel.is_closed) = (false, true);
        assert_eq!(channel.capacity(0), Capacity::None);
    }

    #[test]
    fn what_is_declined_is_neither_buffered_nor_open() {
        let mut channel = Channel::<i32>::new(2, 3, true);
        assert_eq!(channel.write(|_, _| None), None);
        assert_eq!(channel.post(1, |_, _| None, || unreachable!()), None);
        assert_eq!((channel.buffered_bytes(), channel.buffered_frames()), (0, 0));
        assert!(channel.is_empty() && !channel.has(1));
    }

    #[test]
    fn the_first_of_an_iteration_schedules_its_flush_and_early_deadlines_arm() {
        let mut channel = Channel::new(10, 100, false);
        let posted = |schedules_flush, arms_at| Posted { schedules_flush, arms_at, flushes: false };
        assert_eq!(post(&mut channel, 1, 3.0), posted(true, Some(3.0)));
        channel.armed_at = 3.0;
        assert_eq!(post(&mut channel, 2, 3.0), posted(false, None));
        assert_eq!(post(&mut channel, 3, 2.0), posted(false, Some(2.0)));
    }

    #[test]
    fn a_send_that_others_will_hardly_join_is_flushed_at_once() {
        let mut channel = Channel::new(10, 100, true);
        let flushes = |channel: &mut Channel<i32>, opaque| {
            let posted = post(channel, opaque, 1.0);
            assert_ne!(posted.schedules_flush, posted.flushes, "one of both");
            channel.take(|_| ());
            posted.flushes
        };
        assert!(flushes(&mut channel, 1));
        assert!(!flushes(&mut channel, 2), "another one is open");
        fed(&mut channel, &[answer(1, "A"), answer(2, "A")].concat());
        assert!(!flushes(&mut channel, 3), "the callers of two others go on, too");
        fed(&mut channel, &answer(3, "A"));
        assert!(flushes(&mut channel, 4));
    }

    #[test]
    fn sends_end_at_their_deadlines_in_order() {
        let mut channel = Channel::new(10, 10, false);
        for (opaque, deadline) in [(1, 3.0), (2, 1.0), (3, 2.0)] {
            post(&mut channel, opaque, deadline);
        }
        let (ended, earliest) = channel.expire(2.0);
        assert_eq!(ended.into_iter().map(|it| it.waiter).collect::<Vec<_>>(), [2, 3]);
        assert!((earliest - 3.0).abs() < 1e-9);
        assert_eq!(channel.remove(1).map(|it| it.waiter), Some(1));
        assert!(channel.expire(9.0).1.is_infinite());
    }
}
