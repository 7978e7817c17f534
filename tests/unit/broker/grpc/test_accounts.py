"""Access control for gRPC clients: one check for them and for those of remoting."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.conftest import prepared
from tests.unit.broker.grpc.test_calls import ENDPOINTS, message, resource, sent
from tests.unit.broker.grpc.test_clients import publishing, subscribing
from tests.unit.broker.grpc.test_receives import acked, answer_of, one, receive

from kerolox.broker.broker import Broker
from kerolox.kernel.metrics import CallCounts
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting import AUDIT_LOGGER
from kerolox.security.access.accounts import Account, Accounts, Permission
from kerolox.security.time_signature import (
    TimeSignatureError,
    is_signed_by,
    parse_authorization,
)

SECRET = "secret-of-worker"
TIME = "20261128T180000Z"
BOTH = Permission.PUB | Permission.SUB


def account(secret: str = SECRET, **resources: Permission) -> Accounts:
    named = {name.replace("RETRY_", "%RETRY%"): value for name, value in resources.items()}
    return Accounts(by_key={"worker": Account("worker", secret, resources=named)})


ALLOWED = account(T=BOTH, RETRY_readers=Permission.SUB)


def signed(key: str = "worker", secret: str = SECRET, *, suffix: str = "") -> dict[str, str]:
    signature = hmac.digest(secret.encode(), TIME.encode(), "sha1").hex()
    value = f"Credential={key}{suffix}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": f"MQv2-HMAC-SHA1 {value}", "x-mq-date-time": TIME}


def usual() -> Any:
    """A message that is the native kernel's, if its account is."""
    return message(born_host="here")


@pytest_asyncio.fixture(params=KERNELS)
async def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    config = small_config(
        tmp_path,
        grpc_server_port=free_port(),
        acl_enable=True,
        acl_file=str(tmp_path / "plain_acl.yml"),
        max_requests_per_second_per_address=0,
    )
    async with Broker(config, kernel=request.param) as started:
        await prepared(started)
        started.parts.guards.access.use(ALLOWED)
        yield started


@pytest_asyncio.fixture
async def worker(guarded: Broker) -> AsyncIterator[GrpcPeer]:
    async with grpc_peer(guarded.config.grpc_server_port) as peer:
        peer.metadata |= signed()
        yield peer


async def test_an_account_does_what_it_may(worker: GrpcPeer) -> None:
    assert (await worker.settled(**subscribing()))[1].status.code == pb.OK
    assert (await worker.settled(**publishing("T")))[1].status.code == pb.OK
    route = await worker.ask("QueryRoute", topic=resource("T"), endpoints=ENDPOINTS)
    assert route.status.code == pb.OK
    assert (await sent(worker, usual())).status.code == pb.OK
    assert await acked(worker, await one(worker)) == pb.OK


async def test_a_native_kernel_answers_calls_of_accounts_itself(
    worker: GrpcPeer, guarded: Broker
) -> None:
    for _ in range(3):
        # The first receive of a queue is Python's.
        assert (await sent(worker, usual())).status.code == pb.OK
        assert await acked(worker, await one(worker)) == pb.OK
    found = {path.rpartition("/")[2]: sum(counts) for path, _, counts, _ in calls_of(guarded)}
    if type(guarded.parts.store).__module__.startswith("kerolox._pykernel"):
        assert found == {}
    else:
        assert found["SendMessage"] == 3
        assert found.keys() == {"SendMessage", "ReceiveMessage", "AckMessage"}


def calls_of(broker: Broker) -> list[CallCounts]:
    return broker.parts.store.call_times()


