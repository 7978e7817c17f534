//! Hot pulls: code 11 with tags.

use super::hold::HeldPull;
use super::policy::{Group, PERM_READ, Tables};
use super::state::State;
use crate::wire::answer::{PullAnswer, code, pull_answer};
use crate::wire::header::{Encoding, Header, PullFields};
use crate::wire::tags::{self, Tags};
use crate::{Core, Filter, GetStatus, ReadOutcome};

/// Most messages that one pull may ask for; more is unusual and goes to Python.
pub const PULL_COUNT_MAX: i32 = 1_024;

/// What a read of a queue that does not exist gives.
pub const NO_QUEUE: ReadOutcome = ReadOutcome {
    status: GetStatus::NoMessageInQueue,
    next_offset: 0,
    min_offset: 0,
    max_offset: 0,
    suggest_slave: false,
    count: 0,
    bytes: 0,
    behind: -1,
    milliseconds: 0,
};

/// Pull sysFlag bits.
const COMMIT: i32 = 1;
const SUSPEND: i32 = 2;
const SUBSCRIPTION: i32 = 4;
const LITE: i32 = 16;

/// What a pull needs to know of its connection.
pub struct Puller<'a> {
    pub connection: u64,
    /// Slots of the last topic and group, looked at first.
    pub last_topic: &'a mut u32,
    pub last_group: &'a mut u32,
    pub tag_codes: &'a mut Vec<i32>,
    pub answer_header: &'a mut AnswerHeader,
}

/// The header of the last pull answer: its size is the guess for the next one, so that records
/// can be read straight to their place.
#[derive(Debug, Default)]
pub struct AnswerHeader {
    bytes: Vec<u8>,
}

/// What a read was for.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub encoding: Encoding,
    pub opaque: i32,
    pub group: u32,
    pub topic: u32,
    pub queue_id: i32,
    pub offset: i64,
    pub max_count: i32,
    pub tag_codes: Option<&'a [i32]>,
}

/// What kind of answer the outcome of a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Found,
    /// Nothing yet: hold the pull, or answer 19.
    NotFound,
    /// The next offset differs: ask again at once.
    Retry,
    /// The offset is outside the queue.
    Moved,
}

impl Kind {
    fn of(status: GetStatus, offset: i64) -> Self {
        match status {
            GetStatus::Found => Self::Found,
            GetStatus::OffsetOverflowOne | GetStatus::OffsetFoundNull => Self::NotFound,
            GetStatus::NoMessageInQueue | GetStatus::NoMatchedLogicQueue if offset == 0 => {
                Self::NotFound
            }
            GetStatus::NoMatchedMessage | GetStatus::MessageWasRemoving => Self::Retry,
            GetStatus::NoMessageInQueue
            | GetStatus::NoMatchedLogicQueue
            | GetStatus::OffsetTooSmall
            | GetStatus::OffsetOverflowBadly => Self::Moved,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Found => code::SUCCESS,
            Self::NotFound => code::PULL_NOT_FOUND,
            Self::Retry => code::PULL_RETRY_IMMEDIATELY,
            Self::Moved => code::PULL_OFFSET_MOVED,
        }
    }
}

/// Reads; when something is found its whole answer is appended to `out`, else nothing.
pub fn read(
    tables: &mut Tables,
    core: &mut Core,
    wanted: &Wanted<'_>,
    header: &mut AnswerHeader,
    out: &mut Vec<u8>,
) -> (Kind, ReadOutcome) {
    let Some(queue) = tables.reading(core, wanted.topic, wanted.queue_id) else {
        return (Kind::of(NO_QUEUE.status, wanted.offset), NO_QUEUE);
    };
    let start = out.len();
    let guessed = header.bytes.len();
    out.resize(start + guessed, 0);
    let max_count = wanted.max_count.max(0) as usize;
    let filter = Filter::by_tags(wanted.tag_codes);
    let outcome = core.read_into(queue, wanted.offset, max_count, filter, out);
    let kind = Kind::of(outcome.status, wanted.offset);
    if outcome.behind >= 0 {
        tables.note_got(wanted.group, wanted.topic, wanted.queue_id, &outcome);
    }
    if kind != Kind::Found {
        out.truncate(start);
        return (kind, outcome);
    }
    header.bytes.clear();
    write_header(tables, wanted, &outcome, kind.code(), outcome.bytes, &mut header.bytes);
    let size = header.bytes.len();
    if size > guessed {
        out.resize(out.len() + size - guessed, 0);
    }
    if size != guessed {
        let records = start + guessed..start + guessed + outcome.bytes;
        out.copy_within(records, start + size);
        out.truncate(start + size + outcome.bytes);
    }
    out[start..start + size].copy_from_slice(&header.bytes);
    (kind, outcome)
}

/// What a pull is told that was ended before its time: that it found nothing, at the offset that it
/// asked for.
pub fn nothing_for(tables: &Tables, core: &mut Core, wanted: &Wanted<'_>) -> ReadOutcome {
    let topic = &tables.topics[wanted.topic as usize].name;
    let (min_offset, max_offset) = core.queue_bounds(topic, wanted.queue_id);
    let status = GetStatus::OffsetOverflowOne;
    ReadOutcome { status, next_offset: wanted.offset, min_offset, max_offset, ..NO_QUEUE }
}

/// Appends an answer without records.
pub fn answer_empty(
    tables: &Tables,
    wanted: &Wanted<'_>,
    outcome: &ReadOutcome,
    kind: Kind,
    out: &mut Vec<u8>,
) {
    write_header(tables, wanted, outcome, kind.code(), 0, out);
}

