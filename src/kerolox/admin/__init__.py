"""What operators ask of a cluster: all that ``mqadmin`` does, typed.

:class:`Admin` has connections of its own and a method for each question::

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queues=8)
        print(await admin.describe_topic("Orders"))

:meth:`Admin.on` makes one for who has an :class:`Access` already. Every answer is a frozen
dataclass, or a frozen struct where it is RocketMQ's own table of settings. Times are milliseconds
since the epoch where a name ends in ``_ms``, and sizes are bytes unless the name says otherwise. An
address is ``host:port``. Blocking counterparts are in :mod:`kerolox.admin.sync`.

A name is imported on its first use. So a command that asks one question starts faster.
"""

from kerolox.public_names import ADMIN, importer

__all__ = sorted(ADMIN)

__getattr__, __dir__ = importer(__name__, ADMIN)
