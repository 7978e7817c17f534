"""A real broker for tests: on a free port, started in well under a second, with a clock to set.

::

    with LocalBroker() as broker:
        with Producer("shop", broker.name_server) as producer:
            producer.send(Message("Orders", b"hello"))
        assert [message.body for message in broker.messages("Orders")] == [b"hello"]

pytest has it as fixtures, once ``kerolox`` is installed: ``kerolox_broker`` (one for the session),
``own_kerolox_broker`` (one for the test), ``kerolox_topic`` and ``kerolox_group`` (of the test
alone), ``kerolox_settings`` (override it to change the brokers' settings).
"""

from kerolox.testing.clock import Clock
from kerolox.testing.local_broker import LocalBroker

__all__ = ["Clock", "LocalBroker"]
