//! The fast path of one connection: bytes in, answers and frames for the slow path out.

use std::collections::VecDeque;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use parking_lot::MutexGuard;

use super::access::{Access, Request};
use super::ahead::{AHEAD_MAX, Ahead, Slot};
use super::path::FastPath;
use super::policy::{NO_SLOT, Tables};
use super::pop::{self, Popper};
use super::pull::{self, Puller};
use super::reading::AnswerHeader;
use super::send::{self, ReadSend, Sender};
use super::state::{ANSWER_BYTES_MAX, State};
use crate::settings::FlushDiskType;
use crate::state::Core;
use crate::store::Guard;
use crate::wire::answer::PoppedRun;
use crate::wire::frame::{self, Cut, Frame, FrameError};
use crate::wire::grpc_pops::Scratch;

/// A buffer for unfinished frames above this is given back when it has become empty.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// As [`Connection::allowance`]: any number of frames, which is never used up.
pub const ALLOWANCE_MAX: u64 = (1 << 62) - 1;

/// What one call of [`Connection::feed`] left to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// Answers for other connections are ready.
    pub ready: bool,
    /// The answer budget was used up: frames are left.
    pub more: bool,
    /// Senders wait until a slave has what was appended.
    pub waits: bool,
    /// The peer broke the framing.
    pub error: Option<FrameError>,
}

impl Fed {
    /// The peer broke the framing since it speaks another protocol; the error says which.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.error.as_ref().is_some_and(FrameError::is_foreign)
    }
}

/// One connection. Closing is the caller's duty: [`Connection::close`].
#[derive(Debug)]
pub struct Connection {
    pub(super) id: u64,
    pub(super) born_host: Box<[u8]>,
    /// Bytes that are not answered yet: an unfinished frame, or frames above the answer budget.
    kept: Vec<u8>,
    /// Bytes of `kept` that are done.
    done: usize,
    /// Set once the peer broke the framing.
    error: Option<FrameError>,
    pub(super) closed: bool,
    /// Frames that may still be answered here; at 0 all are slow.
    pub allowance: u64,
    pub(super) access: Access,
    pub(super) memory: Memory,
    pub(super) calls: Calls,
}

/// What all frames of a feed are taken with.
struct Feeding<'a> {
    state: &'a mut State,
    core: &'a mut Core,
    ahead: &'a mut Ahead,
}

/// What is remembered from frame to frame, because the next one is mostly alike.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) last_topic: u32,
    pub(super) last_group: u32,
    tag_codes: Vec<i32>,
    answer_header: AnswerHeader,
    /// The peer's address as operators see it.
    owner: Option<Arc<str>>,
}

/// What is kept of the calls of gRPC on a connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Sends whose answers wait, by stream.
    pub(super) waiting: HashMap<u32, Waiting>,
    /// Receives and acknowledgements that were answered with this chunk.
    pub(super) received: u64,
    pub(super) acked: u64,
    /// Counts the messages, which get the queues in turn.
    pub(super) turn: u32,
    /// Properties of a message, what stands for answers, and an answer; used again.
    pub(super) text: Vec<u8>,
    pub(super) answers: Vec<u8>,
    pub(super) answer: Vec<u8>,
    pub(super) scratch: Scratch,
    /// The last client, as leases have it.
    pub(super) owner: Arc<str>,
    /// What receives gave out, the last ones, by stream.
    pub(super) given: VecDeque<Given>,
}

/// A send whose answer waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) message_id: Box<[u8]>,
    /// When its chunk came.
    pub(super) began: Instant,
}

/// What a receive gave out.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct Given {
    pub stream_id: u32,
    pub group: Box<[u8]>,
    pub topic: Box<[u8]>,
    pub pop_time: i64,
    pub invisible_ms: i64,
    pub runs: Vec<PoppedRun>,
}

impl Connection {
    /// A connection with its id (chosen by the caller, unique) and its peer's host as records
    /// store it: 8 or 20 bytes.
    #[must_use]
    pub fn new(id: u64, born_host: &[u8]) -> Self {
        Self {
            id,
            born_host: born_host.into(),
            kept: Vec::new(),
            done: 0,
            error: None,
            closed: false,
            allowance: ALLOWANCE_MAX,
            access: Access::default(),
            memory: Memory { last_topic: NO_SLOT, last_group: NO_SLOT, ..Memory::default() },
            calls: Calls::default(),
        }
    }

