"""A schema registry of a few lines: Confluent's REST as its documentation has it, in memory."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

__all__ = ["RegistryServer"]

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass
class RegistryServer:
    """Serves in a thread; ``with`` ends it."""

    account: str = ""
    """The header ``authorization`` that is wanted; empty: none."""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """By id, from 1."""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """Ids by version, from 1."""
    asked: list[str] = field(default_factory=list)
    fault: tuple[int, bytes] | None = None
    """What all requests are answered with."""
    held: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it."""

    def __enter__(self) -> Self:
        self.held.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == _MEDIA_TYPE
                self._answer(json.loads(body))

            def _answer(self, body: Any) -> None:
                server.asked.append(f"{self.command} {self.path}")
                server.held.wait(30)
                status, answer = server.answer(
                    self.command, self.path, body, self.headers.get("authorization", "")
                )
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", _MEDIA_TYPE)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.held.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def answer(self, method: str, path: str, body: Any, account: str) -> tuple[int, Any]:
        if self.fault is not None:
            return self.fault
        if account != self.account:
            return 401, {"error_code": 40101, "message": "who are you?"}
        parts = [unquote(each) for each in path.partition("?")[0].strip("/").split("/")]
        match method, parts:
            case "GET", ["schemas", "ids", number]:
                if not 0 < int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                return 200, self.schemas[int(number) - 1]
            case "GET", ["subjects", subject, "versions", version]:
                ids = self.subjects.get(subject, [])
                number = len(ids) if version == "latest" else int(version)
                if not 0 < number <= len(ids):
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found"}
                found = self.schemas[ids[number - 1] - 1]
                return 200, {"subject": subject, "version": number, "id": ids[number - 1], **found}
            case "POST", ["subjects", subject]:
                if body not in self.schemas:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                found = self.schemas.index(body) + 1
                ids = self.subjects.get(subject, [])
                if found not in ids:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                version = ids.index(found) + 1
                return 200, {"subject": subject, "version": version, "id": found, **body}
            case "POST", ["subjects", subject, "versions"]:
                if body.get("schemaType") in (None, "AVRO") and "record" not in body["schema"]:
                    return 422, {"error_code": 42201, "message": "Invalid schema"}
                if body not in self.schemas:
                    self.schemas.append(body)
                ids = self.subjects.setdefault(subject, [])
                number = self.schemas.index(body) + 1
                if number not in ids:
                    ids.append(number)
                return 200, {"id": number}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
