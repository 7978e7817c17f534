"""A blocking connection whose time limits a busy machine does not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kerolox.remoting.blocking import BlockingConnection
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Container

    from kerolox.protocol.command import RemotingCommand

__all__ = ["PatientConnection"]


class PatientConnection(BlockingConnection):
    """Waits ``SECONDS_MAX`` for whatever is not said to be awaited for shorter."""

    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **{"connect_timeout_seconds": SECONDS_MAX, **options})

    def invoke(
        self, command: RemotingCommand, timeout_seconds: float = SECONDS_MAX
    ) -> RemotingCommand:
        """As of the class above."""
        return super().invoke(command, timeout_seconds)

    def send(self, command: RemotingCommand, timeout_seconds: float = SECONDS_MAX) -> int:
        """As of the class above."""
        return super().send(command, timeout_seconds)

    def receive(
        self, timeout_seconds: float = SECONDS_MAX, opaques: Container[int] | None = None
    ) -> RemotingCommand:
        """The next response to a request that ``send`` has sent, to one with one of the opaques;
        None: to any. Whatever else arrives is dropped, and does not make the wait longer."""
        found: list[RemotingCommand] = []

        def has_come() -> bool:
            while self._frames and not found:
                command = self._decoded(self._frames.popleft())
                if command.is_response and (opaques is None or command.opaque in opaques):
                    found.append(command)
            return bool(found)

        self._read_until(has_come, timeout_seconds)
        return found[0]

    def send_frames(self, data: bytes | bytearray, timeout_seconds: float = SECONDS_MAX) -> None:
        """As of the class above."""
        super().send_frames(data, timeout_seconds)
