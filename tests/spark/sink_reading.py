"""What is seen of a topic that a transactional query writes to, while it writes and in the end."""

from __future__ import annotations

import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.errors import RemotingError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import HALF_TOPIC, TOOLS_GROUP
from kerolox.protocol.records import decode_records
from kerolox.spark.network.brokers import pull_header
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import SECONDS_MAX
from tests.support.programs import java_command

if TYPE_CHECKING:
    from typing import Self

PAUSE_SECONDS = 0.015
"""Between two examinations of five requests each, while drivers start and die for a minute."""


def java_bodies(name_server: str, topic: str) -> list[str]:
    """The bodies of a topic as the Java client reads them."""
    done = subprocess.run(
        java_command("interop.Bodies", name_server, topic),
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    lines = (line.split("\t") for line in done.stdout.splitlines() if line.startswith("body\t"))
    return [body for _, body in lines]


class Watch:
    """Examines a topic all the time, while drivers write to it and die: rows are seen of decided
    batches alone.

    Args:
        broker: its address; it may be away.
        topic: what the query writes to.
        decisions: the folder of its decisions.
        per_batch: rows of each batch.
        queues: of the topic.
    """

    def __init__(
        self, broker: str, topic: str, decisions: Path, *, per_batch: int, queues: int = 4
    ) -> None:
        self._broker, self._topic, self._queues = broker, topic, queues
        self._decisions, self._per_batch = decisions, per_batch
        self.looks_before_a_decision = 0
        """Examines halves of a batch that was not decided then."""
        self.early = ""
        """What was seen before its batch was decided."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(SECONDS_MAX)

    def decided(self) -> int:
        """Batches that are decided."""
        if not self._decisions.exists():
            return 0
        return sum(path.name.isdecimal() for path in self._decisions.iterdir())

    def _watch(self) -> None:
        while not self._ending.wait(PAUSE_SECONDS):
            with suppress(RemotingError), PatientConnection(self._broker) as connection:
                while not self._ending.wait(PAUSE_SECONDS):
                    self._look(connection)

    def _look(self, connection: PatientConnection) -> None:
        before = self.decided()
        halves = stored(connection, HALF_TOPIC, 0)
        seen = sum(stored(connection, self._topic, queue) for queue in range(self._queues))
        after = self.decided()
        self.looks_before_a_decision += before == after and halves > after * self._per_batch
        if seen > after * self._per_batch:
            self.early = f"{seen} rows of {after} batches that are decided"


def stored(connection: PatientConnection, topic: str, queue: int) -> int:
    """The end of a queue; 0 where there is none."""
    fields = {"topic": topic, "queueId": queue}
    answer = connection.invoke(
        RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields), SECONDS_MAX
    )
    return int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0


def numbers_of(connection: PatientConnection, topic: str, queues: int = 4) -> list[int]:
    """The numbers that the bodies of a topic are, sorted."""
    found: list[int] = []
    for queue in range(queues):
        offset, end = 0, stored(connection, topic, queue)
        while offset < end:
            header = pull_header(
                MessageQueue(topic, "", queue), TOOLS_GROUP, "*", offset=offset, count=end - offset
            )
            request = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
            answer = connection.invoke(request, SECONDS_MAX)
            assert answer.code == ResponseCode.SUCCESS, answer
            found += [int(each.body) for each in decode_records(answer.body)]
            offset = int(answer.ext_fields["nextBeginOffset"])
    return sorted(found)
