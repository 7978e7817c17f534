"""A Kerolox cluster and a Java cluster, each with a console in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from tests.console.site import PASSWORD, users_file
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.command import Server
from tests.support.servers.up import Up
from tests.tasks.case import BROKER_NAME, REQUEST_SECONDS_MAX, Place
from tests.tasks.forms import forms_of

ACCOUNTS = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: shop-service
  secretKey: shop-secret
  topicPerms:
  - Orders=PUB|SUB
"""
"""Everything is allowed from this machine, so nobody needs keys."""

SETTINGS = {
    "brokerName": BROKER_NAME,
    "traceTopicEnable": "true",
    "aclEnable": "true",
    # A Java broker makes the topic of open transactions when it first looks for old ones; none of
    # a test gets so old.
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "3600000",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    given = item.callspec.params if hasattr(item, "callspec") else {}
    # tests/contract/command_line runs the commands on a Java broker, too, and
    # tests/console/test_pages.py the console's pages.
    if given.get("place") == "java":
        item.add_marker(pytest.mark.software)
    item.add_marker(pytest.mark.xdist_group("tasks"))
    # The first one that needs the Java broker may have to fetch and build it.
    item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="package", params=["ours", pytest.param("java", marks=pytest.mark.java)])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Both clusters, one after the other."""
    folder = tmp_path_factory.mktemp("tasks")
    with contextlib.ExitStack() as stack:
        if request.param == "ours":
            accounts = folder / "plain_acl.yml"
            accounts.write_text(ACCOUNTS)
            up = stack.enter_context(Up(folder, settings={**SETTINGS, "aclFile": accounts}))
            name_server, broker = up.namesrv, up.broker
        else:
            settings = tuple(f"{key}={value}" for key, value in SETTINGS.items())
            peer = stack.enter_context(JavaPeer(folder, settings=settings, accounts=ACCOUNTS))
            stack.callback(peer.kill)  # its orderly end takes seconds
            name_server = f"127.0.0.1:{peer.namesrv_port}"
            broker = f"127.0.0.1:{peer.port}"
        arguments = ["--users", users_file(folder), "--history", folder / "history", "--port", 0]
        arguments += ["--actions", "--sample-seconds", "1", "-n", name_server]
        server = stack.enter_context(Server(folder / "console", "console", *arguments))
        base = f"http://{server.addresses['console']}"
        yield Place(request.param, name_server, broker, base, logged_in(base))


def logged_in(base: str) -> dict[str, str]:
    """Cookies of an administrator."""
    with httpx.Client(base_url=base, timeout=REQUEST_SECONDS_MAX) as client:
        [form] = forms_of(client.get("/login").text)
        answer = client.post(
            form.action,
            content=form.filled({"name": "admin", "password": PASSWORD}),
            headers={"Content-Type": "application/x-www-form-urlencoded", "Origin": base},
        )
        assert answer.status_code == 303, answer.text
        return dict(client.cookies)
