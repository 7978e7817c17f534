"""The client of a registry: what it asks, keeps, bounds, and says of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kerolox.errors import ClientClosedError, ConfigError
from kerolox.schemas import registry as module
from kerolox.schemas.registry import Reference, RegistryError, Schema, SchemaRegistry
from tests.schemas.server import RegistryServer
from tests.support.eventually import until

RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


async def test_a_schema_is_registered_found_and_kept(server: RegistryServer) -> None:
    async with SchemaRegistry(server.address) as registry:
        with pytest.raises(RegistryError) as unknown:
            await registry.lookup("a/b c", Schema(RECORD))
        assert unknown.value.is_unknown
        assert not unknown.value.may_pass
        references = (Reference("x", "y", 1),)
        assert await registry.register("a/b c", Schema(RECORD, references=references)) == 1
        assert await registry.register("other", Schema(RECORD, references=references)) == 1
        assert await registry.lookup("a/b c", Schema(RECORD, references=references)) == 1
        newest = await registry.latest("a/b c")
        assert (newest.id, newest.version, newest.references) == (1, 1, references)
        server.asked.clear()
        assert await registry.schema(1) == Schema(RECORD, references=references)
        assert server.asked == [], "the id was known by its version"
    with pytest.raises(ClientClosedError):
        await registry.latest("other")


async def test_those_who_want_one_schema_ask_once_and_one_may_give_up(
    server: RegistryServer,
) -> None:
    server.schemas.append({"schema": RECORD})
    server.held.clear()
    async with SchemaRegistry(server.address) as registry:
        waiting = [asyncio.ensure_future(registry.schema(1)) for _ in range(5)]
        await until(lambda: bool(server.asked))
        waiting[0].cancel()
        server.held.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [Schema(RECORD)] * 4
    assert len(server.asked) == 1


async def test_an_unknown_id_is_not_asked_for_again_for_a_while(server: RegistryServer) -> None:
    now = [0.0]
    async with SchemaRegistry(server.address, clock=lambda: now[0]) as registry:
        for moment, asked in ((0.0, 1), (9.0, 1), (11.0, 2), (-50.0, 3)):
            now[0] = moment
            with pytest.raises(RegistryError, match="Schema 7 not found") as told:
                await registry.schema(7)
            assert told.value.code == 40403
            assert len(server.asked) == asked, moment


async def test_what_is_kept_has_a_bound(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHARACTERS_KEPT_MAX", 2 * len(RECORD))
    server.schemas += [{"schema": RECORD.replace("R", each)} for each in "ABC"]
    async with SchemaRegistry(server.address) as registry:
        for number in (1, 2, 1, 3, 1, 2):
            await registry.schema(number)
    asked = [each.rpartition("/")[2] for each in server.asked]
    assert asked == ["1", "2", "3", "2"], "the one that was used least went"


@pytest.mark.parametrize(
    ("fault", "says", "may_pass"),
    [
        ((500, b'{"error_code":50001,"message":"no store"}'), "answers 500: no store", True),
        ((403, b"<html>"), "answers 403", False),
        ((422, b'{"error_code":42201,"message":"bad \\u001b[2J"}'), r"bad \\x1b\[2J", False),
        ((429, b"{}"), "answers 429", True),
        ((200, b"<html>"), "something else than a schema registry", False),
        ((200, b"[" * 100_000), "something else", False),
        ((200, b"x" * (module.SCHEMA_BYTES_MAX + 1)), "more than", True),
        ((302, b""), "answers 302", False),
    ],
)
async def test_a_fault_of_the_registry_is_told(
    server: RegistryServer, fault: tuple[int, bytes], says: str, may_pass: bool
) -> None:
    server.fault = fault
    async with SchemaRegistry(server.address) as registry:
        with pytest.raises(RegistryError, match=says) as told:
            await registry.schema(1)
        assert told.value.may_pass is may_pass
        server.fault = None
        server.schemas.append({"schema": RECORD})
        assert (await registry.schema(1)).schema == RECORD, "no fault is kept"


async def test_the_next_address_is_asked_where_one_does_not_answer(
    server: RegistryServer, unused_tcp_port: int
) -> None:
    server.schemas.append({"schema": RECORD})
    addresses = f"http://127.0.0.1:{unused_tcp_port},{server.address}/"
    async with SchemaRegistry(addresses) as registry:
        assert (await registry.schema(1)).schema == RECORD
        server.fault = (503, b"")
        with pytest.raises(RegistryError, match=r"does not answer.*; .* answers 503"):
            await registry.latest("x")


async def test_a_registry_that_is_silent_costs_its_time_limit(server: RegistryServer) -> None:
    server.held.clear()
    async with SchemaRegistry(server.address, timeout_seconds=0.05) as registry:
        with pytest.raises(RegistryError, match="does not answer") as told:
            await registry.schema(1)
    assert told.value.may_pass


@pytest.mark.parametrize(
    ("account", "given"),
    [
        ("Basic YW5uYTpzZWNyZXQ=", {"username": "anna", "password": "secret"}),
        ("Bearer abc", {"token": "abc"}),
    ],
)
async def test_an_account_is_in_each_request_and_in_no_text(
    server: RegistryServer, account: str, given: dict[str, str]
) -> None:
    server.account = account
    server.schemas.append({"schema": RECORD})
    async with SchemaRegistry(server.address, **given) as registry:
        assert (await registry.schema(1)).schema == RECORD
        assert "secret" not in repr(registry)
    async with SchemaRegistry(server.address) as registry:
        with pytest.raises(RegistryError, match="who are you") as told:
            await registry.schema(1)
    assert told.value.status == 401


@pytest.mark.parametrize(
    ("addresses", "given"),
    [
        ("", {}),
        ("127.0.0.1:8081", {}),
        ("ftp://x", {}),
        ("http://anna:secret@x", {}),
        ("http://x?y", {}),
        ("http://x", {"timeout_seconds": 0}),
        ("http://x", {"token": "a", "username": "b"}),
    ],
)
def test_settings_that_can_not_be_are_refused(addresses: str, given: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as told:
        SchemaRegistry(addresses, **given)
    assert "secret" not in str(told.value)
