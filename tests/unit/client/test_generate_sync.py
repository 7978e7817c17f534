"""The blocking clients are what the generator makes of the asyncio ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox import client
from kerolox.admin import Admin as AsyncioAdmin
from kerolox.admin.sync._generated import AdminRequests
from kerolox.client import sync
from kerolox.message import Message

ROOT = Path(__file__).resolve().parents[3]
CLIENTS = [
    "Connection",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
]


def test_the_blocking_clients_are_fresh() -> None:
    command = [sys.executable, "tools/generate_sync.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_both_packages_have_the_same_names() -> None:
    assert client.__all__ == sync.__all__


def public(cls: type) -> dict[str, object]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLIENTS)
def test_methods_have_the_same_names_and_signatures(name: str) -> None:
    ours, twins = public(getattr(client, name)), public(getattr(sync, name))
    assert ours.keys() - {"access"} == twins.keys()
    for method, twin in ((ours[key], twins[key]) for key in twins):
        if inspect.isfunction(method) and inspect.isfunction(twin):
            assert inspect.signature(method) == inspect.signature(twin)
            assert not inspect.iscoroutinefunction(twin)


def test_programs_see_the_whole_docstrings_of_blocking_methods() -> None:
    assert sync.Producer.send.__doc__ == client.Producer.send.__doc__
    assert sync.Producer.__init__.__doc__ == client.Producer.__init__.__doc__
    assert "async" in (client.PushConsumer.subscribe.__doc__ or "")
    for blocking, source in [(AdminRequests, AsyncioAdmin), *map(both, CLIENTS)]:
        for name, member in public(blocking).items():
            ours, theirs = (inspect.getdoc(each) or "" for each in (member, getattr(source, name)))
            assert ours.count("\n") == theirs.count("\n"), name
            assert "async" not in ours
            assert "await" not in ours


def test_a_wrong_argument_of_a_blocking_method_is_a_type_error() -> None:
    message = Message("Topic", b"")
    with sync.Producer("producers", "127.0.0.1:1") as producer:
        future = producer.submit(message, **{"wrong": 1})
        for call, first in [
            (producer.send, message),
            (producer.send_oneway, message),
            (producer.queues, "Topic"),
            (lambda *_, **__: future.result(), message),
        ]:
            with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
                call(first, wrong=1)


def test_a_class_is_documented_without_those_that_nobody_asked_for() -> None:
    code = (
        "import sys; from kerolox.client.sync import PullConsumer; "
        "modules = [each for each in sys.modules if each.endswith('_consumer')]; print(modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "['kerolox.client.aio.consumers.pull_consumer']", done.stderr


def both(name: str) -> tuple[type, type]:
    return getattr(sync, name), getattr(client, name)
