"""Sign-in by OpenID Connect at a real provider: roles by claim, logout, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
import pytest_asyncio
from joserfc import jwk, jwt

from kerolox.console.routes import ROUTES
from kerolox.console.security import pending_logins
from kerolox.console.security.oidc import SignIn, claim_of
from kerolox.console.security.oidc_settings import CALLBACK, OidcSettings, read_oidc_settings
from kerolox.console.security.pending_logins import LOGIN_SECONDS_MAX, PendingLogins, SignInError
from kerolox.console.security.roles import Role
from kerolox.console.settings import ConsoleSettings
from kerolox.console.visit import COOKIE
from kerolox.errors import ConfigError
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.provider import PEOPLE, Provider, provider_process, signed_in_address
from tests.console.site import PASSWORD, Visitor, running_console
from tests.console.test_login import log_in
from tests.support.servers.up import deaf_address

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster

real = pytest.mark.node
PENDING = "kerolox_oidc"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with provider_process(tmp_path_factory.mktemp("provider")) as running:
        yield running


@pytest_asyncio.fixture
async def site(our_cluster: Cluster, tmp_path: Path, provider: Provider) -> AsyncIterator[Console]:
    """A console whose users may come from the provider, too."""
    settings = provider.settings
    async with running_console(tmp_path, our_cluster.name_server, oidc=settings) as running:
        yield running


async def begin(visitor: Visitor, next_page: str = "") -> str:
    """Click on the button of the login page; the provider's address."""
    asked = await visitor.look("/login/oidc", next=next_page)
    assert asked.status_code == 303
    cookie = asked.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    return asked.headers["location"]


async def come_back(visitor: Visitor, location: str) -> httpx.Response:
    """Follow the provider's redirect to the console. Its session's cookie is not sent."""
    parts = urlsplit(location)
    return await visitor.client.get(f"{parts.path}?{parts.query}")


async def sign_in(console: Console, name: str, next_page: str = "") -> tuple[Visitor, str]:
    """Who has signed in, and the page that told it."""
    visitor = Visitor(console)
    location = await signed_in_address(await begin(visitor, next_page), name)
    told = await come_back(visitor, location)
    assert told.status_code == 200, told.text
    return visitor, told.text


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [json.loads(each.getMessage()) for each in caplog.records if each.name == LOGGER]


