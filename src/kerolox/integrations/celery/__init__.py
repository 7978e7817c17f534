"""A transport for kombu, and so for Celery: tasks wait in RocketMQ's topics.

::

    import kerolox.integrations.celery  # makes rocketmq:// known
    from celery import Celery

    app = Celery("shop", broker="rocketmq://127.0.0.1:9876")

kombu has a table of the schemes of its URLs and no entry point for it, so somebody has to import
this module before the first connection; the module of the app is the place. Where that can't be,
``broker_transport = "kerolox.integrations.celery:Transport"`` beside the same URL does without.
It comes with ``kerolox[celery]``.

The URL is ``rocketmq://[access key:secret key@]name server[:9876][/namespace]``; several, joined by
``;``, are tried in turn. :class:`Options` has what ``broker_transport_options`` may say.
"""

from kerolox.errors import ConfigError

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise ConfigError(
        f"kombu can't be imported ({error}); install kerolox[celery], or kombu"
    ) from error

from kerolox.integrations.celery.options import Options
from kerolox.integrations.celery.transport import Transport

__all__ = ["Options", "Transport"]

TRANSPORT_ALIASES.setdefault("rocketmq", f"{__name__}:Transport")
