//! The server's end of one connection: bytes in, events out, bytes out.

use std::collections::{BTreeMap, VecDeque};

use super::frames::{push, push_goaway, push_reset, push_settings, push_window_update};
use super::hpack::{Decoder, Fault, Headers};
use crate::protocol::http2::{
    ACK, COMPRESSION_ERROR, CONNECTION_WINDOW, CONTINUATION, CONTINUATIONS_MAX, DATA,
    DEFAULT_WINDOW, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX, FRAME_SIZE_ERROR, HEAD_BYTES, HEADERS, IDLE_FRAMES_MAX, INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, NO_ERROR, PADDED, PING, PREFACE,
    PRIORITIZED, PROTOCOL_ERROR, PUSH_PROMISE, REFUSED_STREAM, RESET_WORK, RESETS_MAX, RST_STREAM,
    SETTINGS, SETTINGS_MAX, SLICE_WORK, STREAM_CLOSED, STREAM_WINDOW, WATCHED_MAX, WINDOW_MAX,
    WINDOW_UPDATE,
};

/// An empty buffer above this is given back.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What our pings hold.
const PING_BYTES: &[u8] = b"kerolox!";

/// Most bytes of a frame that we send, whatever the peer takes.
const OUR_FRAME_BYTES_MAX: u32 = 4 * FRAME_BYTES_MAX as u32;

/// The peer broke the protocol or a limit: the connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Http2Error {
    pub code: u32,
    pub text: String,
}

fn fault<T>(code: u32, text: impl Into<String>) -> Result<T, Http2Error> {
    Err(Http2Error { code, text: text.into() })
}

/// What came means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the Python interface
pub enum Event {
    /// A stream began.
    Opened { stream_id: u32, headers: Headers, is_ended: bool },
    /// Bytes of a stream came, or none.
    Received { stream_id: u32, data: Vec<u8>, is_ended: bool },
    /// The peer ended a stream.
    WasReset { stream_id: u32 },
}

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct Limits {
    pub streams_max: u32,
    pub header_bytes_max: u32,
    pub slice_frames: u32,
}

#[derive(Debug)]
struct Stream {
    send_window: i64,
    /// What the peer may still send.
    granted: i64,
    /// By the peer.
    is_ended: bool,
    /// By us, as soon as what waits is sent.
    is_finished: bool,
    is_watched: bool,
    /// Data, and how much of each is sent.
    waiting: VecDeque<(Vec<u8>, usize)>,
    waiting_bytes: usize,
    /// A made block; sent behind what waits.
    trailers: Option<Vec<u8>>,
}

/// A block of headers that is not whole.
#[derive(Debug)]
struct Block {
    stream_id: u32,
    flags: u8,
    bytes: Vec<u8>,
    continuations: usize,
}

/// One connection.
#[derive(Debug)]
pub struct ServerSide {
    limits: Limits,
    decoder: Decoder,
    buffer: Vec<u8>,
    at: usize,
    is_greeted: bool,
    has_settings: bool,
    /// Of this call: see `SLICE_WORK`.
    work: usize,
    /// A stream that began, and whose first frame is here or begins.
    held: Option<Event>,
    streams: BTreeMap<u32, Stream>,
    last_id: u32,
    block: Option<Block>,
    window: i64,
    peer_stream_window: i64,
    peer_frame_bytes: u32,
    granted: i64,
    idle_frames: usize,
    resets: usize,
    refused: u64,
    waiting_bytes: usize,
    is_leaving: bool,
    pings: u64,
    /// Of what is to be sent, since the start.
    taken_bytes: u64,
    /// Streams, and how much was to be sent with the end of the answer of each.
    watched: VecDeque<(u32, Sent)>,
    /// How many of those ended since something was taken.
    answered: usize,
    out: Vec<u8>,
}

/// How much of a watched answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It waits.
    No,
    /// It is in what is taken next.
    Soon,
    /// All; so many bytes were taken with it.
    With(u64),
}

