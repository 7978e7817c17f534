"""Values that a shell completes: of the cluster that the line names, and of this machine.

A cluster is asked once in :data:`CACHE_SECONDS` for each kind of value. What it said is kept in
``$XDG_CACHE_HOME/kerolox/completion`` (``~/.cache``), for its user alone to read. Whatever goes
wrong gives no values: the line that somebody types is no place for an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.shell_completion import CompletionItem

from kerolox.cli.connecting import given_options, on_cluster, used_context
from kerolox.errors import ConfigError, KeroloxError

if TYPE_CHECKING:
    from kerolox.admin import Admin

CACHE_SECONDS = 5.0
ASK_SECONDS_MAX = 2.0
"""Who asks waits for the prompt."""

_HARMLESS = re.compile(r"[A-Za-z0-9_.%@:=+,/-]+")
"""What a shell takes as it is; a name with something else, which only a stranger makes, is not
shown: the shell would obey it."""

VALUES_MAX = 1_000
"""Most values that are shown; the next letter leaves fewer."""

CACHE_BYTES_MAX = 16 << 20
KEPT_SECONDS = 86_400.0
"""Files of the cache that are older are removed."""

NO_SPACE = "nospace"
"""Type of a value that goes on behind it, such as ``key=``."""


class Value(NamedTuple):
    """What may stand on the line."""

    text: str
    help: str = ""
    is_internal: bool = False
    """Shown where nothing else begins so."""


_Ask = Callable[["Admin"], Awaitable[Iterable[Value]]]
_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def _of_cluster(kind: str, ask: _Ask, *, at: str = "name_server") -> _Complete:
    """Completes what a cluster has. ``at``: the argument with the addresses of whom to ask."""

    def complete(
        context: click.Context, parameter: click.Parameter, begin: str
    ) -> list[CompletionItem[str]]:
        try:
            address = str(context.params[at])
            with context.scope(cleanup=False):
                key = "\n".join((kind, address, *_who_asks()))
                values = _kept(key)
                if values is None:
                    values = _asked(address, ask)
                    _keep(key, values)
        except (ConfigError, KeyError):  # there is no such context, or none is used
            return []
        return _matching(values, begin)

    return complete


def _of_machine(read: Callable[[], Iterable[Value]], type_: str = "plain") -> _Complete:
    """Completes what needs no cluster."""

    def complete(
        context: click.Context, parameter: click.Parameter, begin: str
    ) -> list[CompletionItem[str]]:
        try:
            return _matching(read(), begin, type_)
        except (KeroloxError, OSError):
            return []

    return complete


def _matching(
    values: Iterable[Value], begin: str, type_: str = "plain"
) -> list[CompletionItem[str]]:
    fitting = [
        each for each in values if each.text.startswith(begin) and _HARMLESS.fullmatch(each.text)
    ]
    usual = [each for each in fitting if not each.is_internal]
    chosen = usual or (fitting if begin else [])
    return [CompletionItem(each.text, type_, each.help or None) for each in chosen[:VALUES_MAX]]


# -- what a cluster has ---------------------------------------------------------------------------
async def _topics(admin: Admin) -> list[Value]:
    from kerolox.admin.topics import TopicKind, topic_kind

    names = await admin.list_topics()
    info = await admin.cluster_info()
    kinds = {name: topic_kind(name, info) for name in names}
    return [
        Value(name, "" if kind is TopicKind.NORMAL else kind.value, kind is not TopicKind.NORMAL)
        for name, kind in kinds.items()
    ]


async def _groups(admin: Admin) -> list[Value]:
    return [Value(name) for name in await admin.list_groups()]


async def _brokers(admin: Admin) -> list[Value]:
    from kerolox.admin.asking import node_name

    return [
        Value(node_name(node.broker_name, number), address)
        for node in (await admin.cluster_info()).nodes()
        for number, address in sorted(node.addresses.items())
    ]


async def _clusters(admin: Admin) -> list[Value]:
    return [Value(name) for name in sorted((await admin.cluster_info()).clusters)]


async def _accounts(admin: Admin) -> list[Value]:
    from kerolox.admin.asking import answers_of

    info = await admin.cluster_info()
    masters = [address for cluster in info.clusters for address in info.masters(cluster)]
    found, _ = await answers_of(masters, admin.acl_config)
    names = {each.access_key for config in found.values() for each in config.accounts}
    return [Value(name) for name in sorted(names)]


async def _controlled_brokers(admin: Admin) -> list[Value]:
    sets = await admin.sync_state_sets(admin.access.name_servers)
    return [Value(name, each.master_address) for name, each in sets.items()]


async def _controllers(admin: Admin) -> list[Value]:
    states = await admin.controller_states(admin.access.name_servers)
    members = {
        name: address
        for each in states.values()
        if not isinstance(each, str)
        for name, address in each.members.items()
    }
    return [Value(name, address) for name, address in sorted(members.items())]


topics = _of_cluster("topics", _topics)
groups = _of_cluster("groups", _groups)
brokers = _of_cluster("brokers", _brokers)
clusters = _of_cluster("clusters", _clusters)
accounts = _of_cluster("accounts", _accounts)
controlled_brokers = _of_cluster("controlled brokers", _controlled_brokers, at="controllers")
"""Names of which controllers know brokers."""
controllers = _of_cluster("controllers", _controllers, at="controllers")
"""Ids of the controllers of a group."""


def _asked(name_server: str, ask: _Ask) -> list[Value]:
    """What a cluster says now; nothing when it does not in time."""

    async def in_time(admin: Admin) -> list[Value]:
        import asyncio

        async with asyncio.timeout(ASK_SECONDS_MAX):
            return list(await ask(admin))

    try:
        return on_cluster(name_server, in_time, log_level="critical")
    except (KeroloxError, OSError, click.ClickException):  # TimeoutError is an OSError
        return []


# -- what this machine has ------------------------------------------------------------------------
def _contexts() -> list[Value]:
    from kerolox.cli.contexts import contexts_file, read_contexts

    kept = read_contexts(contexts_file(os.environ)).contexts
    return [Value(name, each.description or each.name_server) for name, each in kept.items()]


def _setting_names() -> list[str]:
    from kerolox.broker.config import BrokerConfig
    from kerolox.config import setting_keys

    return sorted(setting_keys(BrokerConfig))


def _controller_setting_names() -> list[str]:
    from kerolox.config import setting_keys
    from kerolox.controller.config import ControllerConfig

    return sorted(setting_keys(ControllerConfig))


def _namespaces() -> list[Value]:
    from kerolox.protocol.namesrv import ORDER_TOPIC_CONFIG

    return [Value(ORDER_TOPIC_CONFIG, "queues of topics that are sent to in order")]


contexts = _of_machine(_contexts)
namespaces = _of_machine(_namespaces)
settings = _of_machine(lambda: map(Value, _setting_names()))
assignments = _of_machine(lambda: [Value(f"{name}=") for name in _setting_names()], NO_SPACE)
"""Settings of a broker, as ``key=``."""
controller_settings = _of_machine(lambda: map(Value, _controller_setting_names()))
controller_assignments = _of_machine(
    lambda: [Value(f"{name}=") for name in _controller_setting_names()], NO_SPACE
)

positions = _of_machine(
    lambda: [
        Value("beginning", "the first message of each queue"),
        Value("end", "what comes from now on"),
        Value("-100", "so many messages before the end of each queue"),
        Value("1h", "so long ago"),
        Value(f"{time.strftime('%Y-%m-%d')}T00:00", "a time"),
    ]
)


def folders(
    context: click.Context, parameter: click.Parameter, begin: str
) -> list[CompletionItem[str]]:
    """Folders, which the shell finds itself."""
    return [CompletionItem(begin, "dir")]


# -- the cache ------------------------------------------------------------------------------------
def _who_asks() -> tuple[str, str]:
    """The context in use and the account: others may be shown other names."""
    account = given_options().get("access_key") or os.environ.get("KEROLOX_ACCESS_KEY") or ""
    return str(used_context()), str(account)


def _file(key: str) -> Path:
    from kerolox.user_folders import CACHE, user_folder

    return user_folder(CACHE, os.environ) / "completion" / f"{zlib.crc32(key.encode()):08x}.json"


def _kept(key: str) -> list[Value] | None:
    """What was said a moment ago; None: it is too old, or was never asked."""
    try:
        with _file(key).open("rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            if not 0 <= age < CACHE_SECONDS:
                return None
            kept = json.loads(file.read(CACHE_BYTES_MAX))
        if kept["key"] != key:
            return None
        return [
            Value(str(text), str(help_), bool(hidden)) for text, help_, hidden in kept["values"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(key: str, values: list[Value]) -> None:
    path = _file(key)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_old(path.parent)
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"key": key, "values": values}, file)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _remove_old(folder: Path) -> None:
    oldest = time.time() - KEPT_SECONDS
    with os.scandir(folder) as files:
        for each in files:
            if each.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(each.path)
