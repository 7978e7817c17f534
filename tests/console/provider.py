"""A provider of OpenID Connect (``oidc-provider`` of npm) as a process, and who signs in there."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from kerolox.console.security.oidc_settings import OidcSettings
from tests.support.eventually import SECONDS_MAX
from tests.support.programs import build_oidc_provider
from tests.support.servers.up import free_port

__all__ = ["PEOPLE", "Provider", "provider_process", "signed_in_address"]

PEOPLE = {"anna": "admin", "otto": "operator", "vera": "viewer"}
"""Whom the provider knows → role that the claim leads to. It knows nora, too, who has none."""
SECRET = "a secret: of the+client/%"


@dataclass(frozen=True)
class Provider:
    """One that runs."""

    issuer: str
    console: str
    """Address of the console that it sends browsers back to."""
    folder: Path

    @property
    def settings(self) -> OidcSettings:
        """How a console asks it."""
        secret = self.folder / "client-secret"
        secret.write_text(f"{SECRET}\n")
        return OidcSettings(
            issuer=self.issuer,
            client_id="kerolox",
            client_secret_file=str(secret),
            redirect_uri=f"{self.console}/login/oidc/callback",
            scopes=("openid", "profile", "groups"),
            roles={"mq-admins": "admin", "mq-operators": "operator", "mq-viewers": "viewer"},
            label="the company",
        )


@contextlib.contextmanager
def provider_process(
    folder: Path, *, console: str = "http://127.0.0.1:8089", claims_in: str = "userinfo"
) -> Iterator[Provider]:
    """Run one.

    Args:
        folder: for its log, and the secret of its client.
        console: address of the console.
        claims_in: where clients find names and groups: ``userinfo`` or ``id_token``.
    """
    port = free_port()
    command = ["node", str(build_oidc_provider()), str(port), console, claims_in]
    with (folder / "provider.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (folder / "provider.log").read_text()
        yield Provider(f"http://127.0.0.1:{port}", console, folder)
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)
        if process.stdout is not None:
            process.stdout.close()


async def signed_in_address(address: str, name: str) -> str:
    """Sign in at the provider, as a browser would; where it sends the browser back to.

    Args:
        address: the provider's, as the console gave it.
        name: who signs in.
    """
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(address)
        while answer.is_redirect:
            location = str(answer.url.join(answer.headers["location"]))
            if re.search("/login/oidc/callback", location.partition("?")[0]):
                return location
            answer = await browser.get(location)
            if answer.status_code == 200:
                answer = await browser.post(answer.url, data={"login": name})
        raise AssertionError(f"{answer.url} answers {answer.status_code}: {answer.text}")