    /// Says which white lists have the peer's address: the global one, and those of accounts. Where
    /// one had it and has it no more, held pulls are answered with the next tick.
    pub fn set_white<'a>(
        &mut self,
        fast: &FastPath,
        is_white: bool,
        access_keys: impl IntoIterator<Item = &'a [u8]>,
    ) {
        if self.access.set_white(is_white, access_keys) && !self.closed {
            fast.state.lock().ended.connections.insert(self.id);
        }
    }

    /// Takes `data` and all complete frames of it and of what was kept before. Answers are
    /// appended to `answers`; `slow` gets each frame for Python, without its length.
    pub fn feed(
        &mut self,
        fast: &FastPath,
        data: &[u8],
        answers: &mut Vec<u8>,
        slow: &mut impl FnMut(&[u8]),
    ) -> Fed {
        if self.error.is_some() {
            return Fed { error: self.error, ..Fed::default() };
        }
        let mut state = fast.state.lock();
        let mut core = fast.store.lock();
        state.tables.refresh(&core);
        let mut ahead = std::mem::take(&mut state.ahead);
        let mut feeding = Feeding { state: &mut state, core: &mut core, ahead: &mut ahead };
        let error = self.take_frames(&mut feeding, data, answers, slow).err();
        state.ahead = ahead;
        let (ready, waits) = end_feed(fast, state, core, Some((self.id, answers)));
        if error.is_some() {
            self.error = error;
            self.kept = Vec::new();
            self.done = 0;
        }
        Fed { ready, more: self.has_whole_frame(), waits, error }
    }

    /// Drops the held pulls and waiting answers of this connection, and takes no more frames.
    pub fn close(&mut self, fast: &FastPath) {
        if !self.closed {
            self.closed = true;
            self.error = self.error.or(Some(FrameError::Closed));
            self.kept = Vec::new();
            self.done = 0;
            fast.state.lock().close(self.id);
        }
    }

    /// Bytes of frames that are not whole yet, or wait for their turn.
    #[must_use]
    pub const fn unfinished_bytes(&self) -> usize {
        self.kept.len() - self.done
    }

    /// Whether a whole frame is kept: only when the answer budget was used up.
    fn has_whole_frame(&self) -> bool {
        !matches!(frame::cut(&self.kept[self.done..]), Ok(Cut::Partial(_)))
    }

    fn take_frames(
        &mut self,
        feeding: &mut Feeding<'_>,
        data: &[u8],
        answers: &mut Vec<u8>,
        slow: &mut impl FnMut(&[u8]),
    ) -> Result<(), FrameError> {
        let mut rest = data;
        // First what was kept, completed by no more than its first frame needs.
        while self.done < self.kept.len() {
            let kept = std::mem::take(&mut self.kept);
            let step = self.take_some(feeding, &kept[self.done..], answers, slow);
            self.kept = kept;
            match step? {
                Step::Taken(size) => self.done += size,
                Step::Full => {
                    self.kept.extend_from_slice(rest);
                    return Ok(());
                }
                Step::Partial(needed) => {
                    let missing = needed - (self.kept.len() - self.done);
                    let (now, later) = rest.split_at(missing.min(rest.len()));
                    self.drop_done();
                    self.kept.extend_from_slice(now);
                    rest = later;
                    if now.len() < missing {
                        return Ok(());
                    }
                }
            }
        }
        self.drop_done();
        let mut at = 0;
        while let Step::Taken(size) = self.take_some(feeding, &rest[at..], answers, slow)? {
            at += size;
        }
        self.kept.extend_from_slice(&rest[at..]);
        Ok(())
    }

    /// Takes the first frame of `data`, or the first ones.
    fn take_some(
        &mut self,
        feeding: &mut Feeding<'_>,
        data: &[u8],
        answers: &mut Vec<u8>,
        slow: &mut impl FnMut(&[u8]),
    ) -> Result<Step, FrameError> {
        let first = match frame::cut(data)? {
            Cut::Partial(needed) => return Ok(Step::Partial(needed)),
            Cut::Frame(_) if answers.len() >= ANSWER_BYTES_MAX => return Ok(Step::Full),
            Cut::Frame(found) => found,
        };
        let Feeding { state, core, ahead } = feeding;
        if self.allowance == 0 || state.tables.identity.is_none() || !core.is_open() {
            slow(first.bytes);
            return Ok(Step::Taken(4 + first.bytes.len()));
        }
        let has_keys = state.tables.has_window(self.memory.last_topic);
        let accounts = state.accounts.as_ref();
        let slots = ahead.read(data, self.allowance, has_keys, &mut self.access, accounts);
        let mut sends = [const { None }; AHEAD_MAX];
        if has_keys {
            read_sends(&state.tables, &mut self.memory, data, slots, &mut sends)?;
        }
        let mut at = 0;
        for (slot, send) in slots.iter().zip(&mut sends) {
            let Cut::Frame(found) = frame::cut(&data[at..])? else {
                break;
            };
            if answers.len() >= ANSWER_BYTES_MAX {
                break;
            }
            at += 4 + found.bytes.len();
            let request = slot.request(&found);
            let is_taken = match request {
                Some(request) => self.take_fast(state, core, request, send, answers),
                None => self.take_pop(state, core, &found, answers),
            };
            if !is_taken {
                slow(found.bytes);
            } else if self.allowance != ALLOWANCE_MAX {
                self.allowance -= 1;
            }
        }
        Ok(Step::Taken(at))
    }

    /// Answers a request; false when it takes the slow path. `read`: a send, if it was read ahead.
    fn take_fast<'a>(
        &mut self,
        state: &mut State,
        core: &mut Core,
        request: Request<'a>,
        read: &mut Option<ReadSend<'a>>,
        answers: &mut Vec<u8>,
    ) -> bool {
        let Self { access, memory, .. } = self;
        let Memory { last_topic, last_group, tag_codes, answer_header, .. } = memory;
        if request.header.is_send() {
            if read.is_none() {
                *read = send::read(&state.tables, last_topic, request);
            }
            let Some(read) = read else { return false };
            let born_host = &self.born_host;
            let mut sender = Sender { connection: self.id, born_host, last_topic, access };
            return send::send(state, core, &mut sender, request, read, answers).is_some();
        }
        // A pull has no body.
        if !request.header.is_pull() || !request.body.is_empty() {
            return false;
        }
        let connection = self.id;
        let mut puller =
            Puller { connection, last_topic, last_group, tag_codes, answer_header, access };
        pull::pull(state, core, &mut puller, request, answers).is_some()
    }

    /// Answers a request about pops; false when it takes the slow path.
    fn take_pop(
        &mut self,
        state: &mut State,
        core: &mut Core,
        found: &Frame<'_>,
        answers: &mut Vec<u8>,
    ) -> bool {
        let Memory { last_topic, last_group, owner, .. } = &mut self.memory;
        let owner = owner.get_or_insert_with(|| address_text(&self.born_host).into());
        let mut popper = Popper { last_topic, last_group, owner };
        pop::take(state, core, &mut popper, found, answers).is_some()
    }

    /// Moves what is not done to the front of the buffer.
    fn drop_done(&mut self) {
        if self.done == self.kept.len() {
            self.kept.clear();
            if self.kept.capacity() > KEPT_BYTES_MAX {
                self.kept = Vec::new();
            }
        } else if self.done > 0 {
            self.kept.drain(..self.done);
        }
        self.done = 0;
    }
}

