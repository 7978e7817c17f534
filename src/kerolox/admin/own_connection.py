"""The connections of one ``Admin`` that has some of its own."""

from __future__ import annotations

from kerolox.client.aio.connection import Connection


class AdminConnection(Connection):
    """Connections, and who made them."""

    @property
    def _name(self) -> str:
        return "Admin"
