//! Fast pulls: code 11 with tags.

use super::access::{Access, Request};
use super::hold::{Asked, HeldPull};
use super::policy::{Group, Topic};
use super::reading::{AnswerHeader, Kind, answer_empty, read};
use super::state::State;
use crate::protocol::{
    PERM_READ, PULL_COMMIT_OFFSET, PULL_COUNT_MAX, PULL_LITE_PULL, PULL_SUBSCRIPTION, PULL_SUSPEND,
};
use crate::state::Core;
use crate::wire::header::{Header, PullFields};
use crate::wire::tags::{self, Tags};

/// The sysFlag bits of pulls that the fast path answers.
const KNOWN_FLAGS: i32 = PULL_COMMIT_OFFSET | PULL_SUSPEND | PULL_SUBSCRIPTION | PULL_LITE_PULL;

/// What a pull needs to know of its connection.
pub struct Puller<'a> {
    pub connection: u64,
    /// Slots of the last topic and group, examined first.
    pub last_topic: &'a mut u32,
    pub last_group: &'a mut u32,
    pub tag_codes: &'a mut Vec<i32>,
    pub answer_header: &'a mut AnswerHeader,
    pub access: &'a mut Access,
}

/// Takes one pull; None when it is not for the fast path.
pub fn pull(
    state: &mut State,
    core: &mut Core,
    puller: &mut Puller<'_>,
    request: Request<'_>,
    answers: &mut Vec<u8>,
) -> Option<()> {
    let header = request.header;
    let fields = header.pull_fields(request.header_bytes)?;
    let tables = &mut state.tables;
    tables.identity.as_ref()?;
    let topic_slot = tables.topics.find(fields.topic, *puller.last_topic)?;
    *puller.last_topic = topic_slot;
    let group_slot = tables.groups.find(fields.group, *puller.last_group)?;
    *puller.last_group = group_slot;
    let topic = &tables.topics[topic_slot as usize];
    let group = &tables.groups[group_slot as usize];
    if !is_usual(header, topic, group, &fields)
        || !puller.access.may_pull(state.accounts.as_ref(), request, &fields)
    {
        return None;
    }
    let commit_key = (group_slot, topic_slot, fields.queue_id);
    let commits = fields.commit_offset >= 0 && state.tables.takes_commit(fields.sys_flag);
    if commits && !state.has_capacity_to_commit(&commit_key) {
        return None;
    }
    let tables = &mut state.tables;
    let group = &tables.groups[group_slot as usize];
    let all_tags = choose_tags(group, topic_slot, &fields, puller.tag_codes)?;
    let asked = Asked {
        connection: puller.connection,
        encoding: header.encoding,
        opaque: header.opaque,
        group: group_slot,
        topic: topic_slot,
        queue_id: fields.queue_id,
        offset: fields.queue_offset,
        max_count: fields.max_count,
    };
    let tag_codes = if all_tags { None } else { Some(&puller.tag_codes[..]) };
    let (kind, outcome) = read(tables, core, &asked, tag_codes, puller.answer_header, answers);
    if kind == Kind::Moved {
        return None;
    }
    let may_wait =
        kind == Kind::NotFound && fields.sys_flag & PULL_SUSPEND != 0 && !state.has_stopped_holding;
    let may_hold = may_wait && fields.suspend_timeout_ms > 0;
    // How long a pull waits without long polling is for Python to say.
    if may_wait && !state.long_polling
        || may_hold && !state.has_capacity_to_hold(puller.connection, tag_codes)
    {
        return None;
    }
    if commits {
        state.commit_of_pull(commit_key, fields.commit_offset);
    }
    if kind == Kind::Found {
        return Some(());
    }
    let deadline_ms = core.now_ms().saturating_add(fields.suspend_timeout_ms);
    let held = || HeldPull { asked, tag_codes: tag_codes.map(Into::into), deadline_ms };
    if may_hold && state.hold(held()) {
        state.peers.peer(puller.connection).is_open = true;
    } else {
        answer_empty(&state.tables, &asked, &outcome, kind, answers);
    }
    Some(())
}

/// Whether the fast path answers such pulls.
#[inline]
fn is_usual(header: &Header, topic: &Topic, group: &Group, fields: &PullFields<'_>) -> bool {
    header.flag == 0
        && topic.fast
        && topic.perm & PERM_READ != 0
        && group.fast
        && (0..topic.read_queues).contains(&fields.queue_id)
        && (1..=PULL_COUNT_MAX).contains(&fields.max_count)
        && fields.sys_flag & !KNOWN_FLAGS == 0
}

/// Whether a pull wants all tags; else `codes` gets the hashes of those it wants. None when that is
/// for Python to say.
fn choose_tags(
    group: &Group,
    topic_slot: u32,
    fields: &PullFields<'_>,
    codes: &mut Vec<i32>,
) -> Option<bool> {
    if group.is_slow(topic_slot) {
        return None;
    }
    if fields.sys_flag & PULL_SUBSCRIPTION != 0 {
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
