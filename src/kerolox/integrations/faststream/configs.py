"""What a broker, or a router, hands down to its subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fast_depends.pydantic import PydanticSerializer
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream.exceptions import IncorrectState

from kerolox.integrations.faststream.producer import KeroloxProducer

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto

    from kerolox.client.aio.connection import Connection


def _unconnected() -> KeroloxProducer:
    return KeroloxProducer(None, None)


@dataclass(kw_only=True)
class KeroloxBrokerConfig(BrokerConfig):
    """Of a broker; of a router only what :class:`BrokerConfig` has counts."""

    producer: KeroloxProducer = field(default_factory=_unconnected)
    group: str = "faststream"
    """Producer group, and what the names of groups begin with that subscribers do not name."""
    create_topics: bool = False
    connection: Connection | None = None
    """While the broker is connected."""

    @property
    def serializer(self) -> SerializerProto | None:
        """What turns bodies that are no bytes or texts into JSON."""
        given = self.fd_config.serializer
        return PydanticSerializer(use_fastdepends_errors=False) if given is EMPTY else given

    @property
    def connected(self) -> Connection:
        """The connection.

        Raises:
            IncorrectState: there is none.
        """
        if self.connection is None:
            raise IncorrectState("the broker is not connected; call connect() or start() first")
        return self.connection
