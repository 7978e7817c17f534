"""Sign-in by OpenID Connect: the code flow with PKCE, state and nonce, at one provider.

joserfc checks signatures and claims of ID tokens, urllib3 asks the provider; both come with the
extra ``oidc``. The console connects to the addresses of the provider's own discovery document
alone. Tokens are not kept, but for the ID token, which names the session at the provider's logout.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from joserfc import jwk, jwt
from joserfc.errors import InvalidKeyIdError, JoseError

from kerolox.console.cache import Cache
from kerolox.console.security.oidc_settings import OidcSettings, check_address
from kerolox.console.security.pending_logins import PendingLogin, PendingLogins, SignInError
from kerolox.console.security.roles import Role
from kerolox.errors import ConfigError
from kerolox.text import printable

__all__ = ["Identity", "SignIn"]

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
ALGORITHMS += ["Ed25519", "EdDSA"]
"""Of signatures that are believed: the provider's key is public, so none that shares a secret."""
KEY_TYPES = ("RSA", "EC", "OKP")

ASK_SECONDS = 5.0
"""For one answer of the provider."""
ANSWER_BYTES_MAX = 256 * 1024
METADATA_SECONDS, KEYS_SECONDS, NEW_KEYS_SECONDS = 3600.0, 3600.0, 10.0
"""How old the discovery document and the keys may be; and the keys, where one is missing."""
CLOCKS_SECONDS_MAX = 60
"""How far the clocks of the provider and the console may be apart."""
CODE_CHARACTERS_MAX, TOKEN_CHARACTERS_MAX = 4_096, 64 * 1024
HINT_CHARACTERS_MAX = 6_000
"""Of an ID token that stands in the address of the provider's logout."""
NAME_CHARACTERS_MAX = 128
WAITING_MAX = 8
"""Logins that wait for the provider at a time: anybody can begin one, and requests of others need
room, too."""
ACCOUNT_PREFIX = "oidc:"
"""Before the names of those whom the provider knows: no account of the console's own has a colon,
so both are never taken for each other."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the provider has signed in."""

    name: str
    """What pages and the audit log show."""
    subject: str
    """The provider's own name, which does not change."""
    role: Role
    id_token: str
    """Empty: it is too long for an address."""

    def __repr__(self) -> str:
        return f"Identity(name={self.name!r}, subject={self.subject!r}, role={self.role!r})"


