from __future__ import annotations

import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.compression import (
    INFLATED_BYTES_MAX,
    BodyTooLargeError,
    CodecMissingError,
    inflate_body,
)

TEXT = b"hello " * 5000


def zstd_stream(data: bytes) -> bytes:
    """As Java's ZstdOutputStream writes: the frame does not say how long the content is."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


CODECS = pytest.mark.parametrize(
    ("bits", "compress"),
    [
        (0x001, zlib.compress),
        (0x301, zlib.compress),
        (0x101, lz4.frame.compress),
        (0x201, zstd_stream),
    ],
)


@CODECS
def test_every_codec_of_rocketmq_is_read(bits: int, compress: Callable[[bytes], bytes]) -> None:
    assert inflate_body(compress(TEXT), bits) == TEXT
    assert inflate_body(compress(b""), bits) == b""
    assert inflate_body(TEXT, bits & ~1) == TEXT


@CODECS
def test_what_is_torn_or_corrupt_is_an_error(bits: int, compress: Callable[[bytes], bytes]) -> None:
    packed = compress(TEXT)
    for body in (packed[:-3], packed[: len(packed) // 2], b"", b"not compressed", b"\x00" + packed):
        with pytest.raises(RemoteProtocolError, match=r"corrupt|torn"):
            inflate_body(body, bits)


@CODECS
def test_nothing_inflates_beyond_the_limit(bits: int, compress: Callable[[bytes], bytes]) -> None:
    for size in (20_001, 200_000):
        with pytest.raises(BodyTooLargeError, match="more than 20000 bytes"):
            inflate_body(compress(bytes(size)), bits, bytes_max=20_000)
    assert inflate_body(compress(bytes(20_000)), bits, bytes_max=20_000) == bytes(20_000)


@CODECS
def test_a_body_has_a_limit_by_itself(bits: int, compress: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BodyTooLargeError, match=f"more than {INFLATED_BYTES_MAX} bytes"):
        inflate_body(compress(bytes(INFLATED_BYTES_MAX + 1)), bits)


@CODECS
def test_bytes_behind_the_end_do_not_matter(bits: int, compress: Callable[[bytes], bytes]) -> None:
    assert inflate_body(compress(TEXT) + b"more", bits) == TEXT


@pytest.mark.parametrize(
    ("bits", "module", "package"), [(0x101, "lz4", "lz4"), (0x201, "zstandard", "zstandard")]
)
def test_a_missing_package_is_named(
    bits: int, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.frame", None)
    with pytest.raises(CodecMissingError) as caught:
        inflate_body(b"x", bits)
    assert f"install the package '{package}'" in str(caught.value)
    assert "kerolox[compression]" in str(caught.value)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="type 7"):
        inflate_body(b"x", 0x701)
