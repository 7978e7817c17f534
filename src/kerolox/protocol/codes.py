"""The numbers of the wire, spelled once: request and response codes, flags, versions, languages.

Names are RocketMQ's (``RequestCode``, ``ResponseCode``, ``MQVersion``, ``PullSysFlag``,
``MessageSysFlag``, ``PermName``).
"""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Largest value of a frame's length field (com.rocketmq.remoting.frameMaxLength)."""

HEADER_BYTES_MAX = 4 * 1024 * 1024
"""Longest header; a frame whose lengths announce a longer one is refused before it is read. The
longest text that one may need is a subscription of a MiB."""

PULL_COUNT_MAX = 1024
"""Most messages that one pull may ask for."""

BATCH_ITEMS_MAX = 65_536
"""Most messages of a batch: the answer to more would not fit a header."""

HEADER_SIZE_MASK = 0x00FF_FFFF
"""Bits of a frame's second word that hold the header's length; the rest is the serialize type."""

SEE_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""What some remarks end with (``FAQUrl.attachDefaultURL``)."""

FLAG_RESPONSE = 1
"""``flag`` of a command: it answers a request."""

FLAG_ONEWAY = 2
"""``flag`` of a command: nobody waits for an answer."""

VERSION = 409
"""What we say we are: the MQVersion ordinal of V4_9_8."""

KEROLOX_VERSION, KEROLOX_KERNEL = "keroloxVersion", "keroloxKernel"
"""Members of Kerolox's own in the answer to GET_BROKER_RUNTIME_INFO; the first is a property of a
consumer in its answer to GET_CONSUMER_RUNNING_INFO, too."""

STORE_GROWTH, DISK_FULL_MS = "storeGrowthBytesPerSecond", "diskFullForecastTimestamp"
"""Members of Kerolox's own in the answer to GET_BROKER_RUNTIME_INFO: bytes a second that the log
grows by, and when the disk will be full; -1: never at this rate. Without history both are not
there."""

GRPC_DENIED, GRPC_DENIED_MS = "grpcDenied", "grpcDeniedTimestamp"
"""Members of Kerolox's own in the answer to GET_BROKER_RUNTIME_INFO: whose call by gRPC access
control denied last, and when."""

DEDUP_KEYS_CUT = "dedupKeysCut"
"""The same: topics whose windows of keys (``dedup.window.ms``) are shorter than they should be,
with how many keys were forgotten before their time: ``topic:count``, joined by spaces."""

DEDUP_WINDOWS_OFF = "dedupWindowsOff"
"""The same: topics that have ``dedup.window.ms`` and no window, joined by spaces; some of them."""
DEDUP_WINDOWS_OFF_MAX = 100

VERSION_3_0_7, VERSION_3_1_8 = 28, 62
"""Oldest clients that can reset offsets, and that can be asked for their state."""


_VERSION_4, _VERSION_HIGHER = 213, 612
_RELEASE = re.compile(r"([45])\.([0-9])\.([0-9])(?![0-9])")

VERSION_5 = 413
"""The MQVersion ordinal of V5_0_0."""

REMOTING, GRPC = "remoting", "grpc"
"""What clients speak (``protocol_type`` of RocketMQ 5's metrics)."""

PROTOCOL_TYPE = "protocolType"
"""Kerolox's own member of answers about clients that speak something else than remoting."""


def version_text(version: int) -> str:
    """The name of a version number (``MQVersion.getVersionDesc``), for example ``V4_9_8``; those
    before 4.0 have irregular numbers, and are shown with them."""
    if version >= _VERSION_HIGHER:
        return "HIGHER_VERSION"
    if version < _VERSION_4 - 1:
        return f"V3 ({version})"
    # Each release follows its snapshot, ten make a minor version, and ten of those a major.
    releases, is_release = divmod(version - _VERSION_4 + 1, 2)
    name = f"V{4 + releases // 100}_{releases // 10 % 10}_{releases % 10}"
    return name if is_release else f"{name}_SNAPSHOT"


def version_number(text: str) -> int:
    """The number of a version that a client of RocketMQ 5 names, as ``5.0.6``; that of V5_0_0 where
    RocketMQ has none for it, as for ``1.0.7``."""
    found = _RELEASE.match(text)
    if found is None:
        return VERSION_5
    major, minor, patch = map(int, found.groups())
    return _VERSION_4 + 200 * (major - 4) + 20 * minor + 2 * patch


def software_text(kerolox_version: str, version: str) -> str:
    """What somebody runs: ``Kerolox 0.2.0``, or, without a version of Kerolox, that of RocketMQ."""
    return f"Kerolox {kerolox_version}" if kerolox_version else version


class SerializeType(IntEnum):
    """Encoding of a frame's header."""

    JSON = 0
    ROCKETMQ = 1


class LanguageCode(IntEnum):
    """Language of a peer; an enum name in JSON headers, one byte in binary ones."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12


class RequestCode(IntEnum):
    """What a request asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    """Brokers before 4.9.8 alone."""
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_MESSAGE_FILTER_CLASS = 302
    """Filter servers alone; brokers of 4.3 and later start none by themselves."""
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    # Asked by clients and tools of 5.x alone.
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    BROKER_HEARTBEAT = 904
    GET_BROKER_HA_STATUS = 907
    # Of controllers; 1007 and 1008 are asked of a broker.
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    # Pops; see BINARY_CODE_MAX.
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    PEEK_MESSAGE = 200_052
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POLLING_INFO = 200_055
    POP_ROLLBACK = 200_056
    BATCH_ACK_MESSAGE = 200_151
    # Kerolox's own; no release of RocketMQ has a code near it.
    END_HALF_MESSAGES = 31_037
    GET_BROKER_ROLE = 31_038
    CHANGE_BROKER_ROLE = 31_039
    GET_POPPED_MESSAGES = 31_040
    RELEASE_POPPED_MESSAGES = 31_041
    RAFT_MESSAGE = 31_042
    CHANGE_CONTROLLERS = 31_043


class ResponseCode(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    """Of RocketMQ 5."""
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    # RocketMQ 5 gave two of these numbers away again, to the answers to a pop.
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604
    """Of RocketMQ 5."""
    # Of controllers.
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016


MASTER_ID = 0
"""The broker id of a master; others are those of its slaves."""


class PullSysFlag(IntFlag):
    """``sysFlag`` of a pull request."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class MessageSysFlag(IntFlag):
    """``sysFlag`` of a message."""

    COMPRESSED = 1
    MULTI_TAGS = 2
    TRANSACTION_PREPARED = 4
    TRANSACTION_COMMIT = 8
    TRANSACTION_ROLLBACK = 12
    BORN_HOST_V6 = 16
    STORE_HOST_V6 = 32
    NEED_UNWRAP = 64
    INNER_BATCH = 128


# As plain numbers, for what is done per record: each & with an enum's member makes a new member.
COMPRESSED = int(MessageSysFlag.COMPRESSED)
TRANSACTION_PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED)
TRANSACTION_ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)
TRANSACTION_MASK = TRANSACTION_ROLLBACK
"""Bits of a message's sysFlag that tell what part of a transaction it is."""

BORN_HOST_V6 = int(MessageSysFlag.BORN_HOST_V6)
STORE_HOST_V6 = int(MessageSysFlag.STORE_HOST_V6)
HOST_V6_MASK = BORN_HOST_V6 | STORE_HOST_V6

COMPRESSION_TYPE_MASK = 0x700
"""Bits of a message's sysFlag that name its compression: 0 and 3 zlib, 1 LZ4, 2 ZSTD."""

COMPRESSION_ZLIB = 0x300
"""zlib, as clients since 4.9.4 say it."""


class Perm(IntFlag):
    """Permissions of a topic or broker."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


BINARY_CODE_MAX = 0x7FFF
"""Highest code of a header in the binary encoding, which has 16 bits for it: requests with others
have JSON headers, as at a Java broker."""
