//! Reading for a pull, new or held, and the answer to it.

use super::hold::Asked;
use super::policy::Tables;
use crate::error::GetStatus;
use crate::queues::queue_ext::Filter;
use crate::state::Core;
use crate::state::types::ReadOutcome;
use crate::wire::answer::{PullAnswer, code, pull_answer};

/// The header of the last pull answer: its size is the guess for the next one, so that records
/// can be read straight to their place.
#[derive(Debug, Default)]
pub struct AnswerHeader {
    bytes: Vec<u8>,
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
    asked: &Asked,
    tag_codes: Option<&[i32]>,
    header: &mut AnswerHeader,
    out: &mut Vec<u8>,
) -> (Kind, ReadOutcome) {
    let Some(queue) = tables.reading(core, asked.topic, asked.queue_id) else {
        return (Kind::of(ReadOutcome::NO_QUEUE.status, asked.offset), ReadOutcome::NO_QUEUE);
    };
    let start = out.len();
    let guessed = header.bytes.len();
    out.resize(start + guessed, 0);
    let max_count = asked.max_count.max(0) as usize;
    let filter = Filter::by_tags(tag_codes);
    let outcome = core.read_into(queue, asked.offset, max_count, filter, out);
    let kind = Kind::of(outcome.status, asked.offset);
    if outcome.lag >= 0 {
        tables.note_got(asked.group, asked.topic, asked.queue_id, &outcome);
        core.note_delivery(&outcome);
    }
    if kind != Kind::Found {
        out.truncate(start);
        return (kind, outcome);
    }
    header.bytes.clear();
    write_header(tables, asked, &outcome, kind.code(), outcome.bytes, &mut header.bytes);
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
pub fn nothing_for(tables: &Tables, core: &mut Core, asked: &Asked) -> ReadOutcome {
    let topic = &tables.topics[asked.topic as usize].name;
    let (min_offset, max_offset) = core.queue_bounds(topic, asked.queue_id);
    let status = GetStatus::OffsetOverflowOne;
    ReadOutcome {
        status,
        next_offset: asked.offset,
        min_offset,
        max_offset,
        ..ReadOutcome::NO_QUEUE
    }
}

/// Appends an answer without records.
pub fn answer_empty(
    tables: &Tables,
    asked: &Asked,
    outcome: &ReadOutcome,
    kind: Kind,
    out: &mut Vec<u8>,
) {
    write_header(tables, asked, outcome, kind.code(), 0, out);
}

fn write_header(
    tables: &Tables,
    asked: &Asked,
    outcome: &ReadOutcome,
    code: u8,
    body_size: usize,
    out: &mut Vec<u8>,
) {
    let broker_id = if outcome.suggest_slave {
        tables.groups[asked.group as usize].slow_broker_id
    } else {
        tables.identity.as_ref().map_or(0, |identity| identity.broker_id)
    };
    let answer = PullAnswer {
        code,
        opaque: asked.opaque,
        remark: outcome.status.name(),
        broker_id,
        next_offset: outcome.next_offset,
        min_offset: outcome.min_offset,
        max_offset: outcome.max_offset,
    };
    pull_answer(out, asked.encoding, &answer, body_size);
}
