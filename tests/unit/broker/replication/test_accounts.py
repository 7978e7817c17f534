"""A master that wants an account from its slaves (``haAclEnable``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.replication.master import JUDGED_MS, LogRange, SlaveLink
from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.wire import (
    HELLO,
    NOTE_BYTES_MAX,
    REPORT,
    Note,
    ReplicationError,
    ReplicationSettings,
)
from kerolox.errors import ConfigError
from kerolox.security.access.accounts import Account, Accounts
from kerolox.security.credentials import Credentials
from kerolox.security.slave_proof import made_proof, proof_refusal
from tests.support.clients.peer import peer_at
from tests.support.eventually import until

from .memory_log import FILE_SIZE, MemoryLog
from .pairs import ha_port, log_of, master_config, quick_retries, raw_slave, slave_config

__all__ = ["quick_retries"]

OPERATOR = Credentials("operator", "operator-secret")
WORKER = Credentials("worker-account", "worker-secret")
ACCOUNTS = Accounts(
    by_key={
        each.access_key: Account(each.access_key, each.secret_key, is_admin=each is OPERATOR)
        for each in (OPERATOR, WORKER)
    }
)
SETTINGS = ReplicationSettings(heartbeat_ms=100, housekeeping_ms=400, batch_bytes=300)
LOG = LogRange(0, 500)
FILE = """
accounts:
  - accessKey: operator
    secretKey: operator-secret
    admin: true
  - accessKey: worker-account
    secretKey: worker-secret
    admin: false
    defaultTopicPerm: PUB|SUB
"""


def check_proof(proof: bytes, nonce: str) -> str:
    return proof_refusal(proof, nonce, ACCOUNTS)


def message(body: bytes) -> bytes:
    return REPORT.pack(-1 - len(body)) + body


def guarded() -> SlaveLink:
    """A master's end that has given its number."""
    link = SlaveLink(SETTINGS, FILE_SIZE, 0, check_proof, "n1")
    assert link.received(HELLO, LOG, 0) == Note(nonce="n1").frame()
    return link


def test_the_bounds_of_a_log_are_told_to_an_administrators_slave() -> None:
    link = guarded()
    low = MasterLink(MemoryLog(), FILE_SIZE, SETTINGS, 0, prove=lambda n: made_proof(OPERATOR, n))
    proof = low.received(Note(nonce="n1").frame(), 0)
    note = link.received(proof, LOG, 0)
    assert note == Note(0, 500, FILE_SIZE).frame()
    assert link.received(low.received(note, 0), LOG, 0) == b""
    assert link.position == 0


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (message(made_proof(WORKER, "n1")), "accessKey=worker-account is none"),
        (message(made_proof(OPERATOR, "n2")), "Check signature failed for accessKey=operator"),
        (message(made_proof(Credentials("operator", "guessed"), "n1")), "Check signature failed"),
        (message(made_proof(Credentials("nobody", "x"), "n1")), "No acl config for nobody"),
        (message(b"{}"), "proves no account"),
        (message(b'{"accessKey":"operator","signature":"\xc3\xa9"}'), "Check signature failed"),
        (message(b"\xff" * NOTE_BYTES_MAX), "proves no account"),
        (REPORT.pack(0), "shows no account"),
        (HELLO, "what no slave sends"),
    ],
)
def test_whoever_proves_no_administrator_is_refused(sent: bytes, words: str) -> None:
    with pytest.raises(ReplicationError, match=words):
        guarded().received(sent, LOG, 0)


def test_a_java_slave_is_refused_where_an_account_is_wanted() -> None:
    link = SlaveLink(SETTINGS, FILE_SIZE, 0, check_proof, "n1")
    with pytest.raises(ReplicationError, match="a Java slave has none"):
        link.received(REPORT.pack(0), LOG, 0)


def test_a_proof_counts_once_and_as_long_as_the_account_does() -> None:
    known = {"accounts": ACCOUNTS}
    link = SlaveLink(
        SETTINGS, FILE_SIZE, 0, lambda proof, n: proof_refusal(proof, n, known["accounts"]), "n1"
    )
    proof = message(made_proof(OPERATOR, "n1"))
    link.received(HELLO, LOG, 0)
    link.received(proof, LOG, 0)
    with pytest.raises(ReplicationError, match="what no slave sends"):
        link.received(proof, LOG, 0)
    link.received(REPORT.pack(0), LOG, 0)
    known["accounts"] = Accounts()
    link.received(REPORT.pack(0), LOG, JUDGED_MS - 1)
    with pytest.raises(ReplicationError, match="No acl config"):
        link.received(REPORT.pack(0), LOG, JUDGED_MS)


def test_a_slave_shows_its_account_once_and_only_before_it_begins() -> None:
    note = Note(nonce="n1").frame()
    log = MemoryLog(0, b"one\n")
    without = MasterLink(log, FILE_SIZE, SETTINGS, 0)
    with pytest.raises(ReplicationError, match="namesrvCredentialsFile"):
        without.received(note, 0)
    link = MasterLink(log, FILE_SIZE, SETTINGS, 0, prove=lambda n: made_proof(OPERATOR, n))
    assert link.received(note, 0) == message(made_proof(OPERATOR, "n1"))
    with pytest.raises(ReplicationError, match="at a wrong time"):
        link.received(note, 0)


def accounts_file(folder: Path) -> dict[str, Any]:
    file = folder / "plain_acl.yml"
    file.write_text(FILE)
    return {"acl_enable": True, "ha_acl_enable": True, "acl_file": str(file)}


def credentials_file(folder: Path, account: Credentials) -> str:
    path = folder / f"{account.access_key}.yml"
    path.write_text(f"accessKey: {account.access_key}\nsecretKey: {account.secret_key}\n")
    return str(path)


@pytest.mark.asyncio
async def test_a_slave_with_an_administrators_account_follows_and_others_do_not(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = master_config(tmp_path, **accounts_file(tmp_path))
    async with Broker(config, kernel=kernel) as master:
        async with peer_at(master.address, credentials=OPERATOR) as peer:
            await peer.create_topic("T")
            await peer.send("T", b"for administrators")
        for account, words in ((None, "wants the account"), (WORKER, "is none")):
            file = "" if account is None else credentials_file(tmp_path, account)
            refused = slave_config(tmp_path, ha_port(master), namesrv_credentials_file=file)
            async with Broker(refused, kernel=kernel) as slave:
                await until(lambda words=words: words in caplog.text)
                assert slave.parts.store.max_physical_offset == 0
        async with raw_slave(master) as java:
            java.report(0)
            assert await java.is_closed()
        assert "it shows no account" in caplog.text
        file = credentials_file(tmp_path, OPERATOR)
        admitted = slave_config(tmp_path, ha_port(master), namesrv_credentials_file=file)
        async with Broker(admitted, kernel=kernel) as slave:
            await until(lambda: log_of(slave) == log_of(master) != b"")
            assert OPERATOR.secret_key not in caplog.text


@pytest.mark.asyncio
async def test_accounts_of_slaves_need_accounts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haAclEnable=true"):
        master_config(tmp_path, ha_acl_enable=True)
