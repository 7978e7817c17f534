"""How often idle parts of a cluster look whether there is something to do, and how long they wait
for who is gone.

A run costs processor time by steps, and most steps of a cluster at rest are such looks. What they
would find comes as well a little later in virtual time, which costs nothing.
"""

from __future__ import annotations

import kerolox.broker.broker
import kerolox.broker.replication.server
import kerolox.client.core.consuming.ordered.locks
import kerolox.remoting.limits.memory_limiter
from kerolox.broker.grpc import checks, receiving
from kerolox.broker.timer_settings import TimerKeys
from kerolox.protocol.pop_names import PopInitMode
from tests.simulation.patches import Patches

LOOK_SECONDS = 0.2
"""Delayed messages, ends of waits, what a slave lacks whom nobody waits for."""
SELDOM_SECONDS = 1.0
"""What is wrong with disks."""
LOCK_LIVE_MS = 7_000
"""A member takes a lock for lost that was not renewed for so long."""
BROKER_LOCK_LIVE_MS = 15_000
"""A broker keeps the lock of a member that died for so long."""
TIMER_SLOTS = 1_200
"""Of half a wheel: each flush of RocketMQ's would copy 39 MB."""


def install(patches: Patches) -> None:
    """Let them look less often."""
    broker = kerolox.broker.broker
    for name in ("TICK_SECONDS", "DELIVER_SECONDS"):
        patches.set(broker, name, LOOK_SECONDS)
    patches.set(broker, "TROUBLE_SECONDS", SELDOM_SECONDS)
    patches.set(kerolox.broker.replication.server, "POLL_SECONDS", LOOK_SECONDS)
    patches.set(kerolox.remoting.limits.memory_limiter, "CHECK_SECONDS", 5 * SELDOM_SECONDS)
    settings: property = vars(TimerKeys)["timer_settings"]
    small = property(lambda config: settings.__get__(config)._replace(slots=TIMER_SLOTS))
    patches.set(TimerKeys, "timer_settings", small)
    # Members by gRPC take no longer than the others, and begin with the first message, too.
    patches.set(checks, "INVISIBLE_MS_MIN", 1_000)
    patches.set(receiving, "POLL_MS_MIN", 1_000)
    patches.set(receiving, "INIT_MODE", PopInitMode.MIN)
    locks = kerolox.client.core.consuming.ordered.locks
    patches.set(locks, "LOCK_LIVE_MS", LOCK_LIVE_MS)
