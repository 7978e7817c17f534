"""What GET_BROKER_RUNTIME_INFO (28) tells: the same figures in the same form by either broker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kerolox.message import encode_properties
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.audit import Audit
from kerolox.remoting.limits.requests import LimitCounts
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster

FORMS = {
    r"-?\d+": """
        bootTimestamp brokerVersion commitLogMaxOffset commitLogMinOffset dispatchBehindBytes
        dispatchMaxBuffer earliestMessageTimeStamp EndTransactionQueueSize
        EndTransactionThreadPoolQueueCapacity getMessageEntireTimeMax msgGetTotalTodayMorning
        msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
        msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
        pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageEntireTimeMax
        putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal queryThreadPoolQueueCapacity
        queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize
        remainTransientStoreBufferNumbs sendThreadPoolQueueCapacity
        sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    """,
    r"\d+\.\d+": """
        commitLogDiskRatio commitLogDiskRatio_/ consumeQueueDiskRatio putLatency99 putLatency999
        putMessageAverageSize
    """,
    # Java leaves a number out while it is not running for so long.
    r"([\d.]*) ([\d.]*) ([\d.]*)": "putTps getFoundTps getMissTps getTotalTps getTransferedTps",
    r"V\d_\d_\d": "brokerVersionDesc",
    r"null|\[<=0ms\]:\d+ .*": "putMessageDistributeTime",
    r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]": "runtime",
    r"\d+ B|\d+\.\d [KMGTP]iB": "remainHowManyDataToFlush",
    r"Total : \d+\.\d [KMGTP]iB, Free : \d+\.\d [KMGTP]iB\.": "commitLogDirCapacity",
}

OF_5 = (
    *("brokerActive", "getTransferredTps", "keroloxVersion", "keroloxKernel"),
    *LimitCounts().shown(),
    *Audit("").shown(),
)
"""What tools of 5.x read, and counters of ours, which no Java broker of 4.9 tells."""

COUNTERS = "putMessageTimesTotal msgPutTotalTodayNow putMessageSizeTotal commitLogMaxOffset".split()


def ask(connection: PatientConnection) -> dict[str, str]:
    """The figures; those of each folder under one name, and without those of delay levels."""

    def asked() -> RemotingCommand:
        return connection.invoke(RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO))

    # Java has no answer in its first second: it has no sample yet.
    wait_until(lambda: asked().code == ResponseCode.SUCCESS)
    table: dict[str, str] = fastjson.loads(asked().body)["table"]
    return {
        re.sub(r"Ratio_/.*", "Ratio_/", key): text
        for key, text in table.items()
        if not key.startswith("scheduleMessageOffset_")
    }


def send(connection: PatientConnection) -> None:
    fields = {"a": "p", "b": "Runtime", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
    fields |= {"i": encode_properties({"KEYS": "k"}), "j": 0, "k": False, "m": False}
    asked = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=bytes(100))
    assert connection.invoke(asked).code == ResponseCode.SUCCESS


def test_the_metrics_have_the_names_and_forms_of_rocketmq(cluster: Cluster) -> None:
    grown: list[int] = []

    def counted(connection: PatientConnection) -> bool:
        """Messages of other tests, traces for example, may still come between the two checks."""
        before = ask(connection)
        for _ in range(3):
            send(connection)
        after.update(ask(connection))
        grown[:] = [int(after[name]) - int(before[name]) for name in COUNTERS]
        return grown[:2] == [3, 3]

    after: dict[str, str] = {}
    with PatientConnection(cluster.broker) as connection:
        send(connection)
        wait_until(lambda: counted(connection), what="three messages counted as three")
    for name in OF_5:
        assert (after.pop(name, None) is not None) == (cluster.kind == "ours")
    assert sorted(after) == sorted(" ".join(FORMS.values()).split())
    for form, names in FORMS.items():
        for name in names.split():
            assert re.fullmatch(form, after[name]), (name, after[name])
    assert grown[2] == grown[3] > 300
