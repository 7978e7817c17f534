"""The native kernel of Kerolox; the interface is documented in ``kerolox.kernel``."""

from kerolox_kernel._kernel import (
    Appended,
    BatchAppended,
    Connection,
    QueueBounds,
    Read,
    RecoveryReport,
    Store,
    decode_columns,
)

__all__ = [
    "Appended",
    "BatchAppended",
    "Connection",
    "QueueBounds",
    "Read",
    "RecoveryReport",
    "Store",
    "decode_columns",
]
