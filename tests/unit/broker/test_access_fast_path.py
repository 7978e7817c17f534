"""Access control and the fast path together: what is allowed is fast, also after changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.access.gate import AccessGate
from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.security.access.accounts import Account, Accounts
from tests.support.clients.peer import peer_of
from tests.unit.broker.test_access import (
    ACCOUNTS,
    SECRET,
    WORKER,
    accounts,
    guarded,
    is_denied,
    worker,
)

if TYPE_CHECKING:
    from tests.support.clients.peer import Peer

__all__ = ["guarded", "worker"]

pytestmark = pytest.mark.asyncio

SEND = RequestCode.SEND_MESSAGE_V2
HERE = frozenset(("127.0.0.1",))
OK = ResponseCode.SUCCESS


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many requests the gate was asked about, by code."""
    counted: Counter[int] = Counter()
    admit = AccessGate.admit

    def counting(gate: AccessGate, command: Any, connection: Any) -> str:
        counted[command.code] += 1
        return admit(gate, command, connection)

    monkeypatch.setattr(AccessGate, "admit", counting)
    return counted


async def test_signed_sends_and_pulls_are_fast(
    guarded: Broker, worker: Peer, slow: Counter[int]
) -> None:
    await worker.send("T", b"makes the topic")
    await worker.pull("T")
    slow.clear()
    for number in range(5):
        assert (await worker.send("T", b"%d" % number)).code == OK
        assert (await worker.pull("T", offset=1)).code == OK
    assert slow == {}
    assert is_denied(await worker.send("O"))
    assert guarded.parts.guards.access.denied.total() == 1


@pytest.mark.parametrize("is_global", [True, False])
async def test_trusted_addresses_are_fast_after_their_first_request(
    guarded: Broker, worker: Peer, slow: Counter[int], is_global: bool
) -> None:
    await worker.send("T", b"makes the topic")
    trusted = Account(WORKER.access_key, "another-secret", white=frozenset() if is_global else HERE)
    white = (HERE,) if is_global else ()
    guarded.parts.guards.access.use(Accounts({WORKER.access_key: trusted}, white))
    slow.clear()
    for _ in range(5):
        assert (await worker.send("T")).code == OK
    assert slow == {SEND: 1}
    guarded.parts.guards.access.use(Accounts({WORKER.access_key: trusted}, white))
    assert [(await worker.send("T")).code for _ in range(3)] == [OK] * 3
    assert slow == {SEND: 2}
    guarded.parts.guards.access.use(accounts())
    assert is_denied(await worker.send("T"))
    assert is_denied(await worker.send("T"))


async def test_an_address_is_trusted_with_the_accounts_that_say_so(
    guarded: Broker, worker: Peer
) -> None:
    await worker.send("T", b"makes the topic")
    trusted = Account("trusted-account", SECRET, white=HERE)
    known = dict(ACCOUNTS.by_key)
    del known[WORKER.access_key]
    guarded.parts.guards.access.use(Accounts({**known, trusted.access_key: trusted}))
    async with peer_of(guarded) as peer:
        named = {"AccessKey": trusted.access_key}
        assert (await peer.send("T", **named)).code == OK
        assert (await peer.send("T", **named)).code == OK
        assert is_denied(await peer.send("T", AccessKey="other-account"))
        assert is_denied(await peer.send("T"))
    assert is_denied(await worker.send("T"))


async def test_a_closed_connection_leaves_nothing_behind(guarded: Broker) -> None:
    guarded.parts.guards.access.use(Accounts(white=(HERE,)))
    async with peer_of(guarded) as peer:
        assert (await peer.send("T")).code == OK
    await guarded.stop()
    fast_path = guarded.parts.guards.access.fast_path
    assert fast_path is not None
    assert fast_path.connection_count == 0
    guarded.parts.guards.access.use(ACCOUNTS)
