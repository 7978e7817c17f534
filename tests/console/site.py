"""A console in the test's loop, and somebody who asks it as a browser would."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import httpx

from kerolox.console.app import application
from kerolox.console.console import Console
from kerolox.console.security.oidc_settings import OidcSettings
from kerolox.console.security.roles import ROLE_NAMES
from kerolox.console.security.users import User, write_users
from kerolox.console.settings import ConsoleSettings
from kerolox.console.visit import COOKIE, TOKEN_FIELD

__all__ = ["PASSWORD", "Visitor", "running_console", "users_file"]

PASSWORD = "correct horse battery"
ORIGIN = "http://console.test"


@cache
def hashed() -> str:
    """Of ``PASSWORD``, at the least cost that is taken: 0.2 s at each login are for real ones."""
    salt, log_n, r, p = bytes(16), 1, 1, 1
    key = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=1 << log_n, r=r, p=p, dklen=32)
    texts = (base64.b64encode(each).decode() for each in (salt, key))
    return "$".join(("scrypt", *map(str, (log_n, r, p)), *texts))


def users_file(folder: Path) -> Path:
    """A user for each role, of the role's name."""
    path = folder / "users.json"
    write_users(path, {role: User(role, hashed()) for role in ROLE_NAMES})
    return path


class Visitor:
    """Somebody with a browser; follows no redirect.

    Args:
        console: the console.
        role: logged in as the user of that name; empty: not at all.
        address: where the requests come from.
        headers: of each request.
    """

    def __init__(
        self, console: Console, role: str = "", *, address: str = "192.0.2.7", **headers: str
    ) -> None:
        transport = httpx.ASGITransport(application(console), client=(address, 4711))
        self.client = httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers)
        self.console = console
        if role:
            user = console.users.find(role)
            assert user is not None
            self.client.cookies.set(COOKIE, console.sessions.begin(role, user))

    @property
    def token(self) -> str:
        """What forms of the session carry."""
        return self.console.sessions.token(self.client.cookies.get(COOKIE, ""))

    async def look(self, path: str, **parameters: object) -> httpx.Response:
        """GET."""
        return await self.client.get(path, params={k: str(v) for k, v in parameters.items()})

    async def post(self, path: str, **fields: object) -> httpx.Response:
        """POST a form with the session's token."""
        return await self.client.post(path, data={TOKEN_FIELD: self.token, **fields})

    async def act(self, path: str, **fields: object) -> str:
        """Do an action that is to succeed; what the next page reports it."""
        done = await self.post(path, **fields)
        assert done.status_code == 303, done.text
        page = await self.client.get(done.headers["location"])
        found = re.search(r'<p class="notice" role="status">(.*?)</p>', page.text)
        assert found, page.text
        return found[1]


@contextlib.asynccontextmanager
async def running_console(
    folder: Path,
    name_server: str,
    *,
    actions: bool = True,
    root_path: str = "",
    oidc: OidcSettings | None = None,
    schemas: Path | None = None,
) -> AsyncIterator[Console]:
    """A console that is started; its history is in memory."""
    settings = ConsoleSettings(
        name_server=name_server,
        users=users_file(folder),
        history=None,
        actions=actions,
        root_path=root_path,
        oidc=oidc,
        schemas=schemas,
        sample_seconds=900,
    )
    console = Console(settings)
    await console.start()
    try:
        yield console
    finally:
        await console.stop()
