"""FastStream's own tests that every broker of it has to pass, as classes to be subclassed.

They are no part of FastStream's distributions. ``base-tests.tar.xz`` holds those of its repository
(ag2ai/faststream, commit 7c9a125df, the folders ``base`` of ``tests``), with their licence, Apache
2.0. Changed is the name of their package: ``tests`` is ours.
"""

from __future__ import annotations

import atexit
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

PACKAGE = "faststream_tests"


def unpack() -> None:
    """Have the tests imported from a folder that goes with this process."""
    if PACKAGE in sys.modules or any(PACKAGE in path for path in sys.path):
        return
    folder = tempfile.TemporaryDirectory(prefix=f"{PACKAGE}-")
    atexit.register(folder.cleanup)
    with tarfile.open(Path(__file__).with_name("base-tests.tar.xz")) as archive:
        archive.extractall(folder.name, filter="data")
    sys.path.append(folder.name)
    pytest.register_assert_rewrite(PACKAGE)


unpack()
