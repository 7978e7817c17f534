"""Accounts and certificates of a running broker, changed again and again while clients send.

``benchmarks/reload.py`` does it a thousand times; a test does a few of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from kerolox.addresses import split_address
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.security.credentials import Credentials
from tests.support.clients.patient import PatientConnection
from tests.support.clients.requests import send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX

__all__ = ["Changing", "Seen"]

TOPIC = "reloaded"
STEADY = Credentials("steady-account", "the same all the time")
CHANGED = "changed-account"

POLL_SECONDS = 0.01
"""Between two questions whether a change is in force."""

SENDERS = 2
"""Connections of each kind, plain and with TLS, that send one message after the other."""


@dataclass
class Seen:
    """What came of it."""

    answers: Counter[int] = field(default_factory=Counter)
    """To sends of the account that does not change, by their code."""
    lost: list[str] = field(default_factory=list)
    """Sends without an answer, and why."""
    accounts_seconds: list[float] = field(default_factory=list)
    """Until each change of accounts was in force."""
    certificates_seconds: list[float] = field(default_factory=list)
    longest_seconds: float = 0.0
    """Of all answers to sends."""


def context() -> ssl.SSLContext:
    """Of a client that believes anybody."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


class Changing:
    """The files of a broker, in its ``ROCKETMQ_HOME``, and what changes them.

    Args:
        home: a new folder, which gets ``conf/plain_acl.yml`` and ``conf/tls.properties``.
        accounts: how many others there are in the file.
    """

    def __init__(self, home: Path, *, accounts: int = 100) -> None:
        self.home = home
        self._conf = home / "conf"
        self._conf.mkdir(parents=True)
        self._others = "".join(
            f"- accessKey: account-{number:05}\n  secretKey: secret-{number:05}\n"
            f"  defaultTopicPerm: DENY\n  topicPerms: [topic-{number}=PUB|SUB]\n"
            for number in range(accounts)
        )
        authority = trustme.CA()
        self._pairs = [self._pair(authority) for _ in range(2)]
        self._key, self._certificate = self._conf / "server.key", self._conf / "server.pem"
        self.tls_file = self._conf / "tls.properties"
        self.tls_file.write_text(
            "tls.test.mode.enable=false\ntls.server.mode=permissive\n"
            f"tls.server.keyPath={self._key}\ntls.server.certPath={self._certificate}\n"
        )
        self.change_accounts(0)
        self.change_certificate(0)

    @property
    def settings(self) -> dict[str, str]:
        """Of the broker that has these files."""
        return {"aclEnable": "true", "tls.config.file": str(self.tls_file)}

    @staticmethod
    def _pair(authority: trustme.CA) -> tuple[bytes, bytes, bytes]:
        """Key, certificate, and the certificate as a handshake shows it."""
        issued = authority.issue_cert("localhost")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        shown = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
        return issued.private_key_pem.bytes(), chain, shown

    @staticmethod
    def _secret(number: int) -> str:
        return f"secret-of-change-{number}"

    def _put(self, path: Path, data: bytes, number: int) -> None:
        """In place, or by renaming another file: in turn."""
        if number % 2:
            path.write_bytes(data)
            return
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(data)
        os.replace(beside, path)

    def change_accounts(self, number: int) -> None:
        """The change of this number: another secret of one account."""
        text = "accounts:\n" + "".join(
            f"- accessKey: {name}\n  secretKey: '{secret}'\n  admin: true\n"
            for name, secret in (
                (STEADY.access_key, STEADY.secret_key),
                (CHANGED, self._secret(number)),
            )
        )
        self._put(self._conf / "plain_acl.yml", (text + self._others).encode(), number)

    def change_certificate(self, number: int) -> None:
        """The other one of two certificates, with its key."""
        key, certificate, _ = self._pairs[number % 2]
        self._put(self._key, key, number // 2)
        self._put(self._certificate, certificate, number // 2)

    # -- what clients see -------------------------------------------------------------------
    def _has_accounts(self, address: str, number: int) -> bool:
        credentials = Credentials(CHANGED, self._secret(number))
        with PatientConnection(address, credentials=credentials) as connection:
            asked = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
            return connection.invoke(asked, SECONDS_MAX).code == ResponseCode.SUCCESS

    def _has_certificate(self, address: str, number: int) -> bool:
        with (
            socket.create_connection(split_address(address), SECONDS_MAX) as plain,
            context().wrap_socket(plain) as secure,
        ):
            return secure.getpeercert(binary_form=True) == self._pairs[number % 2][2]

    def run(self, address: str, changes: int) -> Seen:
        """Change accounts and certificates so often each, side by side, while clients send.

        Raises:
            TimeoutError: a change was not in force after ``SECONDS_MAX``.
        """
        seen, failures = Seen(), list[BaseException]()
        with PatientConnection(address, credentials=STEADY) as connection:
            fields = topic_fields(TOPIC, queues=4)
            made = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert connection.invoke(made, SECONDS_MAX).code == ResponseCode.SUCCESS

        def change(
            make: Callable[[int], None], is_there: Callable[[str, int], bool], times: list[float]
        ) -> None:
            try:
                for number in range(1, changes + 1):
                    begin = time.monotonic()
                    make(number)
                    while not is_there(address, number):
                        if time.monotonic() - begin > SECONDS_MAX:
                            raise TimeoutError(f"change {number} by {make.__name__}")
                        time.sleep(POLL_SECONDS)
                    times.append(time.monotonic() - begin)
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(
                target=change,
                args=(self.change_accounts, self._has_accounts, seen.accounts_seconds),
            ),
            threading.Thread(
                target=change,
                args=(self.change_certificate, self._has_certificate, seen.certificates_seconds),
            ),
        ]
        with _sending(address, seen):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]
        return seen


@contextlib.contextmanager
def _sending(address: str, seen: Seen) -> Iterator[None]:
    """Clients send meanwhile; each counts what it sent and what was answered."""
    stopping, lock = threading.Event(), threading.Lock()

    def send(is_secure: bool) -> None:
        answers, longest = Counter[int](), 0.0
        tls = context() if is_secure else False
        try:
            with PatientConnection(address, credentials=STEADY, tls=tls) as connection:
                while not stopping.is_set():
                    fields = send_fields(b=TOPIC)
                    begin = time.monotonic()
                    command = RemotingCommand.request(
                        RequestCode.SEND_MESSAGE_V2, fields, body=b"x" * 128
                    )
                    answers[connection.invoke(command, SECONDS_MAX).code] += 1
                    longest = max(longest, time.monotonic() - begin)
        except (OSError, KeroloxError) as error:
            with lock:
                seen.lost.append(f"{type(error).__name__}: {error}")
        with lock:
            seen.answers += answers
            seen.longest_seconds = max(seen.longest_seconds, longest)

    threads = [
        threading.Thread(target=send, args=(is_secure,))
        for is_secure in (False, True)
        for _ in range(SENDERS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
