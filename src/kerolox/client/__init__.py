"""The clients: producers and consumers for asyncio; their blocking counterparts are in ``.sync``.

A name is imported on its first use. So commands and the workers of Spark can import modules of
:mod:`kerolox.client.core` without the clients, and start faster.
"""

from kerolox.public_names import CLIENT, importer

__all__ = sorted(CLIENT)

__getattr__, __dir__ = importer(__name__, CLIENT)
