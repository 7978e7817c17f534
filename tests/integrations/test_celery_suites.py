"""kombu's own integration tests of transports, with ``KEROLOX_SOFTWARE=all``.

They come with kombu's source distribution, of the version that is installed. What they demand is
held by ``test_celery_transport.py`` as well. ``BasePriority`` is left out: a priority stays in the
message, and changes no order.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from kerolox.testing import LocalBroker
from tests.support.unpacked import unpack_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.software, pytest.mark.timeout(900)]

SUITE = """
import socket
import uuid

import kombu
import pytest

import kerolox.integrations.celery
from t.integration import common

NAME_SERVER = "{name_server}"


def made(url):
    prefix = uuid.uuid4().hex[:8]
    return kombu.Connection(url, transport_options={{"queue_name_prefix": prefix}})


@pytest.fixture
def connection():
    return made(f"rocketmq://{{NAME_SERVER}}")


@pytest.fixture
def failover_connection():
    return made(f"rocketmq://127.0.0.1:1;rocketmq://{{NAME_SERVER}}")


@pytest.fixture
def invalid_connection():
    return kombu.Connection("rocketmq://127.0.0.1:1")


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestFailover(common.BaseFailover):
    pass
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kombu's source, with its tests."""
    folder = tmp_path_factory.mktemp("kombu")
    wanted = f"kombu=={version('kombu')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    subprocess.run([*command, "kombu", wanted, "--dest", str(folder)], check=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        unpack_archive(opened, folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


def test_kombus_own_tests_of_transports_pass(
    source: Path, local: LocalBroker, tmp_path: Path
) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE.format(name_server=local.name_server))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", suite],
        env={"PYTHONPATH": f"{source}:{':'.join(filter(None, sys.path))}", "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    print(done.stdout[-4_000:])
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    assert "42 passed" in done.stdout
