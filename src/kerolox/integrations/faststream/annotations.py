"""Types of handlers' arguments that FastStream fills in: broker, message, logger."""

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from kerolox.client.aio.connection import Connection as _Connection
from kerolox.integrations.faststream.broker import KeroloxBroker as _Broker
from kerolox.integrations.faststream.message import KeroloxMessage as _Message

__all__ = ["Connection", "ContextRepo", "KeroloxBroker", "KeroloxMessage", "Logger", "NoCast"]

Connection = Annotated[_Connection, Context("broker._connection")]
KeroloxBroker = Annotated[_Broker, Context("broker")]
KeroloxMessage = Annotated[_Message, Context("message")]
