"""Telemetry, Heartbeat and NotifyClientTermination: what clients say of themselves, and what they
are told (``ClientActivity``, ``GrpcClientSettingsManager``)."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from kerolox.broker.context import Context
from kerolox.broker.grpc import checks
from kerolox.broker.grpc.answers import AnswerError, enum_text, error_of, ok
from kerolox.broker.grpc.asking import Caller, parsed
from kerolox.broker.grpc.clients import (
    CONSUMERS,
    REQUEST_TIMEOUT_MS,
    SERVED,
    SETTINGS_BYTES_MAX,
    GrpcClient,
    GrpcClients,
    heartbeat_of,
    subscription_data,
)
from kerolox.broker.grpc.receiving import subscription_to
from kerolox.broker.grpc.routes import is_fifo
from kerolox.protocol.bodies import HEARTBEAT_GROUPS_MAX, SubscriptionData
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.grpc.wire import CallRefusedError, GrpcStatus
from kerolox.remoting.time_slices import TimeSlices

PRODUCER_ATTEMPTS = 3
RECEIVE_BATCH = 32
LONG_POLLING_SECONDS = 20
PRODUCER_BACKOFF_MS = 10, 1_000, 2.0
NODE_BACKOFF_MS = 5_000, 7_200_000, 2.0
"""First, longest, factor."""

CONSUMER_BACKOFF_SECONDS = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""``CustomizedRetryPolicy``."""


async def serve_telemetry(
    broker: Context, caller: Caller, clients: GrpcClients, note: Callable[[int, float], None]
) -> None:
    """Take settings and answer each, until the client ends the stream. ``note`` counts an answer:
    its code, and when its settings came."""
    call = caller.call
    call.begin()
    client: GrpcClient | None = None
    slices = TimeSlices()
    while (data := await call.message()) is not None:
        bytes_max = max(SETTINGS_BYTES_MAX, client.questions.bytes_max if client else 0)
        if len(data) > bytes_max:
            raise CallRefusedError(
                GrpcStatus.INVALID_ARGUMENT,
                f"a command of {len(data)} bytes; at most {bytes_max} are taken",
            )
        begun = monotonic()
        await slices.checkpoint()
        command = await parsed(pb.TelemetryCommand, data)
        if command.WhichOneof("command") != "settings":
            if client is not None:
                client.questions.answered(command)
            continue
        try:
            client = await _client_of(broker, caller, clients, command.settings, data)
        except AnswerError as error:
            call.send(pb.TelemetryCommand(status=error.status).SerializeToString())
            note(error.code, begun)
            continue
        if client.telemetry is not None and client.telemetry is not call:
            client.telemetry.finish()
        client.telemetry = call
        answer = pb.TelemetryCommand(status=ok(), settings=merged(broker, client, command.settings))
        call.send(answer.SerializeToString())
        note(answer.status.code, begun)
    if client is not None and client.telemetry is call:
        client.telemetry = None


async def _client_of(
    broker: Context, caller: Caller, clients: GrpcClients, settings: pb.Settings, data: bytes
) -> GrpcClient:
    """The client that says so. Clients repeat their settings, which costs next to nothing where no
    account is to be checked again."""
    said = hash(data)
    client = clients.get(caller.client_id)
    if client is None or client.said != said or broker.guards.access.is_on:
        client = await _take_settings(broker, caller, clients, settings)
        client.said = said
    else:
        clients.known(caller.client_id, caller.call, caller.language, caller.version)
        await beat(caller, client)
    return client


