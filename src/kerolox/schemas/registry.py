"""A client of schema registries that speak Confluent's REST: Confluent's, Karapace, Apicurio.

It asks by urllib3, in threads, so that a loop goes on. What it asks is bounded in time, size and
number; a schema of an id never changes and is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from kerolox.client.threads import to_thread
from kerolox.errors import ClientClosedError, ClientError, ConfigError
from kerolox.security.tls import context_of
from kerolox.tasks import end_tasks
from kerolox.text import printable

try:
    import urllib3
except ImportError as error:
    raise ConfigError(f"{error}; a schema registry needs: pip install 'kerolox[schemas]'") from None

if TYPE_CHECKING:
    from kerolox.security.tls import Tls

__all__ = ["Reference", "RegisteredSchema", "RegistryError", "Schema", "SchemaRegistry"]

SCHEMA_BYTES_MAX = 1024 * 1024
"""Of an answer."""
SCHEMAS_KEPT_MAX = 1_000
CHARACTERS_KEPT_MAX = 16 * 1024 * 1024
UNKNOWN_SECONDS = 10.0
"""For so long an id that the registry does not know is not asked for again."""
REQUESTS_AT_ONCE_MAX = 4
WAITING_MAX = 1_000
"""Requests that wait for their turn; further ones are refused."""
TIMEOUT_SECONDS = 5.0

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_SUBJECT_UNKNOWN, _VERSION_UNKNOWN, _SCHEMA_UNKNOWN = 40401, 40402, 40403

_Answer = TypeVar("_Answer")


class RegistryError(ClientError):
    """A registry refuses, or does not answer."""

    def __init__(self, text: str, *, status: int = 0, code: int = 0) -> None:
        super().__init__(text)
        self.status: int = status
        """Of HTTP; 0: it did not answer."""
        self.code: int = code
        """The registry's own, for example 40403; 0: it gave none."""

    @property
    def is_unknown(self) -> bool:
        """The registry has no such subject, version or schema."""
        return self.status == 404

    @property
    def may_pass(self) -> bool:
        """Whether the same question may be answered later."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class Reference(msgspec.Struct, frozen=True):
    """Another schema, which a schema names."""

    name: str
    """What the schema calls it."""
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schema as a registry keeps it."""

    schema: str
    """Its text; of Protobuf the file descriptor as base64, where it was registered so."""
    schemaType: Literal["AVRO", "JSON", "PROTOBUF"] = "AVRO"
    references: tuple[Reference, ...] = ()


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: str
    schemaType: Literal["AVRO", "JSON", "PROTOBUF"] = "AVRO"
    references: tuple[Reference, ...] = ()


class _Id(msgspec.Struct):
    id: int
    version: int = 0


