"""What strangers and hostile data can't do: headers, sizes, scripts, secrets, other addresses."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from kerolox.console.routes import BODY_BYTES_MAX, ROUTES
from kerolox.console.security.guard import CONTENT_SECURITY_POLICY
from kerolox.console.settings import ConsoleSettings
from kerolox.errors import ConfigError
from kerolox.message import Message
from kerolox.remoting.audit import HIDDEN
from tests.console.site import Visitor, running_console
from tests.support.servers.up import deaf_address

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster

HOSTILE = "</pre></textarea><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e"


async def test_every_answer_keeps_browsers_strict(console: Console) -> None:
    for visitor in (Visitor(console), Visitor(console, "admin")):
        paths = [route.path for route in ROUTES if route.method == "GET"]
        for path in [*paths, "/nowhere", "/static/console.js", "/static/nothing"]:
            headers = (await visitor.look(path)).headers
            assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            if not path.startswith("/static/console"):
                assert headers["cache-control"] == "no-store", path
    for source in CONTENT_SECURITY_POLICY.split("; "):
        assert source.split(" ")[1:] in (["'self'"], ["'none'"])


async def test_no_page_has_a_script_or_a_style_in_it(console: Console) -> None:
    admin = Visitor(console, "admin")
    for route in ROUTES:
        if route.method == "GET":
            text = (await admin.look(route.path)).text
            assert "<style" not in text
            assert " style=" not in text
            assert "<script>" not in text
            assert " onclick" not in text


async def test_what_messages_hold_is_shown_and_never_run(console: Console) -> None:
    admin = Visitor(console, "admin")
    properties = {"p<script>": HOSTILE}
    await console.admin.create_topic("Hostile", queues=1)
    sent = await console.admin.send_message(
        Message("Hostile", HOSTILE.encode(), tags="<b>", keys="<i>", properties=properties)
    )
    queue = f"{sent.queue.broker_name}/{sent.queue.queue_id}"
    looks = (
        ("/messages", {"topic": "Hostile"}),
        ("/message", {"topic": "Hostile", "queue": queue, "offset": 0}),
        ("/messages/tail", {"topic": "Hostile", "cursor": f"{queue}:0"}),
    )
    for path, parameters in looks:
        page = await admin.look(path, **parameters)
        assert page.status_code == 200
        assert "&lt;script&gt;" in page.text
        # What is to be edited stays as it is; elsewhere nothing turns the text around.
        shown = re.sub(r"<textarea.*?</textarea>", "", page.text, flags=re.DOTALL)
        for bad in ("<script>alert", "<img src=x", "<b>"):
            assert bad not in page.text
        assert "\u202e" not in shown
    paths = ("/topic", "/group", "/topics", "/groups", "/messages", "/audit", "/zone")
    for path in (*paths, "/search", "/search/inside", "/doctor", "/dead-letter"):
        page = await admin.look(path, name=HOSTILE, q=HOSTILE, topic=HOSTILE, tags=HOSTILE)
        assert page.status_code < 500
        assert "<script>alert" not in page.text


async def test_forms_and_addresses_have_a_size(console: Console) -> None:
    admin = Visitor(console, "admin")
    assert (await admin.post("/group/pause", name="x" * BODY_BYTES_MAX)).status_code == 413
    assert (await admin.post("/group/pause", name="x" * 5_000)).status_code == 400
    many = {f"f{i}": "1" for i in range(2_100)}
    assert (await admin.post("/group/pause", **many)).status_code == 400
    assert (await admin.look("/topics", q="x" * 5_000)).status_code == 400
    other = await admin.client.post("/group/pause", json={"csrf": admin.token})
    assert other.status_code == 415
    odd = await admin.client.post(
        "/group/pause",
        content=b"csrf=\xff%ff",
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert odd.status_code == 400
    for number in ("-1", "9" * 30, "x", "1e9", "٣"):
        assert (await admin.look("/topics", page=number)).status_code == 200


async def test_secrets_of_brokers_are_not_shown(
    console: Console, our_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settings(_address: str) -> dict[str, str]:
        return {"brokerName": "b", "tls.server.keyPassword": "hidden-one", "accessSecret": "two"}

    monkeypatch.setattr(console.admin, "broker_settings", settings)
    page = await Visitor(console, "admin").look("/broker", address=our_cluster.broker)
    assert page.text.count(HIDDEN) >= 2
    assert ">two<" not in page.text
    assert "hidden-one" not in page.text


async def test_only_brokers_of_the_cluster_are_connected_to(console: Console) -> None:
    admin = Visitor(console, "admin")
    with deaf_address() as address:
        assert (await admin.look("/broker", address=address)).status_code == 400
        host, port = address.split(":")
        stranger = bytes(map(int, host.split("."))).hex() + f"{int(port):08x}" + "0" * 16
        await console.admin.create_topic("Ids", queues=1)
        found = await admin.look("/message", topic="Ids", id=stranger.upper())
        assert found.status_code == 404


async def test_behind_a_proxy_links_have_its_path(our_cluster: Cluster, tmp_path: Path) -> None:
    async with running_console(
        tmp_path, our_cluster.name_server, root_path="/mq/console"
    ) as console:
        viewer = Visitor(console, "viewer")
        # A proxy may take the path off, or leave it.
        for path in ("/topics", "/mq/console/topics"):
            page = await viewer.look(path)
            assert page.status_code == 200
            assert 'href="/mq/console/groups"' in page.text
            assert 'href="/groups"' not in page.text
        asked = await Visitor(console).look("/mq/console/topics")
        assert asked.headers["location"] == "/mq/console/login?next=%2Ftopics"


async def test_a_cluster_that_is_gone_is_an_error_in_time(tmp_path: Path) -> None:
    with deaf_address() as address:
        async with running_console(tmp_path, address) as console:
            viewer = Visitor(console, "viewer")
            pages = ("/", "/topics", "/groups", "/brokers")
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*(viewer.look(path) for path in pages))
            assert {answer.status_code for answer in answers} <= {502, 504}
            assert all('role="alert"' in answer.text for answer in answers)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"host": "0.0.0.0"}, "in the clear"),
        ({"certificate": "c.pem"}, "both"),
        ({"root_path": "mq"}, "root path"),
        ({"root_path": "/mq/"}, "root path"),
        ({"root_path": '/"><script>'}, "root path"),
        ({"sample_seconds": 0.0}, "sample"),
    ],
)
def test_settings_that_are_not_safe_are_refused(
    tmp_path: Path, wrong: dict[str, object], reason: str
) -> None:
    given = {"name_server": "127.0.0.1:9876", "users": tmp_path, "history": None, **wrong}
    with pytest.raises(ConfigError, match=reason):
        ConsoleSettings(**given)
