"""Send answers that wait until their record is on disk (SYNC_FLUSH), on a slave (SYNC_MASTER).

See :class:`kerolox.kernel.append.ReplicationKernel`. Each connection has a line in the order of
positions, so what becomes safe releases a run from its front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kerolox._pykernel.answers import with_code
from kerolox.kernel.settings import StoreSettings
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.framing import encode_frame

PENDING_ANSWERS_MAX = 1_000_000
"""Send answers that may wait; further ones are given at once as if their time were over."""

Note = Callable[[int], None]
"""Told when an answer that is released began to wait, in milliseconds."""

_SUCCESS = int(ResponseCode.SUCCESS)
_DISK_LATE = int(ResponseCode.FLUSH_DISK_TIMEOUT)
_NO_SLAVE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
_SLAVE_LATE = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


@dataclass(slots=True)
class _Answer:
    end_offset: int
    begin_ms: int
    kind: int
    """Serialize type of the header."""
    header: bytes
    code: int
    for_disk: bool
    for_slave: bool

    def frame(self) -> bytes:
        return encode_frame(with_code(self.header, self.kind, self.code), b"", self.kind)


@dataclass(slots=True)
class _AnswerQueue:
    """The waiting answers of one connection."""

    answers: deque[_Answer] = field(default_factory=deque)
    late_for_disk: int = 0
    """How many in front wait for the disk no longer."""
    late_for_slave: int = 0
    """How many in front wait for a slave no longer."""


class PendingAnswers:
    """The send answers that wait.

    Attributes:
        slave_timeout_ms: how long sends wait for a slave; None: they do not.
        replicated: everything below this physical offset is on a slave.
        available_below: a record that ends here or later does not wait for a slave.
        slave_wanted: one waits for a slave since this was cleared.
        count: how many wait.
    """

    def __init__(self, settings: StoreSettings) -> None:
        """Nothing waits."""
        is_sync = settings.flush_disk_type == "SYNC_FLUSH"
        self._disk_timeout_ms = settings.sync_flush_timeout if is_sync else None
        self._flushed = 0
        self._queues: dict[int, _AnswerQueue] = {}
        self.slave_timeout_ms: int | None = None
        self.replicated = self.available_below = 0
        self.slave_wanted = False
        self.count = 0

    @property
    def waits_for_disk(self) -> bool:
        """Sends wait for the disk."""
        return self._disk_timeout_ms is not None

    @property
    def is_on(self) -> bool:
        """Sends wait for something."""
        return self.waits_for_disk or self.slave_timeout_ms is not None

    def add(
        self, connection_id: int, end_offset: int, kind: int, header: bytes, now_ms: int
    ) -> bytes:
        """Keep the answer to a record that ends there, or give it: b"" when it is kept."""
        is_sync = self.slave_timeout_ms is not None
        no_slave = is_sync and end_offset >= self.available_below
        for_slave = is_sync and not no_slave and end_offset > self.replicated
        for_disk = self.waits_for_disk
        code = _NO_SLAVE if no_slave else _SUCCESS
        answer = _Answer(end_offset, now_ms, kind, header, code, for_disk, for_slave)
        if not for_disk and not for_slave:
            return answer.frame()
        if self.count >= PENDING_ANSWERS_MAX:
            answer.code = max(code, _SLAVE_LATE if for_slave else _DISK_LATE)
            return answer.frame()
        self._queues.setdefault(connection_id, _AnswerQueue()).answers.append(answer)
        self.count += 1
        self.slave_wanted |= for_slave
        return b""

    def release(self, flushed_offset: int, note: Note) -> list[tuple[int, bytes]]:
        """Take the answers whose records are safe, by connection."""
        self._flushed = flushed_offset
        ready = []
        for connection_id, queue in list(self._queues.items()):
            if frames := self._released(queue, note):
                ready.append((connection_id, b"".join(frames)))
            if not queue.answers:
                del self._queues[connection_id]
        return ready

    def expire(self, now_ms: int, has_failed: bool) -> None:
        """End the waits whose time is over, or for the disk when no flush will come; ``release``
        takes the answers. Each wait that ends so gives its code, of which the slave's counts
        more."""
        for queue in self._queues.values():
            if self._disk_timeout_ms is not None:
                while (late := queue.late_for_disk) < len(queue.answers):
                    answer = queue.answers[late]
                    if not has_failed and answer.begin_ms + self._disk_timeout_ms > now_ms:
                        break
                    if answer.for_disk and answer.end_offset > self._flushed:
                        answer.code = max(answer.code, _DISK_LATE)
                    answer.for_disk = False
                    queue.late_for_disk += 1
            timeout_ms = self.slave_timeout_ms
            while (late := queue.late_for_slave) < len(queue.answers):
                answer = queue.answers[late]
                # Without one nobody is waited for any more.
                if timeout_ms is not None and answer.begin_ms + timeout_ms > now_ms:
                    break
                if answer.for_slave and answer.end_offset > self.replicated:
                    answer.code = max(answer.code, _SLAVE_LATE)
                answer.for_slave = False
                queue.late_for_slave += 1

    def forget(self, connection_id: int) -> None:
        """Drop the answers of a connection that is gone."""
        queue = self._queues.pop(connection_id, None)
        if queue is not None:
            self.count -= len(queue.answers)

    def _released(self, queue: _AnswerQueue, note: Note) -> list[bytes]:
        frames = []
        answers = queue.answers
        while answers:
            answer = answers[0]
            if (answer.for_disk and answer.end_offset > self._flushed) or (
                answer.for_slave and answer.end_offset > self.replicated
            ):
                break
            frames.append(answers.popleft().frame())
            note(answer.begin_ms)
        self.count -= len(frames)
        queue.late_for_disk = max(queue.late_for_disk - len(frames), 0)
        queue.late_for_slave = max(queue.late_for_slave - len(frames), 0)
        return frames
