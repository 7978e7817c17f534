"""Request headers (``extFields``) with types: one class per request, fields as RocketMQ names them.

``SomeHeader.decode(ext_fields)`` converts the texts of the wire once: camelCase names are derived
by rule, numbers are checked against their Java width, members that nobody knows are ignored, a
missing required member is an error that names it. The short names of SEND_MESSAGE_V2 and
SEND_BATCH_MESSAGE (a, b, c ...) decode into the same class as the long ones of SEND_MESSAGE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

import msgspec

from kerolox.protocol.command import wire_fields
from kerolox.protocol.names import (
    Address,
    Attributes,
    Expression,
    Int32,
    Int64,
    Keys,
    LongText,
    Name,
    Names,
    Properties,
    TopicName,
    text_fault,
)

_MISSING = re.compile(r"missing required field `([^`]+)`")
_AT_FIELD = re.compile(r"\$\.(\w+)")


class HeaderFieldError(ValueError):
    """A member of a request's header is missing or malformed; the text names it."""


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all request headers."""

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str]) -> Self:
        """Convert the members of a header. HeaderFieldError: a required member is missing, or one
        does not fit its type, or is longer than it allows (``names``).
        """
        try:
            header = msgspec.convert(ext_fields, cls, strict=False)
        except msgspec.ValidationError as error:
            text = str(error)
            missing = _MISSING.search(text)
            if missing is not None:
                raise HeaderFieldError(f"the custom field <{missing[1]}> is null") from None
            field = _AT_FIELD.search(text)
            name = field[1] if field is not None else "?"
            value = ext_fields.get(name, "")
            raise HeaderFieldError(
                f"the custom field <{name}> is illegal: {value[:64]!r}, {text.partition(' - ')[0]}"
            ) from None
        fault = text_fault(header, member_format="the custom field <{}>")
        if fault is not None:
            raise HeaderFieldError(fault)
        return header

    @classmethod
    def wire_name(cls, field: str) -> str:
        """How the wire names a field."""
        return cls.__struct_encode_fields__[cls.__struct_fields__.index(field)]

    def encode(self) -> dict[str, str]:
        """The members as texts, by their wire names; a None member is left out."""
        members = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        return wire_fields({wire: getattr(self, name) for wire, name in members})


class EmptyHeader(Header, frozen=True, kw_only=True):
    """A request without members."""


class SendMessageHeader(Header, frozen=True, kw_only=True):
    """SEND_MESSAGE (10). In the binary encoding an empty text is a missing one: a producer may have
    no template for new topics."""

    producer_group: Name = ""
    topic: TopicName
    default_topic: TopicName = ""
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: Properties = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None

    @classmethod
    def decode_short(cls, ext_fields: Mapping[str, str]) -> SendMessageHeader:
        """Convert the members of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320), as
        :meth:`decode`. Long names mean nothing there: one request must not name two topics.
        """
        long_names = {
            long: ext_fields[short]
            for short, long in SEND_LONG_NAMES.items()
            if short in ext_fields
        }
        try:
            return cls.decode(long_names)
        except HeaderFieldError as error:
            text = str(error)
            for short, long in SEND_LONG_NAMES.items():
                text = text.replace(f"<{long}>", f"<{short}>")
            raise HeaderFieldError(text) from None


SEND_LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
"""The names of SEND_MESSAGE by those of SEND_MESSAGE_V2 (``SendMessageRequestHeaderV2``)."""


class PullMessageHeader(Header, frozen=True, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: Expression | None = None
    expression_type: Name | None = None


class QueryMessageHeader(Header, frozen=True, kw_only=True):
    """QUERY_MESSAGE (12)."""

    topic: TopicName
    key: Keys
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryConsumerOffsetHeader(Header, frozen=True, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32


class UpdateConsumerOffsetHeader(QueryConsumerOffsetHeader, frozen=True, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15)."""

    commit_offset: Int64


