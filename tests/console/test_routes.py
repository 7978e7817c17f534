"""Who may do what: every route, with every role, with and without actions."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING

import pytest

from kerolox.console.routes import ROUTES
from kerolox.console.security.oidc_settings import CALLBACK
from kerolox.console.security.roles import Role
from kerolox.console.visit import TOKEN_FIELD
from kerolox.errors import TopicExistsError
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import Visitor, running_console

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster

NOT_LOGGED_IN = {"GET": 303, "POST": 401}
SESSION_ROUTES = {"/login", "/logout", "/health", "/zone", "/login/oidc", CALLBACK}
"""Of the browser: they change nothing of the cluster."""


def test_all_that_changes_something_is_post_and_needs_more_than_a_viewer() -> None:
    for route in ROUTES:
        if route.path not in SESSION_ROUTES:
            assert (route.method == "POST") == route.is_action, route
            assert route.role >= (Role.OPERATOR if route.is_action else Role.VIEWER), route


@pytest.mark.parametrize("actions", [True, False])
@pytest.mark.parametrize("role", list(Role))
async def test_a_route_is_open_to_its_role_and_those_above_alone(
    our_cluster: Cluster, tmp_path: Path, role: Role, actions: bool
) -> None:
    async with running_console(tmp_path, our_cluster.name_server, actions=actions) as console:
        for route in ROUTES:
            if route.path in SESSION_ROUTES:
                continue
            visitor = Visitor(console, "" if role is Role.NOBODY else role.label)
            if role is Role.NOBODY:
                visitor.client.cookies.set("kerolox_console", "made-up")
            # Without fields nothing can be done: who may gets an error about those.
            asked = visitor.look if route.method == "GET" else visitor.post
            status = (await asked(route.path)).status_code
            if role is Role.NOBODY:
                allowed = status == (
                    401 if route.path.endswith(".json") else NOT_LOGGED_IN[route.method]
                )
            elif role < route.role or (route.is_action and not actions):
                allowed = status == 403
            else:
                allowed = status in (200, 400)
            assert allowed, (route, role, actions, status)


@pytest.mark.parametrize("other", ["", "wrong", "another session's"])
async def test_an_action_without_the_token_of_its_session_is_refused(
    console: Console, other: str
) -> None:
    with contextlib.suppress(TopicExistsError):
        await console.admin.create_topic("Kept")
    admin = Visitor(console, "admin")
    token = Visitor(console, "admin").token if other == "another session's" else other
    fields = {TOKEN_FIELD: token, "topic": "Kept", "again": "Kept"}
    refused = await admin.client.post("/topic/delete", data=fields)
    assert refused.status_code == 403
    assert "Kept" in await console.admin.list_topics()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.test"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_an_action_that_another_site_sends_is_refused(
    console: Console, headers: dict[str, str]
) -> None:
    refused = await Visitor(console, "admin", **headers).post("/topic/create", topic="T", queues=1)
    assert refused.status_code == 403


async def test_what_was_denied_did_not_happen_and_is_told(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    denied = await Visitor(console, "viewer").post(
        "/topic/create", topic="Sneaked", queues=1, perm=6, cluster="DefaultCluster"
    )
    assert denied.status_code == 403
    assert "Sneaked" not in await console.admin.list_topics()
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["outcome"], line["account"], line["from"], line["action"]) == (
        *("denied", "viewer", "192.0.2.7"),
        "/topic/create",
    )


async def test_methods_that_are_not_in_the_table_are_refused(console: Console) -> None:
    client = Visitor(console, "admin").client
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert (await client.request(method, "/topics")).status_code == 405
    assert (await client.get("/topic/delete", params={"topic": "T"})).status_code == 405
    assert (await client.get("/nowhere")).status_code == 404
    assert (await client.head("/topics")).status_code == 200


async def test_two_consoles_do_not_share_sessions(our_cluster: Cluster, tmp_path: Path) -> None:
    async with running_console(tmp_path, our_cluster.name_server) as one:
        visitor = Visitor(one, "viewer")
        assert (await visitor.look("/topics")).status_code == 200
        async with running_console(tmp_path, our_cluster.name_server) as other:
            stranger = Visitor(other)
            stranger.client.cookies = visitor.client.cookies
            assert (await stranger.look("/topics")).status_code == 303
