"""The provider for Airflow, with classes in the place of Airflow's own; ``test_airflow_runs.py``
has the real ones."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kerolox import ConfigError, Credentials, TlsSettings
from kerolox.client.sync import Producer
from kerolox.integrations.airflow import get_provider_info
from kerolox.message import Message
from kerolox.testing import LocalBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
HERE = "kerolox.integrations.airflow"


class TriggerEvent(NamedTuple):
    payload: dict[str, Any]


class PokeReturnValue(NamedTuple):
    is_done: bool
    xcom_value: Any


class Deferred(Exception):
    pass


class BaseHook:
    found: Any = None
    """The connection that every name is."""

    def get_connection(self, name: str) -> Any:
        return self.found

    @classmethod
    async def aget_connection(cls, name: str) -> Any:
        return cls.found


class BaseSensorOperator:
    def __init__(self, *, task_id: str, timeout: float = 60) -> None:
        self.timeout = timeout

    def defer(self, **given: Any) -> Any:
        raise Deferred(given)

    def execute(self, context: Any) -> Any:
        return "poked"


class BaseEventTrigger:
    log = SimpleNamespace(warning=print)


class BaseMessageQueueProvider:
    scheme: str | None = None


MODULES: dict[str, dict[str, Any]] = {
    "airflow.sdk": {
        "BaseHook": BaseHook,
        "BaseSensorOperator": BaseSensorOperator,
        "Connection": object,
        "Context": object,
        "PokeReturnValue": PokeReturnValue,
    },
    "airflow.triggers.base": {"BaseEventTrigger": BaseEventTrigger, "TriggerEvent": TriggerEvent},
    "airflow.providers.common.messaging.providers.base_provider": {
        "BaseMessageQueueProvider": BaseMessageQueueProvider
    },
}
PARTS = ("hooks", "triggers", "sensors", "queues")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of the provider, on these classes."""
    for name, content in MODULES.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield SimpleNamespace(**{part: importlib.import_module(f"{HERE}.{part}") for part in PARTS})
    for part in PARTS:
        del sys.modules[f"{HERE}.{part}"]


def connection(host: str, extra: dict[str, Any] | None = None, **given: Any) -> Any:
    values = {"conn_id": "kerolox_default", "port": None, "login": None, "password": None, **given}
    return SimpleNamespace(host=host, extra_dejson=extra or {}, **values)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


def send(local: LocalBroker, topic: str, *bodies: bytes, tags: str = "new") -> None:
    with Producer("airflow-test", local.name_server) as producer:
        for body in bodies:
            producer.send(Message(topic, body, tags=tags, keys="42"))


def test_all_that_the_provider_names_is_there(parts: SimpleNamespace) -> None:
    info = get_provider_info()
    [kind] = info["connection-types"]
    classes = [*info["queues"], kind["hook-class-name"]]
    modules = [
        name
        for part in ("hooks", "sensors", "triggers")
        for name in info[part][0]["python-modules"]
    ]
    for name in classes:
        module, _, class_name = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), class_name), type)
    for name in modules:
        importlib.import_module(name)
    assert kind["connection-type"] == parts.hooks.KeroloxHook.conn_type
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert info["package-name"] == project["name"]
    [entry] = project["entry-points"]["apache_airflow_provider"].values()
    assert entry == f"{HERE}:get_provider_info"


@pytest.mark.parametrize("part", PARTS)
def test_without_airflow_each_part_names_the_extra(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"kerolox\[airflow\]"):
        importlib.import_module(f"{HERE}.{part}")


def test_a_connection_gives_name_servers_account_namespace_and_tls(parts: SimpleNamespace) -> None:
    client_of = parts.hooks.client_of
    host, settings = client_of(connection("a:1;b:2", port=3))
    assert (host, settings.tls, settings.credentials) == ("a:1;b:2", False, None)
    assert client_of(connection("a", port=9876))[0] == "a:9876"
    extra = {"namespace": "tenant", "tls": True, "tls_ca": "ca.pem", "tls_check_host_name": False}
    _, settings = client_of(connection("a:1", extra, login="access", password="secret"))
    assert settings.credentials == Credentials("access", "secret")
    assert settings.namespace == "tenant"
    assert settings.tls == TlsSettings(ca="ca.pem", check_host_name=False)
    with pytest.raises(ConfigError, match="no host"):
        client_of(connection(""))


def test_a_trigger_gives_one_event_and_acknowledges_its_messages(
    parts: SimpleNamespace, local: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BaseHook, "found", connection(local.name_server))
    topic = local.create_topic(queues=1)
    made = parts.queues.KeroloxMessageQueueProvider().trigger_class()(
        topic=topic, group="billing", expression="new", max_messages=2
    )
    class_path, arguments = made.serialize()
    assert class_path == f"{HERE}.triggers.AwaitMessageTrigger"
    trigger = parts.triggers.AwaitMessageTrigger(**json.loads(json.dumps(arguments)))

    async def events() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    send(local, topic, b"of others", tags="old")
    send(local, topic, b"one", b"\xff")
    found = []
    while sum(len(each["messages"]) for each in found) < 2:
        found += asyncio.run(asyncio.wait_for(events(), 30))
    one, two = (message for each in json.loads(json.dumps(found)) for message in each["messages"])
    assert (one["body"], one["tags"], one["keys"], one["topic"]) == ("one", "new", "42", topic)
    assert (two["body_base64"], "body" in two) == ("/w==", False)
    local.advance(minutes=2)
    send(local, topic, b"later")
    [later] = asyncio.run(asyncio.wait_for(events(), 30))
    assert [message["body"] for message in later["messages"]] == ["later"]


def test_a_trigger_that_ends_before_its_event_is_taken_gives_the_message_back(
    parts: SimpleNamespace, local: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BaseHook, "found", connection(local.name_server))
    topic = local.create_topic(queues=1)
    send(local, topic, b"one")
    trigger = parts.triggers.AwaitMessageTrigger(topic=topic, group="billing")

    async def first_event() -> Any:
        events = trigger.run()
        try:
            return (await anext(events)).payload["messages"][0]["body"]
        finally:
            await events.aclose()

    assert asyncio.run(asyncio.wait_for(first_event(), 30)) == "one"
    local.advance(minutes=2)
    assert asyncio.run(asyncio.wait_for(first_event(), 30)) == "one"


def test_a_sensor_is_deferred_or_looks_by_itself(
    parts: SimpleNamespace, local: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BaseHook, "found", connection(local.name_server))
    topic = local.create_topic(queues=1)
    arguments = {"task_id": "order", "topic": topic, "group": "looking"}
    with pytest.raises(Deferred) as deferred:
        parts.sensors.KeroloxSensor(**arguments).execute({})
    [given] = deferred.value.args
    assert given["trigger"].serialize()[1]["topic"] == topic
    assert given["timeout"].total_seconds() == 60
    looking = parts.sensors.KeroloxSensor(deferrable=False, **arguments)
    assert looking.execute({}) == "poked"
    assert not looking.poke({}).is_done
    sent = parts.hooks.KeroloxHook().send(topic, "hello", keys="7")
    found = looking.poke({})
    assert found.is_done
    assert [each["message_id"] for each in found.xcom_value] == [sent.message_id]
    assert looking.execute_complete({}, {"messages": found.xcom_value}) == found.xcom_value
    assert parts.hooks.KeroloxHook().test_connection()[0]
    with pytest.raises(ConfigError, match="max_messages"):
        parts.sensors.KeroloxSensor(max_messages=33, **arguments).execute({})