@real
@pytest.mark.parametrize("name", PEOPLE)
async def test_a_role_is_that_of_the_claim_and_opens_no_other_route(
    site: Console, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    visitor, told = await sign_in(site, name, "/topics?q=a")
    assert '<meta http-equiv="refresh" content="0; url=/topics?q=a">' in told
    page = await visitor.look("/topics")
    assert f"oidc:{name}.k" in page.text
    assert f"({PEOPLE[name]})" in page.text
    line = audited(caplog)[-1]
    assert (line["outcome"], line["account"]) == ("login", f"oidc:{name}.k")
    assert (line["sub"], line["role"]) == (name, PEOPLE[name])
    role = Role[PEOPLE[name].upper()]
    for route in ROUTES:
        if route.role > Role.NOBODY and route.path not in ("/logout", "/zone"):
            asked = visitor.look if route.method == "GET" else visitor.post
            status = (await asked(route.path)).status_code
            assert (status == 403) == (role < route.role), (route, status)


@real
async def test_who_has_no_role_is_not_let_in(
    site: Console, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    visitor = Visitor(site)
    refused = await come_back(visitor, await signed_in_address(await begin(visitor), "nora"))
    assert refused.status_code == 403
    assert "You have no role here" in refused.text
    assert (await visitor.look("/topics")).status_code == 303
    assert audited(caplog)[-1]["outcome"] == "login-failed"


@real
async def test_claims_of_the_id_token_are_enough(our_cluster: Cluster, tmp_path: Path) -> None:
    with provider_process(tmp_path, claims_in="id_token") as provider:
        settings = msgspec.structs.replace(provider.settings, name_claim="sub")
        async with running_console(tmp_path, our_cluster.name_server, oidc=settings) as console:
            visitor, _ = await sign_in(console, "otto")
            page = await visitor.look("/topics")
            assert "oidc:otto " in page.text
            assert "(operator)" in page.text


@real
async def test_a_stolen_code_is_worth_nothing_in_another_browser(site: Console) -> None:
    victim, thief = Visitor(site), Visitor(site)
    stolen = await signed_in_address(await begin(victim), "anna")
    refused = await come_back(thief, stolen)
    assert refused.status_code == 403
    assert "begun in another browser" in refused.text
    # With a login of his own, too: the provider knows the hash of the victim's verifier.
    state = parse_qs(urlsplit(await begin(thief)).query)["state"][0]
    asked = parse_qs(urlsplit(stolen).query)
    mixed = {"code": asked["code"][0], "state": state, "iss": asked["iss"][0]}
    refused = await thief.look(CALLBACK, **mixed)
    assert refused.status_code == 403
    assert "The provider refuses it (400)" in refused.text
    for cookies in (thief.client.cookies, victim.client.cookies):
        assert site.sessions.find(cookies.get(COOKIE, "")) is None


@real
async def test_a_replayed_answer_is_refused(site: Console) -> None:
    visitor = Visitor(site)
    location = await signed_in_address(await begin(visitor), "anna")
    pending = visitor.client.cookies[PENDING]
    assert (await come_back(visitor, location)).status_code == 200
    assert PENDING not in visitor.client.cookies
    for cookie in ("", pending):
        again = Visitor(site)
        again.client.cookies.set(PENDING, cookie)
        refused = await come_back(again, location)
        assert refused.status_code == 403
        assert "is used already" in refused.text


@real
async def test_an_answer_that_was_changed_is_refused(site: Console) -> None:
    for changed, told in (
        ({"iss": "http://127.0.0.1:1"}, "of another provider"),
        ({"iss": ""}, "of another provider"),
        ({"code": ""}, "has no code"),
        ({"code": "x" * 40}, "The provider refuses it (400)"),
        ({"code": "x" * 4_096}, "The provider refuses it (400)"),
        ({"error": "access_denied<script>"}, "access_denied&lt;script&gt;"),
        ({"state": "another"}, "begun in another browser"),
    ):
        visitor = Visitor(site)
        location = await signed_in_address(await begin(visitor), "anna")
        asked = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        refused = await visitor.look(CALLBACK, **(asked | changed))
        assert refused.status_code == 403, changed
        assert told in refused.text
        assert (await visitor.look("/topics")).status_code == 303


@real
async def test_a_token_of_another_login_is_refused(site: Console) -> None:
    assert site.sign_in is not None
    visitor = Visitor(site)
    location = await signed_in_address(await begin(visitor), "anna")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
    pending = site.sign_in.pending.take(visitor.client.cookies[PENDING], asked["state"])
    with pytest.raises(SignInError, match="not for this login"):
        await site.sign_in.identity(replace(pending, nonce="x"), asked["code"], asked["iss"])


@real
async def test_a_logout_ends_the_session_and_leads_to_the_providers(site: Console) -> None:
    visitor, _ = await sign_in(site, "vera")
    kept = visitor.client.cookies[COOKIE]
    told = await visitor.post("/logout")
    assert told.status_code == 200
    address = re.search(r'content="0; url=([^"]+)"', told.text)
    assert address
    asked = parse_qs(urlsplit(address[1].replace("&amp;", "&")).query)
    assert asked["client_id"] == ["kerolox"]
    assert asked["post_logout_redirect_uri"] == ["http://127.0.0.1:8089/login"]
    assert asked["id_token_hint"][0].count(".") == 2
    visitor.client.cookies.set(COOKIE, kept)
    assert (await visitor.look("/topics")).status_code == 303


@real
async def test_own_accounts_log_in_beside_the_provider(site: Console) -> None:
    visitor = Visitor(site)
    assert "Log in with the company" in (await visitor.look("/login")).text
    assert (await log_in(visitor, "operator", PASSWORD)).status_code == 303
    assert "oidc:" not in (await visitor.look("/topics")).text
    done = await visitor.post("/logout")
    assert done.headers["location"] == "/login"


def settings_of(address: str, **changed: object) -> OidcSettings:
    given: dict[str, object] = {
        "issuer": f"http://{address}",
        "client_id": "kerolox",
        "redirect_uri": f"http://127.0.0.1:8089{CALLBACK}",
        "roles": {"ops": "admin"},
    }
    return OidcSettings(**(given | changed))  # type: ignore[arg-type]


async def test_a_provider_that_is_gone_keeps_no_own_account_out(
    our_cluster: Cluster, tmp_path: Path
) -> None:
    with deaf_address() as address:
        pass
    settings = settings_of(address)
    async with running_console(tmp_path, our_cluster.name_server, oidc=settings) as console:
        visitor = Visitor(console)
        refused = await visitor.look("/login/oidc")
        assert refused.status_code == 502
        assert "The provider does not answer" in refused.text
        assert (await log_in(visitor, "viewer", PASSWORD)).status_code == 303


async def test_a_console_without_a_provider_has_no_such_login(console: Console) -> None:
    visitor = Visitor(console)
    assert "/login/oidc" not in (await visitor.look("/login")).text
    for path in ("/login/oidc", CALLBACK):
        assert (await visitor.look(path)).status_code == 404


async def test_a_console_of_a_provider_needs_no_own_accounts(
    our_cluster: Cluster, tmp_path: Path
) -> None:
    settings = settings_of("127.0.0.1:9")
    async with running_console(tmp_path, our_cluster.name_server, oidc=settings) as console:
        (tmp_path / "users.json").write_text('{"users":{}}')
        page = await Visitor(console).look("/login")
        assert "/login/oidc" in page.text
        assert "Password" not in page.text


def test_a_pending_login_counts_once_in_time_in_its_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    logins = PendingLogins(clock=lambda: now)
    first, second = logins.begin("/topics"), logins.begin("x" * 10_000)
    assert logins.take(first.cookie, first.state).next_page == "/topics"
    assert second.next_page == ""
    assert len({first.state, first.nonce, first.verifier, second.state, second.nonce}) == 5
    wrong = (
        (first.cookie, first.state),
        (second.cookie, first.state),
        (second.cookie, ""),
        ("", second.state),
        (f"{second.cookie}x", second.state),
        ("zz.a.b", second.state),
        ("1.2.\u20ac", "\u20ac"),
    )
    for cookie, state in wrong:
        with pytest.raises(SignInError, match="Begin it again"):
            logins.take(cookie, state)
    # Another console's, or one of before a restart.
    with pytest.raises(SignInError, match="Begin it again"):
        PendingLogins(clock=lambda: now).take(second.cookie, second.state)
    now += LOGIN_SECONDS_MAX + 1
    with pytest.raises(SignInError, match="Begin it again"):
        logins.take(second.cookie, second.state)
    monkeypatch.setattr(pending_logins, "USED_MAX", 3)
    for _ in range(5):
        each = logins.begin("")
        logins.take(each.cookie, each.state)
    assert len(logins._used) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        *("expired", "of the future", "other issuer", "other client", "other party", "no nonce"),
        *("other key", "no signature", "a shared secret", "no subject"),
    ],
)
async def test_a_token_that_is_not_right_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    sign_in = SignIn(settings_of("127.0.0.1:9"))
    key, other = (jwk.RSAKey.generate_key(2048, {"kid": "one"}) for _ in range(2))
    public = jwk.KeySet([jwk.import_key(key.as_dict(private=False))])
    monkeypatch.setattr(sign_in, "_keys", lambda _seconds: _answer(public))
    metadata = msgspec.convert(
        dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), "https://p/")
        | {"issuer": "http://127.0.0.1:9"},
        type(sign_in)._discovered.__globals__["_Metadata"],
    )
    now = int(time.time())
    claims: dict[str, object] = {
        **{"iss": "http://127.0.0.1:9", "aud": "kerolox", "sub": "anna", "nonce": "n"},
        **{"iat": now, "exp": now + 60},
    }
    header = {"alg": "RS256", "kid": "one"}
    right = jwt.encode(header, claims, key)
    assert (await sign_in._claims(metadata, right, "n"))["sub"] == "anna"
    signer: jwk.Key = key
    match wrong:
        case "expired":
            claims["exp"] = now - 300
        case "of the future":
            claims["iat"] = now + 3600
        case "other issuer":
            claims["iss"] = "http://127.0.0.1:90"
        case "other client":
            claims["aud"] = ["other"]
        case "other party":
            claims |= {"aud": ["kerolox", "other"], "azp": "other"}
        case "no nonce":
            del claims["nonce"]
        case "no subject":
            claims["sub"] = ""
        case "other key":
            signer = other
    token = jwt.encode(header, claims, signer)
    payload = token.split(".")[1]
    if wrong == "no signature":
        none = encoded(b'{"alg":"none"}')
        token = f"{none}.{payload}."
    if wrong == "a shared secret":
        # Of the key that everybody knows.
        shared = encoded(b'{"alg":"HS256","kid":"one"}')
        begin = f"{shared}.{payload}"
        mac = hmac.new(key.as_pem(private=False), begin.encode(), hashlib.sha256)
        token = f"{begin}.{encoded(mac.digest())}"
    with pytest.raises(SignInError, match="token"):
        await sign_in._claims(metadata, token, "n")


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def _answer(keys: jwk.KeySet) -> jwk.KeySet:
    return keys


