"""``kerolox name-server``: key-values are read, set and deleted."""

from __future__ import annotations

import json

from tests.support.servers.command import kerolox

NAMESPACE = "ORDER_TOPIC_CONFIG"


def test_a_key_value_is_set_read_and_deleted(name_server: str) -> None:
    at = ("-n", name_server)
    name = (NAMESPACE, "Sorted")
    tried = kerolox("name-server", "set", *name, "broker-a:4", "--dry-run", *at)
    assert tried.stdout.splitlines() == [
        f"{NAMESPACE} Sorted on {name_server}: nothing → broker-a:4",
        "nothing was changed (--dry-run)",
    ]
    assert kerolox("name-server", "get", *name, *at).returncode == 1
    kerolox("name-server", "set", *name, "broker-a:4", *at)
    again = kerolox("name-server", "set", *name, "broker-a:8", "-o", "json", *at)
    assert json.loads(again.stdout) == {
        "namespace": NAMESPACE,
        "key": "Sorted",
        "old": "broker-a:4",
        "new": "broker-a:8",
        "nameServers": [name_server],
        "done": True,
    }
    assert kerolox("name-server", "get", *name, *at).stdout == "broker-a:8\n"
    [row] = json.loads(kerolox("name-server", "get", NAMESPACE, "-o", "json", *at).stdout)
    assert row == {"namespace": NAMESPACE, "key": "Sorted", "value": "broker-a:8"}
    kept = kerolox("name-server", "delete", *name, "--dry-run", *at)
    assert kept.stdout.startswith(f"{NAMESPACE} Sorted on {name_server}: broker-a:8 → nothing\n")
    assert kerolox("name-server", "get", *name, *at).returncode == 0
    assert kerolox("name-server", "delete", *name, *at).returncode == 0
    assert kerolox("name-server", "get", NAMESPACE, *at).stdout == (
        f"namespace {NAMESPACE} has no key-values\n"
    )


def test_a_key_that_is_not_there_is_an_error_that_names_the_nearest(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("name-server", "set", "Other", "colour", "red", *at)
    for verb in ("get", "delete"):
        done = kerolox("name-server", verb, "Other", "color", *at)
        assert done.returncode == 1
        assert "namespace 'Other' has no key 'color'; did you mean 'colour'?" in done.stderr
    missing = kerolox("name-server", "delete", "Nowhere", "key", *at)
    assert "namespace 'Nowhere' has no key 'key'; it has none" in missing.stderr
