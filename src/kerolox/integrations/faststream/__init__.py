"""A broker for FastStream (``pip install 'kerolox[faststream]'``).

::

    broker = KeroloxBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("Orders", group="billing")
    async def on_order(order: Order) -> None: ...

It stands on FastStream's base classes as FastStream's own brokers do. These are internal there
(``faststream._internal``) and change between releases, so the extra allows a range of releases.
:mod:`kerolox.integrations.faststream.fastapi`, ``.opentelemetry`` and ``.prometheus`` have the
router for FastAPI and the middlewares; they need these packages.
"""

from kerolox.errors import ConfigError

try:
    from kerolox.integrations.faststream.annotations import KeroloxMessage
    from kerolox.integrations.faststream.broker import KeroloxBroker
    from kerolox.integrations.faststream.response import KeroloxResponse
    from kerolox.integrations.faststream.router import (
        KeroloxPublisher,
        KeroloxRoute,
        KeroloxRouter,
    )
    from kerolox.integrations.faststream.testing import TestKeroloxBroker
except ImportError as error:
    raise ConfigError(
        f"FastStream can't be imported ({error}); install kerolox[faststream]"
    ) from error

__all__ = [
    "KeroloxBroker",
    "KeroloxMessage",
    "KeroloxPublisher",
    "KeroloxResponse",
    "KeroloxRoute",
    "KeroloxRouter",
    "TestKeroloxBroker",
]