def test_a_claim_is_found_by_its_name_or_by_the_way_to_it() -> None:
    claims = {"https://a.test/roles": ["x"], "realm": {"roles": ["y"]}, "groups": "z"}
    assert claim_of(claims, "https://a.test/roles") == ["x"]
    assert claim_of(claims, "realm.roles") == ["y"]
    assert claim_of(claims, "groups") == "z"
    for missing in ("realm.none", "groups.a", "none", ""):
        assert claim_of(claims, missing) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"issuer": "http://login.example.com"}, "issuer"),
        ({"issuer": "ftp://127.0.0.1"}, "issuer"),
        ({"issuer": "https://u:p@login.example.com"}, "issuer"),
        ({"redirect_uri": "https://mq.example.com/callback"}, "redirectUri"),
        ({"redirect_uri": f"http://mq.example.com{CALLBACK}"}, "redirectUri"),
        ({"client_id": ""}, "clientId"),
        ({"scopes": ("profile",)}, "openid"),
        ({"roles": {}}, "roles"),
        ({"roles": {"ops": "king"}}, "king"),
    ],
)
def test_settings_of_a_provider_that_are_not_safe_are_refused(
    tmp_path: Path, changed: dict[str, object], reason: str
) -> None:
    settings = settings_of("127.0.0.1:9", **changed)
    with pytest.raises(ConfigError, match=reason):
        ConsoleSettings(name_server="127.0.0.1:9876", users=tmp_path, history=None, oidc=settings)


def test_a_file_of_a_provider_is_read_or_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "oidc.json"
    wanted = settings_of("127.0.0.1:9")
    path.write_bytes(msgspec.json.encode(wanted))
    assert read_oidc_settings(path) == wanted
    for wrong in ("", "{", "[]", '{"issuer":"x"}', '{"clientSecret":"x"}', " " * 70_000):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="is no file of OpenID Connect"):
            read_oidc_settings(path)
    secret = msgspec.structs.replace(wanted, client_secret_file=str(tmp_path / "secret"))
    for content in (None, b"", b"\xff", b"x" * 4_097):
        if content is not None:
            (tmp_path / "secret").write_bytes(content)
        with pytest.raises(ConfigError, match="secret"):
            SignIn(secret)
