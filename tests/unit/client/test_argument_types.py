"""Each argument of each public method of the clients is refused when it is of a wrong type."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import kerolox.client as aio
from kerolox.admin import Account, Admin
from kerolox.admin.messages.waiting import DelayLevel
from kerolox.admin.positions import FIRST
from kerolox.admin.sync import Admin as SyncAdmin
from kerolox.client import sync
from kerolox.client.core.checking import READ_GENEROUSLY, not_whole
from kerolox.errors import ConfigError, KeroloxError, MessageRejectedError
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.testing import LocalBroker
from tests.support.kernels import KERNELS

CUT = "cut \ud83d"
QUEUE = MessageQueue("Types", "broker-a", 0)
WRONG: dict[str, list[object]] = {
    "str": [b"x", 5, ["a"], CUT],
    "int": ["5", 1.5, True, b"5"],
    "float": ["5", True, [1]],
    "bool": ["yes", 1, 0],
    "bytes": ["x", 5],
    "Message": ["x", b"x", 5, QUEUE],
    "MessageExt": ["x", Message("Types", b"x")],
    "Duration": ["5", True, b"5"],
    "OrderingKey": [b"x", 1.5, True, []],
    "MessageQueue": [0, 1, "", ("Types", "broker-a", 0)],
}
"""By the first type that an annotation names. ``object()`` is wrong for all."""

TEXTS = "is of type|half of a surrogate pair|is called with|must be|is neither a text nor a number"

PRODUCER = ("Producer", "TransactionProducer")
CONSUMERS = ("PushConsumer", "PullConsumer", "LitePullConsumer")
CLASSES = (*PRODUCER, *CONSUMERS, "Connection")


def methods(cls: type) -> Iterator[tuple[str, list[inspect.Parameter]]]:
    """The public methods of a class that take arguments."""
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        parameters = list(inspect.signature(function).parameters.values())[1:]
        if parameters and (not name.startswith("_") or name == "__init__"):
            yield name, parameters


def right(parameter: inspect.Parameter) -> object:
    """An argument that is of the right type, though there may be nothing of that name."""
    annotation = str(parameter.annotation)
    if annotation.startswith(("Iterable", "Collection")):
        return []
    if annotation.startswith(("Mapping", "dict")):
        return {}
    made: dict[str, object] = {
        "str": "Types",
        "int": 1,
        "float": 1.0,
        "bool": False,
        "bytes": b"x",
        "Message": Message("Types", b"x"),
        "MessageExt": MessageExt(
            topic="Types",
            body=b"x",
            queue_id=0,
            queue_offset=0,
            commit_log_offset=0,
            properties={},
        ),
        "MessageQueue": QUEUE,
        "Position": FIRST,
        "Account": Account(access_key="shop", secret_key="secret-of-shop"),
        "SubscriptionGroupConfig": SubscriptionGroupConfig(group_name="types"),
        "DelayLevel": DelayLevel("127.0.0.1:1", "broker-a", 1, 1_000, 0, 0),
    }
    return made.get(annotation.partition(" ")[0], lambda argument: None)


def wrong(annotation: str) -> list[object]:
    kind = annotation.partition(" ")[0]
    found = [object(), *WRONG.get(kind, [5])]
    if annotation.startswith(("Iterable", "Collection", "Mapping", "dict")):
        found.append("Types")
    if "Callback" in kind or "Listener" in kind or kind in ("LocalTransaction", "TransactionCheck"):
        found += [lambda: None, lambda one, two: None]
    allowed = {"str": str, "int": int, "float": int, "Iterable[str]": list}
    kinds = tuple(allowed[part] for part in annotation.split(" | ")[1:] if part in allowed)
    return [value for value in found if not isinstance(value, kinds) or isinstance(value, bool)]


def calls(cls: type, method: str = "") -> list[Any]:
    """The table: method, argument, a value of a wrong type, and the other arguments."""
    table = []
    for name, parameters in methods(cls):
        if method and name != method:
            continue
        needed = {each.name: right(each) for each in parameters if each.default is each.empty}
        for each in parameters:
            if each.name in READ_GENEROUSLY:  # see test_arguments.py
                continue
            values = wrong(str(each.annotation))
            table += [(name, each, {**needed, each.name: value}) for value in values]
    return table


async def refused(
    act: Callable[..., object], parameter: inspect.Parameter, given: dict[str, Any], what: str
) -> None:
    try:
        result = act(**given)
        if inspect.isawaitable(result):
            await result
        elif isinstance(result, Future):
            result.result(30)
        elif hasattr(result, "__aenter__"):
            await result.__aenter__()
        elif hasattr(result, "__anext__"):
            await anext(result)
        elif hasattr(result, "__enter__"):
            result.__enter__()
        elif hasattr(result, "__next__"):
            next(result)
    except KeroloxError as error:
        said = str(error)
    else:
        said = "it was taken"
    # What is sent is named for what it is.
    name = {"ordering_key": "key"}.get(parameter.name, parameter.name)
    assert re.search(rf"{name}.*({TEXTS})", said), f"{what}: {said}"


def shown(cls: type, name: str, parameter: inspect.Parameter, given: dict[str, Any]) -> str:
    return f"{cls.__name__}.{name}({parameter.name}={given[parameter.name]!r})"


def made(module: Any, name: str, address: str = "127.0.0.1:1") -> Any:
    if name == "Connection":
        return module.Connection(address)
    more = {"check": lambda message: None} if name == "TransactionProducer" else {}
    return getattr(module, name)("types", address, **more)


@pytest.mark.parametrize("name", CLASSES)
async def test_no_client_takes_an_argument_of_a_wrong_type(name: str) -> None:
    cls = getattr(aio, name)
    client = made(aio, name)
    for method, parameter, given in calls(cls):
        act = cls if method == "__init__" else getattr(client, method)
        await refused(act, parameter, given, shown(cls, method, parameter, given))


async def test_no_admin_takes_an_argument_of_a_wrong_type() -> None:
    admin = Admin("127.0.0.1:1")
    await admin.start()
    for method, parameter, given in calls(Admin):
        act = Admin if method == "__init__" else getattr(admin, method)
        await refused(act, parameter, given, shown(Admin, method, parameter, given))
    await admin.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running


@pytest.mark.parametrize("name", CLASSES)
async def test_no_blocking_client_takes_an_argument_of_a_wrong_type(
    name: str, broker: LocalBroker
) -> None:
    cls = getattr(sync, name)
    client = made(sync, name, broker.name_server)
    if name == "PushConsumer":
        client.subscribe("Types", "*", lambda messages: None)
    with client:
        for method, parameter, given in calls(cls):
            act = cls if method == "__init__" else getattr(client, method)
            await refused(act, parameter, given, shown(cls, method, parameter, given))


async def test_no_blocking_admin_takes_an_argument_of_a_wrong_type() -> None:
    with SyncAdmin("127.0.0.1:1") as admin:
        for method, parameter, given in calls(SyncAdmin):
            act = SyncAdmin if method == "__init__" else getattr(admin, method)
            await refused(act, parameter, given, shown(SyncAdmin, method, parameter, given))


@pytest.mark.parametrize(
    "name",
    [f"{kind}Settings" for kind in ("Client", "Producer", *CONSUMERS)],
)
def test_no_setting_is_of_a_wrong_type(name: str) -> None:
    settings = getattr(aio, name)
    for field in dataclasses.fields(settings):
        kind = str(field.type)
        for value in (object(), 5, b"x", ["a"], True, 1.5, None, CUT):
            is_right = (
                (isinstance(value, bool) and kind in ("bool", "Tls"))
                or (type(value) is int and ("int" in kind.split(" | ") or kind == "float"))
                or (value is None and "None" in kind)
                or (isinstance(value, float) and kind == "float")
            )
            if not is_right:
                with pytest.raises(ConfigError, match=field.name):
                    settings(**{field.name: value})


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"tags": b"a"}, "tags is of type bytes, not a text (str); write data.decode()"),
        ({"tags": ["a"]}, "tags is of type list, .*; a message has one tag"),
        ({"tags": None}, "tags is of type NoneType, .*; leave it out"),
        ({"keys": 5}, r"keys is of type int, .*; write str\(number\); or a list of texts"),
        ({"keys": b"a"}, "keys is of type bytes"),
        ({"keys": ["a", 1]}, "item 1 of keys is of type int"),
        ({"body": "x"}, "the body is of type str"),
        ({"properties": {"a": 1}}, "names and values are texts"),
    ],
)
@pytest.mark.parametrize("make", [Message, aio.ReplyMessage])
def test_a_message_is_not_made_of_parts_of_a_wrong_type(
    parts: dict[str, Any], text: str, make: Callable[..., Message]
) -> None:
    with pytest.raises(MessageRejectedError, match=text.replace("(str)", r"\(str\)")):
        make(**{"topic": "Types", "body": b"x", **parts})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("part", ["topic", "tags", "keys", "flag", "wait_store_ok"])
async def test_a_message_that_was_changed_to_a_wrong_type_is_not_sent(
    part: str, kernel: str, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEROLOX_KERNEL", kernel)
    async with aio.Producer("types", broker.name_server) as producer:
        await producer.send(Message("Types", b"x"))
        for value in (object(), b"x", [5], 1.5):
            message = Message("Types", b"x")
            setattr(message, part, value)
            text = f"{part} (is of type|is blank)|item 0 of {part} is of type"
            for send in (producer.send, producer.send_oneway, producer.request):
                with pytest.raises(MessageRejectedError, match=text):
                    await send(message)
            with pytest.raises(MessageRejectedError, match=text):
                await producer.send_batch([message])
            with pytest.raises(MessageRejectedError, match=text):
                await producer.submit(message)


def committed(message: object) -> aio.TransactionState:
    return aio.TransactionState.COMMIT


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"keys": CUT}, "keys has half"),
        ({"keys": ["k", CUT]}, "keys has half"),
        ({"tags": CUT}, "tags has half"),
        ({"properties": {"a": CUT}}, "property 'a' has half"),
        ({"properties": {CUT: "a"}}, "the name of a property has half"),
        ({"topic": CUT}, "topic .* has an illegal character"),
    ],
)
async def test_half_of_a_surrogate_pair_in_a_message_is_refused_by_each_way_to_send(
    parts: dict[str, Any],
    what: str,
    batching: bool,
    kernel: str,
    broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEROLOX_KERNEL", kernel)
    settings = aio.ProducerSettings(batching=batching)
    async with aio.TransactionProducer(
        "types", broker.name_server, check=committed, settings=settings
    ) as producer:
        await producer.send(Message("Types", b"x"))
        message = Message(**{"topic": "Types", "body": b"x", **parts})
        sends: list[Callable[[], Any]] = [
            lambda: producer.send(message),
            lambda: producer.send_oneway(message),
            lambda: producer.submit(message),
            lambda: producer.send_batch([message]),
            lambda: producer.send_batches([message]),
            lambda: producer.request(message),
            lambda: producer.send_in_transaction(message, committed),
            producer.transaction(message).__aenter__,
        ]
        for send in sends:
            with pytest.raises(MessageRejectedError, match=what):
                await send()


async def test_keys_of_an_iterator_are_kept_for_each_send(broker: LocalBroker) -> None:
    message = Message("Types", b"x", keys=(key for key in ("k1", "k2")))
    assert message.keys == ("k1", "k2")
    async with aio.Producer("types", broker.name_server) as producer:
        for _ in range(2):
            sent = await producer.send(message)
            assert (await producer.view_by_id("Types", sent.message_id)).keys == "k1 k2"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: aio.Outcome.dead_letter(5), "reason is of type int"),  # type: ignore[arg-type]
        (lambda: aio.AckIndex("1"), "index is of type str"),  # type: ignore[arg-type]
        (lambda: aio.create_reply("x", b""), "request is of type str"),  # type: ignore[arg-type]
        (lambda: list(aio.split_batches(["x"])), "message is of type str"),  # type: ignore[list-item]
        (lambda: aio.FilterClass(b"a", "b"), "name is of type bytes"),  # type: ignore[arg-type]
        (lambda: aio.Outcome.nack(delay="5"), "delay is '5'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_made_for_clients_is_not_of_a_wrong_type(
    make: Callable[[], object], text: str
) -> None:
    with pytest.raises(KeroloxError, match=text):
        make()


def test_a_number_of_another_package_counts_as_one() -> None:
    class Whole:
        def __index__(self) -> int:
            return 5

    assert not_whole(Whole()) is None


def test_a_function_is_refused_for_its_parameters_before_it_is_called() -> None:
    consumer = aio.PushConsumer("types", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"listener is called with one argument, but .*\(\)"):
        consumer.subscribe("Types", "*", lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigError, match="listener is called with one argument"):
        consumer.subscribe_each("Types", "*", lambda one, two: None)  # type: ignore[arg-type, misc]
    for listener in (lambda *all: None, lambda one, two=2: None, print, [].append):
        consumer.subscribe("Types", "*", listener)  # type: ignore[arg-type]