class _Metadata(msgspec.Struct, frozen=True):
    """What the console needs of a discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str = ""


class SignIn:
    """The way to one provider."""

    def __init__(self, settings: OidcSettings) -> None:
        """Raises ConfigError where the client's secret can't be read."""
        self.settings = settings
        self.pending = PendingLogins()
        self._secret = settings.client_secret()
        self._cache = Cache()
        self._http = urllib3.PoolManager(
            retries=False, timeout=urllib3.Timeout(connect=ASK_SECONDS, read=ASK_SECONDS)
        )
        self._end_session = ""
        self._waiting = 0

    async def close(self) -> None:
        """Give up what is asked."""
        await self._cache.close()
        self._http.clear()

    async def address(self, pending: PendingLogin) -> str:
        """Where the provider asks somebody who he is; SignInError: it does not answer, or its
        discovery document is none.
        """
        with self._place():
            metadata = await self._metadata()
        return _with_parameters(
            metadata.authorization_endpoint,
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": self.settings.redirect_uri,
                "scope": " ".join(self.settings.scopes),
                "state": pending.state,
                "nonce": pending.nonce,
                "code_challenge": pending.challenge,
                "code_challenge_method": "S256",
            },
        )

    async def identity(self, pending: PendingLogin, code: str, issuer: str) -> Identity:
        """Who somebody is, by the code that the provider gave his browser. ``pending``: the login,
        which was taken for this answer. ``issuer``: its parameter ``iss`` (RFC 9207), which keeps
        providers apart; may be empty.

        SignInError: the provider refuses the code, the token is not for this login, or no value of
        the claim has a role.
        """
        with self._place():
            return await self._identity(pending, code, issuer)

    async def _identity(self, pending: PendingLogin, code: str, issuer: str) -> Identity:
        metadata = await self._metadata()
        is_needed = metadata.authorization_response_iss_parameter_supported
        if (issuer or is_needed) and issuer != metadata.issuer:
            raise SignInError("The answer is of another provider.")
        if not 0 < len(code) <= CODE_CHARACTERS_MAX:
            raise SignInError("The answer of the provider has no code.")
        tokens = await self._tokens(metadata, pending, code)
        claims = await self._claims(metadata, tokens.id_token, pending.nonce)
        subject = str(claims["sub"])
        if not self._has_all(claims) and metadata.userinfo_endpoint and tokens.access_token:
            claims = await self._user_info(metadata, tokens.access_token, subject) | claims
        role = self._role(claims)
        if role is Role.NOBODY:
            raise SignInError(
                f"You have no role here: none of the values of your claim "
                f"{self.settings.role_claim!r} has one."
            )
        name = claims.get(self.settings.name_claim)
        text = name if isinstance(name, str) and name else subject
        short = printable(text, characters_max=NAME_CHARACTERS_MAX)
        hint = tokens.id_token if len(tokens.id_token) <= HINT_CHARACTERS_MAX else ""
        return Identity(ACCOUNT_PREFIX + short, subject, role, hint)

    def logout_address(self, id_token: str) -> str:
        """Where the provider ends its own session; empty: it has no such place."""
        if not self._end_session:
            return ""
        return _with_parameters(
            self._end_session,
            {
                "client_id": self.settings.client_id,
                "post_logout_redirect_uri": self.settings.after_logout,
                **({"id_token_hint": id_token} if id_token else {}),
            },
        )

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Among those who wait for the provider."""
        if self._waiting >= WAITING_MAX:
            raise SignInError("Too many wait for the provider. Try again in a minute.")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def _has_all(self, claims: Mapping[str, object]) -> bool:
        wanted = self.settings.role_claim, self.settings.name_claim
        return all(claim_of(claims, name) is not None for name in wanted)

    def _role(self, claims: Mapping[str, object]) -> Role:
        value = claim_of(claims, self.settings.role_claim)
        values = value if isinstance(value, list) else [value]
        roles = self.settings.roles
        return max(
            (
                Role[roles[each].upper()]
                for each in values
                if isinstance(each, str) and each in roles
            ),
            default=Role.NOBODY,
        )

    async def _metadata(self) -> _Metadata:
        return await self._cache.get("metadata", METADATA_SECONDS, self._discovered)

    async def _discovered(self) -> _Metadata:
        issuer = self.settings.issuer
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        metadata = _converted(await self._asked("GET", address), _Metadata, "discovery document")
        if metadata.issuer != issuer:
            raise SignInError(f"The provider calls itself {metadata.issuer!r}, not {issuer!r}.")
        try:
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                check_address(name, getattr(metadata, name))
            for name in ("userinfo_endpoint", "end_session_endpoint"):
                if getattr(metadata, name):
                    check_address(name, getattr(metadata, name))
        except ConfigError as error:
            raise SignInError(f"The provider's discovery document: {error}") from None
        self._end_session = metadata.end_session_endpoint
        return metadata

    async def _tokens(self, metadata: _Metadata, pending: PendingLogin, code: str) -> _Tokens:
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_uri,
            "code_verifier": pending.verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if not self._secret:
            fields["client_id"] = self.settings.client_id
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote(self.settings.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields |= {"client_id": self.settings.client_id, "client_secret": self._secret}
        answer = await self._asked(
            "POST", metadata.token_endpoint, headers, urlencode(fields).encode()
        )
        return _converted(answer, _Tokens, "answer to the code")

    async def _claims(self, metadata: _Metadata, token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that is of this provider, for this console and this login."""
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise SignInError("The provider's token is too long.")
        try:
            try:
                found = jwt.decode(token, await self._keys(KEYS_SECONDS), ALGORITHMS)
            except InvalidKeyIdError:
                # The provider may have another key by now.
                found = jwt.decode(token, await self._keys(NEW_KEYS_SECONDS), ALGORITHMS)
            client = self.settings.client_id
            jwt.JWTClaimsRegistry(
                leeway=CLOCKS_SECONDS_MAX,
                iss={"essential": True, "value": metadata.issuer},
                aud={"essential": True, "value": client},
                nonce={"essential": True, "value": nonce},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
            ).validate(found.claims)
        except (JoseError, ValueError, TypeError) as error:
            raise SignInError(f"The provider's token is not for this login: {error}") from None
        party = found.claims.get("azp")
        if party != client and (party is not None or not _is_single(found.claims["aud"])):
            raise SignInError("The provider's token is for another client.")
        if not isinstance(found.claims["sub"], str):
            raise SignInError("The provider's token does not say for whom it is.")
        return found.claims

    async def _keys(self, seconds: float) -> jwk.KeySet:
        return await self._cache.get("keys", seconds, self._fetched_keys)

    async def _fetched_keys(self) -> jwk.KeySet:
        answer = await self._asked("GET", (await self._metadata()).jwks_uri)
        keys = []
        for each in cast("list[Any]", answer.get("keys") or []):
            # Keys of kinds that are not known here do no harm to the others.
            if isinstance(each, dict) and each.get("kty") in KEY_TYPES:
                if each.get("use", "sig") != "sig":
                    continue
                try:
                    keys.append(jwk.import_key(each))
                except (JoseError, ValueError, TypeError):
                    continue
        if not keys:
            raise SignInError("The provider has no key that checks its tokens.")
        return jwk.KeySet(keys)

    async def _user_info(self, metadata: _Metadata, token: str, subject: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {token}"}
        claims = await self._asked("GET", metadata.userinfo_endpoint, headers)
        if claims.get("sub") != subject:
            raise SignInError("The provider tells of somebody else than of whom it signed in.")
        return claims

    async def _asked(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> dict[str, Any]:
        """The JSON object that the provider answers with; SignInError: it does not answer, refuses,
        or answers with something else.
        """
        try:
            async with asyncio.timeout(2 * ASK_SECONDS):
                status, data = await asyncio.to_thread(
                    self._exchange, method, address, dict(headers or {}), body
                )
        except (urllib3.exceptions.HTTPError, TimeoutError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise SignInError(f"The provider does not answer: {reason}") from None
        try:
            answer = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise SignInError(f"The provider answers {status}, without an object of JSON.")
        if status != 200:
            reason = answer.get("error_description") or answer.get("error") or ""
            raise SignInError(f"The provider refuses it ({status}): {printable(str(reason))}")
        return answer

    def _exchange(
        self, method: str, address: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        asked = {"accept": "application/json", "accept-encoding": "identity"} | headers
        response = self._http.request(
            method, address, headers=asked, body=body, redirect=False, preload_content=False
        )
        try:
            data = response.read(ANSWER_BYTES_MAX + 1)
            if len(data) > ANSWER_BYTES_MAX:
                raise urllib3.exceptions.HTTPError(f"more than {ANSWER_BYTES_MAX} bytes")
            return response.status, data
        finally:
            response.close()


def claim_of(claims: Mapping[str, object], name: str) -> object:
    """A claim by its name, or by the names of the members that lead to it; None: there is none."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _is_single(audience: object) -> bool:
    return isinstance(audience, str) or (isinstance(audience, list) and len(audience) == 1)


def _converted(answer: object, kind: type[_Answer], what: str) -> _Answer:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise SignInError(f"The provider's {what}: {error}") from None


def _with_parameters(address: str, parameters: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(parameters)}"
