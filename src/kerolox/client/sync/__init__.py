"""The blocking clients: the same names and arguments as :mod:`kerolox.client`, without asyncio.

Each client runs its asyncio client in a thread of its own. Many threads may use it. Listeners are
plain functions that run in threads of the consumer.
"""

from kerolox import client
from kerolox.public_names import SYNC, importer

__all__ = sorted(SYNC)

_import, __dir__ = importer(__name__, SYNC)


def __getattr__(name: str) -> object:
    """A public name, imported now. A class is documented then: its asyncio class is not imported
    for the sake of another one."""
    found = _import(name)
    if isinstance(found, type) and found.__module__.endswith("._generated"):
        from kerolox.client.sync._forwarding import documented

        for blocking, source in zip(found.__mro__, getattr(client, name).__mro__, strict=True):
            documented(blocking, source)
    return found