fn write_header(
    tables: &Tables,
    wanted: &Wanted<'_>,
    outcome: &ReadOutcome,
    code: u8,
    body_size: usize,
    out: &mut Vec<u8>,
) {
    let broker_id = if outcome.suggest_slave {
        tables.groups[wanted.group as usize].slow_broker_id
    } else {
        tables.identity.as_ref().map_or(0, |identity| identity.broker_id)
    };
    let answer = PullAnswer {
        code,
        opaque: wanted.opaque,
        remark: outcome.status.name(),
        broker_id,
        next_offset: outcome.next_offset,
        min_offset: outcome.min_offset,
        max_offset: outcome.max_offset,
    };
    pull_answer(out, wanted.encoding, &answer, body_size);
}

/// Takes one pull; false when it is not for the hot path.
pub fn pull(
    state: &mut State,
    core: &mut Core,
    puller: &mut Puller<'_>,
    header: &Header,
    header_bytes: &[u8],
    answers: &mut Vec<u8>,
) -> bool {
    take(state, core, puller, header, header_bytes, answers).is_some()
}

fn take(
    state: &mut State,
    core: &mut Core,
    puller: &mut Puller<'_>,
    header: &Header,
    header_bytes: &[u8],
    answers: &mut Vec<u8>,
) -> Option<()> {
    let fields = header.pull_fields(header_bytes)?;
    let tables = &mut state.tables;
    tables.identity.as_ref()?;
    let topic_slot = tables.find_topic(fields.topic, *puller.last_topic)?;
    *puller.last_topic = topic_slot;
    let group_slot = tables.find_group(fields.group, *puller.last_group)?;
    *puller.last_group = group_slot;
    let topic = &tables.topics[topic_slot as usize];
    let group = &tables.groups[group_slot as usize];
    if header.flag != 0
        || !topic.hot
        || topic.perm & PERM_READ == 0
        || !group.hot
        || !(0..topic.read_queues).contains(&fields.queue_id)
        || !(1..=PULL_COUNT_MAX).contains(&fields.max_count)
        || fields.sys_flag & !(COMMIT | SUSPEND | SUBSCRIPTION | LITE) != 0
    {
        return None;
    }
    let commit_key = (group_slot, topic_slot, fields.queue_id);
    let commits = fields.sys_flag & COMMIT != 0 && fields.commit_offset >= 0;
    if commits && !state.has_room_to_commit(&commit_key) {
        return None;
    }
    let tables = &mut state.tables;
    let group = &tables.groups[group_slot as usize];
    let all_tags = choose_tags(group, topic_slot, &fields, puller.tag_codes)?;
    let wanted = Wanted {
        encoding: header.encoding,
        opaque: header.opaque,
        group: group_slot,
        topic: topic_slot,
        queue_id: fields.queue_id,
        offset: fields.queue_offset,
        max_count: fields.max_count,
        tag_codes: if all_tags { None } else { Some(puller.tag_codes) },
    };
    let (kind, outcome) = read(tables, core, &wanted, puller.answer_header, answers);
    if kind == Kind::Moved {
        return None;
    }
    let may_wait =
        kind == Kind::NotFound && fields.sys_flag & SUSPEND != 0 && !state.has_stopped_holding;
    let may_hold = may_wait && fields.suspend_timeout_ms > 0;
    // How long a pull waits without long polling is for Python to say.
    if may_wait && !state.long_polling
        || may_hold && !state.has_room_to_hold(puller.connection, wanted.tag_codes)
    {
        return None;
    }
    if commits {
        state.commits.insert(commit_key, fields.commit_offset);
    }
    if kind == Kind::Found {
        return Some(());
    }
    let deadline = core.now_ms().saturating_add(fields.suspend_timeout_ms);
    if may_hold && state.hold(held(puller.connection, &wanted, deadline)) {
        state.peers.peer(puller.connection).is_open = true;
    } else {
        answer_empty(&state.tables, &wanted, &outcome, kind, answers);
    }
    Some(())
}

/// Whether a pull wants all tags; else `codes` gets the hashes of those it wants. None when that is
/// for Python to say.
fn choose_tags(
    group: &Group,
    topic_slot: u32,
    fields: &PullFields<'_>,
    codes: &mut Vec<i32>,
) -> Option<bool> {
    if fields.sys_flag & SUBSCRIPTION != 0 {
        return match tags::parse(fields.subscription, codes) {
            Tags::All => Some(true),
            Tags::Some => Some(false),
            Tags::Unusual => None,
        };
    }
    let subscription = group.subscriptions.get(&topic_slot)?;
    if subscription.version < fields.subscription_version {
        return None;
    }
    codes.clear();
    codes.extend_from_slice(subscription.tag_codes.as_deref().unwrap_or_default());
    Some(subscription.tag_codes.is_none())
}

/// A pull as it is held.
fn held(connection: u64, wanted: &Wanted<'_>, deadline_ms: i64) -> HeldPull {
    HeldPull {
        connection,
        encoding: wanted.encoding,
        opaque: wanted.opaque,
        group: wanted.group,
        topic: wanted.topic,
        queue_id: wanted.queue_id,
        offset: wanted.offset,
        max_count: wanted.max_count,
        tag_codes: wanted.tag_codes.map(Into::into),
        deadline_ms,
    }
}

/// What a held pull wants now.
pub fn wanted_by(pull: &HeldPull) -> Wanted<'_> {
    Wanted {
        encoding: pull.encoding,
        opaque: pull.opaque,
        group: pull.group,
        topic: pull.topic,
        queue_id: pull.queue_id,
        offset: pull.offset,
        max_count: pull.max_count,
        tag_codes: pull.tag_codes.as_deref(),
    }
}