async def test_what_a_kernel_has_is_refused_when_permissions_change(
    worker: GrpcPeer, guarded: Broker
) -> None:
    for _ in range(2):
        await sent(worker, usual())
        await acked(worker, await one(worker))
    await sent(worker, usual())
    found = await one(worker)
    await sent(worker, usual())
    before = calls_of(guarded)
    for allowed in (account(T=BOTH), account(T=Permission.PUB, RETRY_readers=Permission.SUB)):
        guarded.parts.guards.access.use(allowed)
        assert await answer_of(receive(worker)) == (pb.UNAUTHORIZED, [])
        assert await acked(worker, found) == pb.UNAUTHORIZED
    guarded.parts.guards.access.use(account(T=Permission.SUB, RETRY_readers=Permission.SUB))
    assert (await sent(worker, usual())).status.code == pb.UNAUTHORIZED
    assert calls_of(guarded) == before
    assert await acked(worker, found) == pb.OK


@pytest.mark.parametrize("suffix", ["", "//Rocketmq", "/region/RocketMQ"])
async def test_a_key_may_have_a_region_and_a_service_behind_it(
    worker: GrpcPeer, suffix: str
) -> None:
    worker.metadata |= signed(suffix=suffix)
    assert (await sent(worker, usual())).status.code == pb.OK


WRONG: dict[str, dict[str, str]] = {
    "nobody": {"authorization": ""},
    "no credentials": {"authorization": "MQv2-HMAC-SHA1 Credential=, Signature="},
    "no header": {"authorization": "nonsense"},
    "no hex": {"authorization": "MQv2-HMAC-SHA1 Credential=worker, Signature=xyz"},
    "wrong secret": signed(secret="other"),
    "unknown account": signed(key="stranger"),
    "another time": {**signed(), "x-mq-date-time": "20261128T180001Z"},
    "no time": {**signed(), "x-mq-date-time": ""},
    "half a signature": {"authorization": signed()["authorization"][:-20]},
    "a signature and more": {"authorization": signed()["authorization"] + "00"},
    "a key twice": {"authorization": signed()["authorization"] + ", Credential=stranger"},
    "a signature twice": {"authorization": signed()["authorization"] + ", Signature=00"},
    "no kind": {"authorization": signed()["authorization"].partition(" ")[2].replace(" ", "")},
}

ODD_AND_RIGHT = {
    "capital letters": signed()["authorization"][:-40] + signed()["authorization"][-40:].upper(),
    "another order": "MQv2-HMAC-SHA1 "
    + ",".join(reversed(signed()["authorization"].partition(" ")[2].split(","))),
    "a long one": signed()["authorization"] + ", More=" + "x" * 600,
}


async def test_who_proves_no_account_is_unauthorized_for_all(
    worker: GrpcPeer, guarded: Broker
) -> None:
    right = dict(worker.metadata)
    for name, wrong in WRONG.items():
        worker.metadata = right | wrong
        for call, members in (
            ("QueryRoute", {"topic": resource("T"), "endpoints": ENDPOINTS}),
            ("Heartbeat", {"client_type": pb.PRODUCER}),
            ("SendMessage", {"messages": [usual()]}),
            ("NotifyClientTermination", {}),
        ):
            assert (await worker.ask(call, **members)).status.code == pb.UNAUTHORIZED, name
        assert await answer_of(receive(worker)) == (pb.UNAUTHORIZED, []), name
        stream = worker.open("Telemetry")
        worker.flush()
        assert (await stream.message()).status.code == pb.UNAUTHORIZED, name
    assert sum(guarded.parts.guards.access.denied.values()) == 6 * len(WRONG)


async def test_an_account_may_be_written_in_several_ways(worker: GrpcPeer) -> None:
    for name, text in ODD_AND_RIGHT.items():
        worker.metadata["authorization"] = text
        assert (await sent(worker, usual())).status.code == pb.OK, name


async def test_what_an_account_may_not_do_is_unauthorized(worker: GrpcPeer) -> None:
    assert (await sent(worker, message("Any", born_host="here"))).status.code == pb.UNAUTHORIZED
    assert await answer_of(receive(worker, "Any")) == (pb.UNAUTHORIZED, [])
    assert await answer_of(receive(worker, group="others")) == (pb.UNAUTHORIZED, [])
    for settings in (subscribing("others"), publishing("T", "X")):
        _, answer = await worker.settled(**settings)
        assert answer.status.code == pb.UNAUTHORIZED


