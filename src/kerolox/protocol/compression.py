"""Compressed bodies: what the compression bits of a message's sysFlag mean, and inflating.

zlib is always there. LZ4 and ZSTD, which Java producers may choose (``compressType``), need a
package each; without it the error says which. Nothing inflates to more than ``INFLATED_BYTES_MAX``:
a small body may claim to be gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.codes import COMPRESSION_TYPE_MASK, MessageSysFlag

__all__ = ["COMPRESSION_MASK", "INFLATED_BYTES_MAX", "inflate_body"]

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""A compressed body that inflates to more is an error."""

COMPRESSION_MASK = int(MessageSysFlag.COMPRESSED) | COMPRESSION_TYPE_MASK
"""The bits of a sysFlag that say whether and how the body is compressed."""

_COMPRESSED = int(MessageSysFlag.COMPRESSED)
_ZSTD_SLICE_BYTES = 4096
"""So many compressed bytes are inflated at once, which bounds what one step can make of them."""


def inflate_body(body: bytes, sys_flag: int) -> bytes:
    """The body as the producer gave it.

    Raises:
        RemoteProtocolError: corrupt, too large, or compressed in a way that is not known here; the
            text says what to install when that helps.
    """
    if not sys_flag & _COMPRESSED:
        return body
    kind = (sys_flag & COMPRESSION_TYPE_MASK) >> 8
    codec = _CODECS.get(kind)
    if codec is None:
        raise RemoteProtocolError(f"the body is compressed with type {kind}, which is not known")
    return codec(body)


def _zlib(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed body is corrupt: {error}") from None
    return _whole(data, stream.eof)


def _lz4(body: bytes) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("LZ4", "lz4") from None
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        data: bytes = stream.decompress(body, max_length=INFLATED_BYTES_MAX)
    except (RuntimeError, EOFError) as error:
        raise RemoteProtocolError(f"the compressed body is corrupt: {error}") from None
    return _whole(data, stream.eof)


def _zstd(body: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("ZSTD", "zstandard") from None
    stream = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(body), _ZSTD_SLICE_BYTES):
            if stream.eof or size > INFLATED_BYTES_MAX:
                break
            parts.append(stream.decompress(body[start : start + _ZSTD_SLICE_BYTES]))
            size += len(parts[-1])
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"the compressed body is corrupt: {error}") from None
    return _whole(b"".join(parts), stream.eof and size <= INFLATED_BYTES_MAX)


def _whole(data: bytes, is_whole: bool) -> bytes:
    if not is_whole:
        raise RemoteProtocolError(
            f"the compressed body is torn, or inflates to more than {INFLATED_BYTES_MAX} bytes"
        )
    return data


def _missing(name: str, package: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the body is compressed with {name}; install the package {package!r} "
        "(pip install 'kerolox[compression]') to read it"
    )


_CODECS: dict[int, Callable[[bytes], bytes]] = {0: _zlib, 1: _lz4, 2: _zstd, 3: _zlib}
