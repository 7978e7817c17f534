//! Calls of gRPC that are answered here: `SendMessage` of one plain message.
//!
//! A call is for the fast path when all of it came in one chunk. All else, with its events as they
//! came, is for Python.

use super::connection::{Calls, Connection, Fed, end_feed};
use super::path::FastPath;
use super::send::{self, Sender};
use super::state::State;
use crate::http2::{Event, Headers, Http2Error, ServerSide};
use crate::protocol::grpc::{OK_TRAILERS, RESPONSE_HEADERS};
use crate::state::Core;
use crate::wire::answer::call_answers;
use crate::wire::grpc::{is_send, only_message, push_sent, read_send};

/// A call that may be for the fast path.
#[derive(Debug)]
struct Candidate {
    stream_id: u32,
    headers: Headers,
    data: Vec<u8>,
    /// All of it is here.
    is_ended: bool,
}

impl Candidate {
    /// Gives its events back.
    fn decline(self, events: &mut Vec<Event>) {
        let Self { stream_id, headers, data, is_ended } = self;
        events.push(Event::Opened { stream_id, headers, is_ended: false });
        if is_ended || !data.is_empty() {
            events.push(Event::Received { stream_id, data, is_ended });
        }
    }
}

impl Connection {
    /// Takes a chunk of HTTP/2. The events that Python is to see are added to `events`.
    ///
    /// # Errors
    /// The connection ends, after what is to be sent.
    pub fn feed_calls(
        &mut self,
        fast: &FastPath,
        http2: &mut ServerSide,
        data: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<Fed, Http2Error> {
        let mut came = Vec::new();
        let more = http2.receive(data, &mut came)?;
        let candidates = self.candidates(came, events);
        if candidates.is_empty() {
            return Ok(Fed { more, ..Fed::default() });
        }
        let mut answers = std::mem::take(&mut self.calls.answers);
        let fed = self.take_calls(fast, candidates, events, &mut answers);
        self.answer_calls(http2, &answers);
        answers.clear();
        self.calls.answers = answers;
        Ok(Fed { more, ..fed })
    }

    /// Sends answers that became ready later.
    pub fn answer_calls(&mut self, http2: &mut ServerSide, answers: &[u8]) {
        let Calls { waiting, answer, .. } = &mut self.calls;
        for (stream_id, code, offset) in call_answers(answers) {
            let Some(message_id) = waiting.remove(&stream_id) else {
                continue;
            };
            answer.clear();
            push_sent(answer, code, &message_id, offset);
            http2.send_headers(stream_id, RESPONSE_HEADERS, false);
            http2.send_data(stream_id, answer);
            http2.send_trailers(stream_id, OK_TRAILERS);
        }
    }

    /// Calls that may be for the fast path; what else came is added to `events`.
    fn candidates(&mut self, came: Vec<Event>, events: &mut Vec<Event>) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        for event in came {
            match event {
                Event::Opened { stream_id, headers, is_ended: false }
                    if is_send(headers.iter()) =>
                {
                    found.push(Candidate { stream_id, headers, data: Vec::new(), is_ended: false });
                }
                Event::Received { stream_id, data, is_ended } => {
                    let mut all = found.iter_mut().rev();
                    if let Some(call) = all.find(|call| call.stream_id == stream_id) {
                        call.is_ended = is_ended;
                        if call.data.is_empty() {
                            call.data = data;
                        } else {
                            call.data.extend_from_slice(&data);
                        }
                    } else {
                        events.push(Event::Received { stream_id, data, is_ended });
                    }
                }
                Event::WasReset { stream_id } => {
                    // Nobody has seen a call of this chunk, nor one whose answer waits.
                    let before = found.len();
                    found.retain(|call| call.stream_id != stream_id);
                    let is_known = self.calls.waiting.remove(&stream_id).is_none();
                    if found.len() == before && is_known {
                        events.push(Event::WasReset { stream_id });
                    }
                }
                event @ Event::Opened { .. } => events.push(event),
            }
        }
        found
    }

    fn take_calls(
        &mut self,
        fast: &FastPath,
        candidates: Vec<Candidate>,
        events: &mut Vec<Event>,
        answers: &mut Vec<u8>,
    ) -> Fed {
        let mut state = fast.state.lock();
        let mut core = fast.store.lock();
        state.tables.refresh(&core);
        let is_ready = !self.closed && state.tables.identity.is_some() && core.is_open();
        for call in candidates {
            let is_taken = is_ready
                && call.is_ended
                && self.take_send(&mut state, &mut core, &call, answers).is_some();
            if !is_taken {
                call.decline(events);
            }
        }
        let (ready, waits) = end_feed(fast, state, core, None);
        Fed { ready, waits, ..Fed::default() }
    }

    fn take_send(
        &mut self,
        state: &mut State,
        core: &mut Core,
        call: &Candidate,
        answers: &mut Vec<u8>,
    ) -> Option<()> {
        let sent = read_send(only_message(&call.data)?)?;
        let Self { id, born_host, access, memory, calls, .. } = self;
        let last_topic = &mut memory.last_topic;
        let mut sender = Sender { connection: *id, born_host, last_topic, access };
        sent.property_text(&mut calls.text);
        let what = (&sent, &calls.text[..], calls.turn);
        send::send_by_call(state, core, &mut sender, call.stream_id, what, answers)?;
        calls.turn = calls.turn.wrapping_add(1);
        calls.waiting.insert(call.stream_id, sent.message_id.into());
        Some(())
    }
}
