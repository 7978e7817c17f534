"""Messages as commands show them: one row each, the body in the form that was asked for."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import click

from kerolox.addresses import join_address
from kerolox.cli.output import JSON, NDJSON, RAW, TABLE, print_json, print_line
from kerolox.cli.rows import show_row
from kerolox.cli.values import json_text
from kerolox.message import RESERVED_PROPERTIES, PropertyKey
from kerolox.text import printable, time_text
from kerolox.text.json_text import compact_json
from kerolox.text.msgpack_text import msgpack_value

if TYPE_CHECKING:
    from kerolox.message import MessageExt

_Result = TypeVar("_Result")

BODY_CHARACTERS_MAX = 4096
"""A longer body is cut where it is shown as text."""

MESSAGES_SHOWN = 100
"""Printed unless ``--count`` says otherwise, and of a plan of ``dlq resend``."""

_SEARCHED = (PropertyKey.TAGS, PropertyKey.KEYS)
"""Properties of RocketMQ's own that ``--grep`` looks into: producers write them."""

AUTO, TEXT, HEX, BASE64, MSGPACK, NONE = "auto", "text", "hex", "base64", "msgpack", "none"

body_option = click.option(
    "--body",
    "body",
    type=click.Choice([AUTO, TEXT, JSON, HEX, BASE64, MSGPACK, NONE]),
    default=AUTO,
    show_default=True,
    help="How bodies are shown; auto: as text, or as hex where they are none.",
)


grep_option = click.option(
    "--grep", metavar="REGEX", help="Only messages with this in the body or a property."
)
"""The argument of :func:`searching`."""

tags_option = click.option(
    "--tags", default="*", metavar="EXPR", help="Only messages with these tags: 'a || b'."
)


def count_option(
    most: int | None = None, *, default: int = MESSAGES_SHOWN
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """``--count`` of what prints messages, up to ``most``."""
    return click.option(
        "--count",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help="Print so many at most.",
    )


def body_shown(body: bytes, form: str) -> object:
    """A body in a form of ``--body``: a text, JSON as it is written (``JsonText``), or what msgpack
    holds. What does not fit the form is hex, in brackets."""
    try:
        match form:
            case "auto":
                return _text_or_hex(body)
            case "text":
                return body.decode("utf-8", "backslashreplace")
            case "json":
                return compact_json(body)
            case "msgpack":
                return msgpack_value(body)
            case "hex":
                return body.hex(" ")
            case "base64":
                return base64.b64encode(body).decode()
            case _:
                return ""
    except (ValueError, RecursionError) as error:
        return f"[no {form}: {error}] {body.hex(' ')}"


def _text_or_hex(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex(" ")


def message_row(message: MessageExt, form: str = AUTO) -> dict[str, object]:
    """What ``-o json`` has of a message. A body that is no UTF-8 is ``bodyBase64``."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": join_address(*message.born_host),
        "storeHost": join_address(*message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
    }
    if message.body_error:
        fields["bodyError"] = message.body_error
    if form != AUTO:
        fields["body"] = body_shown(message.body, form)
        return fields
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["bodyBase64"] = base64.b64encode(message.body).decode()
    return fields


def show_message(message: MessageExt, form: str, output: str) -> None:
    """Print one message: a line for people, or what ``-o`` wants."""
    if output == TABLE:
        print_line(_line(message, form))
    elif output == RAW:
        cells = (
            time_text(message.store_timestamp),
            f"{message.broker_name}/{message.queue_id}@{message.queue_offset}",
            message.tags,
            message.keys,
            f"[{message.body_error}]" if message.body_error else body_text(message.body, form),
        )
        print_line("\t".join(cells), RAW)
    elif output in (JSON, NDJSON):
        print_json(message_row(message, form))
    else:
        show_row({**message_row(message, form), "body": body_shown(message.body, form)}, (), output)


def show_messages(messages: Iterable[MessageExt], form: str, output: str) -> int:
    """Print several; how many. ``-o json`` is one list."""
    if output == JSON:
        rows = [message_row(each, form) for each in messages]
        print_json(rows)
        return len(rows)
    count = 0
    for count, each in enumerate(messages, 1):  # noqa: B007
        show_message(each, form, output)
    return count


def _line(message: MessageExt, form: str) -> str:
    parts = [
        time_text(message.store_timestamp),
        f"{message.broker_name}/{message.queue_id}@{message.queue_offset}",
    ]
    if message.tags:
        parts.append(f"tags={printable(message.tags)}")
    if message.keys:
        parts.append(f"keys={printable(message.keys)}")
    if message.body_error:
        parts.append(f"[{message.body_error}]")
    elif form != NONE:
        text = body_text(message.body, form)
        parts.append(printable(text, characters_max=BODY_CHARACTERS_MAX))
    return "  ".join(parts)


def body_text(body: bytes, form: str) -> str:
    """A body in a form of ``--body``, as text."""
    value = body_shown(body, form)
    return value if isinstance(value, str) else json_text(value)


def searching(pattern: str | None) -> Callable[[MessageExt], bool]:
    """Whether a message's body or a property has a pattern; None: all have. BadParameter: it is no
    regular expression.
    """
    if pattern is None:
        return lambda message: True
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise click.BadParameter(f"{printable(pattern)!r}: {error}", param_hint="--grep") from None

    def has(message: MessageExt) -> bool:
        own = (
            value
            for name, value in message.properties.items()
            if name in _SEARCHED or name not in RESERVED_PROPERTIES
        )
        body = message.body.decode("utf-8", "replace")
        return bool(wanted.search(body)) or any(map(wanted.search, own))

    return has


async def first_matching(
    messages: AsyncIterator[MessageExt], has: Callable[[MessageExt], bool], count: int
) -> tuple[list[MessageExt], int]:
    """The first ``count`` messages that ``has`` wants, and how many were examined."""
    found: list[MessageExt] = []
    looked_at = 0
    async for each in messages:
        looked_at += 1
        if has(each):
            found.append(each)
            if len(found) == count:
                break
    return found, looked_at
