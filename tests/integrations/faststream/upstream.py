"""FastStream's own tests that every broker of it has to pass, as classes to be subclassed.

They are no part of FastStream's distributions. ``base-tests.tar.xz`` holds those of its repository
(ag2ai/faststream, commit 7c9a125df, the folders ``base`` of ``tests``), with their licence, Apache
2.0. Changed is the name of their package: ``tests`` is ours.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.kept import digest_of, forget_old, kept_folder
from tests.support.unpacked import unpack_archive

PACKAGE = "faststream_tests"


ARCHIVE = Path(__file__).with_name("base-tests.tar.xz")
ARCHIVES_MAX = 2


def unpack() -> None:
    """Have the tests imported from a folder that all runs share: they are compiled once."""
    if PACKAGE in sys.modules:
        return
    folder = kept_folder("faststream") / digest_of([ARCHIVE], ARCHIVE.parent)[:16]
    if not folder.exists():
        with (
            tempfile.TemporaryDirectory(dir=folder.parent) as fresh,
            tarfile.open(ARCHIVE) as archive,
        ):
            unpacked = Path(fresh) / folder.name
            unpack_archive(archive, unpacked)
            # Another process may have been first.
            with suppress(OSError):
                unpacked.rename(folder)
        forget_old(folder.parent.iterdir(), ARCHIVES_MAX)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        pytest.register_assert_rewrite(PACKAGE)


unpack()
