"""What an account may cost others: requests that are rightly signed, and as large as any may be."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.protocol.bodies import REQUEST_BODY_BYTES_MAX
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.security.credentials import Credentials, Signer
from tests.abuse.conftest import SETTINGS
from tests.support.eventually import SECONDS_MAX
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNT = Credentials("abusive-account", "a secret of twelve")
ABUSER = "127.0.0.9"
"""Another address of the loopback than the probe's, which needs no signature."""

ACCOUNTS = f"""\
globalWhiteRemoteAddresses: [127.0.0.1]
accounts:
- accessKey: {ACCOUNT.access_key}
  secretKey: {ACCOUNT.secret_key}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: idle-account
  secretKey: {ACCOUNT.secret_key}
"""


@pytest.fixture(scope="module", params=KERNELS[-1:])  # heartbeats are judged above the kernels
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("signed")
    (folder / "conf").mkdir()
    (folder / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {**SETTINGS, "listenHost": "127.0.0.1", "aclEnable": "true"}
    environment = {"ROCKETMQ_HOME": str(folder)}
    kernel = request.param
    with Up(
        folder, settings=settings, kernel=kernel, environment=environment, counted=True
    ) as started:
        yield started


def consumers(count: int) -> list[dict[str, Any]]:
    return [{"groupName": f"g{number}"} for number in range(count)]


def subscriptions(count: int) -> list[dict[str, Any]]:
    return [{"topic": f"t{number}", "subString": "*"} for number in range(count)]


def subscribed(groups: int, topics: int) -> dict[str, Any]:
    """A heartbeat of so many groups with so many topics each."""
    sets = [{**each, "subscriptionDataSet": subscriptions(topics)} for each in consumers(groups)]
    return {"consumerDataSet": sets}


TOO_MANY_GROUPS = "length <= 2048"

HEARTBEATS: dict[str, tuple[dict[str, Any], str]] = {
    "45,000 groups of consumers": ({"consumerDataSet": consumers(45_000)}, TOO_MANY_GROUPS),
    "45,000 groups of producers": ({"producerDataSet": consumers(45_000)}, TOO_MANY_GROUPS),
    "2,048 groups of both kinds": (
        {"producerDataSet": consumers(2_048), "consumerDataSet": consumers(2_048)},
        "2048 groups on its connection already",
    ),
    "16,000 topics": (subscribed(1, 16_000), "at most 2048 are allowed"),
    "2,000 groups of 12 topics": (subscribed(2_000, 12), ""),
    "12 groups of 2,000 topics": (subscribed(12, 2_000), ""),
}
"""And what is said of those that are too large."""


def ask(up: Up, by: Credentials, code: int, body: bytes) -> RemotingCommand:
    """The answer to one request of the abuser's address."""
    command = RemotingCommand.request(code, body=body)
    Signer(by).sign(command)
    with socket.create_connection(
        ("127.0.0.1", up.port), SECONDS_MAX, source_address=(ABUSER, 0)
    ) as connection:
        connection.sendall(command.encode())
        decoder = FrameDecoder()
        while True:
            data = connection.recv(1 << 18)
            assert data, "the broker closed the connection"
            for answer in map(RemotingCommand.decode, decoder.feed(data)):
                # Members of the client's groups are told of each other.
                if answer.is_response:
                    return answer


REFUSED = ("45,000 groups of consumers", "2,000 groups of 12 topics")
"""Of those also by an account that may not: one that is refused as it is parsed, and the one that
takes longest to judge."""


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [*((name, True) for name in HEARTBEATS), *((name, False) for name in REFUSED)],
)
def test_others_are_served_while_a_large_heartbeat_is_judged(
    up: Up, name: str, is_allowed: bool
) -> None:
    heartbeat, fault = HEARTBEATS[name]
    body = json.dumps({"clientID": "c", **heartbeat}, separators=(",", ":")).encode()
    assert len(body) < REQUEST_BODY_BYTES_MAX
    by = ACCOUNT if is_allowed else Credentials("idle-account", ACCOUNT.secret_key)
    with Probe(up) as probe:
        answers = [ask(up, by, RequestCode.HEART_BEAT, body) for _ in range(3)]
    probe.verdict(memory_mib_max=256)
    for answer in answers:
        text = answer.remark or ""
        if not is_allowed and fault != TOO_MANY_GROUPS:
            assert "No default permission for group:g0" in text, text
        elif fault:
            assert fault in text, text
        else:
            assert answer.code == ResponseCode.SUCCESS, text
