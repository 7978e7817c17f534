"""Access control of our broker and the Java broker's, by the same file of accounts: every request
code, every kind of account, every white list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.security.access.needs import OF_LATER_CODES, STRICT
from kerolox.security.credentials import Credentials
from tests.contract.access.matrix import (
    ACCOUNTS_FILE,
    ADDRESSES,
    KINDS,
    SECRET,
    TOPICS,
    Asked,
    Outcome,
    asked,
    outcomes,
)
from tests.support.clients.peer import peer_at, small_config
from tests.support.servers.clusters import JavaPeer

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

STRANGERS = KINDS[:3]
"""They are let in by the global white list alone."""
COUNTED = {10, 310, 320}
"""Codes that store a message in the topic that they name, and nothing else."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Java broker with the accounts."""
    settings = ("aclEnable=true", "autoCreateSubscriptionGroup=true")
    folder = tmp_path_factory.mktemp("java")
    with JavaPeer(folder, settings=settings, with_namesrv=False, accounts=ACCOUNTS_FILE) as peer:
        yield peer.port
        peer.kill()  # its orderly end takes seconds


@asynccontextmanager
async def ours(folder: Path, *, strict: bool) -> AsyncIterator[Broker]:
    (folder / "plain_acl.yml").write_text(ACCOUNTS_FILE)
    config = small_config(
        folder, acl_enable=True, acl_file=str(folder / "plain_acl.yml"), acl_strict=strict
    )
    async with Broker(config) as broker:
        yield broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def java_outcomes(java: int) -> dict[Asked, Outcome]:
    return await outcomes(java, await prepared(java))


async def prepared(port: int) -> dict[Asked, RemotingCommand]:
    """The requests of the matrix, for a broker that has the topics."""
    async with peer_at(f"127.0.0.1:{port}", Credentials("is-admin", SECRET)) as admin:
        for topic in TOPICS:
            assert (await admin.create_topic(topic, queues=1)).code == ResponseCode.SUCCESS
    return asked()


def differing(
    theirs: dict[Asked, Outcome], found: dict[Asked, Outcome]
) -> dict[Asked, tuple[Outcome, Outcome]]:
    """Where one is denied and the other is not, or by another text."""
    return {
        each: (outcome, found[each])
        for each, outcome in theirs.items()
        if outcome.denial != found[each].denial
    }


def code_of(each: Asked) -> int:
    return int(each.case.split()[0])


@pytest.mark.asyncio(loop_scope="module")
async def test_without_strictness_all_is_decided_as_by_the_java_broker(
    java_outcomes: dict[Asked, Outcome], tmp_path: Path
) -> None:
    async with ours(tmp_path, strict=False) as broker:
        found = await outcomes(broker.port, await prepared(broker.port))
    others = {
        each: pair
        for each, pair in differing(java_outcomes, found).items()
        if code_of(each) not in OF_LATER_CODES
    }
    assert others == {}
    assert all(each.code == 1 for each in found.values() if each.denial)
    assert len(java_outcomes) > 3 * len(KINDS) * len(RequestCode)


@pytest.mark.asyncio(loop_scope="module")
async def test_strictness_denies_more_and_only_where_it_says(
    java_outcomes: dict[Asked, Outcome], tmp_path: Path
) -> None:
    async with ours(tmp_path, strict=True) as broker:
        found = await outcomes(broker.port, await prepared(broker.port))
    others = differing(java_outcomes, found)
    assert {code_of(each) for each in others} <= {*STRICT, *OF_LATER_CODES}
    assert [each for each in others if found[each].denial is None] == []
    assert {each.address for each in others} == {"127.0.0.1", "127.0.0.3"}
    # Whoever may do all is denied nothing.
    assert {each.kind for each in others if code_of(each) != 54} & {"is-admin"} == set()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("strict", [True, False])
async def test_what_is_denied_did_not_happen(tmp_path: Path, strict: bool) -> None:
    async with ours(tmp_path, strict=strict) as broker:
        requests = await prepared(broker.port)
        parts = broker.parts
        groups, log_end = parts.tables.groups.names, parts.store.max_physical_offset
        strangers = {
            each: command
            for each, command in requests.items()
            if each.kind in STRANGERS and each.address == ADDRESSES[0]
        }
        assert all(each.denial for each in (await outcomes(broker.port, strangers)).values())
        assert parts.store.max_physical_offset == log_end
        assert parts.tables.groups.names == groups
        assert "MMade" not in parts.tables.topics
        assert parts.tables.offsets.snapshot()["offsetTable"] == {}
        for each in requests.keys() & strangers.keys():
            del requests[each]
        found = await outcomes(broker.port, requests)
        for topic in TOPICS:
            done = [
                each
                for each, outcome in found.items()
                if outcome.code == 0 and code_of(each) in COUNTED and each.case.split()[1] == topic
            ]
            assert done
            # Replies are stored in the topic that they name, whatever becomes of their push.
            replies = [
                each
                for each, outcome in found.items()
                if outcome.denial is None and each.case in (f"324 {topic}", f"325 {topic}")
            ]
            assert parts.store.queue_bounds(topic, 0)[1] == len(done) + len(replies)
