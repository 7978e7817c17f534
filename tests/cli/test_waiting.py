"""What waits for its moment is shown, the next first, and taken back."""

from __future__ import annotations

import json
import time
from datetime import timedelta

from kerolox import TransactionState
from kerolox.admin.sync import Admin
from kerolox.client import sync
from kerolox.message import Message, MessageExt
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox


def test_what_waits_is_shown_by_its_moment_and_taken_back(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Timed", "--queues", "1", *at)
    now = time.time() * 1_000
    with sync.Producer("p", name_server) as producer:
        for hours in (9, 5, 7):
            message = Message("Timed", b"in %d" % hours, keys=f"k{hours}")
            producer.send(message, deliver_after=timedelta(hours=hours))
        producer.send(Message("Timed", b"level", delay_level=17))
    with Admin(name_server) as admin:
        [broker] = admin.cluster_info().masters("DefaultCluster")

        def wait() -> bool:
            return admin.timed_messages(broker).waiting == {"Timed": 3}

        wait_until(wait, what="the wheel")
        assert [each.message.keys for each in admin.timed_messages(broker).messages] == [
            *("k5", "k7", "k9"),
        ]
        assert len(admin.timed_messages(broker, max_messages=1).messages) == 1
    shown = kerolox("message", "waiting", *at)
    assert "kerolox: 4 of 4 messages that wait" in shown.stderr
    rows = json.loads(kerolox("message", "waiting", "-o", "json", *at).stdout)
    assert [row["body"] for row in rows] == ["level", "in 5", "in 7", "in 9"]
    for row, hours in zip(rows[1:], (5, 7, 9), strict=True):
        assert row["topic"] == "Timed"
        assert 0 <= row["dueTimestamp"] - now - hours * 3_600_000 < 60_000
    handle = rows[2]["recallHandle"]
    assert handle in shown.stdout
    dry = kerolox("message", "recall", handle, "--dry-run", *at)
    assert f"message {rows[2]['msgId']} of Timed will not come" in dry.stdout
    taken = json.loads(kerolox("message", "recall", handle, "--yes", "-o", "json", *at).stdout)
    assert (taken["msgId"], taken["topic"], taken["done"]) == (rows[2]["msgId"], "Timed", True)
    rows = json.loads(kerolox("message", "waiting", "-o", "json", *at).stdout)
    assert [row["body"] for row in rows] == ["level", "in 5", "in 9"]


def test_what_is_no_handle_or_of_no_message_is_said(name_server: str) -> None:
    at = ("-n", name_server)
    refused = kerolox("message", "recall", "nothing", "--yes", *at)
    assert refused.returncode == 2
    assert "recall handle is invalid" in refused.stderr


def test_open_transactions_are_committed_and_rolled_back(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Orders", "--queues", "1", *at)

    def execute(_: Message) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(_: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    with sync.TransactionProducer("p", name_server, check=check) as producer:
        wanted = producer.send_in_transaction(Message("Orders", b"wanted"), execute).transaction_id
        other = producer.send_in_transaction(Message("Orders", b"other"), execute).transaction_id
    dry = kerolox("message", "commit", wanted, "--dry-run", *at)
    assert f"Orders gets message {wanted} of producer group p" in dry.stdout
    done = json.loads(kerolox("message", "commit", wanted, "--yes", "-o", "json", *at).stdout)
    assert (done["msgId"], done["topic"], done["done"]) == (wanted, "Orders", True)
    dropped = kerolox("message", "rollback", other, "--yes", *at)
    assert dropped.stdout == f"rolled back: {other} of Orders\n"
    with Admin(name_server) as admin:
        [broker] = admin.cluster_info().masters("DefaultCluster")
        assert admin.open_halves(broker).halves == ()
        assert [each.body for each in admin.read_messages("Orders")] == [b"wanted"]
    again = kerolox("message", "commit", wanted, "--yes", *at)
    assert again.returncode == 1
    assert f"no open transaction of {broker} has the id" in again.stderr
