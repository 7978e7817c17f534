//! Answers of brokers to pulls.

use super::answer::answer;
use crate::protocol::response;
use crate::wire::frame::split;
use crate::wire::numbers::long;

/// What such an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullAnswer<'a> {
    /// The request's.
    pub opaque: i32,
    /// Messages were found, or why not.
    pub code: i32,
    /// Where to go on.
    pub next_offset: i64,
    /// The queue's first offset, as it is written.
    pub min_offset: &'a str,
    /// The offset behind its last message, as it is written.
    pub max_offset: &'a str,
    /// The node of the broker to ask next.
    pub suggested_broker_id: i64,
    /// Where in the frame the records begin.
    pub body_start: usize,
}

/// Reads the frame of an answer, without its length; None: anything else, an error, or oddly
/// written.
#[must_use]
pub fn pull_answer(frame: &[u8]) -> Option<PullAnswer<'_>> {
    let frame = split(frame)?;
    let (mut next, mut min, mut max, mut suggested) = (None, None, None, None);
    let answer = answer(&frame, |name, value| match name {
        b"nextBeginOffset" => next = Some(value),
        b"minOffset" => min = Some(value),
        b"maxOffset" => max = Some(value),
        b"suggestWhichBrokerId" => suggested = Some(value),
        _ => {}
    })?;
    let is_pull = matches!(
        u8::try_from(answer.code).ok()?,
        response::SUCCESS
            | response::PULL_NOT_FOUND
            | response::PULL_RETRY_IMMEDIATELY
            | response::PULL_OFFSET_MOVED
    );
    let (min_offset, max_offset) = (min?, max?);
    long(min_offset.as_bytes())?;
    long(max_offset.as_bytes())?;
    is_pull.then_some(PullAnswer {
        opaque: answer.opaque,
        code: answer.code,
        next_offset: long(next?.as_bytes())?,
        min_offset,
        max_offset,
        suggested_broker_id: long(suggested?.as_bytes())?,
        body_start: frame.bytes.len() - frame.body.len(),
    })
}
