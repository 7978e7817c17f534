"""What subscribers, publishers and brokers take by name, each list in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.configs import UnderlyingDriverAnnotations
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.context import ContextRepo
from faststream.middlewares import AckPolicy
from faststream.security import BaseSecurity

from kerolox.client.aio.consumer_settings import PushConsumerSettings, SimpleConsumerSettings
from kerolox.client.aio.producers.transaction import TransactionCheck
from kerolox.client.aio.settings import ClientSettings, ProducerSettings
from kerolox.integrations.faststream.response import MessageOptions

if TYPE_CHECKING:
    from fast_depends import Provider

Mode = Literal["push", "ordered", "queue"]
"""How a subscriber reads: see :class:`SubscriberOptions`."""


class EndpointOptions(TypedDict, total=False):
    """What subscribers and publishers have in common."""

    persistent: bool
    """The broker keeps it alive; False: who made it does."""
    title: str
    """In the AsyncAPI document."""
    description: str
    """In the AsyncAPI document."""
    include_in_schema: bool
    """It stands in the AsyncAPI document (True)."""


class SubscriberOptions(EndpointOptions, total=False):
    """Of a subscriber."""

    group: str
    """Consumer group; all its members must have the same topics and expression. Left out: the
    broker's ``group``, a hyphen, and the topics, joined by hyphens."""
    expression: str
    """``*`` for all messages, tags joined by ``||``, or a condition (SQL92) on properties."""
    mode: Mode
    """``push`` (the default): members share the queues. ``ordered``: each queue in order, under the
    broker's lock; all members of the group must do the same. ``queue``: no member owns a queue, and
    each message is acknowledged by itself (POP); brokers of RocketMQ 5 and ours have it."""
    settings: PushConsumerSettings | SimpleConsumerSettings
    """Of the consumer; the second kind is for mode ``queue``."""
    max_workers: int
    """Most handlers that run at the same time (1)."""
    batch: bool
    """The handler gets a list of messages; not in mode ``ordered``."""
    max_records: int
    """Most messages of a batch (32)."""
    batch_timeout_ms: int
    """How long a batch waits for more messages behind its first one (200)."""
    ack_policy: AckPolicy
    """When messages are done; left out: that of router or broker, else NACK_ON_ERROR: a message
    whose handler raises comes again, longer after each time, and at last is a dead letter."""
    no_reply: bool
    """Send no replies, even to those that wait for one (False)."""
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None


class PublisherOptions(EndpointOptions, MessageOptions, total=False):
    """Of a publisher."""

    headers: dict[str, str] | None
    """In each of its messages."""
    reply_to: str
    """The topic to which those who handle its messages publish their results."""
    schema: Any
    """Type of the messages in the AsyncAPI document; left out: what the handlers return."""


class CommonOptions(TypedDict, total=False):
    """Of a broker, made by itself or by the router for FastAPI."""

    settings: ClientSettings
    """Of the connection; producer and consumers have them too."""
    producer_settings: ProducerSettings
    """Of the producer, beside those of the connection."""
    group: str
    """Producer group, and what the names of groups begin with that subscribers do not name
    (``faststream``)."""
    transaction_check: TransactionCheck
    """Says how a transaction ended, as for :class:`kerolox.TransactionProducer`. With it the broker
    has :meth:`KeroloxBroker.transaction`."""
    create_topics: bool
    """Create topics of subscribers that no name server knows, at their start (False). It needs the
    right to do so where access is controlled."""
    security: BaseSecurity | None
    """TLS, and with ``SASLPlaintext`` an account, beside those of ``settings``."""
    graceful_timeout: float | None
    """Seconds that a stop waits for handlers that run (15)."""
    ack_policy: AckPolicy
    decoder: CustomCallable | None
    parser: CustomCallable | None
    codec: CodecProto | None
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    id_generator: IdGenerator
    serializer: SerializerProto | None
    specification_url: str
    """In the AsyncAPI document; left out: the name server."""
    protocol: str
    protocol_version: str
    description: str
    logger: LoggerProto | None
    log_level: int
    context: ContextRepo | None


class BrokerOptions(CommonOptions, total=False):
    """Of a broker that is made by itself."""

    dependencies: Sequence[Dependant]
    routers: Iterable[Any]
    tags: Iterable[Any]
    """In the AsyncAPI document."""
    apply_types: bool
    provider: Provider | None
    underlying_driver_annotations: UnderlyingDriverAnnotations | None
