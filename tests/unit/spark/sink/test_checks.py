"""What a task answers to a broker that asks about a half message."""

from __future__ import annotations

from typing import cast

import pytest

from kerolox.message import MessageExt, encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import encode_record
from kerolox.remoting.blocking import BlockingConnection
from kerolox.spark.sink.transactions.decisions import Decision
from kerolox.spark.sink.transactions.halves import Checks
from kerolox.spark.sink.transactions.messages import HalfRange, SinkMessage

WON, LOST = "q/0/0/7", "q/0/0/8"
COMMIT, ROLLBACK = "8", "12"


class Sent:
    """A connection that keeps what is sent."""

    address = "127.0.0.1:10911"

    def __init__(self) -> None:
        self.states: list[str] = []

    def send(self, command: RemotingCommand) -> int:
        assert command.ext_fields["tranStateTableOffset"] == "40"
        self.states.append(command.ext_fields["commitOrRollback"])
        return 1


def decision_of(batch: int) -> Decision | None:
    ranges = (HalfRange("broker-a", "t", 3, 3, 9, 5, (4,)),)
    return Decision.of("q", 0, "g", [SinkMessage(5, WON, ranges)]) if batch == 0 else None


def asked(properties: dict[str, str]) -> RemotingCommand:
    half = MessageExt(
        topic="t",
        body=b"x",
        properties=properties,
        queue_id=0,
        queue_offset=40,
        commit_log_offset=4000,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 10911),
    )
    return RemotingCommand.request(
        RequestCode.CHECK_TRANSACTION_STATE,
        {"tranStateTableOffset": 40, "commitLogOffset": 4000},
        body=encode_record(half, encode_properties(properties)),
    )


@pytest.mark.parametrize(
    ("sink", "original", "broker", "remembers", "states"),
    [
        (WON, "3", "broker-a", True, [COMMIT]),
        (WON, "8", "broker-a", True, [COMMIT]),
        (WON, "4", "broker-a", True, [ROLLBACK]),
        (WON, "9", "broker-a", True, [ROLLBACK]),
        (WON, "3", "broker-b", True, [ROLLBACK]),
        (WON, None, "broker-a", True, []),
        (WON, "3", "broker-a", False, []),
        (LOST, None, "broker-a", False, [ROLLBACK]),
        (LOST, "3", "broker-a", True, [ROLLBACK]),
        ("q/1/0/7", "3", "broker-a", True, []),
        ("other/0/0/7", "3", "broker-a", True, []),
        ("x", "3", "broker-a", True, []),
        (WON, "x", "broker-a", True, []),
    ],
)
def test_the_answer_is_that_of_the_decision(sink, original, broker, remembers, states):
    properties = {"KEROLOX_SINK": sink, "UNIQ_KEY": "k"}
    if original is not None:
        properties["TRAN_PREPARED_QUEUE_OFFSET"] = original
    sent = Sent()
    checks = Checks("g", "q", decision_of)
    connection = cast("BlockingConnection", sent)
    checks.answer(connection, asked(properties), broker, remembers=remembers)
    assert sent.states == states