class _Fault(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class SchemaRegistry:
    """A registry. It is used in one event loop; ``async with`` closes it."""

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        username: str = "",
        password: str = "",
        token: str = "",
        tls: Tls = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet.

        Args:
            addresses: ``http://host:port`` or ``https://…``; of several, joined by commas or in a
                list, the next is asked where one does not answer.
            username, password: of HTTP's basic authentication.
            token: a bearer token, in place of both.
            tls: how ``https`` is checked; True: by the machine's authorities.
            timeout_seconds: of one request to one address.
            clock: seconds; tests turn one by hand.

        Raises:
            ConfigError: an address is none, or a file of TLS can't be used.
        """
        given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
        self._addresses = [_address(each) for each in given if each.strip()]
        if not self._addresses:
            raise ConfigError("no address of a schema registry is given")
        if not 0 < timeout_seconds <= 300:
            raise ConfigError(f"timeout_seconds is {timeout_seconds}; up to 300 fit")
        if token and username:
            raise ConfigError("give a token, or a username with a password")
        self._headers = {
            "accept": f"{_MEDIA_TYPE}, application/json",
            "accept-encoding": "identity",
        }
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        elif username:
            self._headers |= urllib3.make_headers(basic_auth=f"{username}:{password}")
        self._seconds = timeout_seconds
        self._clock = clock
        self._http = urllib3.PoolManager(
            retries=False,
            timeout=urllib3.Timeout(connect=timeout_seconds, read=timeout_seconds),
            maxsize=REQUESTS_AT_ONCE_MAX,
            ssl_context=context_of(tls),
        )
        self._room = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)
        self._waiting = 0
        self._closed = False
        self._by_id: OrderedDict[int, Schema] = OrderedDict()
        self._characters = 0
        self._unknown: OrderedDict[int, tuple[float, RegistryError]] = OrderedDict()
        self._asked: dict[int, asyncio.Task[Schema]] = {}

    def __repr__(self) -> str:
        return f"<SchemaRegistry {', '.join(self._addresses)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up what is asked."""
        self._closed = True
        await end_tasks(*self._asked.values())
        self._http.clear()

    async def schema(self, schema_id: int) -> Schema:
        """The schema of an id; kept once it is known. RegistryError: it is unknown, or the registry
        does not answer.
        """
        kept = self._by_id.get(schema_id)
        if kept is not None:
            self._by_id.move_to_end(schema_id)
            return kept
        since, error = self._unknown.get(schema_id, (0.0, None))
        if error is not None and 0 <= self._clock() - since < UNKNOWN_SECONDS:
            raise RegistryError(str(error), status=error.status, code=error.code)
        task = self._asked.get(schema_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(schema_id))
            self._asked[schema_id] = task
            task.add_done_callback(lambda done: self._forget(schema_id, done))
        # Who gives up must not take the answer from the others.
        return await asyncio.shield(task)

    def _forget(self, schema_id: int, task: asyncio.Task[Schema]) -> None:
        self._asked.pop(schema_id, None)
        if not task.cancelled():
            task.exception()

    async def _fetch(self, schema_id: int) -> Schema:
        try:
            found = await self._ask("GET", f"/schemas/ids/{schema_id}", Schema)
        except RegistryError as error:
            if error.is_unknown:
                self._unknown[schema_id] = self._clock(), error
                while len(self._unknown) > SCHEMAS_KEPT_MAX:
                    self._unknown.popitem(last=False)
            raise
        self._keep(schema_id, found)
        return found

    def _keep(self, schema_id: int, schema: Schema) -> None:
        self._unknown.pop(schema_id, None)
        former = self._by_id.pop(schema_id, None)
        self._characters += len(schema.schema) - (len(former.schema) if former else 0)
        self._by_id[schema_id] = schema
        while len(self._by_id) > SCHEMAS_KEPT_MAX or self._characters > CHARACTERS_KEPT_MAX:
            self._characters -= len(self._by_id.popitem(last=False)[1].schema)

    async def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject. RegistryError: there is none, or no answer."""
        return await self.version(subject, "latest")

    async def version(self, subject: str, version: int | Literal["latest"]) -> RegisteredSchema:
        """A version of a subject. RegistryError: there is none, or no answer."""
        path = f"{_subject(subject)}/versions/{version}"
        found = await self._ask("GET", path, RegisteredSchema)
        self._keep(found.id, Schema(found.schema, found.schemaType, found.references))
        return found

    async def lookup(self, subject: str, schema: Schema) -> int:
        """The id of a schema that the subject has. RegistryError: it has none such (404)."""
        return (await self._put(_subject(subject), schema)).id

    async def version_of(self, subject: str, schema: Schema) -> int:
        """The version of a schema that the subject has. RegistryError: as :meth:`lookup`."""
        return (await self._put(_subject(subject), schema)).version

    async def register(self, subject: str, schema: Schema) -> int:
        """Have the subject have the schema, as its newest version unless it has it; its id.

        Raises:
            RegistryError: it is not compatible with versions before (409), is none (422), or the
                registry does not answer.
        """
        return (await self._put(f"{_subject(subject)}/versions", schema)).id

    async def _put(self, path: str, schema: Schema) -> _Id:
        return await self._ask("POST", path, _Id, msgspec.json.encode(schema))

    async def _ask(
        self, method: str, path: str, kind: type[_Answer], body: bytes | None = None
    ) -> _Answer:
        if self._closed:
            raise ClientClosedError("the SchemaRegistry is closed; make a new one")
        if self._waiting >= WAITING_MAX:
            raise RegistryError(f"{WAITING_MAX} requests wait for the schema registry already")
        self._waiting += 1
        try:
            async with self._room:
                return await self._ask_each(method, path, kind, body)
        finally:
            self._waiting -= 1

    async def _ask_each(
        self, method: str, path: str, kind: type[_Answer], body: bytes | None
    ) -> _Answer:
        faults: list[str] = []
        for address in self._addresses:
            try:
                async with asyncio.timeout(2 * self._seconds):
                    status, data = await to_thread(self._exchange, method, address + path, body)
            except (urllib3.exceptions.HTTPError, TimeoutError, OSError) as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
                faults.append(f"{address} does not answer ({printable(reason)})")
                continue
            if status >= 500:
                faults.append(f"{address} answers {status}: {_reason(data).message}")
                continue
            return _read(address, status, data, kind)
        raise RegistryError(f"no schema registry answers: {'; '.join(faults)}")

    def _exchange(self, method: str, address: str, body: bytes | None) -> tuple[int, bytes]:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = _MEDIA_TYPE
        until = time.monotonic() + self._seconds
        response = self._http.request(
            method, address, headers=headers, body=body, redirect=False, preload_content=False
        )
        data = bytearray()
        try:
            while part := response.read1(SCHEMA_BYTES_MAX + 1, decode_content=False):
                data += part
                if len(data) > SCHEMA_BYTES_MAX:
                    raise urllib3.exceptions.HTTPError(f"more than {SCHEMA_BYTES_MAX} bytes")
                if time.monotonic() > until:
                    raise TimeoutError("its answer takes too long")
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return response.status, bytes(data)


def _address(text: str) -> str:
    address = text.strip().rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"{printable(address)!r} is no address of a schema registry; write http://host:port"
        )
    if parts.username or parts.password:
        raise ConfigError("give the account of a schema registry by username= and password=")
    return address


def _subject(name: str) -> str:
    if not name or len(name) > 1_000:
        raise ConfigError("a subject has 1 to 1000 characters")
    return f"/subjects/{quote(name, safe='')}"


def _reason(data: bytes) -> _Fault:
    try:
        fault = msgspec.json.decode(data, type=_Fault)
    except (msgspec.MsgspecError, RecursionError):
        return _Fault()
    return _Fault(fault.error_code, printable(fault.message))


def _read(address: str, status: int, data: bytes, kind: type[_Answer]) -> _Answer:
    if status != 200:
        fault = _reason(data)
        said = f": {fault.message}" if fault.message else ""
        raise RegistryError(
            f"{address} answers {status}{said}", status=status, code=fault.error_code
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RegistryError(
            f"{address} answers with something else than a schema registry: {error}", status=status
        ) from None
