//! Calls of gRPC that are answered here: `SendMessage` of one plain message, `ReceiveMessage` of what
//! is there in queues that are lent, and `AckMessage` of it.
//!
//! A call is for the fast path when all of it came in one chunk. All else, with its events as they
//! came, is for Python.

use std::sync::Arc;
use std::time::Instant;

use super::connection::{Calls, Connection, Fed, Given, Memory, Waiting, end_feed};
use super::path::FastPath;
use super::pop::{self, Outcome, Popper};
use super::send::{self, Sender};
use super::state::State;
use crate::http2::{Event, Headers, Http2Error, ServerSide};
use crate::protocol::MAY_SUB;
use crate::protocol::grpc::{OK_TRAILERS, RESPONSE_HEADERS};
use crate::protocol::http2::WATCHED_MAX;
use crate::state::Core;
use crate::wire::answer::call_answers;
use crate::wire::grpc::{Asked, only_message, push_sent, read_head, read_send};
use crate::wire::grpc_pops::{
    self, Delivery, Receive, push_acked, push_found, push_received, push_time,
};
use crate::wire::pops::Pop;

/// With more unread bytes of answers than these further ones are for Python, which bounds them.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// An answer's buffer is given back when a call left it larger than this.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What became of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It is answered.
    Found,
    /// There is nothing for the group, for certain.
    Nothing,
    /// It is for Python.
    Declined,
}

/// A call that may be for the fast path.
#[derive(Debug)]
struct Candidate {
    asked: Asked,
    stream_id: u32,
    headers: Headers,
    data: Vec<u8>,
    /// All of it is here.
    is_ended: bool,
    /// When its chunk came.
    began: Instant,
}

impl Candidate {
    /// Gives its events back.
    fn decline(self, events: &mut Vec<Event>) {
        let Self { stream_id, headers, data, is_ended, .. } = self;
        events.push(Event::Opened { stream_id, headers, is_ended: false });
        if is_ended || !data.is_empty() {
            events.push(Event::Received { stream_id, data, is_ended });
        }
    }
}

impl Calls {
    /// The client of a call as leases have it.
    fn owner_of(&mut self, client_id: &str) -> &Arc<str> {
        if *self.owner != *client_id {
            self.owner = client_id.into();
        }
        &self.owner
    }

    fn gave(&mut self, given: Given) {
        if self.given.len() >= WATCHED_MAX {
            self.given.pop_front();
        }
        self.given.push_back(given);
    }

