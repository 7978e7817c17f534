"""Claim: a command costs little processor time: `--version` 0.1 s, `--help` 0.15 s, `topic list`,
`send` and a completion 0.2 s, `group describe` 0.25 s.

python benchmarks/commands.py [--beside CHECKOUT] [--runs 11]

A command is run as its users run it, with compiled modules, against a broker of this checkout.
Times are user and system time of its process, in seconds, medians of the runs. Another checkout,
whose own ``.venv`` runs its commands, takes turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.servers.up import free_port

from benchmarks.peers import ROOT, our_broker

WRITES_NOTHING = "PYTHONDONTWRITEBYTECODE"

COMMANDS = {
    "--version": ["--version"],
    "--help": ["--help"],
    "topic --help": ["topic", "--help"],
    "topic list": ["topic", "list"],
    "send": ["send", "Orders", "hello"],
    "group describe": ["group", "describe", "shop"],
}
COMPLETIONS = {
    "completion of commands": "kerolox topic des",
    "completion of topics": "kerolox topic describe Or",
}
SET_UP = (
    ["topic", "create", "Orders", "--queues", "4"],
    ["send", "Orders", "hello"],
    ["group", "create", "shop"],
    ["group", "reset", "shop", "Orders", "--to", "beginning", "--yes", "--new-group"],
)


def program(checkout: Path) -> str:
    """The command of a checkout."""
    return str(checkout / ".venv" / "bin" / "kerolox")


def processor_seconds(command: list[str], environment: dict[str, str]) -> float:
    """User and system time of a process.

    Raises:
        RuntimeError: it failed.
    """
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def cases(checkout: Path, environment: dict[str, str]) -> dict[str, float]:
    """One run of all commands of a checkout."""
    kerolox = program(checkout)
    found = {
        name: processor_seconds([kerolox, *arguments], environment)
        for name, arguments in COMMANDS.items()
    }
    for name, line in COMPLETIONS.items():
        shell = {
            "_KEROLOX_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        }
        found[name] = processor_seconds([kerolox], environment | shell)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, action="append", default=[])
    parser.add_argument("--runs", type=int, default=11)
    chosen = parser.parse_args()
    checkouts = {"this": ROOT, **{each.name: each.resolve() for each in chosen.beside}}
    seconds: dict[str, dict[str, list[float]]] = {label: {} for label in checkouts}
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as kept:
        folder, port = Path(kept), free_port()
        environment = {
            **{name: text for name, text in os.environ.items() if name != WRITES_NOTHING},
            "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "NAMESRV_ADDR": f"127.0.0.1:{port}",
        }
        with our_broker(folder / "broker", "native", namesrv_port=port):
            for arguments in SET_UP:
                processor_seconds([program(ROOT), *arguments], environment)
            for run in range(chosen.runs + 1):
                for label, checkout in checkouts.items():
                    for name, used in cases(checkout, environment).items():
                        if run:  # the first one compiles modules
                            seconds[label].setdefault(name, []).append(used)
    medians = {
        label: {name: round(statistics.median(times), 3) for name, times in table.items()}
        for label, table in seconds.items()
    }
    print(json.dumps(medians, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
