"""The kernel module: what it offers, and which one this process uses."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from kerolox.errors import ConfigError
from kerolox.release import __version__

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kerolox.kernel.feed import ConnectionKernel
    from kerolox.kernel.settings import StoreSettings
    from kerolox.kernel.store import StoreKernel

KERNEL_VARIABLE = "KEROLOX_KERNEL"
"""Environment variable that forces a kernel."""

logger = logging.getLogger(__name__)

_MODULES = {"native": "kerolox_kernel", "python": "kerolox._pykernel"}

OddBody = Callable[[bytes, int, int], bytes | None]
"""(body as stored, sysFlag, queue offset) of a body that a kernel can't inflate: what stands in its
column, None for null. Raises what the caller of ``decode_columns`` is to get."""

TopicChoice = Callable[[bytes], bool]
"""Whether the records of a topic are wanted."""

ColumnBuffer = bytes | memoryview
"""An Arrow buffer: bytes that nobody changes any more."""

ColumnBuffers = ColumnBuffer | tuple[ColumnBuffer | None, ...]
"""The Arrow buffers of a column."""


class Kernel(Protocol):
    """What a kernel module offers."""

    @property
    def Store(self) -> Callable[[StoreSettings], StoreKernel]:
        """Makes a store; touches no file."""

    @property
    def Connection(self) -> Callable[[StoreKernel, int, bytes], ConnectionKernel]:
        """Makes the fast path of a connection of one of this module's own stores, from a number of
        its own and the peer's host as records store it."""

    @staticmethod
    def decode_columns(
        data: Buffer,
        columns: Sequence[str],
        *,
        start: int = 0,
        body_bytes_max: int = 2**31 - 1,
        odd_body: OddBody | None = None,
    ) -> tuple[int, dict[str, ColumnBuffers], int]:
        """Raw records from byte ``start`` on to Arrow buffers: (row count, {column: buffers}, where
        the next call goes on).

        A call ends before the record that would bring column body beyond ``body_bytes_max``, unless
        that record is the first. ``odd_body`` says what stands for bodies that are compressed, and
        not in zlib's way or not whole.
        """

    @staticmethod
    def scan_columns(
        data: Buffer,
        columns: Sequence[str],
        *,
        start: int,
        stop: int,
        log_offset: int | None,
        rows_max: int,
        body_bytes_max: int = 2**31 - 1,
        stored_from: int = -(2**63),
        stored_before: int = 2**63 - 1,
        topics: TopicChoice | None = None,
        checks_crc: bool = True,
        odd_body: OddBody | None = None,
    ) -> tuple[int, dict[str, ColumnBuffers], int, int, bool]:
        """Bytes of a log to Arrow buffers, as far as whole records follow each other: (row count,
        {column: buffers}, where the next call goes on, records examined, whether something else
        than a whole record stands there). Nothing that the bytes hold is an error.

        Records that begin at ``stop`` or later are not examined. Those of other times or topics
        make no rows. ``log_offset`` is the physical offset of the first byte, against which each
        record is held; None: records of anywhere. ``checks_crc``: a record of a row with a wrong
        CRC counts as not whole. ``odd_body`` is given the physical offset.
        """


def kernel_name() -> Literal["native", "python"]:
    """Which kernel this process uses: ``KEROLOX_KERNEL`` (native or python), else the native one
    when it is installed in this program's version. ConfigError: another value, or native is asked
    for and can't be imported, or is of another version.
    """
    wanted = os.environ.get(KERNEL_VARIABLE, "")
    if wanted == "python":
        return "python"
    if wanted not in ("", "native"):
        raise ConfigError(
            f"{KERNEL_VARIABLE}={wanted}: there is no such kernel; use native or python, "
            "or leave it unset to take the native one when it is installed"
        )
    if wanted == "native":
        _check_native()
        return "native"
    absence = _native_absence()
    if absence and importlib.util.find_spec(_MODULES["native"]):
        _warn(absence)
    return "python" if absence else "native"


class KernelInUse(NamedTuple):
    """Which kernel runs, and why it is not the native one."""

    name: str
    """``native`` or ``python``."""
    reason: str = ""
    """Why it is the Python one, which is several times slower; empty: it is the native one."""

    @property
    def text(self) -> str:
        """For people: the name, and the reason where there is one."""
        return f"{self.name} ({self.reason})" if self.reason else self.name


def kernel_in_use(name: str | None = None) -> KernelInUse:
    """Which kernel :func:`load_kernel` gives for that name, and why."""
    chosen = kernel_name() if name is None else name
    if chosen == "native":
        return KernelInUse(chosen)
    if name is not None:
        return KernelInUse(chosen, "as the program wants it")
    if os.environ.get(KERNEL_VARIABLE):
        return KernelInUse(chosen, f"{KERNEL_VARIABLE} says so")
    return KernelInUse(chosen, _native_absence())


def load_kernel(name: str | None = None) -> Kernel:
    """The kernel module of that name, or of :func:`kernel_name`. ConfigError: an unknown name, or
    the native module is missing, does not load, or is of another version.
    """
    chosen = kernel_name() if name is None else name
    module = _MODULES.get(chosen)
    if module is None:
        raise ConfigError(f"there is no kernel {chosen!r}; use native or python")
    if chosen == "native":
        _check_native()
    return cast("Kernel", importlib.import_module(module))


def _check_native() -> None:
    absence = _native_absence()
    if absence:
        raise ConfigError(_unusable(absence))


def _native_absence() -> str:
    """Why this process does without the native kernel; empty: it need not."""
    name = _MODULES["native"]
    if importlib.util.find_spec(name) is None:
        return "kerolox-kernel is not installed"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(_unusable(str(error))) from error
    found = getattr(module, "__version__", "of an unknown version")
    if found == __version__:
        return ""
    return f"kerolox-kernel {found} at {module.__file__} is not that of Kerolox {__version__}"


def _unusable(reason: str) -> str:
    return (
        f"the native kernel can't be used ({reason}); install kerolox-kernel=={__version__}, "
        f"or run with {KERNEL_VARIABLE}=python"
    )


@cache
def _warn(reason: str) -> None:
    """Once for each reason."""
    logger.warning("the Python kernel runs, which is several times slower: %s", _unusable(reason))
