"""What two clusters can't have in common, taken out of what mqadmin prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.interop.parity.side import Side

__all__ = ["normal"]

RULES = tuple(
    (re.compile(pattern, re.MULTILINE), put)
    for pattern, put in (
        # the trace of an error, behind what it says
        (r"^\s+(at |\.\.\. \d+ more).*\n", ""),
        (r"\s*For more information, please visit the url.*", ""),
        # clients whose heartbeat comes before they end, or does not
        (r"^.*(TOOLS_CONSUMER|CLIENT_INNER_PRODUCER).*\n", ""),
        (r"\b[\d.]+@[-\w]+([#@][-\w]+)*", "<client>"),
        (r"127\.0\.0\.1:\d+", "<address>"),
        (r"\b[0-9A-F]{32,}(_\d)?\b", "<id>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([,:.]\d{3})?", "<time>"),
        (r"(?<![\d.])\d+\.\d+(?![\d.])", "<decimal>"),
        # in a Java broker's first ten minutes the later ones are missing
        (r"(Tps *: )<decimal>.*", r"\1<rates>"),
        (r"\b(19|20)\d{15}\b", "<time>"),
        (r"\b1[6-9]\d{11}\b", "<ms>"),
        (r"PlainAccessConfig@\w+", "PlainAccessConfig"),
        (r"\bV4_9_[78]\b", "<version>"),
        (r"(?<=originalMsgId=)[0-9A-F]{32}", "<id>"),
        (r"(?<=\])(?=MessageTrack|OffsetID)", "\n"),
        # how columns are aligned, which depends on how long all those are
        (r"[ \t]+", " "),
        (r" +$", ""),
        (r"\n{2,}", "\n"),
    )
)
"""In this order. Decimals are rates and shares; the version is that of the Java servers' jar."""


def normal(text: str, side: Side, moving: Iterable[str] = ()) -> str:
    """What it says, with names for what is this cluster's own.

    Args:
        text: what was printed.
        side: where.
        moving: patterns of figures that change with each check; the text before stays.
    """
    for value, name in (
        (str(side.home), "<home>"),
        (str(side.accounts), "<accounts>"),
        (str(side.store), "<store>"),
        (side.namesrv, "<name server>"),
        (side.broker, "<broker>"),
    ):
        text = text.replace(value, name)
    port, namesrv_port = (int(each.rpartition(":")[2]) for each in (side.broker, side.namesrv))
    for number, name in ((port, "<P>"), (port + 1, "<P + 1>"), (namesrv_port, "<N>")):
        text = re.sub(rf"(?m)^(\w+Port += +){number}$", rf"\1{name}", text, flags=re.IGNORECASE)
    for rule, put in RULES:
        text = rule.sub(put, text)
    for pattern in moving:
        text = re.sub(rf"(?m)({pattern})\d+", r"\1<n>", text)
    return text.strip("\n") + "\n"
