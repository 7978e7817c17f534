"""What the commands of ``kerolox store`` share: the folder, its settings, a line of progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kerolox.inspect.places import StorePlaces

PROGRESS_SECONDS = 0.2
MEBIBYTE = 1 << 20


def store_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The folder, ``-c`` and ``--log-folder``."""
    for decorate in (
        click.option(
            "--log-folder",
            "log_folders",
            multiple=True,
            metavar="DIR",
            help="A folder of the commit log, when it is not DIR/commitlog; may be repeated.",
        ),
        click.option(
            "-c",
            "config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The store's broker.conf: folders of the log, delay levels, index sizes.",
        ),
        click.argument("folder", metavar="DIR"),
    ):
        command = decorate(command)
    return command


class Progress:
    """A line on stderr that is written over; nothing where stderr is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._last = time.monotonic()
        self._has_line = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show how much is done, of bytes."""
        now = time.monotonic()
        if not self._is_shown or now - self._last < PROGRESS_SECONDS:
            return
        self._last = now
        rate = done / MEBIBYTE / max(now - self._started, 0.001)
        part = 100 * done // max(total, 1)
        line = f"{self._what} {part:3d}% of {total // MEBIBYTE} MiB, {rate:.0f} MiB/s"
        click.echo(f"\r{line:60}", nl=False, err=True)
        self._has_line = True

    def __exit__(self, *_: object) -> None:
        if self._has_line:
            click.echo(f"\r{'':60}\r", nl=False, err=True)


def find_store(
    folder: str, config: Path | None, log_folders: tuple[str, ...], *, has_index: bool = True
) -> StorePlaces:
    """The store that the options of :func:`store_options` name.

    Raises:
        StoreError: it is missing or no store.
        ConfigError: its settings can't be read.
        OSError: it can't be read.
    """
    import dataclasses

    from kerolox.inspect.places import StoreOptions, StorePlaces

    options = StoreOptions() if config is None else StoreOptions.of_settings(config)
    options = dataclasses.replace(
        options,
        log_folders=log_folders or options.log_folders,
        has_index=has_index and options.has_index,
    )
    return StorePlaces.find(folder, options)
