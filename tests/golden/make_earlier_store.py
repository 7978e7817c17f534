"""Writes ``kerolox-VERSION.tar.xz``: a store that this version's broker wrote, and what is in it.

    python -m tests.golden.make_earlier_store FOLDER

Each release adds one, and every later version has to open it.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import kerolox
from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.message import Message
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox as run
from tests.support.servers.up import Up

SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 15,
    "mappedFileSizeConsumeQueue": 20 * 30,
    "maxHashSlotNum": 100,
    "maxIndexNum": 150,
    "flushConsumerOffsetInterval": 200,
}
COUNT = 200


def fill(up: Up) -> None:
    """Topics, one of which is deleted; messages, some delayed; a group with offsets."""
    with Admin(up.namesrv) as admin, Producer("writers", up.namesrv) as producer:
        for topic in ("Kept", "Gone"):
            admin.create_topic(topic, queues=3)
        for number in range(COUNT):
            body = b"%d " % number * (number % 30 + 1)
            message = Message(
                "Kept",
                body,
                keys=f"k{number}",
                tags=f"t{number % 3}",
                properties={"n": str(number)},
            )
            if number % 40 == 7:
                message.delay_level = 18
            producer.send(message)
            if number % 20 == 3:
                producer.send(Message("Gone", body))
        admin.delete_topic("Gone")
    for words in (("group", "create", "readers"), ("group", "reset", "readers", "Kept")):
        more = ("--to", "-20", "--execute") if "reset" in words else ("--retries", "5")
        done = run(*words, *more, "-n", up.namesrv)
        assert done.returncode == 0, done.stderr
    table = up.data / "store" / "config" / "consumerOffset.json"
    wait_until(lambda: table.exists() and "readers" in table.read_text(), what="the offsets")


def main(target: str) -> None:
    """Write the archive into a folder."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        with Up(data, settings=SETTINGS) as up:
            fill(up)
        dumped = run("store", "dump", data / "store", "-c", data / "broker.conf")
        assert dumped.returncode == 0, dumped.stderr
        (data / "records.jsonl").write_text(dumped.stdout)
        (data / "settings.json").write_text(json.dumps(SETTINGS))
        archive = Path(target, f"kerolox-{kerolox.__version__}.tar.xz")
        with tarfile.open(archive, "w:xz") as file:
            for name in ("store", "records.jsonl", "settings.json"):
                file.add(data / name, name)
        print(archive, archive.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1])
