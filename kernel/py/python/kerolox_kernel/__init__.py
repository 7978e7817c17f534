"""The native kernel of Kerolox; the interface is documented in ``kerolox.kernel``."""

from kerolox_kernel._kernel import VERSION as __version__
from kerolox_kernel._kernel import (
    Connection,
    Http2ServerSide,
    MessageIds,
    Opaques,
    SendChannel,
    Sender,
    TopicSender,
    Store,
    cut_messages,
    decode_columns,
    decode_properties,
    encode_rows,
    first_fault,
    hash_texts,
    pull_answer,
    scan_columns,
)

__all__ = [
    "Connection",
    "Http2ServerSide",
    "MessageIds",
    "Opaques",
    "SendChannel",
    "TopicSender",
    "Sender",
    "Store",
    "__version__",
    "cut_messages",
    "decode_columns",
    "decode_properties",
    "encode_rows",
    "first_fault",
    "hash_texts",
    "pull_answer",
    "scan_columns",
]
