"""The native kernel of Kerolox; the interface is documented in ``kerolox.kernel``."""

from kerolox_kernel._kernel import (
    Connection,
    SendDecoder,
    SendEncoder,
    Store,
    cut_messages,
    decode_columns,
    decode_properties,
)

__all__ = [
    "Connection",
    "SendDecoder",
    "SendEncoder",
    "Store",
    "cut_messages",
    "decode_columns",
    "decode_properties",
]
