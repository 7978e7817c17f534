"""How long others wait for an answer while somebody is hostile, on both kernels, on any machine.

    python benchmarks/abuse.py [a part of a scenario's name ...]
    python benchmarks/abuse.py --grpc [--seconds 2] [--rounds 5] [a part of a name ...]

Plays each scenario of ``tests/abuse/scenarios.py`` beside a probe, and prints a line for each: of
the probe's answers the median, the 99th percentile and the slowest in milliseconds of the
server's own time, which is the clock less what the machine took
(``tests/support/servers/probe.py``), and by how many MiB the server grew. Others are to be served
within 100 ms.

With ``--grpc`` those of ``tests/abuse/grpc_scenarios.py``, on one server for each kernel. Each is
played again and again for some seconds, in turn with as many seconds of calm, and of the same storm
at another server of this machine: what a storm costs whoever shares the machine with it. The
attacker is one process, with the other server on a processor of its own; the server and the probe
share another one. A line has, of sends and receives by gRPC and by remoting, the 99th percentile
in calm, beside the storm at the other server, and beside the storm: the medians of the rounds. The
last is to be above the one before it by under 10 %. The first line is a storm of nothing: what the
method itself says where nothing moves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.abuse.conftest import SETTINGS
from tests.abuse.grpc_abuses import TOPIC
from tests.abuse.grpc_scenarios import GRPC_FLOODS, served
from tests.abuse.kept import ask
from tests.abuse.scenarios import SCENARIOS
from tests.support.clients.requests import topic_fields
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe, Seen
from tests.support.servers.up import Up

from kerolox.protocol.codes import RequestCode

SERVED_MS_MAX = 100.0
KINDS = "send by gRPC", "receive by gRPC", "send", "pull"

SERVER_S, *_, ATTACKER_S = sorted(os.sched_getaffinity(0)) * 2
"""Processors; the same where there is one."""

CALM_SECONDS = 0.1

STEADY_PAUSE_SECONDS = 0.002
"""Between two rounds of the probe beside storms by gRPC: some hundred rounds a second."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("wanted", nargs="*")
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernel", choices=KERNELS)
    options = parser.parse_args()

    def is_wanted(name: str) -> bool:
        return not options.wanted or any(part in name for part in options.wanted)

    kernels = (options.kernel,) if options.kernel else KERNELS
    if options.grpc:
        storms: dict[str, Callable[[Up], None]] = {"nothing": nothing}
        storms |= {name: each.play for name, each in GRPC_FLOODS.items() if is_wanted(name)}
        for kernel in kernels:
            in_turn(kernel, storms, options.seconds, options.rounds)
        return
    print(f"{'':<48}{'median':>9}{'99 %':>9}{'slowest':>9} ms{'late':>6}{'grown':>7} MiB")
    for kernel in kernels:
        for name, scenario in SCENARIOS.items():
            if not is_wanted(name):
                continue
            with (
                tempfile.TemporaryDirectory() as folder,
                Up(Path(folder), settings=SETTINGS, kernel=kernel) as up,
            ):
                with Probe(up) as probe:
                    scenario.play(up)
                assert probe.seen is not None
                print(f"{kernel + ' ' + name:<48}{described(probe.seen)}", flush=True)


def described(seen: Seen) -> str:
    """The figures of one scenario."""
    if seen.wrong:
        return f" {seen.wrong}"
    served_ms = sorted(answer[2] for answer in seen.answers)
    late = sum(each > SERVED_MS_MAX for each in served_ms)
    figures = (served_ms[len(served_ms) // 2], percentile_99(served_ms), served_ms[-1])
    times = "".join(f"{each:9.1f}" for each in figures)
    return f"{times}   {late:>6}{seen.grown_mib:7.0f}"


def percentile_99(sorted_ms: list[float]) -> float:
    return sorted_ms[len(sorted_ms) * 99 // 100]


# -- the port for gRPC ------------------------------------------------------------------------
def nothing(up: Up) -> None:
    """Nobody is hostile."""
    time.sleep(CALM_SECONDS)


def pin(pid: int, processor: int) -> None:
    """Have all threads of a process run there alone, with those that they start."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {processor})


def in_turn(
    kernel: str, storms: dict[str, Callable[[Up], None]], seconds: float, rounds: int
) -> None:
    """Calm, each storm elsewhere, and each storm, in turn."""
    head = f"{kernel + ', 99 %: calm, elsewhere, here, ms':<46}"
    print(head + "".join(f"{kind:>27}" for kind in KINDS))
    with (
        tempfile.TemporaryDirectory() as folder,
        served_up(Path(folder) / "here", kernel, SERVER_S) as up,
        served_up(Path(folder) / "elsewhere", kernel, ATTACKER_S) as other,
    ):
        pin(os.getpid(), ATTACKER_S)
        for name, play in storms.items():
            plays: tuple[Callable[[], None], ...] = (
                lambda: nothing(up),
                lambda play=play: play(other),  # type: ignore[misc]
                lambda play=play: play(up),  # type: ignore[misc]
            )
            found: list[dict[str, list[float]]] = [defaultdict(list) for _ in plays]
            for _ in range(rounds):
                for each, seen in zip(plays, found, strict=True):
                    watched(up, seconds, each, seen)
            figures = ""
            for kind in KINDS:
                calm, elsewhere, here = (statistics.median(seen[kind]) for seen in found)
                moved = (here / elsewhere - 1) * 100
                figures += f"{calm:7.2f}{elsewhere:7.2f}{here:7.2f}{moved:+5.0f}%"
            print(f"{name:<46}{figures}", flush=True)


@contextmanager
def served_up(folder: Path, kernel: str, processor: int) -> Iterator[Up]:
    """A server with the topic of the storms, which has served a call by gRPC."""
    with Up(folder, settings=SETTINGS, kernel=kernel, grpc=True) as up:
        ask(up.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, queues=1))
        served(up)
        assert up.process is not None
        pin(up.process.pid, processor)
        yield up


def watched(
    up: Up, seconds: float, play: Callable[[], None], found: dict[str, list[float]]
) -> None:
    """Play for some seconds beside a probe; what it saw of each kind."""
    with Probe(up, pause_seconds=STEADY_PAUSE_SECONDS) as probe:
        pin(probe.pid, SERVER_S)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            play()
    seen = probe.seen
    assert seen is not None
    assert not seen.wrong, seen.wrong
    for kind in KINDS:
        served_ms = sorted(answer[2] for answer in seen.answers if answer[0] == kind)
        found[kind].append(percentile_99(served_ms))


if __name__ == "__main__":
    main()
