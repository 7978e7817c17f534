"""What each request needs of its account: three tables, by request code.

:data:`OF_ROCKETMQ` is what RocketMQ 4.9.8 checks (``PlainAccessValidator.parse``,
``Permission.ADMIN_CODE``), :data:`OF_LATER_CODES` the same for codes that it does not serve and we
do. :data:`STRICT` is added unless ``aclStrict=false``: whatever writes to a topic needs PUB there,
and whatever changes something for others needs an administrator. Codes in none of them need an
account with a right signature, no more; :data:`READING` names those that a broker serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kerolox.message import PropertyKey, decode_properties
from kerolox.protocol.bodies import (
    HeartbeatData,
    LockBatchBody,
    QueryAssignmentBody,
    decode_request,
)
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import HALF_TOPIC, RETRY_PREFIX
from kerolox.protocol.pop_names import pop_retry_topic
from kerolox.security.access.accounts import Permission, group_resource


class Need(NamedTuple):
    """One thing that an account must be allowed."""

    resource: str
    """A topic, or a group under the name of its retry topic."""
    permission: Permission


Needs = Callable[[RemotingCommand], Iterator[Need]]
"""What a request needs, told by its header or its body. May raise ``BodyError``."""


class Rule(NamedTuple):
    """What a request code needs."""

    needs: tuple[Needs, ...] = ()
    is_for_admins: bool = False

    def __or__(self, other: Rule) -> Rule:
        """What either of two rules needs."""
        return Rule((*self.needs, *other.needs), self.is_for_admins or other.is_for_admins)


# -- where a need stands in a request -----------------------------------------------------------
def _topic(field: str, permission: Permission) -> Needs:
    """The topic that a header field names; what is not there is not needed."""

    def needs(command: RemotingCommand) -> Iterator[Need]:
        name = command.ext_fields.get(field)
        if name is not None:
            yield Need(name, permission)

    return needs


def _group(field: str) -> Needs:
    """The group that a header field names."""

    def needs(command: RemotingCommand) -> Iterator[Need]:
        name = command.ext_fields.get(field)
        if name is not None:
            yield Need(group_resource(name), Permission.SUB)

    return needs


def _sent(topic_field: str, group_field: str) -> Needs:
    """The topic of a send; of a message that a group gives back, the group instead."""
    to_topic, by_group = _topic(topic_field, Permission.PUB), _group(group_field)

    def needs(command: RemotingCommand) -> Iterator[Need]:
        is_retry = command.ext_fields.get(topic_field, "").startswith(RETRY_PREFIX)
        return by_group(command) if is_retry else to_topic(command)

    return needs


def _given_back(topic_field: str) -> Needs:
    """The group whose retry topic a message goes to, whoever says that it gives it back."""

    def needs(command: RemotingCommand) -> Iterator[Need]:
        topic = command.ext_fields.get(topic_field, "")
        if topic.startswith(RETRY_PREFIX):
            yield Need(topic, Permission.SUB)

    return needs


def _further_queues(properties_field: str) -> Needs:
    """The topics whose queues a message names besides its own (``INNER_MULTI_DISPATCH``)."""

    def needs(command: RemotingCommand) -> Iterator[Need]:
        text = command.ext_fields.get(properties_field, "")
        if PropertyKey.INNER_MULTI_DISPATCH in text:
            names = decode_properties(text).get(PropertyKey.INNER_MULTI_DISPATCH, "")
            for name in filter(None, names.split(",")):
                yield Need(name, Permission.PUB)

    return needs


def _subscriptions(command: RemotingCommand) -> Iterator[Need]:
    """The groups of a heartbeat, and the topics that they subscribe to."""
    for consumer in decode_request(command.body, HeartbeatData).consumer_data_set:
        yield Need(group_resource(consumer.group_name), Permission.SUB)
        for subscription in consumer.subscription_data_set:
            yield Need(subscription.topic, Permission.SUB)


def _locking_group(command: RemotingCommand) -> Iterator[Need]:
    """The group whose queues are locked or unlocked."""
    group = decode_request(command.body, LockBatchBody).consumer_group
    yield Need(group_resource(group), Permission.SUB)


def _assigned(command: RemotingCommand) -> Iterator[Need]:
    """The group whose member gets its queues, and their topic."""
    asked = decode_request(command.body, QueryAssignmentBody)
    yield Need(group_resource(asked.consumer_group), Permission.SUB)
    yield Need(asked.topic, Permission.SUB)


def _popped(command: RemotingCommand) -> Iterator[Need]:
    """The group that a message is out for, and its topic; of a retry the group alone, as whose
    retries they are."""
    group, topic = command.ext_fields.get("consumerGroup"), command.ext_fields.get("topic")
    if group is not None:
        yield Need(group_resource(group), Permission.SUB)
    if topic is not None and not (group and topic.startswith(_retry_prefixes(group))):
        yield Need(topic, Permission.SUB)


def _retry_prefixes(group: str) -> tuple[str, ...]:
    return tuple(pop_retry_topic("", group, is_v2=is_v2) for is_v2 in (False, True))


def _popped_together(command: RemotingCommand) -> Iterator[Need]:
    """The same of a batch of acknowledgements."""
    seen = set()
    from kerolox.protocol.pop import BatchAckBody

    for ack in BatchAckBody.decode(command.body).acks if command.body else ():
        if (ack.c, ack.t) not in seen:
            seen.add((ack.c, ack.t))
            yield Need(group_resource(ack.c), Permission.SUB)
            yield Need(ack.t, Permission.SUB)


def _half_topic(command: RemotingCommand) -> Iterator[Need]:
    yield Need(HALF_TOPIC, Permission.PUB)


_ADMIN = Rule(is_for_admins=True)
_PULL = Rule((_topic("topic", Permission.SUB), _group("consumerGroup")))

# -- the tables ---------------------------------------------------------------------------------
OF_ROCKETMQ: Mapping[int, Rule] = {
    RequestCode.SEND_MESSAGE: Rule((_sent("topic", "group"),)),  # no such field: see STRICT
    RequestCode.SEND_MESSAGE_V2: Rule((_sent("b", "a"),)),
    RequestCode.CONSUMER_SEND_MSG_BACK: Rule((_group("group"),)),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: Rule((_topic("topic", Permission.SUB),)),
    RequestCode.HEART_BEAT: Rule((_subscriptions,)),
    RequestCode.UNREGISTER_CLIENT: Rule((_group("consumerGroup"),)),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Rule((_group("consumerGroup"),)),
    RequestCode.UPDATE_CONSUMER_OFFSET: Rule(
        (_group("consumerGroup"), _topic("topic", Permission.SUB))
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: _ADMIN,
}
"""What RocketMQ 4.9.8 checks, and no more."""

OF_LATER_CODES: Mapping[int, Rule] = {
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.QUERY_ASSIGNMENT: Rule((_assigned,)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _ADMIN,
    RequestCode.POP_MESSAGE: _PULL,
    RequestCode.PEEK_MESSAGE: _PULL,
    RequestCode.NOTIFICATION: _PULL,
    RequestCode.POLLING_INFO: _PULL,
    RequestCode.ACK_MESSAGE: Rule((_popped,)),
    RequestCode.BATCH_ACK_MESSAGE: Rule((_popped_together,)),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Rule((_popped,)),
    RequestCode.POP_ROLLBACK: _ADMIN,
    RequestCode.RECALL_MESSAGE: Rule((_topic("topic", Permission.PUB),)),
    # It may make the group, as a heartbeat does.
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Rule((_group("group"),)),
    # It tells the secrets.
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _ADMIN,
    RequestCode.CHANGE_BROKER_ROLE: _ADMIN,
    RequestCode.RELEASE_POPPED_MESSAGES: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _ADMIN,
}
"""Codes that 4.9.8 refuses with code 3, whatever ``aclStrict`` says."""

STRICT: Mapping[int, Rule] = {
    RequestCode.SEND_MESSAGE: Rule((_given_back("topic"), _further_queues("properties"))),
    RequestCode.SEND_MESSAGE_V2: Rule((_given_back("b"), _further_queues("i"))),
    # A batch goes to one queue.
    RequestCode.SEND_BATCH_MESSAGE: Rule((_sent("b", "a"), _given_back("b"))),
    RequestCode.SEND_REPLY_MESSAGE: Rule(
        (_topic("topic", Permission.PUB), _further_queues("properties"))
    ),
    RequestCode.SEND_REPLY_MESSAGE_V2: Rule((_topic("b", Permission.PUB), _further_queues("i"))),
    # END_TRANSACTION needs PUB on the topic of its half, which its handler finds.
    RequestCode.END_HALF_MESSAGES: Rule((_half_topic,)),
    RequestCode.LOCK_BATCH_MQ: Rule((_locking_group,)),
    RequestCode.UNLOCK_BATCH_MQ: Rule((_locking_group,)),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ADMIN,
    RequestCode.DELETE_ACL_CONFIG: _ADMIN,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ADMIN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _ADMIN,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _ADMIN,
    RequestCode.CLONE_GROUP_OFFSET: _ADMIN,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _ADMIN,
    RequestCode.CLEAN_UNUSED_TOPIC: _ADMIN,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _ADMIN,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _ADMIN,
}
"""What ``aclStrict`` needs beyond that."""

READING = frozenset(
    (
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.END_TRANSACTION,  # see STRICT
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,  # which says nothing by itself
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_ROLE,
        RequestCode.GET_POPPED_MESSAGES,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    )
)
"""Codes that need a right signature alone: they look, and change nothing."""


def rules(*, is_strict: bool) -> dict[int, Rule]:
    """What each code needs; codes that are not there need nothing but a right signature."""
    found = {int(code): rule for code, rule in {**OF_ROCKETMQ, **OF_LATER_CODES}.items()}
    if is_strict:
        for code, rule in STRICT.items():
            found[int(code)] = found.get(code, Rule()) | rule
    return found
