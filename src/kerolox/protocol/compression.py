"""Compressed bodies: what the compression bits of a message's sysFlag mean, and inflating.

zlib is always there. LZ4 and ZSTD, which Java producers may choose (``compressType``), need a
package each; without it the error says which. Nothing inflates to more than ``INFLATED_BYTES_MAX``:
a small body may claim to be gigabytes.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from enum import Enum

from kerolox.errors import ConfigError, RemoteProtocolError
from kerolox.protocol.codes import COMPRESSED, COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""A compressed body that inflates to more is an error."""

COMPRESSION_MASK = COMPRESSED | COMPRESSION_TYPE_MASK
"""The bits of a sysFlag that say whether and how the body is compressed."""

_ZSTD_SLICE_BYTES = 1024
"""So many compressed bytes are inflated at once, which bounds what one step can make of them: a
block of ZSTD is 4 bytes at least and 128 KiB inflated at most, so 32 MiB."""


class CompressionType(Enum):
    """How a producer compresses bodies (``CompressionType``); the value is the sysFlag's bits.

    Clients of RocketMQ before 4.9.4 read ZLIB only; those of 4.9.4 and later read all three.
    """

    LZ4 = COMPRESSED | 0x100
    ZSTD = COMPRESSED | 0x200
    ZLIB = COMPRESSED | COMPRESSION_ZLIB


_PACKAGES = {CompressionType.LZ4: "lz4", CompressionType.ZSTD: "zstandard"}


def check_compression(kind: CompressionType) -> None:
    """Refuse a compression whose package is not installed; the ConfigError says which it is."""
    package = _PACKAGES.get(kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"compress_type {kind.name} needs the package {package!r}"
            " (pip install 'kerolox[compression]')"
        )


def compress_body(body: bytes, kind: CompressionType, *, level: int) -> bytes:
    """The body compressed; :func:`inflate_body` is the way back. :func:`check_compression` tells
    whether it can be. ``level``: of zlib and ZSTD, 0 to 9; LZ4 has none, as with Java's producers.
    """
    if kind is CompressionType.LZ4:
        import lz4.frame

        # Java reads frames of independent blocks only.
        packed: bytes = lz4.frame.compress(body, block_linked=False)
        return packed
    if kind is CompressionType.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body)
    return zlib.compress(body, level)


class BodyTooLargeError(RemoteProtocolError):
    """The body inflates to more bytes than were allowed."""


class CodecMissingError(RemoteProtocolError):
    """The package that knows this compression is not installed; the body may be good."""


def inflate_body(body: bytes, sys_flag: int, *, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """The body as the producer gave it. Bytes behind the compressed stream's end do not matter, as
    for Java's clients. Without the compression bit in ``sys_flag`` it is returned as it is.

    Raises:
        BodyTooLargeError: it inflates to more than ``bytes_max``.
        CodecMissingError: it needs a package that is not installed; the text says which.
        RemoteProtocolError: corrupt, torn, or compressed in a way that nobody knows.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = (sys_flag & COMPRESSION_TYPE_MASK) >> 8
    codec = _CODECS.get(kind)
    if codec is None:
        raise RemoteProtocolError(f"the body is compressed with type {kind}, which is not known")
    # One byte more is asked for, so that the end of a body of exactly bytes_max is seen.
    data, is_whole = codec(body, bytes_max + 1)
    if len(data) > bytes_max:
        raise BodyTooLargeError(f"the compressed body inflates to more than {bytes_max} bytes")
    if not is_whole:
        raise RemoteProtocolError("the compressed body is torn: its end is missing")
    return data


def _zlib(body: bytes, length_max: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, length_max)
    except zlib.error as error:
        raise _corrupt(error) from None
    return data, stream.eof


def _lz4(body: bytes, length_max: int) -> tuple[bytes, bool]:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("LZ4", "lz4") from None
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        data: bytes = stream.decompress(body, max_length=length_max)
    except (RuntimeError, EOFError) as error:
        raise _corrupt(error) from None
    return data, stream.eof


def _zstd(body: bytes, length_max: int) -> tuple[bytes, bool]:
    try:
        import zstandard
    except ImportError:
        raise _missing("ZSTD", "zstandard") from None
    stream = zstandard.ZstdDecompressor(max_window_size=INFLATED_BYTES_MAX).decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(body), _ZSTD_SLICE_BYTES):
            if stream.eof or size >= length_max:
                break
            parts.append(stream.decompress(body[start : start + _ZSTD_SLICE_BYTES]))
            size += len(parts[-1])
    except zstandard.ZstdError as error:
        raise _corrupt(error) from None
    return b"".join(parts), stream.eof


def _corrupt(error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the compressed body is corrupt: {error}")


def _missing(name: str, package: str) -> CodecMissingError:
    return CodecMissingError(
        f"the body is compressed with {name}; install the package {package!r} "
        "(pip install 'kerolox[compression]') to read it"
    )


_CODECS: dict[int, Callable[[bytes, int], tuple[bytes, bool]]] = {
    0: _zlib,
    1: _lz4,
    2: _zstd,
    3: _zlib,
}
