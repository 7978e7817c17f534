"""A real Java broker and mqadmin at name servers that let only some change things."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from tests.interop.mqadmin import MqAdminProcess
from tests.support.eventually import wait_until
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.command import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.xdist_group("java")]


@contextmanager
def name_server(folder: Path, settings: str) -> Iterator[Server]:
    folder.mkdir()
    conf = folder / "namesrv.conf"
    conf.write_text(settings)
    arguments = ["namesrv", "--host", "127.0.0.1", "--port", 0, "--data", folder, "-c", conf]
    with Server(folder, *arguments, "--log-file", folder / "n.log") as server:
        yield server


def names(server: Server) -> list[str]:
    """The brokers that a name server knows."""
    with Admin(server.addresses["namesrv"]) as admin:
        return sorted(admin.cluster_info().brokers)


def test_a_java_broker_registers_where_it_is_on_the_list_and_nowhere_else(tmp_path: Path) -> None:
    with (
        name_server(tmp_path / "open", "writerAddresses=10.0.0.1,127.0.0.1\n") as listed,
        name_server(tmp_path / "shut", "writerAddresses=127.0.0.2\n") as other,
        MqAdminProcess(tmp_path / "mqadmin") as mqadmin,
    ):
        both = ";".join(server.addresses["namesrv"] for server in (listed, other))
        settings = (f"namesrvAddr={both}", "registerNameServerPeriod=10000")
        audit = tmp_path / "shut" / "n.audit.log"
        with JavaPeer(tmp_path / "java", settings=settings, with_namesrv=False) as peer:
            wait_until(lambda: names(listed) == ["broker-a"])
            wait_until(lambda: '"request":"REGISTER_BROKER"' in audit.read_text())
            assert names(other) == []
            key_value = ("-s", "N", "-k", "K", "-v", "V")
            done = mqadmin.run("updateKvConfig", "-n", listed.addresses["namesrv"], *key_value)
            assert "success" in done
            with pytest.raises(AssertionError, match=r"127\.0\.0\.1 is not among writerAddresses"):
                mqadmin.run("updateKvConfig", "-n", other.addresses["namesrv"], *key_value)
            peer.kill()
    denied = [line for line in audit.read_text().splitlines() if '"denied"' in line]
    assert any('"request":"PUT_KV_CONFIG"' in line for line in denied)
    assert '"changed"' not in audit.read_text()
