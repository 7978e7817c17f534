"""Settings of all clients, and of producers, with RocketMQ's defaults.

Each field's text gives RocketMQ's name where it differs in more than spelling. Wrong values are a
:class:`ConfigError` at once, naming the field.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from enum import Enum
from typing import Self

from kerolox.client.core.arguments import checked_keywords, choice, settings_text
from kerolox.client.core.failures import FailureCallback
from kerolox.client.core.hooks import EndTransactionHook, RpcHook, SendHook
from kerolox.client.core.sending.retry import RETRIED_CODES
from kerolox.client.core.validate import check_topic
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.compression import CompressionType, check_compression
from kerolox.protocol.names import AUTO_CREATE_TOPIC, SCHEDULE_QUEUES, TRACE_TOPIC
from kerolox.security.credentials import Credentials
from kerolox.security.tls import Tls, check_tls
from kerolox.settings_class import settings_dataclass

_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]*")

ENCODING_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"
"""The environment variable with the encoding of headers, as Java's clients read it."""

CONCURRENCY_MAX = 1000
"""Most listeners of one consumer that may run at the same time."""


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientSettings:
    """The settings that all clients share (``ClientConfig``)."""

    client_ip: str = ""
    """Our address in client and message ids; empty: that of the interface to the default route."""
    instance_name: str = "DEFAULT"
    """Second half of the client id. DEFAULT becomes pid#nanoseconds, so that each client object is
    its own instance; only broadcasting consumers keep it, since it names their offset folder."""
    unit_mode: bool = False
    unit_name: str = ""
    """Part of the client id, and of the web server's address, in a cluster of several units."""
    name_server_domain: str = ""
    """Host, or ``host:port``, of the web server that is asked for name servers when none are given
    (``rocketmq.namesrv.domain``); empty: ``$ROCKETMQ_NAMESRV_DOMAIN``."""
    name_server_subgroup: str = "nsaddr"
    """Last part of that server's address (``rocketmq.namesrv.domain.subgroup``)."""
    namespace: str = ""
    """Prefix of all our topics and groups; empty: that of a name server address of the form
    ``http://MQ_INST_1_b.host:80``, else none."""
    rpc_hook: RpcHook | None = None
    """Sees and may change every request of the client."""
    on_failure: FailureCallback | None = None
    """Told of each failure that no caller gets: of a heartbeat, a pull, a rebalance, a listener.
    A plain function; it runs in the event loop and must not wait."""
    credentials: Credentials | None = None
    """Each request is signed with these, after all hooks, for brokers with ``aclEnable``
    (``AclClientRPCHook``); None: none is."""
    tls: Tls = False
    """How connections to name servers and brokers are encrypted (``useTLS``, ``tls.enable``): True
    for the defaults of :class:`TlsSettings`, settings, or an ``ssl.SSLContext``. Files are read at
    each start."""
    serialize_type: SerializeType | str | None = None
    """Encoding of the headers of requests, JSON or ROCKETMQ (``rocketmq.serialize.type``); None:
    ``$ROCKETMQ_SERIALIZE_TYPE``, else JSON."""
    api_timeout_ms: int = 3_000
    """Time limit of a request that is no send and no pull (``mqClientApiTimeout``). Of several
    name servers each but the last is waited for its share of it, then the next one is asked."""
    route_poll_interval_ms: int = 30_000
    """``pollNameServerInterval``."""
    heartbeat_interval_ms: int = 30_000
    """``heartbeatBrokerInterval``."""

    def __post_init__(self) -> None:
        self._check("api_timeout_ms", 1, 3_600_000)
        self._check("route_poll_interval_ms", 10, 3_600_000)
        self._check("heartbeat_interval_ms", 10, 3_600_000)
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigError(f"namespace is {self.namespace!r}; allowed are a-z A-Z 0-9 _ - in it")
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # Its text may be a secret.
            kind = type(self.credentials).__name__
            raise ConfigError(f"credentials are a {kind}; make Credentials(access_key, secret_key)")
        check_tls(self.tls)
        if inspect.iscoroutinefunction(self.on_failure):
            raise ConfigError(
                "on_failure is an async function, which nobody awaits; give a plain one, which may"
                " create a task"
            )
        self.header_encoding  # noqa: B018 - a wrong one must not wait for the start

    @property
    def header_encoding(self) -> SerializeType:
        """``serialize_type``, or what the environment says.

        Raises:
            ConfigError: it is no encoding.
        """
        given, what = self.serialize_type, "serialize_type"
        if given is None:
            given, what = os.environ.get(ENCODING_VARIABLE, "").strip(), f"${ENCODING_VARIABLE}"
        return choice(SerializeType, given or SerializeType.JSON, what)

    def _check(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{name} is {value!r}; it must be from {least} to {most}")

    def _choose(self, name: str, kind: type[Enum]) -> None:
        object.__setattr__(self, name, choice(kind, getattr(self, name), name))

    def _check_trace_topic(self, topic: str) -> None:
        try:
            check_topic(topic)
        except MessageRejectedError as error:
            raise ConfigError(f"trace_topic: {error}") from None

    def __repr__(self) -> str:
        return settings_text(self)

    def changed(self, **changes: object) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def within(self, connection: ClientSettings) -> Self:
        """These settings, for something that a connection makes: what is at its default here is as
        the connection has it.

        Raises:
            ConfigError: one is set to something else that only the connection can have.
        """
        changes: dict[str, object] = {}
        for field in dataclasses.fields(ClientSettings):
            name, ours, theirs = (
                field.name,
                getattr(self, field.name),
                getattr(connection, field.name),
            )
            if ours == theirs:
                continue
            if ours == field.default:
                changes[name] = theirs
            elif name not in OF_EACH:
                raise ConfigError(
                    f"{name} is a setting of the connection: give it to connect(), not to what is"
                    " made from it"
                )
        return self.changed(**changes)

    def of_instance(self) -> tuple[object, ...]:
        """What all that share connections must agree on."""
        return tuple(getattr(self, name) for name in INSTANCE_FIELDS)


OF_EACH = frozenset(("namespace", "unit_mode"))
"""Fields that members of one client instance may have each their own of."""

INSTANCE_FIELDS = tuple(
    each.name for each in dataclasses.fields(ClientSettings) if each.name not in OF_EACH
)
"""The settings of a client instance; of its members all are the same."""


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerSettings(ClientSettings):
    """Settings of a producer (``DefaultMQProducer``)."""

    send_timeout_ms: int = 3_000
    """Time limit of a send: route, connection and all its retries (``sendMsgTimeout``)."""
    retries: int = 2
    """Further tries after a failed one, on other brokers if there are
    (``retryTimesWhenSendFailed``). Before a broker is asked again there is a pause: 50 ms, then
    twice as long each time, up to 1 s."""
    retried_codes: frozenset[int] = RETRIED_CODES
    """Response codes that are worth a retry (``retryResponseCodes``)."""
    retry_when_not_stored_ok: bool = False
    """Try another broker too when the status is not SEND_OK; it may store the message twice
    (``retryAnotherBrokerWhenNotStoreOK``)."""
    latency_fault_enable: bool = False
    """Avoid brokers that were slow or failed for a while (``sendLatencyFaultEnable``)."""
    message_bytes_max: int = 4 * 1024 * 1024
    """Largest body, and largest batch (``maxMessageSize``)."""
    compress_bytes_min: int = 4096
    """Bodies of this size or more travel and are stored compressed
    (``compressMsgBodyOverHowmuch``)."""
    compress_level: int = 5
    """Level of zlib and ZSTD, 0 to 9."""
    compress_type: CompressionType | str = CompressionType.ZLIB
    """How bodies are compressed: ZLIB, LZ4 or ZSTD (``rocketmq.message.compressType``). Clients of
    RocketMQ before 4.9.4 read ZLIB only; ours need ``kerolox[compression]`` for the others."""
    batching: bool = False
    """Messages that wait together travel in one request, each with its own result: those of one
    topic, to one queue that is given or to any, and one ``wait_store_ok`` (``autoBatch``). Delayed
    and compressed ones, those of transactions and those that a hook sees go alone."""
    linger_ms: int = 0
    """How long a message waits for others; 0: for those of the same iteration of the event loop
    (``holdMaxMs``)."""
    batch_bytes_max: int = 32 * 1024
    """Size at which a batch waits no longer (``batchMaxBytes``)."""
    submits_max: int = 100_000
    """Sends without an outcome from which on ``submit`` takes no further one."""
    vip_channel: bool = False
    """Sends go to the brokers' second port, two below the first (``vipChannelEnabled``)."""
    create_topic_key: str = AUTO_CREATE_TOPIC
    """The topic that a new topic takes its route and permissions from."""
    default_topic_queue_nums: int = 4
    """Most queues of a topic that the broker creates for us."""
    delay_level_max: int = SCHEDULE_QUEUES
    """Highest delay level of a message: as many as the brokers' ``messageDelayLevel`` has. A
    broker delays what is higher by its highest level."""
    delay_levels: str = DEFAULT_DELAY_LEVELS
    """The brokers' ``messageDelayLevel``, for ``deliver_after`` of a send."""
    transaction_concurrency: int = 16
    """Checks of transactions that run at the same time (``checkThreadPoolMaxSize``); the blocking
    producer runs local transactions in as many threads."""
    check_requests_max: int = 2_000
    """Checks that wait; more are dropped and come again (``checkRequestHoldMax``)."""
    enable_trace: bool = False
    """Write a trace of each message that is sent, and of each transaction's end
    (``enableMsgTrace``)."""
    trace_topic: str = TRACE_TOPIC
    """Where traces go (``customizedTraceTopic``). The brokers must have the topic: RocketMQ's own
    is there with ``traceTopicEnable``, others are created, or create themselves."""
    send_hooks: tuple[SendHook, ...] = ()
    """Run around each try of a send."""
    end_transaction_hooks: tuple[EndTransactionHook, ...] = ()
    """Run before a broker is told how a transaction ended."""

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        self._check("send_timeout_ms", 1, 3_600_000)
        self._check("retries", 0, 100)
        self._check("message_bytes_max", 1, 15 * 1024 * 1024)
        self._check("linger_ms", 0, 60_000)
        self._check("batch_bytes_max", 1, 15 * 1024 * 1024)
        self._check("submits_max", 1, 10_000_000)
        self._check("compress_bytes_min", 0, 2**31)
        self._check("compress_level", 0, 9)
        self._check("default_topic_queue_nums", 1, 65_535)
        self._check("delay_level_max", 0, 65_535)
        self._check("transaction_concurrency", 1, CONCURRENCY_MAX)
        self._check("check_requests_max", 1, 100_000)
        check_compression(self.compression)
        self.delays_ms  # noqa: B018 - a malformed list must not wait for the first delay
        self._check_trace_topic(self.trace_topic)

    @property
    def compression(self) -> CompressionType:
        """``compress_type`` as a member.

        Raises:
            ConfigError: it is none.
        """
        return choice(CompressionType, self.compress_type, "compress_type")

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of level 1, 2 and so on, by ``delay_levels``.

        Raises:
            ConfigError: they can't be read.
        """
        return delay_levels_ms(self.delay_levels, name="delay_levels")