class CreateTopicHeader(Header, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). ``defaultTopic`` and ``order`` mean nothing; the C++ client
    leaves the latter out."""

    topic: TopicName
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: Name
    topic_sys_flag: Int32 = 0
    attributes: Attributes = ""
    """Of tools of 5.x: changes (:func:`~kerolox.protocol.attributes.parse_attributes`)."""


class TopicHeader(Header, frozen=True, kw_only=True):
    """Requests about one topic: 202, 215, 300, 351."""

    topic: TopicName


class QueueHeader(Header, frozen=True, kw_only=True):
    """Requests about one queue: 30, 31, 32."""

    topic: TopicName
    queue_id: Int32


class QueueTimestampHeader(QueueHeader, frozen=True, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    timestamp: Int64


class ViewMessageHeader(Header, frozen=True, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): the physical offset inside the message id."""

    offset: Int64


class UnregisterClientHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT (35). Whose connection it is says who leaves; the .NET client sends no
    ``clientID``."""

    client_id: Name = msgspec.field(default="", name="clientID")
    producer_group: Name | None = None
    consumer_group: Name | None = None


class SendBackHeader(Header, frozen=True, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: Name
    delay_level: Int32
    origin_msg_id: Keys = ""
    origin_topic: TopicName = ""
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessageHeader(Header, frozen=True, kw_only=True):
    """RECALL_MESSAGE (370)."""

    producer_group: Name = ""
    topic: TopicName
    recall_handle: Keys


class EndTransactionHeader(Header, frozen=True, kw_only=True):
    """END_TRANSACTION (37)."""

    producer_group: Name
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """``MessageSysFlag``: 0 not decided, 8 commit, 12 rollback."""
    from_transaction_check: bool = False
    msg_id: Keys = ""
    transaction_id: Keys = ""


class EndHalfMessagesHeader(Header, frozen=True, kw_only=True):
    """END_HALF_MESSAGES (31037), see :mod:`kerolox.protocol.extensions.half_messages`."""

    producer_group: Name
    from_offset: Int64
    """First offset of the half queue that is examined."""
    to_offset: Int64
    """Before it the request ends; it may lie behind the end of the queue."""
    commit_or_rollback: Int32
    """``MessageSysFlag``: 8 commit, 12 rollback."""


class RoleHeader(Header, frozen=True, kw_only=True):
    """GET_BROKER_ROLE (31038), see :mod:`kerolox.protocol.extensions.roles`."""

    tail_from: Int64 = -1
    """Where the compared end of the log begins at the earliest."""


class ResumeCheckHeader(Header, frozen=True, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    msg_id: Keys = ""


class ConsumerGroupHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38), GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: Name


class GroupHeader(Header, frozen=True, kw_only=True):
    """Requests about one group: 343, 352."""

    group: Name


class TopicsHeader(Header, frozen=True, kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21)."""

    attributes: bool | None = None
    """Kerolox's own: a slave asks whether its master knows attributes, and has the same member in
    the answer where it does. One of 4.9 does not, and takes none away."""