@pytest.mark.parametrize(
    ("permission", "route", "assignment"),
    [
        (Permission.DENY, pb.UNAUTHORIZED, pb.UNAUTHORIZED),
        (Permission.PUB, pb.OK, pb.UNAUTHORIZED),
        (Permission.SUB, pb.OK, pb.OK),
    ],
)
async def test_a_topic_is_shown_to_who_publishes_or_reads(
    worker: GrpcPeer, guarded: Broker, permission: Permission, route: int, assignment: int
) -> None:
    """A start that is refused at its route fails at once; clients wait for refused settings."""
    guarded.parts.guards.access.use(account(T=permission, RETRY_readers=Permission.SUB))
    asked = {"topic": resource("T"), "endpoints": ENDPOINTS}
    answer = await worker.ask("QueryRoute", **asked)
    assert (answer.status.code, bool(answer.message_queues)) == (route, route == pb.OK)
    answer = await worker.ask("QueryAssignment", group=resource("readers"), **asked)
    assert answer.status.code == assignment
    answer = await worker.ask("QueryAssignment", group=resource("others"), **asked)
    assert answer.status.code == pb.UNAUTHORIZED


async def test_a_receive_that_waits_is_checked_again(worker: GrpcPeer, guarded: Broker) -> None:
    stream = receive(worker)
    await until(lambda: len(guarded.parts.popping.held) == 1, what="the wait")
    guarded.parts.guards.access.use(account(T=Permission.PUB, RETRY_readers=Permission.SUB))
    assert (await sent(worker, usual())).status.code == pb.OK
    code, found = await answer_of(stream)
    assert (code != pb.OK, found) == (True, [])


async def test_a_changed_secret_counts_with_the_next_call(
    worker: GrpcPeer, guarded: Broker
) -> None:
    assert (await sent(worker, usual())).status.code == pb.OK
    guarded.parts.guards.access.use(account("new", T=BOTH))
    assert (await sent(worker, usual())).status.code == pb.UNAUTHORIZED
    worker.metadata |= signed(secret="new")
    assert (await sent(worker, usual())).status.code == pb.OK


async def test_without_access_control_no_header_is_read(client: GrpcPeer) -> None:
    """A client without credentials sends one with an empty key."""
    client.metadata |= WRONG["no credentials"]
    assert (await sent(client, usual())).status.code == pb.OK


@pytest.mark.parametrize(
    "text", ["MQv2 a", "MQv2 Credential=a, b", "x" * 5_000, "MQv2 Signature=0"]
)
def test_a_malformed_header_is_an_error(text: str) -> None:
    with pytest.raises(TimeSignatureError):
        parse_authorization(text)


def test_signatures_are_compared_whatever_their_letters_case() -> None:
    header = signed()["authorization"]
    for text in (header, header.replace(header[-40:], header[-40:].upper())):
        key, signature = parse_authorization(text)
        assert (key, is_signed_by(SECRET, TIME, signature)) == ("worker", True)
        assert not is_signed_by("other", TIME, signature)
    assert not is_signed_by(SECRET, "", hmac.digest(SECRET.encode(), b"", "sha1"))


async def test_a_denied_call_is_in_the_audit_log_with_its_name_and_client(
    worker: GrpcPeer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=AUDIT_LOGGER)
    assert (await sent(worker, message("Any", born_host="here"))).status.code == pb.UNAUTHORIZED
    worker.metadata |= signed("stranger")
    assert (await worker.settled(**publishing("T")))[1].status.code == pb.UNAUTHORIZED
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == AUDIT_LOGGER]
    assert [
        [line[name] for name in ("outcome", "account", "request", "call", "client")]
        for line in lines
    ] == [
        ["denied", "worker", "SEND_MESSAGE", "SendMessage", "client"],
        ["denied", "?stranger", "GET_ROUTEINFO_BY_TOPIC", "Telemetry", "client"],
    ]
    assert all(line["from"].startswith("127.0.0.1:") for line in lines)
