"""The native kernel of Kerolox; the interface is documented in ``kerolox.kernel``."""

from kerolox_kernel._kernel import (
    Connection,
    SendDecoder,
    SendEncoder,
    Store,
    decode_columns,
)

__all__ = ["Connection", "SendDecoder", "SendEncoder", "Store", "decode_columns"]