    fn give_back(&mut self) {
        if self.answer.capacity() > KEPT_BYTES_MAX {
            self.answer = Vec::new();
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
        let began = Instant::now();
        let mut came = Vec::new();
        let more = http2.receive(data, &mut came)?;
        let candidates = self.candidates(came, events, began);
        if candidates.is_empty() {
            return Ok(Fed { more, ..Fed::default() });
        }
        let mut answers = std::mem::take(&mut self.calls.answers);
        let fed = self.take_calls(fast, http2, candidates, events, &mut answers);
        self.answer_calls(fast, http2, &answers);
        answers.clear();
        let Calls { received, acked, .. } = &mut self.calls;
        let (received, acked) = (std::mem::take(received), std::mem::take(acked));
        fast.call_times.note_pops(received, acked, began.elapsed());
        self.calls.answers = answers;
        Ok(Fed { more, ..fed })
    }

    /// Sends answers that became ready later.
    pub fn answer_calls(&mut self, fast: &FastPath, http2: &mut ServerSide, answers: &[u8]) {
        if answers.is_empty() {
            return;
        }
        let now = Instant::now();
        let Calls { waiting, answer, .. } = &mut self.calls;
        for (stream_id, code, offset) in call_answers(answers) {
            let Some(Waiting { message_id, began }) = waiting.remove(&stream_id) else {
                continue;
            };
            fast.call_times.note_send(code, now.saturating_duration_since(began));
            answer.clear();
            push_sent(answer, code, &message_id, offset);
            answer_call(http2, stream_id, answer);
        }
    }

    /// What receives of these streams gave out here, which is forgotten.
    pub fn take_given(&mut self, streams: &[u32]) -> Vec<Given> {
        let given = &mut self.calls.given;
        let mut found = Vec::new();
        for stream_id in streams {
            if let Some(at) = given.iter().position(|each| each.stream_id == *stream_id) {
                found.extend(given.remove(at));
            }
        }
        found
    }

    /// Calls that may be for the fast path; what else came is added to `events`.
    fn candidates(
        &mut self,
        came: Vec<Event>,
        events: &mut Vec<Event>,
        began: Instant,
    ) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        for event in came {
            match event {
                Event::Opened { stream_id, headers, is_ended: false } => {
                    if let Some((asked, _)) = read_head(headers.iter()) {
                        let (data, is_ended) = (Vec::new(), false);
                        found.push(Candidate { asked, stream_id, headers, data, is_ended, began });
                    } else {
                        events.push(Event::Opened { stream_id, headers, is_ended: false });
                    }
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
        http2: &mut ServerSide,
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
                && match call.asked {
                    Asked::Send => self.take_send(&mut state, &mut core, &call, answers),
                    Asked::Receive => self.take_receive(&mut state, &mut core, &call, http2),
                    Asked::Ack => self.take_acks(&mut state, &mut core, &call, http2),
                }
                .is_some();
            match call.asked {
                _ if !is_taken => call.decline(events),
                Asked::Send => {}
                Asked::Receive => self.calls.received += 1,
                Asked::Ack => self.calls.acked += 1,
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
        let what = (&sent, &calls.text[..], calls.turn, &call.headers);
        send::send_by_call(state, core, &mut sender, call.stream_id, what, answers)?;
        calls.turn = calls.turn.wrapping_add(1);
        let waiting = Waiting { message_id: sent.message_id.into(), began: call.began };
        calls.waiting.insert(call.stream_id, waiting);
        Some(())
    }

    /// Answers a receive by what is there; where nothing is, it is for Python.
    fn take_receive(
        &mut self,
        state: &mut State,
        core: &mut Core,
        call: &Candidate,
        http2: &mut ServerSide,
    ) -> Option<()> {
        let request = only_message(&call.data)?;
        let (_, client_id) = read_head(call.headers.iter())?;
        let asked = grpc_pops::read_receive(request)?;
        if !self.access.may_call(state.accounts.as_ref(), call.headers.iter(), |account| {
            account.may(asked.topic, MAY_SUB) && account.may_as_group(asked.group, MAY_SUB)
        }) {
            return None;
        }
        let tried = self.receive(state, core, (call.stream_id, client_id), &asked, http2);
        (tried == Tried::Found).then_some(())
    }

    /// Tries to answer a receive that Python has, and let in; it may have waited.
    pub fn try_receive(
        &mut self,
        fast: &FastPath,
        http2: &mut ServerSide,
        call: (u32, &str),
        request: &[u8],
    ) -> Tried {
        let mut state = fast.state.lock();
        let mut core = fast.store.lock();
        state.tables.refresh(&core);
        if self.closed || state.tables.identity.is_none() || !core.is_open() {
            return Tried::Declined;
        }
        match grpc_pops::read_receive(request) {
            Some(asked) => self.receive(&mut state, &mut core, call, &asked, http2),
            None => Tried::Declined,
        }
    }

    fn receive(
        &mut self,
        state: &mut State,
        core: &mut Core,
        (stream_id, client_id): (u32, &str),
        asked: &Receive<'_>,
        http2: &mut ServerSide,
    ) -> Tried {
        if !may_pop(state) || http2.unread_bytes() > UNREAD_BYTES_MAX {
            return Tried::Declined;
        }
        let Self { memory, calls, .. } = self;
        let owner = calls.owner_of(client_id);
        let Memory { last_topic, last_group, .. } = memory;
        let mut popper = Popper { last_topic, last_group, owner };
        let place = pop::place(&state.tables, &mut popper, asked.group, asked.topic);
        let Some(broker) = place.and_then(|place| state.lent.receivers(place, asked.broker)) else {
            return Tried::Declined;
        };
        let pop = Pop {
            group: asked.group,
            topic: asked.topic,
            queue_id: -1,
            count: asked.count,
            invisible_ms: asked.invisible_ms,
            poll_ms: 0,
            born_ms: 0,
        };
        let is_usual = grpc_pops::are_usual;
        let terms = pop::Terms { is_renewed: asked.is_renewed, is_usual, tags: asked.tags };
        let found = match pop::take_pop(state, core, &mut popper, &pop, &terms) {
            Outcome::Found(found) => found,
            Outcome::Nothing => return Tried::Nothing,
            Outcome::Declined => return Tried::Declined,
        };
        let Calls { answer, scratch, .. } = calls;
        answer.clear();
        push_found(answer);
        let mut records = grpc_pops::records(&state.lent.body);
        for run in &found.runs {
            let delivery = Delivery {
                topic: asked.topic,
                broker: broker.as_bytes(),
                start: run.start,
                pop_time: found.pop_time,
                invisible_ms: asked.invisible_ms,
            };
            for record in records.by_ref().take(run.count as usize).flatten() {
                push_received(answer, scratch, &record, &delivery);
            }
        }
        push_time(answer, core.now_ms());
        http2.watch(stream_id);
        answer_call(http2, stream_id, answer);
        calls.gave(Given {
            stream_id,
            group: asked.group.into(),
            topic: asked.topic.into(),
            pop_time: found.pop_time,
            invisible_ms: asked.invisible_ms,
            runs: found.runs,
        });
        calls.give_back();
        Tried::Found
    }

    /// Takes acknowledgements that are all usual.
    fn take_acks(
        &mut self,
        state: &mut State,
        core: &mut Core,
        call: &Candidate,
        http2: &mut ServerSide,
    ) -> Option<()> {
        if !may_pop(state) || http2.unread_bytes() > UNREAD_BYTES_MAX {
            return None;
        }
        let acks = grpc_pops::read_acks(only_message(&call.data)?)?;
        let Self { access, memory, calls, .. } = self;
        if !access.may_call(state.accounts.as_ref(), call.headers.iter(), |account| {
            account.may(acks.topic, MAY_SUB) && account.may_as_group(acks.group, MAY_SUB)
        }) {
            return None;
        }
        let Memory { last_topic, last_group, .. } = memory;
        let mut popper = Popper { last_topic, last_group, owner: &calls.owner };
        pop::acknowledge_call(state, core, &mut popper, &acks)?;
        calls.answer.clear();
        push_acked(&mut calls.answer, &acks);
        answer_call(http2, call.stream_id, &calls.answer);
        calls.give_back();
        Some(())
    }
}

/// Whether pops of calls may be answered here.
fn may_pop(state: &State) -> bool {
    !state.lent.is_empty() && state.tables.writable
}

fn answer_call(http2: &mut ServerSide, stream_id: u32, answer: &[u8]) {
    http2.send_headers(stream_id, RESPONSE_HEADERS, false);
    http2.send_data(stream_id, answer);
    http2.send_trailers(stream_id, OK_TRAILERS);
}