async def _take_settings(
    broker: Context, caller: Caller, clients: GrpcClients, settings: pb.Settings
) -> GrpcClient:
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise CallRefusedError(
            GrpcStatus.INVALID_ARGUMENT, "there is no publishing or subscription data in settings"
        )
    group, topics = "", []
    subscriptions: list[SubscriptionData] = []
    slices = TimeSlices()
    if kind == "publishing":
        client_type = int(pb.PRODUCER)
        _check_count(len(settings.publishing.topics), "topics")
        for each in settings.publishing.topics:
            await slices.checkpoint()
            topics.append(checks.topic_name(each))
        await caller.check_publishes(broker, topics)
    else:
        client_type = int(settings.client_type) or int(pb.SIMPLE_CONSUMER)
        _check_type(client_type)
        group = checks.group_name(settings.subscription.group)
        _check_count(len(settings.subscription.subscriptions), "subscriptions")
        for entry in settings.subscription.subscriptions:
            await slices.checkpoint()
            topic = checks.topic_name(entry.topic)
            subscription = await subscription_to(broker, topic, entry.expression)
            subscriptions.append(subscription_data(subscription))
    client = clients.known(caller.client_id, caller.call, caller.language, caller.version)
    if client is None:
        raise AnswerError(pb.TOO_MANY_REQUESTS, "too many clients are connected")
    client.client_type, client.group, client.said = client_type, group, 0
    client.request_timeout_ms = checks.milliseconds(settings.request_timeout) or REQUEST_TIMEOUT_MS
    client.subscriptions = subscriptions
    client.heartbeat = heartbeat_of(client, sorted(set(topics)))
    await beat(caller, client)
    return client


def _check_count(count: int, what: str) -> None:
    if count > HEARTBEAT_GROUPS_MAX:
        raise AnswerError(
            pb.BAD_REQUEST, f"{count} {what}; at most {HEARTBEAT_GROUPS_MAX} are taken"
        )


async def beat(caller: Caller, client: GrpcClient) -> None:
    """Have the broker's tables know that a client is here."""
    client.seen_at = caller.call.connection.loop.time()
    if client.heartbeat is None:
        return
    answer = await caller.request(client.heartbeat, client)
    if answer is not None and answer.code != ResponseCode.SUCCESS:
        raise error_of(answer)


def merged(broker: Context, client: GrpcClient, settings: pb.Settings) -> pb.Settings:
    """What a client said, with what the broker decides."""
    found = pb.Settings()
    found.CopyFrom(settings)
    found.metric.on = False
    if client.client_type not in CONSUMERS:
        _set_exponential(found, PRODUCER_ATTEMPTS, *PRODUCER_BACKOFF_MS)
        found.publishing.max_body_size = broker.config.max_message_size
        found.publishing.validate_message_type = True
        return found
    group = broker.tables.groups.find(client.group)
    attempts = (16 if group is None else group.retry_max_times) + 1
    if settings.user_agent.language == pb.NODE_JS:
        # It knows no other policy.
        _set_exponential(found, attempts, *NODE_BACKOFF_MS)
    else:
        found.backoff_policy.Clear()
        found.backoff_policy.max_attempts = attempts
        for seconds in CONSUMER_BACKOFF_SECONDS:
            found.backoff_policy.customized_backoff.next.add().seconds = seconds
    found.subscription.fifo = is_fifo(broker, client.group)
    found.subscription.receive_batch_size = RECEIVE_BATCH
    found.subscription.long_polling_timeout.seconds = LONG_POLLING_SECONDS
    found.subscription.long_polling_timeout.nanos = 0
    return found


def _set_exponential(
    settings: pb.Settings, attempts: int, initial_ms: int, max_ms: int, multiplier: float
) -> None:
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = attempts
    backoff = policy.exponential_backoff
    checks.set_ms(backoff.initial, initial_ms)
    checks.set_ms(backoff.max, max_ms)
    backoff.multiplier = multiplier


def _check_type(client_type: int) -> None:
    if client_type not in SERVED:
        name = enum_text(pb.ClientType, client_type)
        raise AnswerError(pb.UNRECOGNIZED_CLIENT_TYPE, f"clients of type {name} are not served")


async def heartbeat(
    broker: Context, caller: Caller, request: pb.HeartbeatRequest, client: GrpcClient | None
) -> pb.HeartbeatResponse:
    """A client is here. One whose settings are not known, after a restart of the broker for
    instance, is served all the same; it sends them again."""
    if request.client_type:
        _check_type(request.client_type)
    elif client is None:
        raise AnswerError(
            pb.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
        )
    if request.HasField("group") and request.group.name and request.client_type in CONSUMERS:
        checks.group_name(request.group)
    if client is not None:
        await beat(caller, client)
    return pb.HeartbeatResponse(status=ok())


async def notify_client_termination(
    broker: Context,
    caller: Caller,
    request: pb.NotifyClientTerminationRequest,
    client: GrpcClient | None,
) -> pb.NotifyClientTerminationResponse:
    """A client leaves."""
    if client is not None:
        client.close()
    return pb.NotifyClientTerminationResponse(status=ok())