class GroupsHeader(TopicsHeader, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""

    group: Name | None = None
    """Kerolox's own: this group alone."""


class ProducerGroupHeader(Header, frozen=True, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: Name


class DeleteGroupHeader(Header, frozen=True, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: Name
    remove_offset: bool = False


class ConsumerStatsHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUME_STATS (208)."""

    consumer_group: Name
    topic: TopicName = ""


class ConsumeStatsInBrokerHeader(Header, frozen=True, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class ViewBrokerStatsHeader(Header, frozen=True, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: Name
    stats_key: Names


class GroupTopicHeader(Header, frozen=True, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303), QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    topic: TopicName
    group: Name


class ResetOffsetHeader(GroupTopicHeader, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222). Tools of 5.x name a queue, and an offset of it."""

    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 = -1
    """-1: all queues."""
    offset: Int64 = -1
    """-1: that of the time."""


class ConsumerStatusHeader(GroupTopicHeader, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    client_addr: Address = ""


class RunningInfoHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: Name
    client_id: Name
    jstack_enable: bool = False


class CorrectionOffsetHeader(Header, frozen=True, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308)."""

    compare_group: Name
    topic: TopicName
    filter_groups: Names = ""


class ConsumeDirectlyHeader(Header, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: Name
    client_id: Name = ""
    msg_id: Keys = ""
    broker_name: Name = ""


class CloneGroupOffsetHeader(Header, frozen=True, kw_only=True):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: Name
    dest_group: Name
    topic: TopicName = ""
    offline: bool = False


class QueryConsumeQueueHeader(Header, frozen=True, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: TopicName = ""
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: Name = ""


class AccountHeader(Header, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50)."""

    access_key: Names
    secret_key: Names | None = None
    white_remote_address: Names | None = None
    admin: bool = False
    default_topic_perm: Name | None = None
    default_group_perm: Name | None = None
    topic_perms: Names | None = None
    """``topic=permission``, joined by commas."""
    group_perms: Names | None = None

    def __repr__(self) -> str:
        """Without the secret."""
        return f"AccountHeader(access_key={self.access_key!r})"


class AccessKeyHeader(Header, frozen=True, kw_only=True):
    """DELETE_ACL_CONFIG (51)."""

    access_key: Names


class WhiteListHeader(Header, frozen=True, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""

    global_white_addrs: Names
    acl_file_full_path: Names = ""
    """Empty, or missing as before 4.9: the default file."""


class OffsetsHeader(Header, frozen=True, kw_only=True):
    """GET_ALL_CONSUMER_OFFSET (43)."""

    pops: bool = False
    """Kerolox's own: the answer is to have what pops have out, too."""
    log_end: Int64 = -1
    """Kerolox's own: where the log of the slave ends that asks; -1: it does not say."""


class PopMessageHeader(Header, frozen=True, kw_only=True):
    """POP_MESSAGE (200050)."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    """-1: all queues."""
    max_msg_nums: Int32
    invisible_time: Int64
    """Milliseconds until a message that is not acknowledged is delivered again."""
    poll_time: Int64
    """Milliseconds that the request waits for a message."""
    born_time: Int64 = 0
    """When the client asked; 0: now."""
    init_mode: Int32
    """Where a group without an offset begins: ``PopInitMode``."""
    exp_type: Name | None = None
    exp: Expression | None = None
    order: bool = False
    attempt_id: Name | None = None
    """Of an ordered pop: the same as of the one before, whose answer was lost."""


class PopMessageAnswer(Header, frozen=True, kw_only=True):
    """The answer to POP_MESSAGE; its texts are those of :mod:`kerolox.protocol.pop`."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    """Messages that are left in the queues that were read."""
    start_offset_info: LongText = ""
    msg_offset_info: LongText = ""
    order_count_info: LongText | None = None


class PeekMessageHeader(Header, frozen=True, kw_only=True):
    """PEEK_MESSAGE (200052); its answer is a :class:`PopMessageAnswer`."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    max_msg_nums: Int32


class AckMessageHeader(Header, frozen=True, kw_only=True):
    """ACK_MESSAGE (200051)."""

    consumer_group: Name
    topic: TopicName
    """The queue's own topic: that of the group's retries, when the message is one."""
    queue_id: Int32
    extra_info: Keys
    """The receipt: ``kerolox.protocol.pop.PopReceipt``."""
    offset: Int64


class ChangeInvisibleTimeHeader(AckMessageHeader, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    invisible_time: Int64
    """Milliseconds from now on."""


class ChangeInvisibleTimeAnswer(Header, frozen=True, kw_only=True):
    """The answer to CHANGE_MESSAGE_INVISIBLETIME: what makes the new receipt."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationHeader(Header, frozen=True, kw_only=True):
    """NOTIFICATION (200054)."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool = False
    attempt_id: Name | None = None


class NotificationAnswer(Header, frozen=True, kw_only=True):
    """The answer to NOTIFICATION."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoHeader(Header, frozen=True, kw_only=True):
    """POLLING_INFO (200055)."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32


class PollingInfoAnswer(Header, frozen=True, kw_only=True):
    """The answer to POLLING_INFO."""

    polling_num: Int32
    """Pops that wait."""
