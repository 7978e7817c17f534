"""The blocking clients: the same names and arguments as :mod:`kerolox.client`, without asyncio.

Each client runs its asyncio client in a thread of its own. Many threads may use it. Listeners are
plain functions that run in threads of the consumer.
"""

from kerolox.public_names import SYNC, importer

__all__ = sorted(SYNC)

__getattr__ = importer(__name__, SYNC)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
