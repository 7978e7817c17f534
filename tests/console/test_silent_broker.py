"""Pages and charts while a broker does not answer."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kerolox.admin import Admin
from kerolox.message import Message
from tests.console.site import Visitor, running_console
from tests.support.eventually import until
from tests.support.servers.command import Server, kerolox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def stopped_broker(folder: Path, name_server: str) -> Iterator[Server]:
    """A master that is registered and stands still."""
    settings = folder / "broker-b.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        f"brokerName=broker-b\nlistenHost=127.0.0.1\nlistenPort=0\nnamesrvAddr={name_server}\n"
        f"storePathRootDir={folder / 'store'}\n"
    )
    with Server(folder, "broker", "-c", settings) as broker:
        listed = kerolox("broker", "list", "-o", "{broker}", "-n", name_server)
        assert "broker-b" in listed.stdout
        broker.process.send_signal(signal.SIGSTOP)
        try:
            yield broker
        finally:
            broker.process.send_signal(signal.SIGCONT)


async def test_a_broker_that_is_silent_hides_no_groups_and_makes_no_zeros(tmp_path: Path) -> None:
    up = Server(tmp_path / "up", "up", "--data", tmp_path / "data", "--port", 0)
    up.arguments += ["--namesrv-port", "0"]
    with up:
        name_server = up.addresses["namesrv"]
        async with Admin(name_server) as admin:
            await admin.create_topic("Kept", queues=1)

            async def is_known() -> bool:
                return "Kept" in await admin.list_topics()

            await until(is_known)
            await admin.send_message(Message("Kept", b"x"))
            await admin.update_group("waits", consume_enable=False)
            await admin.reset_offsets("waits", "Kept", 0)
        async with running_console(tmp_path, name_server) as site:
            site.admin.access.timeout_seconds = 1.0
            viewer = Visitor(site, "viewer")
            with stopped_broker(tmp_path / "b", name_server):
                site.cache.clear()
                sample = await site.sampler.take()
                assert (sample.lag, sample.has_all_lags, sample.has_all_rates) == (1, False, False)
                overview = (await viewer.look("/")).text
                assert "no answer" in overview
                assert "<small>where brokers answer</small>" in overview
                groups = (await viewer.look("/groups")).text
                assert "waits</a>" in groups
                assert "What groups are on broker-b is not known" in groups
                for path in ("/group", "/topic"):
                    name = "waits" if path == "/group" else "Kept"
                    shown = await viewer.look(path, name=name)
                    assert shown.status_code == 200, (path, shown.text[-300:])
                asked = "/history.json?series=lag:&series=lag:waits&series=in:"
                chart = (await viewer.client.get(asked)).json()
                told = [value for each in chart["values"] for value in each[-1:]]
                assert all(value is None for value in told)
                listed = kerolox("group", "list", "-n", name_server)
                assert "waits  paused" in listed.stdout
                assert "the groups on broker-b are not known" in listed.stderr
                [row] = json.loads(kerolox("group", "list", "-n", name_server, "-o", "json").stdout)
                assert (row["group"], row["lag"], row["consumeTps"]) == ("waits", None, None)