/// Reads the sends of some frames, so that their keys come from memory while others are stored.
fn read_sends<'a>(
    tables: &Tables,
    memory: &mut Memory,
    data: &'a [u8],
    slots: &'a [Slot],
    sends: &mut [Option<ReadSend<'a>>],
) -> Result<(), FrameError> {
    let mut at = 0;
    for (slot, send) in slots.iter().zip(sends) {
        let Cut::Frame(found) = frame::cut(&data[at..])? else {
            break;
        };
        at += 4 + found.bytes.len();
        let request = slot.request(&found).filter(|request| request.header.is_send());
        *send = request.and_then(|request| send::read(tables, &mut memory.last_topic, request));
    }
    Ok(())
}

/// Ends a feed: answers what it woke, gives the locks back, and has the log flushed where senders
/// wait for it. Whether answers for others are ready, and whether a slave is waited for.
pub(super) fn end_feed(
    fast: &FastPath,
    mut state: MutexGuard<'_, State>,
    mut core: Guard<'_>,
    own: Option<(u64, &mut Vec<u8>)>,
) -> (bool, bool) {
    if state.has_arrivals() {
        state.answer_arrivals(&mut core, own);
    }
    if state.answered_puts > 0 {
        state.note_puts(core.elapsed_ms());
    }
    let flush_wanted = std::mem::take(&mut state.flush_wanted);
    let waits = std::mem::take(&mut state.safety.slave_wanted);
    let ready = state.has_ready();
    drop(core);
    drop(state);
    if flush_wanted > 0 && fast.store.settings().flush_disk_type == FlushDiskType::Sync {
        fast.store.request_flush(flush_wanted);
    }
    (ready, waits)
}

/// `ip:port` of a host as records store it.
fn address_text(host: &[u8]) -> String {
    let Some((address, port)) = host.split_last_chunk::<4>() else {
        return String::new();
    };
    let port = u32::from_be_bytes(*port);
    if let Ok(address) = <[u8; 4]>::try_from(address) {
        return SocketAddr::from((address, port as u16)).to_string();
    }
    let address = <[u8; 16]>::try_from(address).unwrap_or_default();
    SocketAddr::from((Ipv6Addr::from(address), port as u16)).to_string()
}

enum Step {
    /// Frames of this many bytes.
    Taken(usize),
    /// This many bytes are needed.
    Partial(usize),
    /// A frame is there, but no space for answers.
    Full,
}
