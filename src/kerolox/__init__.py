"""Kerolox: a message broker, clients and a Spark source, compatible with RocketMQ 4.x.

All that users of the asyncio clients need can be imported from here: messages, clients, settings,
statuses and errors. :mod:`kerolox.client.sync` has the blocking clients.
"""

from kerolox import errors
from kerolox.public_names import KEROLOX, importer

_ORIGINS = KEROLOX | dict.fromkeys(errors.__all__, errors.__name__)

__all__ = sorted(_ORIGINS)

__getattr__, __dir__ = importer(__name__, _ORIGINS)
