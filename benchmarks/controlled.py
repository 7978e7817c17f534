"""Question: what does a controller cost a pair? The aim is 3 % of rate and CPU.

Sends of 1 KiB to a master with one slave, to a pair with fixed roles and to one under a controller
in turn, as ``replication.py`` sends them: SYNC_MASTER (``allAckInSyncStateSet`` under a controller)
and ASYNC_MASTER.

    python benchmarks/controlled.py [--passes 9] [--seconds 4] [--cases sync,async] [--folder /tmp]

Prints a table of medians with their ranges, and for each shape the median of the ratios of each
turn; then JSON. Exits with 1 below a floor.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.servers.up import free_port

from benchmarks.against_java import fill_page_cache, text
from benchmarks.peers import Target, build_loadgen, our_broker, our_process
from benchmarks.replication import FIGURES, SECONDS_MAX, SHAPES, Pair, send
from kerolox.admin.sync import Admin

PRICE_MAX = 0.03
WARM_UPS = 1
NAME = "bench"

Turns = dict[tuple[int, int], dict[str, list[list[float]]]]
"""Shape to label to the figures of each turn."""


class ControlledPair(Pair):
    """Two brokers under one controller."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._stack.close)
            self._begin()
            stack.pop_all()
        return self

    def _begin(self) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        self._start_controller()
        self.master = self._stack.enter_context(self._controlled("master", is_beside=False))
        self._stack.callback(self._slave_stack.close)
        self.start_slave()
        deadline = time.monotonic() + SECONDS_MAX
        with Admin(self._address) as admin:
            while not self._is_whole(admin):
                if time.monotonic() > deadline:
                    raise SystemExit("the slave does not come in sync")
                time.sleep(0.05)

    def _is_whole(self, admin: Admin) -> bool:
        """Both are in sync; the one that was elected is the master."""
        found = admin.sync_state_sets(self._address).get(NAME)
        if found is None or len(found.in_sync) < 2:
            return False
        if found.master_address == self.slave.address:
            self.master, self.slave = self.slave, self.master
        return True

    def start_slave(self) -> None:
        """Start the second broker."""
        self.slave = self._slave_stack.enter_context(self._controlled("slave", is_beside=True))

    def _start_controller(self) -> None:
        settings = f"controllerDLegerPeers=n0-{self._address}", "controllerDLegerSelfId=n0"
        command = [sys.executable, "-m", "kerolox.cli", "controller", "--host", "127.0.0.1"]
        self._stack.enter_context(our_process(self._folder / "controller", command, settings))

    def _controlled(self, name: str, *, is_beside: bool) -> AbstractContextManager[Target]:
        waits = self._role == "SYNC_MASTER"
        return our_broker(
            self._folder / name,
            "native",
            f"brokerName={NAME}",
            "enableControllerMode=true",
            f"controllerAddr={self._address}",
            *(("allAckInSyncStateSet=true",) if waits else ()),
            namesrv_port=self._names,
            is_beside=is_beside,
        )


def measure(loadgen: Path, role: str, passes: int, seconds: int, folder: Path) -> Turns:
    """Both pairs in turn."""
    turns: Turns = {shape: {"fixed": [], "controlled": []} for shape in SHAPES}
    with ExitStack() as stack:
        pairs = {
            "fixed": stack.enter_context(Pair("native", role, folder / "fixed")),
            "controlled": stack.enter_context(ControlledPair("native", role, folder / "under")),
        }
        fill_page_cache(folder)
        for number in range(-WARM_UPS, passes):
            for shape in SHAPES:
                for label in sorted(pairs, reverse=bool(number % 2)):
                    topic = f"{role}-{shape[0]}-{os.getpid()}-{number}"
                    values = send(loadgen, pairs[label], topic, shape, seconds)
                    if number >= 0:
                        turns[shape][label].append(values)
                    print(f"{number} {role} {shape} {label} {values}", file=sys.stderr)
    return turns


def report(role: str, turns: Turns) -> bool:
    """Print the table of a role; whether its price is met."""
    is_met = True
    print("| case | fixed roles | under a controller | ratio of a turn |\n|---|---|---|---|")
    for shape, found in turns.items():
        for place, figure in enumerate(FIGURES):
            fixed = [each[place] for each in found["fixed"]]
            under = [each[place] for each in found["controlled"]]
            ratios = [now / then for now, then in zip(under, fixed, strict=True)]
            ratio = statistics.median(ratios)
            name = f"{role} {shape[0]}x{shape[1]} {figure}"
            print(f"| {name} | {text(fixed)} | {text(under)} | {ratio:.3f} |")
            is_met &= ratio >= 1 - PRICE_MAX if figure == "rate" else ratio <= 1 + PRICE_MAX
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--cases", default="sync,async")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    chosen = parser.parse_args()
    loadgen, is_met = build_loadgen(), True
    saved: dict[str, Any] = {}
    for case in chosen.cases.split(","):
        role = f"{case.upper()}_MASTER"
        with tempfile.TemporaryDirectory(prefix="kerolox-bench-", dir=chosen.folder) as name:
            turns = measure(loadgen, role, chosen.passes, chosen.seconds, Path(name))
        is_met &= report(role, turns)
        saved[role] = {f"{shape[0]}x{shape[1]}": found for shape, found in turns.items()}
    print(json.dumps(saved))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
