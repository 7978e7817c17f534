"""Runs ``pipeline.py`` as its user does, and says what it must find."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.clients.spark import SECONDS_OF_SPARK, Topics
from tests.support.servers.sparks import settings_of
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MESSAGES", "SECRET", "check_found", "fill_store", "run_pipeline"]

MESSAGES = 300
SECRET = "not-to-be-shown"
"""Of the account that signs, which brokers without accounts do not examine."""

_PROGRAM = Path(__file__).with_name("pipeline.py")


def fill_store(folder: Path) -> Path:
    """A store of some files, with numbered messages."""
    with opened(small_settings(folder)) as store:
        for number in range(MESSAGES):
            text = b"TAGS\x01t%d\x02KEYS\x01k%d" % (number % 3, number)
            put(store, "T", number % 2, b"%d " % number * 200, text)
    return folder / "store"


def run_pipeline(
    command: Sequence[Path | str],
    variables: Mapping[str, str],
    url: str,
    topics: Topics,
    folder: Path,
) -> dict[str, Any]:
    """Run it in a folder by a Python or by ``spark-submit``; what it has found."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "url": url,
        "settings": settings_of(folder),
        "namesrv": topics.namesrv,
        "store": str(fill_store(folder)),
        "topics": [topics.create(f"{name}-{uuid.uuid4().hex[:12]}") for name in ("one", "two")],
        "folder": str(folder),
        "secret": SECRET,
    }
    found = folder / "found.json"
    done = subprocess.run(
        [*map(str, command), str(_PROGRAM), json.dumps(given), str(found)],
        cwd=folder,
        env={**variables, "SPARK_LOCAL_DIRS": str(folder / "local")},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_OF_SPARK,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]
    answer: dict[str, Any] = json.loads(found.read_text())
    return answer


def check_found(found: Mapping[str, Any]) -> None:
    """Each message of the store went all ways once."""
    keys = sorted(f"k{number}" for number in range(MESSAGES))
    assert [row[0] for row in found["rows"]] == keys
    assert found["table"] == keys
    for key, tag, body in found["rows"]:
        number = int(key[1:])
        assert (tag, body) == (f"t{number % 3}", f"{number} " * 200)