impl ServerSide {
    /// The first output is our settings.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let mut out = Vec::new();
        let settings = [
            (MAX_CONCURRENT_STREAMS, limits.streams_max),
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW as u32),
            (MAX_HEADER_LIST_SIZE, limits.header_bytes_max),
        ];
        push_settings(&mut out, &settings);
        push_window_update(&mut out, 0, (CONNECTION_WINDOW - DEFAULT_WINDOW) as u32);
        Self {
            limits,
            decoder: Decoder::new(limits.header_bytes_max as usize),
            buffer: Vec::new(),
            at: 0,
            is_greeted: false,
            has_settings: false,
            work: 0,
            held: None,
            streams: BTreeMap::new(),
            last_id: 0,
            block: None,
            window: DEFAULT_WINDOW,
            peer_stream_window: DEFAULT_WINDOW,
            peer_frame_bytes: FRAME_BYTES_MAX as u32,
            granted: CONNECTION_WINDOW,
            idle_frames: 0,
            resets: 0,
            refused: 0,
            waiting_bytes: 0,
            is_leaving: false,
            pings: 0,
            taken_bytes: 0,
            watched: VecDeque::new(),
            answered: 0,
            out,
        }
    }

    /// Open streams.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Streams that were refused since the start.
    #[must_use]
    pub const fn refused_streams(&self) -> u64 {
        self.refused
    }

    /// Our own pings that the peer did not answer yet.
    #[must_use]
    pub const fn unanswered_pings(&self) -> u64 {
        self.pings
    }

    /// Frames that are not whole, and answers that the peer grants no window for.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        let block = self.block.as_ref().map_or(0, |block| block.bytes.len());
        self.buffer.len() - self.at + self.waiting_bytes + block
    }

    /// What is to be sent, now or when the peer grants windows.
    #[must_use]
    pub const fn unread_bytes(&self) -> usize {
        self.out.len() + self.waiting_bytes
    }

    /// Of a stream's answer, what the peer grants no window for.
    #[must_use]
    pub fn waiting_bytes(&self, stream_id: u32) -> usize {
        self.streams.get(&stream_id).map_or(0, |stream| stream.waiting_bytes)
    }

    /// Hands on what is to be sent.
    pub fn take_output<R>(&mut self, take: impl FnOnce(&[u8]) -> R) -> R {
        let taken = take(&self.out);
        self.taken_bytes += self.out.len() as u64;
        if std::mem::take(&mut self.answered) > 0 {
            for (_, sent) in self.watched.iter_mut().filter(|(_, sent)| *sent == Sent::Soon) {
                *sent = Sent::With(self.taken_bytes);
            }
        }
        self.out.clear();
        if self.out.capacity() > KEPT_BYTES_MAX {
            self.out = Vec::new();
        }
        taken
    }

    /// What was taken since the start.
    #[must_use]
    pub const fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Notes whether the peer reads the answer of an open stream.
    pub fn watch(&mut self, stream_id: u32) {
        let Some(stream) = self.streams.get_mut(&stream_id).filter(|each| !each.is_watched) else {
            return;
        };
        stream.is_watched = true;
        if self.watched.len() >= WATCHED_MAX {
            self.watched.pop_front();
        }
        self.watched.push_back((stream_id, Sent::No));
    }

    /// Watched streams whose answer the peer does not have whole, with so many bytes.
    #[must_use]
    pub fn unread(&self, arrived_bytes: u64) -> Vec<u32> {
        let is_unread = |sent: Sent| !matches!(sent, Sent::With(end) if end <= arrived_bytes);
        self.watched.iter().filter(|(_, sent)| is_unread(*sent)).map(|(id, _)| *id).collect()
    }

    // -- the peer's bytes
    /// What came means; true: there are more whole frames, call again with nothing.
    ///
    /// # Errors
    /// The connection ends, after what is to be sent.
    pub fn receive(&mut self, data: &[u8], events: &mut Vec<Event>) -> Result<bool, Http2Error> {
        self.buffer.drain(..self.at);
        self.at = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(data);
        if !self.is_greeted && !self.take_preface()? {
            return Ok(false);
        }
        events.extend(self.held.take());
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.take_frames(&buffer, events);
        self.buffer = buffer;
        if self.at < self.buffer.len() {
            // Whoever takes a call at once wants it whole, and what is missing is on its way.
            self.held = events.pop_if(|last| matches!(last, Event::Opened { is_ended: false, .. }));
        }
        result
    }

    fn take_preface(&mut self) -> Result<bool, Http2Error> {
        let seen = self.buffer.len().min(PREFACE.len());
        if self.buffer[..seen] != PREFACE[..seen] {
            return fault(PROTOCOL_ERROR, "it does not begin as HTTP/2 does");
        }
        self.is_greeted = seen == PREFACE.len();
        self.at = if self.is_greeted { seen } else { 0 };
        Ok(self.is_greeted)
    }

    fn take_frames(&mut self, buffer: &[u8], events: &mut Vec<Event>) -> Result<bool, Http2Error> {
        self.work = 0;
        for _ in 0..self.limits.slice_frames {
            let rest = &buffer[self.at..];
            let Some((head, rest)) = rest.split_first_chunk::<HEAD_BYTES>() else {
                return Ok(false);
            };
            let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if size > FRAME_BYTES_MAX {
                return fault(
                    FRAME_SIZE_ERROR,
                    format!("a frame of {size} bytes; at most {FRAME_BYTES_MAX} are taken"),
                );
            }
            let Some(payload) = rest.get(..size) else {
                return Ok(false);
            };
            let stream_id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.at += HEAD_BYTES + size;
            self.take_frame(head[3], head[4], stream_id & WINDOW_MAX as u32, payload, events)?;
            if self.work >= SLICE_WORK {
                break;
            }
        }
        Ok(true)
    }

    fn take_frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream_id: u32,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        if !self.has_settings && (kind != SETTINGS || flags & ACK != 0) {
            return fault(PROTOCOL_ERROR, "its first frame is not SETTINGS");
        }
        if self.block.is_some() && kind != CONTINUATION {
            return fault(PROTOCOL_ERROR, "a header block is cut by another frame");
        }
        match kind {
            DATA => self.on_data(flags, stream_id, payload, events),
            HEADERS => self.on_headers(flags, stream_id, payload, events),
            RST_STREAM => self.on_reset(stream_id, payload, events),
            SETTINGS => self.on_settings(flags, stream_id, payload),
            PUSH_PROMISE => fault(PROTOCOL_ERROR, "a client pushes nothing"),
            PING => self.on_ping(flags, stream_id, payload),
            WINDOW_UPDATE => self.on_window(stream_id, payload),
            CONTINUATION => self.on_continuation(flags, stream_id, payload, events),
            // Of PRIORITY and GOAWAY nothing follows; other kinds are not known.
            _ => self.count_idle(),
        }
    }

    // -- frames of streams
    fn on_headers(
        &mut self,
        flags: u8,
        stream_id: u32,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        if stream_id.is_multiple_of(2) {
            return fault(PROTOCOL_ERROR, format!("headers of stream {stream_id}"));
        }
        let mut block = unpadded(payload, flags)?;
        if flags & PRIORITIZED != 0 {
            let Some(behind) = block.get(5..) else {
                return fault(FRAME_SIZE_ERROR, "headers without their priority");
            };
            block = behind;
        }
        if flags & END_HEADERS != 0 {
            return self.end_block(stream_id, flags, block, events);
        }
        let bytes = block.to_vec();
        self.block = Some(Block { stream_id, flags, bytes, continuations: 0 });
        Ok(())
    }

    fn on_continuation(
        &mut self,
        flags: u8,
        stream_id: u32,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        let Some(mut block) = self.block.take_if(|block| block.stream_id == stream_id) else {
            return fault(PROTOCOL_ERROR, "a continuation of no header block");
        };
        block.bytes.extend_from_slice(payload);
        let most = self.limits.header_bytes_max;
        if block.bytes.len() > most as usize || block.continuations >= CONTINUATIONS_MAX {
            self.block = Some(block);
            return fault(
                ENHANCE_YOUR_CALM,
                format!(
                    "a header block of more than {most} bytes or {CONTINUATIONS_MAX} continuations"
                ),
            );
        }
        block.continuations += 1;
        if flags & END_HEADERS != 0 {
            return self.end_block(stream_id, block.flags, &block.bytes, events);
        }
        self.block = Some(block);
        Ok(())
    }

    fn end_block(
        &mut self,
        stream_id: u32,
        flags: u8,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        let headers = match self.decoder.decode(block) {
            Ok(headers) => headers,
            Err(Fault::Oversized) => {
                let most = self.limits.header_bytes_max;
                return fault(ENHANCE_YOUR_CALM, format!("headers of more than {most} bytes"));
            }
            Err(Fault::Malformed) => return fault(COMPRESSION_ERROR, "headers that can't be read"),
        };
        self.work += headers.size();
        let is_ended = flags & END_STREAM != 0;
        if stream_id <= self.last_id {
            return self.on_trailers(stream_id, is_ended, events);
        }
        self.idle_frames = 0;
        self.last_id = stream_id;
        if self.is_leaving || self.streams.len() >= self.limits.streams_max as usize {
            self.refused += 1;
            self.count_reset()?;
            push_reset(&mut self.out, stream_id, REFUSED_STREAM);
            return Ok(());
        }
        let stream = Stream {
            send_window: self.peer_stream_window,
            granted: STREAM_WINDOW,
            is_ended,
            is_finished: false,
            is_watched: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            trailers: None,
        };
        self.streams.insert(stream_id, stream);
        events.push(Event::Opened { stream_id, headers, is_ended });
        Ok(())
    }

    fn on_trailers(
        &mut self,
        stream_id: u32,
        is_ended: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return self.count_idle(); // We ended it, and the peer did not know.
        };
        if stream.is_ended || !is_ended {
            return fault(PROTOCOL_ERROR, format!("headers again on stream {stream_id}"));
        }
        stream.is_ended = true;
        self.idle_frames = 0;
        events.push(Event::Received { stream_id, data: Vec::new(), is_ended: true });
        Ok(())
    }

    fn on_data(
        &mut self,
        flags: u8,
        stream_id: u32,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        let size = payload.len() as i64;
        self.granted -= size;
        if self.granted < CONNECTION_WINDOW / 2 {
            push_window_update(&mut self.out, 0, (CONNECTION_WINDOW - self.granted) as u32);
            self.granted = CONNECTION_WINDOW;
        }
        let data = unpadded(payload, flags)?;
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            if stream_id == 0 || stream_id > self.last_id {
                return fault(PROTOCOL_ERROR, format!("data of stream {stream_id}"));
            }
            return self.count_idle();
        };
        if stream.is_ended {
            return fault(STREAM_CLOSED, format!("data behind the end of stream {stream_id}"));
        }
        let is_ended = flags & END_STREAM != 0;
        stream.granted -= size;
        stream.is_ended = is_ended;
        if !is_ended && stream.granted < STREAM_WINDOW / 2 {
            let grant = (STREAM_WINDOW - stream.granted) as u32;
            push_window_update(&mut self.out, stream_id, grant);
            stream.granted = STREAM_WINDOW;
        }
        if data.is_empty() && !is_ended {
            return self.count_idle();
        }
        self.idle_frames = 0;
        events.push(Event::Received { stream_id, data: data.to_vec(), is_ended });
        Ok(())
    }

    fn on_reset(
        &mut self,
        stream_id: u32,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Http2Error> {
        check_size(payload, 4, "RST_STREAM")?;
        if stream_id == 0 || stream_id > self.last_id {
            return fault(PROTOCOL_ERROR, format!("a reset of stream {stream_id}"));
        }
        self.count_reset()?;
        let at = self.watched.iter().position(|(watched, _)| *watched == stream_id);
        let is_watched = at.and_then(|at| self.watched.remove(at)).is_some();
        let is_refused = payload != NO_ERROR.to_be_bytes();
        if self.forget(stream_id).is_some() || is_watched && is_refused {
            self.work += RESET_WORK;
            events.push(Event::WasReset { stream_id });
        }
        Ok(())
    }

    // -- frames of the connection
    fn on_settings(&mut self, flags: u8, stream_id: u32, payload: &[u8]) -> Result<(), Http2Error> {
        self.count_idle()?;
        if stream_id != 0 {
            return fault(PROTOCOL_ERROR, "settings of a stream");
        }
        if flags & ACK != 0 {
            return Ok(());
        }
        let (settings, []) = payload.as_chunks::<6>() else {
            return fault(FRAME_SIZE_ERROR, format!("settings of {} bytes", payload.len()));
        };
        if settings.len() > SETTINGS_MAX {
            let count = settings.len();
            return fault(
                ENHANCE_YOUR_CALM,
                format!("{count} settings in a frame; at most {SETTINGS_MAX} are taken"),
            );
        }
        self.has_settings = true;
        for setting in settings {
            let [name_high, name_low, value @ ..] = *setting;
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([name_high, name_low]) {
                INITIAL_WINDOW_SIZE => self.set_stream_window(value)?,
                MAX_FRAME_SIZE => {
                    if !(FRAME_BYTES_MAX as u32..1 << 24).contains(&value) {
                        return fault(PROTOCOL_ERROR, format!("frames of {value} bytes"));
                    }
                    self.peer_frame_bytes = value.min(OUR_FRAME_BYTES_MAX);
                }
                _ => {}
            }
        }
        push(&mut self.out, SETTINGS, ACK, 0, &[]);
        self.flush_all();
        Ok(())
    }

    fn set_stream_window(&mut self, value: u32) -> Result<(), Http2Error> {
        let value = i64::from(value);
        if value > WINDOW_MAX {
            return fault(FLOW_CONTROL_ERROR, format!("a window of {value} bytes"));
        }
        let change = value - self.peer_stream_window;
        self.peer_stream_window = value;
        self.work += self.streams.len();
        for stream in self.streams.values_mut() {
            stream.send_window += change;
            if stream.send_window > WINDOW_MAX {
                return fault(FLOW_CONTROL_ERROR, "a window grew too large");
            }
        }
        Ok(())
    }

    fn on_ping(&mut self, flags: u8, stream_id: u32, payload: &[u8]) -> Result<(), Http2Error> {
        check_size(payload, 8, "PING")?;
        if stream_id != 0 {
            return fault(PROTOCOL_ERROR, "a ping of a stream");
        }
        self.count_idle()?;
        if flags & ACK != 0 {
            self.pings = 0;
        } else {
            push(&mut self.out, PING, ACK, 0, payload);
        }
        Ok(())
    }

    fn on_window(&mut self, stream_id: u32, payload: &[u8]) -> Result<(), Http2Error> {
        check_size(payload, 4, "WINDOW_UPDATE")?;
        let size = u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]);
        let size = i64::from(size) & WINDOW_MAX;
        if size == 0 {
            return fault(PROTOCOL_ERROR, "a window update of nothing");
        }
        let has_use;
        if stream_id == 0 {
            self.window += size;
            if self.window > WINDOW_MAX {
                return fault(FLOW_CONTROL_ERROR, "the window grew too large");
            }
            let waiting_bytes = self.waiting_bytes;
            self.flush_all();
            has_use = self.waiting_bytes < waiting_bytes;
        } else {
            let Some(stream) = self.streams.get_mut(&stream_id) else {
                if stream_id > self.last_id {
                    return fault(PROTOCOL_ERROR, format!("a window of stream {stream_id}"));
                }
                return self.count_idle();
            };
            stream.send_window += size;
            if stream.send_window > WINDOW_MAX {
                return fault(FLOW_CONTROL_ERROR, "a stream's window grew too large");
            }
            has_use = !stream.waiting.is_empty();
            self.flush(stream_id);
        }
        if has_use { Ok(()) } else { self.count_idle() }
    }

    fn count_idle(&mut self) -> Result<(), Http2Error> {
        self.idle_frames += 1;
        if self.idle_frames > IDLE_FRAMES_MAX {
            return fault(
                ENHANCE_YOUR_CALM,
                format!("more than {IDLE_FRAMES_MAX} frames in a row that bring nothing"),
            );
        }
        Ok(())
    }

    fn count_reset(&mut self) -> Result<(), Http2Error> {
        self.resets += 1;
        if self.resets > RESETS_MAX {
            return fault(
                ENHANCE_YOUR_CALM,
                format!("{RESETS_MAX} streams more were reset than answered"),
            );
        }
        Ok(())
    }

    // -- our own
    fn unfinished(&mut self, stream_id: u32) -> Option<&mut Stream> {
        self.streams.get_mut(&stream_id).filter(|each| !each.is_finished)
    }

    /// Sends a made block. A stream that is gone is passed over; `end`: nothing follows.
    pub fn send_headers(&mut self, stream_id: u32, block: &[u8], end: bool) {
        let Some(stream) = self.unfinished(stream_id) else {
            return;
        };
        stream.is_finished = end;
        let flags = if end { END_HEADERS | END_STREAM } else { END_HEADERS };
        push(&mut self.out, HEADERS, flags, stream_id, block);
        if end {
            self.sent_all(stream_id);
        }
    }

    /// Sends what the peer's windows allow; the rest waits for them.
    pub fn send_data(&mut self, stream_id: u32, data: &[u8]) {
        let Some(stream) = self.unfinished(stream_id) else {
            return;
        };
        if data.is_empty() {
            return;
        }
        stream.waiting.push_back((data.to_vec(), 0));
        stream.waiting_bytes += data.len();
        self.waiting_bytes += data.len();
        self.flush(stream_id);
    }

    /// Ends a stream by a made block, behind all that waits.
    pub fn send_trailers(&mut self, stream_id: u32, block: &[u8]) {
        let Some(stream) = self.unfinished(stream_id) else {
            return;
        };
        stream.is_finished = true;
        stream.trailers = Some(block.to_vec());
        self.flush(stream_id);
    }

    /// Ends a stream at once.
    pub fn reset(&mut self, stream_id: u32, code: u32) {
        if self.forget(stream_id).is_some() {
            push_reset(&mut self.out, stream_id, code);
        }
    }

    /// Asks whether the peer is there.
    pub fn ping(&mut self) {
        self.pings += 1;
        push(&mut self.out, PING, 0, 0, PING_BYTES);
    }

    /// Takes no more streams; those that there are go on. Idempotent, but for an error.
    pub fn leave(&mut self, code: u32, text: &str) {
        if !self.is_leaving || code != NO_ERROR {
            self.is_leaving = true;
            push_goaway(&mut self.out, self.last_id, code, text);
        }
    }

    fn flush_all(&mut self) {
        if self.waiting_bytes == 0 {
            return;
        }
        self.work += self.streams.len();
        let waits = |(stream_id, stream): (&u32, &Stream)| {
            (!stream.waiting.is_empty()).then_some(*stream_id)
        };
        let waiting: Vec<u32> = self.streams.iter().filter_map(waits).collect();
        for stream_id in waiting {
            self.flush(stream_id);
        }
    }

    fn flush(&mut self, stream_id: u32) {
        let Self { streams, out, window, waiting_bytes, peer_frame_bytes, .. } = self;
        let Some(stream) = streams.get_mut(&stream_id) else {
            return;
        };
        while let Some((data, sent)) = stream.waiting.front_mut() {
            let most = stream.send_window.min(*window).min(i64::from(*peer_frame_bytes));
            if most <= 0 {
                return;
            }
            let end = data.len().min(*sent + most as usize);
            let size = end - *sent;
            push(out, DATA, 0, stream_id, &data[*sent..end]);
            *sent = end;
            if end == data.len() {
                stream.waiting.pop_front();
            }
            stream.send_window -= size as i64;
            *window -= size as i64;
            stream.waiting_bytes -= size;
            *waiting_bytes -= size;
        }
        if let Some(trailers) = stream.trailers.take() {
            push(out, HEADERS, END_HEADERS | END_STREAM, stream_id, &trailers);
            self.sent_all(stream_id);
        }
    }

    /// We have ended it. A peer that has not is told to send no more (RFC 9113, 8.1).
    fn sent_all(&mut self, stream_id: u32) {
        self.resets = self.resets.saturating_sub(1);
        let Some(stream) = self.forget(stream_id) else {
            return;
        };
        if stream.is_watched {
            let mut watched = self.watched.iter_mut().rev();
            if let Some((_, sent)) = watched.find(|(watched, _)| *watched == stream_id) {
                *sent = Sent::Soon;
                self.answered += 1;
            }
        }
        if !stream.is_ended {
            push_reset(&mut self.out, stream_id, NO_ERROR);
        }
    }

    fn forget(&mut self, stream_id: u32) -> Option<Stream> {
        let stream = self.streams.remove(&stream_id)?;
        self.waiting_bytes -= stream.waiting_bytes;
        Some(stream)
    }
}

fn unpadded(payload: &[u8], flags: u8) -> Result<&[u8], Http2Error> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let found = payload.split_first().and_then(|(&padding, rest)| {
        rest.get(..rest.len().checked_sub(usize::from(padding))?) //
    });
    found.map_or_else(|| fault(PROTOCOL_ERROR, "a frame of padding alone"), Ok)
}

fn check_size(payload: &[u8], size: usize, name: &str) -> Result<(), Http2Error> {
    if payload.len() == size {
        return Ok(());
    }
    fault(FRAME_SIZE_ERROR, format!("{name} of {} bytes; it has {size}", payload.len()))
}
