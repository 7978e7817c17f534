"""What users write into arguments: one import, choices by name, hints, and what is shown again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import kerolox
from kerolox import admin, client, errors
from kerolox.client import sync
from kerolox.client.core.sending.request_reply import ReplyMessage
from kerolox.client.core.validate import check_body
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.message import ConsumeFromWhere, Message, MessageExt, MessageModel
from kerolox.protocol.codes import RequestCode
from tests.support.servers.fake_broker import FakeBroker, route_body

CLIENTS: list[Callable[..., Any]] = [
    *(kerolox.Producer, kerolox.PullConsumer, kerolox.PushConsumer),
    *(sync.Producer, sync.PullConsumer, sync.PushConsumer),
]


def message_ext(body: bytes) -> MessageExt:
    return MessageExt(
        topic="T", body=body, queue_id=1, queue_offset=2, commit_log_offset=3, properties={}
    )


# -- one import ---------------------------------------------------------------------------------
def test_all_that_users_of_clients_need_is_in_kerolox() -> None:
    assert set(client.__all__) | set(errors.__all__) <= set(kerolox.__all__)
    for module in (client, errors):
        for name in module.__all__:
            assert getattr(kerolox, name) is getattr(module, name)
    assert set(kerolox.__all__) <= set(dir(kerolox))


@pytest.mark.parametrize("package", [kerolox, client, sync, admin])
def test_a_public_name_is_kept_in_its_package_after_its_first_use(package: ModuleType) -> None:
    for name in package.__all__:
        found = getattr(package, name)
        assert vars(package)[name] is found


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Consumer"):
        kerolox.Consumer  # type: ignore[attr-defined]  # noqa: B018


def test_importing_kerolox_imports_no_client() -> None:
    code = "import sys, kerolox; print([m for m in sys.modules if m.startswith('kerolox.client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_decides_in_the_clients_is_imported_without_the_clients() -> None:
    code = (
        "import sys, kerolox.client.core.routes; print('kerolox.client.aio.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("package", [kerolox, client, sync])
def test_a_package_has_the_names_of_its_list_and_no_others(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="Consumer"):
        package.Consumer  # noqa: B018


def test_a_name_of_both_kinds_of_clients_is_the_same_object() -> None:
    assert set(client.__all__) == set(sync.__all__) < set(kerolox.__all__)
    blocking = {name for name in sync.__all__ if getattr(sync, name) is not getattr(client, name)}
    assert {"Producer", "PushConsumer", "Connection", "Transaction", "connect"} <= blocking
    assert not {name for name in blocking if name.endswith(("Settings", "Result", "Status"))}


# -- choices and keywords -----------------------------------------------------------------------
@pytest.mark.parametrize("model", ["broadcasting", " BROADCASTING ", MessageModel.BROADCASTING])
def test_a_message_model_may_be_given_by_its_name(model: str | MessageModel) -> None:
    settings = client.PushConsumerSettings(message_model=model)
    assert settings.message_model is MessageModel.BROADCASTING
    consumer = kerolox.PushConsumer("g", "a:1", settings=settings)
    assert consumer.client_id.endswith("@DEFAULT")  # as only broadcasting consumers are called


def test_where_to_start_may_be_given_by_its_name() -> None:
    settings = client.PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    assert settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    changed = settings.changed(consume_from_where="consume_from_timestamp")
    assert changed.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"message_model": "brodcasting"}, "CLUSTERING, BROADCASTING. Did you mean 'BROADCASTING'"),
        ({"message_model": 1}, "message_model is 1; it must be one of CLUSTERING, BROADCASTING"),
        ({"consume_from_where": "first"}, "CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_TIMESTAMP"),
    ],
)
def test_a_wrong_choice_is_an_error_that_names_the_choices(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        client.PushConsumerSettings(**wrong)


def test_a_misspelt_setting_is_an_error_that_names_the_nearest_one() -> None:
    wrong: dict[str, Any] = {"send_timout_ms": 1}
    for make in (client.ProducerSettings, client.ProducerSettings().changed):
        with pytest.raises(TypeError, match=r"'send_timout_ms'. Did you mean 'send_timeout_ms'"):
            make(**wrong)
    with pytest.raises(TypeError, match=r"no setting 'zzz'$"):
        client.PullConsumerSettings(**{"zzz": 1})


# -- name servers -------------------------------------------------------------------------------
@pytest.mark.parametrize("make", CLIENTS)
def test_name_servers_may_be_a_text_or_a_list(make: Callable[..., Any]) -> None:
    for given in ("a:1;b:2", ["a:1", "b:2"], ("a:1", "b:2"), iter(("a:1", "b:2"))):
        assert "name server a:1, b:2, not started" in repr(make("g", given))


@pytest.mark.parametrize("given", [["a:1", 2], 3, [b"a:1"], None])
def test_a_name_server_that_is_no_text_is_an_error(given: Any) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        kerolox.Producer("g", given)


def test_a_list_without_name_servers_means_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "c:3")
    assert "name server c:3" in repr(kerolox.Producer("g", []))


# -- messages -----------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [Message, ReplyMessage])
def test_a_text_as_body_is_refused_with_what_would_be_right(make: Callable[..., Any]) -> None:
    with pytest.raises(MessageRejectedError, match=r"type str, not bytes; write text.encode\(\)"):
        make("T", "hello")
    with pytest.raises(MessageRejectedError, match="type dict"):
        make("T", {})


async def test_a_body_that_becomes_a_text_later_is_refused_by_each_kind_of_send() -> None:
    message = Message("T", b"hello")
    message.body = "hello"  # type: ignore[assignment]
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with kerolox.Producer("shop", broker.address) as producer:
            await producer.send(Message("T", b"hello"))
            for send in (producer.send, producer.send_oneway, producer.request):
                with pytest.raises(MessageRejectedError, match="encode"):
                    await send(message)
            with pytest.raises(MessageRejectedError, match="encode"):
                await producer.send_batch([Message("T", b"hello"), message])
        assert len(broker.seen[RequestCode.SEND_MESSAGE_V2]) == 1
        assert not broker.seen[RequestCode.SEND_BATCH_MESSAGE]


@pytest.mark.parametrize("body", [bytearray(b"x"), memoryview(b"x")])
def test_other_kinds_of_bytes_are_bodies(body: Any) -> None:
    check_body(Message("T", body).body, bytes_max=10)


@pytest.mark.parametrize("properties", [{"price": 1}, {"a": b"x"}, {"a": None}, {1: "x"}])
def test_properties_that_are_no_texts_are_refused(properties: Any) -> None:
    with pytest.raises(MessageRejectedError, match=r"write str\("):
        Message("T", b"x", properties=properties)


# -- what is shown ------------------------------------------------------------------------------
def test_settings_show_what_is_not_the_default() -> None:
    assert repr(client.ProducerSettings()) == "ProducerSettings()"
    settings = client.PushConsumerSettings(message_model="broadcasting", pull_batch_size=3)
    shown = "PushConsumerSettings(message_model='BROADCASTING', pull_batch_size=3)"
    assert repr(settings) == shown


def test_settings_show_no_secret() -> None:
    settings = client.ProducerSettings(
        credentials=client.Credentials("my-account", "secret-key", "secret-token"),
        tls=client.TlsSettings(key="k", certificate="c", key_password="secret-word"),
    )
    assert "my-account" in repr(settings)
    assert "secret-" not in repr(settings)


def test_messages_show_what_is_not_the_default_and_little_of_a_long_body() -> None:
    assert repr(Message("T", b"hello", tags="a")) == "Message(topic='T', body=b'hello', tags='a')"
    for long in (Message("T", b"x" * 100_000), message_ext(b"x" * 100_000)):
        assert "100000 bytes" in repr(long)
        assert len(repr(long)) < 300
    assert repr(message_ext(b"x")).startswith("MessageExt(topic='T', body=b'x', queue_id=1,")


async def test_clients_show_their_group_their_servers_and_whether_they_run() -> None:
    made = kerolox.Producer("shop", "127.0.0.1:9876")
    shown = "<Producer of group 'shop', name server 127.0.0.1:9876, {}>"
    assert repr(made) == shown.format("not started")
    async with made:
        assert repr(made) == shown.format("open")
    assert repr(made) == shown.format("closed")
