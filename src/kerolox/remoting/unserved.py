"""Requests of codes that nobody handles: answered with code 3, and told to who operates the server.

A client whose feature never works says little about it; the line in the log names the code.
"""

from __future__ import annotations

import logging

from kerolox.protocol.codes import VERSION
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import ServerConnection

LOGGED_MAX = 1_024
"""Pairs of code and client that are remembered; what others ask is not told any more."""

_log = logging.getLogger(__name__)


class UnservedCodes:
    """Answers what a server does not serve; each code is told once per client."""

    def __init__(self, role: str) -> None:
        """``role``: who does not serve it, for the log."""
        self._role = role
        self._logged: set[tuple[int, str, int, int]] = set()

    def answer(self, command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
        """The answer to a code without a handler.

        A client is a host with a language and a version: each process that runs there asks alike.
        """
        host = connection.peer[0]
        client = (command.code, host, int(command.language), command.version)
        if client not in self._logged and len(self._logged) <= LOGGED_MAX:
            self._logged.add(client)
            self._log_once(command, connection)
        return command.not_supported()

    def _log_once(self, command: RemotingCommand, connection: ServerConnection) -> None:
        if len(self._logged) > LOGGED_MAX:
            _log.warning(
                "%s: %d requests of codes that are not served were told; further ones are not",
                self._role,
                LOGGED_MAX,
            )
            return
        newer = ", newer than 4.9" if command.version > VERSION else ""
        _log.warning(
            "%s: request code %d of %s (%s client, version %d%s) is not served and answered with "
            "code 3; what the client wants of it does not work here",
            self._role,
            command.code,
            connection.remote_address,
            command.language.name,
            command.version,
            newer,
        )
